//! Shares of what the server does itself: one API key with many users has a bound over all of them, and each key of
//! stateless callers has its own.

use std::time::Duration;

use statehold_core::ids::{RequestId, SessionId};
use statehold_engine::api::caller::{act_for, authenticate};
use statehold_engine::api::session::{SessionInput, SessionListInput, create, list};
use statehold_engine::api::turn::stateless_session;
use statehold_engine::{
    Call, Caller, Claim, ClaimedRequest, NewKey, Share, Shares, TurnMemories, TurnMemory,
    TurnMemoryFull, testing,
};

use crate::rig::{Rig, request_of, start_helper};

const MIB: usize = 1024 * 1024;

/// A backend that acts for users.
async fn backend(rig: &Rig) -> Caller {
    let client = "client".parse().expect("a role is a name");
    let new = NewKey {
        roles: [client].into(),
        ..NewKey::default()
    };
    let issued = rig.engine.create_key(&rig.caller, new).await;
    let secret = issued.expect("the caller is an admin").secret;
    let found = authenticate(&rig.engine, &secret).await;
    found.expect("keys are read").expect("the key is known").0
}

/// Starts a request in a session of the caller's user. The memory of its turn.
async fn turn_in(rig: &Rig, caller: Caller, session: SessionId) -> (TurnMemory, RequestId) {
    let owner = rig.engine.session(&caller, session).await;
    let owner = owner.expect("it is there").owner;
    let payloads = testing::payloads(&rig.engine, session).await;
    let mut payloads = payloads.expect("keys are there");
    let start = start_helper(&mut payloads, None);
    let (call, command) = (Call::by(caller), (&start, &payloads));
    let started = testing::commit(&rig.engine, session, &call, command, None).await;
    let request = request_of(&started.expect("it starts"));
    (rig.engine.turn_memory(&owner, request), request)
}

/// The same in a new session of a user of a backend.
async fn turn_for(rig: &Rig, backend: &Caller, user: &str) -> (TurnMemory, RequestId) {
    let caller = act_for(&rig.engine, backend, user).await.expect("it may");
    let new = SessionInput {
        app: "app".to_owned(),
        agent: Some("helper".to_owned()),
        ..SessionInput::default()
    };
    let made = create(&rig.engine, &Call::by(caller.clone()), new).await;
    let session = made.expect("a session").view.id;
    turn_in(rig, caller, session).await
}

#[tokio::test]
async fn the_turns_of_all_users_of_a_key_have_half_of_the_memory_and_other_keys_the_rest() {
    let rig = Rig::with_turn_memory(TurnMemories::new(64 * MIB)).await;
    let (one, other) = (backend(&rig).await, backend(&rig).await);
    let mut turns = Vec::new();
    for user in ["ann", "bob", "cat", "dan"] {
        turns.push(turn_for(&rig, &one, user).await.0);
    }
    // Each byte counts twice: a user may have 16 MiB of the pool, and the key 32.
    let taken = turns.iter().filter(|turn| turn.take(8 * MIB).is_ok());
    assert_eq!(taken.count(), 2);
    assert_eq!(turns[3].take(MIB), Err(TurnMemoryFull));
    let (turn, _) = turn_for(&rig, &other, "eve").await;
    assert_eq!(turn.take(8 * MIB), Ok(()), "another key");
    turns.clear();
    let (again, _) = turn_for(&rig, &one, "dan").await;
    assert_eq!(again.take(8 * MIB), Ok(()), "it was given back");
}

#[tokio::test]
async fn stateless_turns_count_for_their_key_and_not_as_one_user() {
    let rig = Rig::with_turn_memory(TurnMemories::new(64 * MIB)).await;
    let agent = "helper".parse().expect("a name");
    let mut turns = Vec::new();
    for caller in [backend(&rig).await, backend(&rig).await] {
        for _ in 0..2 {
            let begun = stateless_session(&rig.engine, &caller, &agent).await;
            let (caller, session) = begun.expect("a session in memory");
            assert_eq!(caller.key, None);
            turns.push(turn_in(&rig, caller, session).await.0);
        }
    }
    let taken = turns.iter().map(|turn| turn.take(8 * MIB).is_ok());
    let taken: Vec<bool> = taken.collect();
    assert_eq!(taken, [true, false, true, false], "a fourth for each key");
}

#[tokio::test]
async fn a_list_reads_no_more_sessions_than_it_shows() {
    let rig = Rig::new(None).await;
    for n in 0..119 {
        rig.another(n, "bob", None).await;
    }
    for (limit, expected) in [(1, 1), (7, 7), (50, 50), (80, 80), (200, 120)] {
        let all = SessionListInput::default();
        let page = list(&rig.engine, &rig.caller, all, None, limit).await;
        let page = page.expect("it may list");
        assert_eq!(page.entries.len(), expected);
        assert_eq!(rig.store.take_sessions_read(), expected);
    }
    // A search looks at rows that it does not show.
    let closed = SessionListInput {
        status: Some(statehold_core::session::SessionStatus::Closed),
        ..SessionListInput::default()
    };
    let page = list(&rig.engine, &rig.caller, closed, None, 1).await;
    assert!(page.expect("it may list").entries.is_empty());
    assert_eq!(rig.store.take_sessions_read(), 120);
}

/// Claims requests of the helper for the server, each with its turn, and waits for the first.
async fn claim_turns(
    rig: &Rig,
    turns: &Shares,
    max: usize,
    wait: Duration,
) -> Vec<(RequestId, Share)> {
    let claim = Claim {
        agent: "helper".parse().expect("a name"),
        max,
        wait,
        lease_ms: 60_000,
        request: None,
    };
    let server = Caller::worker_of_server(rig.caller.tenant.clone());
    let never = std::future::pending();
    let claimed = rig.engine.claim_turns(&server, &claim, turns, never).await;
    let id_of = |one: &ClaimedRequest| one.detail.request.live().expect("it is live").id;
    let claimed = claimed.expect("it may").into_iter();
    claimed.map(|(one, share)| (id_of(&one), share)).collect()
}

#[tokio::test]
async fn the_queue_of_one_key_does_not_hold_up_the_requests_of_another() {
    let rig = Rig::new(None).await;
    let (busy, other) = (backend(&rig).await, backend(&rig).await);
    let mut of_busy = Vec::new();
    for user in ["ann", "bob", "ann", "cat"] {
        of_busy.push(turn_for(&rig, &busy, user).await.1);
    }
    let of_other = turn_for(&rig, &other, "eve").await.1;
    let turns = Shares::of_turns(4);
    let first = claim_turns(&rig, &turns, 2, Duration::ZERO).await;
    let has_other = first.iter().any(|(id, _)| *id == of_other);
    assert!(has_other && first.len() == 2, "each key in its turn");
    let second = claim_turns(&rig, &turns, 64, Duration::ZERO).await;
    assert_eq!(
        (second.len(), turns.free()),
        (2, 0),
        "as many as there are turns"
    );

    // The last one waits for a turn, and is claimed when one has ended.
    let none = claim_turns(&rig, &turns, 64, Duration::ZERO).await;
    assert!(none.is_empty());
    let waiting = claim_turns(&rig, &turns, 64, Duration::from_secs(20));
    let first_ids: Vec<_> = first.iter().map(|(id, _)| *id).collect();
    let end = async {
        crate::order::settle().await;
        drop(first);
    };
    let (third, ()) = tokio::join!(waiting, end);
    let known: Vec<_> = first_ids
        .into_iter()
        .chain(second.iter().map(|(id, _)| *id))
        .collect();
    let last = of_busy.iter().find(|id| !known.contains(id));
    let ids: Vec<_> = third.iter().map(|(id, _)| id).collect();
    assert_eq!(ids, Vec::from_iter(last));
}

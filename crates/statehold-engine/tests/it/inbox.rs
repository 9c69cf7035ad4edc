//! Lists of holds cost as many questions to the store as one hold does.

use statehold_core::command::{Command, Fenced};
use statehold_core::digest::Digest;
use statehold_core::hold::{DecisionKind, HoldKind, NewDecision, NewHold, OnExpiry, Risk};
use statehold_core::ids::{HoldId, IdMint, RequestId, Shard};
use statehold_engine::api::{feed, hold};
use statehold_engine::leased::LeasedRequest;
use statehold_engine::{Caller, EngineError, HoldFilter, PageLimit, Payloads, Role, Roles};

use crate::rig::{Rig, request_of};

/// A request that waits for so many people, all with a word of their group.
async fn ask(rig: &Rig, count: u64) -> (RequestId, Vec<HoldId>) {
    let started = rig.start(Some(60_000)).await.expect("it starts");
    let request = request_of(&started);
    let mut mint = IdMint::new(
        rig.engine.now(),
        Shard::of_owner("default", "app", "bob"),
        99,
    );
    let mut holds = Vec::new();
    for n in 0..count {
        let id = HoldId::from_uuid(mint.next_uuid());
        let body = format!("{{\"title\":\"{n}\",\"group_id\":\"turn\"}}");
        let open = |payloads: &mut Payloads| {
            let hold = NewHold {
                id,
                kind: HoldKind::Question,
                body: payloads.put(body.into_bytes()),
                call: None,
                digest: None,
                allowed: [].into(),
                need: 1,
                expires_in_ms: (n % 3 == 0).then_some(60_000 * (n + 1)),
                on_expiry: OnExpiry::Reject,
                decide_by: None,
                effect: None,
                risk: (n % 2 == 0).then_some(Risk::High),
                policy: None,
            };
            Command::OpenHold {
                by: Fenced { request, fence: 1 },
                hold,
                items: Vec::new(),
            }
        };
        rig.submit(open).await.expect("it is opened");
        holds.push(id);
    }
    (request, holds)
}

async fn answer(rig: &Rig, hold: HoldId) {
    let key = Digest::sha256(hold.to_string().as_bytes());
    let decide = |payloads: &mut Payloads| {
        let decision = NewDecision {
            key,
            fingerprint: key,
            kind: DecisionKind::Respond,
            digest: None,
            edited: None,
            body: Some(payloads.put(b"{\"content\":1}".to_vec())),
        };
        Command::DecideHold { hold, decision }
    };
    rig.submit(decide).await.expect("it is decided");
}

#[tokio::test]
async fn a_page_asks_the_store_as_often_as_one_hold_does() {
    let rig = Rig::new(None).await;
    let feed = feed::holds(&rig.engine, &rig.caller, None);
    let mut feed = feed.await.expect("it may be read");
    let (request, holds) = ask(&rig, 60).await;
    let page = async |decided, limit| {
        rig.store.take_questions();
        let filter = HoldFilter {
            decided,
            ..HoldFilter::default()
        };
        let page = rig
            .engine
            .holds(
                &rig.caller,
                &filter,
                None,
                PageLimit {
                    entries: limit,
                    bytes: 1 << 20,
                },
            )
            .await;
        let page = page.expect("a page");
        let group = page.entries[0].group.clone().expect("a group");
        assert_eq!((group.id.as_str(), group.holds), ("turn", 60));
        (page.entries.len(), rig.store.take_questions())
    };
    // The list, their records, the way down to them, and the two of the group.
    assert_eq!(page(false, 1).await, (1, 5));
    assert_eq!(page(false, 60).await, (60, 5));
    for hold in &holds[..40] {
        answer(&rig, *hold).await;
    }
    assert_eq!(page(true, 40).await, (40, 5));

    rig.store.take_questions();
    let counts = hold::counts(&rig.engine, &rig.caller)
        .await
        .expect("counts");
    assert_eq!((counts.open, counts.mine, counts.capped), (20, 20, false));
    assert_eq!(rig.store.take_questions(), 1, "counting reads rows alone");

    let news = feed.read(PageLimit::entries(1_000)).await;
    assert_eq!(news.expect("news").len(), 100);
    assert_eq!(rig.store.take_questions(), 6, "all changes together");

    let (engine, caller) = (&rig.engine, &rig.caller);
    let claimed = engine.leased_request(caller, rig.session, request, 1).await;
    let leased = LeasedRequest::of(engine, caller, &claimed.expect("a lease"));
    rig.store.take_questions();
    let pending = leased.expect("a request").pending_holds().await;
    let pending = pending.expect("pending");
    assert_eq!((pending.holds.len(), pending.total), (20, 20));
    assert_eq!(rig.store.take_questions(), 1, "only the titles are read");

    rig.engine
        .request(&rig.caller, request)
        .await
        .expect("it is there");
    let asked = rig.store.take_questions();
    assert!(asked <= 12, "a request with 60 holds asks {asked} times");
}

#[tokio::test]
async fn a_hold_that_ends_soon_is_counted_as_such() {
    let rig = Rig::new(None).await;
    ask(&rig, 12).await;
    let counts = hold::counts(&rig.engine, &rig.caller)
        .await
        .expect("counts");
    // Those with a deadline end after 1, 4, 7 and 10 minutes.
    assert_eq!(counts.expiring_soon, 4);
    assert_eq!(counts.by_risk.high, 6);
    assert_eq!(counts.by_kind.question, 12);
}

#[tokio::test]
async fn a_caller_without_a_role_gets_no_holds_listed_counted_or_followed() {
    let rig = Rig::new(None).await;
    let idle = Caller {
        roles: Roles::default(),
        ..rig.caller.clone()
    };
    let needed = |refused: Option<EngineError>| match refused {
        Some(EngineError::Forbidden { needs }) => needs.first().copied(),
        _ => None,
    };
    let listed = hold::list(
        &rig.engine,
        &idle,
        hold::HoldListInput::default(),
        (None, PageLimit::entries(10)),
    );
    let refused = [
        listed.await.err(),
        hold::counts(&rig.engine, &idle).await.err(),
        feed::holds(&rig.engine, &idle, None).await.err(),
    ];
    assert_eq!(refused.map(needed), [Some(Role::Approver); 3]);
    rig.engine.shut_down().await;
}

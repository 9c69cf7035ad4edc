//! Credentials live in memory: from the commit that brings them to a pause, an end or a claim.

use std::sync::Arc;
use std::time::{Duration, Instant};

use statehold_core::command::Command;
use statehold_core::digest::Digest;
use statehold_core::hold::{DecisionKind, HoldKind, NewDecision, NewHold};
use statehold_core::ids::{HoldId, IdMint, RequestId};
use statehold_engine::api::turn::{DeliveryLog, TurnInput, UserMessage, open_turn};
use statehold_engine::leased::LeasedRequest;
use statehold_engine::{
    Audience, Call, CallCredential, Claim, ClaimedRequest, Credential, CredentialSource, Payloads,
};

use crate::rig::{Rig, fenced, start_helper};

fn credential(text: &str) -> Credential {
    Credential::new(text.to_owned()).expect("it is short")
}

/// Sends a command that brings a credential.
async fn send_with(rig: &Rig, make: impl FnOnce(&mut Payloads) -> Command, text: &str) -> bool {
    let (call, brought) = (Call::by(rig.caller.clone()), credential(text));
    let sent = rig.submit_as(&call, Some(&brought), make).await;
    sent.is_ok()
}

async fn start_with(rig: &Rig, text: &str) -> bool {
    send_with(rig, |payloads| start_helper(payloads, None), text).await
}

async fn claim(rig: &Rig) -> ClaimedRequest {
    let claim = Claim {
        agent: "helper".parse().expect("a name"),
        max: 1,
        wait: Duration::ZERO,
        lease_ms: 60_000,
        request: None,
    };
    let claimed = rig.engine.claim(&rig.caller, &claim).await;
    claimed.expect("it is claimed").pop().expect("there is one")
}

fn id_of(claimed: &ClaimedRequest) -> RequestId {
    claimed.detail.request.live().expect("it is live").id
}

fn shown(claimed: &ClaimedRequest) -> Option<(&str, CredentialSource)> {
    let found = claimed.credential.as_ref();
    found.map(|(credential, source)| (credential.expose(), *source))
}

/// Asks for a credential, and leaves.
async fn ask(rig: &Rig, request: RequestId, fence: u64) -> HoldId {
    let mut mint = IdMint::new(rig.engine.now(), rig.session.shard(), fence);
    let id = HoldId::from_uuid(mint.next_uuid());
    let by = fenced(request, fence);
    let open = |payloads: &mut Payloads| {
        let hold = NewHold {
            id,
            kind: HoldKind::Credential,
            body: payloads.put(b"{}".to_vec()),
            call: None,
            digest: None,
            allowed: [].into(),
            need: 1,
            expires_in_ms: None,
            on_expiry: statehold_core::hold::OnExpiry::default(),
            decide_by: None,
            effect: None,
            risk: None,
            policy: None,
        };
        let items = Vec::new();
        Command::OpenHold { by, hold, items }
    };
    rig.submit(open).await.expect("it is asked");
    let left = rig.send(&Command::ReleaseLease { by }).await;
    left.expect("it leaves");
    id
}

#[tokio::test]
async fn what_came_with_a_request_is_there_until_its_root_pauses() {
    let rig = Rig::new(None).await;
    assert!(start_with(&rig, "secret").await);
    let first = claim(&rig).await;
    let expected = Some(("secret", CredentialSource::Caller));
    assert_eq!(shown(&first), expected);
    rig.clock.pass_ms(61_000);
    rig.engine
        .run_timers(false)
        .await
        .expect("the lease lapses");
    let second = claim(&rig).await;
    assert_eq!(shown(&second), expected, "the next worker gets it too");
    ask(&rig, id_of(&second), 2).await;
    let text = format!("{:?} {:?}", first.credential, credential("secret"));
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test]
async fn an_answer_goes_to_the_next_claim_and_to_no_other() {
    let rig = Rig::new(None).await;
    assert!(start_with(&rig, "secret").await);
    let request = id_of(&claim(&rig).await);
    let hold = ask(&rig, request, 1).await;
    let answer = |payloads: &mut Payloads| Command::DecideHold {
        hold,
        decision: NewDecision {
            key: Digest::sha256(b"a key"),
            fingerprint: Digest::sha256(b"a decision"),
            kind: DecisionKind::Respond,
            digest: None,
            edited: None,
            // A record of an answer names words; these say nothing.
            body: Some(payloads.put(b"{}".to_vec())),
        },
    };
    assert!(send_with(&rig, answer, "answer").await);
    let next = claim(&rig).await;
    assert_eq!(shown(&next), Some(("answer", CredentialSource::Hold)));
    let left = Command::ReleaseLease {
        by: fenced(request, 2),
    };
    rig.send(&left).await.expect("it leaves");
    assert_eq!(
        shown(&claim(&rig).await),
        None,
        "the pause took the caller's"
    );
}

#[tokio::test]
async fn a_credential_whose_commit_fails_is_forgotten() {
    let rig = Rig::new(None).await;
    rig.store.fail_next();
    assert!(!start_with(&rig, "secret").await, "there was no room");
    assert!(start_with(&rig, "other").await);
    let claimed = claim(&rig).await;
    assert_eq!(shown(&claimed), Some(("other", CredentialSource::Caller)));
}

const AUDIENCE: Audience = Audience::new("theirs");

fn of_call(text: &str) -> Arc<CallCredential> {
    CallCredential::new(AUDIENCE, credential(text), None)
}

/// Says something to the helper, with the credential of a call.
async fn say(rig: &Rig, text: &str, call: &Arc<CallCredential>) -> RequestId {
    let input = TurnInput {
        call: Call::by(rig.caller.clone()),
        key: None,
        session: rig.session,
        agent: "helper".parse().expect("a name"),
        task: None,
        message: UserMessage {
            text: text.to_owned(),
            ..UserMessage::default()
        },
        credential: None,
        call_credential: Some(Arc::downgrade(call)),
        config: None,
        decides_elsewhere: false,
        one_at_a_time: false,
        arrived: Instant::now(),
    };
    let log = Arc::new(DeliveryLog::new(rig.engine.now()));
    let turn = open_turn(&rig.engine, &log, input, Vec::new()).await;
    turn.expect("a turn").handle.request
}

/// The credential that agents of an audience get now.
async fn lent(request: &LeasedRequest, audience: Audience) -> Option<String> {
    let lent = request.lent_credential(audience).await;
    lent.expect("the lease is there")
        .map(|lent| lent.secret.expose().to_owned())
}

#[tokio::test]
async fn the_credential_of_a_call_ends_with_the_call_and_goes_to_its_audience_alone() {
    let rig = Rig::new(None).await;
    let call = of_call("secret");
    say(&rig, "hello", &call).await;
    let claimed = claim(&rig).await;
    assert_eq!(shown(&claimed), None, "no worker gets it");
    let request = LeasedRequest::of(&rig.engine, &rig.caller, &claimed).expect("a lease");
    assert_eq!(lent(&request, AUDIENCE).await.as_deref(), Some("secret"));
    assert_eq!(lent(&request, Audience::new("others")).await, None);
    drop(call);
    assert_eq!(lent(&request, AUDIENCE).await, None);
    let began_with = request.began_with_credential(AUDIENCE).await;
    assert!(began_with.expect("it is read"));
}

#[tokio::test]
async fn a_repeated_call_brings_its_credential_to_the_turn_that_it_attaches_to() {
    let rig = Rig::new(None).await;
    let (first, second) = (of_call("first"), of_call("second"));
    let id = say(&rig, "hello", &first).await;
    let claimed = claim(&rig).await;
    let request = LeasedRequest::of(&rig.engine, &rig.caller, &claimed).expect("a lease");
    assert_eq!(say(&rig, "hello", &second).await, id);
    assert_eq!(lent(&request, AUDIENCE).await.as_deref(), Some("second"));
    drop(second);
    assert_eq!(lent(&request, AUDIENCE).await.as_deref(), Some("first"));
    drop(first);
    assert_eq!(lent(&request, AUDIENCE).await, None);
}

//! Credentials live in memory: from the commit that brings them to a pause, an end or a claim.

use std::time::Duration;

use statehold_core::command::Command;
use statehold_core::digest::Digest;
use statehold_core::hold::{DecisionKind, HoldKind, NewDecision, NewHold};
use statehold_core::ids::{HoldId, IdMint, RequestId};
use statehold_engine::{Call, Claim, ClaimedRequest, Credential, CredentialSource, Payloads};

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

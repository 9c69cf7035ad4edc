//! Credentials live in memory: from the commit that brings them to a pause, an end or a claim.

use std::sync::Arc;
use std::time::Duration;

use statehold_core::command::{Command, StartRequest, StatePatch};
use statehold_core::digest::Digest;
use statehold_core::hold::{DecisionKind, HoldKind, NewDecision, NewHold};
use statehold_core::ids::{HoldId, IdMint, RequestId};
use statehold_core::task::CloseOn;
use statehold_engine::{Call, Claim, ClaimedRequest, Credential, CredentialSource, Reply};

use crate::rig::{Rig, fenced};

fn credential(text: &str) -> Credential {
    Credential::new(text.to_owned()).expect("it is short")
}

/// Sends a command that brings a credential.
async fn send_with(
    rig: &Rig,
    command: impl AsyncFnOnce(&mut statehold_engine::Payloads) -> Command,
    text: &str,
) -> bool {
    let owner = rig.engine.owner(rig.session).await.expect("it is there");
    let payloads = rig.engine.payloads_for(&owner.tenant, owner.user).await;
    let mut payloads = payloads.expect("keys are there");
    let command = command(&mut payloads).await;
    let (call, reply): (_, Reply) = (Call::by(rig.caller.clone()), Arc::new(|_| Vec::new()));
    let brought = credential(text);
    let sent = rig.engine.submit_with_credential(
        rig.session,
        &call,
        &command,
        &payloads,
        &reply,
        Some(&brought),
    );
    sent.await.is_ok()
}

async fn start_with(rig: &Rig, text: &str) -> bool {
    let start = async |payloads: &mut statehold_engine::Payloads| {
        Command::StartRequest(StartRequest {
            agent: "helper".parse().expect("a name"),
            task: None,
            parent: None,
            input: payloads.put(br#"{"content":"hello"}"#.to_vec()),
            attachments: Vec::new(),
            close_on: CloseOn::Never,
            lease_ttl_ms: None,
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        })
    };
    send_with(rig, start, text).await
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
    let owner = rig.engine.owner(rig.session).await.expect("it is there");
    let payloads = rig.engine.payloads_for(&owner.tenant, owner.user).await;
    let mut payloads = payloads.expect("keys are there");
    let mut mint = IdMint::new(rig.engine.now(), rig.session.shard(), fence);
    let id = HoldId::from_uuid(mint.next_uuid());
    let by = fenced(request, fence);
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
    let open = Command::OpenHold { by, hold, items };
    let (call, reply): (_, Reply) = (Call::by(rig.caller.clone()), Arc::new(|_| Vec::new()));
    let opened = rig
        .engine
        .submit(rig.session, &call, &open, &payloads, &reply);
    opened.await.expect("it is asked");
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
    let answer = async |payloads: &mut statehold_engine::Payloads| Command::DecideHold {
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

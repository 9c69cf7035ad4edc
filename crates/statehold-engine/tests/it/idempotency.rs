//! The same call under the same key: one effect, and the same bytes for everyone who asks.
//!
//! The core knows nothing of these keys. The promises are kept by the engine and the store together,
//! and are tested here over both: as stories, and on random scripts with duplicates, callers that go
//! away, full disks, crashes and time that passes. `STATEHOLD_SEED` picks other scripts.

mod judge;
mod lives;
mod script;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use statehold_core::command::{Command, Rejection};
use statehold_engine::testing::{self, RawView};
use statehold_engine::{Call, Caller, EngineError, IdempotencyKey, Payloads, Receipt};

use crate::gated::StoreBug;
use crate::order::settle;
use crate::rig::Rig;
use judge::{Broken, KeyJudge, KeyPromise};
use lives::{Disk, Lives};
use script::KeyStep;

const SEED: u64 = 0x5EED;

/// A bug to show that the judge notices it.
#[derive(Debug, Clone, Copy)]
enum KeyBug {
    /// One in the store.
    OfStore(StoreBug),
    /// The fingerprint of a call says nothing of its body.
    ForgetsTheBody,
}

impl KeyBug {
    fn of_store(self) -> Option<StoreBug> {
        match self {
            Self::OfStore(bug) => Some(bug),
            Self::ForgetsTheBody => None,
        }
    }
}

/// Cases that scripts must have met; a promise that was never put to the test says nothing.
const CASES: [&str; 10] = [
    "a call is answered",
    "a call is repeated",
    "a call is repeated after a crash",
    "a duplicate waits for the first",
    "a key is used again after a day",
    "a key is used again after a full disk",
    "a key is used again after a lost call",
    "a key is used again after a refusal",
    "another call comes under a key",
    "the first answer was not heard",
];

/// Runs a script from its first step to its last.
fn run(steps: &[KeyStep], disk: Disk, bug: Option<KeyBug>) -> Result<KeyJudge, Broken> {
    let mut lives = Lives::begin(disk, bug);
    let mut judge = KeyJudge::default();
    for step in steps {
        match step {
            KeyStep::Calls(asks, fate) => {
                let now = lives.now();
                let heard = lives.call(asks, *fate);
                judge.judge(now, &heard, &lives.effects())?;
                if matches!(fate, script::Fate::CrashBefore | script::Fate::CrashAfter) {
                    judge.crashed();
                }
            }
            KeyStep::Wait(hours) => lives.wait_hours(*hours),
            KeyStep::Sweep => lives.sweep(),
            KeyStep::Crash => {
                lives.crash();
                judge.crashed();
            }
        }
    }
    Ok(judge)
}

fn runner(cases: u32, max_shrink_iters: u32) -> TestRunner {
    let seed = std::env::var("STATEHOLD_SEED").ok();
    let seed = seed.map_or(SEED, |seed| seed.parse().expect("a number"));
    println!("seed {seed}, {cases} scripts");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Requires that every promise holds on random scripts, and that every case was met.
fn require_kept(scripts: u32, disk: fn() -> Disk) {
    let met = RefCell::new(BTreeMap::<&str, u64>::new());
    let result = runner(scripts, 500).run(&script::script(), |steps| {
        let judge = run(&steps, disk(), None);
        let judge = judge.map_err(|broken| TestCaseError::fail(format!("{broken:?}")))?;
        for (case, count) in judge.cases {
            *met.borrow_mut().entry(case).or_default() += count;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let met = met.into_inner();
    for (case, count) in &met {
        println!("{count:>8}  {case}");
    }
    let met: BTreeSet<_> = met.into_keys().collect();
    assert_eq!(met, BTreeSet::from(CASES), "a case was never met");
}

#[test]
fn promises_about_keys_hold_over_the_memory_store() {
    require_kept(300, Disk::in_memory);
}

#[test]
fn promises_about_keys_hold_over_the_sqlite_store() {
    require_kept(60, Disk::in_a_file);
}

#[test]
fn every_bug_about_keys_is_noticed_and_every_promise_notices_one() {
    let bugs = [
        (StoreBug::LosesAnswers, KeyPromise::OneEffect),
        (StoreBug::KeepsAnswersInMemory, KeyPromise::OneEffect),
        (StoreBug::GarblesAnswers, KeyPromise::SameAnswer),
        (StoreBug::KeepsAnswersForEver, KeyPromise::FreeKey),
    ];
    let mut bugs: Vec<_> = bugs
        .into_iter()
        .map(|(bug, promise)| (KeyBug::OfStore(bug), promise))
        .collect();
    bugs.push((KeyBug::ForgetsTheBody, KeyPromise::OneCall));
    let noticing: BTreeSet<_> = bugs.iter().map(|(_, promise)| *promise).collect();
    assert_eq!(noticing, BTreeSet::from(KeyPromise::ALL));
    for (bug, promise) in bugs {
        let broken = RefCell::new(BTreeSet::new());
        let result = runner(100, 0).run(&script::script(), |steps| {
            if let Err((first, _)) = run(&steps, Disk::in_memory(), Some(bug)) {
                broken.borrow_mut().insert(first);
            }
            Ok(())
        });
        assert!(!matches!(result, Err(TestError::Fail(..))), "{result:?}");
        let broken = broken.into_inner();
        println!("{bug:?} -> {broken:?}");
        assert!(
            broken.contains(&promise),
            "{bug:?} does not break {promise:?}"
        );
    }
}

/// A call of the rig under a key.
async fn keyed(
    rig: &Rig,
    caller: &Caller,
    key: &str,
    command: &Command,
) -> Result<Receipt<RawView>, EngineError> {
    let text = format!("{command:?}");
    let parts = [text.as_bytes()];
    let call = Call {
        key: Some(IdempotencyKey::new(
            &caller.tenant,
            caller.principal,
            key,
            &parts,
        )),
        ..Call::by(caller.clone())
    };
    let payloads = Payloads::none();
    let command = (command, &payloads);
    testing::commit(&rig.engine, rig.session, &call, command, None).await
}

fn close(cancel_live: bool) -> Command {
    Command::CloseSession { cancel_live }
}

#[tokio::test]
async fn a_key_answers_for_a_session_that_has_closed_since() {
    let rig = Rig::new(None).await;
    let first = keyed(&rig, &rig.caller, "k", &close(false)).await;
    let first = first.expect("it closes");
    let again = keyed(&rig, &rig.caller, "k", &close(false)).await;
    let again = again.expect("the same answer");
    assert_eq!((again.revision, &again.body), (2, &first.body));
    assert!(again.replayed && !first.replayed);
    assert_eq!(rig.revision().await, 2);
}

#[tokio::test]
async fn a_key_cannot_stand_for_two_calls() {
    let rig = Rig::new(None).await;
    let first = keyed(&rig, &rig.caller, "k", &close(false)).await;
    first.expect("it closes");
    let other = keyed(&rig, &rig.caller, "k", &close(true)).await;
    assert!(matches!(other, Err(EngineError::KeyReused)), "{other:?}");
}

#[tokio::test]
async fn a_key_of_a_refused_call_is_still_free() {
    let rig = Rig::new(None).await;
    rig.start(None).await.expect("it starts");
    let refused = keyed(&rig, &rig.caller, "k", &close(false)).await;
    let is_refused = matches!(
        refused,
        Err(EngineError::Rejected(Rejection::RequestsLive { live: 1 }))
    );
    assert!(is_refused, "{refused:?}");
    let other = keyed(&rig, &rig.caller, "k", &close(true)).await;
    assert!(!other.expect("the key did nothing yet").replayed);
}

#[tokio::test]
async fn a_foreign_tenant_gets_no_answer_for_a_known_key() {
    let rig = Rig::new(None).await;
    let first = keyed(&rig, &rig.caller, "k", &close(false)).await;
    first.expect("it closes");
    let stranger = Caller::local("elsewhere".parse().expect("a name"));
    let answer = keyed(&rig, &stranger, "k", &close(false)).await;
    let is_hidden = matches!(
        answer,
        Err(EngineError::NotFound | EngineError::Rejected(Rejection::NotFound))
    );
    assert!(is_hidden, "{answer:?}");
}

#[tokio::test]
async fn a_duplicate_waits_for_the_first() {
    let rig = std::sync::Arc::new(Rig::new(None).await);
    rig.store.set_open(false);
    rig.store.take_begun();
    let send = || {
        let rig = rig.clone();
        tokio::spawn(async move { keyed(&rig, &rig.caller, "k", &close(false)).await })
    };
    let (first, second) = (send(), send());
    settle().await;
    assert_eq!(rig.store.take_begun(), 1, "only one of them is in line");
    assert!(!first.is_finished() && !second.is_finished());
    rig.store.set_open(true);
    let first = first.await.expect("no panic").expect("it is done");
    let second = second.await.expect("no panic").expect("it is done");
    assert_eq!(
        (first.revision, &first.body),
        (second.revision, &second.body)
    );
    assert_ne!(first.replayed, second.replayed);
}

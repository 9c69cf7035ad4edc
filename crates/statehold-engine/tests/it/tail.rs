//! Readers over the store with a hot tail: after a deletion or an expiry they find no byte of what went.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use statehold_core::ids::SessionId;
use statehold_engine::{
    Call, Caller, Engine, EngineError, EngineOptions, MemoryKeys, PageLimit, api,
};
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

use crate::rig::StillClock;

const READERS: usize = 64;
const TURNS: usize = 40;

struct Scene {
    engine: Engine,
    clock: Arc<StillClock>,
    call: Call,
    session: SessionId,
    _data: TempDir,
}

fn input<T: DeserializeOwned>(json: &Value) -> T {
    serde_json::from_str(&json.to_string()).expect("an input of the API")
}

/// A session with whole turns, each with a tool call that clients do not see.
async fn scene() -> Scene {
    let data = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions {
        sync: false,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(data.path(), options).expect("it opens");
    let clock = Arc::new(StillClock::new());
    let keys = Arc::new(MemoryKeys::default());
    let options = EngineOptions {
        tick: Duration::from_millis(5),
        ..EngineOptions::default()
    };
    let engine = Engine::start(Arc::new(store), keys, clock.clone(), options).await;
    let engine = engine.expect("it starts");
    let call = Call::by(Caller::local("default".parse().expect("a name")));
    let create = json!({"app": "app", "user": "bob", "agent": "helper", "ttl_seconds": 60});
    let session = api::session::create(&engine, &call, input(&create)).await;
    let session = session.expect("it begins").view.id;
    for n in 0..TURNS {
        let turn = json!({
            "input": format!("question {n}"), "lease": {"ttl_seconds": 30},
            "items": [
                {"kind": "tool_call", "name": "search", "call_id": "c", "arguments": {"n": n}},
                {"kind": "tool_result", "call_id": "c", "result": "found ".repeat(n * 40)},
            ],
            "output": format!("answer {n}"),
        });
        let done = api::request::start(&engine, &call, session, input(&turn), None).await;
        done.expect("a whole turn");
    }
    Scene {
        engine,
        clock,
        call,
        session,
        _data: data,
    }
}

/// The newest 50 items as the trace has them: how many, and how many of them hidden with content.
async fn trace(scene: &Scene) -> Result<(usize, usize), EngineError> {
    let (page, _) = api::session::trace(
        &scene.engine,
        &scene.call.caller,
        scene.session,
        (None, PageLimit::entries(50)),
    )
    .await?;
    let hidden = page.messages.iter().filter(|item| {
        let has_content = item.arguments.is_some() || item.result.is_some();
        assert!(!(has_content && item.erased), "erased, but there");
        has_content
    });
    Ok((page.messages.len(), hidden.count()))
}

async fn messages(scene: &Scene) -> Result<usize, EngineError> {
    let caller = &scene.call.caller;
    let read = api::session::messages(
        &scene.engine,
        caller,
        scene.session,
        (None, PageLimit::entries(50)),
    )
    .await;
    let (page, _) = read?;
    Ok(page.messages.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_the_answer_to_a_deletion_no_reader_finds_a_message() {
    let scene = Arc::new(scene().await);
    let (is_deleted, after) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let readers = (0..READERS).map(|_| {
        let (scene, is_deleted, after) = (scene.clone(), is_deleted.clone(), after.clone());
        tokio::spawn(async move {
            let mut rounds = 0;
            while rounds < 3 {
                let was_deleted = is_deleted.load(Ordering::SeqCst);
                let found = messages(&scene).await;
                if was_deleted {
                    assert!(matches!(found, Err(EngineError::NotFound)), "{found:?}");
                    rounds += 1;
                    after.fetch_add(1, Ordering::SeqCst);
                } else if let Ok(found) = found {
                    assert_eq!(found, 50);
                }
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    let deleted = api::session::delete(&scene.engine, &scene.call, scene.session).await;
    deleted.expect("it is deleted");
    is_deleted.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.expect("a reader");
    }
    assert_eq!(after.load(Ordering::SeqCst), 3 * READERS as u64);
    let found = trace(&scene).await;
    assert!(matches!(found, Err(EngineError::NotFound)), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn once_a_reader_has_seen_that_hidden_items_expired_no_reader_finds_one() {
    let scene = Arc::new(scene().await);
    assert_eq!(trace(&scene).await.expect("it is there"), (50, 25));
    let (is_gone, after) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let readers = (0..READERS).map(|number| {
        let (scene, is_gone, after) = (scene.clone(), is_gone.clone(), after.clone());
        tokio::spawn(async move {
            let mut rounds = 0;
            while rounds < 3 {
                let was_gone = is_gone.load(Ordering::SeqCst);
                if number % 2 == 0 {
                    assert_eq!(messages(&scene).await.expect("clients see it"), 50);
                    rounds += usize::from(was_gone);
                    continue;
                }
                let (all, hidden) = trace(&scene).await.expect("it is there");
                assert_eq!(all, 50);
                if hidden == 0 {
                    is_gone.store(true, Ordering::SeqCst);
                }
                if was_gone {
                    assert_eq!(hidden, 0, "it was gone before");
                    rounds += 1;
                    after.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    scene.clock.pass_ms(61_000);
    for reader in readers {
        reader.await.expect("a reader");
    }
    assert_eq!(after.load(Ordering::SeqCst), 3 * READERS as u64 / 2);
}

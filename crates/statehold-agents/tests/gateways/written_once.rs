//! Bytes in the file per turn: an answer is stored once, however many agents pass it on.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use statehold_agents::spec::{AgentSpec, ChatMemory};
use statehold_core::ids::SessionId;
use statehold_engine::EngineError;
use statehold_engine::policy::Policies;
use statehold_fakes::FakeService;
use statehold_fakes::chat::streamed;
use statehold_store::sqlite::{FILE_NAME, SqliteOptions, SqliteStore};
use statehold_store::{PageLimit, Store, StoreError, codec};

use crate::rig::{Outcome, Rig, book, router};
use crate::world::chat;

const TURNS: u64 = 200;
/// The lengths of answers: some are stored in rows of the log, some beside it.
const ANSWER_BYTES: [usize; 6] = [500, 1_000, 2_000, 3_000, 4_000, 20_000];
/// The most that one more router may add to the file per turn.
const LEVEL_BYTES_MAX: u64 = 2_500;

/// The n-th answer: six random bits in each byte, so it takes three quarters of its length at best.
fn answer(n: u64, bytes: usize) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let letter = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(LETTERS[(state >> 58) as usize])
    };
    (0..bytes).map(letter).collect()
}

/// Bytes of a run: of payloads that differ, each packed alone; of payloads as stored; and of the file.
struct Stored {
    unique: u64,
    bodies: u64,
    file: u64,
}

/// The bytes of the payloads of a session that differ.
async fn unique_bytes(store: &SqliteStore, session: SessionId) -> Result<u64, StoreError> {
    let mut unique = BTreeSet::new();
    let mut read = 0;
    loop {
        let records = store
            .records(session, read, PageLimit::entries(500))
            .await?;
        let Some(last) = records.last() else {
            break;
        };
        read = last.record.content.seq;
        unique.extend(
            records
                .into_iter()
                .flat_map(|stored| stored.bodies)
                .flatten(),
        );
    }
    let packed = unique.iter().map(|body| codec::pack(body).len() as u64);
    Ok(packed.sum())
}

fn open(directory: &Path) -> Arc<SqliteStore> {
    let options = SqliteOptions {
        sync: false,
        ..SqliteOptions::default()
    };
    Arc::new(SqliteStore::open(directory, options).expect("the store opens"))
}

/// Runs the turns of a session whose agent is under so many routers.
async fn run(routers: usize, bytes: usize) -> Result<Stored, EngineError> {
    let server = FakeService::start(move |seen| {
        let asked = seen.said().parse().expect("a number");
        streamed(&answer(asked, bytes)).with_header("x-statehold-session", "ses_1")
    })
    .await;
    let mut agents: Vec<Arc<AgentSpec>> = vec![Arc::new(chat("agent", &server, ChatMemory::Track))];
    let names = ["agent", "router-1", "router-2"];
    for level in 0..routers {
        let below = names[level];
        agents.push(router(names[level + 1], &[(".", below)], &[below]));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    let rig = Rig::over(Arc::clone(&store) as _, book(agents), Policies::default()).await;
    let runner = rig.runner().await;
    let first = names[routers];
    let session = rig.session(first).await;
    for turn in 0..TURNS {
        let said = rig.turn(session, first, &turn.to_string()).await;
        assert_eq!(said, answer(turn, bytes));
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    let unique = unique_bytes(&store, session).await?;
    store.fold_log().await?;
    let path = directory.path().join(FILE_NAME);
    let file = std::fs::metadata(&path).expect("the file").len();
    let conn = rusqlite::Connection::open(&path).expect("the file opens");
    let sql =
        "SELECT (SELECT sum(length(bodies)) FROM log) + (SELECT total(length(data)) FROM blob)";
    let bodies = conn
        .query_row(sql, [], |row| row.get::<_, f64>(0))
        .expect("a sum");
    // A copy, because tasks of the engine may still hold the store.
    let copy = tempfile::tempdir().expect("a directory");
    std::fs::copy(&path, copy.path().join(FILE_NAME)).expect("a copy");
    let report = SqliteStore::check(copy.path(), &mut |_, _| {}).expect("the file opens");
    assert_eq!(report.problems, []);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of bytes"
    )]
    let bodies = bodies as u64;
    Ok(Stored {
        unique,
        bodies,
        file,
    })
}

#[tokio::test]
async fn an_answer_is_stored_once_under_any_number_of_routers() -> Outcome {
    for bytes in ANSWER_BYTES {
        let packed = |turn| codec::pack(answer(turn, bytes).as_bytes()).len() as u64;
        let answers: u64 = (0..TURNS).map(packed).sum();
        let mut below = None;
        for routers in 0..=2 {
            let Stored {
                unique,
                bodies,
                file,
            } = run(routers, bytes).await?;
            println!(
                "{bytes} bytes, {routers} routers: {} of payloads, {} of them differ; {} in the file",
                bodies / TURNS,
                unique / TURNS,
                file / TURNS
            );
            if bytes >= codec::ONCE_BYTES_MIN {
                assert!(bodies * 10 <= unique * 11, "{bodies} of {unique}");
            }
            if bytes >= 4_096 {
                // Steps and the like have a few hundred bytes of their own, whatever the length of an answer.
                assert!(bodies * 10 <= answers * 11, "{bodies} of {answers}");
            }
            if let Some(below) = below.replace(file) {
                let added = file.saturating_sub(below) / TURNS;
                assert!(
                    added <= LEVEL_BYTES_MAX,
                    "{bytes} bytes: router {routers} adds {added}"
                );
            }
        }
    }
    Ok(())
}

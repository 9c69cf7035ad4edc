//! Bytes in the file per turn: an answer is stored once, however many agents pass it on.

use std::path::Path;
use std::sync::Arc;

use statehold_agents::spec::{AgentSpec, ChatMemory};
use statehold_engine::policy::Policies;
use statehold_fakes::FakeService;
use statehold_fakes::chat::streamed;
use statehold_store::codec;
use statehold_store::sqlite::{FILE_NAME, SqliteOptions, SqliteStore};

use crate::rig::{Outcome, Rig, book, router};
use crate::world::chat;

const TURNS: u64 = 200;
/// The shortest and the longest answer: stored in rows of the log, and beside it.
const ANSWER_BYTES: [(usize, usize); 2] = [(1_100, 4_000), (20_000, 20_000)];
/// The most that one more router may add to the file per turn.
const LEVEL_BYTES_MAX: u64 = 2_500;

/// The n-th answer: six random bits in each byte, so it takes three quarters of its length at best.
fn answer(n: u64, (shortest, longest): (usize, usize)) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bytes = shortest + usize::try_from(n * 997).expect("a few") % (longest - shortest + 1);
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let letter = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(LETTERS[(state >> 58) as usize])
    };
    (0..bytes).map(letter).collect()
}

/// Stored bytes of a run: those of payloads, and all of the file.
struct Stored {
    bodies: u64,
    file: u64,
}

fn open(directory: &Path) -> Arc<SqliteStore> {
    let options = SqliteOptions {
        sync: false,
        ..SqliteOptions::default()
    };
    Arc::new(SqliteStore::open(directory, options).expect("the store opens"))
}

/// Runs the turns of a session whose agent is under so many routers.
async fn run(
    routers: usize,
    bytes: (usize, usize),
) -> Result<Stored, statehold_engine::EngineError> {
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
    Ok(Stored { bodies, file })
}

#[tokio::test]
async fn an_answer_is_stored_once_under_any_number_of_routers() -> Outcome {
    for bytes in ANSWER_BYTES {
        let packed = |turn| codec::pack(answer(turn, bytes).as_bytes()).len() as u64;
        let unique: u64 = (0..TURNS).map(packed).sum();
        let mut files = Vec::new();
        for routers in 0..=2 {
            let stored = run(routers, bytes).await?;
            println!(
                "{bytes:?} bytes, {routers} routers: {} of payloads, {} in the file",
                stored.bodies / TURNS,
                stored.file / TURNS
            );
            // The steps have a few hundred bytes of their own, whatever the length of an answer.
            let most = unique + (unique / 10).max(TURNS * 1_100);
            assert!(stored.bodies <= most, "{} of {unique}", stored.bodies);
            files.push(stored.file);
        }
        // Rows that nearly fill a page leave more or less of it unused, so short answers are looked at over
        // both routers.
        let levels = match bytes {
            (_, ..4_096) => vec![(files[0], files[2], 2)],
            _ => vec![(files[0], files[1], 1), (files[1], files[2], 1)],
        };
        for (below, file, routers) in levels {
            let added = file.saturating_sub(below) / TURNS;
            assert!(
                added <= routers * LEVEL_BYTES_MAX,
                "{routers} routers add {added}"
            );
        }
    }
    Ok(())
}

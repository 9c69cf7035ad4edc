//! The ceiling: the least that a durable turn over HTTP can cost with one row per item.
//!
//! An axum handler checks the document and hands it to one writer thread, which commits all that is
//! waiting in one transaction (WAL, `synchronous = FULL`) and then answers. No keys, no rights, no
//! decisions, no hashes, no projections. It takes the calls of the real server that the benchmark
//! makes, so that both get the same bytes from the same load generator.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Path as Segment, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use bytes::Bytes;
use rusqlite::{Connection, params};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

/// The file in the data directory.
const FILE_NAME: &str = "skeleton.db";
/// The last items of a session, newest first: the read of this layout, raw.
const LAST_ITEMS: &str =
    "SELECT body FROM item WHERE id > ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3";
const GROUP_MAX: usize = 512;

#[derive(Deserialize)]
struct TurnIn<'a> {
    #[serde(borrow)]
    input: &'a RawValue,
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
    #[serde(borrow)]
    output: &'a RawValue,
    #[serde(borrow)]
    state: StateIn<'a>,
}

#[derive(Deserialize)]
struct StateIn<'a> {
    #[serde(borrow)]
    set: HashMap<&'a str, &'a RawValue>,
}

struct Job {
    session: i64,
    body: Bytes,
    done: oneshot::Sender<i64>,
}

struct Shared {
    sessions: AtomicI64,
    jobs: mpsc::Sender<Job>,
    readers: Mutex<Vec<Connection>>,
    file: PathBuf,
}

/// Serves a data directory until it is killed.
pub(crate) fn serve(data: &Path) -> Result<()> {
    std::fs::create_dir_all(data)?;
    let file = data.join(FILE_NAME);
    let conn = connect(&file)?;
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS item(id INTEGER PRIMARY KEY, body BLOB NOT NULL);
         CREATE TABLE IF NOT EXISTS state(session INTEGER NOT NULL, key TEXT NOT NULL,
             value BLOB NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(session, key)) WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS session(id INTEGER PRIMARY KEY, seq INTEGER NOT NULL);",
    )?;
    let (jobs, mut queue) = mpsc::channel(8_192);
    let shared = Arc::new(Shared {
        sessions: AtomicI64::new(0),
        jobs,
        readers: Mutex::new(Vec::new()),
        file,
    });
    let writer = std::thread::spawn(move || write(conn, &mut queue));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let router = Router::new()
            .route("/readyz", get(async || "ready"))
            .route("/v1/sessions", post(create))
            .route("/v1/sessions/{session}/requests", post(append))
            .route("/v1/sessions/{session}/messages", get(messages))
            .with_state(shared);
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        write_run_file(data, listener.local_addr()?)?;
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap_or_default());
        axum::serve(listener, router).await?;
        Ok::<(), anyhow::Error>(())
    })?;
    writer
        .join()
        .map_err(|_| anyhow::anyhow!("the writer panicked"))?
}

fn write_run_file(data: &Path, address: std::net::SocketAddr) -> Result<()> {
    let run = serde_json::json!({
        "pid": std::process::id(), "url": format!("http://{address}"), "started_at": null,
    });
    let draft = data.join("statehold.run.new");
    std::fs::write(&draft, run.to_string())?;
    Ok(std::fs::rename(draft, data.join("statehold.run"))?)
}

fn connect(file: &Path) -> Result<Connection> {
    let conn = Connection::open(file)?;
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA cache_size = -16384;")?;
    Ok(conn)
}

/// A reader of the skeleton's file in another process.
pub(crate) fn reader(data: &Path) -> Result<Connection> {
    let conn = connect(&data.join(FILE_NAME))?;
    conn.query_row("PRAGMA mmap_size = 1073741824", [], |_| Ok(()))?;
    Ok(conn)
}

fn write(mut conn: Connection, queue: &mut mpsc::Receiver<Job>) -> Result<()> {
    let mut heads: HashMap<i64, i64> = HashMap::new();
    let mut group = Vec::with_capacity(GROUP_MAX);
    while let Some(first) = queue.blocking_recv() {
        group.push(first);
        while group.len() < GROUP_MAX {
            match queue.try_recv() {
                Ok(job) => group.push(job),
                Err(_) => break,
            }
        }
        let transaction =
            conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        for job in &group {
            let head = heads.entry(job.session).or_default();
            write_turn(&transaction, job, head)?;
        }
        transaction.commit()?;
        for job in group.drain(..) {
            // A caller that hung up does not wait for its answer.
            job.done.send(heads[&job.session]).unwrap_or_default();
        }
    }
    Ok(())
}

/// The row of an item: items of a session lie side by side, and a row of 2 KB fits into its page.
fn row(session: i64, seq: i64) -> i64 {
    (session << 32) | seq
}

/// Four rows of items, three of state, and the head of the session.
fn write_turn(conn: &Connection, job: &Job, seq: &mut i64) -> Result<()> {
    let turn: TurnIn<'_> = serde_json::from_slice(&job.body)?;
    let mut insert = conn.prepare_cached("INSERT INTO item VALUES(?1, ?2)")?;
    let output = std::iter::once(turn.output);
    let items = std::iter::once(turn.input).chain(turn.items).chain(output);
    for item in items {
        *seq += 1;
        insert.execute(params![row(job.session, *seq), item.get().as_bytes()])?;
    }
    let mut put = conn.prepare_cached(
        "INSERT INTO state VALUES(?1, ?2, ?3, ?4) ON CONFLICT(session, key)
         DO UPDATE SET value = excluded.value, seq = excluded.seq",
    )?;
    for (key, value) in &turn.state.set {
        put.execute(params![job.session, key, value.get().as_bytes(), *seq])?;
    }
    conn.prepare_cached("INSERT OR REPLACE INTO session VALUES(?1, ?2)")?
        .execute(params![job.session, *seq])?;
    Ok(())
}

async fn create(State(shared): State<Arc<Shared>>) -> Response {
    let id = shared.sessions.fetch_add(1, Ordering::Relaxed) + 1;
    let body = format!("{{\"id\":\"{id}\"}}");
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::CREATED, kind, body).into_response()
}

async fn append(
    State(shared): State<Arc<Shared>>,
    Segment(session): Segment<i64>,
    body: Bytes,
) -> Response {
    // What the writer gets is sound.
    if serde_json::from_slice::<TurnIn<'_>>(&body).is_err() {
        return StatusCode::BAD_REQUEST.into_response();
    }
    let (done, answer) = oneshot::channel();
    let job = Job {
        session,
        body,
        done,
    };
    if shared.jobs.send(job).await.is_err() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    match answer.await {
        Ok(seq) => {
            let kind = [(header::CONTENT_TYPE, "application/json")];
            (StatusCode::CREATED, kind, format!("{{\"seq\":{seq}}}")).into_response()
        }
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

#[derive(Deserialize)]
struct Page {
    limit: u32,
}

async fn messages(
    State(shared): State<Arc<Shared>>,
    Segment(session): Segment<i64>,
    Query(page): Query<Page>,
) -> Response {
    let read = move || {
        let pooled = shared.readers.lock().map(|mut readers| readers.pop());
        let pooled = pooled.map_err(|_| anyhow::anyhow!("a reader panicked"))?;
        let conn = match pooled {
            Some(conn) => conn,
            None => reader(shared.file.parent().context("a file in a directory")?)?,
        };
        let body = last_items(&conn, session, page.limit)?;
        if let Ok(mut readers) = shared.readers.lock() {
            readers.push(conn);
        }
        Ok::<_, anyhow::Error>(body)
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok(body)) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Ok(Err(_)) | Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The last items as a JSON array, oldest first.
pub(crate) fn last_items(conn: &Connection, session: i64, limit: u32) -> Result<Vec<u8>> {
    let mut statement = conn.prepare_cached(LAST_ITEMS)?;
    let mut rows = statement.query(params![row(session, 0), row(session + 1, 0), limit])?;
    let mut items: Vec<Vec<u8>> = Vec::new();
    while let Some(row) = rows.next()? {
        items.push(row.get_ref(0)?.as_blob()?.to_vec());
    }
    let mut body = vec![b'['];
    for item in items.iter().rev() {
        if body.len() > 1 {
            body.push(b',');
        }
        body.extend_from_slice(item);
    }
    body.push(b']');
    Ok(body)
}

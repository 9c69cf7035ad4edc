//! Plays the server for the tests of its crash harness: the calls that the harness makes and no others,
//! kept in a journal that survives SIGKILL and not a loss of power.
//!
//! Called by another name it has a bug, to see that the harness notices: `forgets` acknowledges calls
//! that it did not write down, `repeats` keeps no answers for keys, `skips` leaves out an event when a
//! feed goes on.

mod world;

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use serde_json::json;
use tokio::sync::mpsc;

use self::world::{Call, Reply, World};

/// The bug that the name of the program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    Forgets,
    Repeats,
    Skips,
}

struct Shared {
    world: Mutex<(World, File)>,
    bug: Bug,
}

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().collect();
    let data = args.last().map(PathBuf::from).context("no directory")?;
    let name = Path::new(&args[0]).file_name().unwrap_or_default();
    let bug = match name.to_string_lossy().as_ref() {
        "forgets" => Bug::Forgets,
        "repeats" => Bug::Repeats,
        "skips" => Bug::Skips,
        _ => Bug::None,
    };
    if args.get(1).is_some_and(|command| command == "check") {
        return Ok(ExitCode::SUCCESS);
    }
    serve(&data, bug)?;
    Ok(ExitCode::SUCCESS)
}

fn serve(data: &Path, bug: Bug) -> Result<()> {
    std::fs::create_dir_all(data)?;
    let path = data.join("journal");
    let mut world = World::new(bug == Bug::Repeats);
    let journal = std::fs::read(&path).unwrap_or_default();
    let end = journal.iter().rposition(|byte| *byte == b'\n');
    let end = end.map_or(0, |end| end + 1);
    for line in journal[..end].split(|byte| *byte == b'\n') {
        if !line.is_empty() {
            world.apply(&serde_json::from_slice(line)?);
        }
    }
    let file = OpenOptions::new().create(true).append(true).open(&path)?;
    file.set_len(end as u64)?;
    let shared = Arc::new(Shared {
        world: Mutex::new((world, file)),
        bug,
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let run = json!({ "pid": std::process::id(), "url": url, "started_at": "now" });
        std::fs::write(data.join("run.new"), run.to_string())?;
        std::fs::rename(data.join("run.new"), data.join("statehold.run"))?;
        let router = Router::new().fallback(answer).with_state(shared);
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            served = axum::serve(listener, router).into_future() => served?,
            _ = terminate.recv() => {}
        }
        Ok(())
    })
}

fn lock(shared: &Shared) -> MutexGuard<'_, (World, File)> {
    shared.world.lock().expect("nobody panics with the world")
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = |name: &str| Some(headers.get(name)?.to_str().ok()?.to_owned());
    if let Some(session) = uri.path().strip_suffix("/events") {
        let session = session.rsplit('/').next().unwrap_or_default().to_owned();
        let after = text("last-event-id").and_then(|id| id.parse().ok());
        return feed(shared, session, after.unwrap_or(0));
    }
    let call = Call {
        method: method.to_string(),
        path: uri.to_string(),
        key: text("idempotency-key"),
        if_match: text("if-match"),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let reply = {
        let (world, journal) = &mut *lock(&shared);
        let reply = world.apply(&call);
        let is_written = method != Method::GET && reply.status < 300;
        let is_forgotten = shared.bug == Bug::Forgets && world.calls % 40 == 39;
        if is_written && !reply.is_replayed && !is_forgotten {
            let mut line = serde_json::to_vec(&call).expect("a call is JSON");
            line.push(b'\n');
            journal.write_all(&line).expect("the disk has room");
        }
        reply
    };
    respond(reply)
}

fn respond(reply: Reply) -> Response {
    let mut response = Response::builder().status(reply.status);
    if let Some(revision) = reply.revision {
        response = response.header("etag", format!("\"{revision}\""));
    }
    if reply.is_replayed {
        response = response.header("idempotency-replayed", "true");
    }
    response
        .body(Body::from(reply.body))
        .expect("headers of digits and words")
}

/// Frames that a task writes into a feed.
struct Frames(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = self.0.poll_recv(context);
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

fn feed(shared: Arc<Shared>, session: String, after: usize) -> Response {
    let (frames, body) = mpsc::channel(64);
    tokio::spawn(async move {
        let mut after = after;
        let mut is_to_skip = shared.bug == Bug::Skips && after > 0;
        loop {
            let mut due: VecDeque<Bytes> = lock(&shared).0.events(&session, after).into();
            after += due.len();
            if is_to_skip && !due.is_empty() {
                due.pop_front();
                is_to_skip = false;
            }
            while let Some(event) = due.pop_front() {
                if frames.send(event).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    Response::builder()
        .status(StatusCode::OK)
        .header("content-type", "text/event-stream")
        .body(Body::new(Frames(body)))
        .expect("headers of words")
}

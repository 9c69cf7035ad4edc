//! The worker loop of a demo agent: claim a request, load its input, run one step, commit.
//!
//! It is a worker like any other: it calls the server over HTTP and keeps no state. If the server
//! goes away and comes back, a later claim returns the unfinished requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::turn::{DemoDecision, DemoOpenCall, DemoStep, DemoTurn, calls_done, text_of};
use crate::client::Client;
use crate::exit::Failure;

/// The most concurrent requests of one agent.
const IN_HAND_MAX: usize = 16;
/// The most requests of one claim.
const CLAIM_MAX: usize = 8;
/// How long a claim waits for work.
const WAIT_SECONDS: u64 = 20;
/// Short, because after a crash a request returns only when its lease expires; a turn takes
/// milliseconds.
const LEASE_SECONDS: u64 = 5;
/// The timeout of one call beyond the server's own wait.
const PATIENCE: Duration = Duration::from_secs(15);
/// The most earlier exchanges that an agent reads.
const EXCHANGES_MAX: usize = 100;
/// How often a turn retries after a version conflict.
const RACES_MAX: u32 = 50;
/// Backoff while the server does not answer: first and longest pause.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// An agent: its name, its step function, and the input it needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct DemoWorker {
    pub(super) name: &'static str,
    pub(super) step: fn(&DemoTurn) -> DemoStep,
    pub(super) reads_memory: bool,
    pub(super) reads_state: bool,
}

/// Works for an agent until it is stopped.
pub(super) async fn run(agent: DemoWorker, client: Client, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(IN_HAND_MAX));
    let mut in_hand = JoinSet::new();
    let mut pause = PAUSE;
    loop {
        while in_hand.try_join_next().is_some() {}
        let asked = Instant::now();
        let claimed = tokio::select! {
            () = stop.cancelled() => break,
            claimed = claim(agent, &client, &room) => claimed,
        };
        match claimed {
            // A stopping server returns an empty claim at once: do not spin.
            Ok(requests) if requests.is_empty() && asked.elapsed() < PAUSE => {
                tokio::time::sleep(PAUSE).await;
            }
            Ok(requests) => {
                pause = PAUSE;
                for request in requests {
                    let place = Arc::clone(&room).acquire_owned().await;
                    let client = client.clone();
                    in_hand.spawn(async move {
                        run_turn(agent, &client, &request).await;
                        drop(place);
                    });
                }
            }
            Err(failure) => {
                tracing::debug!(agent = agent.name, reason = %failure.message, "no claim");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = PAUSE_MAX.min(pause * 2);
            }
        }
    }
    // Each turn ends within a few calls, with or without a server.
    while in_hand.join_next().await.is_some() {}
}

async fn claim(
    agent: DemoWorker,
    client: &Client,
    room: &Semaphore,
) -> Result<Vec<Value>, Failure> {
    // Claim no more than there are free permits: a claimed request that waits here only uses up its
    // lease.
    drop(room.acquire().await);
    let max = room.available_permits().clamp(1, CLAIM_MAX);
    let ask = json!({
        "agent": agent.name, "worker": "embedded demo", "max": max,
        "wait_seconds": WAIT_SECONDS, "lease_seconds": LEASE_SECONDS,
    });
    let client = client.within(PATIENCE + Duration::from_secs(WAIT_SECONDS));
    let mut answer = client
        .call(Method::POST, "/v1/work/claim", Some(&ask))
        .await?;
    Ok(match answer.body["requests"].take() {
        Value::Array(requests) => requests,
        _ => Vec::new(),
    })
}

/// Runs one turn, or the rest of it.
async fn run_turn(agent: DemoWorker, client: &Client, request: &Value) {
    let client = client.within(PATIENCE);
    let in_hand = DemoClaim {
        client: &client,
        id: request["id"].as_str().unwrap_or_default(),
        fence: request["fence"].as_u64().unwrap_or_default(),
    };
    let mut turn = std::pin::pin!(in_hand.turn(agent, request));
    let done = loop {
        tokio::select! {
            done = &mut turn => break done,
            () = tokio::time::sleep(Duration::from_secs(LEASE_SECONDS) / 3) => in_hand.send_heartbeat().await,
        }
    };
    let Err(failure) = done else {
        return;
    };
    match failure.status {
        // Another worker has the request, it has ended, or the server is busy: drop it. A later
        // claim returns it once the lease expires.
        Some(401 | 404 | 408 | 409 | 429 | 500..) | None => {
            tracing::debug!(agent = agent.name, reason = %failure.message, "left");
        }
        Some(_) => {
            tracing::warn!(agent = agent.name, reason = %failure.message, "a demo turn failed");
            in_hand.fail(&failure).await;
        }
    }
}

/// A claimed request.
struct DemoClaim<'c> {
    client: &'c Client,
    id: &'c str,
    fence: u64,
}

impl DemoClaim<'_> {
    async fn turn(&self, agent: DemoWorker, request: &Value) -> Result<(), Failure> {
        let mut turn = DemoTurn {
            text: text_of(&request["input"]),
            decisions: list(&request["decisions"])
                .iter()
                .map(DemoDecision::read)
                .collect(),
            open_call: list(&request["calls"]).first().map(|call| DemoOpenCall {
                id: call["id"].as_str().unwrap_or_default().to_owned(),
                state: call["state"].as_str().unwrap_or_default().to_owned(),
            }),
            ..DemoTurn::default()
        };
        if agent.reads_memory {
            let path = format!("/v1/requests/{}/memory?limit={EXCHANGES_MAX}", self.id);
            let memory = self.client.get(&path).await?.body;
            let oldest_first = list(&memory["exchanges"]).iter().rev();
            let items = oldest_first.flat_map(|exchange| list(&exchange["items"]));
            turn.memory = calls_done(items);
        }
        let session = request["session_id"].as_str().unwrap_or_default();
        for _ in 0..RACES_MAX {
            if agent.reads_state {
                let path = format!("/v1/sessions/{session}/state");
                let read = self.client.get(&path).await?.body;
                turn.state = values(&read["state"]);
                turn.versions = values(&read["versions"])
                    .into_iter()
                    .filter_map(|(key, version)| Some((key, version.as_u64()?)))
                    .collect();
            }
            match self.perform_step((agent.step)(&turn)).await {
                // Another writer was first, and nothing of this turn was committed: read again and
                // retry.
                Err(failure) if failure.code.as_deref() == Some("version_conflict") => {}
                done => return done,
            }
        }
        let message = "other writers keep changing the same values; ask again";
        let mut failure = Failure::new(crate::exit::Exit::Failed, message);
        failure.status = Some(429);
        Err(failure)
    }

    async fn perform_step(&self, step: DemoStep) -> Result<(), Failure> {
        match step {
            DemoStep::Answer(answer) => self.post("complete", answer.body(self.fence)).await,
            DemoStep::Ask(hold) => {
                self.post("holds", hold).await?;
                // Release the request: no worker is needed while a person decides.
                self.post("release", json!({})).await
            }
            DemoStep::Wait => self.post("release", json!({})).await,
        }
    }

    async fn post(&self, what: &str, mut body: Value) -> Result<(), Failure> {
        body["fence"] = self.fence.into();
        let path = format!("/v1/requests/{}/{what}", self.id);
        let answer = self.client.call(Method::POST, &path, Some(&body)).await;
        answer.map(drop)
    }

    async fn send_heartbeat(&self) {
        if let Err(failure) = self.post("heartbeat", json!({})).await {
            tracing::debug!(reason = %failure.message, "no heartbeat");
        }
    }

    /// Fails a request that would fail the same way each time.
    async fn fail(&self, failure: &Failure) {
        let error = json!({ "error": { "code": "demo_agent", "message": failure.message } });
        if let Err(failure) = self.post("fail", error).await {
            tracing::debug!(reason = %failure.message, "left");
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn values(value: &Value) -> BTreeMap<String, Value> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::demo::turn::DemoAnswer;

    const ECHO: DemoWorker = DemoWorker {
        name: "echo",
        step: |turn| DemoAnswer::text(format!("{}!", turn.text)).into(),
        reads_memory: false,
        reads_state: false,
    };

    /// Reads one call: its first line and its body.
    async fn read_call(stream: &mut TcpStream) -> (String, Value) {
        let mut read = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.to_lowercase();
                let length = length.split("content-length: ").nth(1);
                let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
                if body.len() >= length.unwrap_or(0) {
                    let line = head.lines().next().unwrap_or_default().to_owned();
                    return (line, serde_json::from_str(body).unwrap_or_default());
                }
            }
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).await.expect("it is sent");
            assert!(count > 0, "the call ended early: {text}");
            read.extend_from_slice(&piece[..count]);
        }
    }

    async fn answer(stream: &mut TcpStream, status: &str, body: &Value) {
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let sent = stream.write_all((head + &body).as_bytes()).await;
        sent.expect("it is read");
    }

    /// A server that goes away in the middle of a turn and comes back, and another that is busy.
    async fn play() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let url = format!("http://{address}").parse().expect("an address");
        let client = Client::new(url, None, PATIENCE).expect("a client");
        let stop = CancellationToken::new();
        let working = tokio::spawn(run(ECHO, client, stop.clone()));
        let work = json!({ "requests": [{ "id": "req_1", "fence": 3, "input": "hi", "decisions": [], "calls": [] }] });
        let nothing = json!({ "requests": [] });
        // Cut before an answer, refused, and cut in the middle of the turn: the worker retries
        // each.
        let (first, _) = listener.accept().await.expect("a call");
        drop(first);
        let (mut busy, _) = listener.accept().await.expect("a call");
        read_call(&mut busy).await;
        answer(&mut busy, "503 Service Unavailable", &json!({})).await;
        let (mut cut_off, mut claims) = (false, 0);
        let completed = loop {
            let (mut stream, _) = listener.accept().await.expect("a call");
            let (line, body) = read_call(&mut stream).await;
            match line.as_str() {
                "POST /v1/work/claim HTTP/1.1" if claims == 0 || cut_off => {
                    claims += 1;
                    answer(&mut stream, "200 OK", &work).await;
                }
                "POST /v1/work/claim HTTP/1.1" => answer(&mut stream, "200 OK", &nothing).await,
                "POST /v1/requests/req_1/complete HTTP/1.1" if !cut_off => cut_off = true,
                "POST /v1/requests/req_1/complete HTTP/1.1" => break body,
                // A slow turn.
                "POST /v1/requests/req_1/heartbeat HTTP/1.1" => {
                    answer(&mut stream, "200 OK", &json!({})).await;
                }
                other => panic!("it is not asked for {other}"),
            }
        };
        assert_eq!(
            (&completed["fence"], &completed["output"]),
            (&json!(3), &json!("hi!"))
        );
        drop(listener);
        stop.cancel();
        let ended = tokio::time::timeout(Duration::from_mins(1), working).await;
        ended
            .expect("it ends when it is told to")
            .expect("without a panic");
    }

    #[test]
    fn a_worker_outlives_its_server_and_ends_when_it_is_told_to() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(play());
    }
}

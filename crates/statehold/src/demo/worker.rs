//! The loop around a demo agent: claim, find out how far the request is, do the next step, leave.
//!
//! It is a worker like any other: it calls the server over HTTP and keeps nothing in mind. The server
//! may go away and come back; whatever was in hand then comes again with a later claim.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::turn::{Decided, OpenCall, Step, Turn, calls_done, text_of};
use crate::client::Client;
use crate::exit::Failure;

/// How many requests of one agent are in hand at the same time.
const IN_HAND_MAX: usize = 16;
/// How many requests one claim asks for.
const CLAIM_MAX: usize = 8;
/// How long a claim waits for work.
const WAIT_SECONDS: u64 = 20;
/// A turn takes milliseconds. After a crash its request comes back when this is over, so it is short.
const LEASE_SECONDS: u64 = 5;
/// How long one call may take beyond what the server waits.
const PATIENCE: Duration = Duration::from_secs(15);
/// How much of its conversation an agent looks at.
const HISTORY_MAX: usize = 200;
/// How often a turn begins again because somebody else wrote what it wanted to write.
const RACES_MAX: u32 = 50;
/// How long nothing is asked of a server that does not answer: at first, and at most.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// An agent: its name, what it does, and what it needs to know for that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Agent {
    pub(super) name: &'static str,
    pub(super) step: fn(&Turn) -> Step,
    pub(super) reads_history: bool,
    pub(super) reads_state: bool,
}

/// Works for an agent until it is told to stop.
pub(super) async fn run(agent: Agent, client: Client, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(IN_HAND_MAX));
    let mut in_hand = JoinSet::new();
    let mut pause = PAUSE;
    loop {
        while in_hand.try_join_next().is_some() {}
        let claimed = tokio::select! {
            () = stop.cancelled() => break,
            claimed = claim(agent, &client, &room) => claimed,
        };
        match claimed {
            Ok(requests) => {
                pause = PAUSE;
                for request in requests {
                    let place = Arc::clone(&room).acquire_owned().await;
                    let client = client.clone();
                    in_hand.spawn(async move {
                        work(agent, &client, &request).await;
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
    // Each ends by itself within a few calls, whether or not there still is a server.
    while in_hand.join_next().await.is_some() {}
}

async fn claim(agent: Agent, client: &Client, room: &Semaphore) -> Result<Vec<Value>, Failure> {
    // Only as many as there is room for: what is claimed and not worked on only waits for its lease.
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

/// Does one turn, or what is left of it.
async fn work(agent: Agent, client: &Client, request: &Value) {
    let client = client.within(PATIENCE);
    let in_hand = InHand {
        client: &client,
        id: request["id"].as_str().unwrap_or_default(),
        fence: request["fence"].as_u64().unwrap_or_default(),
    };
    let mut turn = std::pin::pin!(in_hand.turn(agent, request));
    let done = loop {
        tokio::select! {
            done = &mut turn => break done,
            () = tokio::time::sleep(Duration::from_secs(LEASE_SECONDS) / 3) => in_hand.beat().await,
        }
    };
    let Err(failure) = done else {
        return;
    };
    match failure.status {
        // It belongs to somebody else by now, or has ended; or there is no server, and it comes again.
        Some(404 | 409) | None => {
            tracing::debug!(agent = agent.name, reason = %failure.message, "left");
        }
        Some(_) => {
            tracing::warn!(agent = agent.name, reason = %failure.message, "a demo turn failed");
            in_hand.fail(&failure).await;
        }
    }
}

/// A request that was claimed.
struct InHand<'c> {
    client: &'c Client,
    id: &'c str,
    fence: u64,
}

impl InHand<'_> {
    async fn turn(&self, agent: Agent, request: &Value) -> Result<(), Failure> {
        let mut turn = Turn {
            text: text_of(&request["input"]),
            decisions: list(&request["decisions"])
                .iter()
                .map(Decided::read)
                .collect(),
            open_call: list(&request["calls"]).first().map(|call| OpenCall {
                id: call["id"].as_str().unwrap_or_default().to_owned(),
                state: call["state"].as_str().unwrap_or_default().to_owned(),
            }),
            ..Turn::default()
        };
        if agent.reads_history {
            let task = request["task_id"].as_str().unwrap_or_default();
            let path = format!("/v1/tasks/{task}?limit={HISTORY_MAX}");
            turn.memory = calls_done(list(&self.client.get(&path).await?.body["history"]));
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
            match self.carry_out((agent.step)(&turn)).await {
                // Somebody else wrote first. Nothing of this turn was committed: look again.
                Err(failure) if failure.code.as_deref() == Some("version_conflict") => {}
                done => return done,
            }
        }
        let message = "others write the same values all the time; ask again";
        let mut failure = Failure::new(crate::exit::Exit::Failed, message);
        failure.status = Some(429);
        Err(failure)
    }

    async fn carry_out(&self, step: Step) -> Result<(), Failure> {
        match step {
            Step::Answer(answer) => self.post("complete", answer.body(self.fence)).await,
            Step::Ask(hold) => {
                self.post("holds", hold).await?;
                // Nobody is needed while a person thinks.
                self.post("release", json!({})).await
            }
            Step::Wait => self.post("release", json!({})).await,
        }
    }

    async fn post(&self, what: &str, mut body: Value) -> Result<(), Failure> {
        body["fence"] = self.fence.into();
        let path = format!("/v1/requests/{}/{what}", self.id);
        let answer = self.client.call(Method::POST, &path, Some(&body)).await;
        answer.map(drop)
    }

    async fn beat(&self) {
        if let Err(failure) = self.post("heartbeat", json!({})).await {
            tracing::debug!(reason = %failure.message, "no heartbeat");
        }
    }

    /// Ends a request that would fail in the same way each time.
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

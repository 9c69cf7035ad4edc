//! One lane: what it knows of its sessions, and which call comes next.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::LoadOptions;
use super::link::Link;
use crate::http::Answer;
use crate::http_crash::log::{Ack, Asked, Call, Entry, LogWriter, Op, sha256};
use crate::workload::Random;

const SESSIONS_MAX: usize = 6;
const LEASE_SECONDS: u64 = 600;

/// How far a request that a worker carries out has come.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Queued,
    Running { steps: u64 },
    Held { hold: String, digest: String },
    Released,
}

#[derive(Debug)]
struct Live {
    request: String,
    fence: u64,
    stage: Stage,
}

#[derive(Debug)]
struct Session {
    id: String,
    revision: u64,
    versions: BTreeMap<String, u64>,
    live: Option<Live>,
    is_followed: bool,
}

/// A call with what is expected of it.
struct Plan {
    asked: Asked,
    call: Call,
    /// Values that the call puts under keys.
    values: BTreeMap<String, Value>,
    name: Option<String>,
}

#[derive(Debug)]
pub(super) struct Lane {
    client: u64,
    number: u64,
    seed: u64,
    calls: u64,
    random: Random,
    link: Link,
    log: Arc<LogWriter>,
    sessions: Vec<Session>,
}

impl Lane {
    pub(super) fn new(options: &LoadOptions, number: u64, log: Arc<LogWriter>) -> Self {
        let mut random = Random::new(options.seed ^ (options.client << 32) ^ (number << 16));
        random.next_u64();
        Self {
            client: options.client,
            number,
            seed: options.seed,
            calls: 0,
            random,
            link: Link::new(&options.data),
            log,
            sessions: Vec::new(),
        }
    }

    /// Makes one call.
    pub(super) async fn step(&mut self) -> Result<()> {
        let count = self.sessions.len();
        if count < 2 || count < SESSIONS_MAX && self.random.below(50) == 0 {
            return self.create().await;
        }
        let at = usize::try_from(self.random.below(count as u64))?;
        match self.random.below(400) {
            0..140 => self.turn(at).await,
            140..220 => self.patch(at).await,
            220..245 => self.count(at).await,
            245..250 if !self.sessions[at].is_followed => self.delete(at).await,
            _ => self.advance(at).await,
        }
    }

    fn agent(&self) -> String {
        format!("w{}-{}", self.client, self.number)
    }

    /// Text that is found again: a mark in front of what does not compress.
    fn marked(&mut self, marks: &mut Vec<String>, bytes: usize) -> String {
        let part = marks.len();
        let mark = format!("{}.{}.{}.{part}", self.client, self.number, self.calls);
        let text = format!("mark:{mark}; {}", self.random.text(bytes));
        marks.push(mark);
        text
    }

    fn plan(&self, op: Op, at: Option<usize>, method: &str, path: &str, body: &Value) -> Plan {
        let session = at.map(|at| self.sessions[at].id.clone());
        let marks = Vec::new();
        Plan {
            asked: Asked { op, session, marks },
            call: Call {
                method: method.to_owned(),
                path: path.to_owned(),
                body: body.to_string(),
                if_match: None,
            },
            values: BTreeMap::new(),
            name: None,
        }
    }

    async fn create(&mut self) -> Result<()> {
        let name = format!("s{}-{}-{}", self.client, self.number, self.calls);
        let body = json!({
            "app": "crash", "user": format!("u{}", self.client), "name": name,
            "labels": { "lane": self.number.to_string() }, "state": { "first": self.calls },
        });
        let mut plan = self.plan(Op::Create, None, "POST", "/v1/sessions", &body);
        plan.name = Some(name);
        let Some((answer, _)) = self.send(plan, false).await? else {
            return Ok(());
        };
        let body = answer.json()?;
        let id = body["id"].as_str().context("a session without an id")?;
        self.sessions.push(Session {
            id: id.to_owned(),
            revision: answer.revision().unwrap_or(1),
            versions: BTreeMap::new(),
            live: None,
            is_followed: self.sessions.is_empty(),
        });
        Ok(())
    }

    async fn turn(&mut self, at: usize) -> Result<()> {
        let mut marks = Vec::new();
        let input = self.marked(&mut marks, 60);
        let arguments = self.marked(&mut marks, 40);
        let result = self.marked(&mut marks, 200);
        let output = self.marked(&mut marks, 80);
        let topic = self.random.text(12);
        let body = json!({
            "input": input,
            "lease": { "ttl_seconds": LEASE_SECONDS, "worker": self.agent() },
            "items": [
                { "kind": "tool_call", "name": "search", "call_id": "c1",
                  "arguments": { "query": arguments }, "idempotent": true },
                { "kind": "tool_result", "call_id": "c1", "result": result },
            ],
            "state": { "set": { "topic": topic } },
            "output": output,
        });
        let path = format!("/v1/sessions/{}/requests", self.sessions[at].id);
        let mut plan = self.plan(Op::Turn, Some(at), "POST", &path, &body);
        plan.asked.marks = marks;
        self.send_for(at, plan).await.map(drop)
    }

    async fn patch(&mut self, at: usize) -> Result<()> {
        let key = format!("k{}", self.random.below(4));
        let value = json!(self.random.text(16));
        let session = &self.sessions[at];
        let version = session.versions.get(&key).copied().unwrap_or(0);
        let body = json!({ "set": { &key: value }, "if_versions": { &key: version } });
        let path = format!("/v1/sessions/{}/state", session.id);
        let mut plan = self.plan(Op::Patch, Some(at), "PATCH", &path, &body);
        plan.values.insert(key, value);
        if self.random.below(4) == 0 {
            plan.call.if_match = Some(self.sessions[at].revision);
        }
        self.send_for(at, plan).await.map(drop)
    }

    async fn count(&mut self, at: usize) -> Result<()> {
        let body = json!({ "set": { "app:count": 1 }, "merge": { "app:count": "add" } });
        let path = format!("/v1/sessions/{}/state", self.sessions[at].id);
        let plan = self.plan(Op::Count, Some(at), "PATCH", &path, &body);
        self.send_for(at, plan).await.map(drop)
    }

    async fn delete(&mut self, at: usize) -> Result<()> {
        let path = format!("/v1/sessions/{}", self.sessions[at].id);
        let mut plan = self.plan(Op::Delete, Some(at), "DELETE", &path, &Value::Null);
        plan.call.body.clear();
        let is_answered = self.send(plan, false).await?.is_some();
        if is_answered || self.link.get(&path).await?.status == 404 {
            self.sessions.swap_remove(at);
        }
        Ok(())
    }

    /// The next step of the work on a request: start, claim, items, ask, decide, complete.
    async fn advance(&mut self, at: usize) -> Result<()> {
        let Some(live) = &self.sessions[at].live else {
            return self.start(at).await;
        };
        let (request, fence, stage) = (live.request.clone(), live.fence, live.stage.clone());
        match stage {
            Stage::Queued => self.claim(at, &request).await,
            Stage::Running { steps } => match self.random.below(4) {
                0 => self.complete(at, &request, fence).await,
                1 if steps > 0 => self.ask(at, &request, fence).await,
                _ => self.items(at, &request, fence).await,
            },
            Stage::Held { hold, digest } => self.decide(at, &hold, &digest).await,
            Stage::Released => self.complete(at, &request, fence).await,
        }
    }

    async fn start(&mut self, at: usize) -> Result<()> {
        let mut marks = Vec::new();
        let input = self.marked(&mut marks, 50);
        let body = json!({ "agent": self.agent(), "input": { "content": input } });
        let path = format!("/v1/sessions/{}/requests", self.sessions[at].id);
        let mut plan = self.plan(Op::Start, Some(at), "POST", &path, &body);
        plan.asked.marks = marks;
        if let Some(body) = self.send_for(at, plan).await? {
            let request = body["id"].as_str().context("a request without an id")?;
            self.sessions[at].live = Some(Live {
                request: request.to_owned(),
                fence: 0,
                stage: Stage::Queued,
            });
        }
        Ok(())
    }

    async fn claim(&mut self, at: usize, request: &str) -> Result<()> {
        let body = json!({
            "agent": self.agent(), "worker": self.agent(), "max": 1, "wait_seconds": 5,
            "lease_seconds": LEASE_SECONDS, "request_id": request,
        });
        let plan = self.plan(Op::Claim, Some(at), "POST", "/v1/work/claim", &body);
        let Some(body) = self.send_for(at, plan).await? else {
            return self.abandon(at).await;
        };
        let claimed = &body["requests"][0];
        let fence = claimed["fence"].as_u64();
        if claimed["id"].as_str() != Some(request) || fence.is_none() {
            self.problem(format!("{request} was asked for and not given: {body}"))?;
            return self.abandon(at).await;
        }
        self.set_live(at, fence.unwrap_or(0), Stage::Running { steps: 0 });
        Ok(())
    }

    async fn items(&mut self, at: usize, request: &str, fence: u64) -> Result<()> {
        let mut marks = Vec::new();
        let note = self.marked(&mut marks, 60);
        let step = self.marked(&mut marks, 30);
        let body = json!({
            "fence": fence,
            "items": [
                { "kind": "message", "role": "assistant", "visibility": "hidden", "content": note },
                { "kind": "note", "content": step },
            ],
            "task_state": { "step": self.calls },
        });
        let path = format!("/v1/requests/{request}/items");
        let mut plan = self.plan(Op::Items, Some(at), "POST", &path, &body);
        plan.asked.marks = marks;
        if self.send_for(at, plan).await?.is_some() {
            self.set_live(at, fence, Stage::Running { steps: 1 });
        }
        Ok(())
    }

    async fn ask(&mut self, at: usize, request: &str, fence: u64) -> Result<()> {
        let mut marks = Vec::new();
        let order = self.marked(&mut marks, 10);
        let args = json!({ "order": order });
        let body = json!({
            "fence": fence, "kind": "approval", "title": "Refund an order",
            "action": { "tool": "refund", "args": args, "call_id": format!("h{}", self.calls) },
        });
        let path = format!("/v1/requests/{request}/holds");
        let mut plan = self.plan(Op::Hold, Some(at), "POST", &path, &body);
        plan.asked.marks = marks;
        let Some(body) = self.send_for(at, plan).await? else {
            return self.abandon(at).await;
        };
        let hold = body["id"].as_str().context("a hold without an id")?;
        // Members in the order of the canonical form.
        let action = json!({ "args": args, "hold_id": hold, "tool": "refund", "v": 1 });
        let (hold, digest) = (hold.to_owned(), sha256(action.to_string().as_bytes()));
        self.set_live(at, fence, Stage::Held { hold, digest });
        Ok(())
    }

    async fn decide(&mut self, at: usize, hold: &str, digest: &str) -> Result<()> {
        let body = if self.random.below(3) == 0 {
            json!({ "decision": "reject", "comment": "not today" })
        } else {
            json!({ "decision": "approve", "digest": digest })
        };
        let path = format!("/v1/holds/{hold}/decision");
        let plan = self.plan(Op::Decide, Some(at), "POST", &path, &body);
        let is_answered = self.send_for(at, plan).await?.is_some();
        let is_open = if is_answered {
            false
        } else {
            let hold = self.link.get(&format!("/v1/holds/{hold}")).await?.json()?;
            hold["status"] == "open"
        };
        if let Some(live) = &mut self.sessions[at].live
            && !is_open
        {
            live.stage = Stage::Released;
        }
        Ok(())
    }

    async fn complete(&mut self, at: usize, request: &str, fence: u64) -> Result<()> {
        let mut marks = Vec::new();
        let output = self.marked(&mut marks, 60);
        let body = json!({ "fence": fence, "output": { "content": output } });
        let path = format!("/v1/requests/{request}/complete");
        let mut plan = self.plan(Op::Complete, Some(at), "POST", &path, &body);
        plan.asked.marks = marks;
        if self.send_for(at, plan).await?.is_some() {
            self.sessions[at].live = None;
        }
        Ok(())
    }

    /// Cancels work of which this lane does not know how far it came.
    async fn abandon(&mut self, at: usize) -> Result<()> {
        let Some(live) = self.sessions[at].live.take() else {
            return Ok(());
        };
        let path = format!("/v1/requests/{}/cancel", live.request);
        let plan = self.plan(Op::Cancel, Some(at), "POST", &path, &json!({}));
        let answer = self.send(plan, true).await?;
        self.note_revision(at, answer.as_ref().and_then(|(_, revision)| *revision));
        Ok(())
    }

    fn set_live(&mut self, at: usize, fence: u64, stage: Stage) {
        if let Some(live) = &mut self.sessions[at].live {
            live.fence = fence;
            live.stage = stage;
        }
    }

    fn note_revision(&mut self, at: usize, revision: Option<u64>) {
        if let Some(revision) = revision {
            self.sessions[at].revision = revision;
        }
    }

    fn problem(&self, text: String) -> Result<()> {
        self.log.write(&Entry::Problem(text))
    }

    /// Sends a call about a session. Nothing means that it was lost or refused, and that what is known
    /// of the session has been read again.
    async fn send_for(&mut self, at: usize, plan: Plan) -> Result<Option<Value>> {
        let keys: Vec<String> = plan.values.keys().cloned().collect();
        let op = plan.asked.op;
        let Some((answer, revision)) = self.send(plan, false).await? else {
            self.read_again(at).await?;
            return Ok(None);
        };
        self.note_revision(at, revision);
        let body = answer.json()?;
        for key in keys {
            if let Some(version) = body["versions"][&key].as_u64() {
                self.sessions[at].versions.insert(key, version);
            }
        }
        if op == Op::Claim {
            // The answer of a claim is about many sessions and has no revision.
            self.read_revision(at).await?;
        }
        Ok(Some(body))
    }

    async fn read_revision(&mut self, at: usize) -> Result<()> {
        let path = format!("/v1/sessions/{}", self.sessions[at].id);
        let revision = self.link.get(&path).await?.json()?["revision"].as_u64();
        self.note_revision(at, revision);
        Ok(())
    }

    async fn read_again(&mut self, at: usize) -> Result<()> {
        let id = self.sessions[at].id.clone();
        let state = self.link.get(&format!("/v1/sessions/{id}/state")).await?;
        let state = state.json()?;
        for (key, version) in &mut self.sessions[at].versions {
            *version = state["versions"][key.as_str()].as_u64().unwrap_or(0);
        }
        for n in 0..4 {
            let key = format!("k{n}");
            if let Some(version) = state["versions"][&key].as_u64() {
                self.sessions[at].versions.insert(key, version);
            }
        }
        if let Some(live) = &self.sessions[at].live {
            let path = format!("/v1/requests/{}", live.request);
            let request = self.link.get(&path).await?.json()?;
            let status = request["status"].as_str().unwrap_or_default();
            if matches!(status, "completed" | "failed" | "cancelled") {
                self.sessions[at].live = None;
            }
        }
        self.read_revision(at).await
    }

    /// Makes a call, with a key every other time, and writes down what came of it.
    async fn send(&mut self, plan: Plan, is_keyed: bool) -> Result<Option<(Answer, Option<u64>)>> {
        self.calls += 1;
        // A claim hands out work: its answer is not kept.
        let takes_key = plan.asked.op != Op::Claim;
        let key = (is_keyed || takes_key && self.random.below(2) == 0).then(|| {
            format!(
                "k{}-{}-{}-{}",
                self.seed, self.client, self.number, self.calls
            )
        });
        let answered = if let Some(key) = &key {
            Some(self.link.until_answered(&plan.call, Some(key)).await?)
        } else {
            let answer = self.link.once(&plan.call, None).await?;
            answer.map(|answer| (answer, 1))
        };
        let Some((answer, attempts)) = answered else {
            self.log.write(&Entry::Lost(plan.asked))?;
            return Ok(None);
        };
        if !answer.is_success() {
            self.log.write(&Entry::Refused {
                asked: plan.asked,
                status: answer.status,
                answer: String::from_utf8_lossy(&answer.body).into_owned(),
                is_expected: matches!(answer.status, 429 | 503),
            })?;
            return Ok(None);
        }
        let is_first = self.sessions.is_empty();
        let ack = acknowledged(plan, &answer, key.clone(), attempts, is_first);
        self.log.write(&Entry::Ack(Box::new(ack.clone())))?;
        if let Some((key, call)) = ack.keyed.filter(|_| self.random.below(8) == 0) {
            self.replay(&key, &call, &answer).await?;
        }
        Ok(Some((answer, ack.revision)))
    }

    /// The same key again gets the same bytes.
    async fn replay(&mut self, key: &str, call: &Call, first: &Answer) -> Result<()> {
        let (again, _) = self.link.until_answered(call, Some(key)).await?;
        if again.status != first.status || again.body != first.body {
            let [first, second] =
                [first, &again].map(|answer| String::from_utf8_lossy(&answer.body));
            self.problem(format!(
                "{} {} with the key {key} answered {first} and then {second}",
                call.method, call.path
            ))?;
        }
        Ok(())
    }
}

fn acknowledged(
    plan: Plan,
    answer: &Answer,
    key: Option<String>,
    attempts: u64,
    is_first: bool,
) -> Ack {
    let body = answer.json().unwrap_or(Value::Null);
    let id = |prefix: &str, text: Option<&str>| {
        text.filter(|text| text.starts_with(prefix))
            .map(str::to_owned)
    };
    let own = body["id"].as_str();
    let mut asked = plan.asked;
    let is_create = asked.op == Op::Create;
    if is_create {
        asked.session = id("ses_", own);
    }
    let claimed = body["requests"][0]["id"].as_str();
    let items = body["items"].as_array().into_iter().flatten();
    let items =
        items.filter_map(|item| Some((item["id"].as_str()?.to_owned(), item["seq"].as_u64()?)));
    let versions = &body["versions"];
    let state = plan.values.into_iter().filter_map(|(key, value)| {
        let version = versions[&key].as_u64()?;
        Some((key, (version, value)))
    });
    Ack {
        status: answer.status,
        revision: answer.revision(),
        request: id("req_", own).or_else(|| id("req_", claimed)),
        hold: id("hld_", own),
        items: items.collect(),
        state: state.collect(),
        name: plan.name,
        is_followed: is_create && is_first,
        keyed: key.map(|key| (key, plan.call)),
        digest: sha256(&answer.body),
        attempts,
        asked,
    }
}

//! A worker that does what the input of each request tells it: record a tool call, ask for an approval
//! if the call is gated, run the tool as a process of its own under the execution key, and complete.
//!
//! It knows nothing but what the server tells it, and it outlives the server: a call whose answer is
//! lost is made again with the same idempotency key.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::{Patient, PlainAnswer};

/// How a worker is started.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The data directory of the server.
    pub data: PathBuf,
    /// The agent it works for.
    pub agent: String,
    /// Its key.
    pub key: String,
    /// How long its leases last. A worker with a short lease goes away when it has asked; one with a
    /// long lease stays and waits for the answer.
    pub lease_seconds: u64,
    /// The program `effect_tool`.
    pub tool: PathBuf,
    /// The file that the tool counts in.
    pub effects: PathBuf,
    /// Where it writes down what it was refused.
    pub log: PathBuf,
}

/// Leases shorter than this lapse while people think.
const STAYS_FROM_SECONDS: u64 = 10;

impl WorkerOptions {
    /// From the arguments of the program.
    ///
    /// # Errors
    ///
    /// If they are not seven.
    pub fn from_args(args: &[String]) -> Result<Self> {
        let [data, agent, key, lease, tool, effects, log] = args else {
            anyhow::bail!("tool_worker DATA AGENT KEY LEASE_SECONDS TOOL EFFECTS LOG");
        };
        Ok(Self {
            data: data.into(),
            agent: agent.clone(),
            key: key.clone(),
            lease_seconds: lease.parse()?,
            tool: tool.into(),
            effects: effects.into(),
            log: log.into(),
        })
    }

    /// Starts one as a process. It ends when its standard input is closed.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn spawn(&self, program: &std::path::Path) -> Result<Child> {
        Command::new(program)
            .arg(&self.data)
            .args([&self.agent, &self.key, &self.lease_seconds.to_string()])
            .args([&self.tool, &self.effects, &self.log])
            .stdin(Stdio::piped())
            .spawn()
            .context("starting a worker")
    }
}

/// What the input of a request tells a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    /// The arguments of the tool.
    pub args: Value,
    /// Whether a person must approve first.
    pub gated: bool,
    /// Whether the tool is said to honour the key.
    pub idempotent: bool,
    /// The first worker waits after the tool ran until this file is there.
    #[serde(default)]
    pub wait_for: Option<PathBuf>,
}

/// Something that the server refused.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Refused {
    /// What was tried.
    pub what: String,
    /// The request.
    pub request: String,
    /// The status of the answer.
    pub status: u16,
    /// Its body.
    pub problem: Value,
}

/// What a worker was refused so far.
///
/// # Errors
///
/// If a line is not one of ours.
pub fn read_log(log: &std::path::Path) -> Result<Vec<Refused>> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines = text.lines().map(|line| Ok(serde_json::from_str(line)?));
    lines.collect()
}

/// Works until standard input ends.
///
/// # Errors
///
/// If the server says what it never should.
pub fn run(options: &WorkerOptions) -> Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        over.store(true, Ordering::SeqCst);
    });
    let mut worker = Worker {
        server: Patient::new(&options.data, Some(&options.key)),
        options: options.clone(),
        is_over,
    };
    while !worker.is_over.load(Ordering::SeqCst) {
        if let Some(request) = worker.claim()? {
            worker.work_on(&request)?;
        }
    }
    Ok(())
}

struct Worker {
    options: WorkerOptions,
    server: Patient,
    is_over: Arc<AtomicBool>,
}

/// One request in this worker's hands.
struct InHand {
    id: String,
    fence: u64,
    session: String,
    orders: Orders,
}

impl InHand {
    /// The idempotency key of something that is done once under this fence.
    fn key(&self, what: &str) -> String {
        format!("{}-{}-{what}", self.id, self.fence)
    }
}

impl Worker {
    fn claim(&mut self) -> Result<Option<Value>> {
        let body = json!({
            "agent": self.options.agent, "wait_seconds": 1,
            "lease_seconds": self.options.lease_seconds,
        });
        let answer = self
            .server
            .call("POST", "/v1/work/claim", &[], &body.to_string())?;
        Ok(answer.done()?["requests"].get(0).cloned())
    }

    fn work_on(&mut self, claimed: &Value) -> Result<()> {
        let text = |name: &str| claimed[name].as_str().unwrap_or_default().to_owned();
        let in_hand = InHand {
            id: text("id"),
            fence: claimed["fence"].as_u64().context("no fence")?,
            session: text("session_id"),
            orders: serde_json::from_str(&text("input")).context("orders")?,
        };
        let calls = claimed["calls"].as_array().cloned().unwrap_or_default();
        let decisions = claimed["decisions"].as_array().cloned().unwrap_or_default();
        match (calls.first(), decisions.last()) {
            (None, _) => self.begin(&in_hand),
            (Some(call), decided) => self.go_on(&in_hand, call, decided),
        }
    }

    /// Records the call, and runs it or asks.
    fn begin(&mut self, in_hand: &InHand) -> Result<()> {
        let orders = &in_hand.orders;
        let call = json!({ "items": [{
            "kind": "tool_call", "name": "pay", "arguments": orders.args,
            "gated": orders.gated, "idempotent": orders.idempotent,
        }]});
        let Some(written) = self.write(in_hand, "items", call)? else {
            return Ok(());
        };
        let key = written["items"][0]["id"].as_str().context("no id")?;
        if !orders.gated {
            self.execute(in_hand, key, &orders.args)?;
            return Ok(());
        }
        let hold = json!({
            "kind": "approval", "title": "Pay?",
            "action": { "tool": "pay", "args": orders.args, "call_id": key },
        });
        let opened = self.write(in_hand, "holds", hold)?;
        if opened.is_none() || self.options.lease_seconds < STAYS_FROM_SECONDS {
            return Ok(());
        }
        self.wait_for_people(in_hand, key)
    }

    /// Stays with the request until people have decided.
    fn wait_for_people(&mut self, in_hand: &InHand, key: &str) -> Result<()> {
        let path = format!("/v1/requests/{}", in_hand.id);
        loop {
            std::thread::park_timeout(Duration::from_millis(5));
            let read = self.server.get(&path)?;
            match read["status"].as_str() {
                Some("held") if !self.is_over.load(Ordering::SeqCst) => {}
                Some("running") => {
                    let call = json!({ "id": key });
                    return self.go_on(in_hand, &call, read["holds"].get(0));
                }
                _ => return Ok(()),
            }
        }
    }

    /// Does what people decided about a call, or does it again if nobody was asked.
    fn go_on(&mut self, in_hand: &InHand, call: &Value, decided: Option<&Value>) -> Result<()> {
        let key = call["id"].as_str().context("a call without its key")?;
        let Some(decided) = decided else {
            return self.execute(in_hand, key, &in_hand.orders.args);
        };
        match decided["status"].as_str().unwrap_or_default() {
            "approved" => self.execute(in_hand, key, &in_hand.orders.args),
            "edited" => self.execute(in_hand, key, &decided["decision"]["args"].clone()),
            "answered" if decided["kind"] == "reconcile" => {
                self.finish(in_hand, key, "ran", "it had run")
            }
            "answered" => self.finish(in_hand, key, "answered", "a person answered"),
            _ => self.finish(in_hand, key, "refused", "a person refused"),
        }
    }

    fn execute(&mut self, in_hand: &InHand, key: &str, args: &Value) -> Result<()> {
        let status = Command::new(&self.options.tool)
            .arg(&self.options.effects)
            .args([key, &args.to_string()])
            .stdin(Stdio::null())
            .status()
            .context("running the tool")?;
        ensure!(status.success(), "the tool ended with {status}");
        if let Some(file) = in_hand
            .orders
            .wait_for
            .as_ref()
            .filter(|_| in_hand.fence == 1)
        {
            while !file.exists() && !self.is_over.load(Ordering::SeqCst) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
        self.finish(in_hand, key, "ran", "paid")
    }

    fn finish(&mut self, in_hand: &InHand, key: &str, outcome: &str, result: &str) -> Result<()> {
        let done = json!({
            "output": result,
            "items": [{ "kind": "tool_result", "call_id": key, "result": result, "outcome": outcome }],
        });
        if self.write(in_hand, "complete", done)?.is_none() {
            self.try_everything(in_hand, key)?;
        }
        Ok(())
    }

    /// Whatever else a worker could write, after it was told that the request is not its own any more.
    fn try_everything(&mut self, in_hand: &InHand, key: &str) -> Result<()> {
        let late = "late";
        let result =
            json!({ "items": [{ "kind": "tool_result", "call_id": key, "result": late }] });
        let note = json!({ "items": [{ "kind": "note", "content": late }] });
        let question = json!({ "kind": "question", "title": late });
        let writes = [
            ("items", result),
            ("items", note),
            ("items", json!({ "task_state": late })),
            ("holds", question),
            ("fail", json!({ "error": late })),
            ("heartbeat", json!({})),
        ];
        for (what, body) in writes {
            self.write(in_hand, what, body)?;
        }
        let path = format!("/v1/sessions/{}/requests", in_hand.session);
        let spawn = json!({
            "agent": "helper", "input": late,
            "parent_request_id": in_hand.id, "parent_fence": in_hand.fence,
        });
        let answer = self.server.post(&path, &in_hand.key("spawn"), &spawn)?;
        self.note(in_hand, "spawn", &answer)?;
        let path = format!("/v1/sessions/{}/state", in_hand.session);
        for key in ["late", "temp:late"] {
            let put =
                json!({ "set": { key: 1 }, "request_id": in_hand.id, "fence": in_hand.fence });
            let answer = self.server.call("PATCH", &path, &[], &put.to_string())?;
            self.note(in_hand, "state", &answer)?;
        }
        Ok(())
    }

    /// Writes under the fence. None if that was refused, which is written down.
    fn write(&mut self, in_hand: &InHand, what: &str, mut body: Value) -> Result<Option<Value>> {
        body["fence"] = json!(in_hand.fence);
        let path = format!("/v1/requests/{}/{what}", in_hand.id);
        let digest = crate::http_crash::log::sha256(body.to_string().as_bytes());
        let key = format!("{}-{}", in_hand.key(what), &digest[..16]);
        let answer = self.server.post(&path, &key, &body)?;
        if (200..300).contains(&answer.status) {
            return Ok(Some(answer.json()));
        }
        self.note(in_hand, what, &answer)?;
        Ok(None)
    }

    fn note(&self, in_hand: &InHand, what: &str, answer: &PlainAnswer) -> Result<()> {
        let refused = Refused {
            what: what.to_owned(),
            request: in_hand.id.clone(),
            status: answer.status,
            problem: answer.json(),
        };
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.options.log)?;
        log.write_all(format!("{}\n", serde_json::to_string(&refused)?).as_bytes())?;
        Ok(())
    }
}

//! The duplicate storm: many people decide one hold at the same moment, in different ways and over
//! different doors, while the server is killed in the middle. One decision may come of it, one release,
//! and at most one effect, counted by a tool in another process.

mod judge;
mod people;

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

pub use self::people::can_decide;

use self::judge::Seen;
use self::people::{Person, Storm};
use crate::http::{Patient, ServerProcess};
use crate::tool_worker::{Orders, WorkerOptions, read_log};
use crate::workload::Random;

/// What a run does.
#[derive(Debug, Clone)]
pub struct StormOptions {
    /// The server: the binary `statehold`.
    pub program: PathBuf,
    /// The binary `tool_worker` of this crate.
    pub worker: PathBuf,
    /// The binary `effect_tool` of this crate.
    pub tool: PathBuf,
    /// The command line that some people decide with, if it can.
    pub cli: Option<PathBuf>,
    /// How many holds are decided.
    pub rounds: usize,
    /// How many decide each of them at once.
    pub deciders: usize,
    /// In one of so many rounds the server is killed.
    pub kill_every: usize,
    /// The same seed takes the same decisions.
    pub seed: u64,
}

/// What a run saw.
#[derive(Debug, Default, Clone, Copy)]
#[expect(missing_docs, reason = "each is counted by the name it has")]
pub struct StormReport {
    pub rounds: usize,
    pub kills: usize,
    pub approved: usize,
    pub edited: usize,
    pub rejected: usize,
    pub answers: usize,
    pub told_the_outcome: usize,
    pub told_of_the_conflict: usize,
    pub answers_lost: usize,
    pub by_command_line: usize,
    pub effects: usize,
    pub taken_over: usize,
}

/// How long anything may take that the server or a worker does by itself.
const PATIENCE: Duration = Duration::from_secs(30);
/// People who may decide.
const APPROVERS: usize = 4;

/// Runs the storm. Prints what it saw.
///
/// # Errors
///
/// The first thing that happened twice, or was told differently; everything is kept then, and the error
/// says where.
pub fn run(options: &StormOptions) -> Result<StormReport> {
    let directory = tempfile::tempdir()?;
    let result = Run::start(options, directory.path()).and_then(Run::finish);
    if result.is_err() {
        let kept = directory.keep();
        let place = format!("seed {}; all is kept in {}", options.seed, kept.display());
        return result.context(place);
    }
    result
}

struct Run<'a> {
    options: &'a StormOptions,
    directory: &'a Path,
    data: PathBuf,
    effects: PathBuf,
    server: Option<ServerProcess>,
    /// Stopped when it is dropped.
    workers: Workers,
    caller: Patient,
    approvers: Vec<Person>,
    random: Random,
    report: StormReport,
}

/// A hold that waits for the storm.
struct Prepared {
    round: usize,
    session: String,
    request: String,
    args: Value,
}

impl<'a> Run<'a> {
    fn start(options: &'a StormOptions, directory: &'a Path) -> Result<Self> {
        let data = directory.join("data");
        std::fs::create_dir_all(&data)?;
        let log = directory.join("server.log");
        let server = ServerProcess::start(&options.program, &data, &log)?;
        let mut caller = Patient::new(&data, None);
        let approvers = (0..APPROVERS)
            .map(|n| Person::make(&mut caller, n))
            .collect::<Result<Vec<_>>>()?;
        let effects = directory.join("effects");
        let mut workers = Workers::default();
        for (agent, lease_seconds) in [("stays", 60), ("leaves", 2)] {
            let body = json!({ "roles": ["worker"], "agents": [agent] });
            let made = caller.post("/v1/keys", agent, &body)?.done()?;
            let worker = WorkerOptions {
                data: data.clone(),
                agent: agent.to_owned(),
                key: made["key"].as_str().context("no key")?.to_owned(),
                lease_seconds,
                tool: options.tool.clone(),
                effects: effects.clone(),
                log: directory.join(format!("worker-{agent}.log")),
            };
            workers.0.push(worker.spawn(&options.worker)?);
        }
        Ok(Self {
            options,
            directory,
            data,
            effects,
            server: Some(server),
            workers,
            caller,
            approvers,
            random: Random::new(options.seed),
            report: StormReport::default(),
        })
    }

    fn finish(mut self) -> Result<StormReport> {
        // Those whose worker goes away are asked first and decided last: its lease has lapsed by then.
        let leaves = (0..self.options.rounds).filter(|round| round % 3 == 2);
        let leaves = leaves
            .map(|round| self.prepare(round, "leaves"))
            .collect::<Result<Vec<_>>>()?;
        for round in (0..self.options.rounds).filter(|round| round % 3 != 2) {
            let prepared = self.prepare(round, "stays")?;
            self.round(&prepared)?;
        }
        for prepared in &leaves {
            self.round(prepared)?;
        }
        let counted = self.effects()?.len();
        let expected = self.report.approved + self.report.edited;
        // A worker whose lease ended between its effect and its answer is followed by one who runs the
        // action again: each of these is judged in its round.
        let most = expected + self.report.taken_over;
        ensure!(
            (expected..=most).contains(&counted),
            "{counted} effects of {expected} released actions"
        );
        self.report.effects = counted;
        drop(self.workers);
        if let Some(server) = self.server.take() {
            let status = server.stop()?;
            ensure!(status.success(), "the server stopped with {status}");
        }
        println!("{}", self.report.line(self.options.deciders));
        Ok(self.report)
    }

    fn prepare(&mut self, round: usize, agent: &str) -> Result<Prepared> {
        let body = json!({ "app": "storm", "user": "ann" });
        let made = self
            .caller
            .post("/v1/sessions", &format!("session-{round}"), &body)?;
        let session = id_of(&made.done()?)?;
        let args = json!({ "round": round });
        let orders = Orders {
            args: args.clone(),
            gated: true,
            idempotent: true,
            wait_for: None,
        };
        let body = json!({ "agent": agent, "input": serde_json::to_string(&orders)? });
        let path = format!("/v1/sessions/{session}/requests");
        let made = self
            .caller
            .post(&path, &format!("request-{round}"), &body)?;
        Ok(Prepared {
            round,
            request: id_of(&made.done()?)?,
            session,
            args,
        })
    }

    fn round(&mut self, prepared: &Prepared) -> Result<()> {
        let seen = self
            .see(prepared)
            .with_context(|| format!("in round {}", prepared.round))?;
        let verdict = judge::judge(&seen);
        if verdict.is_err() {
            std::fs::write(self.directory.join("seen"), format!("{seen:#?}"))?;
        }
        let verdict = verdict.with_context(|| format!("in round {}", prepared.round))?;
        let report = &mut self.report;
        report.rounds += 1;
        match verdict.status.as_str() {
            "approved" => report.approved += 1,
            "edited" => report.edited += 1,
            _ => report.rejected += 1,
        }
        report.told_the_outcome += verdict.told_the_outcome;
        report.told_of_the_conflict += verdict.told_of_the_conflict;
        report.answers += verdict.told_the_outcome + verdict.told_of_the_conflict;
        report.by_command_line += verdict.by_command_line;
        report.answers_lost += seen.lost;
        report.taken_over += seen.taken_over;
        Ok(())
    }

    /// Lets the storm loose on one hold and looks at what became of it.
    fn see(&mut self, prepared: &Prepared) -> Result<Seen> {
        let path = format!("/v1/requests/{}", prepared.request);
        let asked = self.wait(&path, "held")?;
        let hold = &asked["holds"][0];
        let server = self.server.take().context("no server")?;
        let is_killed = prepared.round % self.options.kill_every == self.options.kill_every / 2;
        let storm = Storm {
            address: server.address(),
            // Starting a process takes long, and one that finds no server tries for longer: the command
            // line is used in some rounds, and not where the server comes back on another port.
            cli: self
                .options
                .cli
                .as_deref()
                .filter(|_| !is_killed && prepared.round.is_multiple_of(4)),
            approvers: &self.approvers,
            hold: id_of(hold)?,
            request: prepared.request.clone(),
            digest: hold["action"]["digest"]
                .as_str()
                .context("no digest")?
                .to_owned(),
            args: prepared.args.clone(),
            round: prepared.round,
            deciders: self.options.deciders,
        };
        let mut people = storm.people();
        let lost = if is_killed {
            // Somewhere in the middle: after so many have their answer, or before anybody has.
            let after = self.random.below(self.options.deciders as u64);
            let delay = Duration::from_micros(self.random.below(20_000));
            storm.blow(&mut people, move |answered| {
                let began = Instant::now();
                while (answered.load(Ordering::SeqCst) as u64) < after || began.elapsed() < delay {
                    if began.elapsed() > PATIENCE {
                        bail!("nobody answers");
                    }
                    std::thread::park_timeout(Duration::from_micros(200));
                }
                server.kill()
            })?;
            self.report.kills += 1;
            let log = self.directory.join("server.log");
            let server = ServerProcess::start(&self.options.program, &self.data, &log)?;
            let lost = people.iter().filter(|one| one.answers.is_empty()).count();
            // Everybody asks again: whoever was told something, and whoever was not.
            let again = Storm {
                address: server.address(),
                ..storm
            };
            again.blow(&mut people, |_| Ok(()))?;
            self.server = Some(server);
            lost
        } else {
            storm.blow(&mut people, |_| Ok(()))?;
            self.server = Some(server);
            0
        };
        let hold_id = id_of(hold)?;
        let request = self.wait(&path, "completed")?;
        let records = format!("/v1/sessions/{}/records?limit=1000", prepared.session);
        let records = self.caller.get(&records)?["records"].clone();
        let hold = self.caller.get(&format!("/v1/holds/{hold_id}"))?;
        let effects = self.effects()?;
        let is_ours = |(_, args): &(String, Value)| args["round"] == prepared.round;
        Ok(Seen {
            hold,
            request,
            records,
            people,
            args: prepared.args.clone(),
            effects: effects.into_iter().filter(is_ours).collect(),
            lost,
            taken_over: self.taken_over(&prepared.request)?,
        })
    }

    /// How often a worker had to hear that the request was not its own any more: each time the tool may
    /// have been called once more, under the same key.
    fn taken_over(&self, request: &str) -> Result<usize> {
        let mut count = 0;
        for agent in ["stays", "leaves"] {
            let log = self.directory.join(format!("worker-{agent}.log"));
            let refused = read_log(&log)?;
            let ours = refused.iter().filter(|one| one.request == request);
            count += ours.filter(|one| one.what == "complete").count();
        }
        Ok(count)
    }

    fn wait(&mut self, path: &str, status: &str) -> Result<Value> {
        let began = Instant::now();
        loop {
            let read = self.caller.get(path)?;
            if read["status"] == status {
                return Ok(read);
            }
            std::thread::park_timeout(Duration::from_millis(3));
            if began.elapsed() > PATIENCE {
                bail!("never {status}: {read}");
            }
        }
    }

    /// Every call of the tool so far: its key and its arguments.
    fn effects(&self) -> Result<Vec<(String, Value)>> {
        let text = std::fs::read_to_string(&self.effects).unwrap_or_default();
        let lines = text.lines().map(|line| {
            let (key, args) = line.split_once(' ').context("half a line")?;
            Ok((key.to_owned(), serde_json::from_str(args)?))
        });
        lines.collect()
    }
}

impl StormReport {
    fn line(&self, deciders: usize) -> String {
        format!(
            "{} holds, each decided by {deciders} at once, {} kills: {} approved, {} edited, {} rejected; \
             {} answers ({} got the outcome, {} a conflict that carries it, {} by the command line), {} \
             lost with the server and asked again; {} effects, {} requests taken over",
            self.rounds,
            self.kills,
            self.approved,
            self.edited,
            self.rejected,
            self.answers,
            self.told_the_outcome,
            self.told_of_the_conflict,
            self.by_command_line,
            self.answers_lost,
            self.effects,
            self.taken_over,
        )
    }
}

fn id_of(value: &Value) -> Result<String> {
    let id = value["id"].as_str().map(str::to_owned);
    id.with_context(|| format!("no id in {value}"))
}

#[derive(Default)]
struct Workers(Vec<Child>);

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.stdin.take());
            // Long polls of a worker are short; nobody waits for its last words.
            child.kill().unwrap_or_default();
            drop(child.wait());
        }
    }
}

#[cfg(test)]
mod tests;

//! The people of the storm: who they are, what each of them decides, and all of them at once.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::http::{Patient, PlainAnswer, PlainClient};

/// How many of the people use the command line, if there is one.
const BY_COMMAND_LINE: usize = 3;

/// Somebody who may decide.
#[derive(Debug, Clone)]
pub(super) struct Person {
    name: String,
    key: String,
}

impl Person {
    pub(super) fn make(caller: &mut Patient, n: usize) -> Result<Self> {
        let name = format!("boss{n}");
        let body = json!({ "roles": ["approver"], "user": name });
        let made = caller.post("/v1/keys", &name, &body)?.done()?;
        let key = made["key"].as_str().context("no key")?.to_owned();
        Ok(Self { name, key })
    }
}

/// What somebody was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// Over HTTP.
    Answer(PlainAnswer),
    /// By the command line: its exit code, and what it printed.
    Exit(i32, String),
}

/// One who decides, and what they were told, each time they asked.
#[derive(Debug, Clone)]
pub(super) struct Decider {
    /// Those of one group send the same decision of the same person under the same key.
    pub(super) group: usize,
    pub(super) name: String,
    pub(super) decision: &'static str,
    pub(super) args: Option<Value>,
    by_command_line: bool,
    pub(super) answers: Vec<Told>,
}

#[cfg(test)]
impl Decider {
    pub(super) fn of(group: usize, decision: &'static str, answers: Vec<Told>) -> Self {
        Self {
            group,
            name: format!("boss{group}"),
            decision,
            args: None,
            by_command_line: false,
            answers,
        }
    }
}

/// One hold that everybody decides at once.
pub(super) struct Storm<'a> {
    pub(super) address: SocketAddr,
    pub(super) cli: Option<&'a Path>,
    pub(super) approvers: &'a [Person],
    pub(super) hold: String,
    pub(super) request: String,
    pub(super) digest: String,
    pub(super) args: Value,
    pub(super) round: usize,
    pub(super) deciders: usize,
}

impl Storm<'_> {
    /// Everybody, with what they decide. Two at a time decide the same.
    pub(super) fn people(&self) -> Vec<Decider> {
        let by_hand = if self.cli.is_some() {
            BY_COMMAND_LINE
        } else {
            0
        };
        let people = (0..self.deciders).map(|n| {
            let by_command_line = n < by_hand;
            let group = if by_command_line {
                n
            } else {
                by_hand + (n - by_hand) / 2
            };
            let decision = match (group + self.round) % 3 {
                0 => "approve",
                1 => "reject",
                // The command line edits in an editor.
                _ if by_command_line => "approve",
                _ => "edit",
            };
            let edited = || {
                let mut args = self.args.clone();
                args["edited_by"] = json!(group);
                args
            };
            Decider {
                group,
                name: self.approvers[group % self.approvers.len()].name.clone(),
                decision,
                args: (decision == "edit").then(edited),
                by_command_line,
                answers: Vec::new(),
            }
        });
        people.collect()
    }

    /// Everybody decides at the same moment, and `meanwhile` happens; it is told how many have an answer.
    pub(super) fn blow(
        &self,
        people: &mut [Decider],
        meanwhile: impl FnOnce(&AtomicUsize) -> Result<()>,
    ) -> Result<()> {
        let together = Barrier::new(people.len() + 1);
        let answered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            for (n, person) in people.iter_mut().enumerate() {
                let (together, answered) = (&together, &answered);
                running.push(scope.spawn(move || {
                    let told = if person.by_command_line {
                        self.by_command_line(person, together)?
                    } else {
                        self.over_http(person, n % 2 == 0, together)
                    };
                    answered.fetch_add(usize::from(told.is_some()), Ordering::SeqCst);
                    person.answers.extend(told);
                    Ok::<(), anyhow::Error>(())
                }));
            }
            together.wait();
            let happened = meanwhile(&answered);
            for one in running {
                let joined = one.join();
                joined.map_err(|_| anyhow::anyhow!("a decider panicked"))??;
            }
            happened
        })
    }

    /// None if the connection was lost.
    fn over_http(&self, person: &Decider, by_hold: bool, together: &Barrier) -> Option<Told> {
        let who = &self.approvers[person.group % self.approvers.len()];
        let mut client = PlainClient::new(self.address, Some(&who.key));
        let connected = client.connect();
        let key = format!("round-{}-group-{}", self.round, person.group);
        let mut body = json!({ "decision": person.decision });
        if person.decision != "reject" {
            body["digest"] = json!(self.digest);
        }
        if let Some(args) = &person.args {
            body["args"] = args.clone();
        }
        let path = if by_hold {
            format!("/v1/holds/{}/decision", self.hold)
        } else {
            format!("/v1/requests/{}/resume", self.request)
        };
        together.wait();
        connected.ok()?;
        let headers = [("idempotency-key", key.as_str())];
        let answer = client.call("POST", &path, &headers, &body.to_string());
        answer.ok().map(Told::Answer)
    }

    /// None if the server could not be reached.
    fn by_command_line(&self, person: &Decider, together: &Barrier) -> Result<Option<Told>> {
        let who = &self.approvers[person.group % self.approvers.len()];
        let program = self.cli.context("nobody asked for the command line")?;
        let mut command = Command::new(program);
        let key = format!("round-{}-group-{}", self.round, person.group);
        command.args(["approvals", person.decision, &self.hold, "--no-wait"]);
        command.args(["--key", &key]);
        if person.decision == "approve" {
            command.args(["--yes", "--digest", &self.digest]);
        }
        command
            .env("STATEHOLD_URL", format!("http://{}", self.address))
            .env("STATEHOLD_TOKEN", &who.key)
            .stdin(Stdio::null());
        together.wait();
        let output = command.output()?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        // 6 is a server that cannot be reached, 1 an answer that broke off.
        Ok(match output.status.code() {
            Some(1 | 6) => None,
            code => Some(Told::Exit(code.unwrap_or(-1), said)),
        })
    }
}

/// Whether a program can decide holds.
pub fn can_decide(program: &Path) -> bool {
    let help = Command::new(program)
        .args(["approvals", "approve", "--help"])
        .stdin(Stdio::null())
        .output();
    help.is_ok_and(|output| output.status.success())
}

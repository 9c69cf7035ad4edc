//! `statehold demo`: the guided tour, played by this program on itself.
//!
//! Each step runs the command that a person would type, as a process of its own, on a server in a
//! temporary directory. Every claim is checked; a claim that fails ends the tour.

mod stage;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use serde_json::Value;

use super::answers::{elements, text};
use super::output::{CliOutput, TextTone};
use super::printable::{cell, printable};
use crate::exit::Exit;
use stage::{CommandResult, TourServer, TourStage};

/// The messages of bob and the expected answers.
const TALK: [(&str, &str); 3] = [
    ("What's 2+2", "2+2 is 4"),
    ("What's the temperature in Rahway, NJ", "Sunny, 72"),
    (
        "What's the square root of 121?",
        "The square root of 121 is 11",
    ),
];
const DANGEROUS: &str = "Delete user 7";
const DELETED: &str = "User 7 was deleted.";
/// The confirmation text of the dangerous action.
const CONFIRM: &str = "user 7";

const HELP: &str = "\
Starts a server with the demo agents in a temporary directory, talks to it, lets a dangerous action
wait for a person, kills the server if --crash is given, approves twice, and checks that the action
ran once. Needs no key, no internet and no other service. Ends with 0 if every claim held.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct DemoArgs {
    /// Kill the server (SIGKILL) while an approval waits, then start another.
    #[arg(long)]
    crash: bool,
    /// Do not pause for reading.
    #[arg(long)]
    fast: bool,
}

/// Prints the tour and counts the claims that held.
struct GuidedTour<'a> {
    output: &'a CliOutput,
    is_fast: bool,
    claims: usize,
}

impl DemoArgs {
    pub(super) fn run(&self, output: &CliOutput) -> anyhow::Result<Exit> {
        let begun = Instant::now();
        let mut tour = GuidedTour {
            output,
            is_fast: self.fast,
            claims: 0,
        };
        let stage = TourStage::new()?;
        let server = tour.start(&stage)?;
        let session = tour.talk(&stage)?;
        let mut waiting = stage.begin(&["chat", "-s", &session, "-m", DANGEROUS])?;
        let hold = tour.pause(&stage, &session)?;
        let server = if self.crash {
            let next = tour.crash(&stage, server, &session, &hold)?;
            waiting.wait_for_line("still waiting")?;
            next
        } else {
            server
        };
        tour.decide_twice(&stage, &session, &hold)?;
        tour.check_answer(waiting, self.crash)?;
        tour.look_inside(&stage, &session)?;
        server.stop()?;
        let seconds = begun.elapsed().as_secs_f64();
        let claims = tour.claims;
        tour.say(&format!("\n{claims} claims, all true, in {seconds:.1} s."))?;
        Ok(Exit::Done)
    }
}

impl GuidedTour<'_> {
    fn say(&self, text: &str) -> anyhow::Result<()> {
        self.output.line(text)
    }

    fn title(&self, text: &str) -> anyhow::Result<()> {
        self.pause_to_read();
        self.say(&format!("\n{}", TextTone::Strong.paint(text)))
    }

    /// Prints a command as it would be typed.
    fn command(&self, words: &str) -> anyhow::Result<()> {
        self.pause_to_read();
        self.say(&format!("$ {words}"))
    }

    fn pause_to_read(&self) {
        if !self.is_fast {
            stage::sleep_for(Duration::from_millis(900));
        }
    }

    /// Checks one claim. The tour ends if it fails.
    fn claim(&mut self, holds: bool, what: &str, found: &str) -> anyhow::Result<()> {
        ensure!(
            holds,
            "the tour claims: {what}\nbut found: {}",
            printable(found)
        );
        self.claims += 1;
        self.say(&format!("  {} {what}", TextTone::Good.paint("✓")))
    }

    fn start(&self, stage: &TourStage) -> anyhow::Result<TourServer> {
        self.title("1. Start: one program, no key, no internet")?;
        self.command("statehold dev")?;
        let server = stage.start_server()?;
        for line in server.greeting() {
            self.say(&printable(&line))?;
        }
        Ok(server)
    }

    /// Talks to three agents through one coordinator. Returns the session.
    fn talk(&mut self, stage: &TourStage) -> anyhow::Result<String> {
        self.title("2. Talk: a coordinator routes each turn to the right agent")?;
        self.command("statehold chat")?;
        let (first, rest) = TALK.split_first().expect("there is a first message");
        let told = stage.run(&["--json", "chat", "-m", first.0])?;
        let report = told.json()?;
        let session = text(&report, "session").to_owned();
        self.print_exchange(first.0, text(&report, "content"))?;
        self.claim(
            text(&report, "content") == first.1,
            "the answer is word for word the expected one",
            &told.out,
        )?;
        for (said, expected) in rest {
            let told = stage.run(&["chat", "-s", &session, "-m", said])?;
            self.print_exchange(said, told.out.trim())?;
            let what = "the answer is word for word the expected one";
            self.claim(told.out.trim() == *expected, what, &told.out)?;
        }
        let mut tasks = requests_by_task(&stage.tree(&session)?);
        tasks.sort();
        let expected = [("coordinator", 3), ("math-agent", 2), ("weather-agent", 1)];
        let expected = expected.map(|(agent, count)| (agent.to_owned(), count));
        let what = "one task of the coordinator with three requests; math-agent remembers two turns, weather-agent one";
        self.claim(tasks == expected, what, &format!("{tasks:?}"))?;
        Ok(session)
    }

    fn print_exchange(&self, said: &str, told: &str) -> anyhow::Result<()> {
        self.pause_to_read();
        self.say(&format!("bob> {said}"))?;
        let told = printable(told);
        self.say(&format!("coordinator> {told}"))
    }

    /// Waits until the dangerous action waits for a person. Returns the hold.
    fn pause(&mut self, stage: &TourStage, session: &str) -> anyhow::Result<Value> {
        self.title("3. Hit the pause: a dangerous action waits for a person")?;
        self.say(&format!("bob> {DANGEROUS}"))?;
        let hold = stage.open_hold(session)?;
        let alias = text(&hold, "alias").to_owned();
        let title = cell(text(&hold, "title"));
        self.say(&format!("coordinator> ⏸ This needs a person: {title}"))?;
        self.print_tree(stage, session)?;
        let chain = text(&hold, "chain").to_owned();
        let what = format!(
            "{alias} is open, and everything above it waits: {}",
            cell(&chain)
        );
        let way = statuses_above(&stage.tree(session)?, text(&hold, "id"));
        let is_paused = way == ["paused waiting", "paused held"];
        self.claim(is_paused, &what, &format!("{chain}: {way:?}"))?;
        let runs = stage.delete_runs(session)?;
        self.claim(runs == 0, "nothing was deleted", &runs.to_string())?;
        Ok(hold)
    }

    fn print_tree(&self, stage: &TourStage, session: &str) -> anyhow::Result<()> {
        for line in stage.draw_tree(session)? {
            self.say(&format!("    {line}"))?;
        }
        Ok(())
    }

    /// Kills the server and starts another on the same data.
    fn crash(
        &mut self,
        stage: &TourStage,
        server: TourServer,
        session: &str,
        hold: &Value,
    ) -> anyhow::Result<TourServer> {
        self.title("4. Pull the plug: kill -9, then start again")?;
        let before = stage.revision(session)?;
        self.command(&format!("kill -9 {}", server.pid()))?;
        server.kill()?;
        self.command("statehold dev")?;
        let server = stage.start_server()?;
        for line in server.greeting() {
            if line.contains("Recovered") || line.contains("Ready") {
                self.say(&printable(&line))?;
            }
        }
        let now = stage.open_hold(session)?;
        let is_same = now["id"] == hold["id"];
        let what = format!(
            "{} is still open, and nothing was lost",
            cell(text(hold, "alias"))
        );
        self.claim(is_same, &what, &now.to_string())?;
        let after = stage.revision(session)?;
        let what = format!("the session is at revision {before}, as before");
        self.claim(before == after, &what, &after.to_string())?;
        self.print_tree(stage, session)?;
        Ok(server)
    }

    fn decide_twice(
        &mut self,
        stage: &TourStage,
        session: &str,
        hold: &Value,
    ) -> anyhow::Result<()> {
        self.title("5. Decide twice, run once")?;
        let alias = text(hold, "alias");
        let name = format!("{session}/{alias}");
        self.command(&format!(
            "for i in 1 2; do statehold approvals approve {alias} --confirm \"{CONFIRM}\" & done; wait"
        ))?;
        let approve = ["approvals", "approve", &name, "--confirm", CONFIRM];
        let both = [stage.begin(&approve)?, stage.begin(&approve)?];
        let mut codes = Vec::new();
        for one in both {
            let ended = one.end()?;
            let said = if ended.code == 0 {
                &ended.out
            } else {
                &ended.err
            };
            for line in said.lines() {
                self.say(&printable(line))?;
            }
            codes.push(ended.code);
        }
        codes.sort_unstable();
        let what = "one approval counts, the other gets an error (exit 5)";
        self.claim(codes == [0, 5], what, &format!("exit codes {codes:?}"))
    }

    /// Checks the final answer of the chat that waited all the time.
    fn check_answer(
        &mut self,
        waiting: stage::RunningCommand,
        crashed: bool,
    ) -> anyhow::Result<()> {
        let CommandResult { code, out, err } = waiting.end()?;
        self.say(&format!("coordinator> {}", printable(out.trim())))?;
        let what = "bob, who waited all the time, gets the answer";
        self.claim(
            code == 0 && out.trim() == DELETED,
            what,
            &format!("{code}: {out}{err}"),
        )?;
        if crashed {
            let is_told = err.contains("connection lost") && err.contains("still waiting");
            let what = "his chat reconnected after the crash and kept waiting";
            self.claim(is_told, what, &err)?;
        }
        Ok(())
    }

    fn look_inside(&mut self, stage: &TourStage, session: &str) -> anyhow::Result<()> {
        self.title("6. Look at what the user never saw")?;
        let runs = stage.delete_runs(session)?;
        self.claim(
            runs == 1,
            "the delete ran once: app:demo.delete_runs is 1",
            &runs.to_string(),
        )?;
        let shown = stage.run(&["sessions", "show", session])?.out;
        let hidden = stage
            .run(&["sessions", "show", session, "--show-hidden"])?
            .out;
        let is_hidden = !shown.contains("delete_user") && hidden.contains("delete_user");
        self.claim(
            is_hidden,
            "the tool call is in the trace, and in nothing that bob can read",
            &shown,
        )?;
        self.command("statehold audit verify")?;
        let verified = stage.run(&["audit", "verify"])?;
        for line in verified.out.lines() {
            self.say(&printable(line))?;
        }
        let what = "every record is chained to the one before it";
        self.claim(verified.code == 0, what, &verified.err)?;
        self.title("What happened, as a tree")?;
        self.print_tree(stage, session)
    }
}

/// The agent of each task, and its number of requests. A task appears below every request that used
/// it.
fn requests_by_task(tree: &Value) -> Vec<(String, usize)> {
    fn count<'a>(tasks: &'a [Value], counts: &mut BTreeMap<&'a str, (String, usize)>) {
        for task in tasks {
            let requests = elements(task, "requests");
            let agent = || (text(task, "agent").to_owned(), 0);
            counts.entry(text(task, "id")).or_insert_with(agent).1 += requests.len();
            for request in requests {
                count(elements(request, "tasks"), counts);
            }
        }
    }
    let mut counts = BTreeMap::new();
    count(elements(tree, "tasks"), &mut counts);
    counts.into_values().collect()
}

/// The status of every task and request on the path to a hold. Empty if the hold is not in the
/// tree.
fn statuses_above(tree: &Value, hold: &str) -> Vec<String> {
    fn find(tasks: &[Value], hold: &str, way: &mut Vec<String>) -> bool {
        for task in tasks {
            for request in elements(task, "requests") {
                way.push(format!(
                    "{} {}",
                    text(task, "status"),
                    text(request, "status")
                ));
                let mut holds = elements(request, "holds").iter();
                let is_here = holds.any(|open| text(open, "id") == hold);
                if is_here || find(elements(request, "tasks"), hold, way) {
                    return true;
                }
                way.pop();
            }
        }
        false
    }
    let mut way = Vec::new();
    find(elements(tree, "tasks"), hold, &mut way);
    way
}

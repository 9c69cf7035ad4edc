//! Preparing a long history for a call against reading it: the server's own runner on its own store, in
//! this process, with an agent that remembers nothing and so gets all of its exchanges back, and with a
//! model that is told all of the conversation.

mod rig;

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use statehold_core::ids::{RequestId, SessionId};
use statehold_engine::testing;

use self::rig::{Kind, Rig};
use super::drive::{median, micros};
use super::listener::{Arrival, listen};

/// How many turns are behind the one that is measured.
const LENGTHS: [usize; 3] = [0, 10, 1_000];
/// As the runner reads.
const PAGE: usize = 500;

/// What was seen at one length.
#[derive(Debug, Default)]
struct Seen {
    /// From the start of a turn to the last byte of the call at the agent.
    arrival_us: Vec<f64>,
    /// Reading the same items through the engine alone.
    read_us: Vec<f64>,
    items: usize,
    read_bytes: usize,
    call_bytes: usize,
}

/// Measures, and gives the figures.
pub(crate) fn run(rounds: usize) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(rounds))
}

async fn measure(rounds: usize) -> Result<Value> {
    println!(
        "\npreparing a history: turns of 200 B asked, a tool call of 300 B with a result of 2 KB, 400 B \
         answered; {rounds} turns at each length"
    );
    let directory = tempfile::tempdir()?;
    let (address, arrivals) = listen()?;
    let rig = Rig::start(directory.path()).await?;
    let mut longest = Vec::new();
    for kind in Kind::ALL {
        longest.push(rig.filled(kind, LENGTHS[2]).await?);
    }
    let runner = rig.runner(&format!("http://{address}/v1")).await?;
    let mut seen: [[Seen; 3]; 2] = Default::default();
    // The first of each fills caches.
    for round in 0..=rounds {
        for ((kind, longest), seen) in Kind::ALL.into_iter().zip(&longest).zip(&mut seen) {
            for (turns, seen) in LENGTHS.into_iter().zip(seen) {
                // A few turns more make no difference to a long one.
                let (session, turns) = if turns == LENGTHS[2] {
                    (*longest, turns + round)
                } else {
                    (rig.filled(kind, turns).await?, turns)
                };
                // Whatever came before, each begins after a turn without a history.
                let before = rig.filled(kind, 0).await?;
                rig.turn(before, kind, 0, &arrivals).await?;
                let one = rig.turn(session, kind, turns, &arrivals).await?;
                if round > 0 {
                    seen.add(&one);
                }
            }
        }
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(report(&seen))
}

/// One turn that was measured.
struct One {
    arrival_us: u32,
    read_us: u32,
    items: usize,
    read_bytes: usize,
    call_bytes: usize,
}

impl Seen {
    fn add(&mut self, one: &One) {
        self.arrival_us.push(f64::from(one.arrival_us));
        self.read_us.push(f64::from(one.read_us));
        (self.items, self.read_bytes, self.call_bytes) =
            (one.items, one.read_bytes, one.call_bytes);
    }
}

impl Rig {
    /// Takes one turn after `turns` others, and reads what it had to read.
    async fn turn(
        &self,
        session: SessionId,
        kind: Kind,
        turns: usize,
        arrivals: &Receiver<Arrival>,
    ) -> Result<One> {
        let asked = self.text(200);
        let began = Instant::now();
        let (request, task) = self.begin(session, kind, &asked, None).await?;
        let wait = || arrivals.recv_timeout(Duration::from_secs(30));
        let arrival = tokio::task::block_in_place(wait).context("the agent was not called")?;
        let arrival_us = u32::try_from(arrival.at.duration_since(began).as_micros())?;
        let asked = arrival
            .body
            .windows(13)
            .filter(|window| window == br#""role":"user""#)
            .count();
        ensure!(asked == turns + 1, "{asked} messages of {turns} turns");
        self.until_ended(session, request).await?;
        let (mut items, mut read_bytes, mut before) = (0, 0, None);
        let began = Instant::now();
        loop {
            let page = testing::task_items(&self.engine, session, task, before, PAGE).await?;
            items += page.items.len();
            let bodies = page.items.iter().filter_map(|item| item.body.as_ref());
            read_bytes += bodies.map(Vec::len).sum::<usize>();
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        Ok(One {
            arrival_us,
            read_us: micros(began),
            items,
            read_bytes,
            call_bytes: arrival.body.len(),
        })
    }

    async fn until_ended(&self, session: SessionId, request: RequestId) -> Result<()> {
        loop {
            let detail = self.engine.request(&self.local, request).await?;
            if detail.request.status().is_final() {
                return Ok(());
            }
            let changed = self.engine.changed_after(session, detail.revision);
            tokio::time::timeout(Duration::from_secs(30), changed).await??;
        }
    }
}

fn report(seen: &[[Seen; 3]; 2]) -> Value {
    println!(
        "{:>6}  {:>6}  {:>6}  {:>8}  {:>8}  {:>11}  {:>12}  {:>10}  {:>6}",
        "kind",
        "turns",
        "items",
        "KB read",
        "KB sent",
        "to agent ms",
        "preparing ms",
        "reading ms",
        "ratio"
    );
    let mut lines = Vec::new();
    for (kind, seen) in Kind::ALL.into_iter().zip(seen) {
        let empty = median(&seen[0].arrival_us);
        for (turns, seen) in LENGTHS.into_iter().zip(seen) {
            let (arrival, read) = (median(&seen.arrival_us), median(&seen.read_us));
            // What is the same without a history is the turn itself, commits included.
            let preparing = (turns > 0).then_some(arrival - empty);
            let ratio = preparing.map(|preparing| preparing / read);
            let shown =
                |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
            let (kb_read, kb_sent) = (seen.read_bytes / 1_000, seen.call_bytes / 1_000);
            println!(
                "{:>6}  {turns:>6}  {:>6}  {kb_read:>8}  {kb_sent:>8}  {:>11.2}  {:>12}  {:>10.2}  {:>6}",
                kind.name(),
                seen.items,
                arrival / 1e3,
                shown(preparing.map(|us| us / 1e3)),
                read / 1e3,
                shown(ratio),
            );
            lines.push(json!({
                "kind": kind.name(), "turns": turns, "items": seen.items,
                "read_bytes": seen.read_bytes, "call_bytes": seen.call_bytes,
                "to_agent_us": arrival.round(), "preparing_us": preparing.map(f64::round),
                "read_us": read.round(),
                "ratio": ratio.map(|ratio| (ratio * 1_000.0).round() / 1_000.0),
            }));
        }
    }
    println!(
        "  to agent: from the start of a turn to the last byte of the call at the agent, two commits \
         included\n  preparing: the same without the time it takes where nothing was said before\n  \
         reading: the items of the task through the engine, in the same process"
    );
    Value::Array(lines)
}

//! `statehold approvals watch`: follows open holds, also across lost connections.

mod changes;
mod decision;
mod keys;
mod screen;

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use tokio::time::sleep;

use crate::cli::answers::{read, text};
use crate::cli::hold::HoldInfo;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone, terminal_columns};
use crate::client::Client;
use crate::exit::Exit;
use changes::{HoldChanges, WatchStep, WatchedChange};
use keys::{WatchKey, WatchKeys};
use screen::WatchScreen;

/// How often ages and deadlines are redrawn while nothing changes.
const TICK: Duration = Duration::from_secs(1);
/// The longest action shown on a line.
const ACTION_CHARS_MAX: usize = 80;

#[derive(Debug, Args)]
pub(in crate::cli) struct WatchArgs {
    /// Print each change as one line of JSON: {"change", "hold"}.
    #[arg(long)]
    jsonl: bool,
    /// End after this many changes. Holds that are open at the start count.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// The next event of `watch`.
enum WatchEvent {
    Step(WatchStep),
    Key(WatchKey),
    Tick,
}

impl WatchArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let is_drawn = output.is_terminal && !self.jsonl && !output.json;
        let mut changes = HoldChanges::open(client).await?;
        let mut keys = if is_drawn { WatchKeys::open()? } else { None };
        let mut screen = is_drawn.then(|| WatchScreen::new(client, keys.is_some()));
        let mut output = output.clone();
        if !is_drawn {
            output.note("following holds   (Ctrl-C ends)");
        }
        let mut count = 0;
        loop {
            let open = changes.open_holds().to_vec();
            let step = {
                // Keep the future across ticks: reconnecting takes longer than one tick.
                let mut next = std::pin::pin!(changes.next());
                loop {
                    output.times.now = Timestamp::now();
                    output.columns = terminal_columns();
                    if let Some(screen) = &mut screen {
                        screen.draw(&open, &output).await?;
                    }
                    let event = tokio::select! {
                        step = &mut next => WatchEvent::Step(step?),
                        key = next_key(&mut keys) => WatchEvent::Key(key?),
                        () = sleep(TICK) => WatchEvent::Tick,
                    };
                    match (event, &mut screen, &mut keys) {
                        (WatchEvent::Step(step), ..) => break step,
                        (WatchEvent::Key(WatchKey::Quit), ..) => return Ok(Exit::Done),
                        (WatchEvent::Key(key), Some(screen), Some(keys)) => {
                            if let Some(hold) = screen.take_key(key, &open) {
                                keys.pause()?;
                                decision::decide(key, &hold, client, &output).await?;
                                keys.begin()?;
                                screen.begin_anew();
                            }
                        }
                        (WatchEvent::Key(_) | WatchEvent::Tick, ..) => {}
                    }
                }
            };
            match step {
                WatchStep::Changed(change) => {
                    match &mut screen {
                        Some(screen) => screen.record_change(&change),
                        None => self.print(&change, &output)?,
                    }
                    count += 1;
                    if self.count == Some(count) {
                        return Ok(Exit::Done);
                    }
                }
                WatchStep::Lost(why) => match &mut screen {
                    Some(screen) => screen.set_connection_error(Some(&why)),
                    None => output.note(&format!("connection lost ({why}), retrying…")),
                },
                WatchStep::Back => match &mut screen {
                    Some(screen) => screen.set_connection_error(None),
                    None => output.note("reconnected"),
                },
            }
        }
    }

    fn print(&self, change: &WatchedChange, output: &CliOutput) -> anyhow::Result<()> {
        if self.jsonl || output.json {
            return output
                .json(&json!({ "change": change.word, "hold": change.hold }))
                .map(drop);
        }
        let hold: HoldInfo = read(&change.hold)?;
        let at = match &hold.decision {
            Some(decision) => decision.at.as_str(),
            None => text(&change.hold, "created_at"),
        };
        let mut table = TextTable::new(&[]);
        table.row(vec![
            TableCell::new(output.times.show(at)).tone(TextTone::Dim),
            TableCell::new(&change.word),
            TableCell::new(&hold.alias).tone(TextTone::Strong),
            TableCell::new(&hold.status).tone(TextTone::of_status(&hold.status)),
            TableCell::optional(hold.decision.as_ref().map(|decision| &decision.by)),
            TableCell::optional(hold.risk()),
            TableCell::shown(hold.summary(ACTION_CHARS_MAX)),
            TableCell::new(&hold.agent),
            TableCell::optional(hold.user.as_ref()),
            TableCell::new(&hold.session_id),
            TableCell::new(&hold.id),
        ]);
        output.table(&table)
    }
}

/// The next key of a person; never, without one.
async fn next_key(keys: &mut Option<WatchKeys>) -> anyhow::Result<WatchKey> {
    match keys {
        Some(keys) => keys.next().await,
        None => std::future::pending().await,
    }
}

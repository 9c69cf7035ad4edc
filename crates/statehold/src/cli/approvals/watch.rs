//! `statehold approvals watch`: follows what waits, also through lost connections.

mod changes;
mod screen;

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use tokio::time::timeout;

use crate::cli::answers::{read, text};
use crate::cli::hold::Hold;
use crate::cli::output::{Cell, Output, Table, Tone};
use crate::client::Client;
use crate::exit::Exit;
use changes::{Change, Changes, Step};
use screen::Screen;

/// How often ages and deadlines are counted on while nothing happens.
const TICK: Duration = Duration::from_secs(1);
/// How much of an action is shown on a line.
const ACTION_CHARS_MAX: usize = 80;

#[derive(Debug, Args)]
pub(in crate::cli) struct Watch {
    /// Print each change as one line of JSON: {"change", "hold"}.
    #[arg(long)]
    jsonl: bool,
    /// End after this many changes. What is open at the start counts.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl Watch {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let is_drawn = output.is_terminal && !self.jsonl && !output.json;
        let mut changes = Changes::open(client).await?;
        let mut screen = is_drawn.then(|| Screen::new(client));
        let mut output = output.clone();
        if !is_drawn {
            output.note(&format!("following holds{}   (Ctrl-C ends)", changes.how()));
        }
        let mut count = 0;
        loop {
            let open = changes.open_holds().to_vec();
            let step = {
                // Not dropped at each tick: coming back to a server takes longer than that.
                let mut next = std::pin::pin!(changes.next());
                loop {
                    output.times.now = Timestamp::now();
                    if let Some(screen) = &mut screen {
                        screen.draw(&open, &output).await?;
                    }
                    if let Ok(step) = timeout(TICK, &mut next).await {
                        break step?;
                    }
                }
            };
            match step {
                Step::Changed(change) => {
                    match &mut screen {
                        Some(screen) => screen.happened(&change),
                        None => self.print(&change, &output)?,
                    }
                    count += 1;
                    if self.count == Some(count) {
                        return Ok(Exit::Done);
                    }
                }
                Step::Lost(why) => match &mut screen {
                    Some(screen) => screen.lost(Some(&why)),
                    None => output.note(&format!("connection lost ({why}), retrying…")),
                },
                Step::Back => match &mut screen {
                    Some(screen) => screen.lost(None),
                    None => output.note("reconnected"),
                },
            }
        }
    }

    fn print(&self, change: &Change, output: &Output) -> anyhow::Result<()> {
        if self.jsonl || output.json {
            return output.json(&json!({ "change": change.word, "hold": change.hold }));
        }
        let hold: Hold = read(&change.hold)?;
        let at = match &hold.decision {
            Some(decision) => decision.at.as_str(),
            None => text(&change.hold, "created_at"),
        };
        let mut table = Table::new(&[]);
        table.row(vec![
            Cell::new(output.times.show(at)).tone(Tone::Dim),
            Cell::new(&change.word),
            Cell::new(&hold.alias).tone(Tone::Strong),
            Cell::new(&hold.status).tone(Tone::of_status(&hold.status)),
            Cell::optional(hold.decision.as_ref().map(|decision| &decision.by)),
            Cell::optional(hold.risk()),
            Cell::shown(hold.summary(ACTION_CHARS_MAX)),
            Cell::new(&hold.agent),
            Cell::optional(hold.user.as_ref()),
            Cell::new(&hold.session_id),
            Cell::new(&hold.id),
        ]);
        output.table(&table)
    }
}

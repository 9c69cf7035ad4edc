//! `statehold tasks show`.

use clap::Args;
use serde_json::Value;

use crate::cli::answers::{LastRows, LastRowsArgs, elements, text};
use crate::cli::items;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::cli::resolve::{self, IdKind};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct TasksShowArgs {
    /// The task: T4, SESSION/T4, or its id or a part of it.
    task: String,
    #[command(flatten)]
    last: LastRowsArgs,
    /// Print every item, also hidden ones. Needs `operator` and is audited.
    #[arg(long = "show-hidden")]
    hidden: bool,
}

impl TasksShowArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let found = resolve::one_of(client, &self.task, &[IdKind::Task]).await?;
        let path = format!("/v1/tasks/{}", found.id);
        let last = self.last.fetch(client, (&path, "history"), self.hidden);
        let LastRows {
            answer: mut task,
            rows: history,
            earlier,
        } = last.await?;
        if output.json {
            task["history"] = history.into();
            return output.json(&task);
        }
        let mut table = TextTable::facts(facts(&task), TextTone::Dim);
        if !output.is_terminal {
            for item in &history {
                table.row(items::for_pipes("item", item, output));
            }
        }
        output.table(&table)?;
        if output.is_terminal {
            for item in &history {
                output.line(&format!("\n{}", items::for_people(item, output)))?;
            }
            if history.is_empty() {
                output.note("\nAll items are hidden; operators see them with: --show-hidden");
            }
        }
        items::print_failures(elements(&task, "failures"), output)?;
        if let Some(flag) = earlier {
            output.note(&format!("There are earlier items: {flag}"));
        }
        Ok(Exit::Done)
    }
}

fn facts(task: &Value) -> Vec<(&'static str, TableCell)> {
    let of = |field: &str| TableCell::of(&task[field]);
    let waits: Vec<&str> = elements(task, "pending")
        .iter()
        .map(|hold| text(hold, "alias"))
        .collect();
    let mut facts = vec![
        (
            "task",
            TableCell::new(format!("{}   {}", text(task, "alias"), text(task, "id")))
                .tone(TextTone::Strong),
        ),
        ("agent", of("agent")),
        ("session", of("session_id")),
        ("status", TableCell::status(text(task, "status"))),
        ("live request", of("live_request_id")),
        ("last outcome", of("last_outcome")),
    ];
    if !waits.is_empty() {
        facts.push((
            "waits for",
            TableCell::new(waits.join(", ")).tone(TextTone::Warning),
        ));
    }
    if !task["state"].is_null() {
        facts.push(("state", TableCell::new(task["state"].to_string())));
    }
    facts
}

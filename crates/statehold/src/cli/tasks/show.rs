//! `statehold tasks show`.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::answers::{PAGE_MAX, elements, text};
use crate::cli::items;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::cli::resolve::{self, IdKind};
use crate::client::{Client, with_query};
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct TasksShowArgs {
    /// The task: T4, SESSION/T4, or its id or a part of it.
    task: String,
    /// How many items to print, counted from the last.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print every item, also hidden ones. Needs `operator` and is audited.
    #[arg(long = "show-hidden")]
    hidden: bool,
}

impl TasksShowArgs {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        let found = resolve::one_of(client, &self.task, &[IdKind::Task]).await?;
        let (mut task, has_earlier) = self.read(client, &found.id).await?;
        if output.json {
            output.json(&task)?;
            return Ok(Exit::Done);
        }
        let history = task["history"].take();
        let history = history.as_array().map_or(&[][..], Vec::as_slice);
        let mut table = TextTable::new(&[]);
        for (name, value) in facts(&task) {
            table.row(vec![TableCell::new(name).tone(TextTone::Dim), value]);
        }
        if !output.is_terminal {
            for item in history {
                table.row(items::for_pipes("item", item, output));
            }
        }
        output.table(&table)?;
        if output.is_terminal {
            for item in history {
                output.line(&format!("\n{}", items::for_people(item, output)))?;
            }
            if history.is_empty() {
                output.note("\nAll items are hidden; operators see them with: --show-hidden");
            }
        }
        if has_earlier {
            output.note("There are earlier items: --limit COUNT");
        }
        Ok(Exit::Done)
    }

    /// The task with its last items, oldest first, and whether there are earlier ones.
    async fn read(&self, client: &Client, id: &str) -> anyhow::Result<(Value, bool)> {
        let limit = usize::try_from(self.limit)?;
        let view = self.hidden.then(|| "trace".to_owned());
        let mut history: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let missing = (limit - history.len()).min(PAGE_MAX);
            let parameters = [
                ("view", view.clone()),
                ("cursor", cursor.take()),
                ("limit", Some(missing.to_string())),
            ];
            let path = with_query(&format!("/v1/tasks/{id}"), &parameters);
            let mut task = client.get(&path).await?.body;
            let page = elements(&task, "history");
            history.splice(0..0, page.iter().take(missing).cloned());
            cursor = task["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || history.len() >= limit {
                task["history"] = json!(history);
                return Ok((task, cursor.is_some()));
            }
        }
    }
}

fn facts(task: &Value) -> Vec<(&'static str, TableCell)> {
    let status = text(task, "status");
    let of = |field: &str| TableCell::optional(task[field].as_str());
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
        (
            "status",
            TableCell::new(status).tone(TextTone::of_status(status)),
        ),
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

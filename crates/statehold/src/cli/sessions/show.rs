//! `statehold sessions show`.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::answers::{LastRows, LastRowsArgs, elements, text};
use crate::cli::items;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::cli::printable::cell;
use crate::cli::resolve::{self, exact_name, short};
use crate::cli::tree::{all_requests, open_holds};
use crate::client::Client;
use crate::exit::Exit;

/// How many open holds are fetched for their title.
const HOLDS_MAX: usize = 20;

#[derive(Debug, Args)]
pub(in crate::cli) struct SessionsShowArgs {
    /// The id, a beginning of it that no other session has, or the name.
    session: String,
    #[command(flatten)]
    last: LastRowsArgs,
    /// Print every item, also hidden ones. Needs `operator` and is audited.
    #[arg(long = "show-hidden")]
    hidden: bool,
}

impl SessionsShowArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let id = resolve::session(client, &self.session).await?;
        let session = client.get(&format!("/v1/sessions/{id}")).await?.body;
        let tree = client.get(&format!("/v1/sessions/{id}/tree")).await?.body;
        let holds = detailed_holds(client, &tree).await?;
        let path = format!("/v1/sessions/{id}/messages");
        let last = self.last.fetch(client, (&path, "messages"), self.hidden);
        let LastRows {
            answer,
            rows: mut messages,
            earlier,
        } = last.await?;
        let failures = elements(&answer, "failures");
        if output.json {
            let mut shown = json!({ "session": session, "holds": holds, "messages": messages });
            if self.hidden {
                shown["failures"] = failures.into();
            }
            return output.json(&shown);
        }
        name_agents(&mut messages, &tree);
        if output.is_terminal {
            print_for_people(&session, &holds, &messages, output)?;
        } else {
            print_for_pipes(&session, &holds, &messages, output)?;
        }
        items::print_failures(failures, output)?;
        let has_failed = all_requests(elements(&tree, "tasks"))
            .into_iter()
            .any(|request| text(request, "status") == "failed");
        if has_failed && !self.hidden {
            output.note(&format!(
                "A request failed. Operators see why with: statehold sessions show {} --show-hidden",
                cell(&short(&id))
            ));
        }
        if let Some(flag) = earlier {
            output.note(&format!("There are earlier messages: {flag}"));
        }
        Ok(Exit::Done)
    }
}

/// The open holds of a session, with the details that the caller may see.
async fn detailed_holds(client: &Client, tree: &Value) -> anyhow::Result<Vec<Value>> {
    let mut open = collect_open(elements(tree, "tasks"));
    for hold in open.iter_mut().take(HOLDS_MAX) {
        let Some(id) = hold["id"].as_str() else {
            continue;
        };
        // The hold may be decided meanwhile, or hidden from this key: then its alias must do.
        if let Ok(whole) = client.get(&format!("/v1/holds/{id}")).await {
            *hold = whole.body;
        }
    }
    Ok(open)
}

/// Says of each message and item which agent's it is, as far as the tree has its task.
fn name_agents(messages: &mut [Value], tree: &Value) {
    let mut names = BTreeMap::new();
    let mut open: Vec<&Value> = elements(tree, "tasks").iter().collect();
    while let Some(task) = open.pop() {
        let name = format!("{} {}", text(task, "alias"), text(task, "agent"));
        names.insert(text(task, "id").to_owned(), name);
        let requests = elements(task, "requests").iter();
        open.extend(requests.flat_map(|request| elements(request, "tasks")));
    }
    for message in messages {
        if let Some(name) = names.get(text(message, "task_id")) {
            message["agent"] = name.as_str().into();
        }
    }
}

fn collect_open(tasks: &[Value]) -> Vec<Value> {
    open_holds(all_requests(tasks))
        .into_iter()
        .cloned()
        .collect()
}

fn facts(session: &Value, output: &CliOutput) -> Vec<(&'static str, TableCell)> {
    let labels = session["labels"].as_object().into_iter().flatten();
    let labels: Vec<String> = labels
        .map(|(key, value)| format!("{key}:{}", value.as_str().unwrap_or_default()))
        .collect();
    let mut facts = vec![
        (
            "session",
            TableCell::of(&session["id"]).tone(TextTone::Strong),
        ),
        ("name", TableCell::of(&session["name"])),
        ("app", TableCell::of(&session["app"])),
        ("user", TableCell::of(&session["user"])),
        ("agent", TableCell::of(&session["agent"])),
        ("status", TableCell::status(text(session, "status"))),
        ("revision", TableCell::new(session["revision"].to_string())),
        ("created", output.time(&session["created_at"])),
        ("updated", output.time(&session["updated_at"])),
    ];
    if !labels.is_empty() {
        facts.push(("labels", TableCell::new(labels.join(", "))));
    }
    if session["expires_at"].is_string() {
        facts.push(("expires", output.time(&session["expires_at"])));
    }
    facts
}

fn print_for_people(
    session: &Value,
    holds: &[Value],
    messages: &[Value],
    output: &CliOutput,
) -> anyhow::Result<()> {
    output.table(&TextTable::facts(facts(session, output), TextTone::Dim))?;
    if !holds.is_empty() {
        output.line(&format!(
            "\n{}",
            TextTone::Warning.paint("waits for a person")
        ))?;
        let mut table = TextTable::new(&[]);
        for hold in holds {
            let name = exact_name(text(session, "id"), text(hold, "alias"));
            table.row(vec![
                TableCell::new("  ⏸"),
                TableCell::new(name).tone(TextTone::Strong),
                TableCell::of(&hold["kind"]),
                TableCell::of(&hold["title"]),
            ]);
        }
        output.table(&table)?;
    }
    for message in messages {
        output.line(&format!("\n{}", items::for_people(message, output)))?;
    }
    Ok(())
}

fn hold_cells(hold: &Value) -> Vec<TableCell> {
    ["alias", "kind", "title", "id"]
        .into_iter()
        .map(|field| TableCell::of(&hold[field]))
        .collect()
}

/// Each line begins with its subject, so that `grep` and `cut` can take it apart.
fn print_for_pipes(
    session: &Value,
    holds: &[Value],
    messages: &[Value],
    output: &CliOutput,
) -> anyhow::Result<()> {
    let mut table = TextTable::facts(facts(session, output), TextTone::Plain);
    for hold in holds {
        let mut cells = vec![TableCell::new("hold")];
        cells.extend(hold_cells(hold));
        table.row(cells);
    }
    for message in messages {
        table.row(items::for_pipes("message", message, output));
    }
    output.table(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_holds_are_found_at_every_depth() {
        let leaf = json!({ "holds": [{ "id": "hld_1", "status": "open" }, { "id": "hld_2", "status": "approved" }], "tasks": [] });
        let tasks = json!([{ "requests": [{ "holds": [], "tasks": [{ "requests": [leaf] }] }] }]);
        let open = collect_open(tasks.as_array().expect("a list"));
        assert_eq!(open, [json!({ "id": "hld_1", "status": "open" })]);
    }
}

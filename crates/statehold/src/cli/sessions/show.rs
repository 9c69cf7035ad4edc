//! `statehold sessions show`.

use clap::Args;
use serde_json::{Value, json};

use super::SessionInfo;
use crate::cli::answers::{PAGE_MAX, elements, read};
use crate::cli::items;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::cli::resolve;
use crate::client::{Client, with_query};
use crate::exit::Exit;

/// How many open holds are fetched for their title.
const HOLDS_MAX: usize = 20;

#[derive(Debug, Args)]
pub(in crate::cli) struct SessionsShowArgs {
    /// The id, a beginning of it that no other session has, or the name.
    session: String,
    /// How many messages to print, counted from the last.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print every item, also hidden ones. Needs `operator` and is audited.
    #[arg(long = "show-hidden")]
    hidden: bool,
}

impl SessionsShowArgs {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        let id = resolve::session(client, &self.session).await?;
        let session = client.get(&format!("/v1/sessions/{id}")).await?.body;
        let holds = open_holds(client, &id).await?;
        let (messages, has_earlier) = self.messages(client, &id).await?;
        if output.json {
            output.json(&json!({ "session": session, "holds": holds, "messages": messages }))?;
            return Ok(Exit::Done);
        }
        let session: SessionInfo = read(&session)?;
        if output.is_terminal {
            print_for_people(&session, &holds, &messages, output)?;
        } else {
            print_for_pipes(&session, &holds, &messages, output)?;
        }
        if has_earlier {
            output.note("There are earlier messages: --limit COUNT");
        }
        Ok(Exit::Done)
    }

    /// The last messages, oldest first, and whether there are earlier ones.
    async fn messages(&self, client: &Client, id: &str) -> anyhow::Result<(Vec<Value>, bool)> {
        let limit = usize::try_from(self.limit)?;
        let view = self.hidden.then(|| "trace".to_owned());
        let mut messages: Vec<Value> = Vec::new();
        let mut cursor = None;
        loop {
            let missing = (limit - messages.len()).min(PAGE_MAX);
            let parameters = [
                ("view", view.clone()),
                ("cursor", cursor.take()),
                ("limit", Some(missing.to_string())),
            ];
            let path = with_query(&format!("/v1/sessions/{id}/messages"), &parameters);
            let answer = client.get(&path).await?.body;
            let page = elements(&answer, "messages");
            messages.splice(0..0, page.iter().take(missing).cloned());
            cursor = answer["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || messages.len() >= limit {
                return Ok((messages, cursor.is_some()));
            }
        }
    }
}

/// The open holds of a session, with the details that the caller may see.
async fn open_holds(client: &Client, session: &str) -> anyhow::Result<Vec<Value>> {
    let tree = client.get(&format!("/v1/sessions/{session}/tree")).await?;
    let mut open = Vec::new();
    collect_open(elements(&tree.body, "tasks"), &mut open);
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

fn collect_open(tasks: &[Value], open: &mut Vec<Value>) {
    for task in tasks {
        for request in elements(task, "requests") {
            let holds = elements(request, "holds").iter();
            open.extend(holds.filter(|hold| hold["status"] == "open").cloned());
            collect_open(elements(request, "tasks"), open);
        }
    }
}

fn facts(session: &SessionInfo, output: &CliOutput) -> Vec<(&'static str, TableCell)> {
    let labels: Vec<String> = session
        .labels
        .iter()
        .map(|(key, value)| format!("{key}:{value}"))
        .collect();
    let time = |text: &str| TableCell::new(output.times.show(text));
    let mut facts = vec![
        (
            "session",
            TableCell::new(&session.id).tone(TextTone::Strong),
        ),
        ("name", TableCell::optional(session.name.as_ref())),
        ("app", TableCell::new(&session.app)),
        ("user", TableCell::new(&session.user)),
        ("agent", TableCell::new(&session.agent)),
        (
            "status",
            TableCell::new(&session.status).tone(TextTone::of_status(&session.status)),
        ),
        ("revision", TableCell::new(session.revision.to_string())),
        ("created", time(&session.created_at)),
        ("updated", time(&session.updated_at)),
    ];
    if !labels.is_empty() {
        facts.push(("labels", TableCell::new(labels.join(", "))));
    }
    if let Some(expires_at) = &session.expires_at {
        facts.push(("expires", time(expires_at)));
    }
    facts
}

fn print_for_people(
    session: &SessionInfo,
    holds: &[Value],
    messages: &[Value],
    output: &CliOutput,
) -> anyhow::Result<()> {
    let mut header = TextTable::new(&[]);
    for (name, value) in facts(session, output) {
        header.row(vec![TableCell::new(name).tone(TextTone::Dim), value]);
    }
    output.table(&header)?;
    if !holds.is_empty() {
        output.line(&format!(
            "\n{}",
            TextTone::Warning.paint("waits for a person")
        ))?;
        let mut table = TextTable::new(&[]);
        for hold in holds {
            let mut cells = vec![TableCell::new("  ⏸")];
            cells.extend(hold_cells(hold));
            table.row(cells);
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
        .map(|field| TableCell::optional(hold[field].as_str()))
        .collect()
}

/// Each line begins with its subject, so that `grep` and `cut` can take it apart.
fn print_for_pipes(
    session: &SessionInfo,
    holds: &[Value],
    messages: &[Value],
    output: &CliOutput,
) -> anyhow::Result<()> {
    let mut table = TextTable::new(&[]);
    for (name, value) in facts(session, output) {
        table.row(vec![TableCell::new(name), value]);
    }
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
        let mut open = Vec::new();
        collect_open(tasks.as_array().expect("a list"), &mut open);
        assert_eq!(open, [json!({ "id": "hld_1", "status": "open" })]);
    }
}

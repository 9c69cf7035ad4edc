//! `statehold sessions show`.

use clap::Args;
use serde_json::{Value, json};

use super::list::PAGE_MAX;
use super::resolve::resolve;
use super::{Session, elements, read};
use crate::cli::output::{Cell, Output, Table, Tone};
use crate::cli::printable::{cell, excerpt, printable};
use crate::client::{Client, with_query};
use crate::exit::Exit;

/// How many open holds are asked for their title.
const HOLDS_MAX: usize = 20;
/// How much of arguments and results is shown.
const EXCERPT_CHARS_MAX: usize = 160;

#[derive(Debug, Args)]
pub(in crate::cli) struct Show {
    /// The id, or a beginning of it that no other session has.
    session: String,
    /// How many messages to print, counted from the last.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print every item, also those that the client never sees. Needs `operator` and is audited.
    #[arg(long = "show-hidden")]
    hidden: bool,
}

impl Show {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let id = resolve(client, &self.session).await?;
        let session = client.get(&format!("/v1/sessions/{id}")).await?.body;
        let holds = open_holds(client, &id).await?;
        let (messages, has_earlier) = self.messages(client, &id).await?;
        if output.json {
            output.json(&json!({ "session": session, "holds": holds, "messages": messages }))?;
            return Ok(Exit::Done);
        }
        let session: Session = read(&session)?;
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

/// The open holds of a session, with what the caller may know about them.
async fn open_holds(client: &Client, session: &str) -> anyhow::Result<Vec<Value>> {
    let tree = client.get(&format!("/v1/sessions/{session}/tree")).await?;
    let mut open = Vec::new();
    collect_open(elements(&tree.body, "tasks"), &mut open);
    for hold in open.iter_mut().take(HOLDS_MAX) {
        let Some(id) = hold["id"].as_str() else {
            continue;
        };
        // It may have been decided meanwhile, or be hidden from this key: then the name must do.
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

fn facts(session: &Session, output: &Output) -> Vec<(&'static str, Cell)> {
    let labels: Vec<String> = session
        .labels
        .iter()
        .map(|(key, value)| format!("{key}:{value}"))
        .collect();
    let time = |text: &str| Cell::new(output.times.show(text));
    let mut facts = vec![
        ("session", Cell::new(&session.id).tone(Tone::Strong)),
        ("name", Cell::optional(session.name.as_ref())),
        ("app", Cell::new(&session.app)),
        ("user", Cell::new(&session.user)),
        ("agent", Cell::new(&session.agent)),
        (
            "status",
            Cell::new(&session.status).tone(Tone::of_status(&session.status)),
        ),
        ("revision", Cell::new(session.revision.to_string())),
        ("created", time(&session.created_at)),
        ("updated", time(&session.updated_at)),
    ];
    if !labels.is_empty() {
        facts.push(("labels", Cell::new(labels.join(", "))));
    }
    if let Some(expires_at) = &session.expires_at {
        facts.push(("expires", time(expires_at)));
    }
    facts
}

fn print_for_people(
    session: &Session,
    holds: &[Value],
    messages: &[Value],
    output: &Output,
) -> anyhow::Result<()> {
    let mut header = Table::new(&[]);
    for (name, value) in facts(session, output) {
        header.row(vec![Cell::new(name).tone(Tone::Dim), value]);
    }
    output.table(&header)?;
    if !holds.is_empty() {
        output.line(&format!("\n{}", Tone::Warning.paint("waits for a person")))?;
        let mut table = Table::new(&[]);
        for hold in holds {
            let mut cells = vec![Cell::new("  ⏸")];
            cells.extend(hold_cells(hold));
            table.row(cells);
        }
        output.table(&table)?;
    }
    for message in messages {
        output.line(&format!("\n{}", message_for_people(message, output)))?;
    }
    Ok(())
}

fn hold_cells(hold: &Value) -> Vec<Cell> {
    ["alias", "kind", "title", "id"]
        .into_iter()
        .map(|field| Cell::optional(hold[field].as_str()))
        .collect()
}

/// A line that says who and when, and the words below it.
fn message_for_people(message: &Value, output: &Output) -> String {
    let time = output.times.show(text(message, "created_at"));
    let is_hidden = message["visibility"] == "hidden";
    let head = format!(
        "{}{}  {}",
        if is_hidden { "┆ hidden  " } else { "" },
        cell(&who(message)),
        cell(&time)
    );
    let tone = if is_hidden { Tone::Dim } else { Tone::Strong };
    let indent = if is_hidden { "┆ " } else { "  " };
    let words = printable(&words(message));
    let lines = words.lines().map(|line| format!("\n{indent}{line}"));
    tone.paint(&head) + &lines.collect::<String>()
}

fn who(message: &Value) -> String {
    let kind = message["kind"].as_str().filter(|kind| *kind != "message");
    let role = message["role"].as_str();
    let what = kind.or(role).unwrap_or("message");
    match message["agent"].as_str() {
        Some(agent) if role != Some("user") => format!("{agent} ({what})"),
        Some(_) | None => what.to_owned(),
    }
}

/// What an item says: the content of a message, or what was called with what.
fn words(item: &Value) -> String {
    let short = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => excerpt(text, EXCERPT_CHARS_MAX),
        other => excerpt(&other.to_string(), EXCERPT_CHARS_MAX),
    };
    match text(item, "kind") {
        "tool_call" => format!("{}({})", text(item, "name"), short(&item["arguments"])),
        "tool_result" => format!("→ {}", short(&item["result"])),
        _ => match &item["content"] {
            Value::Null => short(&item["data"]),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        },
    }
}

/// Each line begins with what it is about, so that `grep` and `cut` can take it apart.
fn print_for_pipes(
    session: &Session,
    holds: &[Value],
    messages: &[Value],
    output: &Output,
) -> anyhow::Result<()> {
    let mut table = Table::new(&[]);
    for (name, value) in facts(session, output) {
        table.row(vec![Cell::new(name), value]);
    }
    for hold in holds {
        let mut cells = vec![Cell::new("hold")];
        cells.extend(hold_cells(hold));
        table.row(cells);
    }
    for message in messages {
        table.row(vec![
            Cell::new("message"),
            Cell::new(message["seq"].to_string()),
            Cell::new(output.times.show(text(message, "created_at"))),
            Cell::new(message["visibility"].as_str().unwrap_or("visible")),
            Cell::new(who(message)),
            Cell::new(words(message)),
        ]);
    }
    output.table(&table)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
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

    #[test]
    fn an_item_says_what_it_is() {
        for (item, who_says, what) in [
            (
                json!({ "role": "user", "agent": "c", "content": "hi" }),
                "user",
                "hi",
            ),
            (
                json!({ "role": "assistant", "agent": "c", "content": "hi" }),
                "c (assistant)",
                "hi",
            ),
            (
                json!({ "kind": "tool_call", "agent": "u", "name": "delete_user", "arguments": { "id": 7 } }),
                "u (tool_call)",
                "delete_user({\"id\":7})",
            ),
            (
                json!({ "kind": "tool_result", "result": "ok" }),
                "tool_result",
                "→ ok",
            ),
            (
                json!({ "kind": "note", "agent": "u", "data": [1] }),
                "u (note)",
                "[1]",
            ),
        ] {
            assert_eq!(
                (who(&item).as_str(), words(&item).as_str()),
                (who_says, what)
            );
        }
    }
}

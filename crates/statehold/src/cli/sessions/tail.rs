//! `statehold sessions tail`: follows a session, also across lost connections.

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use crate::cli::answers::{UNKNOWN_FORMAT, elements};
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::cli::printable::cell;
use crate::cli::resolve;
use crate::client::{Client, Feed, FeedStep};
use crate::exit::Exit;

/// The longest text of one event.
const EVENT_CHARS_MAX: usize = 100;

#[derive(Debug, Args)]
pub(in crate::cli) struct SessionsTailArgs {
    /// The id, a beginning of it that no other session has, or the name.
    session: String,
    /// Begin after this revision instead of now; 0 is the beginning.
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    /// End after this many records.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print each record as one line of JSON.
    #[arg(long)]
    jsonl: bool,
}

impl SessionsTailArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let id = resolve::session(client, &self.session).await?;
        let session = client.get(&format!("/v1/sessions/{id}")).await?.body;
        let revision = session["revision"].as_u64().context(UNKNOWN_FORMAT)?;
        // Start at a known revision: a connection lost before the first record then loses none.
        let after = self.after.unwrap_or(revision);
        let path = format!("/v1/sessions/{id}/events");
        let mut feed = Feed::open(client, &path, Some(after.to_string())).await?;
        output.note(&format!(
            "following {} after revision {after}   (Ctrl-C ends)",
            cell(&id)
        ));
        let mut count = 0;
        while self.count != Some(count) {
            match feed.next().await? {
                FeedStep::Event(event) if event.kind == "record" => {
                    self.print(&event.data, output)?;
                    count += 1;
                }
                // Skip the streamed words of an answer: its record repeats them whole.
                FeedStep::Event(_) => {}
                FeedStep::Lost { why } => {
                    output.note(&format!("connection lost ({}), retrying…", cell(&why)));
                }
                FeedStep::Back => output.note("reconnected"),
            }
        }
        Ok(Exit::Done)
    }

    fn print(&self, data: &str, output: &CliOutput) -> anyhow::Result<()> {
        let record: Value = serde_json::from_str(data)?;
        if self.jsonl || output.json {
            return output.json(&record).map(drop);
        }
        let events: Vec<String> = elements(&record, "events").iter().map(summary).collect();
        let mut table = TextTable::new(&[]);
        table.row(vec![
            TableCell::new(record["revision"].to_string()).tone(TextTone::Dim),
            output.time(&record["at"]).tone(TextTone::Dim),
            TableCell::of(&record["command"]).tone(TextTone::Strong),
            TableCell::new(events.join("; ")),
        ]);
        output.table(&table)
    }
}

/// One event in a few words: its type, and as many fields as fit.
fn summary(event: &Value) -> String {
    let mut words = vec![event["type"].as_str().unwrap_or("-").to_owned()];
    for (field, value) in event.as_object().into_iter().flatten() {
        match value {
            _ if field == "type" => {}
            Value::Null => {}
            Value::String(text) => words.push(format!("{field}={text}")),
            Value::Bool(_) | Value::Number(_) => words.push(format!("{field}={value}")),
            Value::Array(items) if field == "items" => {
                words.extend(items.iter().map(item));
            }
            Value::Object(hold) if field == "hold" => {
                let title = hold.get("title").and_then(Value::as_str).unwrap_or("-");
                words.push(format!("hold={title:?}"));
            }
            Value::Array(_) | Value::Object(_) => words.push(format!("{field}=…")),
        }
    }
    let whole = words.join(" ");
    if whole.chars().count() <= EVENT_CHARS_MAX {
        return whole;
    }
    whole.chars().take(EVENT_CHARS_MAX - 1).collect::<String>() + "…"
}

fn item(item: &Value) -> String {
    let of = |field: &str| item[field].as_str();
    let who = of("role").or(of("kind")).unwrap_or("item");
    match of("content").or(of("name")) {
        Some(what) => format!("{who}: {what:?}"),
        None => who.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_its_type_and_what_fits() {
        let started =
            json!({ "type": "request_started", "request": "req_1", "number": 2, "note": null });
        assert_eq!(summary(&started), "request_started request=req_1 number=2");
        let items = json!({ "type": "items_appended", "items": [{ "role": "user", "content": "hi" }, { "kind": "tool_call", "name": "f" }] });
        assert_eq!(
            summary(&items),
            "items_appended user: \"hi\" tool_call: \"f\""
        );
        let long = json!({ "type": "state_put", "key": "k".repeat(200) });
        assert_eq!(summary(&long).chars().count(), EVENT_CHARS_MAX);
    }
}

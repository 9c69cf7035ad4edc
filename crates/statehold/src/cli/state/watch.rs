//! `statehold state watch`: follows the writes of a session, also across lost connections.

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::answers::{UNKNOWN_FORMAT, elements, text};
use crate::cli::diff::VALUE_CHARS_MAX;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::cli::printable::{cell, excerpt};
use crate::cli::resolve;
use crate::client::{Client, Feed, FeedStep};
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct StateWatchArgs {
    /// Only this key.
    key: Option<String>,
    /// The session: its id, a part of it, or its name.
    #[arg(short, long, value_name = "SESSION")]
    session: String,
    /// Begin after this revision instead of now; 0 is the beginning.
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    /// End after this many writes.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print each write as one line of JSON.
    #[arg(long)]
    jsonl: bool,
}

impl StateWatchArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let id = resolve::session(client, &self.session).await?;
        let session = client.get(&format!("/v1/sessions/{id}")).await?.body;
        let revision = session["revision"].as_u64().context(UNKNOWN_FORMAT)?;
        // Start at a known revision: a connection lost before the first record then loses none.
        let after = self.after.unwrap_or(revision);
        let path = format!("/v1/sessions/{id}/events");
        let mut feed = Feed::open(client, &path, Some(after.to_string())).await?;
        output.note(&format!(
            "following the state of {} after revision {after}   (Ctrl-C ends)",
            cell(&id)
        ));
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            match feed.next().await? {
                FeedStep::Event(event) if event.kind == "record" => {
                    let record: Value = serde_json::from_str(&event.data)?;
                    for write in self.writes(client, &id, &record).await? {
                        if left == 0 {
                            break;
                        }
                        self.print(&write, output)?;
                        left -= 1;
                    }
                }
                FeedStep::Event(_) => {}
                FeedStep::Lost { why } => {
                    output.note(&format!("connection lost ({}), retrying…", cell(&why)));
                }
                FeedStep::Back => output.note("reconnected"),
            }
        }
        Ok(Exit::Done)
    }

    /// The writes of a record, with the values that they left. Values of apps and users have no past, so that the
    /// feed shows their keys only.
    async fn writes(
        &self,
        client: &Client,
        session: &str,
        record: &Value,
    ) -> anyhow::Result<Vec<Value>> {
        let acts = ["state_put", "state_deleted", "state_restored"];
        let is_asked = |event: &&Value| {
            let key = text(event, "key");
            acts.contains(&text(event, "type")) && self.key.as_deref().is_none_or(|it| it == key)
        };
        let events: Vec<&Value> = elements(record, "events").iter().filter(is_asked).collect();
        let mut then = Value::Null;
        if events.iter().any(|event| has_value(event)) {
            let path = format!("/v1/sessions/{session}/state?at={}", record["revision"]);
            then = super::all_values(client, &path).await?;
        }
        let write = |event: &&Value| {
            let key = text(event, "key");
            let mut write = json!({
                "revision": record["revision"], "at": record["at"], "act": event["type"], "key": key,
            });
            if let Some(value) = then["state"].get(key) {
                write["value"] = value.clone();
            }
            if event["request_id"].is_string() {
                write["request_id"] = event["request_id"].clone();
            }
            write
        };
        Ok(events.iter().map(write).collect())
    }

    fn print(&self, write: &Value, output: &CliOutput) -> anyhow::Result<()> {
        if self.jsonl || output.json {
            return output.json(write).map(drop);
        }
        let value = write.get("value").map(Value::to_string);
        let mut table = TextTable::new(&[]);
        table.row(vec![
            TableCell::new(write["revision"].to_string()).tone(TextTone::Dim),
            output.time(&write["at"]).tone(TextTone::Dim),
            TableCell::of(&write["act"]),
            TableCell::of(&write["key"]).tone(TextTone::Strong),
            TableCell::shown(excerpt(value.as_deref().unwrap_or("-"), VALUE_CHARS_MAX)),
        ]);
        output.table(&table)
    }
}

/// Whether an event leaves a value of the session itself.
fn has_value(event: &Value) -> bool {
    let key = text(event, "key");
    let is_shared = key.starts_with("app:") || key.starts_with("user:");
    text(event, "type") != "state_deleted" && !is_shared
}

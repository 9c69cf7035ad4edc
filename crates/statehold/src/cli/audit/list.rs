//! `statehold audit list`.

use clap::Args;
use serde_json::{Map, Value, json};

use super::{PAGE_MAX, STREAM, decisions, digest_cell, records, records_of, time_text};
use crate::cli::answers::LimitArgs;
use crate::cli::output::{CliOutput, TableCell, TextTable};
use crate::cli::resolve;
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct AuditListArgs {
    /// The records of this session instead of the audit stream; a beginning of its id is enough.
    #[arg(long, value_name = "SESSION", conflicts_with = "decisions")]
    session: Option<String>,
    /// Decided holds: who decided, and which action was shown, released and executed.
    #[arg(long)]
    decisions: bool,
    #[command(flatten)]
    limit: LimitArgs,
}

impl AuditListArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let limit = self.limit.count();
        if self.decisions {
            return decisions::list(client, output, limit).await;
        }
        let path = match &self.session {
            Some(session) => records_of(&resolve::session(client, session).await?),
            None => STREAM.to_owned(),
        };
        let NewestRecords { found, names, end } = newest(client, &path, limit).await?;
        if output.json {
            return output.json(&json!({ "records": found, "names": names }));
        }
        let headers = if self.session.is_some() {
            &["SEQ", "TIME", "ACTOR", "COMMAND", "TARGET", "HASH"]
        } else {
            &["SEQ", "TIME", "ACTOR", "ACTION", "TARGET", "HASH"]
        };
        output.table(&table((&found, &names), headers, output))?;
        if output.is_terminal {
            let more = if found.len() as u64 == end {
                ""
            } else {
                "; all: --all"
            };
            output.note(&format!(
                "{} of {end} shown{more}. Verify them with: statehold audit verify",
                found.len()
            ));
        }
        Ok(Exit::Done)
    }
}

/// The newest records, oldest first.
struct NewestRecords {
    found: Vec<Value>,
    /// The names of people in them, by principal.
    names: Map<String, Value>,
    /// The number of the last.
    end: u64,
}

async fn newest(client: &Client, path: &str, limit: usize) -> anyhow::Result<NewestRecords> {
    let (_, about) = records(client, path, 0, 1).await?;
    let end = about["revision"]
        .as_u64()
        .or_else(|| about["head"]["seq"].as_u64())
        .unwrap_or(0);
    let mut after = end.saturating_sub(limit as u64);
    let (mut found, mut names) = (Vec::new(), Map::new());
    loop {
        let (page, mut about) = records(client, path, after, PAGE_MAX).await?;
        if let Value::Object(more) = about["names"].take() {
            names.extend(more);
        }
        let Some(last) = page.last().and_then(|last| last["seq"].as_u64()) else {
            let end = end.max(after);
            return Ok(NewestRecords { found, names, end });
        };
        after = last;
        found.extend(page);
    }
}

fn table(
    (found, names): (&[Value], &Map<String, Value>),
    headers: &'static [&'static str],
    output: &CliOutput,
) -> TextTable {
    let mut table = TextTable::new(headers).spare(&["HASH"]);
    // Programs read pseudonyms as the records have them; people read names.
    let person = |principal: Option<&str>| {
        let known = principal.and_then(|principal| names.get(principal)?.as_str());
        match known.filter(|_| output.is_terminal) {
            Some(name) => TableCell::new(name),
            None => TableCell::id(&principal.map_or(Value::Null, Value::from)),
        }
    };
    for record in found {
        let word = record["command"]
            .as_str()
            .or_else(|| record["event"]["act"].as_str());
        let at = record["at"].as_i64().map(time_text);
        table.row(vec![
            TableCell::new(record["seq"].to_string()),
            TableCell::optional(at.map(|at| output.times.show(&at))),
            person(record["principal"].as_str()),
            TableCell::optional(word),
            person(target(record).as_deref()),
            digest_cell(&record["hash"], output),
        ]);
    }
    table
}

/// The most specific id in the events of a record.
fn target(record: &Value) -> Option<String> {
    let event = &record["event"];
    if let Some(heads) = event["heads"].as_array() {
        return Some(format!("{} sessions", heads.len()));
    }
    let of_stream = ["key", "session", "user", "agent"];
    let named = of_stream.iter().find_map(|name| event[*name].as_str());
    if let Some(named) = named {
        return Some(named.to_owned());
    }
    let events = record["events"].as_array()?;
    let named = ["hold", "request", "task", "key"].iter().find_map(|name| {
        let mut found = events.iter().filter_map(|event| event[*name].as_str());
        found.next()
    });
    named
        .or_else(|| record["session"].as_str())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(record: &Value, expected: Option<&str>) {
        assert_eq!(target(record).as_deref(), expected, "{record}");
    }

    #[test]
    fn a_line_names_what_it_is_about() {
        check(&json!({ "event": { "key": "key_1" } }), Some("key_1"));
        check(&json!({ "event": { "session": "ses_1" } }), Some("ses_1"));
        let erased = json!({ "event": { "act": "user_erased", "user": "usr_1", "sessions": 2 } });
        check(&erased, Some("usr_1"));
        let root = json!({ "event": { "heads": [{}, {}] } });
        check(&root, Some("2 sessions"));
        let decided = json!({ "session": "ses_1", "events": [
            { "act": "task_status_changed", "task": "tsk_1" },
            { "act": "hold_decided", "hold": "hld_1", "request": "req_1" },
        ] });
        check(&decided, Some("hld_1"));
        let closed = json!({ "session": "ses_1", "events": [{ "act": "session_closed" }] });
        check(&closed, Some("ses_1"));
        check(&json!({ "odd": 1 }), None);
    }
}

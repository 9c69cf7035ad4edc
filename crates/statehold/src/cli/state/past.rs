//! `statehold state diff` and `statehold state history`.

use clap::Args;
use serde_json::Value;

use crate::cli::answers::elements;
use crate::cli::diff::{self, DiffRangeArgs};
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::cli::resolve;
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct StateDiffArgs {
    /// Only this key.
    key: Option<String>,
    /// The session: its id, a part of it, or its name.
    #[arg(short, long, value_name = "SESSION")]
    session: String,
    #[command(flatten)]
    range: DiffRangeArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct StateHistoryArgs {
    key: String,
    /// The session: its id, a part of it, or its name.
    #[arg(short, long, value_name = "SESSION")]
    session: String,
    #[command(flatten)]
    range: DiffRangeArgs,
}

impl StateDiffArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let id = resolve::session(client, &self.session).await?;
        let found = diff::read(client, &id, self.range, self.key.as_deref(), false).await?;
        if output.json {
            return output.json(&found["changes"]);
        }
        output.table(&diff::table(&found, output))?;
        Ok(Exit::Done)
    }
}

impl StateHistoryArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let id = resolve::session(client, &self.session).await?;
        let found = diff::read(client, &id, self.range, Some(&self.key), true).await?;
        let writes = elements(&found, "changes");
        if output.json {
            return output.json(&writes);
        }
        output.table(&history(writes, output))?;
        if writes.is_empty() {
            output.note("no write of this key in these revisions");
        }
        Ok(Exit::Done)
    }
}

/// The writes of one key, oldest first.
fn history(writes: &[Value], output: &CliOutput) -> TextTable {
    let mut table = TextTable::new(&["REVISION", "AT", "BY", "COMMAND", "REQUEST", "VALUE"])
        .spare(&["REQUEST", "COMMAND"]);
    for write in writes {
        let after = write.get("after");
        let value = match after {
            Some(_) => diff::value(after),
            None => TableCell::new("(removed)").tone(TextTone::Dim),
        };
        table.row(vec![
            TableCell::new(write["revision"].to_string()),
            output.time(&write["at"]),
            TableCell::of(&write["by"]),
            TableCell::of(&write["command"]),
            TableCell::id(&write["request_id"]),
            value,
        ]);
    }
    table
}

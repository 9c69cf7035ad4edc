//! `statehold sessions diff`.

use clap::Args;

use crate::cli::answers::elements;
use crate::cli::diff::{self, DiffRangeArgs};
use crate::cli::output::{CliOutput, plural};
use crate::cli::resolve;
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct SessionsDiffArgs {
    /// The id, a beginning of it that no other session has, or the name.
    session: String,
    #[command(flatten)]
    range: DiffRangeArgs,
}

impl SessionsDiffArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let id = resolve::session(client, &self.session).await?;
        let found = diff::read(client, &id, self.range, None, false).await?;
        if output.json {
            return output.json(&found);
        }
        output.table(&diff::table(&found, output))?;
        for rewind in elements(&found, "rewinds") {
            let (revision, to) = (&rewind["revision"], &rewind["to"]);
            output.note(&format!("revision {revision} went back to {to}"));
        }
        let items = found["items_added"].as_u64().unwrap_or(0);
        let items = usize::try_from(items).unwrap_or(usize::MAX);
        output.note(&format!(
            "revisions {} to {}: {} changed, {} and {} came",
            found["from"],
            found["to"],
            plural(elements(&found, "changes").len(), "key"),
            plural(elements(&found, "messages").len(), "message"),
            plural(items, "item"),
        ));
        Ok(Exit::Done)
    }
}

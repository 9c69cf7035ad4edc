//! `statehold tasks cancel`.

use clap::Args;
use http::Method;
use serde_json::json;

use crate::cli::answers::text;
use crate::cli::ask;
use crate::cli::output::CliOutput;
use crate::cli::printable::cell;
use crate::cli::resolve::{self, IdKind};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct TasksCancelArgs {
    /// The task or the request: T4, R8, SESSION/T4, or the id or a part of it.
    #[arg(value_name = "TASK|REQUEST")]
    of: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl TasksCancelArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        ask::require_person(self.yes, "cancelling")?;
        let found = resolve::one_of(client, &self.of, &[IdKind::Task, IdKind::Request]).await?;
        let kind = found.kind.word();
        let path = format!("/v1/{kind}s/{}", found.id);
        let before = client.get(&path).await?.body;
        let alias = cell(text(&before, "alias"));
        if !self.yes {
            let question = format!(
                "{alias} {} of {}, {}\nCancel it, with everything below it?",
                kind,
                cell(text(&before, "agent")),
                cell(text(&before, "status"))
            );
            if !ask::ask_yes(&question)? {
                output.note("nothing was cancelled");
                return Ok(Exit::Refused);
            }
        }
        let answer = client
            .call(Method::POST, &format!("{path}/cancel"), Some(&json!({})))
            .await?;
        if output.json {
            return output.json(&answer.body);
        }
        output.prose(&format!("✓ cancelled {alias} ({})", cell(&found.id)))?;
        Ok(Exit::Done)
    }
}

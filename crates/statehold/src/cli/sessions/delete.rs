//! `statehold sessions delete`.

use clap::Args;
use http::Method;

use super::SessionInfo;
use crate::cli::answers::read;
use crate::cli::ask;
use crate::cli::output::CliOutput;
use crate::cli::printable::cell;
use crate::cli::resolve;
use crate::client::Client;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(in crate::cli) struct SessionsDeleteArgs {
    /// The id, a beginning of it that no other session has, or the name.
    session: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl SessionsDeleteArgs {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        if !self.yes && !ask::can_ask() {
            return Err(Failure::usage(
                "deleting a session needs a confirmation, and there is no terminal to ask on",
            )
            .hint("confirm with: --yes")
            .into());
        }
        let id = resolve::session(client, &self.session).await?;
        if !self.yes {
            let session: SessionInfo =
                read(&client.get(&format!("/v1/sessions/{id}")).await?.body)?;
            if !confirm(&session)? {
                output.note("nothing was deleted");
                return Ok(Exit::Refused);
            }
        }
        client
            .call(Method::DELETE, &format!("/v1/sessions/{id}"), None)
            .await?;
        if output.json {
            output.json(&serde_json::json!({ "deleted": id }))?;
        } else {
            output.line(&format!("✓ deleted {id}"))?;
        }
        Ok(Exit::Done)
    }
}

fn confirm(session: &SessionInfo) -> anyhow::Result<bool> {
    ask::ask_yes(&format!(
        "{}  {} of {}, {}, {} records\nDelete it for good?",
        cell(&session.id),
        cell(session.name.as_deref().unwrap_or("no name")),
        cell(&session.user),
        cell(&session.status),
        session.revision
    ))
}

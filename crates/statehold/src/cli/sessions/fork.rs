//! `statehold sessions fork`.

use clap::Args;
use http::Method;
use serde_json::json;

use crate::cli::answers::text;
use crate::cli::output::CliOutput;
use crate::cli::printable::cell;
use crate::cli::resolve;
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct SessionsForkArgs {
    /// The id, a beginning of it that no other session has, or the name.
    session: String,
    /// Copy the session as it was at this revision; the newest one by default.
    #[arg(long, value_name = "REVISION")]
    at: Option<u64>,
}

impl SessionsForkArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let id = resolve::session(client, &self.session).await?;
        let body = self.at.map_or(json!({}), |at| json!({ "at": at }));
        let path = format!("/v1/sessions/{id}/fork");
        let fork = client.call(Method::POST, &path, Some(&body)).await?.body;
        if output.json {
            return output.json(&fork);
        }
        output.line(&cell(text(&fork, "id")))?;
        output.note(&format!(
            "a copy of {} at revision {}; go on with: statehold chat --session {}",
            cell(&id),
            fork["forked_from"]["revision"],
            cell(text(&fork, "id")),
        ));
        Ok(Exit::Done)
    }
}

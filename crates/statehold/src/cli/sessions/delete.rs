//! `statehold sessions delete`.

use clap::Args;
use http::Method;

use crate::cli::answers::text;
use crate::cli::ask;
use crate::cli::output::CliOutput;
use crate::cli::printable::cell;
use crate::cli::resolve;
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct SessionsDeleteArgs {
    /// The id, a beginning of it that no other session has, or the name.
    session: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl SessionsDeleteArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        ask::require_person(self.yes, "deleting a session")?;
        let id = resolve::session(client, &self.session).await?;
        let path = format!("/v1/sessions/{id}");
        if !self.yes {
            let session = client.get(&path).await?.body;
            let question = format!(
                "{}  {} of {}, {}, {} records\nDelete it for good?",
                cell(text(&session, "id")),
                cell(session["name"].as_str().unwrap_or("no name")),
                cell(text(&session, "user")),
                cell(text(&session, "status")),
                session["revision"]
            );
            if !ask::ask_yes(&question)? {
                output.note("nothing was deleted");
                return Ok(Exit::Refused);
            }
        }
        client.call(Method::DELETE, &path, None).await?;
        if output.json {
            return output.json(&serde_json::json!({ "deleted": id }));
        }
        output.line(&format!("✓ deleted {id}"))?;
        Ok(Exit::Done)
    }
}

//! `statehold sessions rewind`.

use clap::Args;
use http::Method;
use serde_json::json;

use crate::cli::ask;
use crate::cli::output::CliOutput;
use crate::cli::printable::cell;
use crate::cli::resolve;
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct SessionsRewindArgs {
    /// The id, a beginning of it that no other session has, or the name.
    session: String,
    /// The revision to go back to.
    #[arg(long, value_name = "REVISION")]
    to: u64,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl SessionsRewindArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        ask::require_person(self.yes, "rewinding a session")?;
        let id = resolve::session(client, &self.session).await?;
        let path = format!("/v1/sessions/{id}");
        if !self.yes {
            let session = client.get(&path).await?.body;
            let question = format!(
                "{} is at revision {}. Live requests are cancelled and later messages leave the transcript.\nGo back to \
                 revision {}?",
                cell(&id),
                session["revision"],
                self.to
            );
            if !ask::ask_yes(&question)? {
                output.note("nothing was changed");
                return Ok(Exit::Refused);
            }
        }
        let body = json!({ "to": self.to });
        let path = format!("{path}/rewind");
        let session = client.call(Method::POST, &path, Some(&body)).await?.body;
        if output.json {
            return output.json(&session);
        }
        let revision = session["revision"].as_u64().unwrap_or(0);
        output.line(&format!("✓ rewound {id} to revision {}", self.to))?;
        output.note(&format!(
            "this is revision {revision}; to go on from what it took back: statehold sessions fork {id} --at {}",
            revision.saturating_sub(1)
        ));
        Ok(Exit::Done)
    }
}

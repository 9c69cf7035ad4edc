//! `statehold sessions delete`.

use std::io::{BufRead, IsTerminal};

use clap::Args;
use hyper::Method;

use super::resolve::resolve;
use super::{Session, read};
use crate::cli::output::Output;
use crate::cli::printable::cell;
use crate::client::Client;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(in crate::cli) struct Delete {
    /// The id, or a beginning of it that no other session has.
    session: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl Delete {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        if !self.yes && !can_ask() {
            return Err(Failure::usage(
                "deleting a session cannot be undone, and nobody can be asked here",
            )
            .hint("say that it is meant with: --yes")
            .into());
        }
        let id = resolve(client, &self.session).await?;
        if !self.yes {
            let session: Session = read(&client.get(&format!("/v1/sessions/{id}")).await?.body)?;
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

/// Whether somebody sits there: not in a pipe, and not in an automatic build.
fn can_ask() -> bool {
    let is_automatic = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    std::io::stdin().is_terminal() && !is_automatic
}

fn confirm(session: &Session) -> anyhow::Result<bool> {
    anstream::eprint!(
        "{}  {} of {}, {}, {} records\nDelete it for good? Type yes: ",
        cell(&session.id),
        cell(session.name.as_deref().unwrap_or("no name")),
        cell(&session.user),
        cell(&session.status),
        session.revision
    );
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "yes"))
}

//! `statehold users`: erases a user.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;
use statehold_engine::EngineError;
use statehold_engine::api::user;

use super::answers::text;
use super::ask;
use super::block_on;
use super::check::require_data;
use super::data_engine::with_data;
use super::globals::GlobalArgs;
use super::output::{CliOutput, plural};
use super::printable::cell;
use crate::client::encode;
use crate::exit::{Exit, Failure};

/// The users of a server, or of a data directory without a running server.
#[derive(Debug, Args)]
pub(super) struct UsersArgs {
    /// Work on this data directory, without a server.
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    #[command(subcommand)]
    command: UsersCommand,
}

#[derive(Debug, Subcommand)]
enum UsersCommand {
    /// Erase a user: delete everything of theirs, and the key that encrypts it, in every backup too.
    Erase(UsersEraseArgs),
}

#[derive(Debug, Args)]
struct UsersEraseArgs {
    /// The name of the user.
    user: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl UsersArgs {
    pub(super) fn run(self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let UsersCommand::Erase(UsersEraseArgs { user, yes }) = &self.command;
        ask::require_person(*yes, "erasing a user")?;
        if !yes {
            let question = format!(
                "All sessions and values of {} are deleted, keys bound to {0} are revoked, and backups show \
                 nothing of {0} any more.\nErase {0} for good?",
                cell(user)
            );
            if !ask::ask_yes(&question)? {
                output.note("nothing was erased");
                return Ok(Exit::Refused);
            }
        }
        let receipt: Value = match &self.data {
            None => {
                let client = globals.client(output)?;
                let path = format!("/v1/users/{}/erase", encode(user));
                block_on(client.call(Method::POST, &path, None))??.body
            }
            Some(data) => {
                require_data(data)?;
                block_on(with_data(data, async |engine, caller| {
                    let receipt = user::erase(&engine, &caller, user).await;
                    let receipt = receipt.map_err(|error| match error {
                        EngineError::NotFound => {
                            let message = format!("there is no user {}", cell(user));
                            Failure::new(Exit::NotFound, message).into()
                        }
                        error => anyhow::Error::from(error),
                    })?;
                    Ok(serde_json::to_value(receipt)?)
                }))??
            }
        };
        if output.json {
            return output.json(&receipt);
        }
        let count = |field: &str, what| {
            let count = receipt[field].as_u64().unwrap_or(0);
            plural(usize::try_from(count).unwrap_or(usize::MAX), what)
        };
        output.prose(&format!(
            "✓ erased {} ({}): {} deleted, {} revoked; entry {} of the audit stream",
            cell(user),
            cell(text(&receipt, "user_id")),
            count("sessions", "session"),
            count("keys_revoked", "key"),
            receipt["entry"]
        ))?;
        output.note(
            "replace your copies of `key-ring` and `user-keys`: an older copy brings the key back",
        );
        Ok(Exit::Done)
    }
}

//! `statehold token`: creates, lists and revokes the API keys of a tenant.

mod http;
mod keys;
mod offline;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::block_on;
use super::globals::{GlobalArgs, parse_duration};
use super::output::{CliOutput, TableCell, TextTable, TextTone};
use super::printable::cell;
use crate::exit::{Exit, Failure};
use http::HttpKeys;
use keys::{KeyRequest, KeyService};
use offline::OfflineKeys;

/// The keys of a server, or of a data directory without a running server.
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    /// Work on this data directory, without a server.
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a key and print it. It is shown once.
    Create(TokenCreateArgs),
    /// List keys. The server stores no key itself, only its digest.
    List,
    /// Revoke a key at once.
    Revoke(TokenRevokeArgs),
}

#[derive(Debug, Args)]
struct TokenCreateArgs {
    /// The role of the key; may be given several times.
    #[arg(
        long = "role",
        value_name = "ROLE",
        required = true,
        value_delimiter = ','
    )]
    roles: Vec<KeyRole>,
    /// A name for people.
    #[arg(long)]
    name: Option<String>,
    /// Limit the key to the sessions of this user.
    #[arg(long)]
    user: Option<String>,
    /// Limit the key to the work of this agent; may be given several times.
    #[arg(long = "agent", value_name = "AGENT", value_delimiter = ',')]
    agents: Vec<String>,
    /// Let the key expire after this time, for example 90d.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum KeyRole {
    /// Uses sessions, as an app does for its users.
    Client,
    /// Does the work of agents.
    Worker,
    /// Decides holds.
    Approver,
    /// Reads all data of the tenant.
    Operator,
    /// Manages keys, and may do everything an operator may.
    Admin,
}

impl KeyRole {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Worker => "worker",
            Self::Approver => "approver",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

#[derive(Debug, Args)]
struct TokenRevokeArgs {
    /// The id of the key, `key_…`.
    key: String,
}

impl TokenArgs {
    pub(super) fn run(self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let Some(data) = &self.data else {
            let keys = HttpKeys {
                client: globals.client(output)?,
            };
            return block_on(self.command.run_with(&keys, output))?;
        };
        block_on(async {
            let keys = OfflineKeys::open(data).await?;
            let exit = self.command.run_with(&keys, output).await;
            keys.close().await;
            exit
        })?
    }
}

impl TokenCommand {
    /// Runs the command on the keys of a server or of a data directory.
    async fn run_with(self, keys: &impl KeyService, output: &CliOutput) -> anyhow::Result<Exit> {
        match self {
            Self::Create(create) => create.run(keys, output).await,
            Self::List => list(keys, output).await,
            Self::Revoke(revoke) => revoke.run(keys, output).await,
        }
    }
}

impl TokenCreateArgs {
    async fn run(self, keys: &impl KeyService, output: &CliOutput) -> anyhow::Result<Exit> {
        if self
            .expires
            .is_some_and(|time| time < Duration::from_secs(1))
        {
            return Err(Failure::usage("a key lives for at least one second").into());
        }
        let new = KeyRequest {
            name: self.name,
            roles: self
                .roles
                .iter()
                .map(|role| role.name().to_owned())
                .collect(),
            user: self.user,
            agents: (!self.agents.is_empty()).then_some(self.agents),
            expires_in_seconds: self.expires.map(|time| time.as_secs()),
        };
        let made = keys.create(&new).await?;
        if output.json {
            output.json(&made)?;
            return Ok(Exit::Done);
        }
        // Print only the key to standard output, so that `KEY=$(statehold token create …)` works.
        output.line(&cell(&made.key))?;
        output.note(&format!(
            "{} may act as {}. This is the only time the key is shown.",
            cell(&made.about.id),
            cell(&made.about.roles.join(", "))
        ));
        if made.about.expires_at.is_none() {
            output.note("It does not expire; revoke it with: statehold token revoke");
        }
        Ok(Exit::Done)
    }
}

async fn list(keys: &impl KeyService, output: &CliOutput) -> anyhow::Result<Exit> {
    let keys = keys.list().await?;
    if output.json {
        output.json(&json!({ "keys": keys }))?;
        return Ok(Exit::Done);
    }
    let mut table = TextTable::new(&[
        "KEY", "NAME", "ROLES", "USER", "AGENTS", "CREATED", "EXPIRES", "REVOKED",
    ]);
    for key in &keys {
        let time = |text: &Option<String>| {
            TableCell::optional(text.as_ref().map(|text| output.times.show(text)))
        };
        let tone = if key.revoked_at.is_some() {
            TextTone::Dim
        } else {
            TextTone::Plain
        };
        table.row(vec![
            TableCell::new(&key.id).tone(tone),
            TableCell::optional(key.name.as_ref()),
            TableCell::new(key.roles.join(",")),
            TableCell::optional(key.user.as_ref()),
            TableCell::optional(key.agents.as_ref().map(|agents| agents.join(","))),
            TableCell::new(output.times.show(&key.created_at)),
            time(&key.expires_at),
            time(&key.revoked_at),
        ]);
    }
    output.table(&table)?;
    Ok(Exit::Done)
}

impl TokenRevokeArgs {
    async fn run(self, keys: &impl KeyService, output: &CliOutput) -> anyhow::Result<Exit> {
        if self.key.starts_with("shk_") {
            let failure = Failure::usage("this is a key, not the id of one; ids begin with key_");
            return Err(failure.hint("find it with: statehold token list").into());
        }
        keys.revoke(&self.key).await?;
        if output.json {
            output.json(&json!({ "revoked": self.key }))?;
        } else {
            output.line(&format!("✓ revoked {}", cell(&self.key)))?;
        }
        Ok(Exit::Done)
    }
}

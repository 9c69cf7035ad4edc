//! `statehold token`: creates, lists and revokes the API keys of a tenant.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use statehold_core::name::Name;
use statehold_engine::api::key;
use statehold_engine::{Caller, Engine, EngineError, Role};

use super::answers::{UNKNOWN_FORMAT, elements, text};
use super::block_on;
use super::check::require_data;
use super::data_engine::with_data;
use super::globals::{GlobalArgs, parse_duration};
use super::output::{CliOutput, TableCell, TextTable, TextTone};
use super::printable::cell;
use crate::client::{Client, encode};
use crate::exit::{Exit, Failure};

/// How many keys are read at a time.
const LISTED_AT_ONCE: usize = 200;

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
#[command(after_help = ROLES)]
struct TokenCreateArgs {
    /// The role of the key, `client`, `worker`, `approver`, `operator`, `admin`, or one that a policy names;
    /// may be given several times.
    #[arg(
        long = "role",
        value_name = "ROLE",
        required = true,
        value_delimiter = ','
    )]
    roles: Vec<Name>,
    /// A name for people.
    #[arg(long)]
    name: Option<String>,
    /// Limit the key to the sessions of this user.
    #[arg(long)]
    user: Option<String>,
    /// The person that a key without --user belongs to. All keys of one person count as one approver.
    #[arg(long, conflicts_with = "user")]
    owner: Option<String>,
    /// Limit the key to the work of this agent; may be given several times.
    #[arg(long = "agent", value_name = "AGENT", value_delimiter = ',')]
    agents: Vec<Name>,
    /// Let the key expire after this time, for example 90d.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
}

/// The roles of the server, for the help of `token create`.
const ROLES: &str = "\
Roles:
  client    uses sessions, as an app does for its users
  worker    does the work of agents
  approver  decides holds
  operator  reads all data of the tenant
  admin     manages keys, and may do everything an operator may
Any other role only decides the holds whose policy names it: decide_by = \"role:treasurer\".";

#[derive(Debug, Args)]
struct TokenRevokeArgs {
    /// The id of the key, `key_…`.
    key: String,
}

impl TokenArgs {
    pub(super) fn run(self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let Some(data) = &self.data else {
            let keys = KeyAccess::Server(globals.client(output)?);
            return block_on(self.command.run_with(&keys, output))?;
        };
        if !matches!(self.command, TokenCommand::Create(_)) {
            require_data(data)?;
        }
        block_on(with_data(data, async |engine, caller| {
            let keys = KeyAccess::Data(engine, caller);
            self.command.run_with(&keys, output).await
        }))?
    }
}

/// The keys of one tenant: those of a server, or those of a data directory without a running server,
/// which are changed in place. Both answer in the form of the API.
enum KeyAccess {
    Server(Client),
    Data(Engine, Caller),
}

impl KeyAccess {
    /// Creates a key. The secret in the answer is shown once and not stored.
    async fn create(&self, new: &Value) -> anyhow::Result<Value> {
        match self {
            Self::Server(client) => {
                let answer = client.call(Method::POST, "/v1/keys", Some(new));
                Ok(answer.await?.body)
            }
            Self::Data(engine, caller) => {
                let input = key::KeyInput::deserialize(new)?;
                let made = key::create(engine, caller, input).await;
                let made = made.map_err(|error| match error {
                    EngineError::InvalidField { .. } => Failure::usage(error.to_string()).into(),
                    error => anyhow::Error::from(error),
                })?;
                Ok(serde_json::to_value(made)?)
            }
        }
    }

    /// All keys, revoked ones included.
    async fn list(&self) -> anyhow::Result<Value> {
        let mut keys = Vec::new();
        match self {
            Self::Server(client) => {
                let mut path = format!("/v1/keys?limit={LISTED_AT_ONCE}");
                loop {
                    let mut page = client.get(&path).await?.body;
                    if let Value::Array(more) = page["keys"].take() {
                        keys.extend(more);
                    }
                    let Some(cursor) = page["next_cursor"].as_str() else {
                        break;
                    };
                    path = format!("/v1/keys?limit={LISTED_AT_ONCE}&cursor={}", encode(cursor));
                }
            }
            Self::Data(engine, caller) => {
                let mut after = None;
                loop {
                    let page = key::list(engine, caller, after, LISTED_AT_ONCE).await?;
                    for key in &page.entries {
                        keys.push(serde_json::to_value(key)?);
                    }
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(json!({ "keys": keys }))
    }

    /// Revokes a key. Revoking it again succeeds.
    async fn revoke(&self, id: &str) -> anyhow::Result<()> {
        let missing = || Failure::new(Exit::NotFound, format!("there is no key {id}"));
        match self {
            Self::Server(client) => {
                let path = format!("/v1/keys/{}", encode(id));
                match client.call(Method::DELETE, &path, None).await {
                    Err(failure) if failure.exit == Exit::NotFound => {
                        let message = missing().message;
                        let failure = Failure { message, ..failure };
                        Err(failure.hint("see all with: statehold token list").into())
                    }
                    done => Ok(done.map(drop)?),
                }
            }
            Self::Data(engine, caller) => {
                let parsed = id.parse().map_err(|_| missing())?;
                match key::revoke(engine, caller, parsed).await {
                    Err(EngineError::NotFound) => Err(missing().into()),
                    done => Ok(done?),
                }
            }
        }
    }
}

impl TokenCommand {
    async fn run_with(self, keys: &KeyAccess, output: &CliOutput) -> anyhow::Result<Exit> {
        match self {
            Self::Create(create) => create.run(keys, output).await,
            Self::List => list(keys, output).await,
            Self::Revoke(revoke) => revoke.run(keys, output).await,
        }
    }
}

impl TokenCreateArgs {
    async fn run(self, keys: &KeyAccess, output: &CliOutput) -> anyhow::Result<Exit> {
        let expires = self.expires.map(|time| time.as_secs());
        if expires == Some(0) {
            return Err(Failure::usage("a key lives for at least one second").into());
        }
        let agents = Some(self.agents).filter(|agents| !agents.is_empty());
        let mut new = json!({
            "name": self.name, "roles": self.roles, "user": self.user, "owner": self.owner, "agents": agents,
            "expires_in_seconds": expires,
        });
        if let Value::Object(fields) = &mut new {
            fields.retain(|_, value| !value.is_null());
        }
        let made = keys.create(&new).await?;
        let secret = made["key"].as_str().context(UNKNOWN_FORMAT)?;
        if output.json {
            return output.json(&made);
        }
        // Print only the key to standard output, so that `KEY=$(statehold token create …)` works.
        output.line(&cell(secret))?;
        output.note(&format!(
            "{} may act as {}. This is the only time the key is shown.",
            cell(text(&made, "id")),
            cell(&words(&made, "roles", ", "))
        ));
        for role in elements(&made, "roles").iter().filter_map(Value::as_str) {
            if Role::ALL.iter().all(|known| known.name() != role) {
                output.note(&format!(
                    "The role {role} only decides holds whose policy says role:{role}.{}",
                    near_role(role)
                ));
            }
        }
        if made["expires_at"].is_null() {
            output.note(&format!(
                "It does not expire; revoke it with: statehold token revoke {}",
                cell(text(&made, "id"))
            ));
        }
        Ok(Exit::Done)
    }
}

/// The role that was probably meant instead of one that no part of the server knows.
fn near_role(typed: &str) -> String {
    let distance = |role: &Role| strsim::damerau_levenshtein(role.name(), typed);
    let near = Role::ALL.iter().min_by_key(|role| distance(role));
    match near.filter(|role| distance(role) <= 2) {
        Some(role) => format!(" Did you mean {}? Then revoke this key.", role.name()),
        None => String::new(),
    }
}

/// A list of words, as one text.
fn words(key: &Value, field: &str, separator: &str) -> String {
    let words = elements(key, field).iter().filter_map(Value::as_str);
    words.collect::<Vec<&str>>().join(separator)
}

async fn list(keys: &KeyAccess, output: &CliOutput) -> anyhow::Result<Exit> {
    let answer = keys.list().await?;
    if output.json {
        return output.json(&answer);
    }
    let mut table = TextTable::new(&[
        "KEY", "NAME", "ROLES", "USER", "OWNER", "AGENTS", "CREATED", "EXPIRES", "REVOKED",
    ])
    .spare(&["CREATED", "OWNER", "AGENTS", "REVOKED"]);
    for key in elements(&answer, "keys") {
        let tone = if key["revoked_at"].is_null() {
            TextTone::Plain
        } else {
            TextTone::Dim
        };
        let agents = Some(words(key, "agents", ",")).filter(|agents| !agents.is_empty());
        table.row(vec![
            TableCell::id(&key["id"]).tone(tone),
            TableCell::of(&key["name"]),
            TableCell::new(words(key, "roles", ",")),
            TableCell::of(&key["user"]),
            TableCell::of(&key["owner"]),
            TableCell::optional(agents),
            output.time(&key["created_at"]),
            output.time(&key["expires_at"]),
            output.time(&key["revoked_at"]),
        ]);
    }
    output.table(&table)?;
    Ok(Exit::Done)
}

impl TokenRevokeArgs {
    async fn run(self, keys: &KeyAccess, output: &CliOutput) -> anyhow::Result<Exit> {
        if self.key.starts_with("shk_") {
            let failure = Failure::usage("this is a key, not the id of one; ids begin with key_");
            return Err(failure.hint("find it with: statehold token list").into());
        }
        keys.revoke(&self.key).await?;
        if output.json {
            return output.json(&json!({ "revoked": self.key }));
        }
        output.line(&format!("✓ revoked {}", cell(&self.key)))?;
        Ok(Exit::Done)
    }
}

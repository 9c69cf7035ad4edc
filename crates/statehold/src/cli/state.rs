//! `statehold state`: reads and writes the state of apps, users and sessions.

mod past;
mod watch;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::globals::GlobalArgs;
use super::output::{CliOutput, TableCell, TextTable};
use super::printable::cell;
use super::{block_on, resolve};
use crate::client::{Client, encode, with_query};
use crate::exit::{Exit, Failure};

/// The app if the user names none, as in the chat API.
pub(super) const APP_DEFAULT: &str = "default";

const HELP: &str = "\
A key says where it lives: `app:x` with the app, `user:x` with a user of the app (--user), and `x`
with a session (--session).";

#[derive(Debug, Subcommand)]
#[command(after_help = HELP)]
pub(super) enum StateCommand {
    /// Print one value as JSON.
    Get(StateGetArgs),
    /// Print all values of an app, a user or a session.
    List(StateListArgs),
    /// Write one value.
    Set(StateSetArgs),
    /// Remove one value.
    Delete(StateDeleteArgs),
    /// Print the keys of a session that changed between two revisions, and who wrote them.
    Diff(past::StateDiffArgs),
    /// Print each write of one key of a session, the oldest first.
    History(past::StateHistoryArgs),
    /// Follow the writes of a session: one line per write.
    Watch(watch::StateWatchArgs),
}

/// The owner of the values.
#[derive(Debug, Args)]
struct StateOwnerArgs {
    /// The app.
    #[arg(long, value_name = "APP", default_value = APP_DEFAULT)]
    app: String,
    /// The user of the app, for `user:` keys.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The session: its id, a part of it, or its name. It also sees the values of its app and its
    /// user.
    #[arg(short, long, value_name = "SESSION", conflicts_with_all = ["user"])]
    session: Option<String>,
}

/// The time of the values.
#[derive(Debug, Args)]
struct StatePastArgs {
    /// The values that the session had at this revision.
    #[arg(long, value_name = "REVISION", requires = "session")]
    at: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct StateGetArgs {
    key: String,
    #[command(flatten)]
    owner: StateOwnerArgs,
    #[command(flatten)]
    past: StatePastArgs,
}

#[derive(Debug, Args)]
pub(super) struct StateListArgs {
    #[command(flatten)]
    owner: StateOwnerArgs,
    #[command(flatten)]
    past: StatePastArgs,
}

#[derive(Debug, Args)]
pub(super) struct StateSetArgs {
    key: String,
    /// The value as JSON; anything else is stored as text.
    value: String,
    #[command(flatten)]
    owner: StateOwnerArgs,
}

#[derive(Debug, Args)]
pub(super) struct StateDeleteArgs {
    key: String,
    #[command(flatten)]
    owner: StateOwnerArgs,
}

impl StateCommand {
    pub(super) fn run(&self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let client = globals.client(output)?;
        block_on(async {
            match self {
                Self::Get(get) => get.run(&client, output).await,
                Self::List(list) => list.run(&client, output).await,
                Self::Set(set) => {
                    let value = serde_json::from_str(&set.value);
                    let value: Value = value.unwrap_or_else(|_| json!(set.value));
                    // The value that a person sets is the value afterwards, whatever the rule of its key.
                    let body = json!({
                        "set": { &set.key: value }, "merge": { &set.key: "replace" },
                    });
                    patch(&client, &set.owner, &set.key, &body, output).await
                }
                Self::Delete(delete) => {
                    let body = json!({ "delete": [&delete.key] });
                    patch(&client, &delete.owner, &delete.key, &body, output).await
                }
                Self::Diff(diff) => diff.run(&client, output).await,
                Self::History(history) => history.run(&client, output).await,
                Self::Watch(watch) => watch.run(&client, output).await,
            }
        })?
    }
}

impl StateGetArgs {
    async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let path = self.owner.path(client, Some(&self.key)).await?;
        let path = self.past.path(&path);
        let answer = all_values(client, &path).await?;
        let Some(value) = answer["state"].get(&self.key) else {
            let message = format!("there is no {:?} here", self.key);
            let hint = "see what there is with: statehold state list";
            return Err(Failure::new(Exit::NotFound, message).hint(hint).into());
        };
        let version = &answer["versions"][&self.key];
        if output.json {
            output.json(&json!({ "key": self.key, "value": value, "version": version }))?;
        } else {
            output.line(&cell(&value.to_string()))?;
        }
        Ok(Exit::Done)
    }
}

impl StateListArgs {
    async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let path = self.owner.path(client, None).await?;
        let path = self.past.path(&path);
        let answer = all_values(client, &path).await?;
        if output.json {
            output.json(&answer)?;
            return Ok(Exit::Done);
        }
        let mut table = TextTable::new(&["KEY", "VERSION", "VALUE"]);
        for (key, value) in answer["state"].as_object().into_iter().flatten() {
            table.row(vec![
                TableCell::new(key),
                TableCell::new(answer["versions"][key].to_string()),
                TableCell::new(value.to_string()),
            ]);
        }
        output.table(&table)?;
        Ok(Exit::Done)
    }
}

/// All values of an owner, which come in pages if they are long.
async fn all_values(client: &Client, path: &str) -> Result<Value, Failure> {
    let mut all = client.get(path).await?.body;
    while let Some(Value::String(cursor)) = member(&mut all, "next_cursor") {
        let next = with_query(path, &[("cursor", Some(cursor))]);
        let mut page = client.get(&next).await?.body;
        for field in ["state", "versions"] {
            if let (Some(found), Some(Value::Object(more))) =
                (all[field].as_object_mut(), member(&mut page, field))
            {
                found.extend(more);
            }
        }
        if let Some(cursor) = member(&mut page, "next_cursor") {
            all["next_cursor"] = cursor;
        }
    }
    Ok(all)
}

/// Takes a member out of an object.
fn member(object: &mut Value, name: &str) -> Option<Value> {
    object.as_object_mut()?.shift_remove(name)
}

async fn patch(
    client: &Client,
    owner: &StateOwnerArgs,
    key: &str,
    body: &Value,
    output: &CliOutput,
) -> anyhow::Result<Exit> {
    let path = owner.path(client, Some(key)).await?;
    let answer = client.call(Method::PATCH, &path, Some(body)).await?.body;
    if output.json {
        output.json(&answer)?;
    }
    Ok(Exit::Done)
}

impl StatePastArgs {
    fn path(&self, path: &str) -> String {
        with_query(path, &[("at", self.at.map(|at| at.to_string()))])
    }
}

impl StateOwnerArgs {
    /// The API path of the values.
    async fn path(&self, client: &Client, key: Option<&str>) -> Result<String, Failure> {
        if let Some(session) = &self.session {
            let id = resolve::session(client, session).await?;
            return Ok(format!("/v1/sessions/{id}/state"));
        }
        let app = encode(&self.app);
        match (&self.user, key) {
            (None, Some(key)) if key.starts_with("user:") => {
                Err(Failure::usage("a `user:` key needs --user"))
            }
            (_, Some(key)) if !key.starts_with("user:") && !key.starts_with("app:") => {
                let message = format!("{key:?} is the key of a session");
                Err(Failure::usage(message)
                    .hint("name the session with --session, or begin with app: or user:"))
            }
            (Some(user), key) if key.is_none_or(|key| key.starts_with("user:")) => {
                Ok(format!("/v1/state/user/{app}/{}", encode(user)))
            }
            _ => Ok(format!("/v1/state/app/{app}")),
        }
    }
}

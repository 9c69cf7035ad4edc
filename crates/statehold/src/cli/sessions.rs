//! `statehold sessions`: what agents and people said, and what waits.

mod delete;
mod list;
mod resolve;
mod show;
mod tail;

use std::collections::BTreeMap;

use anyhow::Context;
use clap::Subcommand;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) use list::Pages;
pub(super) use resolve::resolve;

use super::block_on;
use super::globals::Globals;
use super::output::Output;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum Sessions {
    /// List sessions, the last changed first.
    List(list::List),
    /// Print one session: what it is, what waits, and its messages.
    Show(show::Show),
    /// Follow one session: a line per record, as it is written.
    Tail(tail::Tail),
    /// Delete one session: cancel what is live and remove every payload.
    Delete(delete::Delete),
}

impl Sessions {
    pub(super) fn run(self, globals: &Globals, output: &Output) -> anyhow::Result<Exit> {
        let client = globals.client(output)?;
        block_on(async {
            match self {
                Self::List(list) => list.run(&client, output).await,
                Self::Show(show) => show.run(&client, output).await,
                Self::Tail(tail) => tail.run(&client, output).await,
                Self::Delete(delete) => delete.run(&client, output).await,
            }
        })?
    }
}

/// A session as the server tells it. Fields that are not needed here are not read.
#[derive(Debug, Deserialize)]
struct Session {
    id: String,
    app: String,
    user: String,
    name: Option<String>,
    agent: String,
    status: String,
    revision: u64,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    created_at: String,
    updated_at: String,
    expires_at: Option<String>,
}

/// Reads what a server sent as what it should be.
pub(super) fn read<T: DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    serde::Deserialize::deserialize(value)
        .context("the server answered in a form that this version does not know")
}

/// A field that is a list.
fn elements<'a>(answer: &'a Value, field: &str) -> &'a [Value] {
    answer[field].as_array().map_or(&[], Vec::as_slice)
}

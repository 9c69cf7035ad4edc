//! `statehold keys`: the key ring of an installation.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;
use statehold_engine::api::key_ring;
use statehold_store::key_ring::KeyRing;

use super::answers::elements;
use super::block_on;
use super::check::require_data;
use super::data_engine::with_data;
use super::globals::GlobalArgs;
use super::output::{CliOutput, TableCell, TextTable};
use crate::exit::Exit;

/// The key ring: the secrets that wrap the keys of users, and seal what callers carry.
#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    /// Work on this data directory, without a server.
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum KeysCommand {
    /// List the secrets by their names. The secrets themselves are shown nowhere.
    List,
    /// Add a secret, and wrap the keys of all users with it. What older secrets sealed stays valid.
    Rotate,
}

/// A new ring would hide that the old one is lost.
fn require_ring(data: &Path) -> anyhow::Result<()> {
    if !data.join(KeyRing::NAME).is_file() {
        bail!(
            "there is no key ring in {}; put a copy of `{}` back, or start the server to begin a new one without \
             what the old one sealed",
            data.display(),
            KeyRing::NAME
        );
    }
    Ok(())
}

impl KeysArgs {
    pub(super) fn run(self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        let command = self.command;
        let ring = match &self.data {
            None => {
                let client = globals.client(output)?;
                let (method, path) = match command {
                    KeysCommand::List => (Method::GET, "/v1/key-ring"),
                    KeysCommand::Rotate => (Method::POST, "/v1/key-ring/rotate"),
                };
                block_on(client.call(method, path, None))??.body
            }
            Some(data) => {
                require_data(data)?;
                require_ring(data)?;
                block_on(with_data(data, async |engine, caller| {
                    let ring = match command {
                        KeysCommand::List => key_ring::list(&engine, &caller)?,
                        KeysCommand::Rotate => key_ring::rotate(&engine, &caller).await?,
                    };
                    Ok(serde_json::to_value(ring)?)
                }))??
            }
        };
        if output.json {
            return output.json(&ring);
        }
        let mut table = TextTable::new(&["SECRET", "CREATED", "USE"]);
        for key in elements(&ring, "keys") {
            let seals = key["seals"] == Value::Bool(true);
            let usage = if seals { "seals and opens" } else { "opens" };
            table.row(vec![
                TableCell::of(&key["id"]),
                output.time(&key["created_at"]),
                TableCell::new(usage),
            ]);
        }
        output.table(&table)?;
        if matches!(command, KeysCommand::Rotate) {
            output.note("copy `key-ring` and `user-keys` to where you keep them: earlier copies lack this secret");
        }
        Ok(Exit::Done)
    }
}

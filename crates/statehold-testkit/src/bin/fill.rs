//! Fills a data directory with a few sessions and prints the id of the first: `fill DIRECTORY`.

use std::path::Path;

use anyhow::{Context, Result};
use statehold_model::fixtures;
use statehold_store::keys::{KeyFile, KeyOwner, PayloadKeys as _};
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_testkit::workload::{Client, ClientKeys, session_id};

const SESSIONS: u64 = 3;
const TURNS: u64 = 100;

fn main() -> Result<()> {
    let directory = std::env::args().nth(1).context("usage: fill DIRECTORY")?;
    let directory = Path::new(&directory);
    let store = SqliteStore::open(directory, SqliteOptions::default())?;
    let keys = KeyFile::open(directory)?;
    let keys = ClientKeys {
        user: keys.get_or_create(&KeyOwner::User(fixtures::owner().user))?,
        tenant: keys.get_or_create(&KeyOwner::Tenant(fixtures::owner().tenant))?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    for n in 0..SESSIONS {
        let mut client = Client::new(session_id(1, n), keys.clone(), n);
        let create = client.create();
        runtime.block_on(client.send(&store, &create, fixtures::client()))?;
        for _ in 0..TURNS {
            let turn = client.turn();
            runtime.block_on(client.send(&store, &turn, fixtures::worker(1)))?;
        }
        for _ in 0..3 {
            // Ends in the middle of a pause: an open task, a live request, a decided hold.
            let (command, actor) = client.pause_step();
            runtime.block_on(client.send(&store, &command, actor))?;
        }
    }
    println!("{}", session_id(1, 0));
    Ok(())
}

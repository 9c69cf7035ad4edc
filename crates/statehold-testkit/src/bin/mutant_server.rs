//! The real server with one bug of the core switched on, to see that a harness notices it: called as
//! `dev … --data DIRECTORY` under the name of the bug, for example `decide-twice`. Everything runs on
//! one thread, because a bug is on for the thread that switched it on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::json;
use statehold_core::mutant::{self, Mutant};
use statehold_engine::{Engine, EngineOptions, OffsetClock, PayloadKeys};
use statehold_server::accept::{AcceptOptions, serve};
use statehold_server::seal::Sealer;
use statehold_server::{Metrics, ServerOptions};
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use tokio_util::sync::CancellationToken;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let data = args.last().map(PathBuf::from).context("no directory")?;
    let name = Path::new(&args[0]).file_name().unwrap_or_default();
    let named = |mutant: &Mutant| {
        let word = serde_json::to_value(mutant).unwrap_or_default();
        word.as_str() == name.to_str()
    };
    let bug = Mutant::ALL.into_iter().find(named);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    mutant::with(bug, || runtime.block_on(run(&data)))
}

async fn run(data: &Path) -> Result<()> {
    let store = SqliteStore::open(data, SqliteOptions::default())?;
    let keys = KeyFile::open(data)?;
    let sealer = Sealer::new(keys.ring());
    let clock = Arc::new(OffsetClock::default());
    let keys: Arc<dyn PayloadKeys> = Arc::new(keys);
    let engine = Engine::start(
        Arc::new(store),
        keys,
        Arc::clone(&clock) as Arc<dyn statehold_engine::Clock>,
        EngineOptions::default(),
    )
    .await?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let accept = AcceptOptions::default();
    let metrics = Metrics::new(Arc::clone(&accept.connections_open));
    let options = ServerOptions {
        keys_required: false,
        clock: Some(clock),
        ..ServerOptions::default()
    };
    let router = statehold_server::router(engine.clone(), sealer, options, metrics);
    let run = json!({ "pid": std::process::id(), "url": url, "started_at": "now" });
    std::fs::write(data.join("run.new"), run.to_string())?;
    std::fs::rename(data.join("run.new"), data.join("statehold.run"))?;
    let stop = CancellationToken::new();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        () = serve(listener, router, accept, stop.clone()) => {}
        _ = terminate.recv() => {}
    }
    engine.shut_down().await;
    Ok(())
}

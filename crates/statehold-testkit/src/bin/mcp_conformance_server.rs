//! The real server with the fixtures of the conformance suite of MCP, on loopback, without keys and with a store in
//! memory. Prints the address of its MCP endpoint and runs until it is killed. `scripts/test-mcp` runs it.

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use statehold_engine::{Engine, EngineOptions, OffsetClock, PayloadKeys};
use statehold_server::accept::{AcceptOptions, serve};
use statehold_server::seal::Sealer;
use statehold_server::{Metrics, ServerOptions};
use statehold_store::keys::KeyFile;
use statehold_store::memory::MemoryStore;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<()> {
    let data = tempfile::tempdir()?;
    let keys = KeyFile::open(data.path())?;
    let sealer = Sealer::new(keys.ring());
    let keys: Arc<dyn PayloadKeys> = Arc::new(keys);
    let engine = Engine::start(
        Arc::new(MemoryStore::default()),
        keys,
        Arc::new(OffsetClock::default()),
        EngineOptions::default(),
    )
    .await?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let accept = AcceptOptions::default();
    let metrics = Metrics::new(Arc::clone(&accept.connections_open));
    let options = ServerOptions {
        keys_required: false,
        mcp_fixtures: true,
        ..ServerOptions::default()
    };
    let router = statehold_server::router(engine.clone(), sealer, options, metrics);
    let mut output = std::io::stdout();
    writeln!(output, "http://{address}/mcp")?;
    output.flush()?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        () = serve(listener, router, accept, CancellationToken::new()) => {}
        _ = terminate.recv() => {}
    }
    engine.shut_down().await;
    Ok(())
}

//! What a client process does: several lanes, each with a connection and sessions of its own, send
//! mixed calls until they are told to stop, over any number of restarts of the server.
//!
//! A call with an idempotency key is repeated with the same key until it is answered. A call without
//! one is made once; if its answer is lost, the lane reads what became of it and goes on from there.

mod lane;
mod link;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use self::lane::Lane;
pub(super) use self::link::Link;
use super::log::{Entry, LogWriter};

/// What one client process is told.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The data directory, for the run file in it.
    pub data: PathBuf,
    /// The log to write.
    pub log: PathBuf,
    /// The same seed takes the same decisions, as far as the answers are the same.
    pub seed: u64,
    /// The number of this client.
    pub client: u64,
    /// How many lanes it has.
    pub lanes: u64,
}

impl LoadOptions {
    /// Reads the arguments `DATA LOG SEED CLIENT LANES`.
    ///
    /// # Errors
    ///
    /// If they are not these.
    pub fn from_args(args: &[String]) -> Result<Self> {
        let [data, log, seed, client, lanes] = args else {
            anyhow::bail!("usage: http_client DATA LOG SEED CLIENT LANES");
        };
        Ok(Self {
            data: data.into(),
            log: log.into(),
            seed: seed.parse()?,
            client: client.parse()?,
            lanes: lanes.parse()?,
        })
    }

    pub(super) fn to_args(&self) -> [PathBuf; 5] {
        let numbers = [self.seed, self.client, self.lanes].map(|n| n.to_string().into());
        let [seed, client, lanes] = numbers;
        [self.data.clone(), self.log.clone(), seed, client, lanes]
    }
}

/// Sends load until standard input ends, finishes the calls that are under way, and returns.
///
/// # Errors
///
/// If no server can be reached for long, or a log cannot be written.
pub fn run(options: &LoadOptions) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    std::thread::spawn(move || {
        // Whoever started this process holds the other end; an error means that it is gone.
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        told.store(true, Ordering::Relaxed);
    });
    let log = Arc::new(LogWriter::create(&options.log)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run_lanes(options, &log, &stop))?;
    log.write(&Entry::Done)
}

async fn run_lanes(
    options: &LoadOptions,
    log: &Arc<LogWriter>,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    let lanes: Vec<_> = (0..options.lanes)
        .map(|n| {
            let mut lane = Lane::new(options, n, Arc::clone(log));
            let stop = Arc::clone(stop);
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    lane.step().await.with_context(|| format!("lane {n}"))?;
                }
                Ok::<(), anyhow::Error>(())
            })
        })
        .collect();
    for lane in lanes {
        lane.await??;
    }
    Ok(())
}

/// The data directory's server, as it is now.
pub(super) fn address(data: &Path) -> Option<std::net::SocketAddr> {
    crate::http::RunFile::read(data)?.address()
}

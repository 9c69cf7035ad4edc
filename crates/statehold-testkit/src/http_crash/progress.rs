//! How far a run is, in its directory, so that ten thousand kills can be spread over several runs.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{HttpCrashReport, SeenRounds, gather};

/// The state of a run between two rounds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) seed: u64,
    /// Clients of a round have numbers of their own: a round that was broken off is not played again under them.
    pub(super) next_round: u64,
    pub(super) report: HttpCrashReport,
    pub(super) seen: SeenRounds,
}

impl Progress {
    const NAME: &str = "progress.json";

    /// How far the run in a directory is. `data` belongs to a server that runs.
    pub(super) fn load(directory: &Path, seed: u64, data: &Path) -> Result<Self> {
        let path = directory.join(Self::NAME);
        if !path.is_file() {
            return Ok(Self {
                seed,
                ..Self::default()
            });
        }
        let mut progress: Self = serde_json::from_slice(&std::fs::read(&path)?)
            .with_context(|| format!("reading {}", path.display()))?;
        ensure!(
            progress.seed == seed,
            "the run in {} has the seed {}",
            directory.display(),
            progress.seed
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // A round that was broken off has counted on. Its kills do not count.
        progress.seen.count = runtime.block_on(gather::shared_count(data))?;
        println!("going on behind {} kills", progress.report.cycles);
        Ok(progress)
    }

    /// The number of the next round, under which no later run plays.
    pub(super) fn begin_round(&mut self, directory: &Path) -> Result<u64> {
        let round = self.next_round;
        self.next_round += 1;
        self.save(directory)?;
        Ok(round)
    }

    /// Replaces the file in one step.
    pub(super) fn save(&self, directory: &Path) -> Result<()> {
        let path = directory.join(Self::NAME);
        let part = path.with_extension("part");
        std::fs::write(&part, serde_json::to_vec(self)?)?;
        std::fs::rename(&part, &path).with_context(|| format!("writing {}", path.display()))
    }
}

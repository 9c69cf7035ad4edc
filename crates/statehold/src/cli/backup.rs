//! `statehold backup`: copies everything that is stored into one file, of a running server or of a data directory.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use statehold_store::StoreError;
use statehold_store::check::CheckReport;
use statehold_store::sqlite::SqliteStore;

use super::block_on;
use super::check::{self, open_store};
use super::globals::GlobalArgs;
use super::output::CliOutput;
use super::printable::cell;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// Copy this data directory, without a server. Without it, the server at --url is asked for a copy.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The file to write. It must not exist.
    #[arg(value_name = "FILE")]
    to: PathBuf,
}

impl BackupArgs {
    pub(super) fn run(&self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        if self.to.exists() {
            let to = cell(&self.to.display().to_string());
            let message = format!("{to} exists already; name a file that does not");
            return Err(Failure::new(Exit::Failed, message).into());
        }
        // Only a backup that was checked gets the name.
        let part = unchecked_name(&self.to);
        let report = self.make(&part, globals, output)?;
        let bytes = std::fs::metadata(&self.to)?.len();
        if output.json {
            return output.json(&serde_json::json!({
                "file": self.to.display().to_string(),
                "bytes": bytes,
                "sessions": report.sessions,
                "records": report.records,
                "unverified_payloads": report.unverified,
            }));
        }
        let to = cell(&self.to.display().to_string());
        output.line(&format!("{to}  {bytes} bytes"))?;
        output.note(&check::summary(&report));
        output.note(
            "The backup does not include the key files `key-ring` and `user-keys`. Copy both separately: without \
             either, nobody can read what was said.",
        );
        output.note(
            "Nor does it include `hold-keys`: holds with sealed arguments must be opened again after a restore.",
        );
        Ok(Exit::Done)
    }

    fn make(
        &self,
        part: &Path,
        globals: &GlobalArgs,
        output: &CliOutput,
    ) -> anyhow::Result<CheckReport> {
        let data = self.data.as_deref();
        if let Some(data) = data {
            let store = open_store(data)?;
            remove_leftover(part)?;
            block_on(store.backup(part.to_owned()))?.context("the backup was not made")?;
        } else {
            let client = globals.client(output)?;
            remove_leftover(part)?;
            let mut file = create_private(part)?;
            let asked = serde_json::json!({});
            let download = client.download("/v1/backup", &asked, |piece| file.write_all(piece));
            let loaded = block_on(download)?;
            if loaded.is_err() {
                // The reason why it failed matters more than a file that is left.
                drop(std::fs::remove_file(part));
            }
            loaded?;
        }
        let mut progress = check::progress(!output.json && !output.quiet);
        match SqliteStore::accept_backup((part, &self.to), data, &mut progress) {
            Err(error @ StoreError::Corrupt { .. }) => {
                let message = "the backup is damaged, and was removed";
                let hint = "the data may be damaged too; look with: statehold check --data DIR, or statehold \
                            audit verify";
                let failure = Failure::new(Exit::ProblemsFound, message).hint(hint);
                Err(anyhow::Error::new(error).context(failure))
            }
            other => other.context("the backup was not made"),
        }
    }
}

/// The name of a backup that is not checked yet.
fn unchecked_name(to: &Path) -> PathBuf {
    let mut name = OsString::from(to);
    name.push(".unchecked");
    PathBuf::from(name)
}

/// Removes what a backup that was interrupted has left.
fn remove_leftover(part: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", part.display()))
        }
        _ => Ok(()),
    }
}

fn create_private(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let made = options.open(path);
    made.with_context(|| format!("cannot write {}", path.display()))
}

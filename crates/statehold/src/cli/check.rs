//! `statehold check`: is everything there, and is it what the log says?

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use statehold_core::ids::SessionId;
use statehold_store::PageLimit;
use statehold_store::Store;
use statehold_store::sqlite::{CheckReport, FILE_NAME, SqliteOptions, SqliteStore};

use super::{block_on, printable};
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Print the records of one session instead, one canonical JSON line each.
    #[arg(long, value_name = "SESSION")]
    print_chain: Option<SessionId>,
}

impl Check {
    pub(super) fn run(self, json: bool) -> anyhow::Result<Exit> {
        match self.print_chain {
            Some(session) => print_chain(&self.data, session),
            None => report(&self.data, json),
        }
    }
}

/// Shows on a terminal how far a check is.
pub(super) fn progress(is_wanted: bool) -> impl FnMut(usize, usize) {
    let is_shown = is_wanted && std::io::stderr().is_terminal();
    move |done, all| {
        if is_shown && all > 100 && (done.is_multiple_of(64) || done == all) {
            eprint!("\r{done} of {all} sessions");
            if done == all {
                eprintln!();
            }
        }
    }
}

/// The counts of a check, in one line.
pub(super) fn summary(report: &CheckReport) -> String {
    format!(
        "{} sessions, {} records, {} payloads verified, {} erased, {} without a key",
        report.sessions, report.records, report.payloads, report.erased, report.unverified
    )
}

fn report(data: &Path, json: bool) -> anyhow::Result<Exit> {
    let report = SqliteStore::check(data, &mut progress(!json))?;
    if json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(if report.problems.is_empty() {
        Exit::Done
    } else {
        Exit::ProblemsFound
    })
}

fn print(report: &CheckReport) {
    println!("{}", summary(report));
    for problem in &report.problems {
        println!(
            "✗ {}: {}",
            printable(&problem.place),
            printable(&problem.what)
        );
    }
    match report.problems.len() {
        0 => println!("✓ everything is what the log says"),
        count => {
            println!("{count} problems; restore a backup, or keep this data for a closer look");
        }
    }
}

/// Refuses a directory without data, which opening would create.
pub(super) fn require_data(data: &Path) -> anyhow::Result<()> {
    if !data.join(FILE_NAME).is_file() {
        bail!(
            "there is no data in {}; name the data directory with --data",
            data.display()
        );
    }
    Ok(())
}

/// Opens the store of a data directory that no process has open.
pub(super) fn open_store(data: &Path) -> anyhow::Result<SqliteStore> {
    require_data(data)?;
    SqliteStore::open(data, SqliteOptions::default()).context("the data cannot be opened")
}

/// Prints a chain in the form that `examples/verify_chain.py` and any other tool can verify.
fn print_chain(data: &Path, session: SessionId) -> anyhow::Result<Exit> {
    const PAGE: usize = 500;
    let store = open_store(data)?;
    let mut out = std::io::stdout().lock();
    let mut after = 0;
    loop {
        let page = block_on(store.chain(session, after, PageLimit::entries(PAGE)))??;
        for record in &page {
            out.write_all(record.as_bytes())?;
            out.write_all(b"\n")?;
            after = record.content.seq;
        }
        if page.len() < PAGE {
            break;
        }
    }
    if after == 0 {
        bail!("there is no session {session} in {}", data.display());
    }
    Ok(Exit::Done)
}

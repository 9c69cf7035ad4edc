//! The command line.

mod backup;
mod check;
mod demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Problems were found in what was looked at.
const PROBLEMS_FOUND: u8 = 10;

/// The state server for multi-agent AI systems.
#[derive(Debug, Parser)]
#[command(name = "statehold", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare everything a data directory says with what its log says.
    Check(check::Check),
    /// Copy a data directory to one file. Keys are not part of it.
    Backup(backup::Backup),
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Check(check) => check.run(),
            Command::Backup(backup) => backup.run(),
        }
    }
}

/// Text from outside, made safe for a terminal: control characters are shown, not obeyed.
pub(crate) fn printable(text: &str) -> String {
    let is_unsafe = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let show = |c: char| {
        if is_unsafe(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(show).collect()
}

/// Runs one asynchronous thing to its end.
fn block_on<T>(future: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .build()?
        .block_on(future))
}

//! `statehold debug-log`: prints the exchanges of agents with models, other agents and tools. Reads the files of a
//! data directory, so it is for their owner.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use statehold_engine::debug_log::{
    DebugBody, DebugEntry, DebugLogReader, DebugPeer, ReadEntry, file_paths,
};

use super::block_on;
use super::output::{CliOutput, TextTone};
use super::printable::{cell, printable};
use crate::exit::Exit;

/// How often a log is looked at that is followed.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug, Subcommand)]
pub(super) enum DebugLogCommand {
    /// Print the exchanges of a data directory, the oldest first. The server may run.
    Show(ShowArgs),
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Only exchanges of this session: its id, or how it begins or ends.
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// Wait for further exchanges and print them, until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
}

impl DebugLogCommand {
    pub(super) fn run(self, output: &CliOutput) -> anyhow::Result<Exit> {
        match self {
            Self::Show(show) => block_on(show.run(output))?,
        }
    }
}

impl ShowArgs {
    async fn run(&self, output: &CliOutput) -> anyhow::Result<Exit> {
        let data = &self.data;
        let unreadable = || format!("the debug log in {} cannot be read", data.display());
        if file_paths(data).with_context(unreadable)?.is_empty() && !self.follow {
            output.note("There is no debug log. Set `debug_log.enabled` and restart the server.");
            return Ok(Exit::Done);
        }
        let mut reader = DebugLogReader::open(data).with_context(unreadable)?;
        loop {
            match reader.read_next().with_context(unreadable)? {
                ReadEntry::Entry(entry) => {
                    if self.wants(&entry) {
                        print(&entry, output)?;
                    }
                }
                ReadEntry::Unreadable { file, why } => {
                    output.note(&format!("{}: {why}", cell(&file.display().to_string())));
                }
                ReadEntry::End if self.follow => tokio::time::sleep(LOOK_AGAIN).await,
                ReadEntry::End => return Ok(Exit::Done),
            }
        }
    }

    fn wants(&self, entry: &DebugEntry) -> bool {
        self.session.as_ref().is_none_or(|wanted| {
            let id = entry.exchange.session.to_string();
            !wanted.is_empty() && (id.starts_with(wanted) || id.ends_with(wanted))
        })
    }
}

fn print(entry: &DebugEntry, output: &CliOutput) -> anyhow::Result<()> {
    if output.json {
        output.json(entry)?;
        return Ok(());
    }
    output.line(&lines(entry, output))
}

fn lines(entry: &DebugEntry, output: &CliOutput) -> String {
    let exchange = &entry.exchange;
    let mut lines = Vec::new();
    if entry.dropped > 0 {
        let missing = format!(
            "{} exchanges are missing here: too many came at once",
            entry.dropped
        );
        lines.push(TextTone::Warning.paint(&missing));
    }
    let at = statehold_engine::api::json::Time(entry.at).to_string();
    let status = exchange
        .status
        .map_or_else(String::new, |status| format!("  {status}"));
    let with = match exchange.with {
        DebugPeer::Model => "model",
        DebugPeer::Agent => "agent",
        DebugPeer::Tool => "tool",
    };
    let head = format!(
        "{}  {} → {with}  {}{status}  {} ms",
        output.times.show(&at),
        exchange.agent,
        cell(&exchange.target),
        exchange.ms,
    );
    lines.push(TextTone::Strong.paint(&head));
    let ids = format!("  {}  {}", exchange.session, exchange.request);
    lines.push(TextTone::Dim.paint(&ids));
    if let Some(error) = &exchange.error {
        let error = format!("  ✗ {}", cell(error));
        lines.push(TextTone::Bad.paint(&error));
    }
    lines.extend(body_lines("→", &exchange.sent));
    lines.extend(body_lines("←", &exchange.received));
    lines.push(String::new());
    lines.join("\n")
}

fn body_lines(mark: &str, body: &DebugBody) -> Vec<String> {
    let text = printable(&body.text);
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| format!("  {mark} {line}"))
        .collect();
    if body.left_out > 0 {
        lines.push(format!("  {mark} … and {} bytes more", body.left_out));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_shown_and_not_obeyed() {
        let body = DebugBody {
            text: "a\u{1b}[2Jb\r\n\u{202e}c\u{9b}d".to_owned(),
            left_out: 7,
        };
        let expected = [
            "  → a\\u{1b}[2Jb\\r",
            "  → \\u{202e}c\\u{9b}d",
            "  → … and 7 bytes more",
        ];
        assert_eq!(body_lines("→", &body), expected);
    }
}

//! `statehold audit export`: the complete evidence as JSON lines.
//!
//! A first line with the public key, the entries of the audit stream, the chain of every session,
//! and a last line with the digest of all lines before. No payloads: records hold none.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use statehold_core::digest::Digest;
use statehold_core::tenant::TenantEvent;

use super::file::{EXPORT_VERSION, LineDigest};
use super::{PAGE_MAX, STREAM, records, records_of, session_record, stream_entry};
use crate::cli::answers::ListPages;
use crate::cli::output::CliOutput;
use crate::cli::printable::printable;
use crate::cli::resolve;
use crate::client::Client;
use crate::exit::{Exit, Failure, LostReader};

/// The longest time without a sign of progress.
const SILENCE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(in crate::cli) struct AuditExportArgs {
    /// The file to write, which must not exist; standard output if left out.
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    file: Option<PathBuf>,
    /// The records of this session only; a beginning of its id is enough.
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
}

impl AuditExportArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let only = match &self.session {
            Some(session) => Some(resolve::session(client, session).await?),
            None => None,
        };
        let out: Box<dyn Write> = match &self.file {
            Some(path) => Box::new(create_file(path)?),
            None => Box::new(std::io::stdout().lock()),
        };
        let mut lines = ExportWriter::new(out, output);
        let written = write_all(client, only.as_deref(), &mut lines).await;
        if let (Err(_), Some(path)) = (&written, &self.file) {
            // Remove the incomplete file. The error that stopped the export matters more than a
            // failure to remove it.
            drop(std::fs::remove_file(path));
        }
        let ExportCounts {
            entries,
            records,
            sessions,
        } = written?;
        let Some(path) = &self.file else {
            return Ok(Exit::Done);
        };
        if output.json {
            output.json(&json!({
                "file": path, "entries": entries, "records": records, "sessions": sessions,
            }))?;
        } else {
            output.line(&format!(
                "✓ {records} records of {sessions} sessions and {entries} entries are in {}",
                printable(&path.display().to_string())
            ))?;
            output.note("Verify it anywhere with: statehold audit verify --file FILE");
        }
        Ok(Exit::Done)
    }
}

fn create_file(path: &Path) -> Result<std::io::BufWriter<std::fs::File>, Failure> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| {
        let message = format!("{} cannot be written: {error}", path.display());
        Failure::new(Exit::Failed, message).hint("name a file that does not exist yet")
    })?;
    Ok(std::io::BufWriter::new(file))
}

#[derive(Debug, Default, Clone, Copy)]
struct ExportCounts {
    entries: u64,
    records: u64,
    sessions: u64,
}

async fn write_all(
    client: &Client,
    only: Option<&str>,
    lines: &mut ExportWriter<'_>,
) -> anyhow::Result<ExportCounts> {
    let (_, about) = records(client, STREAM, 0, 1).await?;
    let mut head = json!({ "at": jiff::Timestamp::now().to_string(), "v": EXPORT_VERSION });
    head["public_key"] = about["public_key"].clone();
    if let Some(session) = only {
        head["session"] = session.into();
    }
    lines.write(&json!({ "export": head }))?;
    let mut sessions = BTreeSet::new();
    let mut after = 0;
    loop {
        let (page, _) = records(client, STREAM, after, PAGE_MAX).await?;
        if page.is_empty() {
            break;
        }
        for sent in page {
            let entry = stream_entry(sent)?;
            after = entry.content.seq;
            lines.write_record("entry", entry.as_bytes(), entry.hash, None)?;
            lines.counts.entries += 1;
            if let TenantEvent::HeadsSigned { heads, .. } = &entry.content.event {
                // Lists leave out deleted sessions; signed roots still name them.
                sessions.extend(heads.iter().map(|head| head.session.to_string()));
            }
        }
    }
    if let Some(session) = only {
        sessions = BTreeSet::from([session.to_owned()]);
    } else {
        let mut pages = ListPages::sessions(Vec::new());
        while let Some(page) = pages.next(client, usize::MAX).await? {
            let ids = page.iter().filter_map(|session| session["id"].as_str());
            sessions.extend(ids.map(str::to_owned));
        }
    }
    for session in &sessions {
        write_session(client, session, lines).await?;
    }
    let counts = lines.counts;
    lines.finish()?;
    Ok(counts)
}

async fn write_session(
    client: &Client,
    session: &str,
    lines: &mut ExportWriter<'_>,
) -> anyhow::Result<()> {
    let mut after = 0;
    loop {
        let page = match records(client, &records_of(session), after, PAGE_MAX).await {
            // A signed root names the session and the server lost it: the export must show exactly
            // that.
            Err(failure) if failure.exit == Exit::NotFound => return Ok(()),
            other => other?.0,
        };
        if page.is_empty() {
            break;
        }
        for sent in page {
            let record = session_record(sent)?;
            after = record.content.seq;
            lines.write_record("record", record.as_bytes(), record.hash, Some(session))?;
            lines.counts.records += 1;
        }
    }
    lines.counts.sessions += 1;
    Ok(())
}

/// Writes the lines of an export.
struct ExportWriter<'a> {
    out: Box<dyn Write>,
    digest: LineDigest,
    counts: ExportCounts,
    output: &'a CliOutput,
    last_said: Instant,
    has_said: bool,
}

impl<'a> ExportWriter<'a> {
    fn new(out: Box<dyn Write>, output: &'a CliOutput) -> Self {
        Self {
            out,
            digest: LineDigest::default(),
            counts: ExportCounts::default(),
            output,
            last_said: Instant::now(),
            has_said: false,
        }
    }

    /// Writes a record in its canonical bytes, with its hash beside it.
    fn write_record(
        &mut self,
        kind: &str,
        content: &[u8],
        hash: Digest,
        of: Option<&str>,
    ) -> anyhow::Result<()> {
        let content = std::str::from_utf8(content)?;
        let of = of.map_or_else(String::new, |of| format!(",\"of\":\"{of}\""));
        self.write_line(&format!("{{\"{kind}\":{content},\"hash\":\"{hash}\"{of}}}"))?;
        self.print_progress();
        Ok(())
    }

    fn write(&mut self, line: &Value) -> anyhow::Result<()> {
        self.write_line(&line.to_string())
    }

    fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        self.digest.add(line.as_bytes());
        writeln!(self.out, "{line}").map_err(|error| LostReader(error).into())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let ExportCounts {
            entries,
            records,
            sessions,
        } = self.counts;
        let digest = self.digest.finish().to_string();
        self.write(&json!({ "end": {
            "digest": digest, "entries": entries, "records": records, "sessions": sessions,
        } }))?;
        if self.has_said {
            eprintln!();
        }
        self.out.flush().map_err(|error| LostReader(error).into())
    }

    fn print_progress(&mut self) {
        let is_shown = !self.output.quiet && std::io::stderr().is_terminal();
        if is_shown && self.last_said.elapsed() >= SILENCE_MAX {
            eprint!("\r{} records", self.counts.records);
            (self.last_said, self.has_said) = (Instant::now(), true);
        }
    }
}

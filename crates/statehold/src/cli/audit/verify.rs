//! `statehold audit verify`.

use std::path::{Path, PathBuf};

use clap::Args;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use statehold_core::digest::Digest;
use statehold_core::root::PublicKey;

use super::file::{self, ExportReport};
use super::{
    STREAM, VERIFY_MAX, records, records_of, session_record, shorten_digest, stream_entry,
};
use crate::cli::answers::{read, text};
use crate::cli::globals::GlobalArgs;
use crate::cli::output::{CliOutput, TextTone};
use crate::cli::printable::{cell, printable};
use crate::client::Client;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(in crate::cli) struct AuditVerifyArgs {
    /// Verify this export, without a server.
    #[arg(long, value_name = "EXPORT", conflicts_with = "against")]
    file: Option<PathBuf>,
    /// Verify the server, and that it still has every record of this export.
    #[arg(long, value_name = "EXPORT")]
    against: Option<PathBuf>,
    /// The public key that the export must be signed with.
    #[arg(long, value_name = "KEY")]
    public_key: Option<PublicKey>,
}

/// The report of a verification, by a server or of an export.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct VerifyReport {
    sessions: u64,
    records: u64,
    entries: u64,
    roots: u64,
    unverified_payloads: u64,
    unverified_roots: u64,
    problems_total: u64,
    head: Value,
    problems: Vec<Value>,
}

impl AuditVerifyArgs {
    pub(in crate::cli) async fn run(
        &self,
        globals: &GlobalArgs,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        if let Some(path) = &self.file {
            let export = file::read_export(path, self.public_key)?;
            return print_report(&export_as_answer(path, &export), output);
        }
        let client = globals.client(output)?;
        let export = match &self.against {
            Some(path) => Some(self.read_sound_export(path)?),
            None => None,
        };
        let asked = client.within(VERIFY_MAX);
        let answer = asked
            .call(Method::POST, "/v1/audit/verify", Some(&json!({})))
            .await;
        let mut answer = answer?.body;
        if let Some(export) = export {
            let missing = compare(&client, &export).await?;
            add(&mut answer, missing);
        }
        print_report(&answer, output)
    }

    /// Reads an export and rejects it if it has problems: only a sound export is worth comparing
    /// with.
    fn read_sound_export(&self, path: &Path) -> anyhow::Result<ExportReport> {
        let export = file::read_export(path, self.public_key)?;
        let wrong = match (&export.broken, export.report.problems.first()) {
            (Some((line, why)), _) => format!("line {line} {why}"),
            (None, Some(problem)) => problem.to_string(),
            (None, None) => return Ok(export),
        };
        let message = format!("{} is not a sound export: {wrong}", path.display());
        let hint = "look closer with: statehold audit verify --file EXPORT";
        Err(Failure::new(Exit::ProblemsFound, message).hint(hint).into())
    }
}

/// The problems of an export, in the layout of a server response.
fn export_as_answer(path: &Path, export: &ExportReport) -> Value {
    let report = &export.report;
    let mut problems: Vec<Value> = Vec::new();
    if let Some((line, why)) = &export.broken {
        let detail = format!("line {line} of {} {why}", path.display());
        problems.push(json!({ "kind": "line", "line": line, "detail": detail }));
    }
    problems.extend(report.problems.iter().map(|problem| {
        let mut said = json!({
            "kind": problem.kind, "detail": problem.to_string(),
            "session_id": problem.session, "revision": problem.revision, "entry": problem.entry,
        });
        if let Value::Object(fields) = &mut said {
            fields.retain(|_, value| !value.is_null());
        }
        said
    }));
    json!({
        "ok": problems.is_empty(),
        "sessions": report.sessions,
        "records": report.records,
        "entries": report.entries,
        "roots": report.roots,
        "unverified_roots": report.unverified_roots,
        "head": { "seq": report.head.seq, "hash": report.head.hash.to_string() },
        "public_key": export.public_key.map(|key| key.to_string()),
        "problems_total": problems.len(),
        "problems": problems,
    })
}

/// Lists records that the export has and the server lacks.
async fn compare(client: &Client, export: &ExportReport) -> anyhow::Result<Vec<Value>> {
    let mut missing = Vec::new();
    let head = export.report.head;
    if head.seq > 0 {
        let (page, _) = records(client, STREAM, head.seq - 1, 1).await?;
        let found = page.into_iter().next().map(stream_entry);
        let found = found.transpose()?.map(|entry| entry.hash);
        if let Some((kind, what)) = compare_hashes(found, head.hash) {
            let detail = format!("entry {} of the audit stream {what}", head.seq);
            let kind = if kind == "record" { "entry" } else { kind };
            missing.push(json!({ "kind": kind, "entry": head.seq, "detail": detail }));
        }
    }
    for (session, revision, hash) in &export.heads {
        let page = records(client, &records_of(&session.to_string()), revision - 1, 1).await;
        let (kind, what) = match page {
            Err(failure) if failure.exit == Exit::NotFound => {
                ("missing_session", "is missing with its whole session")
            }
            Err(failure) => return Err(failure.into()),
            Ok((page, _)) => {
                let found = page.into_iter().next().map(session_record);
                match compare_hashes(found.transpose()?.map(|record| record.hash), *hash) {
                    Some(wrong) => wrong,
                    None => continue,
                }
            }
        };
        let detail = format!("record {revision} of session {session} {what}");
        missing.push(json!({
            "kind": kind, "session_id": session, "revision": revision, "detail": detail,
        }));
    }
    Ok(missing)
}

fn compare_hashes(found: Option<Digest>, exported: Digest) -> Option<(&'static str, &'static str)> {
    match found {
        None => Some(("missing_tail", "is in the export but missing on the server")),
        Some(found) if found != exported => Some(("record", "differs from the one in the export")),
        Some(_) => None,
    }
}

fn add(answer: &mut Value, missing: Vec<Value>) {
    if missing.is_empty() {
        return;
    }
    let total = answer["problems_total"].as_u64().unwrap_or(0) + missing.len() as u64;
    answer["ok"] = false.into();
    answer["problems_total"] = total.into();
    if let Some(problems) = answer["problems"].as_array_mut() {
        problems.extend(missing);
    }
}

fn print_report(answer: &Value, output: &CliOutput) -> anyhow::Result<Exit> {
    let found: VerifyReport = read(answer)?;
    let is_ok = answer["ok"] == true && found.problems.is_empty();
    let exit = if is_ok {
        Exit::Done
    } else {
        Exit::ProblemsFound
    };
    if output.json {
        output.json(answer)?;
        return Ok(exit);
    }
    for problem in &found.problems {
        let mark = TextTone::Bad.paint("✗");
        let line = format!(
            "{mark} {}: {}",
            cell(text(problem, "kind")),
            printable(text(problem, "detail"))
        );
        output.line(&line)?;
    }
    let covered = format!(
        "{} records in {} sessions, {} entries, {} signed roots",
        found.records, found.sessions, found.entries, found.roots
    );
    if is_ok {
        let mark = TextTone::Good.paint("✓");
        let head = shorten_digest(&cell(text(&found.head, "hash")));
        output.prose(&format!("{mark} {covered}, chain intact, head {head}"))?;
    } else {
        let total = found.problems_total;
        let more = match found.problems.len() as u64 {
            shown if shown < total => format!(", the first {shown} shown"),
            _ => String::new(),
        };
        output.note(&format!("{total} problems{more}; looked at {covered}"));
        output.note("Keep the data unchanged for analysis, or restore an earlier backup.");
    }
    if found.unverified_payloads > 0 {
        let count = found.unverified_payloads;
        output.note(&format!(
            "{count} payloads cannot be compared: their keys are gone"
        ));
    }
    if found.unverified_roots > 0 {
        let count = found.unverified_roots;
        output.note(&format!(
            "{count} roots are signed with an earlier key and cannot be verified"
        ));
    }
    Ok(exit)
}

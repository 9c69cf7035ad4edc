//! `statehold audit`: shows who did what, and verifies that no record was changed.

mod decisions;
mod export;
mod file;
mod list;
mod verify;

use std::time::Duration;

use clap::Subcommand;
use serde_json::Value;
use statehold_core::digest::Digest;
use statehold_core::record::{Record, RecordError};
use statehold_core::tenant::TenantRecord;

use super::block_on;
use super::globals::GlobalArgs;
use super::output::{CliOutput, TableCell};
use crate::client::{Client, with_query};
use crate::exit::{Exit, Failure};

/// The page size for records.
const PAGE_MAX: usize = 500;
/// The timeout of a verification, which reads all data.
const VERIFY_MAX: Duration = Duration::from_hours(24);

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// List the audit stream, the records of a session, or decided holds.
    List(list::AuditListArgs),
    /// Verify every chain, payload and signature of a server, or of an export.
    Verify(verify::AuditVerifyArgs),
    /// Write the audit stream and all records as JSON lines that can be verified without a server.
    Export(export::AuditExportArgs),
}

impl AuditCommand {
    pub(super) fn run(self, globals: &GlobalArgs, output: &CliOutput) -> anyhow::Result<Exit> {
        block_on(async {
            match self {
                Self::List(list) => list.run(&globals.client(output)?, output).await,
                Self::Verify(verify) => verify.run(globals, output).await,
                Self::Export(export) => export.run(&globals.client(output)?, output).await,
            }
        })?
    }
}

/// Reads a record of a session, and checks its hash.
fn session_record(sent: Value) -> Result<Record, Failure> {
    verify_record(sent, Record::from_bytes, |record| record.hash)
}

/// Reads an entry of the audit stream, and checks its hash.
fn stream_entry(sent: Value) -> Result<TenantRecord, Failure> {
    verify_record(sent, TenantRecord::from_bytes, |entry| entry.hash)
}

/// Separates the content from the hash, which the server sends as one object, and checks the hash.
fn verify_record<T>(
    mut sent: Value,
    read: fn(&[u8]) -> Result<T, RecordError>,
    hash_of: fn(&T) -> Digest,
) -> Result<T, Failure> {
    let wrong = |what: &str| {
        Failure::new(
            Exit::ProblemsFound,
            format!("the server sent a record {what}"),
        )
        .hint("find the problem with: statehold audit verify")
    };
    let members = sent.as_object_mut();
    // `shift_remove` keeps the order of the members; `remove` would change it.
    let hash = members.and_then(|members| members.shift_remove("hash"));
    let hash = hash.and_then(|hash| hash.as_str()?.parse::<Digest>().ok());
    let record = read(sent.to_string().as_bytes())
        .map_err(|error| wrong(&format!("that this version cannot read: {error}")))?;
    if hash == Some(hash_of(&record)) {
        Ok(record)
    } else {
        Err(wrong("whose hash does not match its content"))
    }
}

/// One page of records, and the other fields of the response.
async fn records(
    client: &Client,
    path: &str,
    after: u64,
    limit: usize,
) -> Result<(Vec<Value>, Value), Failure> {
    let parameters = [
        ("after", Some(after.to_string())),
        ("limit", Some(limit.min(PAGE_MAX).to_string())),
    ];
    let mut answer = client.get(&with_query(path, &parameters)).await?.body;
    let records = match answer["records"].take() {
        Value::Array(records) => records,
        _ => Vec::new(),
    };
    Ok((records, answer))
}

const STREAM: &str = "/v1/audit/records";

fn records_of(session: &str) -> String {
    format!("/v1/sessions/{session}/records")
}

/// The first characters of a digest, for people.
fn shorten_digest(digest: &str) -> String {
    let start: String = digest.chars().take(8).collect();
    format!("{start}…")
}

/// The whole digest for programs, a short one for people.
fn digest_cell(digest: &Value, output: &CliOutput) -> TableCell {
    match digest.as_str() {
        Some(digest) if output.is_terminal => TableCell::new(shorten_digest(digest)),
        digest => TableCell::optional(digest),
    }
}

/// Formats the time of a record.
fn time_text(micros: i64) -> String {
    let time = jiff::Timestamp::from_microsecond(micros);
    time.map_or_else(|_| micros.to_string(), |time| time.to_string())
}

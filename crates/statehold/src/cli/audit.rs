//! `statehold audit`: who did what, and whether all of it is still as it was written.

mod decisions;
mod export;
mod file;
mod list;
mod verify;

use std::time::Duration;

use clap::Subcommand;
use serde_json::Value;
use statehold_core::digest::Digest;
use statehold_core::record::Record;
use statehold_core::tenant::TenantRecord;

use super::block_on;
use super::globals::Globals;
use super::output::Output;
use crate::client::{Client, with_query};
use crate::exit::{Exit, Failure};

/// How many records are asked for at once.
const PAGE_MAX: usize = 500;
/// How long a verification may take. It reads everything there is.
const VERIFY_MAX: Duration = Duration::from_hours(24);

#[derive(Debug, Subcommand)]
pub(super) enum Audit {
    /// List the audit stream, the records of a session, or what people decided.
    List(list::List),
    /// Verify every chain, payload and signature of a server, or of an export.
    Verify(verify::Verify),
    /// Write the audit stream and all records as JSON lines that anybody can verify.
    Export(export::Export),
}

impl Audit {
    pub(super) fn run(self, globals: &Globals, output: &Output) -> anyhow::Result<Exit> {
        block_on(async {
            match self {
                Self::List(list) => list.run(&globals.client(output)?, output).await,
                Self::Verify(verify) => verify.run(globals, output).await,
                Self::Export(export) => export.run(&globals.client(output)?, output).await,
            }
        })?
    }
}

/// Something with a place in a chain, as the server sent it: the content and its hash are one object.
trait Chained: Sized {
    fn from_bytes(bytes: &[u8]) -> Result<Self, statehold_core::record::RecordError>;
    fn hash(&self) -> Digest;
    fn as_bytes(&self) -> &[u8];
}

impl Chained for Record {
    fn from_bytes(bytes: &[u8]) -> Result<Self, statehold_core::record::RecordError> {
        Self::from_bytes(bytes)
    }

    fn hash(&self) -> Digest {
        self.hash
    }

    fn as_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Chained for TenantRecord {
    fn from_bytes(bytes: &[u8]) -> Result<Self, statehold_core::record::RecordError> {
        Self::from_bytes(bytes)
    }

    fn hash(&self) -> Digest {
        self.hash
    }

    fn as_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Takes the content out of what the server sent, and compares its hash.
fn unwrap_record<T: Chained>(mut sent: Value) -> Result<T, Failure> {
    let wrong = |what: &str| {
        Failure::new(
            Exit::ProblemsFound,
            format!("the server sent a record {what}"),
        )
        .hint("see what is wrong with: statehold audit verify")
    };
    let members = sent.as_object_mut();
    // Not `remove`: it would put the last member in this place.
    let hash = members.and_then(|members| members.shift_remove("hash"));
    let hash = hash.and_then(|hash| hash.as_str()?.parse::<Digest>().ok());
    let record = T::from_bytes(sent.to_string().as_bytes())
        .map_err(|error| wrong(&format!("that this version cannot read: {error}")))?;
    if hash == Some(record.hash()) {
        Ok(record)
    } else {
        Err(wrong("whose hash is not that of its content"))
    }
}

/// One page of records, and everything else that the answer says.
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

/// The beginning of a digest, for people.
fn short(digest: &str) -> String {
    let start: String = digest.chars().take(8).collect();
    format!("{start}…")
}

/// A time of a record.
fn time_text(micros: i64) -> String {
    let time = jiff::Timestamp::from_microsecond(micros);
    time.map_or_else(|_| micros.to_string(), |time| time.to_string())
}

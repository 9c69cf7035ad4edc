//! What a client was told: one line of JSON per call, written before the next call is made.
//!
//! A line that is cut off was never finished; what it would have said counts as not told.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A new session.
    Create,
    /// A whole turn in one call.
    Turn,
    /// A request that a worker will claim.
    Start,
    /// The claim of that request.
    Claim,
    /// Items under a fence.
    Items,
    /// The end of a request.
    Complete,
    /// The end of a request of which too little is known.
    Cancel,
    /// A patch of the session's state.
    Patch,
    /// One added to a counter that all sessions share.
    Count,
    /// A hold that is opened.
    Hold,
    /// Its decision.
    Decide,
    /// The end of a session.
    Delete,
}

/// A call that can be made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The HTTP method.
    pub method: String,
    /// The path.
    pub path: String,
    /// The body, as it was sent.
    pub body: String,
    /// The revision in `If-Match`, if there was one.
    pub if_match: Option<u64>,
}

/// What was asked, whatever came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// What for.
    pub op: Op,
    /// The session, if it is known.
    pub session: Option<String>,
    /// Marks in the content that the call writes; each must be found once or not at all.
    pub marks: Vec<String>,
}

/// What was acknowledged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ack {
    /// What was asked.
    pub asked: Asked,
    /// The status code.
    pub status: u16,
    /// The revision in the `ETag`.
    pub revision: Option<u64>,
    /// The request that the answer is about.
    pub request: Option<String>,
    /// The hold that the answer is about.
    pub hold: Option<String>,
    /// Ids of items with their numbers.
    pub items: Vec<(String, u64)>,
    /// State keys with version and value.
    pub state: BTreeMap<String, (u64, Value)>,
    /// The name of a new session.
    pub name: Option<String>,
    /// A new session whose feed is to be followed.
    pub is_followed: bool,
    /// The idempotency key with the call, if there was one.
    pub keyed: Option<(String, Call)>,
    /// SHA-256 of the answer.
    pub digest: String,
    /// How often the call was made before it was answered.
    pub attempts: u64,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The call was carried out.
    Ack(Box<Ack>),
    /// The connection was lost: the call was carried out or not.
    Lost(Asked),
    /// The call was refused.
    Refused {
        /// What was asked.
        asked: Asked,
        /// The status code.
        status: u16,
        /// What the server said.
        answer: String,
        /// Whether a sound server may refuse this: it is busy.
        is_expected: bool,
    },
    /// Something that must not be.
    Problem(String),
    /// The client has ended by itself: the log is complete.
    Done,
}

/// A log that is being written.
#[derive(Debug)]
pub struct LogWriter(Mutex<File>);

impl LogWriter {
    /// Begins a log.
    ///
    /// # Errors
    ///
    /// If the file cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self(Mutex::new(file)))
    }

    /// Writes one line, in one piece and not through a buffer.
    ///
    /// # Errors
    ///
    /// If the disk is full.
    pub fn write(&self, entry: &Entry) -> Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let mut file = self
            .0
            .lock()
            .map_err(|_| anyhow::anyhow!("a writer of the log panicked"))?;
        file.write_all(&line)?;
        Ok(file.flush()?)
    }
}

/// Reads the complete lines of a log.
///
/// # Errors
///
/// If a line that was finished is not an entry.
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    parse(&bytes).with_context(|| path.display().to_string())
}

pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Entry>> {
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
    let lines = bytes[..complete].split(|byte| *byte == b'\n');
    lines
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(number, line)| {
            serde_json::from_slice(line).with_context(|| format!("line {}", number + 1))
        })
        .collect()
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))
}

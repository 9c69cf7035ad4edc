//! Reads an export and verifies it without a server. `docs/formats/export-v1.md` specifies the
//! format.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::record::{Event, Record};
use statehold_core::root::PublicKey;
use statehold_core::tenant::{TenantHead, TenantRecord};
use statehold_core::time::Timestamp;
use statehold_store::CheckReport;
use statehold_store::check::{Anchor, Anchors, Signer, StreamCheck};

use crate::exit::{Exit, Failure};

/// The version of the export format.
pub(super) const EXPORT_VERSION: u32 = 1;

/// A chained digest of lines: the digest of each line goes into the next.
#[derive(Debug, Default)]
pub(super) struct LineDigest(Digest);

impl LineDigest {
    pub(super) fn add(&mut self, line: &[u8]) {
        let so_far = self.0;
        self.0 = Digest::sha256(&[so_far.as_bytes().as_slice(), line].concat());
    }

    pub(super) fn finish(&self) -> Digest {
        self.0
    }
}

/// The content of an export and the problems found in it.
#[derive(Debug)]
pub(super) struct ExportReport {
    pub(super) report: CheckReport,
    pub(super) public_key: Option<PublicKey>,
    /// Sessions with the number and the hash of their last record.
    pub(super) heads: Vec<(SessionId, u64, Digest)>,
    /// The line at which reading stopped, and why.
    pub(super) broken: Option<(usize, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportLine<'a> {
    export: Option<ExportHead>,
    #[serde(borrow)]
    entry: Option<&'a RawValue>,
    record: Option<&'a RawValue>,
    hash: Option<Digest>,
    of: Option<SessionId>,
    end: Option<ExportEnd>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportHead {
    #[serde(rename = "at")]
    _at: String,
    public_key: PublicKey,
    session: Option<SessionId>,
    v: u32,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ExportEnd {
    digest: Digest,
    entries: usize,
    records: usize,
    sessions: usize,
}

/// Reads an export and verifies everything in it.
///
/// # Errors
///
/// If the file cannot be read at all.
pub(super) fn read_export(
    path: &Path,
    trusted: Option<PublicKey>,
) -> Result<ExportReport, Failure> {
    let unreadable = |error: std::io::Error| {
        let exit = match error.kind() {
            std::io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Failed,
        };
        let message = format!("{} cannot be read: {error}", path.display());
        Failure::new(exit, message).hint("make one with: statehold audit export -o FILE")
    };
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    let mut reader = ExportReader::new(trusted);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        let count = file.read_until(b'\n', &mut line).map_err(unreadable)?;
        if count == 0 && reader.has_ended {
            return Ok(reader.finish(None));
        }
        number += 1;
        let taken = match line.strip_suffix(b"\n") {
            Some(whole) => reader.take(whole),
            None => Err("is where the export was cut off".to_owned()),
        };
        if let Err(why) = taken {
            return Ok(reader.finish(Some((number, why))));
        }
    }
}

/// Whether a record continues the chain of another session.
fn is_fork(record: &Record, before: SessionId) -> bool {
    let content = &record.content;
    matches!(
        content.events.first(),
        Some(Event::SessionForked { session, origin, at, .. })
            if (*session, *origin, *at) == (content.session, before, content.seq - 1)
    )
}

/// Verifies the lines of an export one by one.
struct ExportReader {
    trusted: Option<PublicKey>,
    head: Option<ExportHead>,
    stream: Option<StreamCheck>,
    anchors: Anchors,
    report: CheckReport,
    digest: LineDigest,
    chain: Option<SessionChain>,
    heads: Vec<(SessionId, u64, Digest)>,
    has_ended: bool,
}

/// The session chain being read.
struct SessionChain {
    of: SessionId,
    anchor: Option<Anchor>,
    seq: u64,
    hash: Digest,
    at: Timestamp,
    /// The session that the last record was written for: before a fork, the origin.
    session: SessionId,
}

impl ExportReader {
    fn new(trusted: Option<PublicKey>) -> Self {
        Self {
            trusted,
            head: None,
            stream: None,
            anchors: Anchors::default(),
            report: CheckReport::default(),
            digest: LineDigest::default(),
            chain: None,
            heads: Vec::new(),
            has_ended: false,
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<(), String> {
        if self.has_ended {
            return Err("comes after the end of the export".to_owned());
        }
        let read: ExportLine<'_> = serde_json::from_slice(line)
            .map_err(|error| format!("is not a line of an export: {error}"))?;
        match read {
            ExportLine { end: Some(end), .. } if self.head.is_some() => self.take_end(&end)?,
            ExportLine {
                export: Some(head), ..
            } if self.head.is_none() => self.take_head(head)?,
            ExportLine {
                entry: Some(entry),
                hash: Some(hash),
                ..
            } if self.head.is_some() => {
                self.take_entry(entry, hash)?;
            }
            ExportLine {
                record: Some(record),
                hash: Some(hash),
                of: Some(of),
                ..
            } if self.head.is_some() => {
                self.take_record(record, hash, of)?;
            }
            _ => return Err("is not allowed at this place of an export".to_owned()),
        }
        self.digest.add(line);
        Ok(())
    }

    fn take_head(&mut self, head: ExportHead) -> Result<(), String> {
        if head.v != EXPORT_VERSION {
            return Err(format!(
                "has version {}, this build knows {EXPORT_VERSION}",
                head.v
            ));
        }
        if self
            .trusted
            .is_some_and(|trusted| trusted != head.public_key)
        {
            return Err(format!(
                "names the key {}, which is not the one you gave",
                head.public_key
            ));
        }
        self.head = Some(head);
        Ok(())
    }

    fn take_entry(&mut self, entry: &RawValue, hash: Digest) -> Result<(), String> {
        if self.chain.is_some() {
            return Err("is an entry after the records".to_owned());
        }
        let entry = TenantRecord::from_bytes(entry.get().as_bytes())
            .map_err(|error| format!("has an entry that cannot be read: {error}"))?;
        if entry.hash != hash {
            return Err("has an entry whose hash does not match its content".to_owned());
        }
        let signer = self.head.as_ref().map(|head| Signer {
            public_key: head.public_key,
            // An export does not say since when its key signs; earlier roots may have another key.
            since: Timestamp::from_micros(i64::MAX),
        });
        let stream = self
            .stream
            .get_or_insert_with(|| StreamCheck::new(entry.content.tenant.clone(), signer, None));
        let known = self.report.problems.len();
        if stream.follow(&entry, &mut self.anchors, &mut self.report) {
            return Ok(());
        }
        let why = self.report.problems.drain(known..).next_back();
        Err(why.map_or_else(String::new, |why| format!("breaks the chain: {why}")))
    }

    fn take_record(
        &mut self,
        record: &RawValue,
        hash: Digest,
        of: SessionId,
    ) -> Result<(), String> {
        let record = Record::from_bytes(record.get().as_bytes())
            .map_err(|error| format!("has a record that cannot be read: {error}"))?;
        if record.hash != hash {
            return Err("has a record whose hash does not match its content".to_owned());
        }
        if self.chain.as_ref().is_none_or(|chain| chain.of != of) {
            self.end_chain()?;
            if self.heads.iter().any(|(known, ..)| *known == of) {
                return Err(format!("goes back to session {of}"));
            }
            self.chain = Some(SessionChain {
                of,
                anchor: self.anchors.take(of),
                seq: 0,
                hash: Digest::ZERO,
                at: record.content.at,
                session: record.content.session,
            });
        }
        let Some(chain) = &mut self.chain else {
            return Ok(());
        };
        let content = &record.content;
        let follows = content.seq == chain.seq + 1
            && content.prev_hash == chain.hash
            && content.at >= chain.at
            && (content.session == chain.session || is_fork(&record, chain.session));
        if !follows {
            return Err(format!(
                "breaks the chain: record {} of session {of} is not the one after record {}",
                content.seq, chain.seq
            ));
        }
        (chain.seq, chain.hash, chain.at) = (content.seq, record.hash, content.at);
        chain.session = content.session;
        let replaced = chain.anchor.and_then(|anchor| anchor.compare(of, &record));
        if let Some(problem) = replaced {
            return Err(format!("is not what was signed: {problem}"));
        }
        self.report.records += 1;
        Ok(())
    }

    fn end_chain(&mut self) -> Result<(), String> {
        let Some(chain) = self.chain.take() else {
            return Ok(());
        };
        if chain.session != chain.of {
            let (of, last) = (chain.of, chain.session);
            return Err(format!("follows a chain of {of} that ends in {last}"));
        }
        self.report.sessions += 1;
        self.heads.push((chain.of, chain.seq, chain.hash));
        let shortened = chain
            .anchor
            .and_then(|anchor| anchor.compare_length(chain.of, chain.seq));
        self.report.add_all(shortened);
        Ok(())
    }

    fn take_end(&mut self, end: &ExportEnd) -> Result<(), String> {
        self.end_chain()?;
        self.has_ended = true;
        let found = (
            self.report.entries,
            self.report.records,
            self.report.sessions,
        );
        if end.digest != self.digest.finish() || found != (end.entries, end.records, end.sessions) {
            return Err("does not match the lines before it".to_owned());
        }
        Ok(())
    }

    fn finish(mut self, broken: Option<(usize, String)>) -> ExportReport {
        if broken.is_none() {
            let anchors = match self.head.as_ref().and_then(|head| head.session) {
                Some(session) => self.anchors.only(session),
                None => self.anchors,
            };
            anchors.report_missing(&mut self.report);
        }
        self.report.head = self
            .stream
            .as_ref()
            .map_or_else(TenantHead::default, StreamCheck::head);
        ExportReport {
            report: self.report,
            public_key: self.head.map(|head| head.public_key),
            heads: self.heads,
            broken,
        }
    }
}

//! The report of a store check, and the judgements that every adapter shares: records by the
//! promises of the core, payloads by their digests, audit streams by their chains, and the ends of
//! chains by signed roots.

use std::collections::BTreeMap;

use serde::Serialize;
use statehold_core::apply::apply;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::invariant::{Facts, Observation, RecordStep, judge_all};
use statehold_core::name::Name;
use statehold_core::record::{Event, Record};
use statehold_core::root::{HEADS_PER_ROOT_MAX, PublicKey, SignedHead};
use statehold_core::scope::Scope;
use statehold_core::session::SessionState;
use statehold_core::tenant::{TenantEvent, TenantHead, TenantRecord};
use statehold_core::time::Timestamp;

use crate::keys::{KeyOwner, KnownKeys};
use crate::port::{StoreError, StoredRecord};
use crate::signing::{RootSigner, is_signed};

/// How many problems are kept; the others are only counted.
const PROBLEMS_KEPT_MAX: usize = 1_000;

/// The result of a check.
#[derive(Debug, Default, Serialize)]
pub struct CheckReport {
    /// Sessions checked.
    pub sessions: usize,
    /// Records verified.
    pub records: usize,
    /// Payloads whose digest was verified.
    pub payloads: usize,
    /// Payloads that were erased.
    pub erased: usize,
    /// Payloads that cannot be verified, because their key was deleted or lost.
    pub unverified: usize,
    /// Entries of audit streams verified.
    pub entries: usize,
    /// Roots among them that are signed with the key of this server.
    pub roots: usize,
    /// Roots signed with a deleted or lost key.
    pub unverified_roots: usize,
    /// The end of the audit stream, if the check covers one tenant.
    #[serde(skip)]
    pub head: TenantHead,
    /// How many problems there are.
    pub problems_total: usize,
    /// The problems with their places; only the first ones if there are very many.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    /// Adds problems.
    pub fn add_all(&mut self, problems: impl IntoIterator<Item = Problem>) {
        for problem in problems {
            self.add(problem);
        }
    }

    /// Notes damage that a part of the check met, so that the next part is checked all the same.
    pub(crate) fn go_on(&mut self, checked: Result<(), StoreError>) -> Result<(), StoreError> {
        match checked {
            Err(error @ StoreError::Corrupt { .. }) => {
                self.add(Problem::of(ProblemKind::Projection, &error));
                Ok(())
            }
            checked => checked,
        }
    }

    pub(crate) fn add(&mut self, problem: Problem) {
        self.problems_total += 1;
        if self.problems.len() < PROBLEMS_KEPT_MAX {
            self.problems.push(problem);
        }
    }
}

/// Kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// A record is missing or was altered.
    Record,
    /// A payload does not match its digest, or is missing or left over against the records.
    Payload,
    /// A projection differs from the log.
    Projection,
    /// A chain ends before a record that it once had.
    MissingTail,
    /// A session that was once there is not.
    MissingSession,
    /// An entry of an audit stream, or a key that it speaks of.
    Entry,
    /// A root is not signed as it should be.
    Root,
}

/// A problem that a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The kind of the problem.
    pub kind: ProblemKind,
    /// The session it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The record it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The entry of the audit stream that it is in, or that says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<u64>,
    /// Where.
    pub place: String,
    /// The description.
    pub what: String,
}

impl Problem {
    pub(crate) fn new(
        kind: ProblemKind,
        place: impl Into<String>,
        what: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            session: None,
            revision: None,
            entry: None,
            place: place.into(),
            what: what.into(),
        }
    }

    pub(crate) fn projection(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(ProblemKind::Projection, place, what)
    }

    /// A problem of a kind that a store reported as damage.
    pub(crate) fn of(kind: ProblemKind, error: &StoreError) -> Self {
        match error {
            StoreError::Corrupt { place, source, .. } => Self::new(kind, place, source.to_string()),
            other => Self::new(kind, "the file", other.to_string()),
        }
    }

    pub(crate) fn in_session(self, session: SessionId) -> Self {
        let session = Some(session);
        Self { session, ..self }
    }

    pub(crate) fn at(self, revision: u64) -> Self {
        let revision = Some(revision);
        Self { revision, ..self }
    }

    pub(crate) fn in_entry(self, entry: u64) -> Self {
        let entry = Some(entry);
        Self { entry, ..self }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Judges one record by the promises of the core.
pub(crate) fn check_record(
    stored: &StoredRecord,
    before: &SessionState,
    facts: &mut Facts,
    report: &mut CheckReport,
) {
    let record = &stored.record;
    let mut after = before.clone();
    apply(&mut after, record);
    let seen = Observation::Record(RecordStep {
        before,
        record,
        after: &after,
    });
    let (seq, session) = (record.content.seq, record.content.session);
    for invariant in judge_all(facts, &seen).broken() {
        let place = format!("record {seq} of session {session}");
        let what = format!("breaks the promise \"{}\"", invariant.name());
        let problem = Problem::new(ProblemKind::Record, place, what);
        report.add(problem.in_session(session).at(seq));
    }
    facts.absorb(record);
}

/// Compares payloads with the digests in the record, as far as their keys still exist. `sealed` says which payloads
/// are there, under a key that is gone.
pub(crate) fn check_payloads(
    stored: &StoredRecord,
    sealed: &[bool],
    before: &SessionState,
    keys: Option<&dyn KnownKeys>,
    report: &mut CheckReport,
) {
    let mut bodies = stored.bodies.iter().zip(sealed);
    let mut owner = before.owner.clone();
    for event in &stored.record.content.events {
        if let Event::SessionCreated { owner: new, .. } = event {
            owner = Some(new.clone());
        }
        let key_owner = owner.as_ref().map(|owner| match event {
            Event::SharedStatePut { key, .. } if key.scope() == Scope::App => {
                KeyOwner::Tenant(owner.tenant.clone())
            }
            _ => KeyOwner::User(owner.user),
        });
        let content = &stored.record.content;
        let key = key_owner.as_ref().zip(keys);
        let key = key.and_then(|(owner, keys)| Some((keys.get(owner)?, keys.since(owner)?)));
        for name in event.bodies() {
            match (bodies.next(), &key) {
                (Some((Some(payload), _)), Some((key, since))) => {
                    if Digest::keyed(key, payload) == name.digest {
                        report.payloads += 1;
                    } else if *since > content.at {
                        // It was digested under a deleted key: the current one is younger.
                        report.unverified += 1;
                    } else {
                        let what = "is not what its digest says";
                        report.add(bad_payload(content.session, content.seq, what));
                    }
                }
                (Some((None, true)), _) | (Some((Some(_), _)), None) => report.unverified += 1,
                (Some((None, false)) | None, _) => report.erased += 1,
            }
        }
    }
}

pub(crate) fn bad_payload(session: SessionId, seq: u64, what: &str) -> Problem {
    let place = format!("a payload of record {seq} of session {session}");
    Problem::new(ProblemKind::Payload, place, what)
        .in_session(session)
        .at(seq)
}

/// The newest record of a session that a root names.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    revision: u64,
    hash: Digest,
    entry: u64,
}

impl Anchor {
    /// Compares the record that it names, when it comes by.
    pub fn compare(&self, session: SessionId, record: &Record) -> Option<Problem> {
        let is_other = record.content.seq == self.revision && record.hash != self.hash;
        is_other.then(|| {
            let place = format!("record {} of session {session}", self.revision);
            let what = format!("is not the one that entry {} signed", self.entry);
            let problem = Problem::new(ProblemKind::Record, place, what).in_session(session);
            problem.at(self.revision).in_entry(self.entry)
        })
    }

    /// Compares how long the chain is.
    pub fn compare_length(&self, session: SessionId, revision: u64) -> Option<Problem> {
        (revision < self.revision).then(|| {
            let place = format!("session {session}");
            let what = format!(
                "ends at record {revision}, and entry {} signed record {}",
                self.entry, self.revision
            );
            let problem = Problem::new(ProblemKind::MissingTail, place, what).in_session(session);
            problem.at(self.revision).in_entry(self.entry)
        })
    }
}

/// The newest signed head of each session, collected from the roots of audit streams.
#[derive(Debug, Default)]
pub struct Anchors(BTreeMap<SessionId, Anchor>);

impl Anchors {
    fn learn(&mut self, entry: u64, heads: &[SignedHead]) {
        for head in heads {
            let anchor = Anchor {
                revision: head.revision,
                hash: head.hash,
                entry,
            };
            let known = self.0.entry(head.session).or_insert(anchor);
            if known.revision <= anchor.revision {
                *known = anchor;
            }
        }
    }

    /// Removes and returns the anchor of a session that exists.
    pub fn take(&mut self, session: SessionId) -> Option<Anchor> {
        self.0.remove(&session)
    }

    /// Keeps only the anchor of one session.
    #[must_use]
    pub fn only(mut self, session: SessionId) -> Self {
        self.0.retain(|other, _| *other == session);
        self
    }

    /// Reports every session whose anchor was not taken as missing.
    pub fn report_missing(self, report: &mut CheckReport) {
        for (session, anchor) in self.0 {
            let place = format!("session {session}");
            let what = format!(
                "is missing, and entry {} signed its record {}",
                anchor.entry, anchor.revision
            );
            let problem = Problem::new(ProblemKind::MissingSession, place, what);
            let problem = problem.in_session(session).at(anchor.revision);
            report.add(problem.in_entry(anchor.entry));
        }
    }
}

/// The current signing key of roots, and its creation time.
#[derive(Debug, Clone, Copy)]
pub struct Signer {
    /// The key that verifies its signatures.
    pub public_key: PublicKey,
    /// Roots before this time may be signed with a deleted or lost key.
    pub since: Timestamp,
}

impl Signer {
    /// The signer of a server, if it has ever signed.
    pub(crate) fn of(keys: Option<&dyn KnownKeys>) -> Option<Self> {
        let keys = keys?;
        let secret = keys.get(&KeyOwner::Signer)?;
        Some(Self {
            public_key: RootSigner::new(&secret).public_key(),
            since: keys.since(&KeyOwner::Signer)?,
        })
    }
}

/// Follows one audit stream from its beginning.
#[derive(Debug)]
pub struct StreamCheck {
    tenant: Name,
    signer: Option<Signer>,
    head: TenantHead,
    /// An entry that must be there, because this process wrote it.
    expected: Option<TenantHead>,
    /// Whether a root of the signer came by: from then on there is no other.
    has_own_root: bool,
}

impl StreamCheck {
    /// Begins to follow the stream of a tenant.
    pub fn new(tenant: Name, signer: Option<Signer>, expected: Option<TenantHead>) -> Self {
        Self {
            tenant,
            signer,
            head: TenantHead::default(),
            expected,
            has_own_root: false,
        }
    }

    /// The last entry that was followed.
    pub fn head(&self) -> TenantHead {
        self.head
    }

    pub(crate) fn problem(&self, kind: ProblemKind, entry: u64, what: &str) -> Problem {
        let place = format!("entry {entry} of the audit stream of {}", self.tenant);
        Problem::new(kind, place, what).in_entry(entry)
    }

    /// Judges the next entry. Nothing behind one that does not follow is worth a look.
    pub fn follow(
        &mut self,
        record: &TenantRecord,
        anchors: &mut Anchors,
        report: &mut CheckReport,
    ) -> bool {
        let (content, next) = (&record.content, self.head.seq + 1);
        let follows = content.seq == next
            && content.prev_hash == self.head.hash
            && content.at >= self.head.at
            && content.tenant == self.tenant;
        if !follows {
            let what = if content.seq > next {
                "is missing"
            } else {
                "does not follow the one before"
            };
            report.add(self.problem(ProblemKind::Entry, next, what));
            return false;
        }
        if self
            .expected
            .is_some_and(|expected| expected.seq == content.seq && expected.hash != record.hash)
        {
            let what = "is not the one that this server wrote";
            report.add(self.problem(ProblemKind::Entry, content.seq, what));
        }
        if let TenantEvent::HeadsSigned {
            heads, public_key, ..
        } = &content.event
        {
            self.check_root(record, heads, *public_key, anchors, report);
        }
        report.entries += 1;
        self.head = record.head();
        true
    }

    fn check_root(
        &mut self,
        record: &TenantRecord,
        heads: &[SignedHead],
        public_key: PublicKey,
        anchors: &mut Anchors,
        report: &mut CheckReport,
    ) {
        let seq = record.content.seq;
        let is_ordered = heads.is_sorted_by(|one, next| one.session < next.session);
        let is_own = self.signer.is_some_and(|own| own.public_key == public_key);
        // A root signed with a lost key is older than the current key.
        let may_be_old =
            !self.has_own_root && self.signer.is_none_or(|own| own.since > record.content.at);
        let what = if !is_signed(record) {
            "is a root without the signature of the key that it names"
        } else if !is_ordered || heads.len() > HEADS_PER_ROOT_MAX {
            "is a root whose heads are too many or not in order"
        } else if !is_own && !may_be_old {
            "is a root signed with another key than it should be"
        } else {
            self.has_own_root |= is_own;
            report.roots += usize::from(is_own);
            report.unverified_roots += usize::from(!is_own);
            return anchors.learn(seq, heads);
        };
        report.add(self.problem(ProblemKind::Root, seq, what));
    }

    /// Says if the stream ends before an entry that this process wrote.
    pub fn finish(&self, report: &mut CheckReport) {
        let missing = self
            .expected
            .filter(|expected| expected.seq > self.head.seq);
        if let Some(expected) = missing {
            let place = format!("the audit stream of {}", self.tenant);
            let what = format!(
                "ends at entry {}, and this server wrote entry {}",
                self.head.seq, expected.seq
            );
            let problem = Problem::new(ProblemKind::MissingTail, place, what);
            report.add(problem.in_entry(expected.seq));
        }
    }
}

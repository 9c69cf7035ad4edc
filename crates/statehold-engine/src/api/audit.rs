//! The audit stream of a tenant, and its verification.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::principal::Principal;
use statehold_core::tenant::{TenantContent, TenantEvent, TenantHead, TenantRecord};
use statehold_store::{Problem as CheckProblem, ProblemKind};
use utoipa::ToSchema;

use super::schema::{ProblemKindWord, PublicKeyText, RecordForm};
use super::session::with_hash;
use crate::audit::ENTRIES_STEP;
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_any;

/// The largest number of problems in a view.
const PROBLEMS_MAX: usize = 100;
/// Stop reading entries for one page at this many bytes.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// The end of the audit stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditHead)]
pub struct AuditHeadView {
    /// Number of entries.
    pub seq: u64,
    /// Hash of the last entry; zeros if the stream is empty.
    pub hash: Digest,
}

impl From<TenantHead> for AuditHeadView {
    fn from(head: TenantHead) -> Self {
        Self {
            seq: head.seq,
            hash: head.hash,
        }
    }
}

/// Entries of the audit stream. A page may be short: the stream ends where `head` says.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditPage)]
pub struct AuditRecords {
    #[schema(value_type = Vec<RecordForm>)]
    pub records: Vec<Box<RawValue>>,
    /// The names of the people who are principals in the entries, or whom they are about. Erased names are left out.
    pub names: BTreeMap<String, String>,
    pub head: AuditHeadView,
    /// The public key that verifies the signatures of roots.
    #[schema(value_type = PublicKeyText)]
    pub public_key: String,
}

/// An empty object.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = VerifyIn)]
pub struct VerifyInput {}

/// The result of a verification.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verification)]
pub struct VerificationView {
    /// True if the verification found no problem.
    pub ok: bool,
    /// Verified sessions, including deleted ones.
    pub sessions: usize,
    /// Records whose place in the chain was verified.
    pub records: usize,
    /// Payloads that match their digests.
    pub payloads: usize,
    /// Payloads that cannot be verified because their key is gone.
    pub unverified_payloads: usize,
    /// Verified entries of the audit stream.
    pub entries: usize,
    /// Entries that are roots with a valid signature of this server.
    pub roots: usize,
    /// Roots that cannot be verified because their key is gone.
    pub unverified_roots: usize,
    pub head: AuditHeadView,
    /// The public key that verifies the signatures of roots.
    #[schema(value_type = PublicKeyText)]
    pub public_key: String,
    /// Number of problems.
    pub problems_total: usize,
    /// The first 100 problems.
    #[schema(max_items = 100)]
    pub problems: Vec<AuditProblemView>,
}

/// A mismatch between stored data and its hash, digest or signature.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditProblem)]
pub struct AuditProblemView {
    #[schema(value_type = ProblemKindWord)]
    pub kind: ProblemKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The revision of the record in the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The entry of the audit stream that is wrong or contradicts the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<u64>,
    /// The problem, in a sentence.
    pub detail: String,
}

impl From<&CheckProblem> for AuditProblemView {
    fn from(problem: &CheckProblem) -> Self {
        Self {
            kind: problem.kind,
            session_id: problem.session,
            revision: problem.revision,
            entry: problem.entry,
            detail: problem.to_string(),
        }
    }
}

/// Reads a page of the audit stream: a hash chain of key changes, trace reads and signed roots. A page may be
/// short; an empty page ends the stream.
///
/// # Errors
///
/// If the caller may not read it.
pub async fn records(
    engine: &Engine,
    caller: &Caller,
    after: u64,
    limit: usize,
) -> Result<AuditRecords, EngineError> {
    require_any(caller, &[Role::Operator, Role::Admin])?;
    let public_key = engine.root_signer().await?.public_key();
    let store = &engine.inner().store;
    let mut records = Vec::new();
    let mut people = Vec::new();
    let (mut after, mut bytes) = (after, 0);
    while records.len() < limit && bytes < PAGE_BYTES_MAX {
        let step = ENTRIES_STEP.min(limit - records.len());
        let page = store.tenant_records(caller.tenant.clone(), after, step);
        let page = page.await?;
        let Some(last) = page.last() else { break };
        after = last.content.seq;
        people.extend(page.iter().flat_map(|one| people_in(&one.content)));
        bytes += page.iter().map(|one| one.as_bytes().len()).sum::<usize>();
        let chained =
            |record: &TenantRecord| with_hash(record.as_bytes(), &record.hash.to_string());
        records.extend(page.iter().map(chained));
    }
    let head = store.tenant_head(caller.tenant.clone()).await?;
    let names = engine.names_for(caller, people).await?;
    Ok(AuditRecords {
        records,
        names: names.by_principal(),
        head: head.into(),
        public_key: public_key.to_string(),
    })
}

/// The principal of an entry, and the users whom it is about.
fn people_in(content: &TenantContent) -> impl Iterator<Item = Principal> {
    let about = match content.event {
        TenantEvent::KeyCreated { owner, user, .. } => [owner, user],
        TenantEvent::UserErased { user, .. } => [Some(user), None],
        TenantEvent::HeadsSigned { .. }
        | TenantEvent::KeyRevoked { .. }
        | TenantEvent::ResumeAddressSet { .. }
        | TenantEvent::ResumeAddressRemoved { .. }
        | TenantEvent::KeyRingRotated { .. }
        | TenantEvent::BackupMade { .. }
        | TenantEvent::TraceRead { .. } => [None, None],
    };
    let about = about.into_iter().flatten().map(Principal::User);
    std::iter::once(content.principal).chain(about)
}

/// Verifies every chain, payload, table and root of the tenant. The engine keeps serving calls meanwhile.
///
/// # Errors
///
/// If the caller may not, another verification is running, or the store fails.
pub async fn verify(engine: &Engine, caller: &Caller) -> Result<VerificationView, EngineError> {
    require_any(caller, &[Role::Operator, Role::Admin])?;
    let public_key = engine.root_signer().await?.public_key();
    let report = engine.verify(&caller.tenant).await?;
    let problems = report.problems.iter().take(PROBLEMS_MAX);
    Ok(VerificationView {
        ok: report.problems_total == 0,
        sessions: report.sessions,
        records: report.records,
        payloads: report.payloads,
        unverified_payloads: report.unverified,
        entries: report.entries,
        roots: report.roots,
        unverified_roots: report.unverified_roots,
        head: report.head.into(),
        public_key: public_key.to_string(),
        problems_total: report.problems_total,
        problems: problems.map(AuditProblemView::from).collect(),
    })
}

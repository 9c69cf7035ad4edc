//! The audit stream of a tenant, and its verification.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::tenant::TenantHead;
use statehold_store::Problem as CheckProblem;
use utoipa::ToSchema;

use super::schema::{ProblemKindWord, PublicKeyText, RecordForm};
use super::session::with_hash;
use crate::audit::Verification;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;

/// The largest number of problems in a view.
const PROBLEMS_MAX: usize = 100;

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
    pub kind: &'static str,
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
            kind: problem.kind.name(),
            session_id: problem.session,
            revision: problem.revision,
            entry: problem.entry,
            detail: problem.to_string(),
        }
    }
}

impl From<Verification> for VerificationView {
    fn from(found: Verification) -> Self {
        let report = found.report;
        Self {
            ok: report.problems_total == 0,
            sessions: report.sessions,
            records: report.records,
            payloads: report.payloads,
            unverified_payloads: report.unverified,
            entries: report.entries,
            roots: report.roots,
            unverified_roots: report.unverified_roots,
            head: report.head.into(),
            public_key: found.public_key.to_string(),
            problems_total: report.problems_total,
            problems: report
                .problems
                .iter()
                .take(PROBLEMS_MAX)
                .map(AuditProblemView::from)
                .collect(),
        }
    }
}

/// Reads a page of the audit stream: a hash chain of key changes, trace reads and signed roots.
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
    let (records, head, key) = engine.audit_records(caller, after, limit).await?;
    let records = records.iter();
    let records = records.map(|record| with_hash(record.as_bytes(), &record.hash.to_string()));
    Ok(AuditRecords {
        records: records.collect(),
        head: head.into(),
        public_key: key.to_string(),
    })
}

/// Verifies every chain, payload, table and root of the tenant. The engine keeps serving calls meanwhile.
///
/// # Errors
///
/// If the caller may not, or the store fails.
pub async fn verify(engine: &Engine, caller: &Caller) -> Result<VerificationView, EngineError> {
    Ok(engine.verify(caller).await?.into())
}

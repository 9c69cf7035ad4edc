//! The audit stream of a tenant, and the verification of everything.

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

/// How many problems a view names.
const PROBLEMS_MAX: usize = 100;

/// The end of the audit stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditHead)]
pub struct AuditHeadView {
    /// How many entries there are.
    pub seq: u64,
    /// Hash of the last; zeros without any.
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
    /// What verifies the signatures of roots.
    #[schema(value_type = PublicKeyText)]
    pub public_key: String,
}

/// Nothing to say so far.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = VerifyIn)]
pub struct VerifyInput {}

/// What a verification found.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verification)]
pub struct VerificationView {
    /// Whether nothing is wrong.
    pub ok: bool,
    /// Sessions looked at, deleted ones too.
    pub sessions: usize,
    /// Records whose place in a chain was verified.
    pub records: usize,
    /// Payloads that are what their digests say.
    pub payloads: usize,
    /// Payloads whose key is gone, so that nobody can say what they must be.
    pub unverified_payloads: usize,
    /// Entries of the audit stream that were verified.
    pub entries: usize,
    /// Roots among them that this server signed.
    pub roots: usize,
    /// Roots that were signed with a key that is gone.
    pub unverified_roots: usize,
    pub head: AuditHeadView,
    /// What verifies the signatures of roots.
    #[schema(value_type = PublicKeyText)]
    pub public_key: String,
    /// How many problems there are.
    pub problems_total: usize,
    /// The first of them.
    #[schema(max_items = 100)]
    pub problems: Vec<AuditProblemView>,
}

/// Something that is not as it was written.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditProblem)]
pub struct AuditProblemView {
    #[schema(value_type = ProblemKindWord)]
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The record of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The entry of the audit stream that is wrong, or that says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<u64>,
    /// What is wrong, in a sentence.
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

/// A page of the audit stream: changes of keys, reads of traces and signed roots, as a chain.
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
    let found = engine.audit_records(caller, after, limit).await?;
    let records = found.records.iter();
    let records = records.map(|record| with_hash(record.as_bytes(), &record.hash.to_string()));
    Ok(AuditRecords {
        records: records.collect(),
        head: found.head.into(),
        public_key: found.public_key.to_string(),
    })
}

/// Verifies every chain, payload, table and root of the tenant. Calls go on meanwhile.
///
/// # Errors
///
/// If the caller may not, or the store fails.
pub async fn verify(engine: &Engine, caller: &Caller) -> Result<VerificationView, EngineError> {
    Ok(engine.verify(caller).await?.into())
}

//! The audit stream, and the verification of everything.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_core::tenant::TenantHead;
use statehold_engine::{CheckProblem, Verification};
use utoipa::ToSchema;

use super::session::RecordParams;
use super::{About, page_limit, revision, shown};
use crate::http::call::{App, CallContext, Params, Payload};
use crate::http::problem::Problem;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_engine::api::schema::{ProblemKindWord, PublicKeyText, RecordForm};
use statehold_engine::api::session::with_hash;

/// How many problems an answer names.
const PROBLEMS_MAX: usize = 100;

/// The end of the audit stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditHead)]
pub(crate) struct HeadOut {
    /// How many entries there are.
    seq: u64,
    /// Hash of the last; zeros without any.
    #[schema(value_type = Digest)]
    hash: String,
}

impl From<TenantHead> for HeadOut {
    fn from(head: TenantHead) -> Self {
        Self {
            seq: head.seq,
            hash: head.hash.to_string(),
        }
    }
}

/// Entries of the audit stream. A page may be short: the stream ends where `head` says.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditPage {
    #[schema(value_type = Vec<RecordForm>)]
    records: Vec<Box<RawValue>>,
    head: HeadOut,
    /// What verifies the signatures of roots.
    #[schema(value_type = PublicKeyText)]
    public_key: String,
}

/// The audit stream of the tenant: changes of keys, reads of traces and signed roots, as a chain.
#[utoipa::path(
    get, path = "/v1/audit/records", tag = "audit", params(RecordParams),
    responses((status = 200, body = AuditPage))
)]
pub(crate) async fn records(
    State(app): State<App>,
    asked: CallContext,
    Params(params): Params<RecordParams>,
) -> Result<Response, Problem> {
    let limit = page_limit(params.limit.or(Some(100)), 1_000)?;
    let after = revision(params.after, "after")?.unwrap_or(0);
    let found = app
        .engine
        .audit_records(&asked.caller, after, limit)
        .await?;
    let chained = found
        .records
        .iter()
        .map(|record| with_hash(record.as_bytes(), &record.hash.to_string()));
    let page = AuditPage {
        records: chained.collect(),
        head: found.head.into(),
        public_key: found.public_key.to_string(),
    };
    Ok(shown(&page, &About::default()))
}

/// Nothing to say so far.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VerifyIn {}

/// What a verification found.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verification)]
pub(crate) struct VerificationOut {
    /// Whether nothing is wrong.
    ok: bool,
    /// Sessions looked at, deleted ones too.
    sessions: usize,
    /// Records whose place in a chain was verified.
    records: usize,
    /// Payloads that are what their digests say.
    payloads: usize,
    /// Payloads whose key is gone, so that nobody can say what they must be.
    unverified_payloads: usize,
    /// Entries of the audit stream that were verified.
    entries: usize,
    /// Roots among them that this server signed.
    roots: usize,
    /// Roots that were signed with a key that is gone.
    unverified_roots: usize,
    head: HeadOut,
    /// What verifies the signatures of roots.
    #[schema(value_type = PublicKeyText)]
    public_key: String,
    /// How many problems there are.
    problems_total: usize,
    /// The first of them.
    #[schema(max_items = 100)]
    problems: Vec<ProblemOut>,
}

/// Something that is not as it was written.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditProblem)]
pub(crate) struct ProblemOut {
    #[schema(value_type = ProblemKindWord)]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SessionId>)]
    session_id: Option<String>,
    /// The record of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    /// The entry of the audit stream that is wrong, or that says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<u64>,
    /// What is wrong, in a sentence.
    detail: String,
}

impl From<&CheckProblem> for ProblemOut {
    fn from(problem: &CheckProblem) -> Self {
        Self {
            kind: problem.kind.name(),
            session_id: problem.session.map(|session| session.to_string()),
            revision: problem.revision,
            entry: problem.entry,
            detail: problem.to_string(),
        }
    }
}

impl From<Verification> for VerificationOut {
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
                .map(ProblemOut::from)
                .collect(),
        }
    }
}

/// Verify every chain, payload, table and root of the tenant. Calls go on meanwhile.
#[utoipa::path(
    post, path = "/v1/audit/verify", tag = "audit", request_body = VerifyIn,
    responses((status = 200, body = VerificationOut))
)]
pub(crate) async fn verify(
    State(app): State<App>,
    asked: CallContext,
    _body: Payload<VerifyIn>,
) -> Result<Response, Problem> {
    let found = app.engine.verify(&asked.caller).await?;
    Ok(shown(&VerificationOut::from(found), &About::default()))
}

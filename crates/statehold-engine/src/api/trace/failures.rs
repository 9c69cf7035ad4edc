//! Why requests failed, for readers of traces: clients never see it.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::request::RequestOutcome;
use statehold_store::StoredItem;
use utoipa::ToSchema;

use crate::api::json::{Raw, Time, raw_bytes};
use crate::bodies::error_in;
use crate::engine::Engine;
use crate::error::EngineError;

/// The bytes of errors that one page has. The newest failures come first; the others are read with their request.
const ERRORS_BYTES_MAX: u64 = 64 * 1024;

/// A failed request, and why it failed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FailedRequest {
    pub request_id: RequestId,
    pub alias: String,
    pub task_id: TaskId,
    pub at: Time,
    /// The error that its worker gave. Left out if it is erased, or too long for the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub error: Option<Raw>,
}

/// The failed requests among those that wrote some items, the newest first. The caller must have checked that they
/// may be seen.
pub(crate) async fn failures_in(
    engine: &Engine,
    session: SessionId,
    items: &[StoredItem],
) -> Result<Vec<FailedRequest>, EngineError> {
    let store = &engine.inner().store;
    let requests: BTreeSet<RequestId> = items.iter().map(|item| item.placed.request).collect();
    let mut failed = Vec::new();
    for request in requests {
        let ended = store.ended_request(request).await?;
        failed.extend(ended.filter(|ended| ended.outcome == RequestOutcome::Failed));
    }
    failed.sort_unstable_by_key(|ended| std::cmp::Reverse(ended.number));
    let mut left = ERRORS_BYTES_MAX;
    let mut found = Vec::with_capacity(failed.len());
    for ended in failed {
        let record = engine.record_head(session, ended.ended_by).await?;
        let events = record
            .as_ref()
            .map(|record| record.content.events.as_slice());
        let body = error_in(events.unwrap_or_default(), ended.id);
        let body = body.filter(|body| u64::from(body.bytes) <= left);
        let mut error = None;
        if let Some(body) = body {
            left -= u64::from(body.bytes);
            let place = (session, ended.ended_by, Some(body));
            let read = engine.read_payloads([place].into(), raw_bytes).await?;
            error = read.into_values().next();
        }
        found.push(FailedRequest {
            request_id: ended.id,
            alias: format!("R{}", ended.number),
            task_id: ended.task,
            at: ended.ended_at.into(),
            error,
        });
    }
    Ok(found)
}

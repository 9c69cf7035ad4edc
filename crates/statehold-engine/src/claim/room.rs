//! The room for claimed requests in one answer: only as many are claimed as fit, and the others stay in the queue.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_store::{HoldSummary, SessionSummary, record_bytes};

use super::ClaimedRequest;
use crate::answer_memory::{ANSWER_PAGE_BYTES, AnswerMemory, take_unless_small};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::holds::{fitting_holds, payload_bytes};
use crate::read::RequestDetail;

/// How many holds and how many children of a request a claim shows.
const HOLDS_MAX: usize = 256;
const CHILDREN_MAX: usize = 1_024;
/// The payloads of the children that a claim shows.
const CHILDREN_BYTES_MAX: u64 = 256 * 1024;
/// How many holds of a request are looked at together.
const HOLD_STEP: usize = 200;

/// The room of one claim.
pub(super) struct ClaimRoom<'a> {
    /// None if the claim has no limit in bytes.
    memory: Option<&'a dyn AnswerMemory>,
    /// The bytes of the requests that were claimed.
    claimed: u64,
    /// The bytes of the requests that are tried.
    tried: BTreeMap<RequestId, u64>,
    /// Whether the next request in the queue did not fit.
    pub(super) is_full: bool,
}

impl<'a> ClaimRoom<'a> {
    pub(super) fn new(memory: Option<&'a dyn AnswerMemory>) -> Self {
        Self {
            memory,
            claimed: 0,
            tried: BTreeMap::new(),
            is_full: false,
        }
    }

    pub(super) fn is_bounded(&self) -> bool {
        self.memory.is_some()
    }

    /// Keeps the first requests of a batch that fit beside the claimed ones, and takes the memory for all of them.
    /// One that is too large is claimed alone.
    pub(super) async fn fit(
        &mut self,
        engine: &Engine,
        caller: &Caller,
        batch: &mut Vec<(SessionId, RequestId)>,
    ) -> Result<(), EngineError> {
        let Some(memory) = self.memory else {
            return Ok(());
        };
        let sizes = batch
            .iter()
            .map(|(session, request)| engine.claim_bytes(caller, *session, *request));
        let sizes = futures_util::future::join_all(sizes).await;
        let (mut fitting, mut bytes) = (0, self.claimed);
        self.tried.clear();
        for ((_, request), size) in batch.iter().zip(sizes) {
            // The claim itself reports damage, and claims nothing.
            let size = size.unwrap_or(0);
            if bytes > 0 && bytes + size > ANSWER_PAGE_BYTES {
                break;
            }
            (fitting, bytes) = (fitting + 1, bytes + size);
            self.tried.insert(*request, size);
        }
        self.is_full = fitting < batch.len();
        batch.truncate(fitting);
        if batch.is_empty() {
            return Ok(());
        }
        take_unless_small(memory, bytes).await
    }

    /// Notes that a request was claimed.
    pub(super) fn keep(&mut self, request: RequestId) {
        self.claimed += self.tried.remove(&request).unwrap_or(0);
    }
}

impl Engine {
    /// The bytes of the payloads that a claim of a request shows.
    async fn claim_bytes(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RequestId,
    ) -> Result<u64, EngineError> {
        let state = self.durable_state(session).await?;
        let Some(live) = state.requests.get(&request) else {
            return Ok(0);
        };
        let started = self.record_head(session, live.started_by).await?;
        let mut bytes = started.as_ref().map_or(0, record_bytes);
        if live.holds_opened > 0 {
            let (rows, _) = self.latest_holds(request).await?;
            // A decided one is there twice: as a hold, and as a decision.
            bytes += 2 * rows.iter().map(payload_bytes).sum::<u64>();
        }
        if live.fence > 0 {
            // The children that a claim shows have at most this.
            let has_children = !self.inner().store.children_of(request).await?.is_empty();
            bytes += u64::from(has_children) * CHILDREN_BYTES_MAX;
        }
        if live.ran || live.memory.is_some() {
            // Its length is known only when it has been read, so few do that at the same time.
            let permit = self.inner().session_searches.line_up(caller, 1).await;
            let state = self.task_state_for(session, request).await?;
            bytes += state.map_or(0, |state| state.len() as u64);
            drop(permit);
        }
        Ok(bytes)
    }

    /// A request as its new worker sees it: with the newest decisions and children that fit an answer, and without
    /// credentials. The caller has taken the memory for it.
    pub(super) async fn short_work_view(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RequestId,
    ) -> Result<ClaimedRequest, EngineError> {
        let summary = self.inner().store.session(session).await?;
        let summary = summary.ok_or(EngineError::NotFound)?;
        let head = self.head_in(caller, summary.clone(), request).await?;
        // The first worker of a request finds no children: skip the query.
        let is_first = head.request.live().is_some_and(|live| live.fence == 1);
        let (mut rows, mut decided) = (Vec::new(), 0);
        if head.may_have_holds() {
            (rows, decided) = self.latest_holds(request).await?;
        }
        let shown = rows.iter().filter(|row| row.decision.is_some()).count();
        let records = self.short_records(&head).await?;
        let mut detail = self.detail_of(caller, head, (records, rows)).await?;
        self.open_for_worker(&mut detail.holds);
        let begun = if is_first {
            Vec::new()
        } else {
            self.inner().store.children_of(request).await?
        };
        let children = self.newest_children(caller, &summary, &begun).await?;
        let mut claimed = self.worked_on(detail, children).await?;
        claimed.decisions_total = Some(decided).filter(|decided| *decided > shown);
        claimed.children_total = Some(begun.len()).filter(|all| *all > CHILDREN_MAX);
        Ok(claimed)
    }

    /// The newest children of a request, oldest first. The newest come with their payloads, as far as these fit.
    async fn newest_children(
        &self,
        caller: &Caller,
        session: &SessionSummary,
        begun: &[RequestId],
    ) -> Result<Vec<RequestDetail>, EngineError> {
        let (mut children, mut left) = (Vec::new(), CHILDREN_BYTES_MAX);
        for child in begun.iter().rev().take(CHILDREN_MAX) {
            let head = self.head_in(caller, session.clone(), *child).await?;
            let records = self.short_records(&head).await?;
            let mut rows = Vec::new();
            if head.may_have_holds() {
                (rows, _) = self.latest_holds(*child).await?;
            }
            let bytes = records.whole_bytes() + rows.iter().map(payload_bytes).sum::<u64>();
            let room = left.checked_sub(bytes);
            left = room.unwrap_or(left);
            children.push(match room {
                Some(_) => self.detail_of(caller, head, (records, rows)).await?,
                None => RequestDetail::without_payloads(head),
            });
        }
        children.reverse();
        Ok(children)
    }

    /// The holds of a request that changed last, as many as fit an answer, in the order of opening; and how many of
    /// all are decided.
    async fn latest_holds(
        &self,
        request: RequestId,
    ) -> Result<(Vec<HoldSummary>, usize), EngineError> {
        let ids = self.inner().store.holds_of(request).await?;
        let (mut changed, mut decided): (Vec<(u64, HoldId)>, usize) = (Vec::new(), 0);
        let has_one_step = ids.len() <= HOLD_STEP;
        for ids in ids.chunks(HOLD_STEP) {
            let rows = self.hold_rows(ids.to_vec()).await?;
            decided += rows.iter().filter(|row| row.decision.is_some()).count();
            if has_one_step {
                return Ok((newest_holds(rows), decided));
            }
            changed.extend(rows.iter().map(|row| (changed_at(row), row.hold.id)));
        }
        changed.sort_unstable();
        let newest = changed.split_off(changed.len().saturating_sub(HOLDS_MAX));
        let newest = newest.into_iter().map(|(_, id)| id).collect();
        Ok((newest_holds(self.hold_rows(newest).await?), decided))
    }
}

/// The revision that opened or decided a hold.
fn changed_at(row: &HoldSummary) -> u64 {
    row.decision.map_or(row.hold.opened_at, |(_, at)| at)
}

/// The holds that changed last, as many as fit an answer, in the order of opening.
fn newest_holds(mut rows: Vec<HoldSummary>) -> Vec<HoldSummary> {
    rows.sort_by_key(|row| Reverse(changed_at(row)));
    let (mut rows, _) = fitting_holds(rows);
    rows.sort_by_key(|row| row.hold.number);
    rows
}

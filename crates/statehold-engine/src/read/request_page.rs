//! Requests without their payloads, and with a page of their holds in the memory for an answer.

use std::sync::Arc;

use statehold_core::ids::{RequestId, SessionId};
use statehold_core::session::SessionState;
use statehold_core::task::Task;
use statehold_core::tenant::TenantEvent;
use statehold_store::{HoldSummary, PageLimit, SessionSummary, StoreError, StoredRecord};

use super::{RequestDetail, StoredRequest};
use crate::answer_memory::{AnswerMemory, SMALL_PAYLOAD_BYTES, take_unless_small};
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_reader;
use crate::holds::{fitting_holds, payload_bytes};

/// A request without its payloads, and the rights of its reader.
#[derive(Debug, Clone)]
pub(crate) struct RequestHead {
    /// Its session.
    pub(crate) session: SessionSummary,
    /// The state of the session.
    pub(crate) state: Arc<SessionState>,
    /// The task it belongs to.
    pub(crate) task: Task,
    /// The request itself.
    pub(crate) request: StoredRequest,
    /// Whether the caller works for its agent, or may read traces.
    pub(crate) sees_hidden: bool,
    /// Whether the caller works for the agent of the parent request, and so sees input and answer.
    pub(crate) sees_answer: bool,
}

impl RequestHead {
    /// Whether the request may have opened holds.
    pub(crate) fn may_have_holds(&self) -> bool {
        let live = self.request.live();
        live.is_none_or(|live| live.holds_opened > 0)
    }
}

/// Which holds of a request to read: at most `entries`, before the one at index `before` in the order of opening.
#[derive(Debug, Clone, Copy)]
pub struct RequestHolds {
    /// None for the newest.
    pub before: Option<usize>,
    /// The maximum number.
    pub entries: usize,
}

/// The records that started and ended a request.
pub(crate) struct ShortRecords {
    started: ShortRecord,
    /// None if it has not ended, or if the same record started it.
    finished: Option<ShortRecord>,
}

impl ShortRecords {
    /// The memory that reading them takes.
    pub(crate) fn bytes(&self) -> u64 {
        let finished = self.finished.as_ref().map_or(0, ShortRecord::bytes);
        self.started.bytes() + finished
    }

    /// The size of both, also if they are short.
    pub(crate) fn whole_bytes(&self) -> u64 {
        let finished = self.finished.as_ref().map_or(0, ShortRecord::whole_bytes);
        self.started.whole_bytes() + finished
    }
}

/// A record that is short, or that needs memory before it is read.
enum ShortRecord {
    Whole(Option<Box<StoredRecord>>),
    Long { seq: u64, bytes: u64 },
}

impl ShortRecord {
    /// The memory that reading it takes.
    fn bytes(&self) -> u64 {
        match self {
            Self::Whole(_) => 0,
            Self::Long { bytes, .. } => *bytes,
        }
    }

    fn whole_bytes(&self) -> u64 {
        match self {
            Self::Whole(record) => record.as_ref().map_or(0, |record| record.bytes()),
            Self::Long { bytes, .. } => *bytes,
        }
    }
}

impl Engine {
    /// One request without its payloads.
    ///
    /// # Errors
    ///
    /// If the caller may not read it.
    pub(crate) async fn request_head(
        &self,
        caller: &Caller,
        id: RequestId,
    ) -> Result<RequestHead, EngineError> {
        require_reader(caller)?;
        let session = self.session_of_request(id).await?;
        self.readable_around(caller, session).await?;
        let summary = self.inner().store.session(session).await?;
        let summary = summary.ok_or(EngineError::NotFound)?;
        let mut head = self.head_in(caller, summary, id).await?;
        head.sees_answer = self.asked_for(caller, &head.request).await?;
        let may_read =
            caller.acts_for(head.session.owner.user) || head.sees_hidden || head.sees_answer;
        if !may_read {
            return Err(EngineError::NotFound);
        }
        Ok(head)
    }

    /// One request of a session without its payloads. Checks no rights.
    pub(crate) async fn head_in(
        &self,
        caller: &Caller,
        session: SessionSummary,
        id: RequestId,
    ) -> Result<RequestHead, EngineError> {
        let state = self.durable_state(session.id).await?;
        let request = self.find_request(&state, id).await?;
        let task = match &request {
            StoredRequest::Live(live) => live.task,
            StoredRequest::Ended(ended) => ended.task,
        };
        let (task, _) = self.find_task(&state, task).await?;
        Ok(RequestHead {
            session,
            state,
            sees_hidden: caller.works_for(&task.agent) || caller.reads_all(),
            sees_answer: false,
            task,
            request,
        })
    }

    /// Records that an operator sees hidden parts of a request.
    pub(crate) async fn audit_hidden(
        &self,
        caller: &Caller,
        head: &RequestHead,
    ) -> Result<(), EngineError> {
        if head.sees_hidden && !caller.works_for(&head.task.agent) {
            let session = head.session.id;
            self.audit(caller, TenantEvent::TraceRead { session })
                .await?;
        }
        Ok(())
    }

    /// Whether the caller works for the agent whose request started this one, and so may wait for it.
    async fn asked_for(
        &self,
        caller: &Caller,
        request: &StoredRequest,
    ) -> Result<bool, EngineError> {
        let parent = request.parent();
        let Some(parent) = parent.filter(|_| caller.has(Role::Worker)) else {
            return Ok(false);
        };
        let lineage = self.inner().store.lineages(vec![parent]).await?;
        let asking = lineage.first().and_then(|steps| steps.last());
        Ok(asking.is_some_and(|step| caller.works_for(&step.agent)))
    }

    /// A request with the newest of its holds, in the memory for an answer, and the index before which the next page
    /// of holds begins.
    pub(crate) async fn request_page(
        &self,
        caller: &Caller,
        head: RequestHead,
        page: RequestHolds,
        memory: &dyn AnswerMemory,
    ) -> Result<(RequestDetail, Option<usize>), EngineError> {
        let (mut rows, mut next) = (Vec::new(), None);
        if head.may_have_holds() {
            (rows, next) = self.newest_holds(head.request.id(), page).await?;
        }
        let records = self.short_records(&head).await?;
        let holds: u64 = rows.iter().map(payload_bytes).sum();
        take_unless_small(memory, records.bytes() + holds).await?;
        let mut detail = self.detail_of(caller, head, (records, rows)).await?;
        // A worker that kept its lease gets the decision by reading the request, not by a claim. One person may have
        // several keys: this key must have the worker role.
        let lease = detail.request.live().and_then(|live| live.lease);
        let is_worker = caller.works_for(&detail.task.agent);
        if is_worker && lease.is_some_and(|lease| lease.worker == caller.principal) {
            self.open_for_worker(&mut detail.holds);
        }
        Ok((detail, next))
    }

    /// A request with these records and holds. The caller has taken the memory for them.
    pub(crate) async fn detail_of(
        &self,
        caller: &Caller,
        head: RequestHead,
        (records, rows): (ShortRecords, Vec<HoldSummary>),
    ) -> Result<RequestDetail, EngineError> {
        let (session, id, state) = (head.session.id, head.request.id(), &head.state);
        let has_ended = head.request.ended().is_some();
        let started = self.whole_record(session, records.started).await?;
        let finished = match records.finished {
            Some(finished) => self.whole_record(session, finished).await?,
            None => started.clone().filter(|_| has_ended),
        };
        Ok(RequestDetail {
            holds: self.hold_details(caller, rows).await?,
            pending: self.pending_of(state, state.holds_below(id)).await?,
            lease_until: self.inner().leases_of(state).get(&id).copied(),
            revision: state.revision,
            session: head.session,
            task: head.task,
            request: head.request,
            started,
            finished,
            sees_hidden: head.sees_hidden,
            sees_answer: head.sees_answer,
            too_large: false,
        })
    }

    /// The records that started and ended a request, as far as they are short.
    pub(crate) async fn short_records(
        &self,
        head: &RequestHead,
    ) -> Result<ShortRecords, EngineError> {
        let (session, started_by) = (head.session.id, head.request.started_by());
        let ended_by = head.request.ended().map(|ended| ended.ended_by);
        let started = self.short_record(session, started_by).await?;
        let finished = match ended_by {
            Some(seq) if seq != started_by => Some(self.short_record(session, seq).await?),
            _ => None,
        };
        Ok(ShortRecords { started, finished })
    }

    /// The newest holds of a request before an index, as many as their payloads allow and one at least, in the order
    /// of opening; and the index of the first one, if others come before it.
    async fn newest_holds(
        &self,
        request: RequestId,
        page: RequestHolds,
    ) -> Result<(Vec<HoldSummary>, Option<usize>), EngineError> {
        let ids = self.inner().store.holds_of(request).await?;
        let end = page.before.unwrap_or(ids.len()).min(ids.len());
        let begin = end.saturating_sub(page.entries);
        let mut rows = self.hold_rows(ids[begin..end].to_vec()).await?;
        rows.reverse();
        let all = rows.len();
        let (mut rows, _) = fitting_holds(rows);
        rows.reverse();
        let first = match rows.first() {
            // Some of them come with the next page.
            Some(first) if rows.len() < all => {
                let index = ids.iter().position(|id| *id == first.hold.id);
                index.unwrap_or(begin)
            }
            _ => begin,
        };
        Ok((rows, Some(first).filter(|first| *first > 0)))
    }

    /// A record with its payloads if it is short; otherwise its size.
    async fn short_record(&self, session: SessionId, seq: u64) -> Result<ShortRecord, EngineError> {
        let page = PageLimit {
            entries: 1,
            bytes: SMALL_PAYLOAD_BYTES,
        };
        let records = self
            .inner()
            .store
            .records(session, seq.saturating_sub(1), page);
        match records.await {
            Err(StoreError::PageTooSmall { bytes }) => Ok(ShortRecord::Long { seq, bytes }),
            records => {
                let record = records?.into_iter().next();
                Ok(ShortRecord::Whole(record.map(Box::new)))
            }
        }
    }

    /// The record. The caller has taken the memory for it.
    async fn whole_record(
        &self,
        session: SessionId,
        record: ShortRecord,
    ) -> Result<Option<StoredRecord>, EngineError> {
        match record {
            ShortRecord::Whole(record) => Ok(record.map(|record| *record)),
            ShortRecord::Long { seq, .. } => self.record(session, seq).await,
        }
    }
}

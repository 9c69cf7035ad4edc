//! Queries. They read durable revisions only, and return only data that the caller may see.

mod request_page;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use statehold_core::ids::{RequestId, SessionId, TaskId, UserId};
use statehold_core::projection::EndedRequest;
use statehold_core::record::Record;
use statehold_core::request::{LiveRequest, RequestStatus};
use statehold_core::session::SessionState;
use statehold_core::task::{Task, TaskStatus};
use statehold_core::time::Timestamp;
use statehold_core::view::View;
use statehold_store::{
    ItemQuery, PageLimit, SessionPlace, SessionQuery, SessionSummary, StoreError, StoredItem,
    StoredRecord,
};

use crate::api::session::{SessionListInput, parse_labels};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::{is_own, require_lister};
use crate::holds::{HoldDetail, Pending};

pub(crate) use request_page::RequestHead;
pub use request_page::RequestHolds;

/// How many rows one list call reads.
pub(crate) const SCAN_MAX: usize = 2_000;
/// How many rows one query of a list reads.
pub(crate) const SCAN_STEP: usize = 200;
/// The names and labels of sessions that one list call opens, in bytes. The last query may go beyond it by its rows.
pub(crate) const SCAN_BYTES_MAX: usize = 2 * 1024 * 1024;
/// How many sessions one query of a list reads. Each may have 20 KiB of labels.
const SESSIONS_STEP: usize = 50;

/// The size of the pages that the engine reads for itself.
pub(crate) const OWN_PAGE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads a page of at most `entries` for the engine itself. An entry that is too long for it gets a page of its
/// own.
pub(crate) async fn own_page<T, F>(
    entries: usize,
    read: impl Fn(PageLimit) -> F,
) -> Result<T, EngineError>
where
    F: Future<Output = Result<T, EngineError>>,
{
    let bytes = OWN_PAGE_BYTES_MAX;
    match read(PageLimit { entries, bytes }).await {
        Err(EngineError::PageTooSmall { bytes }) => {
            let entries = 1;
            read(PageLimit { entries, bytes }).await
        }
        page => page,
    }
}

/// A page of entries, and the position of the next page.
#[derive(Debug, Clone)]
pub struct Page<T, P = u64> {
    /// The entries.
    pub entries: Vec<T>,
    /// The position of the next page, if there may be more.
    pub next: Option<P>,
}

/// A page of items, with the revision they were read at.
#[derive(Debug, Clone)]
pub struct ItemPage {
    /// Newest first.
    pub items: Vec<StoredItem>,
    /// The next page begins before this `seq`.
    pub next: Option<u64>,
    /// The items are of this revision or a later one.
    pub revision: u64,
}

impl<T, P> Page<T, P> {
    /// A page without entries, and the last.
    pub(crate) fn empty() -> Self {
        let (entries, next) = (Vec::new(), None);
        Self { entries, next }
    }
}

/// A live or ended request.
#[derive(Debug, Clone)]
pub enum StoredRequest {
    /// A request that has not ended.
    Live(Box<LiveRequest>),
    /// A request that has ended.
    Ended(EndedRequest),
}

impl StoredRequest {
    /// The id.
    pub fn id(&self) -> RequestId {
        match self {
            Self::Live(live) => live.id,
            Self::Ended(ended) => ended.id,
        }
    }

    /// The n of its alias `Rn`.
    pub fn number(&self) -> u64 {
        match self {
            Self::Live(live) => live.number,
            Self::Ended(ended) => ended.number,
        }
    }

    /// The alias shown to people.
    pub fn alias(&self) -> String {
        format!("R{}", self.number())
    }

    /// Its task.
    pub fn task(&self) -> TaskId {
        match self {
            Self::Live(live) => live.task,
            Self::Ended(ended) => ended.task,
        }
    }

    /// The parent request.
    pub fn parent(&self) -> Option<RequestId> {
        match self {
            Self::Live(live) => live.parent,
            Self::Ended(ended) => ended.parent,
        }
    }

    /// The revision that started it.
    pub fn started_by(&self) -> u64 {
        match self {
            Self::Live(live) => live.started_by,
            Self::Ended(ended) => ended.started_by,
        }
    }

    /// Its status, or its outcome.
    pub fn status(&self) -> RequestStatus {
        match self {
            Self::Live(live) => live.status.into(),
            Self::Ended(ended) => ended.outcome.into(),
        }
    }

    /// The request while it is live.
    pub fn live(&self) -> Option<&LiveRequest> {
        match self {
            Self::Live(live) => Some(live),
            Self::Ended(_) => None,
        }
    }

    /// The request once it has ended.
    pub fn ended(&self) -> Option<&EndedRequest> {
        match self {
            Self::Live(_) => None,
            Self::Ended(ended) => Some(ended),
        }
    }
}

/// A live or ended request, with the records of its input and output.
#[derive(Debug, Clone)]
pub struct RequestDetail {
    /// Its session.
    pub session: SessionSummary,
    /// The task it belongs to.
    pub task: Task,
    /// The request itself.
    pub request: StoredRequest,
    /// The record that started it.
    pub started: Option<StoredRecord>,
    /// The record that ended it.
    pub finished: Option<StoredRecord>,
    /// Its holds.
    pub holds: Vec<HoldDetail>,
    /// Open holds at and below it.
    pub pending: Pending,
    /// When its lease ends, including heartbeats.
    pub lease_until: Option<Timestamp>,
    /// Whether the caller works for its agent, or may read traces.
    pub sees_hidden: bool,
    /// Whether the caller works for the agent of the parent request, and so sees input and answer.
    pub sees_answer: bool,
    /// The revision it was read at.
    pub revision: u64,
    /// Whether its payloads and holds are left out, because they did not fit.
    pub too_large: bool,
}

impl RequestDetail {
    /// A request whose payloads and holds do not fit.
    pub(crate) fn without_payloads(head: RequestHead) -> Self {
        Self {
            revision: head.state.revision,
            session: head.session,
            task: head.task,
            request: head.request,
            started: None,
            finished: None,
            holds: Vec::new(),
            pending: Pending::default(),
            lease_until: None,
            sees_hidden: head.sees_hidden,
            sees_answer: head.sees_answer,
            too_large: true,
        }
    }

    /// When the request started. None if the record that started it is gone.
    pub(crate) fn started_at(&self) -> Option<Timestamp> {
        let started = self.started.as_ref()?;
        Some(started.record.content.at)
    }
}

impl Engine {
    /// A page of sessions, in the order of the filter.
    ///
    /// # Errors
    ///
    /// If the caller may not list sessions, or the filter has a name and no app.
    pub(crate) async fn sessions(
        &self,
        caller: &Caller,
        filter: &SessionListInput,
        user: Option<UserId>,
        after: Option<SessionPlace>,
        limit: usize,
    ) -> Result<Page<SessionSummary, SessionPlace>, EngineError> {
        require_lister(caller)?;
        let sees_all = caller.reads_all();
        let user = match (caller.user, user) {
            (Some(bound), Some(asked)) if !sees_all && bound != asked => {
                return Ok(Page::empty());
            }
            (Some(bound), None) if !sees_all => Some(bound),
            (_, asked) => asked,
        };
        if let Some(name) = &filter.name {
            let entries = self.session_named(caller, filter, user, name).await?;
            let entries = entries.into_iter().collect();
            return Ok(Page {
                entries,
                next: None,
            });
        }
        let _turn = if filter.is_search() {
            Some(self.inner().searches.turn(caller).await?)
        } else {
            None
        };
        let mut entries = Vec::new();
        let (mut after, mut seen, mut bytes, mut opened) = (after, 0, 0, 0);
        loop {
            // A search may need many more rows than it has entries.
            let step = if filter.is_search() {
                SESSIONS_STEP
            } else {
                SESSIONS_STEP.min(limit - entries.len())
            };
            let query = SessionQuery {
                tenant: caller.tenant.clone(),
                app: filter.app.clone(),
                user,
                order: filter.order,
                after,
                limit: step,
            };
            let store = Arc::clone(&self.inner().store);
            let rows = async move { store.sessions(query).await };
            let rows = self.list_step(caller, rows).await?;
            let is_last = rows.len() < step;
            seen += rows.len();
            for row in rows {
                after = Some(row.list_place());
                opened += row.text_bytes();
                if is_own(caller, &row) && filter.fits(&row) {
                    bytes += row.labels.as_ref().map_or(0, String::len) as u64;
                    entries.push(row);
                    if entries.len() == limit || bytes >= OWN_PAGE_BYTES_MAX {
                        return Ok(Page {
                            entries,
                            next: after,
                        });
                    }
                }
            }
            if is_last || seen >= SCAN_MAX || opened >= SCAN_BYTES_MAX {
                let next = after.filter(|_| !is_last);
                return Ok(Page { entries, next });
            }
        }
    }

    /// The session with a name that the filter lets through. A name is unique within an app and a user.
    async fn session_named(
        &self,
        caller: &Caller,
        filter: &SessionListInput,
        user: Option<UserId>,
        name: &str,
    ) -> Result<Option<SessionSummary>, EngineError> {
        let app = filter.app.clone().ok_or_else(|| {
            EngineError::invalid("app", "a name is unique within an app: give `app` too")
        })?;
        let user = user.or(caller.user).ok_or(EngineError::UserNeeded)?;
        let (store, tenant) = (&self.inner().store, caller.tenant.clone());
        let found = store.session_named(tenant, app, user, name.to_owned());
        let found = found.await?;
        Ok(found.filter(|row| is_own(caller, row) && filter.fits(row)))
    }

    /// A page of the items that a view shows, newest first, before item `before`.
    ///
    /// # Errors
    ///
    /// If the store fails. Checks no rights and records no audit entry: see [`Engine::transcript`].
    pub(crate) async fn items(
        &self,
        (session, revision): (SessionId, u64),
        task: Option<TaskId>,
        view: View,
        before: Option<u64>,
        limit: PageLimit,
    ) -> Result<ItemPage, EngineError> {
        let mut items: Vec<StoredItem> = Vec::new();
        let (mut before, mut seen, mut bytes) = (before, 0, limit.bytes);
        loop {
            // Only items removed by a rewind are skipped, so a few more than needed are enough.
            let entries = (limit.entries - items.len() + 4).min(SCAN_STEP);
            let query = ItemQuery {
                task,
                before,
                limit: PageLimit { entries, bytes },
            };
            let (rows, next) = match self.inner().store.items(session, query).await {
                Err(StoreError::PageTooSmall { .. }) if !items.is_empty() => {
                    return Ok(ItemPage {
                        items,
                        next: before,
                        revision,
                    });
                }
                page => page?,
            };
            let is_last = next.is_none();
            seen += rows.len();
            let read = &self.inner().items_read;
            read.fetch_add(rows.len() as u64, Ordering::Relaxed);
            for row in rows {
                before = Some(row.placed.item.seq);
                if view.shows(&row.placed) {
                    bytes = bytes.saturating_sub(row.payload_bytes());
                    items.push(row);
                    if items.len() == limit.entries {
                        break;
                    }
                }
            }
            let has_all = items.len() == limit.entries;
            if has_all || is_last || seen >= SCAN_MAX {
                let next = before.filter(|seq| *seq > 1 && (has_all || !is_last));
                return Ok(ItemPage {
                    items,
                    next,
                    revision,
                });
            }
        }
    }

    /// The transcript of a session, newest first.
    ///
    /// # Errors
    ///
    /// If the caller may not read the session.
    pub async fn transcript(
        &self,
        caller: &Caller,
        session: SessionId,
        before: Option<u64>,
        limit: PageLimit,
    ) -> Result<ItemPage, EngineError> {
        // Read the revision before the items, so that the items are of this revision or a later one.
        let state = self.readable_conversation(caller, session).await?;
        let revision = state.revision;
        let store = &self.inner().store;
        let (items, next) = store.transcript(session, before, limit).await?;
        Ok(ItemPage {
            items,
            next,
            revision,
        })
    }

    /// A page of a task's history as its agent sees it, newest first, for the engine itself.
    pub(crate) async fn task_items(
        &self,
        session: SessionId,
        task: TaskId,
        before: Option<u64>,
        entries: usize,
    ) -> Result<ItemPage, EngineError> {
        own_page(entries, |page| {
            self.items((session, 0), Some(task), View::Agent(task), before, page)
        })
        .await
    }

    /// The wanted ones among the newest `limit` items of a task, newest first. Other items do not stay in
    /// memory.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn recent_items(
        &self,
        session: SessionId,
        task: TaskId,
        limit: usize,
        is_wanted: impl Fn(&StoredItem) -> bool,
    ) -> Result<Vec<StoredItem>, EngineError> {
        let mut wanted = Vec::new();
        let (mut before, mut left) = (None, limit);
        while left > 0 {
            let page = self.task_items(session, task, before, left).await?;
            left -= page.items.len();
            wanted.extend(page.items.into_iter().filter(&is_wanted));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        Ok(wanted)
    }

    pub(crate) async fn find_task(
        &self,
        state: &SessionState,
        id: TaskId,
    ) -> Result<(Task, TaskStatus), EngineError> {
        if let Some(task) = state.tasks.get(&id) {
            return Ok((task.clone(), task.status));
        }
        let closed = self.inner().store.closed_task(id).await?;
        let closed = closed.ok_or(EngineError::NotFound)?;
        Ok((closed.task, closed.status))
    }

    /// One request.
    ///
    /// # Errors
    ///
    /// If the caller may not read it.
    pub async fn request(
        &self,
        caller: &Caller,
        id: RequestId,
    ) -> Result<RequestDetail, EngineError> {
        let head = self.request_head(caller, id).await?;
        let mut detail = self
            .request_detail(caller, head.session.clone(), id)
            .await?;
        detail.sees_answer = head.sees_answer;
        self.audit_hidden(caller, &head).await?;
        Ok(detail)
    }

    pub(crate) async fn find_request(
        &self,
        state: &SessionState,
        id: RequestId,
    ) -> Result<StoredRequest, EngineError> {
        if let Some(live) = state.requests.get(&id) {
            return Ok(StoredRequest::Live(Box::new(live.clone())));
        }
        let ended = self.inner().store.ended_request(id).await?;
        ended.map(StoredRequest::Ended).ok_or(EngineError::NotFound)
    }

    /// Boxed, so that the crates that call it do not compile it again.
    pub(crate) fn request_detail<'a>(
        &'a self,
        caller: &'a Caller,
        session: SessionSummary,
        id: RequestId,
    ) -> BoxFuture<'a, Result<RequestDetail, EngineError>> {
        Box::pin(async move {
            let store = &self.inner().store;
            let state = self.durable_state(session.id).await?;
            let request = self.find_request(&state, id).await?;
            let (task, started_by, ended_by) = match &request {
                StoredRequest::Live(live) => (live.task, live.started_by, None),
                StoredRequest::Ended(ended) => (ended.task, ended.started_by, Some(ended.ended_by)),
            };
            let live = request.live();
            let (task, _) = self.find_task(&state, task).await?;
            let started = self.record(session.id, started_by).await?;
            let finished = match ended_by {
                Some(seq) if seq == started_by => started.clone(),
                Some(seq) => self.record(session.id, seq).await?,
                None => None,
            };
            let mut holds = Vec::new();
            if live.is_none_or(|live| live.holds_opened > 0) {
                let rows = store.held_by(vec![id]).await?;
                holds = self.hold_details(caller, rows).await?;
                // A worker that kept its lease gets the decision by reading the request, not by a claim.
                let lease = live.and_then(|live| live.lease);
                // One person may have several keys: this key must have the worker role.
                let is_worker = caller.works_for(&task.agent);
                if is_worker && lease.is_some_and(|lease| lease.worker == caller.principal) {
                    self.open_for_worker(&mut holds);
                }
            }
            let pending = self.pending_of(&state, state.holds_below(id)).await?;
            let lease_until = self.inner().leases_of(&state).get(&id).copied();
            let sees_hidden = caller.works_for(&task.agent) || caller.reads_all();
            Ok(RequestDetail {
                session,
                task,
                request,
                started,
                finished,
                holds,
                pending,
                lease_until,
                sees_hidden,
                sees_answer: false,
                revision: state.revision,
                too_large: false,
            })
        })
    }

    pub(crate) async fn record(
        &self,
        session: SessionId,
        seq: u64,
    ) -> Result<Option<StoredRecord>, EngineError> {
        let (store, one) = (&self.inner().store, PageLimit::entries(1));
        let records = store.records(session, seq.saturating_sub(1), one).await?;
        Ok(records.into_iter().next())
    }

    /// One record without its payloads.
    pub(crate) async fn record_head(
        &self,
        session: SessionId,
        seq: u64,
    ) -> Result<Option<Record>, EngineError> {
        let (store, one) = (&self.inner().store, PageLimit::entries(1));
        let records = store.chain(session, seq.saturating_sub(1), one).await?;
        Ok(records.into_iter().next())
    }

    /// The session of a request.
    ///
    /// # Errors
    ///
    /// If there is no such request.
    pub(crate) async fn session_of_request(&self, id: RequestId) -> Result<SessionId, EngineError> {
        let session = self.inner().store.session_of_request(id).await?;
        session.ok_or(EngineError::NotFound)
    }

    /// The session of a task.
    ///
    /// # Errors
    ///
    /// If there is no such task.
    pub(crate) async fn session_of_task(&self, id: TaskId) -> Result<SessionId, EngineError> {
        let session = self.inner().store.session_of_task(id).await?;
        session.ok_or(EngineError::NotFound)
    }
}

impl SessionListInput {
    /// Whether a page may need many more rows than it has entries.
    fn is_search(&self) -> bool {
        self.status.is_some() || self.label.is_some() || self.text.is_some()
    }

    fn fits(&self, row: &SessionSummary) -> bool {
        self.status.is_none_or(|status| status == row.status)
            && self
                .label
                .as_ref()
                .is_none_or(|label| has_label(row, label))
            && self.text.as_ref().is_none_or(|text| has_text(row, text))
    }
}

fn has_label(row: &SessionSummary, (key, value): &(String, Option<String>)) -> bool {
    let labels = parse_labels(row.labels.as_deref());
    let found = labels.get(key);
    match value {
        Some(value) => found == Some(value),
        None => found.is_some(),
    }
}

fn has_text(row: &SessionSummary, text: &str) -> bool {
    let text = text.to_lowercase();
    let has = |field: &str| field.to_lowercase().contains(&text);
    row.name.as_deref().is_some_and(has)
        || parse_labels(row.labels.as_deref())
            .iter()
            .any(|(key, value)| has(key) || has(value))
}

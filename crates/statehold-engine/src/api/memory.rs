//! The memory of a request: what its agent knew when the request started.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::item::Role as ItemRole;
use statehold_core::memory::Memory;
use statehold_core::request::RequestOutcome;
use statehold_core::task::Task;
use statehold_store::{MemoryPage, MemoryQuery, StoredExchange, StoredItem};
use utoipa::ToSchema;

use super::item::ItemView;
use super::json::{Raw, Time, raw_bytes};
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_any;
use crate::leased::continued_by;

/// The most bytes of payloads in one page.
pub const PAGE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How much a request knows, on its claim.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct MemorySize {
    /// The number of exchanges.
    pub exchanges: u64,
}

/// A page of a memory, newest exchange first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Memory)]
pub struct MemoryView {
    pub exchanges: Vec<ExchangeView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// An ended request of the agent, with all its items.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Exchange)]
pub struct ExchangeView {
    pub request_id: RequestId,
    pub task_id: TaskId,
    pub ended_at: Time,
    /// `failed` and `cancelled` only if a tool ran.
    pub outcome: RequestOutcome,
    /// Oldest first.
    pub items: Vec<ItemView>,
    /// The payloads are larger than a page: the items are left out, and are in the history of the task.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub too_large: bool,
    /// The private state that it wrote last, if it completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub task_state: Option<Raw>,
}

/// A page of a memory, and the request that it belongs to.
#[derive(Debug, Clone)]
pub struct MemoryRead {
    /// The page.
    pub view: MemoryView,
    /// The session of the request.
    pub session: SessionId,
    /// The task of the request.
    pub task: TaskId,
    /// The revision of the session.
    pub revision: u64,
    /// The rest of the memory, for the next page.
    pub rest: Option<Memory>,
}

/// Reads the memory of a request as its worker: the first page, or the page that begins with `rest`.
///
/// # Errors
///
/// If the caller does not work for the agent of the request.
pub async fn read(
    engine: &Engine,
    caller: &Caller,
    request: RequestId,
    (rest, limit): (Option<Memory>, usize),
) -> Result<MemoryRead, EngineError> {
    require_any(caller, &[Role::Worker])?;
    let session = engine.session_of_request(request).await?;
    let revision = engine.readable_around(caller, session).await?.revision;
    let page = (limit, PAGE_BYTES_MAX);
    let (task, query) = engine.memory_query(session, request, rest, page).await?;
    if !caller.works_for(&task.agent) {
        return Err(EngineError::NotFound);
    }
    let mut page = engine.memory_page(session, query).await?;
    // A rewind after the end of the request may have taken back what it knew.
    for exchange in &mut page.exchanges {
        exchange.items.retain(|stored| !stored.placed.rewound);
    }
    let kept = |exchange: &&StoredExchange| exchange.too_large || !exchange.items.is_empty();
    let exchanges = page.exchanges.iter().filter(kept);
    Ok(MemoryRead {
        view: MemoryView {
            exchanges: exchanges.map(ExchangeView::of).collect(),
            next_cursor: None,
        },
        session,
        task: task.id,
        revision,
        rest: page.rest,
    })
}

impl ExchangeView {
    fn of(exchange: &StoredExchange) -> Self {
        Self {
            request_id: exchange.request,
            task_id: exchange.task,
            ended_at: exchange.ended_at.into(),
            outcome: exchange.outcome,
            items: exchange.items.iter().map(ItemView::of).collect(),
            too_large: exchange.too_large,
            task_state: exchange.task_state.as_deref().map(raw_bytes),
        }
    }
}

impl Engine {
    /// A page of the memory of a request: the first page, or the page that begins with `rest`. `page` is the
    /// number of exchanges and of bytes of payloads.
    pub(crate) async fn memory_of(
        &self,
        session: SessionId,
        request: RequestId,
        rest: Option<Memory>,
        page: (usize, u64),
    ) -> Result<MemoryPage, EngineError> {
        let (_, query) = self.memory_query(session, request, rest, page).await?;
        self.memory_page(session, query).await
    }

    /// A page of a memory, in which a failed attempt and the request that continued it are one exchange.
    async fn memory_page(
        &self,
        session: SessionId,
        query: MemoryQuery,
    ) -> Result<MemoryPage, EngineError> {
        let mut page = self.inner().store.memory(session, query).await?;
        let exchanges = &mut page.exchanges;
        // The newest come first, and an attempt is continued by the next request of its task.
        for failed in (1..exchanges.len()).rev() {
            let StoredExchange { request, task, .. } = exchanges[failed];
            if exchanges[failed].outcome != RequestOutcome::Failed || exchanges[failed].too_large {
                continue;
            }
            let newer = &exchanges[..failed];
            let Some(next) = newer.iter().rposition(|newer| newer.task == task) else {
                continue;
            };
            let continued = self.continued_by(session, newer[next].request).await?;
            if continued == Some(request) && !newer[next].too_large {
                let mut items = exchanges.remove(failed).items;
                let own = &mut exchanges[next].items;
                // The input is that of the first attempt.
                let is_input = |item: &StoredItem| item.placed.item.role == Some(ItemRole::User);
                if let Some(input) = own.iter().position(is_input) {
                    own.remove(input);
                }
                items.append(own);
                *own = items;
            }
        }
        Ok(page)
    }

    /// The failed request that an ended request continued.
    async fn continued_by(
        &self,
        session: SessionId,
        request: RequestId,
    ) -> Result<Option<RequestId>, EngineError> {
        let ended = self.inner().store.ended_request(request).await?;
        let Some(ended) = ended else {
            return Ok(None);
        };
        let started = self.record_head(session, ended.started_by).await?;
        Ok(started.and_then(|started| continued_by(&started, request)))
    }

    /// The private state that a claimed request continues from: the one that it wrote, or that of its
    /// memory.
    pub(crate) async fn task_state_for(
        &self,
        session: SessionId,
        request: RequestId,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let page = self.memory_of(session, request, None, (0, 0)).await?;
        Ok(page.task_state)
    }

    /// The task of a request, and the query of a page of its memory.
    async fn memory_query(
        &self,
        session: SessionId,
        request: RequestId,
        rest: Option<Memory>,
        (exchanges, bytes): (usize, u64),
    ) -> Result<(Task, MemoryQuery), EngineError> {
        let state = self.durable_state(session).await?;
        let (task, memory) = if let Some(live) = state.requests.get(&request) {
            (live.task, live.memory)
        } else {
            let ended = self.inner().store.ended_request(request).await?;
            let ended = ended.ok_or(EngineError::NotFound)?;
            (ended.task, ended.memory)
        };
        let (task, _) = self.find_task(&state, task).await?;
        let query = MemoryQuery {
            path: task.path.clone(),
            memory: rest.or(memory),
            reader: Some((task.id, request)),
            exchanges,
            bytes,
        };
        Ok((task, query))
    }
}

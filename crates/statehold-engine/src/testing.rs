//! For tests only, behind the feature `testing`: raw commands of the core, past the use cases, and the
//! items of a task. Rights, policies and idempotency keys hold as for every commit.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use statehold_core::command::Command;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;

use crate::caller::Caller;
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::payloads::Payloads;
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::Credential;
use crate::read::ItemPage;

/// The view of a raw command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawView {
    /// The revision that it committed.
    pub revision: u64,
    /// The request that it started.
    pub request: Option<RequestId>,
    /// Differs in every view, so that no two commits have the same answer.
    pub serial: u64,
}

impl RawView {
    fn of(made: &DecidedCommit<'_>) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        Self {
            revision: made.record.content.seq,
            request: made.record.content.started_request(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Commits a command.
///
/// # Errors
///
/// If the caller may not, the core refuses, or the store fails.
pub async fn commit(
    engine: &Engine,
    session: SessionId,
    call: &Call,
    (command, payloads): (&Command, &Payloads),
    credential: Option<&Credential>,
) -> Result<Receipt<RawView>, EngineError> {
    let write = SessionWrite {
        payloads: payloads.clone(),
        credential,
        ..SessionWrite::new(engine, call, session)
    };
    write.commit(command, |made| Some(RawView::of(made))).await
}

/// Commits two commands in one write to the disk, and answers with the view of the second.
///
/// # Errors
///
/// As [`commit`].
pub async fn commit_both(
    engine: &Engine,
    session: SessionId,
    call: &Call,
    first: (&Command, &Payloads),
    second: (&Command, &Payloads),
) -> Result<RawView, EngineError> {
    let write = |payloads: &Payloads| SessionWrite {
        payloads: payloads.clone(),
        ..SessionWrite::new(engine, call, session)
    };
    let both = SessionWrite {
        preceded_by: Some((&write(first.1), first.0)),
        ..write(second.1)
    };
    let done = both
        .commit(second.0, |made| Some(RawView::of(made)))
        .await?;
    Ok(done.view)
}

/// Payloads for a command to a session.
///
/// # Errors
///
/// If there is no such session.
pub async fn payloads(engine: &Engine, session: SessionId) -> Result<Payloads, EngineError> {
    engine.payloads_of(session).await
}

/// A fork of a session at its newest revision.
///
/// # Errors
///
/// If there is no such session, or the caller may not start requests there.
pub async fn fork(
    engine: &Engine,
    caller: &Caller,
    origin: SessionId,
) -> Result<SessionId, EngineError> {
    let at = engine.durable_state(origin).await?.revision;
    crate::api::session::fork_to_start(engine, caller, origin, at).await
}

/// The open tasks of an agent in a session, oldest first.
///
/// # Errors
///
/// If there is no such session.
pub async fn tasks_of(
    engine: &Engine,
    session: SessionId,
    agent: &Name,
) -> Result<Vec<TaskId>, EngineError> {
    let state = engine.durable_state(session).await?;
    let own = state.tasks.values().filter(|task| task.agent == *agent);
    let mut tasks: Vec<_> = own.map(|task| (task.number, task.id)).collect();
    tasks.sort_unstable();
    Ok(tasks.into_iter().map(|(_, id)| id).collect())
}

/// The private state of a task, as it is stored.
///
/// # Errors
///
/// If the store fails.
pub async fn task_state(engine: &Engine, task: TaskId) -> Result<Option<Vec<u8>>, EngineError> {
    Ok(engine.inner().store.task_state(task).await?)
}

/// A page of a task's history as its agent sees it, newest first.
///
/// # Errors
///
/// If the store fails.
pub async fn task_items(
    engine: &Engine,
    session: SessionId,
    task: TaskId,
    before: Option<u64>,
    limit: usize,
) -> Result<ItemPage, EngineError> {
    engine.task_items(session, task, before, limit).await
}

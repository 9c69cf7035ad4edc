//! Copying a session as it was, and taking it back to an earlier revision.

use statehold_core::command::Command;
use statehold_core::ids::SessionId;
use statehold_core::session::{Owner, SessionState};
use statehold_store::SessionSummary;

use super::input::{ForkInput, RewindInput};
use super::view::SessionView;
use super::{after_commit, fresh_session};
use crate::caller::Caller;
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::write::{Authority, SessionWrite};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::Act;

/// How often a rewind is tried while other writers change the session.
const REWIND_ATTEMPTS_MAX: usize = 64;

/// Begins a session as a copy of another one at a revision. Requests and holds that were in flight stay with the
/// origin.
///
/// # Errors
///
/// If the caller may not, the session never had that revision, or it moved on from the revision of `If-Match`.
pub async fn fork(
    engine: &Engine,
    call: &Call,
    origin: SessionId,
    input: &ForkInput,
) -> Result<Receipt<SessionView>, EngineError> {
    let caller = &call.caller;
    let owner = engine
        .authorise(caller, origin, &Act::ChangeHistory)
        .await?;
    // A repeat is answered before the origin is looked at, which may have moved on since.
    if let Some(key) = call.key
        && let Some(kept) = engine.kept_answer(key).await?
    {
        return kept.parse();
    }
    let current = engine.readable(caller, origin).await?.revision;
    if let Some(expected) = call.if_revision.filter(|expected| *expected != current) {
        return Err(EngineError::RevisionMismatch { expected, current });
    }
    let at = input.at.unwrap_or(current);
    if at == 0 || at > current {
        let detail = format!("`at` is a revision of the session: 1 to {current}");
        return Err(EngineError::invalid("at", detail));
    }
    let state = forkable_state(engine, caller, origin, at).await?;
    let user = engine.user_name(&owner.tenant, owner.user).await?;
    let session = fresh_session(engine, &owner, &user)?;
    let forked_from = (state.session, at);
    // The condition is about the origin, and holds.
    let call = Call {
        if_revision: None,
        ..call.clone()
    };
    let view = |made: &DecidedCommit<'_>| {
        let summary = begun_fork(&owner, forked_from, made);
        Some(SessionView {
            pending: Some(Vec::new()),
            pending_total: Some(0),
            ..SessionView::of(&summary, user.clone())
        })
    };
    SessionWrite::new(engine, &call, session)
        .commit_fork(origin, state, view)
        .await
}

/// The state to fork at a revision. A fork shares its first records with its origin, and deletion of the origin
/// forbids forks there.
async fn forkable_state(
    engine: &Engine,
    caller: &Caller,
    origin: SessionId,
    at: u64,
) -> Result<SessionState, EngineError> {
    let store = &engine.inner().store;
    let state = engine.load_past(caller, origin, at).await?;
    let state = state.ok_or(EngineError::NotFound)?;
    if state.session != origin {
        let shared = store.session(state.session).await?;
        if shared.is_none_or(|shared| shared.deleted) {
            let detail = format!(
                "revision {at} is of the session that this one was forked from, which is deleted; fork at a later one"
            );
            return Err(EngineError::invalid("at", detail));
        }
    }
    Ok(state)
}

/// A fork after its first commit. Names are unique, so it has none, and no labels.
fn begun_fork(
    owner: &Owner,
    forked_from: (SessionId, u64),
    made: &DecidedCommit<'_>,
) -> SessionSummary {
    let content = &made.record.content;
    SessionSummary {
        place: 0,
        id: content.session,
        owner: owner.clone(),
        name: None,
        labels: None,
        status: made.after.status(),
        deleted: false,
        ttl: made.after.ttl,
        expires_at: made.after.expires_at,
        hidden_ttl_ms: made.after.hidden_ttl_ms,
        hidden_expires_at: made.after.hidden_expires_at,
        revision: content.seq,
        created_at: content.at,
        updated_at: content.at,
        forked_from: Some(forked_from),
    }
}

/// Begins a session as a copy of another one at a revision, for a caller who may start requests there.
///
/// # Errors
///
/// If the caller may not, or the session never had that revision.
pub(crate) async fn fork_to_start(
    engine: &Engine,
    caller: &Caller,
    origin: SessionId,
    at: u64,
) -> Result<SessionId, EngineError> {
    let owner = engine.authorise(caller, origin, &Act::Start).await?;
    let user = engine.user_name(&owner.tenant, owner.user).await?;
    let session = fresh_session(engine, &owner, &user)?;
    let state = forkable_state(engine, caller, origin, at).await?;
    let call = Call::by(caller.clone());
    let write = SessionWrite {
        authority: Authority::Starter,
        ..SessionWrite::new(engine, &call, session)
    };
    let forked = write.commit_fork(origin, state, |made| Some(made.record.content.session));
    Ok(forked.await?.view)
}

/// Takes a session back to an earlier revision: its keys have the values that they had then, the items since then
/// leave the transcript, and live requests are cancelled. The rewind is one more record.
///
/// # Errors
///
/// If the caller may not, the revision is not in the past, or an earlier rewind took it back.
pub async fn rewind(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    input: &RewindInput,
) -> Result<Receipt<SessionView>, EngineError> {
    let caller = &call.caller;
    engine
        .authorise(caller, session, &Act::ChangeHistory)
        .await?;
    // A repeat is answered before its revision is looked at, which a later rewind may have taken back.
    if let Some(key) = call.key
        && let Some(kept) = engine.kept_answer(key).await?
    {
        return kept.parse();
    }
    let summary = engine.session(caller, session).await?;
    let owner = &summary.owner;
    let user = engine.user_name(&owner.tenant, owner.user).await?;
    let view = |made: &DecidedCommit<'_>| {
        let summary = after_commit(&summary, made);
        Some(SessionView::of(&summary, user.clone()))
    };
    for _ in 0..REWIND_ATTEMPTS_MAX {
        let current = engine.durable_state(session).await?.revision;
        require_kept(engine, caller, session, input.to).await?;
        let pinned = Call {
            if_revision: call.if_revision.or(Some(current)),
            ..call.clone()
        };
        let write = SessionWrite::new(engine, &pinned, session);
        match write.commit(&Command::Rewind { to: input.to }, &view).await {
            // Another rewind may have come in between.
            Err(EngineError::RevisionMismatch { .. }) if call.if_revision.is_none() => {}
            done => return done,
        }
    }
    Err(EngineError::TooMany(
        "the session changes too fast to rewind; try again",
    ))
}

/// Refuses a revision with items that a rewind took back: they do not return, so the session would not be as it was.
async fn require_kept(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    to: u64,
) -> Result<(), EngineError> {
    let store = &engine.inner().store;
    let kept = store.kept_revision(session, to).await?;
    if kept == to {
        return Ok(());
    }
    let items = async |revision| {
        let state = engine.load_past(caller, session, revision).await?;
        Ok::<_, EngineError>(state.map(|state| state.items_appended))
    };
    if items(kept).await? == items(to).await? {
        return Ok(());
    }
    let detail = format!(
        "revision {to} was taken back by a later rewind; fork the session at it, or rewind to {kept}"
    );
    Err(EngineError::invalid("to", detail))
}

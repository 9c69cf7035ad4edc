//! The one pure decision function.
//!
//! A command comes in with the state of its session and everything else it needs; out comes the one
//! record that it commits, the whole cascade included, or the reason why not. No clock, no
//! randomness, no I/O: the server, the model checker, the property tests and recovery all call this.

mod draft;
mod history;
mod hold;
mod request;
mod session;
mod state;
mod task;

use crate::apply::apply;
use crate::command::{Command, Context, Outcome, Rejection};
use crate::mutant::{self, Mutant};
use crate::session::SessionState;
use draft::Draft;

/// Decides a command: returns the record it commits, or a rejection.
///
/// # Errors
///
/// A [`Rejection`] says why the command is not allowed now. It changes nothing.
pub fn decide(
    state: &SessionState,
    command: &Command,
    ctx: &Context,
) -> Result<Outcome, Rejection> {
    let is_new = state.owner.is_none() && matches!(command, Command::CreateSession { .. });
    if !is_new {
        require_reachable(state, ctx)?;
        require_alive(state, command, ctx)?;
    }
    let mut draft = Draft::new(state, ctx);
    match command {
        Command::CreateSession {
            owner,
            name,
            labels,
            state,
            ttl,
            hidden_ttl_ms,
        } => {
            let lives = (*ttl, *hidden_ttl_ms);
            session::create(&mut draft, owner, *name, *labels, state, lives)?;
        }
        Command::PatchSession {
            labels,
            name,
            ttl,
            hidden_ttl_ms,
        } => {
            session::patch(&mut draft, *labels, *name, *ttl, *hidden_ttl_ms)?;
        }
        Command::ExpireSession => session::expire(&mut draft)?,
        Command::EraseHidden => session::erase_hidden(&mut draft)?,
        Command::DeleteSession => session::delete(&mut draft)?,
        Command::CloseSession { cancel_live } => session::close(&mut draft, *cancel_live)?,
        Command::StartRequest(start) => request::start(&mut draft, start)?,
        Command::RecordTurn(turn) => request::record_turn(&mut draft, turn)?,
        Command::ClaimRequest { request, ttl_ms } => {
            request::claim(&mut draft, *request, *ttl_ms)?;
        }
        Command::LapseLease { request } => request::lapse(&mut draft, *request)?,
        Command::RaiseFence { request } => request::raise_fence(&mut draft, *request)?,
        Command::ReleaseLease { by } => request::release(&mut draft, *by)?,
        Command::AppendItems {
            by,
            items,
            state,
            task_state,
        } => {
            request::append(&mut draft, *by, items, state, *task_state)?;
        }
        Command::OpenHold { by, hold, items } => hold::open(&mut draft, *by, hold, items)?,
        Command::DecideHold { hold, decision } => {
            if let Some(done) = hold::already_decided(&draft, *hold, decision)? {
                return Ok(done);
            }
            if let Err(late) = hold::decide(&mut draft, *hold, decision)? {
                return Ok(Outcome::CommitThenRefuse(
                    draft.finish(command.name())?,
                    late,
                ));
            }
        }
        Command::ExpireHold { hold } => hold::expire(&mut draft, *hold)?,
        Command::CompleteRequest {
            by,
            output,
            items,
            state,
            task_state,
            close_task,
            cancel_children,
        } => {
            request::complete(
                &mut draft,
                *by,
                &request::Completion {
                    output,
                    items,
                    state,
                    task_state: *task_state,
                },
                *close_task,
                *cancel_children,
            )?;
        }
        Command::FailRequest {
            by,
            error,
            cancel_children,
        } => {
            request::fail(&mut draft, *by, *error, *cancel_children)?;
        }
        Command::CancelRequest { request } => request::cancel(&mut draft, *request)?,
        Command::CloseTask { task } => task::close(&mut draft, *task)?,
        Command::CancelTask { task } => task::cancel(&mut draft, *task)?,
        Command::PutState { patch, by } => state::put(&mut draft, patch, *by)?,
        Command::Fork { session, through } => session::fork(&mut draft, *session, *through)?,
        Command::Rewind { to } => session::rewind(&mut draft, *to)?,
    }
    Ok(Outcome::Commit(draft.finish(command.name())?))
}

/// Decides a command and folds its record, as every driver of the core does.
///
/// # Errors
///
/// As [`decide`]; the state is unchanged then.
pub fn step(
    state: &mut SessionState,
    command: &Command,
    ctx: &Context,
) -> Result<Outcome, Rejection> {
    let outcome = decide(state, command, ctx);
    match &outcome {
        Ok(outcome) => {
            if let Some(record) = outcome.record() {
                apply(state, record);
            }
        }
        Err(_) if mutant::is_on(Mutant::DirtyRefusal) => state.items_appended += 1,
        Err(_) => {}
    }
    outcome
}

/// Sessions that do not exist and sessions of another tenant answer alike.
fn require_reachable(state: &SessionState, ctx: &Context) -> Result<(), Rejection> {
    match &state.owner {
        Some(owner) if owner.tenant == ctx.actor.tenant => Ok(()),
        Some(_) if mutant::is_on(Mutant::SkipTenant) => Ok(()),
        Some(_) | None => Err(Rejection::NotFound),
    }
}

/// A session that is over takes little: it can be ended and copied, and answers for decisions.
fn require_alive(state: &SessionState, command: &Command, ctx: &Context) -> Result<(), Rejection> {
    if state.deleted {
        return Err(Rejection::NotFound);
    }
    let may_be_over = matches!(
        command,
        Command::CreateSession { .. }
            | Command::ExpireSession
            | Command::EraseHidden
            | Command::DeleteSession
            | Command::DecideHold { .. }
            | Command::Fork { .. }
    );
    match (state.closed, state.is_expired(ctx.now)) {
        _ if may_be_over => Ok(()),
        (true, _) => Err(Rejection::SessionClosed),
        (false, true) => Err(Rejection::SessionExpired),
        (false, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests;

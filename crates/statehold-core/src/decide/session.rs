//! Beginning, ending, copying and rewinding sessions.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::draft::Draft;
use super::state;
use crate::command::{Rejection, StatePatch};
use crate::digest::BodyRef;
use crate::ids::{RequestId, SessionId, TaskId};
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::record::{Change, ErasedPayloads, Event};
use crate::session::{Owner, TimeToLive};
use crate::task::TaskStatus;

pub(super) fn create(
    draft: &mut Draft<'_>,
    owner: &Owner,
    name: Option<BodyRef>,
    labels: Option<BodyRef>,
    patch: &StatePatch,
    (ttl, hidden_ttl_ms): (Option<TimeToLive>, Option<u64>),
) -> Result<(), Rejection> {
    if draft.state.owner.is_some() {
        return Err(Rejection::SessionExists);
    }
    if owner.tenant != draft.ctx.actor.tenant {
        return Err(Rejection::NotFound);
    }
    require_ttl(ttl)?;
    require_hidden_ttl(hidden_ttl_ms)?;
    draft.emit(Event::SessionCreated {
        hidden_ttl_ms,
        owner: owner.clone(),
        name,
        labels,
        ttl,
    });
    state::write(draft, patch, None)
}

pub(super) fn patch(
    draft: &mut Draft<'_>,
    labels: Option<BodyRef>,
    name: Option<Change<BodyRef>>,
    ttl: Option<Change<TimeToLive>>,
    hidden_ttl_ms: Option<Change<u64>>,
) -> Result<(), Rejection> {
    if labels.is_none() && name.is_none() && ttl.is_none() && hidden_ttl_ms.is_none() {
        return Err(Rejection::EmptyPatch);
    }
    require_ttl(ttl.and_then(Change::value))?;
    require_hidden_ttl(hidden_ttl_ms.and_then(Change::value))?;
    draft.emit(Event::SessionPatched {
        hidden_ttl_ms,
        labels,
        name,
        ttl,
    });
    Ok(())
}

fn require_ttl(ttl: Option<TimeToLive>) -> Result<(), Rejection> {
    match ttl {
        Some(ttl) if !limits::SESSION_TTL_MS.contains(&ttl.ms) => Err(Rejection::Limit {
            limit: "milliseconds a session lives",
            max: *limits::SESSION_TTL_MS.end(),
        }),
        _ => Ok(()),
    }
}

fn require_hidden_ttl(ms: Option<u64>) -> Result<(), Rejection> {
    match ms {
        Some(ms) if !limits::SESSION_TTL_MS.contains(&ms) => Err(Rejection::Limit {
            limit: "milliseconds a session keeps its hidden payloads",
            max: *limits::SESSION_TTL_MS.end(),
        }),
        _ => Ok(()),
    }
}

pub(super) fn erase_hidden(draft: &mut Draft<'_>) -> Result<(), Rejection> {
    if !draft.state.is_hidden_due(draft.at) {
        return Err(Rejection::HiddenNotDue);
    }
    draft.emit(Event::PayloadsErased {
        payloads: ErasedPayloads::Hidden,
    });
    Ok(())
}

pub(super) fn expire(draft: &mut Draft<'_>) -> Result<(), Rejection> {
    if !draft.state.is_expired(draft.at) {
        return Err(Rejection::SessionNotExpired);
    }
    end(draft, ErasedPayloads::Hidden)
}

pub(super) fn delete(draft: &mut Draft<'_>) -> Result<(), Rejection> {
    end(draft, ErasedPayloads::All)?;
    let keys: Vec<_> = draft.state.keys.keys().cloned().collect();
    for key in keys {
        draft.emit(Event::StateDeleted { key, request: None });
    }
    Ok(())
}

fn end(draft: &mut Draft<'_>, payloads: ErasedPayloads) -> Result<(), Rejection> {
    if !draft.state.closed {
        close(draft, true)?;
    }
    draft.emit(Event::PayloadsErased { payloads });
    Ok(())
}

pub(super) fn close(draft: &mut Draft<'_>, cancel_live: bool) -> Result<(), Rejection> {
    let live = draft.state.requests.len();
    if live > 0 && !cancel_live {
        return Err(Rejection::RequestsLive { live });
    }
    cancel_all_live(draft);
    let roots: Vec<TaskId> = draft
        .state
        .tasks
        .values()
        .filter(|task| task.parent.is_none())
        .map(|task| task.id)
        .collect();
    for root in roots {
        draft.close_subtree(root, TaskStatus::Completed);
    }
    draft.emit(Event::SessionClosed);
    Ok(())
}

/// Forks a session. The copy continues the numbering and the hash chain; requests and holds in
/// flight stay with the origin.
pub(super) fn fork(
    draft: &mut Draft<'_>,
    session: SessionId,
    through: Option<SessionId>,
) -> Result<(), Rejection> {
    let (origin, at) = (draft.state.session, draft.state.revision);
    if session == origin || Some(session) == through {
        return Err(Rejection::SessionExists);
    }
    draft.emit(Event::SessionForked {
        session,
        origin,
        at,
        through: through.filter(|through| *through != origin),
    });
    if !mutant::is_on(Mutant::ForkKeepsLive) {
        cancel_all_live(draft);
    }
    let tasks: Vec<TaskId> = draft.state.tasks.keys().copied().collect();
    for from in tasks {
        let to = TaskId::from_uuid(draft.fresh_uuid());
        draft.emit(Event::TaskRenamed { from, to });
    }
    Ok(())
}

pub(super) fn rewind(draft: &mut Draft<'_>, to: u64) -> Result<(), Rejection> {
    let current = draft.state.revision;
    let not_past = Rejection::NotInThePast { to, current };
    if to == 0 || to >= current {
        return Err(not_past);
    }
    let Some(past) = &draft.ctx.loaded.past else {
        return Err(not_past);
    };
    cancel_all_live(draft);
    let opened_since: Vec<TaskId> = draft
        .state
        .tasks
        .values()
        .filter(|task| task.opened_at > to)
        .map(|task| task.id)
        .collect();
    for task in opened_since {
        if draft.state.tasks.contains_key(&task) {
            draft.close_subtree(task, TaskStatus::Cancelled);
        }
    }
    let keys: BTreeSet<_> = draft
        .state
        .keys
        .keys()
        .chain(past.keys.keys())
        .cloned()
        .collect();
    for key in keys {
        match (draft.state.keys.get(&key), past.keys.get(&key)) {
            (Some(now), Some(then)) if now == then => {}
            (_, Some(then)) => draft.emit(Event::StateRestored {
                bytes: then.bytes,
                key,
                from: then.revision,
            }),
            (_, None) => draft.emit(Event::StateDeleted { key, request: None }),
        }
    }
    let memories = Arc::clone(&draft.state.memories);
    let paths: BTreeSet<_> = memories.keys().chain(past.memories.keys()).collect();
    for path in paths {
        let then = past.memories.get(path).copied();
        if memories.get(path).copied() != then {
            draft.emit(Event::MemoryRestored {
                memory: then,
                path: path.clone(),
            });
        }
    }
    let items_until = draft.state.items_appended;
    draft.emit(Event::Rewound {
        to,
        items_kept: past.items_appended,
        items_until,
    });
    Ok(())
}

fn cancel_all_live(draft: &mut Draft<'_>) {
    let roots: Vec<RequestId> = draft
        .state
        .requests
        .values()
        .filter(|live| live.parent.is_none())
        .map(|live| live.id)
        .collect();
    for root in roots {
        draft.cancel_request_tree(root);
    }
}

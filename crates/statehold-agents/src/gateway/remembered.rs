//! The conversation that a service keeps for an agent of a session: one, shared by all tasks of the agent,
//! remembered in the private state of the task that began it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use statehold_core::ids::SessionId;
use statehold_engine::kept::Raw;

use crate::runner::Run;
use crate::turn::TurnError;
use crate::words::raw;

/// How many locks there are before those that nobody holds are looked for.
const LOCKS_SWEPT_AT: usize = 256;

/// What a task remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    /// What kind of service it is: an agent may be declared anew as something else.
    pub(super) gateway: String,
    /// The session that it is for. A copy of a session has conversations of its own.
    pub(super) session: SessionId,
    /// How often one was begun, counted from 1. The highest is the one that counts.
    pub(super) generation: u32,
    /// What the service calls it. None while one is being begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) conversation: Option<String>,
    /// It takes the place of one that was lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_another: bool,
}

impl Remembered {
    pub(super) fn raw(&self) -> Raw {
        raw(self)
    }
}

/// What is known of the conversation of this run's agent in its session, whichever task remembers it.
pub(super) async fn look_up(run: &Run, gateway: &str) -> Result<Option<Remembered>, TurnError> {
    let (session, agent) = (run.place.session, &run.spec.name);
    let mut newest: Option<Remembered> = None;
    for task in run.engine.open_tasks_of(session, agent).await? {
        let Some(kept) = run.engine.private_state(task).await? else {
            continue;
        };
        let Ok(known) = serde_json::from_slice::<Remembered>(&kept) else {
            continue;
        };
        let is_newer = newest
            .as_ref()
            .is_none_or(|newest| known.generation > newest.generation);
        if known.gateway == gateway && is_newer {
            newest = Some(known);
        }
    }
    Ok(newest)
}

/// One turn at a time in each conversation of one agent, however it is declared meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    locks: Mutex<HashMap<SessionId, Weak<tokio::sync::Mutex<()>>>>,
}

impl Locks {
    /// Waits until no other turn of this agent uses the conversation of this run's session. However many
    /// turns of one session wait, those of others go on.
    pub(super) async fn hold(&self, run: &mut Run) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = self.lock_of(run.place.session);
        match Arc::clone(&lock).try_lock_owned() {
            Ok(held) => held,
            Err(_) => run.seat.left_for(lock.lock_owned()).await,
        }
    }

    fn lock_of(&self, session: SessionId) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(&session).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() >= LOCKS_SWEPT_AT {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::default();
        locks.insert(session, Arc::downgrade(&lock));
        lock
    }
}

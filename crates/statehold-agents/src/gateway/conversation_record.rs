//! The conversation that a service stores for a session and a path of agents. All tasks of the path share
//! it; the task that created it keeps the record in its private state.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use statehold_core::ids::SessionId;
use statehold_core::memory::AgentPath;

use crate::runner::AgentRun;
use crate::turn::TurnError;

/// Number of locks at which unused ones are removed.
const LOCKS_SWEPT_AT: usize = 256;

/// Private state of a task: the remote conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConversationRecord {
    /// Kind of gateway; the agent may since have been declared with another.
    pub(super) gateway: String,
    /// The local session. A forked session has conversations of its own.
    pub(super) session: SessionId,
    /// Counts the conversations created, from 1. The highest generation is current.
    pub(super) generation: u32,
    /// Id that the service assigned. None while the creation is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) conversation: Option<String>,
    /// The agent of the service that it is held with, if the service has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remote_agent: Option<String>,
    /// The newest rewind of the session when it was created. A later rewind takes exchanges back that its service
    /// would still know, so the next turn creates another one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) rewind: u64,
    /// It replaces a lost one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_another: bool,
    /// The service has not got the earlier exchanges yet, which its first message brings.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) needs_briefing: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The newest record of the conversation of this session and path, whichever task has it.
pub(super) async fn find_newest(
    run: &AgentRun,
    gateway: &str,
) -> Result<Option<ConversationRecord>, TurnError> {
    let mut newest: Option<ConversationRecord> = None;
    for kept in run.request.private_states().await? {
        let Ok(known) = serde_json::from_slice::<ConversationRecord>(&kept) else {
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

/// The session and the path of agents that have a conversation.
type ConversationOwner = (SessionId, AgentPath);

/// Locks that allow one turn at a time in each conversation of one agent. They outlive new declarations
/// of the agent.
#[derive(Debug, Default)]
pub(crate) struct ConversationLocks {
    locks: Mutex<HashMap<ConversationOwner, Weak<tokio::sync::Mutex<()>>>>,
}

impl ConversationLocks {
    /// Waits until no other turn uses the conversation of this session and path. Releases the turn's
    /// permit meanwhile, so that turns of other conversations can run.
    pub(super) async fn lock(&self, run: &mut AgentRun) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = self.lock_of((run.request.ids.session, run.request.path().clone()));
        match Arc::clone(&lock).try_lock_owned() {
            Ok(held) => held,
            Err(_) => run.permit.release_while(lock.lock_owned()).await,
        }
    }

    fn lock_of(&self, owner: ConversationOwner) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(&owner).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() >= LOCKS_SWEPT_AT {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::default();
        locks.insert(owner, Arc::downgrade(&lock));
        lock
    }
}

//! The callers behind the work that the server does itself: each live request remembers the holder of the shares that
//! count it, from the caller that started its root. In memory only: after a restart, a request counts for its user
//! alone until a decision resumes it.

use std::collections::HashMap;
use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::ids::{RequestId, UserId};
use statehold_core::principal::Principal;
use statehold_core::record::Event;
use statehold_store::Commit;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::locks::Lock;
use crate::shares::{Holder, PendingShare, Share, Shares};

/// The holder of each live request.
#[derive(Debug, Default)]
pub(crate) struct Starters(Lock<HashMap<RequestId, Holder>>);

/// Holders that a commit in flight adds. Dropping it before the commit is durable removes them.
#[derive(Debug)]
pub(crate) struct PendingStarters {
    starters: Arc<Starters>,
    added: Vec<RequestId>,
}

impl PendingStarters {
    /// The commit is durable: keep the holders.
    pub(crate) fn settle(mut self) {
        self.added.clear();
    }
}

impl Drop for PendingStarters {
    fn drop(&mut self) {
        let mut known = self.starters.0.lock();
        for request in self.added.drain(..) {
            known.remove(&request);
        }
    }
}

impl Starters {
    /// Notes the holder of the request that a commit starts, or of the requests that a decision resumes after a
    /// restart. Must run before the commit is visible, so that no turn begins without its holder.
    pub(crate) fn note(
        self: &Arc<Self>,
        caller: &Caller,
        command: &Command,
        commit: &Commit,
    ) -> Option<PendingStarters> {
        let user = commit.after.owner.as_ref()?.user;
        let content = &commit.record.content;
        let (first, parent) = match command {
            Command::StartRequest(start) => {
                let parent = start.parent.map(|parent| parent.request);
                (content.started_request()?, parent)
            }
            Command::DecideHold { .. } => {
                let decided = content.events.iter().find_map(|event| match event {
                    Event::HoldDecided { request, .. } => Some(*request),
                    _ => None,
                });
                (decided?, None)
            }
            _ => return None,
        };
        let is_system = caller.principal == Principal::System;
        let mut known = self.0.lock();
        let holder = match parent.and_then(|parent| known.get(&parent)) {
            Some(of_parent) => *of_parent,
            None if is_system => return None,
            None => Holder::of_user_of(user, caller),
        };
        let mut added = Vec::new();
        let mut next = Some(first);
        while let Some(request) = next {
            // Ended requests are not noted: nothing would remove them.
            let Some(live) = commit.after.requests.get(&request) else {
                break;
            };
            known.entry(request).or_insert_with(|| {
                added.push(request);
                holder
            });
            next = live.parent;
        }
        Some(PendingStarters {
            starters: Arc::clone(self),
            added,
        })
    }

    /// Forgets a request that has ended.
    pub(crate) fn forget(&self, request: RequestId) {
        self.0.lock().remove(&request);
    }

    /// The holder of what the server does for a live request of this user.
    pub(crate) fn holder_of(&self, user: UserId, request: RequestId) -> Holder {
        let known = self.0.lock().get(&request).copied();
        known.unwrap_or_else(|| Holder::of_user(user))
    }

    /// The holder of a live request; the server itself, if none is known.
    pub(crate) fn known_holder(&self, request: RequestId) -> Holder {
        let known = self.0.lock().get(&request).copied();
        known.unwrap_or_else(Holder::of_server)
    }

    /// The holder of what a caller does for a live request of this user.
    pub(crate) fn holder(&self, caller: &Caller, user: UserId, request: RequestId) -> Holder {
        match caller.principal {
            Principal::System => self.holder_of(user, request),
            _ => Holder::of(caller),
        }
    }
}

impl Engine {
    /// Takes a turn for a request. None if there is none for the key or the user that it counts for.
    pub fn take_turn(&self, turns: &Shares, request: RequestId) -> Option<Share> {
        let holder = self.inner().starters.known_holder(request);
        turns.take_for(holder, 1).ok()
    }

    /// Waits in line for a turn of a request.
    pub fn line_up_for_turn(&self, turns: &Shares, request: RequestId) -> PendingShare {
        let holder = self.inner().starters.known_holder(request);
        turns.line_up_for(holder, 1)
    }
}

//! The effects of a commit outside the store, once it is durable or has failed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, RequestId};
use statehold_core::name::Name;
use statehold_core::record::{CommandName, Event};
use statehold_core::request::LiveStatus;
use statehold_core::session::SessionState;
use statehold_core::task::TaskStatus;
use statehold_store::{Commit, StoreError};

use super::decide::PendingEffects;
use super::mailbox::Mailbox;
use crate::engine::{Engine, Inner};
use crate::measures::CommitEvents;
use crate::watch::ChangedParts;

/// Why a worker may wait for a request.
enum Awaited {
    /// It waits for a worker.
    Queued(RequestId),
    /// It has a decision for the worker that stayed.
    Decided,
}

pub(super) struct Effects {
    /// Requests for which a worker may wait, with their tenant and agent.
    awaited: Vec<((Name, Name), Awaited)>,
    /// Tenant and agent of requests that this commit claims.
    claimed: BTreeSet<(Name, Name)>,
    ended: Vec<RequestId>,
    /// Root requests that ended or paused, and whether they ended. Their `temp:` values are dropped.
    temps_lost: Vec<(RequestId, bool)>,
    erases: bool,
    /// Sealed arguments whose action has ended.
    unneeded: Vec<HoldId>,
    parts: ChangedParts,
    counted: CommitEvents,
    /// Requests that remember their place in a trace, in case they are not started after all.
    traced: Vec<RequestId>,
    pending: PendingEffects,
    /// Holds that it opens, with the API key behind their request, and holds that it decides.
    holds_opened: Vec<(HoldId, Digest)>,
    holds_closed: Vec<HoldId>,
}

impl Effects {
    pub(super) fn of(inner: &Inner, commit: &Commit, pending: PendingEffects) -> Self {
        let changes = &commit.changes;
        // The first record of a fork ends inherited requests under the ids of the origin session, where
        // they may still be live.
        let events = &commit.record.content.events;
        let is_fork = events
            .iter()
            .any(|event| matches!(event, Event::SessionForked { .. }));
        let ended_requests = changes.ended_requests.iter().filter(|_| !is_fork);
        let tenant = commit.after.owner.as_ref().map(|owner| &owner.tenant);
        let awaited = changes.live_requests.iter().filter_map(|(live, agent)| {
            let awaited = match live.status {
                LiveStatus::Queued => Awaited::Queued(live.id),
                // The pusher hears of it too.
                LiveStatus::Running if live.holds_opened > 0 => Awaited::Decided,
                _ => return None,
            };
            Some(((tenant?.clone(), agent.clone()), awaited))
        });
        let claims = commit.record.content.command == CommandName::ClaimRequest;
        let claimed = changes.live_requests.iter().filter(|_| claims);
        let claimed = claimed.filter_map(|(_, agent)| Some((tenant?.clone(), agent.clone())));
        let roots_ended = ended_requests
            .clone()
            .filter(|ended| ended.parent.is_none())
            .map(|ended| (ended.id, true));
        let roots_paused = changes
            .open_tasks
            .iter()
            .filter(|task| task.parent.is_none() && task.status == TaskStatus::Paused)
            .filter_map(|task| Some((task.live?, false)));
        let opened = |event: &Event| match event {
            Event::HoldOpened { hold, request, .. } => {
                let user = commit.after.owner.as_ref()?.user;
                let holder = inner.starters.holder_of(user, *request);
                Some((*hold, holder.account()?))
            }
            _ => None,
        };
        let closed_holds = changes.closed_holds.iter().filter(|_| !is_fork);
        Self {
            awaited: awaited.collect(),
            claimed: claimed.collect(),
            ended: ended_requests.map(|ended| ended.id).collect(),
            temps_lost: roots_ended.chain(roots_paused).collect(),
            erases: commit.removes_payloads(),
            unneeded: if is_fork {
                Vec::new()
            } else {
                inner.unneeded_after(commit)
            },
            parts: ChangedParts::of(commit),
            counted: CommitEvents::of(commit, is_fork),
            traced: match &inner.options.traces {
                Some(traces) if !is_fork => traces.note_started(commit),
                _ => Vec::new(),
            },
            pending,
            holds_opened: events.iter().filter_map(opened).collect(),
            holds_closed: closed_holds.map(|closed| closed.hold.id).collect(),
        }
    }
}

impl Engine {
    /// A commit is durable: announces it, wakes workers, and drops values that only lived until then.
    pub(super) async fn take_effect(
        &self,
        mailbox: &Mailbox,
        after: &Arc<SessionState>,
        effects: Effects,
    ) {
        let inner = self.inner();
        inner.is_full.store(false, Ordering::Relaxed);
        let PendingEffects {
            credential,
            starters,
            answer_of,
        } = effects.pending;
        if let Some(holder) = answer_of {
            inner.answers_kept.note(holder, inner.clock.now());
        }
        inner.options.measures.note_commit(&effects.counted);
        inner.note_ahead(after);
        mailbox.announce(after);
        inner.watches.note(after.session, effects.parts);
        if let Some(credential) = credential {
            credential.settle();
        }
        if let Some(starters) = starters {
            starters.settle();
        }
        for ((tenant, agent), awaited) in effects.awaited {
            // A claim that is queued behind the start wakes the workers if it fails.
            let is_claimed = matches!(awaited, Awaited::Queued(id) if mailbox.is_leased(id));
            if !is_claimed {
                inner.queue(&tenant, &agent).notify_waiters();
            }
        }
        if let Some(traces) = &inner.options.traces {
            traces.forget(&effects.ended);
        }
        if !effects.ended.is_empty() {
            let mut heartbeats = inner.heartbeats.lock();
            for request in effects.ended {
                heartbeats.remove(&request);
                inner.drafts.end(request);
                inner.credentials.drop_request(request);
                inner.starters.forget(request);
            }
        }
        for (root, has_ended) in effects.temps_lost {
            inner.temps.drop_root(root, has_ended);
            inner.credentials.drop_root(root);
        }
        if effects.erases {
            inner.has_erasures.store(true, Ordering::Release);
        }
        for (hold, key) in effects.holds_opened {
            inner.holds_by_key.open(hold, key);
        }
        for hold in effects.holds_closed {
            inner.holds_by_key.close(hold);
        }
        inner.any_commit.send_modify(|count| *count += 1);
        // Before the caller hears that an action has ended: its sealed arguments are unreadable by then.
        self.destroy_hold_keys(effects.unneeded).await;
    }

    /// A commit has failed: forgets its credential before the caller is told, who may bring it again. A
    /// request that it would have claimed waits for a worker.
    pub(super) fn undo(&self, mailbox: &Mailbox, error: &StoreError, effects: Effects) {
        drop(effects.pending);
        if let Some(traces) = &self.inner().options.traces {
            traces.forget(&effects.traced);
        }
        if matches!(error, StoreError::Full) {
            self.inner().is_full.store(true, Ordering::Relaxed);
        }
        mailbox.announce_failure();
        for (tenant, agent) in effects.claimed {
            self.inner().queue(&tenant, &agent).notify_waiters();
        }
    }
}

//! Timers: they lapse leases, expire holds and sessions, evict expired answers, evict idle sessions and sign
//! heads, and beside them payloads are erased.

use std::sync::atomic::Ordering;

use futures_util::{StreamExt, TryStreamExt};
use statehold_core::command::Command;
use statehold_store::{Due, DueKind, PageLimit, StoreError};

use super::due::DUE_MAX;
use crate::caller::Caller;
use crate::commit::call::Call;
use crate::commit::write::{Authority, SessionWrite};
use crate::engine::{Engine, Inner};
use crate::error::EngineError;

/// How many of them are settled at the same time.
const SETTLED_AT_ONCE: usize = 256;
/// How many damaged sessions are read again per minute, to find out whether they were repaired.
const RECHECKED_MAX: usize = 256;
/// How much is erased in one transaction, which other writes wait for.
const ERASE_STEP: PageLimit = PageLimit {
    entries: 64,
    bytes: 1 << 20,
};
/// How many ticks pass between two removals of expired answers.
const FORGET_EVERY: u64 = 600;
/// How many ticks pass between two evictions of idle sessions.
const IDLE_EVERY: u64 = 6_000;

impl Inner {
    /// Removes expired answers; returns how many.
    pub(crate) async fn forget_answers(&self, limit: usize) -> Result<usize, EngineError> {
        let forgotten = self.store.forget_answers(self.clock.now(), limit).await?;
        self.answers_kept.forget(forgotten);
        Ok(forgotten)
    }
}

/// Signs the heads of sessions periodically until the engine stops.
async fn sign_periodically(engine: Engine) {
    let stop = engine.inner().stop.clone();
    let every = engine.inner().options.sign_every;
    loop {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = stop.cancelled() => return,
        }
        if let Err(error) = engine.sign_heads().await {
            tracing::warn!(error = %error, "heads could not be signed; trying again");
        }
    }
}

/// Removes payloads until the engine stops. A task of its own: a session may take minutes, and leases and holds end
/// meanwhile.
async fn erase_periodically(engine: Engine) {
    let inner = engine.inner();
    loop {
        tokio::select! {
            () = tokio::time::sleep(inner.options.tick) => {}
            () = inner.stop.cancelled() => return,
        }
        if let Err(error) = engine.erase_payloads().await {
            tracing::warn!(error = %error, "payloads could not be removed; trying again");
        }
    }
}

impl Engine {
    pub(crate) fn start_timers(&self) {
        let engine = self.clone();
        let tracker = self.inner().tasks.clone();
        tracker.spawn(sign_periodically(self.clone()));
        tracker.spawn(erase_periodically(self.clone()));
        tracker.spawn(async move {
            let stop = engine.inner().stop.clone();
            let tick = engine.inner().options.tick;
            let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + tick, tick);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut count = 0_u64;
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = stop.cancelled() => return,
                }
                if let Err(error) = engine.run_timers(count.is_multiple_of(FORGET_EVERY)).await {
                    tracing::warn!(error = %error, "timers could not do their work; trying again");
                }
                count += 1;
                if count.is_multiple_of(IDLE_EVERY) {
                    engine.forget_idle_sessions();
                }
            }
        });
    }

    /// Does all due work but [`Engine::erase_payloads`]. Called by timers, and by tests with their own clock.
    ///
    /// # Errors
    ///
    /// If the store fails. Parts that do not depend on each other are done all the same.
    pub async fn run_timers(&self, forgets: bool) -> Result<(), EngineError> {
        self.end_expired_keys();
        if forgets {
            // A damaged session may have stopped an erasure.
            self.inner().has_erasures.store(true, Ordering::Release);
        }
        let recorded = self.record_ended_keys().await;
        let settled = self.settle_all(forgets).await;
        let forgotten = if forgets {
            self.forget_expired_answers().await
        } else {
            Ok(())
        };
        recorded.and(settled).and(forgotten)
    }

    /// Removes the payloads that sessions have lost, in short transactions, until none is left or the engine stops.
    ///
    /// # Errors
    ///
    /// If the store fails. The next call goes on; behind damage, the first call of the next minute.
    pub async fn erase_payloads(&self) -> Result<(), EngineError> {
        let inner = self.inner();
        if !inner.has_erasures.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        while !inner.stop.is_cancelled() {
            match inner.store.erase_some(ERASE_STEP).await {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => break,
                Err(error) => {
                    let is_damage = matches!(error, StoreError::Corrupt { .. });
                    inner.has_erasures.fetch_or(!is_damage, Ordering::AcqRel);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    async fn forget_expired_answers(&self) -> Result<(), EngineError> {
        while self.inner().forget_answers(DUE_MAX).await? == DUE_MAX {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Settles the deadlines that have passed, a fair share for every user. They are decided side by side,
    /// so that the store takes them in few commits.
    async fn settle_all(&self, retries_damaged: bool) -> Result<(), EngineError> {
        let inner = self.inner();
        let damage = inner.store.damage();
        if retries_damaged {
            for session in damage.unusable(RECHECKED_MAX) {
                if inner.store.load(session).await.is_ok() {
                    damage.forget(session);
                }
            }
        }
        let mut due = self.due(inner.clock.now()).await?;
        let ahead = self.sessions_ahead().await?;
        if !ahead.is_empty() {
            due.extend(inner.store.due_in(ahead).await?);
        }
        due.retain(|due| !damage.is_unusable(due.session));
        let settled = futures_util::stream::iter(due)
            .map(|due| self.settle(due))
            .buffer_unordered(SETTLED_AT_ONCE);
        settled.try_fold((), |(), ()| async { Ok(()) }).await
    }

    async fn settle(&self, due: Due) -> Result<(), EngineError> {
        let command = match due.kind {
            DueKind::Lease(request) => Command::LapseLease { request },
            DueKind::Hold(hold) => Command::ExpireHold { hold },
            DueKind::Session => Command::ExpireSession,
            DueKind::Hidden => Command::EraseHidden,
        };
        let call = Call::by(Caller::local(due.tenant));
        let write = SessionWrite {
            authority: Authority::Server,
            ..SessionWrite::new(self, &call, due.session)
        };
        match write.commit_unseen(&command).await {
            // Another call was faster, or a heartbeat arrived. The next tick checks again.
            Ok(_) | Err(EngineError::Rejected(_) | EngineError::NotFound) => Ok(()),
            // Its timers stand still until it was checked again.
            Err(EngineError::Damaged(error)) => {
                let damage = self.inner().store.damage();
                damage.note_unusable(due.session, error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

//! Session time. The time of a session never goes back: after the clock was set back, the sessions that
//! committed before are ahead of it. Their time goes on from there, so that their leases, holds and lives
//! end after their own length.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use statehold_core::ids::SessionId;
use statehold_core::session::SessionState;
use statehold_core::time::Timestamp;

use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::locks::Lock;

/// The maximum number of sessions whose time is ahead. Time stands still in further ones until the clock
/// has caught up.
const AHEAD_MAX: usize = 1_000_000;
/// How many sessions that are ahead get their deadlines looked up in one run of the timers.
const LOOKED_UP_MAX: usize = 1_024;
/// A clock that goes back by less is not worth a search for sessions.
const SET_BACK_MIN_MICROS: i64 = 1_000_000;

/// The time of a session at a moment of the steady clock.
#[derive(Debug, Clone, Copy)]
struct Reading {
    time: Timestamp,
    steady: Duration,
}

impl Reading {
    /// The time at another moment.
    fn time_at(self, steady: Duration) -> Timestamp {
        let passed = steady.saturating_sub(self.steady).as_micros();
        let passed = i64::try_from(passed).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.time.as_micros().saturating_add(passed))
    }
}

/// The sessions whose time is ahead of the clock.
#[derive(Debug)]
pub(crate) struct SessionTimes {
    ahead: Lock<BTreeMap<SessionId, Reading>>,
    /// Whether there are any: most servers never need the lock.
    has_any: AtomicBool,
    /// The latest time that the clock has told, in microseconds. The maximum until timers first run, because an
    /// earlier process may have left sessions ahead.
    latest: AtomicI64,
    /// The session at which the last look-up of deadlines ended.
    looked_up: Lock<Option<SessionId>>,
}

impl Default for SessionTimes {
    fn default() -> Self {
        Self {
            ahead: Lock::default(),
            has_any: AtomicBool::new(false),
            latest: AtomicI64::new(i64::MAX),
            looked_up: Lock::default(),
        }
    }
}

/// Whether a time is so far ahead of the clock that the clock was set back.
fn is_ahead(time: Timestamp, now: Timestamp) -> bool {
    time.as_micros().saturating_sub(now.as_micros()) >= SET_BACK_MIN_MICROS
}

impl SessionTimes {
    fn reading_of(&self, session: SessionId) -> Option<Reading> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        self.ahead.lock().get(&session).copied()
    }

    /// The latest time of the clock, if it was set back since, or if timers run for the first time.
    fn before_set_back(&self, now: Timestamp) -> Option<Timestamp> {
        let latest = Timestamp::from_micros(self.latest.load(Ordering::Relaxed));
        is_ahead(latest, now).then_some(latest)
    }

    /// Adds sessions with the time of their last commit. Their time goes on from `latest`, which the clock had
    /// told before it was set back; if that is unknown, from their last commit.
    fn add(&self, sessions: Vec<(SessionId, Timestamp)>, latest: Timestamp, steady: Duration) {
        if sessions.is_empty() {
            return;
        }
        tracing::warn!(
            sessions = sessions.len(),
            "sessions are ahead of the clock, which was set back; their time goes on from their last commit"
        );
        let is_known = latest.as_micros() < i64::MAX;
        let mut ahead = self.ahead.lock();
        for (session, committed) in sessions {
            let time = if is_known {
                latest.max(committed)
            } else {
                committed
            };
            // A session that was ahead before goes on as it did, unless it has committed a later time.
            let known = ahead.get(&session);
            if known.is_none_or(|known| known.time_at(steady) < committed) {
                ahead.insert(session, Reading { time, steady });
            }
        }
        self.has_any.store(true, Ordering::Release);
    }

    /// The next sessions in turn, with their time.
    fn next(&self, steady: Duration) -> Vec<(SessionId, Timestamp)> {
        if !self.has_any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut looked_up = self.looked_up.lock();
        let after = looked_up.map_or(Bound::Unbounded, Bound::Excluded);
        let ahead = self.ahead.lock();
        let rest = ahead.range((after, Bound::Unbounded));
        let times = rest.map(|(session, reading)| (*session, reading.time_at(steady)));
        let next: Vec<_> = times.take(LOOKED_UP_MAX).collect();
        *looked_up = next
            .last()
            .filter(|_| next.len() == LOOKED_UP_MAX)
            .map(|(session, _)| *session);
        next
    }
}

impl Inner {
    /// The time of a session: that of the clock, or a later one if it was set back.
    pub(crate) fn time_of(&self, session: SessionId) -> Timestamp {
        let now = self.clock.now();
        let times = &self.session_times;
        times.latest.fetch_max(now.as_micros(), Ordering::Relaxed);
        let reading = times.reading_of(session);
        reading.map_or(now, |ahead| ahead.time_at(self.clock.steady()).max(now))
    }

    /// Notes a session whose commit became durable after the clock was set back behind it.
    pub(crate) fn note_ahead(&self, state: &SessionState) {
        let (times, committed) = (&self.session_times, state.last_at);
        if is_ahead(committed, self.clock.now()) && times.reading_of(state.session).is_none() {
            times.add(
                vec![(state.session, committed)],
                committed,
                self.clock.steady(),
            );
        }
    }

    /// The time from which leases of an earlier process last one full ttl.
    pub(crate) fn leases_start(&self, session: SessionId) -> Timestamp {
        let reading = self.session_times.reading_of(session);
        reading.map_or(self.started_at, |ahead| ahead.time.max(self.started_at))
    }
}

impl Engine {
    /// The next sessions in turn whose time is ahead of the clock, with their time.
    pub(super) async fn sessions_ahead(&self) -> Result<Vec<(SessionId, Timestamp)>, EngineError> {
        let inner = self.inner();
        let (now, steady) = (inner.clock.now(), inner.clock.steady());
        let times = &inner.session_times;
        if let Some(latest) = times.before_set_back(now) {
            let found = inner.store.sessions_ahead(now, AHEAD_MAX).await?;
            times.add(found, latest, steady);
            times.latest.store(now.as_micros(), Ordering::Relaxed);
        }
        Ok(times.next(steady))
    }
}

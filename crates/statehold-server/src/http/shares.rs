//! The pools of a server that its callers share: calls in progress and open streams, and how often one key
//! may call.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use statehold_core::digest::Digest;
use statehold_engine::{Caller, PoolFull, Share, Shares};

use crate::http::problem::{Code, Problem, RETRY_AFTER_SECONDS};

/// After so many calls the rate limiter forgets the keys that have not called of late.
const CALLS_BETWEEN_CLEANUPS: usize = 4_096;

/// How often one key may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Calls per second, in the long run.
    pub calls_per_second: NonZeroU32,
    /// Calls at once, after a pause.
    pub burst: NonZeroU32,
}

/// The place where a call leaves its share of the calls in progress. The connection holds it until the
/// response is written.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallSlot(Arc<OnceLock<Share>>);

/// The pools.
#[derive(Debug)]
pub(crate) struct ServerShares {
    calls: Shares,
    streams: Shares,
    rate: Option<DefaultKeyedRateLimiter<Digest>>,
    /// How many calls the rate limiter has seen.
    calls_rated: AtomicUsize,
}

impl ServerShares {
    pub(crate) fn new(calls_max: usize, streams_max: usize, rate: Option<RateLimit>) -> Self {
        let quota = |rate: RateLimit| {
            let quota = Quota::per_second(rate.calls_per_second);
            RateLimiter::keyed(quota.allow_burst(rate.burst))
        };
        Self {
            calls: Shares::new(calls_max),
            streams: Shares::new(streams_max),
            rate: rate.map(quota),
            calls_rated: AtomicUsize::new(0),
        }
    }

    /// Counts a call of an authenticated caller until its response is written.
    pub(crate) fn begin_call(
        &self,
        caller: &Caller,
        slot: Option<&CallSlot>,
    ) -> Result<(), Problem> {
        if slot.is_some_and(|slot| slot.0.get().is_some()) {
            return Ok(());
        }
        self.require_rate(caller)?;
        let share = self.calls.take(caller, 1).map_err(|full| {
            let detail = match full {
                PoolFull::OwnShare(own) => format!(
                    "this key has {own} calls in progress, as many as one key may; wait for one to end"
                ),
                PoolFull::All => "too many calls are in progress; try again in a moment".to_owned(),
            };
            Problem::new(Code::TooMany, detail)
        })?;
        if let Some(slot) = slot {
            drop(slot.0.set(share));
        }
        Ok(())
    }

    /// Takes a place for a feed, a streamed answer, or a call that waits long.
    pub(crate) fn take_stream(&self, caller: &Caller) -> Result<Share, Problem> {
        self.streams.take(caller, 1).map_err(|full| {
            let detail = match full {
                PoolFull::OwnShare(own) => format!(
                    "this key has {own} feeds, streams and long waits open, as many as one key may; close \
                     one, or ask without `stream` and with a wait of at most 60 seconds"
                ),
                PoolFull::All => "too many feeds and streams are open; ask for records, or without \
                                  `stream`, or again in a moment"
                    .to_owned(),
            };
            Problem::new(Code::TooMany, detail)
        })
    }

    fn require_rate(&self, caller: &Caller) -> Result<(), Problem> {
        let (Some(rate), Some(key)) = (&self.rate, &caller.key) else {
            return Ok(());
        };
        let calls = self.calls_rated.fetch_add(1, Ordering::Relaxed);
        if calls.is_multiple_of(CALLS_BETWEEN_CLEANUPS) {
            rate.retain_recent();
        }
        rate.check_key(key).map_err(|until| {
            let wait = until.wait_time_from(DefaultClock::default().now());
            let seconds = wait.as_secs() + u64::from(wait > Duration::from_secs(wait.as_secs()));
            let detail = "this key calls more often than the server allows; wait, then call again";
            Problem::new(Code::RateLimited, detail).with(RETRY_AFTER_SECONDS, seconds.max(1))
        })
    }
}

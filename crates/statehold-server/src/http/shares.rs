//! The pools of a server that its callers share: calls in progress, open streams and the memory for answers, and
//! how often one key may call.

use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::ConnectInfo;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use http::Extensions;
use statehold_core::digest::Digest;
use statehold_engine::{Caller, Lock, PendingShare, PoolFull, Share, Shares};
use tokio::time::Instant;

use crate::http::call::ServerOptions;
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

/// A client that takes nothing of a long answer for this time is cut, if others wait for its memory.
const ANSWER_STALL_MAX: Duration = Duration::from_secs(5);
/// Answers up to this size take nothing of the memory for answers.
pub(crate) const SMALL_ANSWER_BYTES: u64 = 64 * 1024;

/// The place where a call leaves its shares: of the calls in progress, and of the memory for answers. The
/// connection holds them until the response is written.
#[derive(Debug, Clone)]
pub(crate) struct CallSlot(Arc<CallShares>);

#[derive(Debug)]
struct CallShares {
    call: OnceLock<Share>,
    answer: Lock<Option<Share>>,
    begun: Instant,
    /// Milliseconds from `begun` to the time when the client took something of the answer.
    moved: AtomicU64,
}

impl Default for CallSlot {
    fn default() -> Self {
        Self(Arc::new(CallShares {
            call: OnceLock::new(),
            answer: Lock::default(),
            begun: Instant::now(),
            moved: AtomicU64::new(0),
        }))
    }
}

impl CallSlot {
    /// Holds the memory of an answer, in place of what was held before.
    pub(crate) fn hold_answer(&self, share: Option<Share>) {
        self.note_progress();
        let before = std::mem::replace(&mut *self.0.answer.lock(), share);
        drop(before);
    }

    /// Gives back the memory that an answer of this length does not need.
    pub(crate) fn shrink_answer(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.note_progress();
        if let Some(share) = &mut *self.0.answer.lock() {
            let is_small = bytes as u64 <= SMALL_ANSWER_BYTES;
            share.shrink(if is_small { 0 } else { bytes });
        }
    }

    /// Notes that the client has taken something of the answer.
    pub(crate) fn note_progress(&self) {
        let since = self.0.begun.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.0.moved.store(since, Ordering::Relaxed);
    }

    /// Whether the client has taken nothing for too long, while others wait for the memory of its answer.
    pub(crate) fn is_stalled(&self) -> bool {
        let moved = Duration::from_millis(self.0.moved.load(Ordering::Relaxed));
        let is_late = self.0.begun.elapsed().saturating_sub(moved) >= ANSWER_STALL_MAX;
        let answer = self.0.answer.lock();
        is_late && answer.as_ref().is_some_and(Share::is_waited_for)
    }
}

/// How many unknown keys one address may try, per second in the long run and at once: each costs a read of the
/// store.
const UNKNOWN_KEYS: RateLimit = RateLimit {
    calls_per_second: NonZeroU32::new(50).expect("not zero"),
    burst: NonZeroU32::new(500).expect("not zero"),
};

/// The pools.
#[derive(Debug)]
pub(crate) struct ServerShares {
    calls: Shares,
    streams: Shares,
    /// In bytes.
    answers: Shares,
    rate: Option<DefaultKeyedRateLimiter<Digest>>,
    /// Of callers with unknown keys, by their network.
    stranger_rate: DefaultKeyedRateLimiter<IpAddr>,
    /// How many calls the rate limiters have seen.
    calls_rated: AtomicUsize,
}

impl ServerShares {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let quota =
            |rate: RateLimit| Quota::per_second(rate.calls_per_second).allow_burst(rate.burst);
        Self {
            calls: Shares::new(options.calls_max),
            streams: Shares::new(options.streams_max),
            answers: Shares::new(options.answer_bytes_max),
            rate: options.rate.map(|rate| RateLimiter::keyed(quota(rate))),
            stranger_rate: RateLimiter::keyed(quota(UNKNOWN_KEYS)),
            calls_rated: AtomicUsize::new(0),
        }
    }

    /// Counts a call of an authenticated caller until its response is written.
    pub(crate) fn begin_call(
        &self,
        caller: &Caller,
        slot: Option<&CallSlot>,
    ) -> Result<(), Problem> {
        if slot.is_some_and(|slot| slot.0.call.get().is_some()) {
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
            drop(slot.0.call.set(share));
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

    /// Waits in line for the memory of an answer with so many bytes of payloads. While the answer is made, they
    /// are there twice: as they were read, and in the answer.
    pub(crate) fn line_up_for_answer(&self, caller: &Caller, payload_bytes: u64) -> PendingShare {
        let bytes = usize::try_from(payload_bytes.saturating_mul(2)).unwrap_or(usize::MAX);
        self.answers.line_up(caller, bytes)
    }

    fn require_rate(&self, caller: &Caller) -> Result<(), Problem> {
        let (Some(rate), Some(key)) = (&self.rate, &caller.key) else {
            return Ok(());
        };
        let detail = "this key calls more often than the server allows; wait, then call again";
        self.require(rate, key, detail)
    }

    /// Counts a call with an unknown key, by the address of the connection.
    pub(crate) fn require_stranger_rate(&self, connection: &Extensions) -> Result<(), Problem> {
        let Some(ConnectInfo(peer)) = connection.get::<ConnectInfo<SocketAddr>>() else {
            return Ok(());
        };
        let detail = "this address tries unknown keys more often than the server allows; wait, then call \
                      again with a valid key";
        self.require(&self.stranger_rate, &network(peer.ip()), detail)
    }

    fn require<K: Hash + Eq + Clone>(
        &self,
        rate: &DefaultKeyedRateLimiter<K>,
        key: &K,
        detail: &str,
    ) -> Result<(), Problem> {
        let calls = self.calls_rated.fetch_add(1, Ordering::Relaxed);
        if calls.is_multiple_of(CALLS_BETWEEN_CLEANUPS) {
            rate.retain_recent();
        }
        rate.check_key(key).map_err(|until| {
            let wait = until.wait_time_from(DefaultClock::default().now());
            let seconds = wait.as_secs() + u64::from(wait > Duration::from_secs(wait.as_secs()));
            Problem::new(Code::RateLimited, detail).with(RETRY_AFTER_SECONDS, seconds.max(1))
        })
    }
}

/// The address, or for IPv6 its network of 64 bits, within which one caller has all addresses.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

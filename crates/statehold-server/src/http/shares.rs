//! The pools of a server that its callers share: calls in progress, open streams, the memory for bodies and for
//! answers, and how often one key may call.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::ConnectInfo;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use http::Extensions;
use statehold_core::digest::Digest;
use statehold_engine::{Caller, Lock, PendingShare, PoolFull, SMALL_PAYLOAD_BYTES, Share, Shares};
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
pub(crate) const SMALL_ANSWER_BYTES: u64 = SMALL_PAYLOAD_BYTES;

/// The place where a call leaves its shares: of the calls in progress, and of the memory for bodies and answers.
/// The connection holds them until the response is written.
#[derive(Debug, Clone)]
pub(crate) struct CallSlot(Arc<CallShares>);

#[derive(Debug)]
struct CallShares {
    call: OnceLock<Share>,
    body: Lock<Option<Share>>,
    values: Lock<Option<Share>>,
    answer: Lock<Option<Share>>,
    /// Whether the whole answer is made, so that only its client holds it up.
    is_answered: AtomicBool,
    begun: Instant,
    /// Milliseconds from `begun` to the time when the client took something of the answer.
    moved: AtomicU64,
}

impl Default for CallSlot {
    fn default() -> Self {
        Self(Arc::new(CallShares {
            call: OnceLock::new(),
            body: Lock::default(),
            values: Lock::default(),
            is_answered: AtomicBool::new(false),
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
        self.note_progress();
        if let Some(share) = &mut *self.0.answer.lock() {
            share.shrink(counted(bytes));
        }
    }

    /// Notes that the whole answer is made: the body of the call and its values are gone. If the call took no memory for an answer,
    /// the answer, which repeats some of the body, stays in the memory of the body.
    pub(crate) fn finish_answer(&self, bytes: u64) {
        self.shrink_answer(bytes);
        let has_answer = self.0.answer.lock().is_some();
        if let Some(share) = &mut *self.0.body.lock() {
            share.shrink(if has_answer { 0 } else { counted(bytes) });
        }
        self.release_values();
        self.0.is_answered.store(true, Ordering::Relaxed);
    }

    /// Holds the memory of the body.
    pub(crate) fn hold_body(&self, share: Share) {
        *self.0.body.lock() = Some(share);
    }

    pub(crate) fn has_body(&self) -> bool {
        self.0.body.lock().is_some()
    }

    /// Gives back the memory that a body of this length does not need.
    pub(crate) fn shrink_body(&self, bytes: usize) {
        if let Some(share) = &mut *self.0.body.lock() {
            share.shrink(bytes.saturating_mul(2));
        }
    }

    /// Holds the memory of the values of the body.
    pub(crate) fn hold_values(&self, share: Share) {
        *self.0.values.lock() = Some(share);
    }

    /// Gives back the memory of the body and its values, which are gone.
    pub(crate) fn release_body(&self) {
        let body = self.0.body.lock().take();
        drop(body);
        self.release_values();
    }

    /// Gives back the memory of the values of the body: the call has what it needs of them in another form.
    pub(crate) fn release_values(&self) {
        let values = self.0.values.lock().take();
        drop(values);
    }

    /// Whether others wait for the memory that the body of this call has.
    pub(crate) fn is_body_waited_for(&self) -> bool {
        self.0
            .body
            .lock()
            .as_ref()
            .is_some_and(Share::is_waited_for)
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
        if !is_late {
            return false;
        }
        let is_answer_waited_for = || {
            let answer = self.0.answer.lock();
            answer.as_ref().is_some_and(Share::is_waited_for)
        };
        let is_answered = self.0.is_answered.load(Ordering::Relaxed);
        is_answer_waited_for() || is_answered && self.is_body_waited_for()
    }
}

/// The bytes that an answer of this length counts with.
fn counted(bytes: u64) -> usize {
    if bytes <= SMALL_ANSWER_BYTES {
        return 0;
    }
    usize::try_from(bytes).unwrap_or(usize::MAX)
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
    bodies: Shares,
    /// In bytes.
    values: Shares,
    /// In bytes.
    answers: Shares,
    rate: Option<DefaultKeyedRateLimiter<Digest>>,
    /// Of callers with unknown keys, by their network.
    stranger_rate: DefaultKeyedRateLimiter<IpAddr>,
    /// The networks that have tried too many unknown keys, and until when they may try no other.
    refused_strangers: Lock<HashMap<IpAddr, Instant>>,
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
            bodies: Shares::new(options.request_bytes_max),
            values: Shares::new(options.request_bytes_max),
            answers: Shares::new(options.answer_bytes_max),
            rate: options.rate.map(|rate| RateLimiter::keyed(quota(rate))),
            stranger_rate: RateLimiter::keyed(quota(UNKNOWN_KEYS)),
            refused_strangers: Lock::default(),
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

    /// Waits in line for the memory of a body. It is there twice: as it came, and as the call has it.
    pub(crate) fn line_up_for_body(&self, caller: &Caller, bytes: usize) -> PendingShare {
        self.bodies.line_up(caller, bytes.saturating_mul(2))
    }

    /// Waits in line for the memory of the values of a body, which come on top of its bytes. A call that waits here
    /// may hold the memory of its bytes. None that holds values waits for bytes, so each of them gets on.
    pub(crate) fn line_up_for_values(&self, caller: &Caller, bytes: usize) -> PendingShare {
        self.values.line_up(caller, bytes)
    }

    fn require_rate(&self, caller: &Caller) -> Result<(), Problem> {
        let (Some(rate), Some(key)) = (&self.rate, &caller.key) else {
            return Ok(());
        };
        let detail = "this key calls more often than the server allows; wait, then call again";
        let counted = self.count(rate, key);
        counted.map_err(|wait| rate_limited(detail, wait))
    }

    /// Refuses a call with a key that may be unknown, while its address tries unknown keys too often.
    pub(crate) fn require_no_stranger(&self, connection: &Extensions) -> Result<(), Problem> {
        let Some(network) = network_of(connection) else {
            return Ok(());
        };
        let until = self.refused_strangers.lock().get(&network).copied();
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            Some(wait) if !wait.is_zero() => Err(rate_limited(TOO_MANY_UNKNOWN_KEYS, wait)),
            _ => Ok(()),
        }
    }

    /// Counts a call with an unknown key, by the address of the connection.
    pub(crate) fn count_stranger(&self, connection: &Extensions) -> Result<(), Problem> {
        let Some(network) = network_of(connection) else {
            return Ok(());
        };
        let counted = self.count(&self.stranger_rate, &network);
        counted.map_err(|wait| {
            let now = Instant::now();
            let mut refused = self.refused_strangers.lock();
            refused.retain(|_, until| *until > now);
            refused.insert(network, now + wait);
            rate_limited(TOO_MANY_UNKNOWN_KEYS, wait)
        })
    }

    /// Counts a call, or tells how long to wait.
    fn count<K: Hash + Eq + Clone>(
        &self,
        rate: &DefaultKeyedRateLimiter<K>,
        key: &K,
    ) -> Result<(), Duration> {
        let calls = self.calls_rated.fetch_add(1, Ordering::Relaxed);
        if calls.is_multiple_of(CALLS_BETWEEN_CLEANUPS) {
            rate.retain_recent();
        }
        let counted = rate.check_key(key);
        counted.map_err(|until| until.wait_time_from(DefaultClock::default().now()))
    }
}

const TOO_MANY_UNKNOWN_KEYS: &str = "this address tries unknown keys more often than the server allows; wait, \
                                     then call again with a valid key";

fn rate_limited(detail: &str, wait: Duration) -> Problem {
    let seconds = wait.as_secs() + u64::from(wait > Duration::from_secs(wait.as_secs()));
    Problem::new(Code::RateLimited, detail).with(RETRY_AFTER_SECONDS, seconds.max(1))
}

/// The network that a connection comes from.
pub(crate) fn network_of(connection: &Extensions) -> Option<IpAddr> {
    let ConnectInfo(peer) = connection.get::<ConnectInfo<SocketAddr>>()?;
    Some(network(peer.ip()))
}

/// The address, or for IPv6 its network of 64 bits, within which one caller has all addresses. A socket for both
/// shows IPv4 addresses inside of IPv6 ones.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> Extensions {
        let mut connection = Extensions::new();
        let peer: IpAddr = address.parse().expect("an address");
        connection.insert(ConnectInfo(SocketAddr::from((peer, 1))));
        connection
    }

    /// Tries unknown keys until that is refused, and then one more time.
    fn exhaust(shares: &ServerShares, address: &str) {
        let connection = from(address);
        let mut tries = 0..10 * UNKNOWN_KEYS.burst.get();
        let is_refused = tries.any(|_| shares.count_stranger(&connection).is_err());
        assert!(is_refused, "{address} may try for ever");
        let looked_up = shares.require_no_stranger(&connection);
        assert!(looked_up.is_err(), "{address} is looked up all the same");
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_of_one_network_do_not_use_up_the_tries_of_another() {
        let shares = ServerShares::new(&ServerOptions::default());
        for (stranger, other) in [
            ("192.0.2.1", "192.0.2.2"),
            ("::ffff:198.51.100.1", "::ffff:198.51.100.2"),
            ("2001:db8:0:1::1", "2001:db8:0:2::1"),
        ] {
            exhaust(&shares, stranger);
            let other = from(other);
            assert!(shares.require_no_stranger(&other).is_ok());
            assert!(shares.count_stranger(&other).is_ok());
        }
        for (shown, stranger) in [
            ("198.51.100.1", "the same address on a socket for IPv4"),
            ("2001:db8:0:1::2", "another address of the network"),
        ] {
            let refused = shares.require_no_stranger(&from(shown));
            assert!(refused.is_err(), "{stranger}");
        }
    }
}

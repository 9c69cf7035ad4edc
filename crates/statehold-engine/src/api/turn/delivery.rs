//! Delivery of answers to chat clients: which answers a client has not received yet, and which holds it
//! has seen.
//!
//! The log is bounded and in memory. A turn that it has dropped counts as delivered: at worst a repeated
//! message starts another turn. Answers that an earlier process may not have delivered are owed by this one.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_core::time::Timestamp;

use super::{TurnHandle, TurnSnapshot};

/// How many turns the log has at most.
const TURNS_MAX: usize = 20_000;
/// How many streams that ended early the log remembers, and how many bytes of each.
const PARTS_MAX: usize = 4_096;
const PART_BYTES_MAX: usize = 512;
/// How long before the start of this process an answer may have been committed and not delivered.
const BEFORE_START_MS: u64 = 5 * 60 * 1_000;

/// The answers that chat clients have received or are owed.
#[derive(Debug)]
pub struct DeliveryLog {
    /// When this process started.
    since: Timestamp,
    entries: Mutex<DeliveryEntries>,
}

#[derive(Debug, Default)]
struct DeliveryEntries {
    /// Turns whose answer was not delivered yet, by session; true if the client knows them as paused.
    owed: HashMap<SessionId, BTreeMap<RequestId, bool>>,
    /// The same turns in the order in which they began.
    begun: VecDeque<(SessionId, RequestId)>,
    sent: RecentSet<RequestId>,
    /// The answers that this process has delivered, the newest last.
    deliveries: VecDeque<Delivery>,
    /// Turns with the declaration that their agent had when they started.
    configs: RecentSet<(RequestId, Digest)>,
    seen: RecentSet<HoldId>,
    /// The beginnings of texts that clients have of turns whose stream ended before the answer.
    parts: HashMap<RequestId, String>,
    /// The same turns in the order in which their streams ended.
    parted: VecDeque<RequestId>,
}

/// The delivery of an answer.
#[derive(Debug)]
struct Delivery {
    session: SessionId,
    request: RequestId,
    at: Instant,
}

impl DeliveryLog {
    /// An empty log of a process that starts now.
    pub fn new(now: Timestamp) -> Self {
        Self {
            since: now,
            entries: Mutex::default(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, DeliveryEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When this process started.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// Whether that time is before the start of this process, so that the log may be incomplete.
    pub(super) fn predates(&self, at: Timestamp) -> bool {
        at < self.since
    }

    /// Notes that a client waits for the answer of a turn.
    pub(super) fn begin(&self, session: SessionId, request: RequestId) {
        let mut entries = self.entries();
        let turns = entries.owed.entry(session).or_default();
        if turns.contains_key(&request) {
            return;
        }
        turns.insert(request, false);
        entries.begun.push_back((session, request));
        while entries.begun.len() > TURNS_MAX {
            if let Some((session, request)) = entries.begun.pop_front() {
                entries.settle(session, request);
            }
        }
    }

    /// Owes the clients of a fork the answers of turns that they know as paused in its origin.
    pub(super) fn follow_fork(&self, origin: SessionId, fork: SessionId) {
        let paused = self.owed_in(origin).into_iter();
        for (request, _) in paused.filter(|(_, was_paused)| *was_paused) {
            self.owe_paused(fork, request);
        }
    }

    /// Owes a client the answer of a turn that it knows as paused, and that it was not told in an earlier process.
    pub(super) fn owe_paused(&self, session: SessionId, request: RequestId) {
        self.begin(session, request);
        let mut entries = self.entries();
        if let Some(turns) = entries.owed.get_mut(&session) {
            turns.insert(request, true);
        }
    }

    /// The turns of a session whose answer is owed, oldest first; true if the client knows them as paused.
    pub(super) fn owed_in(&self, session: SessionId) -> Vec<(RequestId, bool)> {
        let entries = self.entries();
        let turns = entries.owed.get(&session).into_iter().flatten();
        turns.map(|(request, paused)| (*request, *paused)).collect()
    }

    /// Whether the answer of a turn that has ended is owed.
    pub(super) fn is_owed(
        &self,
        session: SessionId,
        request: RequestId,
        started_at: Timestamp,
        ended_at: Timestamp,
    ) -> bool {
        let entries = self.entries();
        if entries.has(session, request) {
            return true;
        }
        let may_be_unsent = ended_at.plus_ms(BEFORE_START_MS) >= self.since;
        self.predates(started_at) && may_be_unsent && !entries.sent.has(&request)
    }

    /// Whether the next call is owed the answer of a turn that was paused. An answer that is younger than
    /// this process cannot have been delivered by an earlier one.
    pub(super) fn is_news(
        &self,
        session: SessionId,
        request: RequestId,
        started_at: Timestamp,
        ended_at: Timestamp,
    ) -> bool {
        let is_known = || self.entries().has(session, request);
        (!self.predates(ended_at) || is_known())
            && self.is_owed(session, request, started_at, ended_at)
    }

    /// Notes the declaration that the agent of a turn has at its start.
    pub(super) fn note_config(&self, request: RequestId, config: Option<Digest>) {
        if let Some(config) = config {
            self.entries().configs.add((request, config));
        }
    }

    /// Whether the agent of a turn had this declaration at its start, as far as the log remembers.
    pub(super) fn has_config(&self, request: RequestId, config: Option<Digest>) -> bool {
        config.is_some_and(|config| self.entries().configs.has(&(request, config)))
    }

    /// Whether a client has received the whole answer of a turn, as far as the log remembers.
    pub(super) fn has_sent(&self, request: RequestId) -> bool {
        self.entries().sent.has(&request)
    }

    /// The turns of a session whose answer was delivered after that time, the newest first. A call that arrived
    /// then was sent by a client that did not have the answer.
    pub(super) fn delivered_since(&self, session: SessionId, at: Instant) -> Vec<RequestId> {
        let entries = self.entries();
        let newest = entries.deliveries.iter().rev();
        let since = newest.take_while(|delivery| delivery.at >= at);
        let own = since.filter(|delivery| delivery.session == session);
        own.map(|delivery| delivery.request).collect()
    }

    /// Notes that a client has the answer of a turn, from an earlier process.
    pub(super) fn note_sent(&self, session: SessionId, request: RequestId) {
        self.entries().note_sent(session, request);
    }

    /// Notes the text that a client has of a turn whose stream ended before the answer.
    pub fn note_part(&self, request: RequestId, text: &str) {
        let mut entries = self.entries();
        let part = &text[..text.floor_char_boundary(PART_BYTES_MAX)];
        let known = entries.parts.get(&request);
        if part.len() <= known.map_or(0, String::len) {
            return;
        }
        if known.is_none() {
            entries.parted.push_back(request);
        }
        entries.parts.insert(request, part.to_owned());
        while entries.parted.len() > PARTS_MAX {
            if let Some(oldest) = entries.parted.pop_front() {
                entries.parts.remove(&oldest);
            }
        }
    }

    /// Whether a client may have this text of a turn whose stream ended before the answer.
    pub(super) fn has_part(&self, request: RequestId, text: &str) -> bool {
        let entries = self.entries();
        entries.parts.get(&request).is_some_and(|part| {
            // Of a long part only the beginning is known; it may end inside a character of many bytes.
            let is_cut = part.len() + 4 > PART_BYTES_MAX;
            part.trim_start().starts_with(text) || is_cut && text.starts_with(part.trim())
        })
    }

    /// Drops a turn whose answer no client waits for.
    pub fn forget(&self, session: SessionId, request: RequestId) {
        self.entries().settle(session, request);
    }

    /// Whether a client has seen that this hold is open.
    pub(super) fn has_seen(&self, hold: HoldId) -> bool {
        self.entries().seen.has(&hold)
    }

    /// The receipt for an answer that shows this snapshot of a turn, and before it the answers of earlier turns if
    /// it is `with_earlier`.
    pub fn receipt(
        self: &Arc<Self>,
        turn: &TurnHandle,
        with_earlier: bool,
        snapshot: &TurnSnapshot,
    ) -> DeliveryReceipt {
        let earlier = turn.earlier.iter().filter(|_| with_earlier);
        let has_ended = snapshot.has_ended();
        let own = has_ended.then_some(turn.request);
        DeliveryReceipt {
            log: Arc::clone(self),
            session: turn.session,
            sent: earlier.map(|earlier| earlier.request).chain(own).collect(),
            paused: (!has_ended).then_some(turn.request),
            seen: snapshot.hold_ids(),
        }
    }
}

impl DeliveryEntries {
    fn has(&self, session: SessionId, request: RequestId) -> bool {
        let turns = self.owed.get(&session);
        turns.is_some_and(|turns| turns.contains_key(&request))
    }

    fn note_sent(&mut self, session: SessionId, request: RequestId) {
        self.settle(session, request);
        self.sent.add(request);
    }

    fn note_delivery(&mut self, session: SessionId, request: RequestId) {
        self.deliveries.push_back(Delivery {
            session,
            request,
            at: Instant::now(),
        });
        if self.deliveries.len() > TURNS_MAX {
            self.deliveries.pop_front();
        }
    }

    fn settle(&mut self, session: SessionId, request: RequestId) {
        if let Some(turns) = self.owed.get_mut(&session) {
            turns.remove(&request);
            if turns.is_empty() {
                self.owed.remove(&session);
            }
        }
        // Most turns are settled in the order they began, so the queue stays short without a search.
        if self.begun.front() == Some(&(session, request)) {
            self.begun.pop_front();
        }
    }
}

/// The receipt for one answer, to be confirmed when the client has received all of it.
#[derive(Debug)]
pub struct DeliveryReceipt {
    log: Arc<DeliveryLog>,
    session: SessionId,
    /// Turns whose answer it contains.
    sent: Vec<RequestId>,
    /// The turn that it shows as paused.
    paused: Option<RequestId>,
    /// Holds that it shows.
    seen: Vec<HoldId>,
}

impl DeliveryReceipt {
    /// Notes that the client has received the answer.
    pub fn confirm(self) {
        let mut entries = self.log.entries();
        for request in self.sent {
            entries.note_sent(self.session, request);
            entries.note_delivery(self.session, request);
        }
        if let Some(request) = self.paused
            && let Some(turns) = entries.owed.get_mut(&self.session)
            && let Some(was_paused) = turns.get_mut(&request)
        {
            *was_paused = true;
        }
        for hold in self.seen {
            entries.seen.add(hold);
        }
    }
}

/// A set of the keys that were added last; the oldest are evicted.
#[derive(Debug)]
struct RecentSet<K> {
    known: HashSet<K>,
    order: VecDeque<K>,
}

impl<K> Default for RecentSet<K> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Hash + Eq + Copy> RecentSet<K> {
    fn has(&self, key: &K) -> bool {
        self.known.contains(key)
    }

    fn add(&mut self, key: K) {
        if self.known.insert(key) {
            self.order.push_back(key);
        }
        while self.order.len() > TURNS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn session(n: u128) -> SessionId {
        SessionId::from_uuid(Uuid::from_u128(n))
    }

    fn request(n: usize) -> RequestId {
        RequestId::from_uuid(Uuid::from_u128(n as u128))
    }

    #[test]
    fn a_dropped_turn_counts_as_delivered() {
        let now = Timestamp::from_micros(1_000_000_000_000);
        let log = DeliveryLog::new(now);
        log.begin(session(1), request(0));
        assert_eq!(log.owed_in(session(1)), [(request(0), false)]);
        for n in 1..=TURNS_MAX {
            log.begin(session(2), request(n));
        }
        assert!(log.owed_in(session(1)).is_empty());
        assert_eq!(log.owed_in(session(2)).len(), TURNS_MAX);
        assert!(log.is_owed(session(2), request(1), now, now));
        log.forget(session(2), request(1));
        assert!(!log.is_owed(session(2), request(1), now, now));
    }

    #[test]
    fn a_call_that_arrived_before_an_answer_left_is_told_from_a_later_one() {
        let log = Arc::new(DeliveryLog::new(Timestamp::from_micros(0)));
        let arrived = Instant::now();
        for n in 1..=2 {
            let receipt = DeliveryReceipt {
                log: Arc::clone(&log),
                session: session(1),
                sent: vec![request(n)],
                paused: None,
                seen: Vec::new(),
            };
            receipt.confirm();
        }
        let found = log.delivered_since(session(1), arrived);
        assert_eq!(found, [request(2), request(1)]);
        assert!(log.delivered_since(session(2), arrived).is_empty());
        let later = Instant::now() + std::time::Duration::from_nanos(1);
        assert!(log.delivered_since(session(1), later).is_empty());
        // An answer that a client carries was delivered some time before.
        log.note_sent(session(1), request(3));
        let found = log.delivered_since(session(1), arrived);
        assert_eq!(found, [request(2), request(1)]);
    }

    #[test]
    fn the_beginning_of_a_text_that_was_sent_is_known() {
        let log = DeliveryLog::new(Timestamp::from_micros(0));
        log.note_part(request(1), "Once upon a time");
        log.note_part(request(1), "Once");
        assert!(log.has_part(request(1), "Once upon"));
        assert!(!log.has_part(request(1), "upon") && !log.has_part(request(2), "Once"));
        assert!(!log.has_part(request(1), "Once upon a time there was"));
        let story = "é".repeat(PART_BYTES_MAX);
        log.note_part(request(2), &story);
        assert!(log.has_part(request(2), &story) && log.has_part(request(2), "éé"));
        assert!(!log.has_part(request(2), &format!("e{story}")));
        for n in 0..=PARTS_MAX {
            log.note_part(request(n), "x");
        }
        assert_eq!(log.entries().parts.len(), PARTS_MAX);
        assert!(!log.has_part(request(1), "Once"), "it was noted first");
    }

    #[test]
    fn an_answer_of_the_earlier_process_is_owed_for_some_minutes() {
        let now = Timestamp::from_micros(1_000_000_000_000);
        let log = DeliveryLog::new(now);
        let minutes_ago =
            |minutes: i64| Timestamp::from_micros(now.as_micros() - minutes * 60_000_000);
        let owes = |started, ended| log.is_owed(session(1), request(1), started, ended);
        assert!(owes(minutes_ago(60), minutes_ago(4)));
        assert!(owes(minutes_ago(60), now));
        assert!(!owes(minutes_ago(60), minutes_ago(6)));
        assert!(!owes(now, now), "this process would know");
        let is_news = |ended| log.is_news(session(1), request(1), minutes_ago(60), ended);
        assert!(is_news(now));
        assert!(
            !is_news(minutes_ago(1)),
            "the earlier process may have delivered it"
        );
        log.entries().sent.add(request(1));
        assert!(!owes(minutes_ago(60), now), "it has been sent since");
    }
}

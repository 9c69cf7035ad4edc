//! What chat clients have been told: which answers are still owed to them, and which holds they have
//! seen.
//!
//! Kept in memory and bounded. What is forgotten counts as told: at worst a message that is sent again
//! begins another turn. What an earlier process was about to tell is owed by this one.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_core::time::Timestamp;

use super::turn::{Earlier, Place};
use super::watch::Look;
use crate::http::call::App;

/// How many turns are remembered.
const TURNS_MAX: usize = 20_000;
/// An answer that was committed so long before this process began may not have been sent.
const BEFORE_START_MS: u64 = 5 * 60 * 1_000;

/// What chat clients have been told.
#[derive(Debug)]
pub(crate) struct Told {
    /// When this process began.
    since: Timestamp,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Turns whose answer was not sent to its end yet, by session; true if they were told as paused.
    owed: HashMap<SessionId, BTreeMap<RequestId, bool>>,
    /// The same in the order they began.
    begun: VecDeque<(SessionId, RequestId)>,
    sent: Recent<RequestId>,
    seen: Recent<HoldId>,
}

impl Told {
    /// A memory that begins now.
    pub(crate) fn since(now: Timestamp) -> Self {
        Self {
            since: now,
            memory: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When this process began.
    pub(crate) fn began_at(&self) -> Timestamp {
        self.since
    }

    /// Whether something was there before this process: then the memory does not have all of it.
    pub(crate) fn is_older(&self, at: Timestamp) -> bool {
        at < self.since
    }

    /// A chat call waits for this turn.
    pub(crate) fn begin(&self, session: SessionId, request: RequestId) {
        let mut memory = self.memory();
        let turns = memory.owed.entry(session).or_default();
        if turns.contains_key(&request) {
            return;
        }
        turns.insert(request, false);
        memory.begun.push_back((session, request));
        while memory.begun.len() > TURNS_MAX {
            if let Some((session, request)) = memory.begun.pop_front() {
                memory.settle(session, request);
            }
        }
    }

    /// The turns of a session whose answer is owed, oldest first, with whether they were told as paused.
    pub(crate) fn owed_in(&self, session: SessionId) -> Vec<(RequestId, bool)> {
        let memory = self.memory();
        let turns = memory.owed.get(&session).into_iter().flatten();
        turns.map(|(request, paused)| (*request, *paused)).collect()
    }

    /// Whether the answer of a turn that has ended is owed.
    pub(crate) fn is_owed(
        &self,
        session: SessionId,
        request: RequestId,
        started_at: Timestamp,
        ended_at: Timestamp,
    ) -> bool {
        let memory = self.memory();
        let turns = memory.owed.get(&session);
        if turns.is_some_and(|turns| turns.contains_key(&request)) {
            return true;
        }
        let may_be_unsent = ended_at.plus_ms(BEFORE_START_MS) >= self.since;
        self.is_older(started_at) && may_be_unsent && !memory.sent.has(&request)
    }

    /// Whether the answer of a turn that was told as paused is owed to whoever calls next: nobody can have
    /// heard what came after this process began.
    pub(crate) fn is_news(
        &self,
        session: SessionId,
        request: RequestId,
        started_at: Timestamp,
        ended_at: Timestamp,
    ) -> bool {
        let is_known = || {
            let memory = self.memory();
            let turns = memory.owed.get(&session);
            turns.is_some_and(|turns| turns.contains_key(&request))
        };
        (!self.is_older(ended_at) || is_known())
            && self.is_owed(session, request, started_at, ended_at)
    }

    /// Nobody waits for the answer of this turn any more.
    pub(crate) fn forget(&self, session: SessionId, request: RequestId) {
        self.memory().settle(session, request);
    }

    /// Whether the client has seen that this hold is open.
    pub(crate) fn has_seen(&self, hold: HoldId) -> bool {
        self.memory().seen.has(&hold)
    }
}

impl Memory {
    fn settle(&mut self, session: SessionId, request: RequestId) {
        if let Some(turns) = self.owed.get_mut(&session) {
            turns.remove(&request);
            if turns.is_empty() {
                self.owed.remove(&session);
            }
        }
        // Most of what has begun is settled soon: the line stays short without looking through it.
        if self.begun.front() == Some(&(session, request)) {
            self.begun.pop_front();
        }
    }
}

/// What counts as told once the client has an answer whole.
pub(crate) struct Receipt {
    app: App,
    session: SessionId,
    /// Turns whose answer it has.
    sent: Vec<RequestId>,
    /// A turn that it knows to be paused.
    paused: Option<RequestId>,
    /// Holds that it knows of.
    seen: Vec<HoldId>,
}

impl Receipt {
    /// What a client knows that has been told how a turn is, and of those before it.
    pub(crate) fn of(app: &App, place: &Place, earlier: &[Earlier], look: &Look) -> Self {
        let has_ended = look.sign.ended.is_some();
        let own = has_ended.then_some(place.request);
        Self {
            app: app.clone(),
            session: place.session,
            sent: earlier
                .iter()
                .map(|earlier| earlier.request)
                .chain(own)
                .collect(),
            paused: (!has_ended).then_some(place.request),
            seen: look.hold_ids(),
        }
    }

    /// The client has it.
    pub(crate) fn confirm(self) {
        let mut memory = self.app.told.memory();
        for request in self.sent {
            memory.settle(self.session, request);
            memory.sent.add(request);
        }
        if let Some(request) = self.paused
            && let Some(turns) = memory.owed.get_mut(&self.session)
            && let Some(was_paused) = turns.get_mut(&request)
        {
            *was_paused = true;
        }
        for hold in self.seen {
            memory.seen.add(hold);
        }
    }
}

/// The last of many.
#[derive(Debug)]
struct Recent<K> {
    known: HashSet<K>,
    order: VecDeque<K>,
}

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Hash + Eq + Copy> Recent<K> {
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
    fn what_is_forgotten_counts_as_told() {
        let now = Timestamp::from_micros(1_000_000_000_000);
        let told = Told::since(now);
        told.begin(session(1), request(0));
        assert_eq!(told.owed_in(session(1)), [(request(0), false)]);
        for n in 1..=TURNS_MAX {
            told.begin(session(2), request(n));
        }
        assert!(told.owed_in(session(1)).is_empty());
        assert_eq!(told.owed_in(session(2)).len(), TURNS_MAX);
        assert!(told.is_owed(session(2), request(1), now, now));
        told.forget(session(2), request(1));
        assert!(!told.is_owed(session(2), request(1), now, now));
    }

    #[test]
    fn an_answer_of_the_process_before_is_owed_for_some_minutes() {
        let now = Timestamp::from_micros(1_000_000_000_000);
        let told = Told::since(now);
        let minutes_ago =
            |minutes: i64| Timestamp::from_micros(now.as_micros() - minutes * 60_000_000);
        let owes = |started, ended| told.is_owed(session(1), request(1), started, ended);
        assert!(owes(minutes_ago(60), minutes_ago(4)));
        assert!(owes(minutes_ago(60), now));
        assert!(!owes(minutes_ago(60), minutes_ago(6)));
        assert!(!owes(now, now), "this process would know");
        let is_news = |ended| told.is_news(session(1), request(1), minutes_ago(60), ended);
        assert!(is_news(now));
        assert!(!is_news(minutes_ago(1)), "the process before may have told");
        told.memory().sent.add(request(1));
        assert!(!owes(minutes_ago(60), now), "it has been sent since");
    }
}

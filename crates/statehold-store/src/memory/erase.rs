//! Removing payloads. Records stay.

use std::sync::Arc;

use statehold_core::ids::SessionId;
use statehold_core::record::ErasedPayloads;

use super::{Entry, Tables};
use crate::CHAT_REQUESTS_MAX;

impl Tables {
    /// Hidden payloads are gone for the session, and for forks that begin after this, at once; each session has a log
    /// of its own, so others keep theirs. The other payloads of a deleted session go later.
    pub(super) fn begin_erasure(&mut self, session: SessionId, payloads: ErasedPayloads) {
        let Some(kept) = self.sessions.get_mut(&session) else {
            return;
        };
        for entry in &mut kept.log {
            *entry = Arc::new(entry.without(ErasedPayloads::Hidden));
        }
        let is_over = kept.state.closed;
        let answers = self.answers.values_mut();
        for answer in answers.filter(|answer| answer.session == session) {
            answer.body.clear();
        }
        for slot in (0..CHAT_REQUESTS_MAX).filter(|_| is_over) {
            if let Some(place) = self.chat_places.remove(&(session, slot)) {
                self.chat_requests.remove(&place);
            }
        }
        if payloads == ErasedPayloads::Hidden {
            return;
        }
        // Its origins can now erase payloads that they kept because this session shared them.
        let origin_of = |of: &SessionId| {
            let (origin, _) = self.sessions.get(of)?.origin?;
            Some(origin)
        };
        let line = std::iter::successors(Some(session), origin_of);
        let is_deleted = |of: &SessionId| self.sessions.get(of).is_some_and(|of| of.state.deleted);
        let deleted: Vec<_> = line.filter(is_deleted).collect();
        self.erasing.extend(deleted);
    }

    pub(super) fn erase_all(&mut self) {
        for session in std::mem::take(&mut self.erasing) {
            let shared_until = self.shared_until(session);
            // Every fork has the entries that it shares in a log of its own.
            for kept in self.sessions.values_mut() {
                for entry in &mut kept.log {
                    let content = &entry.record.content;
                    if content.session == session && content.seq > shared_until {
                        *entry = Arc::new(entry.without(ErasedPayloads::All));
                    }
                }
            }
        }
    }

    /// The last record that a living session shares: a fork, or a fork of one.
    fn shared_until(&self, session: SessionId) -> u64 {
        let living = self.sessions.values().filter(|kept| !kept.state.deleted);
        let of_another = living.filter(|kept| kept.state.session != session);
        let shared = of_another.filter_map(|kept| {
            let mut log = kept.log.iter().rev().map(|entry| &entry.record.content);
            log.find(|content| content.session == session)
        });
        shared.map(|content| content.seq).max().unwrap_or(0)
    }
}

impl Entry {
    /// The record with the payloads that another session shows too.
    pub(super) fn shown_by(&self, other: &Self) -> Self {
        let bodies = self.bodies.iter().zip(&other.bodies);
        Self {
            record: self.record.clone(),
            bodies: bodies
                .map(|(body, other)| body.clone().filter(|_| other.is_some()))
                .collect(),
        }
    }

    fn without(&self, payloads: ErasedPayloads) -> Self {
        let erased = self.record.erased(payloads);
        let bodies = self.bodies.iter().zip(erased);
        Self {
            record: self.record.clone(),
            bodies: bodies
                .map(|(body, gone)| body.clone().filter(|_| !gone))
                .collect(),
        }
    }
}

//! Removing payloads. Records stay.

use std::sync::Arc;

use statehold_core::ids::SessionId;
use statehold_core::record::{ErasedPayloads, Event};

use super::{Entry, Session, Tables};
use crate::CHAT_REQUESTS_MAX;

impl Tables {
    pub(super) fn begin_erasure(&mut self, session: SessionId, payloads: ErasedPayloads) {
        self.erasing.insert(session, payloads);
        let answers = self.answers.values_mut();
        for answer in answers.filter(|answer| answer.session == session) {
            answer.body.clear();
        }
        for slot in 0..CHAT_REQUESTS_MAX {
            if let Some(place) = self.chat_places.remove(&(session, slot)) {
                self.chat_requests.remove(&place);
            }
        }
        if payloads == ErasedPayloads::Hidden {
            return;
        }
        // Its origins can now erase the payloads that they kept because this session shared them.
        let origin_of = |of: SessionId| {
            let (origin, _) = self.sessions.get(&of)?.origin?;
            Some(origin)
        };
        let origins = std::iter::successors(origin_of(session), |origin| origin_of(*origin));
        let again: Vec<_> = origins
            .filter_map(|origin| Some((origin, self.sessions.get(&origin)?.removed()?)))
            .collect();
        self.erasing.extend(again);
    }

    pub(super) fn erase_all(&mut self) {
        for (session, payloads) in std::mem::take(&mut self.erasing) {
            let shared_until = self.shared_until(session);
            // Every fork has the entries that it shares in a log of its own.
            for kept in self.sessions.values_mut() {
                for entry in &mut kept.log {
                    let content = &entry.record.content;
                    if content.session == session && content.seq > shared_until {
                        *entry = Arc::new(entry.without(payloads));
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

impl Session {
    /// Which payloads its own records say were removed.
    fn removed(&self) -> Option<ErasedPayloads> {
        let own = self.log.iter().map(|entry| &entry.record.content);
        let own = own.filter(|content| content.session == self.state.session);
        let removed = |event: &Event| match event {
            Event::PayloadsErased { payloads } => Some(*payloads),
            _ => None,
        };
        own.flat_map(|content| &content.events)
            .filter_map(removed)
            .max()
    }
}

impl Entry {
    fn without(&self, payloads: ErasedPayloads) -> Self {
        let events = self.record.content.events.iter();
        let erased = events.flat_map(|event| event.erased(payloads));
        let bodies = self.bodies.iter().zip(erased);
        Self {
            record: self.record.clone(),
            bodies: bodies
                .map(|(body, gone)| body.clone().filter(|_| !gone))
                .collect(),
        }
    }
}

//! Removing payloads. Records stay.

use std::sync::Arc;

use statehold_core::ids::SessionId;
use statehold_core::record::ErasedPayloads;

use super::{Entry, Tables};

impl Tables {
    pub(super) fn begin_erasure(&mut self, session: SessionId, payloads: ErasedPayloads) {
        self.erasing.insert(session, payloads);
        let origin = self.sessions.get(&session).and_then(|kept| kept.origin);
        // What the origin could not remove because this session shared it can go now.
        if let (ErasedPayloads::All, Some((origin, _))) = (payloads, origin)
            && self
                .sessions
                .get(&origin)
                .is_some_and(|kept| kept.state.deleted)
        {
            self.erasing.insert(origin, ErasedPayloads::All);
        }
    }

    pub(super) fn erase_all(&mut self) {
        for (session, payloads) in std::mem::take(&mut self.erasing) {
            let shared_until = self.shared_until(session);
            let Some(kept) = self.sessions.get_mut(&session) else {
                continue;
            };
            for entry in &mut kept.log {
                let content = &entry.record.content;
                if content.session == session && content.seq > shared_until {
                    *entry = Arc::new(entry.without(payloads));
                }
            }
        }
    }

    /// The last record that a living fork shares.
    fn shared_until(&self, session: SessionId) -> u64 {
        let living = self.sessions.values().filter(|kept| !kept.state.deleted);
        let shared = living.filter_map(|kept| kept.origin);
        let ours = shared.filter(|(origin, _)| *origin == session);
        ours.map(|(_, at)| at).max().unwrap_or(0)
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

//! Finding the first append of an event that comes again.
//!
//! The id of the request that stores an event is derived from the id of the event under the key of the user, so an
//! event of any age is found without an index of its own. A rewind takes events back, and they may be appended again:
//! the derived id has a number for that.

use statehold_core::ids::{RequestId, SessionId};
use statehold_core::record::Event;
use uuid::Uuid;

use super::{EventRecorder, EventWritten};
use crate::bodies::{ItemBody, parse, payload};
use crate::commit::call::Receipt;
use crate::error::EngineError;

/// How often one event is appended again after rewinds.
const APPENDS_MAX: u8 = 16;

/// The result of looking up the id of an event.
pub(super) enum Lookup {
    /// It is stored. This is the answer of the first time.
    Repeated(Receipt<EventWritten>),
    /// It is new, and this request is to store it.
    New(RequestId),
}

impl EventRecorder<'_> {
    /// Looks the event up by its id.
    ///
    /// # Errors
    ///
    /// If the session has another event with this id, or the store fails.
    pub(super) async fn repeated(&self) -> Result<Lookup, EngineError> {
        let (engine, session) = (self.write.engine, self.write.session);
        let store = &engine.inner().store;
        for number in 0..APPENDS_MAX {
            let request = self.request_id(number);
            let Some(ended) = store.ended_request(request).await? else {
                return Ok(Lookup::New(request));
            };
            let revision = ended.started_by;
            if store.kept_revision(session, revision).await? == revision
                && let Some(receipt) = self.receipt(session, revision).await?
            {
                return Ok(Lookup::Repeated(receipt));
            }
        }
        Err(EngineError::TooMany(
            "the event was rewound too often; give it another id",
        ))
    }

    /// The id of the request that stores the event. It has the time and the partition of the session.
    fn request_id(&self, number: u8) -> RequestId {
        let session = self.write.session;
        let id = self.event.id.as_bytes();
        let parts: [&[u8]; 4] = [b"event", session.as_uuid().as_bytes(), id, &[number]];
        let digest = self.write.payloads.keyed_digest(&parts);
        let (high, _) = session.as_uuid().as_u64_pair();
        let mut low = [0; 8];
        low.copy_from_slice(&digest.as_bytes()[..8]);
        let low = (u64::from_be_bytes(low) & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
        RequestId::from_uuid(Uuid::from_u64_pair(high, low))
    }

    /// The receipt of the event that a revision stored.
    async fn receipt(
        &self,
        session: SessionId,
        revision: u64,
    ) -> Result<Option<Receipt<EventWritten>>, EngineError> {
        let stored = self.write.engine.record(session, revision).await?;
        let events = stored.iter().flat_map(|one| &one.record.content.events);
        let items = events.filter_map(|event| match event {
            Event::ItemsAppended { items, .. } => Some(items),
            _ => None,
        });
        // The questions that it answers come before it, and its message behind it.
        for item in items.flat_map(|items| items.iter().rev()) {
            let body: ItemBody = parse(payload(&stored, item.body));
            let (Some(mark), Some(json)) = (body.event, body.data) else {
                continue;
            };
            if json.get() != self.event.json.get() {
                return Err(EngineError::EventTaken { id: mark.id });
            }
            let view = EventWritten {
                event: json,
                last_update: mark.last_update,
                revision,
            };
            let receipt = Receipt::uncommitted(session, revision, view);
            return Ok(Some(Receipt {
                replayed: true,
                ..receipt
            }));
        }
        Ok(None)
    }
}

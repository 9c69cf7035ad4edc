//! A call with its conditions, the commit that its view is made from, and the receipt.

use serde::Serialize;
use serde::de::DeserializeOwned;
use statehold_core::digest::BodyRef;
use statehold_core::ids::SessionId;
use statehold_core::projection::Changes;
use statehold_core::record::Record;
use statehold_core::session::SessionState;
use statehold_store::StoredRecord;

use crate::api::json::to_body;
use crate::caller::Caller;
use crate::commit::idempotency::IdempotencyKey;
use crate::commit::payloads::Payloads;
use crate::error::EngineError;

/// A caller, with the conditions of its command.
#[derive(Debug, Clone)]
pub struct Call {
    /// The caller.
    pub caller: Caller,
    /// The key under which the answer is kept.
    pub key: Option<IdempotencyKey>,
    /// The revision that the session must have.
    pub if_revision: Option<u64>,
}

impl Call {
    /// A call without conditions.
    pub fn by(caller: Caller) -> Self {
        Self {
            caller,
            key: None,
            if_revision: None,
        }
    }
}

/// A decided command, for the view of it. Not durable yet; the answer waits for that.
#[derive(Debug)]
pub(crate) struct DecidedCommit<'a> {
    /// The state before.
    pub(crate) before: &'a SessionState,
    /// The state after.
    pub(crate) after: &'a SessionState,
    /// The record.
    pub(crate) record: &'a Record,
    /// The rows that it changes.
    pub(crate) changes: &'a Changes,
    pub(super) payloads: &'a Payloads,
}

impl DecidedCommit<'_> {
    /// The record with its payloads.
    pub(crate) fn stored(&self) -> StoredRecord {
        self.payloads.stored(self.record)
    }

    /// A payload of the record.
    pub(crate) fn payload(&self, name: &BodyRef) -> Option<&[u8]> {
        self.payloads.get(name)
    }
}

/// The receipt of a command that is durable: a view of what it did.
#[derive(Debug, Clone)]
pub struct Receipt<V> {
    /// The view.
    pub view: V,
    /// The session.
    pub session: SessionId,
    /// The bytes of the view, as they are kept for repeats of the call.
    pub body: Vec<u8>,
    /// The revision that the command committed.
    pub revision: u64,
    /// Whether an earlier call did it.
    pub replayed: bool,
}

impl Receipt<()> {
    /// The receipt with a view.
    pub(crate) fn with<V>(self, view: V) -> Receipt<V> {
        Receipt {
            view,
            session: self.session,
            body: self.body,
            revision: self.revision,
            replayed: self.replayed,
        }
    }

    /// The receipt with the view in its bytes. These are erased with the session that they are about.
    pub(crate) fn parse<V: DeserializeOwned>(self) -> Result<Receipt<V>, EngineError> {
        let view = serde_json::from_slice(&self.body).map_err(|_| EngineError::NotFound)?;
        Ok(self.with(view))
    }
}

impl<V: Serialize> Receipt<V> {
    /// The receipt of a call that changed values in memory only.
    pub(crate) fn uncommitted(session: SessionId, revision: u64, view: V) -> Self {
        Self {
            body: to_body(&view),
            view,
            session,
            revision,
            replayed: false,
        }
    }
}

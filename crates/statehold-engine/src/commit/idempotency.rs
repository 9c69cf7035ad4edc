//! Idempotency keys: a retry of a call gets the same bytes, and a duplicate waits for the first call.
//!
//! The core knows nothing of these keys: the engine answers a retry before it decides anything. The
//! store keeps the first answer in the transaction of its commit and accepts a key only once, so a
//! duplicate that did not wait cannot commit either. A refused call leaves no answer behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, SessionId};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::projection::Changes;
use statehold_core::session::SessionState;

use super::call::{DecidedCommit, Receipt};
use super::payloads::Payloads;
use super::write::WriteAnswer;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::locks::KeyLock;

/// How long an answer is kept: a day.
pub(crate) const KEPT_MS: u64 = 24 * 3_600 * 1_000;

/// An idempotency key with the fingerprint of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Digest of tenant, principal and key.
    pub key: Digest,
    /// Digest of method, path and body.
    pub fingerprint: Digest,
}

impl IdempotencyKey {
    /// The key that `principal` used for a call. Keys of different principals never collide.
    pub fn new(tenant: &Name, principal: Principal, key: &str, call: &[&[u8]]) -> Self {
        let principal = principal.to_string();
        Self {
            key: digest(&[
                tenant.as_str().as_bytes(),
                principal.as_bytes(),
                key.as_bytes(),
            ]),
            fingerprint: digest(call),
        }
    }
}

/// A digest over parts. Each part is prefixed with its length, so different parts never give the same
/// bytes.
pub(crate) fn digest(parts: &[&[u8]]) -> Digest {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    Digest::sha256(&bytes)
}

impl Engine {
    /// The answer kept for a key, if the same call was made under it before.
    pub(crate) async fn kept_answer(
        &self,
        key: IdempotencyKey,
    ) -> Result<Option<Receipt<()>>, EngineError> {
        let inner = self.inner();
        let Some(answer) = inner.store.answer(key.key).await? else {
            return Ok(None);
        };
        if answer.expires_at <= inner.clock.now() {
            inner.forget_answers(1_024).await?;
            return Ok(None);
        }
        if answer.fingerprint != key.fingerprint {
            return Err(EngineError::KeyReused);
        }
        Ok(Some(Receipt {
            view: (),
            session: answer.session,
            body: answer.body,
            revision: answer.revision,
            replayed: true,
        }))
    }

    /// The receipt kept under an idempotency key, if the same call was made before. Waits for a call under
    /// this key that is in flight.
    pub(crate) async fn kept_receipt<V: DeserializeOwned>(
        &self,
        key: IdempotencyKey,
    ) -> Result<Option<Receipt<V>>, EngineError> {
        let _key_lock = self.inner().in_flight.lock(key.key).await;
        let kept = self.kept_answer(key).await?;
        kept.map(Receipt::parse).transpose()
    }

    /// The answer to the decision of a hold that was taken before, written again from its record. The session as it
    /// was then is not read, which would cost more the longer the session is: its state is empty but for the hold.
    pub(super) async fn answer_again(
        &self,
        session: SessionId,
        hold: HoldId,
        answer: WriteAnswer<'_>,
        revision: u64,
    ) -> Result<Receipt<()>, EngineError> {
        let decided = self.inner().store.holds(vec![hold]).await?.pop();
        let stored = self.record(session, revision).await?;
        let (Some(decided), Some(stored)) = (decided, stored) else {
            return Err(EngineError::NotFound);
        };
        let mut state = SessionState::new(session);
        state.holds = Arc::new(BTreeMap::from([(hold, decided.hold)]));
        let body = answer(&DecidedCommit {
            before: &state,
            after: &state,
            record: &stored.record,
            changes: &Changes::default(),
            payloads: &Payloads::of_stored(&stored),
        });
        Ok(Receipt {
            view: (),
            session,
            body,
            revision,
            replayed: true,
        })
    }

    /// Waits for the lock on the turns of this session, and for the commits of calls that went away with
    /// it. Chat calls hold it while they find or start their turn, so that two calls with the same message
    /// are one turn. Other writers do not take it: versions and revisions detect them.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub(crate) async fn lock_session(&self, session: SessionId) -> Result<KeyLock, EngineError> {
        let key = digest(&[b"turn", session.to_string().as_bytes()]);
        let lock = self.inner().in_flight.lock(key).await;
        self.head(session, false)
            .await?
            .release_until_durable()
            .await;
        Ok(lock)
    }

    /// Waits until no other call creates a session under this key.
    pub(crate) async fn lock_new_session(&self, key: Digest) -> KeyLock {
        let key = digest(&[b"new session", key.as_bytes()]);
        self.inner().in_flight.lock(key).await
    }

    /// Waits until no other chat call looks for the session of a conversation from this place on.
    pub(crate) async fn lock_place(&self, place: Digest) -> KeyLock {
        let key = digest(&[b"place", place.as_bytes()]);
        self.inner().in_flight.lock(key).await
    }

    /// The session that a call under this key wrote to, as long as the key is kept.
    pub(crate) async fn session_of_key(
        &self,
        key: Digest,
    ) -> Result<Option<SessionId>, EngineError> {
        let kept = self.inner().store.answer(key).await?;
        let now = self.inner().clock.now();
        let kept = kept.filter(|answer| answer.expires_at > now);
        Ok(kept.map(|answer| answer.session))
    }
}

//! Idempotency keys: a retry of a call gets the same bytes, and a duplicate waits for the first call.
//!
//! The core knows nothing of these keys: the engine answers a retry before it decides anything. The
//! store keeps the first answer in the transaction of its commit and accepts a key only once, so a
//! duplicate that did not wait cannot commit either. A refused call leaves no answer behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use tokio::sync::OwnedMutexGuard;

use crate::engine::Engine;
use crate::error::EngineError;

/// How long an answer is kept: a day.
pub(crate) const KEPT_MS: u64 = 24 * 3_600 * 1_000;

/// The maximum number of answers kept. Beyond it the engine refuses new keys until old answers expire.
pub(crate) const KEPT_MAX: u64 = 5_000_000;

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

/// Lock on an idempotency key or on the turns of a session. Dropping the last clone releases it.
#[derive(Debug, Clone)]
pub(crate) struct KeyLock(
    #[expect(dead_code, reason = "held, never read")] Arc<OwnedMutexGuard<()>>,
);

impl Engine {
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
        self.wait_settled(session).await?;
        Ok(lock)
    }

    /// Waits until no other call creates a session under this key.
    pub(crate) async fn lock_new_session(&self, key: IdempotencyKey) -> KeyLock {
        let key = digest(&[b"new session", key.key.as_bytes()]);
        self.inner().in_flight.lock(key).await
    }
}

/// Calls in flight, by key.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    calls: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
}

impl InFlight {
    /// Waits until no other call with this key is in flight.
    pub(crate) async fn lock(&self, key: Digest) -> KeyLock {
        let call = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            // Evict locks that no call holds or waits for.
            if calls.len() > 1_024 {
                calls.retain(|_, call| Arc::strong_count(call) > 1);
            }
            Arc::clone(calls.entry(key).or_default())
        };
        KeyLock(Arc::new(call.lock_owned().await))
    }
}

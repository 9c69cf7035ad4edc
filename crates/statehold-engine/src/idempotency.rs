//! Idempotency keys: the same call again gets the same bytes, and a duplicate waits for the first.
//!
//! The core knows nothing of these keys: a repetition is answered before anything is decided. The first
//! answer is kept in the transaction of its commit, and the store takes a key once, so that a duplicate
//! that did not wait cannot commit either. A call that is refused keeps nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use tokio::sync::OwnedMutexGuard;

use crate::engine::Engine;

/// How long an answer is kept: a day.
pub(crate) const KEPT_MS: u64 = 24 * 3_600 * 1_000;

/// How many answers are kept at most: beyond that, new keys are refused until old ones are forgotten.
pub(crate) const KEPT_MAX: u64 = 5_000_000;

/// A key with what it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Digest of tenant, principal and key.
    pub key: Digest,
    /// Digest of method, path and body.
    pub fingerprint: Digest,
}

impl IdempotencyKey {
    /// The key that `principal` used for a call. Keys of different principals never meet.
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

/// A digest over parts that cannot run into each other.
pub(crate) fn digest(parts: &[&[u8]]) -> Digest {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    Digest::sha256(&bytes)
}

/// A place in the line of those who change what they have read of one session.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held, never looked at")] OwnedMutexGuard<()>);

impl Engine {
    /// Waits until nobody else reads a value of this session to write it changed. Those who do not wait
    /// are still noticed by version or revision; this only keeps many from racing each other in vain.
    pub async fn turn(&self, session: SessionId) -> Turn {
        let key = digest(&[b"turn", session.to_string().as_bytes()]);
        Turn(self.inner().in_flight.enter(key).await)
    }
}

/// Calls that are under way, by key.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    calls: Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
}

impl InFlight {
    /// Waits until no other call with this key is under way.
    pub(crate) async fn enter(&self, key: Digest) -> OwnedMutexGuard<()> {
        let call = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever enters tidies up: locks that nobody holds or waits for are forgotten.
            if calls.len() > 1_024 {
                calls.retain(|_, call| Arc::strong_count(call) > 1);
            }
            Arc::clone(calls.entry(key).or_default())
        };
        call.lock_owned().await
    }
}

//! Arguments that only the worker sees. They are encrypted with the key of their hold while the action
//! may still run; destroying the key makes them unreadable forever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use data_encoding::BASE64;
use serde_json::value::RawValue;
use statehold_core::hold::{HoldKind, HoldStatus};
use statehold_core::ids::{HoldId, ItemId, RequestId};
use statehold_core::record::Event;
use statehold_core::request::{CallState, LiveRequest};
use statehold_store::Commit;
use statehold_store::hold_keys::HoldKey;

use crate::bodies::{DecisionBody, HoldBody, Raw, Sealed, parse};
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::holds::HoldDetail;
use crate::locks::Lock;
use crate::ports::random;

const NONCE_BYTES: usize = 24;

/// The full arguments of a hold, for its worker.
#[derive(Debug, Clone, Default)]
pub struct OpenedArgs {
    /// The arguments as the worker sent them.
    pub args: Option<Raw>,
    /// The arguments as a person edited them.
    pub edited: Option<Raw>,
    /// Whether arguments are lost because their key is gone: the action cannot run.
    pub lost: bool,
}

/// The call of each sealed hold that this process has seen. The key file cannot contain it, because a
/// call gets its id in the commit that opens the hold.
#[derive(Debug, Default)]
pub(crate) struct SealedCalls {
    calls: Lock<BTreeMap<HoldId, ItemId>>,
}

pub(crate) fn seal(
    key: &HoldKey,
    hold: HoldId,
    tool: &str,
    args: &str,
) -> Result<Sealed, EngineError> {
    let nonce: [u8; NONCE_BYTES] = random()?;
    let cipher = XChaCha20Poly1305::new(key.expose().into());
    let payload = Payload {
        msg: args.as_bytes(),
        aad: &bound_to(hold, tool),
    };
    let sealed = cipher
        .encrypt(&XNonce::from(nonce), payload)
        .expect("arguments are far shorter than a cipher can take");
    let mut bytes = nonce.to_vec();
    bytes.extend_from_slice(&sealed);
    Ok(Sealed {
        hold,
        bytes: BASE64.encode(&bytes),
    })
}

/// Decrypts arguments. None if they were sealed with another key, for another hold or for another tool.
fn open(key: &HoldKey, tool: &str, sealed: &Sealed) -> Option<Raw> {
    let bytes = BASE64.decode(sealed.bytes.as_bytes()).ok()?;
    let (nonce, ciphertext) = bytes.split_first_chunk::<NONCE_BYTES>()?;
    let cipher = XChaCha20Poly1305::new(key.expose().into());
    let payload = Payload {
        msg: ciphertext,
        aad: &bound_to(sealed.hold, tool),
    };
    let args = cipher.decrypt(&XNonce::from(*nonce), payload).ok()?;
    RawValue::from_string(String::from_utf8(args).ok()?).ok()
}

/// The authenticated data that binds arguments to their hold and tool. A hold id has a fixed length, so
/// the two parts cannot be confused.
fn bound_to(hold: HoldId, tool: &str) -> Vec<u8> {
    let mut bound = hold.as_uuid().as_bytes().to_vec();
    bound.extend_from_slice(tool.as_bytes());
    bound
}

impl Engine {
    /// Seals arguments with the key of a hold. Creates the key if missing, and makes it durable first.
    pub(crate) async fn seal(
        &self,
        hold: HoldId,
        request: RequestId,
        tool: &str,
        args: &str,
    ) -> Result<Sealed, EngineError> {
        let key = if let Some(key) = self.inner().hold_keys.get(hold) {
            key
        } else {
            let keys = Arc::clone(&self.inner().hold_keys);
            let made = tokio::task::spawn_blocking(move || keys.get_or_create(hold, request));
            made.await.map_err(|_| EngineError::Stopping)??
        };
        seal(&key, hold, tool, args)
    }

    /// Decrypts sealed arguments. None if the key is gone.
    pub(crate) fn unseal(&self, tool: &str, sealed: &Sealed) -> Option<Raw> {
        let key = self.inner().hold_keys.get(sealed.hold)?;
        open(&key, tool, sealed)
    }

    /// Adds the full arguments to the decided holds of a worker's request.
    pub(crate) fn open_for_worker(&self, holds: &mut [HoldDetail]) {
        for hold in holds.iter_mut().filter(|hold| hold.closed.is_some()) {
            hold.opened = Some(self.opened_args(hold));
        }
    }

    /// The full arguments of a hold. Only for the worker that claims its request.
    fn opened_args(&self, detail: &HoldDetail) -> OpenedArgs {
        let body: HoldBody = parse(detail.body.as_deref());
        let words: DecisionBody = parse(detail.decision_body.as_deref());
        let Some(action) = body.action else {
            return OpenedArgs::default();
        };
        let mut opened = OpenedArgs::default();
        let mut whole = |sealed: Option<&Sealed>, preview: Option<Raw>, is_whole: bool| match sealed
        {
            None if is_whole => preview,
            // Of a call that needed no approval, the store has only what is redacted.
            None => {
                opened.lost = true;
                None
            }
            Some(sealed) => {
                let args = self.unseal(&action.tool, sealed);
                opened.lost |= args.is_none();
                args
            }
        };
        let is_whole = action.redactions.is_empty();
        let args = whole(action.sealed.as_ref(), Some(action.args.clone()), is_whole);
        let is_whole = words.redactions.is_empty();
        let edited = whole(words.sealed.as_ref(), words.args, is_whole);
        // A rejected or answered action needs no arguments; its key was destroyed on purpose.
        let is_released = detail.closed.as_ref().is_some_and(|closed| {
            let is_again = detail.hold.kind == HoldKind::Reconcile
                && closed.decision.status == HoldStatus::Approved;
            is_again || closed.decision.released.is_some()
        });
        opened.args = args;
        opened.edited = edited;
        opened.lost &= is_released && detail.hold.call.is_some() && detail.result.is_none();
        opened
    }

    /// Destroys keys. After a failure, the next start retries.
    pub(crate) async fn destroy_hold_keys(&self, holds: Vec<HoldId>) {
        if holds.is_empty() {
            return;
        }
        self.inner().sealed_calls.forget(&holds);
        let keys = Arc::clone(&self.inner().hold_keys);
        let done = tokio::task::spawn_blocking(move || keys.destroy(&holds)).await;
        if let Ok(Err(error)) = done {
            tracing::warn!(error = %error, "keys of ended actions could not be destroyed yet");
        }
    }

    /// Destroys keys whose action has ended or whose hold was never opened. A crash can leave both.
    pub(crate) async fn sweep_hold_keys(&self) -> Result<(), EngineError> {
        let inner = self.inner();
        let mut unneeded = Vec::new();
        for (hold, request) in inner.hold_keys.all() {
            let session = inner.store.session_of_hold(hold).await?;
            let state = match session {
                Some(session) => inner.store.load(session).await?,
                None => None,
            };
            let live = state
                .as_ref()
                .and_then(|state| state.requests.get(&request));
            let call = match state.as_ref().and_then(|state| state.holds.get(&hold)) {
                Some(open) => open.call,
                None => inner
                    .store
                    .closed_hold(hold)
                    .await?
                    .and_then(|closed| closed.hold.call),
            };
            match (live, call) {
                (Some(live), Some(call)) if needs_args(live, call) => {
                    inner.sealed_calls.learn(hold, call);
                }
                _ => unneeded.push(hold),
            }
        }
        self.destroy_hold_keys(unneeded).await;
        Ok(())
    }
}

/// Whether a call may still run.
fn needs_args(live: &LiveRequest, call: ItemId) -> bool {
    live.calls
        .get(&call)
        .is_some_and(|call| !matches!(call.state, CallState::Refused | CallState::Answered))
}

impl SealedCalls {
    pub(crate) fn learn(&self, hold: HoldId, call: ItemId) {
        self.calls.lock().insert(hold, call);
    }

    fn forget(&self, holds: &[HoldId]) {
        let mut calls = self.calls.lock();
        for hold in holds {
            calls.remove(hold);
        }
    }
}

impl Inner {
    /// The holds whose keys are unneeded after a commit.
    pub(crate) fn unneeded_after(&self, commit: &Commit) -> Vec<HoldId> {
        let events = commit.record.content.events.iter();
        for event in events {
            if let Event::HoldOpened {
                hold,
                call: Some(call),
                ..
            } = event
                && self.hold_keys.get(*hold).is_some()
            {
                self.sealed_calls.learn(*hold, *call);
            }
        }
        let mut holds = BTreeSet::new();
        for ended in &commit.changes.ended_requests {
            holds.extend(self.hold_keys.of_request(ended.id));
        }
        let calls = self.sealed_calls.calls.lock();
        if !calls.is_empty() {
            for (live, _) in &commit.changes.live_requests {
                for hold in self.hold_keys.of_request(live.id) {
                    // A hold whose commit is still in flight is not known here yet.
                    let call = calls.get(&hold);
                    if call.is_some_and(|call| !needs_args(live, *call)) {
                        holds.insert(hold);
                    }
                }
            }
        }
        holds.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn sealed_arguments_open_only_under_their_key_for_their_hold_and_tool() {
        let (key, other) = (HoldKey::from_bytes([1; 32]), HoldKey::from_bytes([2; 32]));
        let hold = HoldId::from_uuid(Uuid::from_u128(7));
        let sealed = seal(&key, hold, "pay", r#"{"pin":1234}"#).expect("sealed");
        let args = open(&key, "pay", &sealed).expect("opened");
        assert_eq!(args.get(), r#"{"pin":1234}"#);
        assert!(open(&other, "pay", &sealed).is_none());
        assert!(open(&key, "sell", &sealed).is_none());
        let moved = Sealed {
            hold: HoldId::from_uuid(Uuid::from_u128(8)),
            ..sealed.clone()
        };
        assert!(open(&key, "pay", &moved).is_none());
        let again = seal(&key, hold, "pay", r#"{"pin":1234}"#).expect("sealed");
        assert_ne!(again, sealed, "a nonce is used once");
        for cut in 0..sealed.bytes.len() {
            let cut = Sealed {
                bytes: sealed.bytes[..cut].to_owned(),
                ..sealed.clone()
            };
            assert!(open(&key, "pay", &cut).is_none());
        }
    }
}

//! Callers: who sends a call, for which user, and whether their API key is still valid.

use statehold_core::digest::Digest;
use statehold_core::name::Name;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;

/// The API key of a call, watched for its revocation. A call without a key has none to revoke.
#[derive(Debug, Clone)]
pub struct KeyWatch {
    engine: Engine,
    /// The digest of the key.
    secret: Option<Digest>,
}

impl KeyWatch {
    /// Whether the call came with a key.
    pub fn has_key(&self) -> bool {
        self.secret.is_some()
    }

    /// Whether the key is neither revoked nor expired.
    pub fn is_valid(&self) -> bool {
        let valid = |secret| self.engine.caller_of(secret).is_some();
        self.secret.is_none_or(valid)
    }

    /// Waits until the key is no longer valid.
    pub async fn revoked(&self) {
        let mut changes = self.engine.inner().keys_changed.subscribe();
        while self.is_valid() {
            // The sender lives as long as the engine.
            drop(changes.changed().await);
        }
    }
}

/// The caller with this API key. None if the key is unknown, revoked or expired.
///
/// # Errors
///
/// If the store fails.
pub async fn authenticate(
    engine: &Engine,
    secret: &str,
) -> Result<Option<(Caller, KeyWatch)>, EngineError> {
    let digest = Digest::sha256(secret.as_bytes());
    engine.load_key(digest).await?;
    let key = KeyWatch {
        engine: engine.clone(),
        secret: Some(digest),
    };
    Ok(engine.caller_of(digest).map(|caller| (caller, key)))
}

/// Whether the API key is in memory, valid or not. The store is asked for others.
pub fn is_known(engine: &Engine, secret: &str) -> bool {
    engine.knows_key(Digest::sha256(secret.as_bytes()))
}

/// The developer on the loopback address of a development server, without a key.
pub fn local(engine: &Engine, tenant: &Name) -> (Caller, KeyWatch) {
    let key = KeyWatch {
        engine: engine.clone(),
        secret: None,
    };
    (Caller::local(tenant.clone()), key)
}

/// The same backend, acting for one of its users by name. Stores nothing: a user who is not known gets stored with
/// the first session that is theirs.
///
/// # Errors
///
/// If the key may not act for this user.
pub async fn act_for(engine: &Engine, caller: &Caller, user: &str) -> Result<Caller, EngineError> {
    // A key that may not act for users is not told whether a name is valid either.
    if !caller.speaks_for_users() {
        let known = engine.known_user(&caller.tenant, user).await?;
        let found = known.and_then(|id| caller.for_user(id));
        return found.ok_or(EngineError::WrongUser);
    }
    let named = engine.named_user(&caller.tenant, user, "user").await?;
    let found = caller.for_user(named.id).map(|caller| Caller {
        new_user: named.new,
        ..caller
    });
    found.ok_or(EngineError::WrongUser)
}

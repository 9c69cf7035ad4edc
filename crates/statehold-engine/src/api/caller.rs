//! Callers: who sends a call, for which user, and whether their API key is still valid.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::time::Timestamp;

use super::trace::require_reader;
use crate::caller::{Caller, PhaseScope};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::{is_running, require_lister};

/// The API key of a call, watched for its revocation. A call without a key has none to revoke.
#[derive(Debug, Clone)]
pub struct KeyWatch {
    engine: Engine,
    /// The digest of the key.
    secret: Option<Digest>,
    /// The end of a read token that was made with the key.
    ends_at: Option<Timestamp>,
    /// The session of a read token, and its phase. The token ends with both.
    scope: Option<(SessionId, Option<PhaseScope>)>,
}

impl KeyWatch {
    /// Whether the call came with a key.
    pub fn has_key(&self) -> bool {
        self.secret.is_some()
    }

    /// Whether the key is neither revoked nor expired.
    pub fn is_valid(&self) -> bool {
        let valid = |secret| self.engine.caller_of(secret).is_some();
        let is_in_time = self.ends_at.is_none_or(|end| self.engine.now() < end);
        is_in_time && self.secret.is_none_or(valid)
    }

    /// Waits until the key is no longer valid.
    pub async fn revoked(&self) {
        let mut changes = self.engine.inner().keys_changed.subscribe();
        let all = &self.engine.inner().watches;
        let mut watched = self.scope.map(|(session, _)| all.watch(session));
        while self.is_valid() && self.is_in_scope().await {
            let committed = async {
                match &mut watched {
                    Some(watched) => watched.changed().await,
                    None => std::future::pending().await,
                }
            };
            let end = async {
                match self.ends_at {
                    Some(end) => tokio::time::sleep(self.until(end)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as the engine.
                _ = changes.changed() => {}
                _ = committed => {}
                () = end => {}
            }
        }
    }

    /// Whether the session of a read token is there, and its phase has not ended.
    async fn is_in_scope(&self) -> bool {
        let Some((session, phase)) = self.scope else {
            return true;
        };
        match self.engine.durable_state(session).await {
            Ok(state) => !state.deleted && is_running(&state, phase),
            // A store that fails for a moment ends no token.
            Err(error) => !matches!(error, EngineError::NotFound),
        }
    }

    fn until(&self, end: Timestamp) -> Duration {
        let left = end
            .as_micros()
            .saturating_sub(self.engine.now().as_micros());
        // Not less than a moment: the clock of the engine may stand still.
        Duration::from_micros(left.try_into().unwrap_or(0)).max(Duration::from_millis(10))
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
        ends_at: None,
        scope: None,
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
        ends_at: None,
        scope: None,
    };
    (Caller::local(tenant.clone()), key)
}

/// A read token of a session, as it is sealed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadToken {
    /// The session.
    pub session: SessionId,
    /// Its tenant.
    pub tenant: Name,
    /// When the token ends.
    pub ends_at: Timestamp,
    /// The API key that it was made with. It ends with that key.
    pub key: Option<Digest>,
    /// The phase of a pipeline that it was made for. It ends with that phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PhaseScope>,
}

/// A token that reads one session as its user does, for some time, and does nothing else.
///
/// # Errors
///
/// If the caller is not a client, an operator or an admin who may read the session.
pub async fn read_token(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    ttl_seconds: u64,
) -> Result<ReadToken, EngineError> {
    require_lister(caller)?;
    engine.readable(caller, session).await?;
    Ok(ReadToken {
        session,
        tenant: caller.tenant.clone(),
        ends_at: engine.now().plus_ms(ttl_seconds.saturating_mul(1_000)),
        key: caller.key,
        phase: None,
    })
}

/// The caller with a read token. None if it has ended, with its key or its session, too.
///
/// # Errors
///
/// If the store fails.
pub async fn with_read_token(
    engine: &Engine,
    token: &ReadToken,
) -> Result<Option<(Caller, KeyWatch)>, EngineError> {
    if let Some(key) = token.key {
        engine.load_key(key).await?;
    }
    let watch = KeyWatch {
        engine: engine.clone(),
        secret: token.key,
        ends_at: Some(token.ends_at),
        scope: Some((token.session, token.phase)),
    };
    if !watch.is_valid() {
        return Ok(None);
    }
    let caller = token_caller(engine, token).await?;
    Ok(caller.map(|caller| (caller, watch)))
}

/// The caller with a read token that has not expired. None if its session or its phase has ended.
pub(crate) async fn token_caller(
    engine: &Engine,
    token: &ReadToken,
) -> Result<Option<Caller>, EngineError> {
    let state = match engine.durable_state(token.session).await {
        Ok(state) => state,
        Err(EngineError::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    };
    let owner = state.owner.as_ref();
    let owner = owner.filter(|owner| owner.tenant == token.tenant && !state.deleted);
    let owner = owner.filter(|_| is_running(&state, token.phase));
    Ok(owner.map(|owner| {
        let named = (owner.tenant.clone(), owner.user);
        let scope = (token.session, token.phase);
        Caller::with_read_token(named, scope, token.key)
    }))
}

/// A login of a person to pages that show traces, as it is sealed. It stands for an API key and has no part of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PageLogin {
    /// The digest of the API key. The login ends with that key.
    pub key: Digest,
    /// When the login ends.
    pub ends_at: Timestamp,
}

/// A login with the API key of a caller, for some time.
///
/// # Errors
///
/// If the caller may not read traces, or came without an API key.
pub fn page_login(
    engine: &Engine,
    caller: &Caller,
    ttl_seconds: u64,
) -> Result<PageLogin, EngineError> {
    require_reader(caller)?;
    Ok(PageLogin {
        key: caller.key.ok_or(EngineError::NotFound)?,
        ends_at: engine.now().plus_ms(ttl_seconds.saturating_mul(1_000)),
    })
}

/// The caller with a login. None if it has ended, or its key has.
///
/// # Errors
///
/// If the store fails.
pub async fn with_page_login(
    engine: &Engine,
    login: &PageLogin,
) -> Result<Option<(Caller, KeyWatch)>, EngineError> {
    engine.load_key(login.key).await?;
    let watch = KeyWatch {
        engine: engine.clone(),
        secret: Some(login.key),
        ends_at: Some(login.ends_at),
        scope: None,
    };
    let caller = engine.caller_of(login.key).filter(|_| watch.is_valid());
    Ok(caller.map(|caller| (caller, watch)))
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

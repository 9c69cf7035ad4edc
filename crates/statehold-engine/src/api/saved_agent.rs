//! Agents that callers save by API, beside the declared ones.
//!
//! The saved agents of a user in an app are one value of the user's state there: durable, with versions, and erased
//! with the user. The value is bounded, so reading it whole is cheap.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::ids::UserId;
use statehold_core::name::Name;
use statehold_core::scope::StateKey;
use statehold_store::SharedOwner;

use super::json::{Raw, raw_bytes, to_body};
use super::state::{StatePatchInput, patch_shared};
use crate::bodies::parse;
use crate::caller::Caller;
use crate::commit::call::Call;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_reader;
use crate::guard::rights::{self, Act};
use crate::shared::require_shared_writer;
use crate::users::NamedUser;

/// The state key of the saved agents.
const KEY: &str = "user:saved_agents";
/// The most agents of a user in an app, and the most bytes of all of them.
const AGENTS_MAX: usize = 100;
const BYTES_MAX: usize = 1024 * 1024;
/// How many finished calls are remembered.
const REQUESTS_MAX: usize = 256;
/// How often a change is tried while others change the same agents.
const RETRIES_MAX: usize = 16;

/// The saved agents of a user in an app, by id.
pub type SavedAgents = BTreeMap<String, Raw>;

/// The owner of saved agents: the user that a key is bound to, or the one with this name.
#[derive(Debug, Clone, Copy)]
pub struct SavedBy<'a> {
    /// The app.
    pub app: &'a Name,
    /// The user of a key that is bound to none.
    pub user: &'a str,
}

/// The id that a client gave a call, and the digest of the call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallId {
    /// The id.
    pub id: String,
    /// The digest of everything that the client sent.
    pub call: Digest,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct StoredAgents {
    agents: SavedAgents,
    #[serde(default)]
    calls: VecDeque<CallId>,
}

/// Reads the saved agents.
///
/// # Errors
///
/// If the caller may not.
pub async fn read(
    engine: &Engine,
    caller: &Caller,
    by: SavedBy<'_>,
) -> Result<SavedAgents, EngineError> {
    require_reader(caller)?;
    let user = match caller.user {
        Some(user) => Some(user),
        None => engine.known_user(&caller.tenant, by.user).await?,
    };
    let Some(user) = user.filter(|user| caller.acts_for(*user)) else {
        return Ok(SavedAgents::new());
    };
    let (stored, _) = load(engine, caller, by.app, user).await?;
    Ok(stored.agents)
}

/// Changes the saved agents, and returns them as they are afterwards. A call that was made before changes nothing.
///
/// # Errors
///
/// If the caller may not, `edit` fails, the agents become too many or too large, or the call id was used for another
/// call.
pub async fn change<E: From<EngineError>>(
    engine: &Engine,
    caller: &Caller,
    by: SavedBy<'_>,
    call: Option<&CallId>,
    edit: impl Fn(&mut SavedAgents) -> Result<(), E>,
) -> Result<SavedAgents, E> {
    rights::require_role(caller, &Act::ManageSession)?;
    let user = match caller.user {
        Some(id) => NamedUser {
            id,
            new: caller.new_user.clone(),
        },
        None => engine.named_user(&caller.tenant, by.user, "user").await?,
    };
    require_shared_writer(caller, Some(user.id))?;
    for _ in 0..RETRIES_MAX {
        let (mut stored, version) = load(engine, caller, by.app, user.id).await?;
        if let Some(call) = call
            && let Some(known) = stored.calls.iter().find(|known| known.id == call.id)
        {
            if known.call != call.call {
                return Err(EngineError::KeyReused.into());
            }
            return Ok(stored.agents);
        }
        edit(&mut stored.agents)?;
        stored.calls.extend(call.cloned());
        let surplus = stored.calls.len().saturating_sub(REQUESTS_MAX);
        stored.calls.drain(..surplus);
        match save(engine, caller, (by.app, &user), (&stored, version)).await {
            Err(EngineError::VersionConflict { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(()) => return Ok(stored.agents),
        }
    }
    Err(EngineError::TooMany("the saved agents change too fast; try again").into())
}

async fn load(
    engine: &Engine,
    caller: &Caller,
    app: &Name,
    user: UserId,
) -> Result<(StoredAgents, u64), EngineError> {
    let owner = SharedOwner {
        tenant: caller.tenant.clone(),
        app: app.clone(),
        user: Some(user),
    };
    let key: StateKey = KEY.parse().expect("a fixed key is a key");
    let found = engine.inner().store.shared_value(owner, key).await?;
    let version = found.as_ref().map_or(0, |found| found.version);
    let value = found.as_ref().map(|found| found.value.as_slice());
    Ok((parse(value), version))
}

async fn save(
    engine: &Engine,
    caller: &Caller,
    (app, user): (&Name, &NamedUser),
    (stored, version): (&StoredAgents, u64),
) -> Result<(), EngineError> {
    let value = to_body(stored);
    if stored.agents.len() > AGENTS_MAX || value.len() > BYTES_MAX {
        let detail = format!(
            "a user has at most {AGENTS_MAX} saved agents with {BYTES_MAX} bytes together; delete some first"
        );
        return Err(EngineError::Invalid(detail));
    }
    let input = StatePatchInput {
        set: [(KEY.to_owned(), raw_bytes(&value))].into(),
        if_versions: [(KEY.to_owned(), version)].into(),
        ..StatePatchInput::default()
    };
    let call = Call::by(caller.clone());
    patch_shared(engine, &call, app.as_str(), Some(user.clone()), input).await?;
    Ok(())
}

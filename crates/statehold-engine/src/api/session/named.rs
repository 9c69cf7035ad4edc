//! Sessions by their name, which is unique within an app and a user.

use statehold_core::name::Name;

use super::input::{SessionInput, require_name};
use super::{SessionView, create_new, read, session_user};
use crate::api::request::parse_name;
use crate::caller::Caller;
use crate::commit::call::{Call, Receipt};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_lister;
use crate::guard::rights::{self, Act};

/// How often a name may be taken and be free again while one call waits for it.
const RETRIES_MAX: usize = 8;

/// A session that a call created, or the one that had its name.
#[derive(Debug)]
pub enum CreatedSession {
    /// The call created it, or an earlier call under the same idempotency key.
    New(Receipt<SessionView>),
    /// It was there.
    Found(SessionView),
}

/// Reads the session with this name, of the user that the key is bound to, or of the one with the given name.
///
/// # Errors
///
/// If there is none, or the caller may not read it.
pub async fn read_named(
    engine: &Engine,
    caller: &Caller,
    (app, user): (&Name, &str),
    name: &str,
) -> Result<SessionView, EngineError> {
    require_lister(caller)?;
    let user = match caller.user {
        Some(user) => Some(user),
        None => engine.known_user(&caller.tenant, user).await?,
    };
    let user = user.ok_or(EngineError::NotFound)?;
    let store = &engine.inner().store;
    let (tenant, app) = (caller.tenant.clone(), app.clone());
    let found = store.session_named(tenant, app, user, name.to_owned());
    let found = found.await?.ok_or(EngineError::NotFound)?;
    read(engine, caller, found.id).await
}

/// Creates a session. With `get_or_create`, answers with the session that has the name, if there is one. Of several
/// callers at once, one creates it.
///
/// # Errors
///
/// If the caller may not, the input is malformed, or the name is taken by a session that the caller may not read.
pub async fn create_or_get(
    engine: &Engine,
    call: &Call,
    input: SessionInput,
) -> Result<CreatedSession, EngineError> {
    if input.get_or_create {
        return get_or_create(engine, call, &input).await;
    }
    let created = create_new(engine, call, &input).await;
    created.map(CreatedSession::New)
}

async fn get_or_create(
    engine: &Engine,
    call: &Call,
    input: &SessionInput,
) -> Result<CreatedSession, EngineError> {
    rights::require_role(&call.caller, &Act::CreateSession)?;
    let Some(name) = input.name.as_deref() else {
        let detail = "`get_or_create` finds a session by its name: give `name` too";
        return Err(EngineError::invalid("name", detail));
    };
    require_name(name)?;
    let app = parse_name(&input.app, "app")?;
    let user = session_user(engine, &call.caller, input.user.as_deref()).await?;
    // A repeat under an idempotency key gets the kept answer, which creating looks for.
    let (mut looks, mut taken_by) = (call.key.is_none(), None);
    for _ in 0..RETRIES_MAX {
        if looks {
            match read_named(engine, &call.caller, (&app, &user), name).await {
                Err(EngineError::NotFound) => {}
                found => return found.map(CreatedSession::Found),
            }
        }
        match create_new(engine, call, input).await {
            // If the same session has it twice, it was not found in between: the caller may not read it.
            Err(EngineError::NameTaken { session }) if taken_by != Some(session) => {
                (looks, taken_by) = (true, Some(session));
            }
            created => return created.map(CreatedSession::New),
        }
    }
    Err(EngineError::TooMany(
        "the name is taken and freed too fast; try again",
    ))
}

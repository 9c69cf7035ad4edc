//! State of sessions, apps and users.

mod input;
mod provenance;
mod query;
mod view;

use std::collections::BTreeMap;

use statehold_core::command::{Command, Fenced, Rejection};
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_core::scope::{KeyPrefix, Scope, StateKey};
use statehold_store::PageLimit;

use super::json::raw_bytes;
use super::request::parse_name;
use crate::caller::Caller;
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::payloads::Payloads;
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_reader;
use crate::guard::rights::{self, Act};
use crate::shared::require_shared_writer;
use crate::users::NamedUser;

pub use input::{SessionStateInput, StatePatchInput};
pub use provenance::{PROVENANCE_KEYS_MAX, Provenance, add_provenance, require_provenance_reader};
pub use query::{StateQuery, StateQueryInput};
pub use view::{StateView, StateWritten};

/// Reads a page of the state of a session with that of its app and user. The first page has the `temp:` values
/// of a request, if one is given and the query includes them. With the key after which the next page begins.
///
/// # Errors
///
/// If the caller may not read the session, or does not work on the request.
pub async fn read(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    request: Option<RequestId>,
    (query, limit): (&StateQuery, PageLimit),
) -> Result<(StateView, Option<StateKey>), EngineError> {
    let (page, revision) = engine.state(caller, session, (query, limit)).await?;
    let (mut view, next) = StateView::of(query, page, revision);
    if let Some(request) = request.filter(|_| query.is_first()) {
        let root = engine.root_of(caller, session, request, None).await?;
        let values = engine.inner().temps.get(root).into_iter();
        for (key, value) in values.filter(|(key, _)| query.has(key)) {
            view.state.insert(key.to_string(), raw_bytes(&value));
        }
    }
    Ok((view, next))
}

/// Writes state of a session, its user or (as an admin) its app; or `temp:` values of a request.
///
/// # Errors
///
/// If the caller may not, a key is invalid, a version conflicts, or a value does not merge.
pub async fn patch(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    input: SessionStateInput,
) -> Result<Receipt<StateWritten>, EngineError> {
    let (input, request, fence) = input.split();
    let act = request.map_or(Act::ManageSession, Act::WorkOn);
    let (mut write, _) = SessionWrite::authorised(engine, call, session, &act).await?;
    let mut writes = input.parse(None)?;
    let by = match (request, fence) {
        (Some(request), Some(fence)) => Some(Fenced { request, fence }),
        (None, None) => None,
        _ => {
            let detail = "`request_id` and `fence` go together";
            return Err(EngineError::invalid("fence", detail));
        }
    };
    let temp = writes.take_temp();
    let has_rest = !writes.is_empty();
    if !temp.0.is_empty() || !temp.1.is_empty() {
        return patch_temp(engine, &call.caller, session, by, temp, has_rest).await;
    }
    if !has_rest {
        return Err(Rejection::EmptyPatch.into());
    }
    let lists = writes.lists();
    let patch = writes.into_core(&engine.policies().state, &mut write.payloads);
    let command = Command::PutState { patch, by };
    write
        .commit(&command, |made| Some(state_written(made, &lists)))
        .await
}

/// Writes `temp:` values, which live only in memory and are never committed.
async fn patch_temp(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    by: Option<Fenced>,
    (set, delete): (Vec<(StateKey, Vec<u8>)>, Vec<StateKey>),
    has_rest: bool,
) -> Result<Receipt<StateWritten>, EngineError> {
    let Some(by) = by else {
        let detail = "`temp:` keys live with a request: name it with `request_id` and `fence`";
        return Err(EngineError::bad_state(detail));
    };
    if has_rest {
        let detail = "write `temp:` keys in a call of their own: they are not part of a commit";
        return Err(EngineError::bad_state(detail));
    }
    let root = engine.root_of(caller, session, by.request, Some(by.fence));
    let root = root.await?;
    let summary = engine.session(caller, session).await?;
    let (user, revision) = (summary.owner.user, summary.revision);
    engine.require_values_fit(caller, &set).await?;
    let temps = &engine.inner().temps;
    let holder = engine.inner().starters.holder(caller, user, root);
    temps.put(holder, root, set, &delete)?;
    // If the root request has ended meanwhile, its values were dropped before these came.
    let state = engine.durable_state(session).await?;
    if !state.requests.contains_key(&root) {
        temps.drop_root(root, true);
        return Err(EngineError::NotFound);
    }
    let written = StateWritten {
        revision,
        versions: BTreeMap::new(),
        appended: BTreeMap::new(),
        deleted: 0,
    };
    Ok(Receipt::uncommitted(session, revision, written))
}

fn state_written(made: &DecidedCommit<'_>, lists: &[(KeyPrefix, usize)]) -> StateWritten {
    let content = &made.record.content;
    let is_deleted = |event: &&Event| matches!(event, Event::StateDeleted { .. });
    let appended = lists.iter().map(|(list, values)| {
        let keys = (0..*values).map(|index| list.element(content.seq, index).to_string());
        (list.to_string(), keys.collect())
    });
    let versions = content.events.iter().filter_map(|event| match event {
        Event::StatePut { key, .. } => Some((key.to_string(), content.seq)),
        _ => None,
    });
    StateWritten {
        revision: content.seq,
        versions: versions.collect(),
        appended: appended.collect(),
        deleted: content.events.iter().filter(is_deleted).count(),
    }
}

/// Reads a page of the state of an app, or of a user in an app. With the key after which the next page begins.
///
/// # Errors
///
/// If the caller may not read it.
pub async fn read_shared(
    engine: &Engine,
    caller: &Caller,
    app: &str,
    user: Option<&str>,
    (query, limit): (&StateQuery, PageLimit),
) -> Result<(StateView, Option<StateKey>), EngineError> {
    // Roles before objects: the answer must not tell whether the user exists.
    require_reader(caller)?;
    let user = match user {
        Some(user) => {
            let known = engine.known_user(&caller.tenant, user).await?;
            Some(known.ok_or(EngineError::NotFound)?)
        }
        None => None,
    };
    let app: Name = app.parse().map_err(|_| EngineError::NotFound)?;
    let (page, revision) = engine.shared(caller, &app, user, (query, limit)).await?;
    Ok(StateView::of(query, page.map(Into::into), revision))
}

/// Writes the state of an app.
///
/// # Errors
///
/// If the caller may not, a key is invalid, a version conflicts, or a value does not merge.
pub async fn patch_app(
    engine: &Engine,
    call: &Call,
    app: &str,
    input: StatePatchInput,
) -> Result<Receipt<StateWritten>, EngineError> {
    patch_shared(engine, call, app, None, input).await
}

/// Writes the state of a user in an app.
///
/// # Errors
///
/// If the caller may not, a key is invalid, a version conflicts, or a value does not merge.
pub async fn patch_user(
    engine: &Engine,
    call: &Call,
    (app, user): (&str, &str),
    input: StatePatchInput,
) -> Result<Receipt<StateWritten>, EngineError> {
    let caller = &call.caller;
    rights::require_role(caller, &Act::ManageSession)?;
    let named = match (caller.user, &caller.new_user) {
        (Some(id), Some(new)) if new.name() == user => NamedUser {
            id,
            new: Some(new.clone()),
        },
        (Some(_), _) => {
            let known = engine.known_user(&caller.tenant, user).await?;
            let id = known.ok_or(EngineError::NotFound)?;
            NamedUser { id, new: None }
        }
        (None, _) => engine.named_user(&caller.tenant, user, "user").await?,
    };
    patch_shared(engine, call, app, Some(named), input).await
}

pub(super) async fn patch_shared(
    engine: &Engine,
    call: &Call,
    app: &str,
    user: Option<NamedUser>,
    input: StatePatchInput,
) -> Result<Receipt<StateWritten>, EngineError> {
    require_shared_writer(&call.caller, user.as_ref().map(|user| user.id))?;
    let scope = if user.is_some() {
        Scope::User
    } else {
        Scope::App
    };
    let writes = input.parse(Some(scope))?;
    if writes.is_empty() {
        return Err(Rejection::EmptyPatch.into());
    }
    let app = parse_name(app, "app")?;
    let (own, call) = (engine.clone(), call.clone());
    let write = async move {
        let command = |payloads: &mut Payloads| Command::PutState {
            patch: writes.into_core(&own.policies().state, payloads),
            by: None,
        };
        let view = |made: &DecidedCommit<'_>| Some(state_written(made, &[]));
        own.commit_shared(&call, (&app, user.as_ref()), command, view)
            .await
    };
    engine.run_to_end(write).await
}

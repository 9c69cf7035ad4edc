//! State: of a session, of an app, of a user.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use statehold_core::command::{Command, Fenced, Rejection, StatePatch};
use statehold_core::ids::{RequestId, SessionId, UserId};
use statehold_core::record::Event;
use statehold_core::scope::Scope;
use statehold_engine::{Committed, EngineError, Reply};
use utoipa::IntoParams;

use super::{About, answer, done, name, shown};
use crate::app::{App, Asked, Params, PathIds, Payload};
use crate::problem::Problem;
use crate::wire::schema::RequestIdText;
use crate::wire::state::{PatchIn, SessionPatchIn, StateOut, StateWritten};
use crate::wire::{raw_bytes, to_body};

/// Around which request.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StateParams {
    /// Show the `temp:` values around this request too.
    #[param(value_type = Option<RequestIdText>)]
    request_id: Option<RequestId>,
}

/// The values that a session sees.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/state", tag = "state",
    params(("session_id" = String, Path), StateParams),
    responses((status = 200, body = StateOut))
)]
pub(crate) async fn read(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    Params(params): Params<StateParams>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let (values, revision) = app.engine.state(&asked.caller, session).await?;
    let (mut state, mut versions) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in values {
        state.insert(key.to_string(), raw_bytes(&value.value));
        versions.insert(key.to_string(), value.version);
    }
    if let Some(request) = params.request_id {
        for (key, value) in app.engine.temp(&asked.caller, session, request).await? {
            state.insert(key.to_string(), raw_bytes(&value));
        }
    }
    let out = StateOut {
        state,
        versions,
        revision,
    };
    Ok(shown(&out, &about(session, revision)))
}

fn about(session: SessionId, revision: u64) -> About {
    About {
        revision: Some(revision),
        session: Some(session.to_string()),
        ..About::default()
    }
}

/// Write values of a session, its user or (as an admin) its app.
#[utoipa::path(
    patch, path = "/v1/sessions/{session_id}/state", tag = "state",
    params(("session_id" = String, Path)), request_body = SessionPatchIn,
    responses((status = 200, body = StateWritten))
)]
pub(crate) async fn patch(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<SessionPatchIn>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let call = asked.call(&body.bytes);
    let (wire, request, fence) = body.value.split();
    let mut parsed = wire.parse(None)?;
    let by = match (request, fence) {
        (Some(request), Some(fence)) => Some(Fenced { request, fence }),
        (None, None) => None,
        _ => {
            let detail = "`request_id` and `fence` go together";
            return Err(Problem::invalid(detail).with("path", "fence"));
        }
    };
    // Whatever else is wrong with the call is told only to those who may make it.
    let write = Command::PutState {
        patch: StatePatch::default(),
        by,
    };
    let reach = app.engine.require_reach(&asked.caller, session, &write);
    reach.await?;
    let (temp, temp_deleted) = parsed.take_temp();
    let has_temp = !temp.is_empty() || !temp_deleted.is_empty();
    let has_rest = !parsed.set.is_empty() || !parsed.delete.is_empty();
    if has_temp {
        let Some(by) = by else {
            let detail = "`temp:` keys live with a request: name it with `request_id` and `fence`";
            return Err(EngineError::Temp(detail).into());
        };
        if has_rest {
            let detail = "write `temp:` keys in a call of their own: they are not part of a commit";
            return Err(EngineError::Temp(detail).into());
        }
        let caller = &asked.caller;
        app.engine
            .put_temp(caller, session, by, temp, &temp_deleted)
            .await?;
        let summary = app.engine.session(caller, session).await?;
        let out = StateWritten {
            revision: summary.revision,
            versions: BTreeMap::new(),
        };
        return Ok(answer(
            StatusCode::OK,
            to_body(&out),
            &about(session, summary.revision),
        ));
    }
    if !has_rest {
        return Err(Rejection::EmptyPatch.into());
    }
    let owner = app.engine.owner(session).await?;
    let mut payloads = app.engine.payloads_for(&owner.tenant, owner.user).await?;
    let command = Command::PutState {
        patch: parsed.into_core(&mut payloads),
        by,
    };
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &written())
        .await?;
    Ok(done(StatusCode::OK, made, about(session, 0)))
}

fn written() -> Reply {
    Arc::new(|made: &Committed<'_>| {
        let content = &made.record.content;
        let versions = content.events.iter().filter_map(|event| match event {
            Event::StatePut { key, .. } => Some((key.to_string(), content.seq)),
            _ => None,
        });
        to_body(&StateWritten {
            revision: content.seq,
            versions: versions.collect(),
        })
    })
}

/// The values of an app.
#[utoipa::path(
    get, path = "/v1/state/app/{app}", tag = "state", params(("app" = String, Path)),
    responses((status = 200, body = StateOut))
)]
pub(crate) async fn read_app(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
) -> Result<Response, Problem> {
    read_shared(&app, &asked, ids.text("app"), None).await
}

/// Write values of an app.
#[utoipa::path(
    patch, path = "/v1/state/app/{app}", tag = "state", params(("app" = String, Path)),
    request_body = PatchIn, responses((status = 200, body = StateWritten))
)]
pub(crate) async fn patch_app(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<PatchIn>,
) -> Result<Response, Problem> {
    patch_shared(&app, &asked, ids.text("app"), None, body).await
}

/// The values of a user in an app.
#[utoipa::path(
    get, path = "/v1/state/user/{app}/{user}", tag = "state",
    params(("app" = String, Path), ("user" = String, Path)),
    responses((status = 200, body = StateOut))
)]
pub(crate) async fn read_user(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
) -> Result<Response, Problem> {
    let user = app
        .engine
        .known_user(&asked.caller.tenant, ids.text("user"))
        .await?;
    let user = user.ok_or_else(Problem::not_found)?;
    read_shared(&app, &asked, ids.text("app"), Some(user)).await
}

/// Write values of a user in an app.
#[utoipa::path(
    patch, path = "/v1/state/user/{app}/{user}", tag = "state",
    params(("app" = String, Path), ("user" = String, Path)),
    request_body = PatchIn, responses((status = 200, body = StateWritten))
)]
pub(crate) async fn patch_user(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<PatchIn>,
) -> Result<Response, Problem> {
    let write = Command::PutState {
        patch: StatePatch::default(),
        by: None,
    };
    app.engine.require_role(&asked.caller, &write)?;
    let tenant = &asked.caller.tenant;
    // A key that may not write for others must not make users either.
    let user = match asked.caller.user {
        Some(_) => app.engine.known_user(tenant, ids.text("user")).await?,
        None => Some(app.engine.user_id(tenant, ids.text("user")).await?),
    };
    let user = user.ok_or_else(Problem::not_found)?;
    patch_shared(&app, &asked, ids.text("app"), Some(user), body).await
}

async fn read_shared(
    app: &App,
    asked: &Asked,
    of_app: &str,
    user: Option<UserId>,
) -> Result<Response, Problem> {
    let of_app = of_app.parse().map_err(|_| Problem::not_found())?;
    let view = app.engine.shared(&asked.caller, &of_app, user).await?;
    let (mut state, mut versions) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in view.values {
        state.insert(key.to_string(), raw_bytes(&value.value));
        versions.insert(key.to_string(), value.version);
    }
    let about = About {
        revision: Some(view.revision),
        ..About::default()
    };
    let out = StateOut {
        state,
        versions,
        revision: view.revision,
    };
    Ok(shown(&out, &about))
}

async fn patch_shared(
    app: &App,
    asked: &Asked,
    of_app: &str,
    user: Option<UserId>,
    body: Payload<PatchIn>,
) -> Result<Response, Problem> {
    let call = asked.call(&body.bytes);
    let scope = if user.is_some() {
        Scope::User
    } else {
        Scope::App
    };
    let patch = body.value.parse(Some(scope))?;
    if patch.set.is_empty() && patch.delete.is_empty() {
        return Err(Rejection::EmptyPatch.into());
    }
    let of_app = name(of_app, "app")?;
    let tenant = &asked.caller.tenant;
    let owner = user.unwrap_or(UserId::from_uuid(uuid::Uuid::nil()));
    let mut payloads = app.engine.payloads_for(tenant, owner).await?;
    let patch = patch.into_core(&mut payloads);
    let made = app
        .engine
        .patch_shared(&call, &of_app, user, patch, &payloads, &written())
        .await?;
    Ok(done(StatusCode::OK, made, About::default()))
}

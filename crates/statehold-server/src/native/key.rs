//! Keys.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use statehold_core::ids::KeyId;
use statehold_core::name::Name;
use statehold_engine::{ApiKey, NewKey};
use utoipa::ToSchema;

use super::{About, answer, name, shown};
use crate::http::call::{App, CallContext, PathIds, Payload};
use crate::http::problem::Problem;
use statehold_engine::api::json::{Time, to_body};

/// A key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyIn {
    /// What people call it.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128)]
    name: Option<String>,
    /// `client`, `worker`, `approver`, `operator`, `admin`, or roles that policies name.
    #[schema(value_type = Vec<Name>, min_items = 1)]
    roles: Vec<String>,
    /// The user it is bound to.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    user: Option<String>,
    /// The agents it is bound to.
    #[serde(default)]
    #[schema(value_type = Vec<Name>)]
    agents: Vec<String>,
    /// How long it counts; for good if left out.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 316_224_000)]
    expires_in_seconds: Option<u64>,
}

/// A key. The key itself is shown once, when it is made.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Key)]
pub(crate) struct KeyOut {
    #[schema(value_type = KeyId)]
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[schema(value_type = Vec<Name>)]
    roles: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Name>, required = false)]
    agents: Vec<String>,
    #[schema(value_type = Time)]
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>)]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Time>)]
    revoked_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// All keys.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyList {
    keys: Vec<KeyOut>,
}

async fn key_out(app: &App, key: &ApiKey, secret: Option<String>) -> Result<KeyOut, Problem> {
    let user = match key.user {
        Some(user) => Some(app.engine.user_name(&key.tenant, user).await?),
        None => None,
    };
    let words = |names: &BTreeSet<Name>| names.iter().map(ToString::to_string).collect();
    Ok(KeyOut {
        id: key.id.to_string(),
        name: key.name.clone(),
        roles: words(&key.roles),
        user,
        agents: words(&key.agents),
        created_at: Time(key.created_at).to_string(),
        expires_at: key.expires_at.map(|at| Time(at).to_string()),
        revoked_at: key.revoked_at.map(|at| Time(at).to_string()),
        key: secret,
    })
}

/// Make a key. It is shown once.
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys", request_body = KeyIn,
    responses((status = 201, body = KeyOut))
)]
pub(crate) async fn create(
    State(app): State<App>,
    asked: CallContext,
    body: Payload<KeyIn>,
) -> Result<Response, Problem> {
    statehold_engine::require_admin(&asked.caller)?;
    let wire = body.value;
    let names = |texts: &[String], path: &str| {
        let names = texts.iter().map(|text| name(text, path));
        names.collect::<Result<BTreeSet<Name>, Problem>>()
    };
    let user = match &wire.user {
        Some(user) => Some(app.engine.user_id(&asked.caller.tenant, user).await?),
        None => None,
    };
    let new = NewKey {
        name: wire.name,
        roles: names(&wire.roles, "roles")?,
        user,
        agents: names(&wire.agents, "agents")?,
        expires_in_ms: wire
            .expires_in_seconds
            .map(|seconds| seconds.saturating_mul(1_000)),
    };
    let issued = app.engine.create_key(&asked.caller, new).await?;
    let out = key_out(&app, &issued.key, Some(issued.secret)).await?;
    Ok(answer(
        StatusCode::CREATED,
        to_body(&out),
        &About::default(),
    ))
}

/// List keys.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", responses((status = 200, body = KeyList)))]
pub(crate) async fn list(State(app): State<App>, asked: CallContext) -> Result<Response, Problem> {
    let mut keys = Vec::new();
    for key in app.engine.keys(&asked.caller).await? {
        keys.push(key_out(&app, &key, None).await?);
    }
    Ok(shown(&KeyList { keys }, &About::default()))
}

/// Take a key back, at once.
#[utoipa::path(
    delete, path = "/v1/keys/{key_id}", tag = "keys", params(("key_id" = String, Path)),
    responses((status = 204))
)]
pub(crate) async fn revoke(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let id: KeyId = ids.id("key_id")?;
    app.engine.revoke_key(&asked.caller, id).await?;
    Ok(answer(
        StatusCode::NO_CONTENT,
        Vec::new(),
        &About::default(),
    ))
}

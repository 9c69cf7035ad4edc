//! The agents, as models.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use statehold_core::name::Name;
use utoipa::ToSchema;

use crate::chat::unknown_agent;
use crate::http::call::{App, CallContext};
use crate::http::problem::Problem;
use crate::native::plain;

/// An agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatModel)]
pub(crate) struct ModelOut {
    id: String,
    object: &'static str,
    /// In seconds since 1970: when the server began.
    created: i64,
    owned_by: &'static str,
}

/// All agents that are declared.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatModels)]
pub(crate) struct ModelsOut {
    object: &'static str,
    data: Vec<ModelOut>,
}

impl ModelOut {
    fn of(app: &App, name: &str) -> Self {
        Self {
            id: name.to_owned(),
            object: "model",
            created: app.deliveries.since().as_micros() / 1_000_000,
            owned_by: "statehold",
        }
    }
}

/// List the agents that are declared, as models.
///
/// A client of OpenAI's API names one of them as the `model` of a chat call.
#[utoipa::path(
    get, path = "/openai/v1/models", tag = "chat",
    operation_id = "listModels", responses((status = 200, body = ModelsOut))
)]
pub(crate) async fn list(State(app): State<App>, context: CallContext) -> Response {
    let book = app.options.agents.get();
    let is_token = context.caller.only_session.is_some();
    let names = book.agents.keys().filter(|_| !is_token);
    let data = names.map(|name| ModelOut::of(&app, name.as_str()));
    let out = ModelsOut {
        object: "list",
        data: data.collect(),
    };
    plain(&out)
}

/// Read an agent that is declared, as a model.
///
/// `model` is the name of the agent.
#[utoipa::path(
    get, path = "/openai/v1/models/{model}", tag = "chat",
    operation_id = "getModel",
    responses((status = 200, body = ModelOut))
)]
pub(crate) async fn read(
    State(app): State<App>,
    context: CallContext,
) -> Result<Response, Problem> {
    let model: String = context.id("model")?;
    let book = &app.options.agents.get();
    let is_token = context.caller.only_session.is_some();
    let names = || book.agents.keys().filter(|_| !is_token);
    let found = names().find(|name| name.as_str() == model);
    let known = || names().map(Name::as_str).collect();
    let unknown = || unknown_agent(&model, known()).with("path", "model");
    let found = found.ok_or_else(unknown)?;
    let out = ModelOut::of(&app, found.as_str());
    Ok(plain(&out))
}

//! The deployments: their list, their settings, and ratings of their answers.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use statehold_agents::spec::{AgentBook, AgentSpec};
use statehold_core::name::Name;
use utoipa::ToSchema;

use crate::chat::unknown_agent;
use crate::http::body::Payload;
use crate::http::call::{App, CallContext};
use crate::http::problem::Problem;
use crate::native::plain;

/// A deployment: an agent that is declared.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DialDeployment)]
pub(crate) struct DeploymentOut<'a> {
    id: &'a str,
    model: &'a str,
    display_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    owner: &'static str,
    object: &'static str,
    status: &'static str,
    /// In seconds since 1970: when the server began.
    created_at: i64,
    updated_at: i64,
    features: FeaturesOut,
}

/// The features of a deployment, by the names that DIAL Core gives them.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = DialFeatures)]
#[expect(clippy::struct_excessive_bools, reason = "the names on the wire")]
struct FeaturesOut {
    rate: bool,
    tokenize: bool,
    truncate_prompt: bool,
    configuration: bool,
    system_prompt: bool,
    tools: bool,
    seed: bool,
    url_attachments: bool,
    folder_attachments: bool,
    content_parts: bool,
    /// A call that was broken off goes on when it is made again.
    allow_resume: bool,
}

const FEATURES: FeaturesOut = FeaturesOut {
    rate: true,
    tokenize: false,
    truncate_prompt: false,
    configuration: true,
    system_prompt: false,
    tools: false,
    seed: false,
    url_attachments: true,
    folder_attachments: false,
    content_parts: true,
    allow_resume: true,
};

/// All deployments.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DialDeployments)]
pub(crate) struct DeploymentsOut<'a> {
    data: Vec<DeploymentOut<'a>>,
    object: &'static str,
}

/// A rating of an answer. Other fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = DialRating)]
pub(crate) struct RatingIn {
    /// The `id` of the answer.
    #[serde(rename = "responseId")]
    #[expect(dead_code, reason = "ratings are not kept")]
    response_id: String,
    /// Whether the answer was good.
    #[expect(dead_code, reason = "ratings are not kept")]
    rate: bool,
}

impl<'a> DeploymentOut<'a> {
    fn of(app: &App, (name, spec): (&'a Name, &'a AgentSpec)) -> Self {
        let began = app.deliveries.since().as_micros() / 1_000_000;
        Self {
            id: name.as_str(),
            model: name.as_str(),
            display_name: name.as_str(),
            description: spec.description.as_deref(),
            owner: "statehold",
            object: "deployment",
            status: "succeeded",
            created_at: began,
            updated_at: began,
            features: FEATURES,
        }
    }
}

/// The deployment that a call names, if its caller may know it.
fn found<'a>(
    book: &'a AgentBook,
    context: &CallContext,
) -> Result<(&'a Name, &'a AgentSpec), Problem> {
    let named = context.path_text("deployment");
    let is_token = context.caller.only_session.is_some();
    let agents = || book.agents.iter().filter(|_| !is_token);
    let found = agents().find(|(name, _)| name.as_str() == named);
    let known = || agents().map(|(name, _)| name.as_str()).collect();
    let unknown = || unknown_agent(named, known()).with("path", "deployment");
    let (name, spec) = found.ok_or_else(unknown)?;
    Ok((name, &**spec))
}

/// List the deployments.
///
/// They are the agents that are declared. A read token sees none.
#[utoipa::path(
    get, path = "/openai/deployments", tag = "dial", operation_id = "listDialDeployments",
    responses((status = 200, body = DeploymentsOut))
)]
pub(crate) async fn list(State(app): State<App>, context: CallContext) -> Response {
    let book = app.options.agents.get();
    let is_token = context.caller.only_session.is_some();
    let agents = book.agents.iter().filter(|_| !is_token);
    let data = agents.map(|(name, spec)| DeploymentOut::of(&app, (name, &**spec)));
    plain(&DeploymentsOut {
        data: data.collect(),
        object: "list",
    })
}

/// Read a deployment.
///
/// `deployment` is the name of its agent.
#[utoipa::path(
    get, path = "/openai/deployments/{deployment}", tag = "dial",
    operation_id = "getDialDeployment",
    responses((status = 200, body = DeploymentOut))
)]
pub(crate) async fn read(
    State(app): State<App>,
    context: CallContext,
) -> Result<Response, Problem> {
    let book = app.options.agents.get();
    let deployment = found(&book, &context)?;
    Ok(plain(&DeploymentOut::of(&app, deployment)))
}

/// Read the settings that a call may choose for a deployment.
///
/// They are a JSON schema. Agents declare none. A call may choose others in `custom_fields.configuration`: an agent
/// that trusts its callers gets them as they came.
#[utoipa::path(
    get, path = "/openai/deployments/{deployment}/configuration", tag = "dial",
    operation_id = "getDialConfiguration",
    responses((status = 200, body = serde_json::Value, description = "A JSON schema."))
)]
pub(crate) async fn configuration(
    State(app): State<App>,
    context: CallContext,
) -> Result<Response, Problem> {
    let book = app.options.agents.get();
    let (name, _) = found(&book, &context)?;
    Ok(plain(&json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "type": "object",
        "properties": {},
        "additionalProperties": true,
    })))
}

/// Rate an answer.
///
/// The rating is not kept.
#[utoipa::path(
    post, path = "/openai/deployments/{deployment}/rate", tag = "dial",
    operation_id = "rateDialAnswer",
    request_body = RatingIn, responses((status = 200, description = "It is taken."))
)]
pub(crate) async fn rate(
    State(app): State<App>,
    context: CallContext,
    _rating: Payload<RatingIn>,
) -> Result<Response, Problem> {
    found(&app.options.agents.get(), &context)?;
    Ok(Response::default())
}

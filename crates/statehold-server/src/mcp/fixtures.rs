//! The tools, prompts and resources that the official conformance suite of MCP calls on a server under test.
//!
//! Compiled with the feature `conformance`, and active if [`crate::ServerOptions::mcp_fixtures`] is set. They go through
//! the same transport, authentication and sealing as the rest of this surface. The suite fixes their names and texts.

mod content;
mod input;
mod peer;
mod schema;

use std::sync::Arc;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, GetPromptRequestParams,
    GetPromptResponse, Resource, ServerCapabilities, SubscriptionFilter, Tool,
};
use rmcp::service::{RequestContext, RoleServer, SubscriptionSink};
use serde_json::{Value, json};
use statehold_engine::Lock;
use tokio::sync::watch;

use crate::http::call::CallContext;

pub(super) use self::content::{completion, prompts, read_resource, template};

/// The resource that legacy clients may subscribe to. It never changes.
pub(super) const WATCHED: &str = "test://watched-resource";

/// How often the lists of a server were changed by its fixtures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ListVersions {
    tools: u64,
    prompts: u64,
}

/// Announces changes of the lists to the subscriptions of all clients.
#[derive(Debug, Default)]
pub(crate) struct ListChanges(watch::Sender<ListVersions>);

/// The fixtures as one request of the newer era, or one session of the older, uses them.
#[derive(Clone)]
pub(super) struct Fixtures {
    /// Made before a subscription is acknowledged, so that it misses no later change.
    changes: watch::Receiver<ListVersions>,
    /// The least severe level that a legacy session wants logged.
    level: Arc<Lock<Option<String>>>,
}

impl Fixtures {
    /// The fixtures of a server that has them switched on.
    pub(super) fn of(context: &CallContext) -> Option<Self> {
        let app = &context.app;
        app.options.mcp_fixtures.then(|| Self {
            changes: app.mcp_lists.0.subscribe(),
            level: Arc::default(),
        })
    }

    /// Adds the capabilities that only fixtures need.
    pub(super) fn extended(capabilities: ServerCapabilities) -> ServerCapabilities {
        let own = json!({
            "prompts": {"listChanged": true},
            "tools": {"listChanged": true},
            "completions": {},
            "logging": {},
        });
        let own: ServerCapabilities = serde_json::from_value(own).unwrap_or_default();
        let mut all = capabilities;
        all.prompts = own.prompts;
        all.tools = own.tools;
        all.completions = own.completions;
        all.logging = own.logging;
        all
    }

    /// Sets the level of a legacy session. The newer era names the level in each request instead.
    pub(super) fn set_level(&self, level: &impl serde::Serialize) {
        let level = serde_json::to_value(level).unwrap_or_default();
        *self.level.lock() = level.as_str().map(str::to_owned);
    }

    /// Adds the changes of lists that a client wants to hear about.
    pub(super) fn accepted(
        requested: &SubscriptionFilter,
        accepted: SubscriptionFilter,
    ) -> SubscriptionFilter {
        let mut accepted = accepted;
        accepted.tools_list_changed = requested.tools_list_changed;
        accepted.prompts_list_changed = requested.prompts_list_changed;
        accepted
    }

    /// Announces changes of the lists until the client is gone.
    pub(super) async fn announce(mut self, sink: SubscriptionSink) {
        let mut told = *self.changes.borrow_and_update();
        while self.changes.changed().await.is_ok() {
            let now = *self.changes.borrow_and_update();
            let filter = sink.accepted();
            let wants_tools = filter.tools_list_changed == Some(true);
            let wants_prompts = filter.prompts_list_changed == Some(true);
            let mut sent = Ok(());
            if wants_tools && now.tools > told.tools {
                sent = sink.notify_tool_list_changed().await;
            }
            if sent.is_ok() && wants_prompts && now.prompts > told.prompts {
                sent = sink.notify_prompt_list_changed().await;
            }
            if sent.is_err() {
                return;
            }
            told = now;
        }
    }

    /// Calls a tool. None if it is not a fixture.
    pub(super) async fn call_tool(
        &self,
        call: &CallContext,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Option<Result<CallToolResponse, ErrorData>> {
        let name = tool(&request.name)?.name;
        if let Some(result) = content::tool_result(&name) {
            return Some(Ok(result.into()));
        }
        let changes = &call.app.mcp_lists.0;
        match &*name {
            "test_trigger_tool_change" => changes.send_modify(|versions| versions.tools += 1),
            "test_trigger_prompt_change" => changes.send_modify(|versions| versions.prompts += 1),
            _ => {
                let answers = (&request.input_responses, &request.request_state);
                return Some(match input::answer(call, &name, answers, context) {
                    Some(outcome) => outcome.map(input::Outcome::into_tool_response),
                    None => self.call_peer_tool(&name, request, context).await,
                });
            }
        }
        Some(Ok(text("The list was changed.").into()))
    }

    async fn call_peer_tool(
        &self,
        name: &str,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.clone().unwrap_or_default();
        let level = self.level.lock().clone();
        peer::call(name, &arguments.into(), level.as_deref(), context)
            .await
            .map(Into::into)
    }
}

/// A prompt. None if it is not a fixture.
pub(super) fn prompt(
    call: &CallContext,
    request: &GetPromptRequestParams,
    context: &RequestContext<RoleServer>,
) -> Option<Result<GetPromptResponse, ErrorData>> {
    let arguments = request.arguments.clone().unwrap_or_default();
    if let Some(result) = content::prompt_result(&request.name, &arguments.into()) {
        return Some(Ok(result.into()));
    }
    let answers = (&request.input_responses, &request.request_state);
    let outcome = input::answer(call, &request.name, answers, context)?;
    Some(outcome.map(input::Outcome::into_prompt_response))
}

/// The tools, as clients see them.
pub(super) fn tools() -> &'static [Tool] {
    &schema::TOOLS
}

/// The tool of a name.
pub(super) fn tool(name: &str) -> Option<Tool> {
    tools().iter().find(|tool| tool.name == name).cloned()
}

/// Puts fixtures before the conversations on the first page of the list.
pub(super) fn prepend(listed: &mut Vec<Resource>) {
    listed.splice(0..0, content::resources());
}

fn text(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

/// The error of a request that needs a capability which the client did not declare.
fn missing_capability(name: &str) -> ErrorData {
    let required = serde_json::from_value(json!({name: {}}));
    ErrorData::missing_required_client_capability(required.unwrap_or_default())
}

/// Whether the client declared a capability.
fn is_declared(context: &RequestContext<RoleServer>, name: &str) -> bool {
    let declared = serde_json::to_value(context.client_capabilities()).unwrap_or_default();
    declared.get(name).is_some_and(Value::is_object)
}

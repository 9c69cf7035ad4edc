//! Gateways to agents in other processes. An agent without memory gets its own exchanges back with each
//! call; an agent that stores a conversation gets only the new message.
//!
//! Agent state is stored with the agent's task and is not interpreted.

mod agent_reply;
mod analytics;
mod briefing;
mod call_headers;
mod chat_agent;
mod chat_service;
mod conversation_record;
mod conversation_turn;
mod conversations;
mod dial_form;
mod dial_stages;
mod exchange;
mod mcp;
mod pause;
mod prepared_call;
mod raw_object;
mod remote_session;
mod reply_writer;
mod shared;
mod state;

pub(crate) use analytics::AnalyticsAgent;
pub(crate) use call_headers::traceparent;
pub(crate) use chat_agent::ChatAgent;
pub(crate) use chat_service::ChatService;
pub(crate) use conversation_record::ConversationLocks;
pub(crate) use conversations::ConversationsAgent;
pub(crate) use mcp::McpAgent;
pub(crate) use shared::normalize_value;

use statehold_core::scope::StateKey;
use statehold_engine::Credential;
use statehold_engine::bodies::Raw;

use crate::http::{EndpointError, ServiceEndpoint};
use crate::runner::AgentRun;
use crate::spec::SecretHeader;
use crate::turn::{TraceNote, TurnError};

/// Block of session values before a message, for an agent that is not behind a gateway.
pub(crate) fn shared_block(values: &[(StateKey, Raw)], text: &str) -> Option<String> {
    shared::block(shared::SharedContext::of(values).as_ref(), text)
}

/// The note about a conversation that the agent lost and that was created again.
const RECREATED: &str = "conversation_recreated";

/// The sentence before the first answer in a conversation that replaces a lost one, for the user.
fn loss_notice(is_briefed: bool) -> &'static str {
    if is_briefed {
        "The service that keeps this conversation had lost it. A new one was begun there, and it was told \
         of the earlier messages.\n\n"
    } else {
        "The service that keeps this conversation had lost it. A new one was begun there, which knows \
         nothing of the earlier messages.\n\n"
    }
}

/// Address and call settings of the service of an agent. The credential of the caller replaces the agent's own.
fn service_endpoint(
    run: &AgentRun,
    base_url: &str,
    credential: Option<&Credential>,
    headers: &[SecretHeader],
) -> ServiceEndpoint {
    let mut sent = call_headers::origin_headers(run.request.ids);
    sent.extend(headers.iter().map(SecretHeader::pair));
    ServiceEndpoint {
        base_url: base_url.to_owned(),
        credential: run.credential.as_ref().or(credential).cloned(),
        headers: sent,
        timeout: run.spec.timeout,
        retries: run.spec.retries,
    }
}

/// A trace note that says why.
fn reason_note(name: &'static str, reason: &str) -> TraceNote {
    TraceNote::new(name, &serde_json::json!({ "reason": reason }))
}

/// Fails the turn with the error of a call.
fn turn_failure(error: &EndpointError) -> TurnError {
    error.turn_failure(error.to_string())
}

/// Whether the turn failed because the service lost the conversation.
fn is_conversation_lost(error: &TurnError) -> bool {
    let lost = EndpointError::NotFound.code();
    matches!(error, TurnError::Failed(failure) if failure.code == lost)
}

/// Internal error: a step that is not recorded must have a prepared call.
fn not_prepared() -> TurnError {
    TurnError::failed("internal", "a call was not prepared; ask again")
}

//! A message to a conversation, and its answer. One turn runs at a time in a conversation: a message waits until the
//! turn before it has ended or waits for people, and a repeated one gets the turn that it began.

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use statehold_core::ids::SessionId;
use statehold_engine::api::turn::named_session;

use super::SURFACE;
use super::chunk::ConversationWriter;
use super::errors::as_service_error;
use crate::chat::{ChatCall, ChatMessageIn, ChatTurn, TurnContext};
use crate::http::call::App;
use crate::http::problem::Problem;

/// A message to a conversation. Other fields are ignored.
#[derive(Debug, Deserialize)]
struct MessageIn {
    message: ChatMessageIn,
    /// A stream, unless it is false.
    stream: Option<bool>,
}

/// Serves a message to a conversation.
pub(super) async fn chat(State(app): State<App>, request: Request) -> Response {
    let mut known = TurnContext::default();
    let answered = match ChatCall::read::<MessageIn>(&app, request, &SURFACE).await {
        Ok((call, sent, _)) => Box::pin(serve(app, call, sent, &mut known)).await,
        Err(problem) => Err(problem),
    };
    answered.unwrap_or_else(|problem| known.refuse(problem, &SURFACE, as_service_error))
}

async fn serve(
    app: App,
    mut call: ChatCall,
    sent: MessageIn,
    known: &mut TurnContext,
) -> Result<Response, Problem> {
    call.require_client()?;
    call.one_at_a_time = true;
    let is_stream = sent.stream != Some(false);
    let share = call.take_share(&app, is_stream)?;
    let work = open(&app, &call, sent.message);
    let turn = Box::pin(call.asked.while_valid(work)).await?;
    let (session, task) = turn.place();
    match share {
        Some(share) if is_stream => {
            let format = |head: &_| ConversationWriter::new(session, task, head);
            Box::pin(call.stream(app, turn, share, known, format)).await
        }
        _ => {
            let answer = call.answer(&app, turn, known, |head, ending| {
                ConversationWriter::new(session, task, head).whole(ending)
            });
            Box::pin(answer).await
        }
    }
}

/// Finds or starts the turn. The agent of the conversation answers.
async fn open(app: &App, call: &ChatCall, message: ChatMessageIn) -> Result<ChatTurn, Problem> {
    let session: SessionId = call.asked.id("conversation")?;
    let agent = named_session(&app.engine, &call.asked.caller, session)
        .await?
        .agent;
    if message.role != "user" {
        let detail = "`message` must have the role `user`: the service keeps all others";
        return Err(Problem::invalid(detail).with("path", "message.role"));
    }
    let message = message.user_message("message")?;
    call.open_in_session(app, session, (&agent, message), Vec::new())
        .await
}

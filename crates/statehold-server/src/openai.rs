//! Chat as OpenAI's clients speak it: every agent is a model, a session is a conversation that the
//! server remembers, and a turn that waits for a person is an answer that says so.

mod completion;
pub(crate) mod errors;
pub(crate) mod models;

use axum::extract::{Request, State};
use axum::response::Response;

use self::completion::{CompletionOut, CompletionWriter};
use self::errors::as_openai_error;
use crate::chat::{ChatSurface, CompletionsCall, CompletionsIn, TurnContext};
use crate::dial;
use crate::http::call::App;
use crate::http::problem::Problem;

pub(crate) static SURFACE: ChatSurface = ChatSurface {
    new_session: "the header `x-statehold-session: new`",
    session: "x-statehold-session",
    agent: "model",
    has_debug: true,
    shows_stages: false,
    refers: false,
};

/// Say something to an agent.
///
/// The session is the one that the call names (`x-statehold-session`, or `conversation`), or the one in which
/// its messages were said: the last message is the input and the server knows the rest. Without a session the
/// messages are the conversation and nothing is kept.
#[utoipa::path(
    post, path = "/openai/v1/chat/completions", tag = "chat",
    operation_id = "createChatCompletion", request_body = CompletionsIn,
    responses((status = 200, content(
        (CompletionOut = "application/json"),
        (String = "text/event-stream"),
    ), description = "One completion, or a stream of its chunks."), (status = 404))
)]
pub(crate) async fn chat(State(app): State<App>, request: Request) -> Response {
    if dial::is_dial(&request) {
        return dial::chat(State(app), request).await;
    }
    let mut known = TurnContext::default();
    let answered = answer(app, request, &mut known).await;
    answered.unwrap_or_else(|problem| known.refuse(problem, &SURFACE, as_openai_error))
}

async fn answer(app: App, request: Request, known: &mut TurnContext) -> Result<Response, Problem> {
    let (mut call, _) = CompletionsCall::read(&app, request, &SURFACE).await?;
    let Some(model) = call.chat.model.take() else {
        let detail = "`model` is missing; name an agent";
        return Err(Problem::invalid(detail).with("path", "model"));
    };
    let with_usage = call.chat.wants_stream_usage();
    let named = model.clone();
    let format = |head: &_| CompletionWriter::new(named, head, with_usage);
    call.serve(app, &model, known, format).await
}

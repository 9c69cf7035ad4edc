//! Asking a person.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use statehold_core::command::Fenced;
use statehold_core::hold::{CallTarget, DecideBy};
use statehold_core::ids::{HoldId, RequestId};
use statehold_engine::kept::HoldBody;
use statehold_engine::policy::parse_decide_by;
use statehold_engine::{AskReply, Committed, NewAction, NewAsk};

use crate::app::{App, Asked, PathIds, Payload};
use crate::problem::{Code, Problem};
use crate::rest::requests::{Target, about, find_calls, new_items, target};
use crate::rest::{done, name};
use crate::wire::hold::{ActionIn, HoldIn, HoldOut};
use crate::wire::item::{ItemIn, ItemKindWire};
use crate::wire::{Raw, to_body};

/// Ask a person.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/holds", tag = "holds",
    params(("request_id" = String, Path)), request_body = HoldIn,
    responses((status = 201, body = HoldOut))
)]
pub(crate) async fn open(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<HoldIn>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = asked.call(&body.bytes);
    let mut wire = body.value;
    let by = Fenced {
        request,
        fence: wire.fence,
    };
    let Target {
        session,
        mut payloads,
    } = target(&app, &asked, by).await?;
    let places = find_calls(&app, session, request, &wire.items).await?;
    let action = wire.action.take();
    let args = action.as_ref().map(|action| action.args.clone());
    let action = action
        .map(|action| new_action(action, &wire.items))
        .transpose()?;
    let items = new_items(std::mem::take(&mut wire.items), &places, &mut payloads)?;
    let ask = NewAsk {
        kind: wire.kind.into(),
        title: wire.title,
        message: wire.message,
        action,
        response_schema: wire.response_schema,
        url: wire.url,
        reasons: wire.reasons,
        group_id: wire.group_id,
        allowed: wire.allowed.into_iter().map(Into::into).collect(),
        quorum: wire.quorum,
        expires_in_seconds: wire.expires_in_seconds,
        on_expiry: wire.on_expiry.map(Into::into),
        decide_by: wire.decide_by.as_deref().map(decide_by).transpose()?,
    };
    let reply: AskReply = Arc::new(opened);
    let written = (items, payloads);
    let mut made = app
        .engine
        .open_hold(session, &call, by, ask, written, reply)
        .await?;
    if let Some(args) = args {
        made.body = with_whole_args(made.body, &args);
    }
    Ok(done(StatusCode::CREATED, made, about(session, request)))
}

fn new_action(action: ActionIn, items: &[ItemIn]) -> Result<NewAction, Problem> {
    let call_id = action.call_id.as_deref();
    let recorded = call_id.and_then(|id| id.parse().ok());
    Ok(NewAction {
        tool: name(&action.tool, "action.tool")?,
        call: gated_call(items, call_id)
            .map(CallTarget::SameCommand)
            .or(recorded.map(CallTarget::Recorded)),
        args: action.args,
        args_schema: action.args_schema,
        call_id: action.call_id,
        effect: action.effect.map(Into::into),
        risk: action.risk.map(Into::into),
        idempotent: action.idempotent,
    })
}

/// The hold as its opener sees it: it wrote all of it.
fn opened(id: HoldId, words: &HoldBody, made: &Committed<'_>) -> Vec<u8> {
    HoldOut::of_commit(made, id, words.clone()).map_or_else(Vec::new, |out| to_body(&out))
}

/// The answer with all arguments instead of the preview: whoever opened the hold has just sent them.
/// What is kept of the answer has only the preview.
fn with_whole_args(body: Vec<u8>, args: &Raw) -> Vec<u8> {
    let answer: Result<serde_json::Value, _> = serde_json::from_slice(&body);
    let whole: Result<serde_json::Value, _> = serde_json::from_str(args.get());
    let (Ok(mut answer), Ok(whole)) = (answer, whole) else {
        return body;
    };
    if answer.pointer("/action/redactions").is_none() {
        return body;
    }
    answer["action"]["args"] = whole;
    to_body(&answer)
}

/// The gated call in the same body that an action means.
fn gated_call(items: &[ItemIn], call_id: Option<&str>) -> Option<usize> {
    let call_id = call_id?;
    items.iter().position(|item| {
        item.kind == ItemKindWire::ToolCall && item.call_id.as_deref() == Some(call_id)
    })
}

fn decide_by(text: &str) -> Result<DecideBy, Problem> {
    parse_decide_by(text).map_err(|_| {
        let detail = "`decide_by` is other, user or role:NAME";
        Problem::new(Code::HoldMalformed, detail).with("path", "decide_by")
    })
}

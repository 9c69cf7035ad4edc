//! Asking a person.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use statehold_core::command::{Command, Fenced};
use statehold_core::digest::{Digest, action_digest};
use statehold_core::hold::{CallTarget, DecideBy, HoldKind, HoldStatus, NewHold};
use statehold_core::ids::{HoldId, IdMint, RequestId};
use statehold_core::item::{ItemKind, NewCallMark, NewItem, Visibility};
use statehold_engine::{Committed, Payloads, Reply};

use super::parse_args;
use crate::app::{App, Asked, PathIds, Payload};
use crate::problem::{Code, Problem};
use crate::rest::requests::{Target, about, find_calls, new_items, target};
use crate::rest::{done, name};
use crate::wire::hold::{ActionBody, ActionIn, HoldBody, HoldIn, HoldOut};
use crate::wire::item::{ItemBody, ItemIn, ItemKindWire};
use crate::wire::{time, to_body};

/// The longest title and message of a hold, in bytes.
const TITLE_BYTES_MAX: usize = 256;
const MESSAGE_BYTES_MAX: usize = 16 * 1024;

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
    require_words(&wire)?;
    let places = find_calls(&app, session, request, &wire.items).await?;
    let gated = wire
        .action
        .as_ref()
        .and_then(|action| gated_call(&wire.items, action.call_id.as_deref()));
    let mut items = new_items(std::mem::take(&mut wire.items), &places, &mut payloads)?;
    let mut mint = IdMint::new(
        app.engine.now(),
        session.shard(),
        crate::rest::sessions::entropy()?,
    );
    let id = HoldId::from_uuid(mint.next_uuid());
    let asked_action = match wire.action.take() {
        Some(action) => Some(gate(id, action, gated, &mut items, &mut payloads)?),
        None => None,
    };
    let (target, digest, action) = match asked_action {
        Some(Gated {
            call,
            digest,
            action,
        }) => (Some(call), Some(digest), Some(action)),
        None => (None, None, None),
    };
    let effect = action.as_ref().and_then(|action| action.effect);
    let risk = action.as_ref().and_then(|action| action.risk);
    let (effect, risk) = (effect.map(Into::into), risk.map(Into::into));
    let words = HoldBody {
        title: wire.title,
        message: wire.message,
        action,
        response_schema: wire.response_schema,
        url: wire.url,
        reasons: wire.reasons,
    };
    let words = to_body(&words);
    let hold = NewHold {
        id,
        kind: wire.kind.into(),
        body: payloads.put(words.clone()),
        call: target,
        digest,
        allowed: wire.allowed.into_iter().map(Into::into).collect(),
        need: wire.quorum.unwrap_or(1),
        expires_in_ms: wire
            .expires_in_seconds
            .map(|seconds| seconds.saturating_mul(1_000)),
        on_expiry: wire.on_expiry.map(Into::into).unwrap_or_default(),
        decide_by: wire.decide_by.as_deref().map(decide_by).transpose()?,
        effect,
        risk,
        policy: None,
    };
    let command = Command::OpenHold { by, hold, items };
    let reply = opened_reply(id, words);
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    Ok(done(StatusCode::CREATED, made, about(session, request)))
}

/// An action with its digest, and the call that waits for it.
struct Gated {
    call: CallTarget,
    digest: Digest,
    action: ActionBody,
}

/// Binds an action to the call that waits: one of the same body, one that was recorded before, or one
/// that is added.
fn gate(
    hold: HoldId,
    action: ActionIn,
    gated: Option<usize>,
    items: &mut Vec<NewItem>,
    payloads: &mut Payloads,
) -> Result<Gated, Problem> {
    let tool = name(&action.tool, "action.tool")?;
    let args: serde_json::Value = parse_args(&action.args, "action.args")?;
    let digest = action_digest(hold, tool.as_str(), &args)
        .map_err(|error| Problem::invalid(format!("`action.args`: {error}")))?;
    let recorded = action.call_id.as_deref().and_then(|id| id.parse().ok());
    let call = match (gated, recorded) {
        (Some(at), _) => CallTarget::SameCommand(at),
        (None, Some(id)) => CallTarget::Recorded(id),
        (None, None) => CallTarget::SameCommand(items.len()),
    };
    if call == CallTarget::SameCommand(items.len()) {
        let body = ItemBody {
            name: Some(action.tool.clone()),
            call_id: action.call_id.clone(),
            arguments: Some(action.args.clone()),
            ..ItemBody::default()
        };
        items.push(NewItem {
            kind: ItemKind::ToolCall,
            visibility: Visibility::Hidden,
            role: None,
            body: payloads.put(to_body(&body)),
            attachments: Vec::new(),
            call: Some(NewCallMark::Call {
                gated: true,
                idempotent: action.idempotent,
            }),
        });
    }
    let action = ActionBody {
        tool: action.tool,
        args: action.args,
        args_schema: action.args_schema,
        call_id: action.call_id,
        effect: action.effect,
        risk: action.risk,
        idempotent: action.idempotent,
        digest: Some(digest.to_string()),
    };
    Ok(Gated {
        call,
        digest,
        action,
    })
}

/// The hold as its opener sees it: it wrote all of it.
fn opened_reply(id: HoldId, words: Vec<u8>) -> Reply {
    Arc::new(move |made: &Committed<'_>| {
        let content = &made.record.content;
        let Some(hold) = made.after.holds.get(&id) else {
            return Vec::new();
        };
        let words: HoldBody = serde_json::from_slice(&words).unwrap_or_default();
        let live = made.after.requests.get(&hold.request);
        let mut path = Vec::new();
        let mut task = made.after.tasks.get(&hold.task);
        let agent = task.map_or_else(String::new, |task| task.agent.to_string());
        while let Some(at) = task {
            path.push(at.id.to_string());
            let above = at.parent.map(|link| link.task);
            task = above.and_then(|above| made.after.tasks.get(&above));
        }
        path.reverse();
        let number = live.map_or(0, |live| live.number);
        to_body(&HoldOut {
            id: id.to_string(),
            alias: format!("R{number}.h{}", hold.number),
            kind: hold.kind,
            status: HoldStatus::Open,
            session_id: content.session.to_string(),
            task_id: hold.task.to_string(),
            request_id: hold.request.to_string(),
            task_path: path,
            agent,
            title: words.title,
            message: words.message,
            action: words.action,
            execution_key: hold.call.map(|call| call.to_string()),
            response_schema: words.response_schema,
            url: words.url,
            reasons: words.reasons,
            allowed: hold.allowed.iter().copied().collect(),
            quorum: hold.need,
            votes: Some(Vec::new()),
            expires_at: hold.deadline.map(time),
            on_expiry: hold.on_expiry,
            decision: None,
            created_at: time(content.at),
        })
    })
}

fn require_words(wire: &HoldIn) -> Result<(), Problem> {
    let wrong = |path: &str, what: &str| {
        Err(Problem::new(Code::HoldMalformed, format!("`{path}` {what}")).with("path", path))
    };
    if wire.title.is_empty() || wire.title.len() > TITLE_BYTES_MAX {
        return wrong("title", "is 1 to 256 bytes");
    }
    if wire
        .message
        .as_ref()
        .is_some_and(|text| text.len() > MESSAGE_BYTES_MAX)
    {
        return wrong("message", "has at most 16384 bytes");
    }
    let is_approval = HoldKind::from(wire.kind) == HoldKind::Approval;
    if is_approval != wire.action.is_some() {
        return wrong("action", "is needed for approvals, and only there");
    }
    Ok(())
}

/// The gated call in the same body that an action means.
fn gated_call(items: &[ItemIn], call_id: Option<&str>) -> Option<usize> {
    let call_id = call_id?;
    items.iter().position(|item| {
        item.kind == ItemKindWire::ToolCall && item.call_id.as_deref() == Some(call_id)
    })
}

fn decide_by(text: &str) -> Result<DecideBy, Problem> {
    match text {
        "other" => Ok(DecideBy::Other),
        "user" => Ok(DecideBy::User),
        _ => {
            if let Some(role) = text.strip_prefix("role:") {
                Ok(DecideBy::Role(name(role, "decide_by")?))
            } else {
                let detail = "`decide_by` is other, user or role:NAME";
                Err(Problem::new(Code::HoldMalformed, detail).with("path", "decide_by"))
            }
        }
    }
}

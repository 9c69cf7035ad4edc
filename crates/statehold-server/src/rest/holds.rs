//! Holds: open, list, read, decide. A GET never decides.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use statehold_core::command::{Command, Fenced};
use statehold_core::digest::{Digest, action_digest};
use statehold_core::hold::{
    CallTarget, DecideBy, DecisionKind, HoldKind, HoldStatus, NewDecision, NewHold,
};
use statehold_core::ids::{HoldId, IdMint, RequestId, SessionId};
use statehold_core::item::{ItemKind, NewCallMark, NewItem, Visibility};
use statehold_engine::{
    Call, Committed, EngineError, HoldDetail, HoldFilter, IdempotencyKey, Payloads, Reply,
};
use utoipa::IntoParams;

use super::requests::{Target, about, find_calls, new_items, target};
use super::{About, Cursor, PAGE_MAX, done, name, name_in_query, page_limit, shown};
use crate::app::{App, Asked, Params, PathIds, Payload};
use crate::problem::{Code, Problem};
use crate::wire::hold::{
    ActionBody, ActionIn, DecidedOut, DecisionBody, DecisionIn, HoldBody, HoldIn, HoldKindWire,
    HoldOut, HoldPage, ResumeIn, RiskWire,
};
use crate::wire::item::{ItemBody, ItemIn, ItemKindWire};
use crate::wire::schema::{HoldStatusFilter, NameText};
use crate::wire::{Raw, time, to_body};

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
        super::sessions::entropy()?,
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

fn parse_args(raw: &Raw, path: &str) -> Result<serde_json::Value, Problem> {
    serde_json::from_str(raw.get())
        .map_err(|error| Problem::invalid(format!("`{path}`: {error}")).with("path", path))
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

/// Which holds to list.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HoldParams {
    /// `open` (default), `decided`, or how it ended: `approved`, `edited`, `answered`, `rejected`,
    /// `expired`, `cancelled`.
    #[param(value_type = Option<HoldStatusFilter>)]
    status: Option<String>,
    /// Asked by this agent.
    #[param(value_type = Option<NameText>)]
    agent: Option<String>,
    /// Of this kind.
    #[param(value_type = Option<HoldKindWire>)]
    kind: Option<String>,
    /// With an action of this risk.
    #[param(value_type = Option<RiskWire>)]
    risk: Option<String>,
    /// Where the page before ended.
    cursor: Option<String>,
    /// How many, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// List holds: open ones oldest first, decided ones newest first.
#[utoipa::path(
    get, path = "/v1/holds", tag = "holds", params(HoldParams),
    responses((status = 200, body = HoldPage))
)]
pub(crate) async fn list(
    State(app): State<App>,
    asked: Asked,
    Params(mut params): Params<HoldParams>,
) -> Result<Response, Problem> {
    let limit = page_limit(params.limit.take(), PAGE_MAX)?;
    let begin = params.cursor.take();
    let filter_text = serde_json::to_string(&params).unwrap_or_default();
    let cursor = Cursor::of(&app, &asked.caller, "holds", &filter_text);
    let after = cursor.open(begin.as_deref())?;
    let bad = |what: &str| Problem::new(Code::BadQuery, what);
    let status: Option<HoldStatus> = match params.status.as_deref() {
        None | Some("open" | "decided") => None,
        Some(status) => Some(parse_word(status).ok_or_else(|| {
            bad("`status` is open, decided, approved, edited, answered, rejected, expired or cancelled")
        })?),
    };
    let kind: Option<HoldKind> = match params.kind.as_deref() {
        None => None,
        Some(kind) => Some(parse_word(kind).ok_or_else(|| {
            bad("`kind` is approval, question, form, link, credential or reconcile")
        })?),
    };
    let risk: Option<RiskWire> = match params.risk.as_deref() {
        None => None,
        Some(risk) => Some(parse_word(risk).ok_or_else(|| bad("`risk` is low, medium or high"))?),
    };
    let filter = HoldFilter {
        decided: status.is_some() || params.status.as_deref() == Some("decided"),
        status,
        agent: params
            .agent
            .as_deref()
            .map(|agent| name_in_query(agent, "agent"))
            .transpose()?,
        kind,
    };
    let page = app
        .engine
        .holds(&asked.caller, &filter, after, limit)
        .await?;
    let out = page.entries.iter().map(HoldOut::of);
    let fits = |hold: &HoldOut| {
        risk.is_none_or(|risk| hold.action.as_ref().and_then(|action| action.risk) == Some(risk))
    };
    let out = HoldPage {
        holds: out.filter(fits).collect(),
        next_cursor: page.next.map(|place| cursor.seal(place)),
    };
    Ok(shown(&out, &About::default()))
}

fn parse_word<T: for<'de> Deserialize<'de>>(word: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
}

/// Read a hold.
#[utoipa::path(
    get, path = "/v1/holds/{hold_id}", tag = "holds",
    params(("hold_id" = String, Path)),
    responses((status = 200, body = HoldOut))
)]
pub(crate) async fn read(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
) -> Result<Response, Problem> {
    let detail = app.engine.hold(&asked.caller, ids.id("hold_id")?).await?;
    let about = About {
        session: Some(detail.session.id.to_string()),
        task: Some(detail.hold.task.to_string()),
        request: Some(detail.hold.request.to_string()),
        ..About::default()
    };
    Ok(shown(&HoldOut::of(&detail), &about))
}

/// Decide a hold, once and for all.
#[utoipa::path(
    post, path = "/v1/holds/{hold_id}/decision", tag = "holds",
    params(("hold_id" = String, Path)), request_body = DecisionIn,
    responses((status = 200, body = DecidedOut))
)]
pub(crate) async fn decide(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<DecisionIn>,
) -> Result<Response, Problem> {
    let id: HoldId = ids.id("hold_id")?;
    let session = app.engine.session_of_hold(id).await?;
    make(&app, &asked, session, id, body.value).await
}

/// Decide the only hold that a request ever had, or the one that is named.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/resume", tag = "holds",
    params(("request_id" = String, Path)), request_body = ResumeIn,
    responses((status = 200, body = DecidedOut))
)]
pub(crate) async fn resume(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<ResumeIn>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let session = app.engine.session_of_request(request).await?;
    let (named, decision) = body.value.split();
    let holds = app.engine.holds_of(request).await?;
    let visible = visible_holds(&app, &asked, &holds).await;
    let chosen: Vec<&HoldDetail> = match (named, &decision.digest) {
        (Some(named), _) => visible
            .iter()
            .filter(|detail| detail.hold.id == named)
            .collect(),
        (None, Some(digest)) if visible.len() > 1 => {
            let is_it = |detail: &&HoldDetail| {
                detail.hold.digest.map(|digest| digest.to_string()).as_ref() == Some(digest)
            };
            visible.iter().filter(is_it).collect()
        }
        (None, _) => visible.iter().collect(),
    };
    match chosen.as_slice() {
        [one] => {
            let id = one.hold.id;
            make(&app, &asked, session, id, decision).await
        }
        [] => Err(Problem::not_found()),
        _ => {
            let holds: Vec<serde_json::Value> = visible
                .iter()
                .map(|detail| serde_json::to_value(HoldOut::of(detail)).unwrap_or_default())
                .collect();
            Err(Problem::new(
                Code::SeveralHolds,
                "the request has had several holds; say which one with `hold_id` or `digest`",
            )
            .with("holds", holds))
        }
    }
}

async fn visible_holds(app: &App, asked: &Asked, holds: &[HoldId]) -> Vec<HoldDetail> {
    let mut visible = Vec::new();
    for hold in holds {
        if let Ok(detail) = app.engine.hold(&asked.caller, *hold).await {
            visible.push(detail);
        }
    }
    visible
}

async fn make(
    app: &App,
    asked: &Asked,
    session: SessionId,
    id: HoldId,
    wire: DecisionIn,
) -> Result<Response, Problem> {
    let detail = app.engine.hold(&asked.caller, id).await?;
    let owner = app.engine.owner(session).await?;
    let mut payloads = app.engine.payloads_for(&owner.tenant, owner.user).await?;
    let kind: DecisionKind = wire.decision.into();
    let digest = match &wire.digest {
        None => None,
        Some(text) => {
            let hex = text.strip_prefix("sha256:").unwrap_or(text);
            let parsed: Result<Digest, _> = hex.parse();
            Some(parsed.map_err(|error| {
                Problem::invalid(format!("`digest`: {error}")).with("path", "digest")
            })?)
        }
    };
    let edited = match (&wire.args, kind) {
        (Some(args), DecisionKind::Edit) => Some(edited_digest(&detail, args)?),
        (Some(_), _) => {
            let detail = "`args` goes with `edit`";
            return Err(Problem::invalid(detail).with("path", "args"));
        }
        (None, _) => None,
    };
    let words = DecisionBody {
        args: wire.args,
        content: wire.content,
        comment: wire.comment,
        reason: wire.reason,
    };
    let words = to_body(&words);
    let has_words = words != b"{}";
    let fingerprint = [
        id.to_string().into_bytes(),
        format!("{kind:?}").into_bytes(),
        wire.digest.unwrap_or_default().into_bytes(),
        words.clone(),
    ];
    let parts: Vec<&[u8]> = fingerprint.iter().map(Vec::as_slice).collect();
    // Without a key of its own, the same decision by the same person is the same decision.
    let key = asked.key_text().map_or_else(
        || format!("decision {}", Digest::sha256(&fingerprint.concat())),
        str::to_owned,
    );
    let caller = &asked.caller;
    let named = IdempotencyKey::new(&caller.tenant, caller.principal, &key, &parts);
    let decision = NewDecision {
        key: named.key,
        fingerprint: named.fingerprint,
        kind,
        digest,
        edited,
        body: has_words.then(|| payloads.put(words)),
    };
    let command = Command::DecideHold { hold: id, decision };
    // The decision key is the hold's own: it outlives every idempotency key.
    let call = Call {
        caller: caller.clone(),
        key: None,
        if_revision: asked.if_revision,
    };
    let reply: Reply =
        Arc::new(move |made: &Committed<'_>| to_body(&DecidedOut::of_commit(made, id)));
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    let request = detail.hold.request;
    Ok(done(StatusCode::OK, made, about(session, request)))
}

/// The digest of the action with other arguments.
fn edited_digest(detail: &HoldDetail, args: &Raw) -> Result<Digest, Problem> {
    let words: HoldBody = detail
        .body
        .as_deref()
        .and_then(|body| serde_json::from_slice(body).ok())
        .unwrap_or_default();
    if !detail.sees_action {
        return Err(statehold_core::command::Rejection::MayNotDecide.into());
    }
    let Some(action) = words.action else {
        return Err(
            EngineError::Rejected(statehold_core::command::Rejection::EditImpossible).into(),
        );
    };
    let args = parse_args(args, "args")?;
    action_digest(detail.hold.id, &action.tool, &args)
        .map_err(|error| Problem::invalid(format!("`args`: {error}")).with("path", "args"))
}

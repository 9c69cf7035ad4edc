//! Decisions: each hold gets exactly one.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use statehold_core::command::{Command, Rejection};
use statehold_core::digest::{Digest, action_digest};
use statehold_core::hold::{DecisionKind, NewDecision};
use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_engine::{Call, Committed, EngineError, HoldDetail, IdempotencyKey, Reply};

use super::parse_args;
use crate::app::{App, Asked, PathIds, Payload};
use crate::problem::{Code, Problem};
use crate::rest::done;
use crate::rest::requests::about;
use crate::wire::hold::{DecidedOut, DecisionBody, DecisionIn, HoldBody, HoldOut, ResumeIn};
use crate::wire::{Raw, to_body};

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
    if let Err(why) = &detail.right {
        let why = why.clone();
        return Err(Rejection::MayNotDecide { why }.into());
    }
    let Some(action) = words.action else {
        return Err(EngineError::Rejected(Rejection::EditImpossible).into());
    };
    let args = parse_args(args, "args")?;
    action_digest(detail.hold.id, &action.tool, &args)
        .map_err(|error| Problem::invalid(format!("`args`: {error}")).with("path", "args"))
}

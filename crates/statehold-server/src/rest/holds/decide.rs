//! Decisions: each hold gets exactly one.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use statehold_core::command::Rejection;
use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, RequestId};
use statehold_engine::{Call, Committed, Done, EngineError, HoldDetail, NewAnswer, Reply};

use crate::app::{App, Asked, PathIds, Payload};
use crate::problem::{Code, Problem};
use crate::rest::done;
use crate::rest::requests::about;
use crate::wire::hold::{DecidedOut, DecisionIn, HoldOut, HoldRef, ResumeIn};
use crate::wire::to_body;

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
    make(&app, &asked, id, body.value).await
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
    app.engine.session_of_request(request).await?;
    let (named, decision) = body.value.split();
    let visible = app.engine.holds_of(&asked.caller, request).await?;
    if visible.is_empty() {
        // Before anything is said about the body: a foreign request answers like none.
        return Err(Problem::not_found());
    }
    let digest = parse_digest(decision.digest.as_deref())?;
    let is_meant = |detail: &&HoldDetail| match (named, digest) {
        (Some(named), _) => detail.hold.id == named,
        (None, Some(digest)) if visible.len() > 1 => detail.hold.digest == Some(digest),
        (None, _) => true,
    };
    let chosen: Vec<&HoldDetail> = visible.iter().filter(is_meant).collect();
    match chosen.as_slice() {
        [one] => {
            let id = one.hold.id;
            make(&app, &asked, id, decision).await
        }
        [] => Err(Problem::not_found()),
        _ => {
            let holds: Vec<serde_json::Value> = visible
                .iter()
                .map(|detail| serde_json::to_value(HoldRef::of(detail)).unwrap_or_default())
                .collect();
            Err(Problem::new(
                Code::SeveralHolds,
                "the request has had several holds; say which one with `hold_id` or `digest`",
            )
            .with("holds", holds))
        }
    }
}

fn parse_digest(text: Option<&str>) -> Result<Option<Digest>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let hex = text.strip_prefix("sha256:").unwrap_or(text);
    let parsed: Result<Digest, _> = hex.parse();
    let parsed = parsed
        .map_err(|error| Problem::invalid(format!("`digest`: {error}")).with("path", "digest"))?;
    Ok(Some(parsed))
}

async fn make(app: &App, asked: &Asked, id: HoldId, wire: DecisionIn) -> Result<Response, Problem> {
    let detail = app.engine.hold(&asked.caller, id).await?;
    let made = decide_as(app, asked, &detail, wire, asked.key_text()).await?;
    let about = about(detail.session.id, detail.hold.request);
    Ok(done(StatusCode::OK, made, about))
}

/// Decides a hold under a decision key, on whatever surface.
pub(crate) async fn decide_as(
    app: &App,
    asked: &Asked,
    detail: &HoldDetail,
    wire: DecisionIn,
    key: Option<&str>,
) -> Result<Done, Problem> {
    let id = detail.hold.id;
    let digest = parse_digest(wire.digest.as_deref())?;
    let answer = NewAnswer {
        kind: wire.decision.into(),
        digest,
        args: wire.args,
        content: wire.content,
        comment: wire.comment,
        reason: wire.reason,
    };
    let call = Call {
        caller: asked.caller.clone(),
        key: None,
        if_revision: asked.if_revision,
    };
    let reply: Reply =
        Arc::new(move |made: &Committed<'_>| to_body(&DecidedOut::of_commit(made, id)));
    let made = app
        .engine
        .decide_hold(&call, key, detail, answer, &reply)
        .await;
    match made {
        Ok(made) => Ok(made),
        Err(error) => Err(refusal(app, asked, id, error).await),
    }
}

/// Whoever comes too late is told what was decided, as far as they may see it.
async fn refusal(app: &App, asked: &Asked, id: HoldId, error: EngineError) -> Problem {
    let is_late = matches!(
        &error,
        EngineError::Rejected(Rejection::HoldDecided { .. } | Rejection::HoldExpired { .. })
    );
    let problem = Problem::from(error);
    if !is_late {
        return problem;
    }
    let decision = match app.engine.hold(&asked.caller, id).await {
        Ok(detail) => HoldOut::of(&detail).decision,
        Err(_) => None,
    };
    match decision.and_then(|decision| serde_json::to_value(decision).ok()) {
        Some(decision) => problem.with("decision", decision),
        None => problem,
    }
}

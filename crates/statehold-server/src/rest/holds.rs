//! Holds: open, list, read, decide. A GET never decides.

pub(crate) mod decide;
pub(crate) mod open;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use statehold_core::hold::{HoldKind, HoldStatus, Risk};
use statehold_engine::HoldFilter;
use utoipa::IntoParams;

use super::{About, Cursor, PAGE_MAX, name_in_query, page_limit, shown};
use crate::app::{App, Asked, Params, PathIds};
use crate::problem::{Code, Problem};
use crate::wire::hold::{HoldKindWire, HoldOut, HoldPage, RiskWire};
use crate::wire::schema::{HoldStatusFilter, NameText};

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
    let risk: Option<Risk> = match params.risk.as_deref() {
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

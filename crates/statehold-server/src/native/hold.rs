//! Holds: open, list, read, decide. A GET never decides.

pub(crate) mod decide;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use statehold_core::hold::{HoldKind, HoldStatus, Risk};
use statehold_core::time::Timestamp;
use statehold_engine::{HoldFilter, HoldOrder, HoldPlace};
use utoipa::IntoParams;

use super::{About, Cursor, PAGE_MAX, name_in_query, page_limit, shown};
use crate::http::call::{App, CallContext, Params, PathIds};
use crate::http::problem::{Code, Problem};
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_engine::api::hold::{HoldCountsView, HoldPage, HoldView};
use statehold_engine::api::schema::{HoldOrderWord, HoldStatusFilter};

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
    #[param(value_type = Option<Name>)]
    agent: Option<String>,
    /// Of this kind.
    #[param(value_type = Option<HoldKind>)]
    kind: Option<String>,
    /// With an action of this risk.
    #[param(value_type = Option<Risk>)]
    risk: Option<String>,
    /// In sessions of this user.
    user: Option<String>,
    /// In this session.
    #[param(value_type = Option<SessionId>)]
    session_id: Option<String>,
    /// In this group.
    #[param(max_length = 64)]
    group_id: Option<String>,
    /// `urgency` (default for open holds), `oldest` or `newest` (default for decided ones).
    #[param(value_type = Option<HoldOrderWord>)]
    order: Option<String>,
    /// Where the page before ended.
    cursor: Option<String>,
    /// How many, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// List holds: open ones by urgency, decided ones newest first.
#[utoipa::path(
    get, path = "/v1/holds", tag = "holds", params(HoldParams),
    responses((status = 200, body = HoldPage))
)]
pub(crate) async fn list(
    State(app): State<App>,
    asked: CallContext,
    Params(mut params): Params<HoldParams>,
) -> Result<Response, Problem> {
    let limit = page_limit(params.limit.take(), PAGE_MAX)?;
    let begin = params.cursor.take();
    let filter_text = serde_json::to_string(&params).unwrap_or_default();
    let cursor = Cursor::of(&app, &asked.caller, "holds", &filter_text);
    let after = cursor.open_bytes(begin.as_deref())?.map(place_of);
    let mut filter = filter_of(&params)?;
    if let Some(user) = &params.user {
        // Whoever is not known has no holds, just as whoever is out of reach.
        let known = app.engine.known_user(&asked.caller.tenant, user).await?;
        let Some(known) = known else {
            return Ok(shown(&HoldPage::default(), &About::default()));
        };
        filter.user = Some(known);
    }
    let page = app
        .engine
        .holds(&asked.caller, &filter, after, limit)
        .await?;
    let next = page
        .next
        .map(|place| cursor.seal_bytes(&place_bytes(place)));
    let out = HoldPage {
        holds: page.entries.iter().map(HoldView::of).collect(),
        next_cursor: next,
    };
    Ok(shown(&out, &About::default()))
}

fn filter_of(params: &HoldParams) -> Result<HoldFilter, Problem> {
    let bad = |what: &str| Problem::new(Code::BadQuery, what);
    let status: Option<HoldStatus> = match params.status.as_deref() {
        None | Some("open" | "decided") => None,
        Some(status) => Some(parse_word(status).ok_or_else(|| {
            bad("`status` is open, decided, approved, edited, answered, rejected, expired or cancelled")
        })?),
    };
    let decided = status.is_some() || params.status.as_deref() == Some("decided");
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
    let order = match params.order.as_deref() {
        Some("urgency") if decided => {
            return Err(bad("`order` of decided holds is newest or oldest"));
        }
        Some("oldest") => HoldOrder::Oldest,
        Some("newest") => HoldOrder::Newest,
        None if decided => HoldOrder::Newest,
        None | Some("urgency") => HoldOrder::Urgency,
        Some(_) => return Err(bad("`order` is urgency, oldest or newest")),
    };
    let is_group = |id: &String| (1..=64).contains(&id.len());
    if params.group_id.as_ref().is_some_and(|id| !is_group(id)) {
        return Err(bad("`group_id` is 1 to 64 bytes"));
    }
    let agent = params.agent.as_deref();
    let session = params.session_id.as_deref().map(str::parse).transpose();
    Ok(HoldFilter {
        decided,
        status,
        agent: agent
            .map(|agent| name_in_query(agent, "agent"))
            .transpose()?,
        kind,
        risk,
        user: None,
        session: session.map_err(|_| bad("`session_id` is the id of a session"))?,
        group: params.group_id.clone(),
        order,
    })
}

/// A place in the list as a cursor holds it.
fn place_bytes(place: HoldPlace) -> [u8; 17] {
    let mut bytes = [place.risk; 17];
    bytes[1..9].copy_from_slice(&place.deadline.as_micros().to_be_bytes());
    bytes[9..].copy_from_slice(&place.number.to_be_bytes());
    bytes
}

fn place_of(bytes: [u8; 17]) -> HoldPlace {
    let part = |from: usize| -> [u8; 8] {
        let bytes = &bytes[from..from + 8];
        bytes.try_into().expect("eight bytes are eight bytes")
    };
    HoldPlace {
        risk: bytes[0],
        deadline: Timestamp::from_micros(i64::from_be_bytes(part(1))),
        number: u64::from_be_bytes(part(9)),
    }
}

/// Count open holds.
#[utoipa::path(
    get, path = "/v1/holds/counts", tag = "holds",
    responses((status = 200, body = HoldCountsView))
)]
pub(crate) async fn counts(
    State(app): State<App>,
    asked: CallContext,
) -> Result<Response, Problem> {
    let counts = app.engine.hold_counts(&asked.caller).await?;
    Ok(shown(&HoldCountsView::of(&counts), &About::default()))
}

fn parse_word<T: for<'de> Deserialize<'de>>(word: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
}

/// Read a hold.
#[utoipa::path(
    get, path = "/v1/holds/{hold_id}", tag = "holds",
    params(("hold_id" = String, Path)),
    responses((status = 200, body = HoldView))
)]
pub(crate) async fn read(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let detail = app.engine.hold(&asked.caller, ids.id("hold_id")?).await?;
    let about = About {
        session: Some(detail.session.id.to_string()),
        task: Some(detail.hold.task.to_string()),
        request: Some(detail.hold.request.to_string()),
        ..About::default()
    };
    Ok(shown(&HoldView::of(&detail), &about))
}

//! The parts that all pages share: their frame, their headers, their style, and errors as pages.

use std::sync::LazyLock;

use askama::Template;
use axum::body::Body;
use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use serde::de::DeserializeOwned;
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use statehold_engine::api::json::Time;

use super::access::ConsoleCall;
use super::text::shown;
use crate::http::problem::{Code, Problem};

/// A page loads its style from this server, sends forms to it, and does nothing else: no script, no picture, no font.
const POLICY: &str = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const STYLE: &str = include_str!("console.css");
/// The name of the style changes with its content, so that browsers may keep it.
static STYLE_NAME: LazyLock<String> = LazyLock::new(|| {
    let digest = Digest::sha256(STYLE.as_bytes()).to_string();
    let hex = digest.rsplit(':').next().unwrap_or_default();
    format!("console-{}.css", &hex[..16.min(hex.len())])
});

/// The frame around a page.
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) style: &'static str,
    pub(super) version: &'static str,
    /// The viewer of the page. None before a login.
    pub(super) reader: Option<Reader>,
}

/// The viewer of a page.
pub(super) struct Reader {
    pub(super) name: String,
    pub(super) roles: String,
    /// Whether there is a login to end.
    pub(super) is_login: bool,
}

impl Frame {
    pub(super) fn new(title: &str, call: Option<&ConsoleCall>) -> Self {
        Self {
            title: shown(title),
            style: &STYLE_NAME,
            version: env!("CARGO_PKG_VERSION"),
            reader: call.map(Reader::of),
        }
    }
}

impl Reader {
    fn of(call: &ConsoleCall) -> Self {
        let caller = &call.context.caller;
        let roles = caller.roles.names().iter();
        let roles: Vec<&str> = roles
            .map(Name::as_str)
            .filter(|role| matches!(*role, "operator" | "admin"))
            .collect();
        Self {
            name: caller.principal.to_string(),
            roles: roles.join(", "),
            is_login: call.is_login,
        }
    }
}

/// A page, or the reason why it cannot be written.
pub(super) fn rendered(status: StatusCode, page: askama::Result<String>) -> Response {
    let (status, html) = match page {
        Ok(html) => (status, html),
        Err(error) => {
            tracing::error!(%error, "a page of the console cannot be written");
            (StatusCode::INTERNAL_SERVER_ERROR, String::new())
        }
    };
    let mut response = (status, Body::from(html)).into_response();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    protect(headers);
    response
}

/// The page of a call, in the memory that it took for its answer.
pub(super) fn whole(call: &ConsoleCall, page: askama::Result<String>) -> Response {
    if let Ok(html) = &page {
        call.context.slot.shrink_answer(html.len() as u64);
    }
    rendered(StatusCode::OK, page)
}

fn protect(headers: &mut HeaderMap) {
    let values = [
        ("content-security-policy", POLICY),
        // Without a referrer browsers would send `Origin: null` with forms.
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-robots-tag", "noindex"),
    ];
    for (name, value) in values {
        let name = HeaderName::from_static(name);
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Leads to another page. The address is one of ours and plain.
pub(super) fn moved(to: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    if let Ok(to) = HeaderValue::from_str(to) {
        headers.insert(header::LOCATION, to);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    protect(headers);
    response
}

#[derive(Template)]
#[template(path = "console/problem.html")]
struct ProblemPage {
    frame: Frame,
    status: u16,
    title: String,
    detail: String,
}

/// A problem as a page.
pub(super) fn refused(call: Option<&ConsoleCall>, problem: &Problem) -> Response {
    let detail = match problem.status {
        403 if problem.code == Code::Forbidden.text() => {
            "These pages are for keys with the role operator or admin.".to_owned()
        }
        404 => "There is no such object, or this key may not see it.".to_owned(),
        _ => sentence(&problem.detail),
    };
    let page = ProblemPage {
        frame: Frame::new(problem.title, call),
        status: problem.status,
        title: shown(problem.title),
        detail: shown(&detail),
    };
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    rendered(status, page.render())
}

/// A detail as a sentence of its own.
fn sentence(detail: &str) -> String {
    let mut chars = detail.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).chain(['.']).collect()
}

/// The query of a page. One that the console does not know is refused.
pub(super) fn query<T: DeserializeOwned>(query: Option<&str>) -> Result<T, Problem> {
    let bad = || {
        let detail = "the address of this page is not one that the console makes; begin at its list of sessions";
        Problem::new(Code::BadQuery, detail)
    };
    let uri: Uri = format!("/?{}", query.unwrap_or_default())
        .parse()
        .map_err(|_| bad())?;
    let Query(query) = Query::try_from_uri(&uri).map_err(|_| bad())?;
    Ok(query)
}

/// A time to the second.
pub(super) fn time(at: Time) -> String {
    let text = at.to_string();
    let text = text.split('.').next().unwrap_or(&text);
    text.replacen('T', " ", 1)
}

/// The style of all pages.
pub(super) async fn asset(Path(file): Path<String>) -> Response {
    if file != *STYLE_NAME {
        return refused(None, &Problem::not_found());
    }
    let mut response = Body::from(STYLE).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/css; charset=utf-8"),
    );
    let for_ever = HeaderValue::from_static("public, max-age=31536000, immutable");
    headers.insert(header::CACHE_CONTROL, for_ever);
    protect(headers);
    response
}

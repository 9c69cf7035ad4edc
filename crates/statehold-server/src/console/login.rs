//! Logging in with an API key, and out. The cookie holds a sealed login that ends by itself; the key is not in it.

use askama::Template;
use axum::body::to_bytes;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use http::{HeaderValue, StatusCode, Uri, header};
use serde::Deserialize;
use statehold_engine::KEY_PREFIX;
use statehold_engine::api::caller::page_login;

use super::access::{ConsoleCall, is_form, is_secure, require_own_page, set_cookie};
use super::page::{Frame, moved, refused, rendered};
use crate::http::call::{App, unauthenticated};
use crate::http::problem::{Code, Problem};

/// How long a login lasts: two hours.
const LOGIN_SECONDS: u64 = 2 * 60 * 60;
/// The longest form. A key is far shorter.
const FORM_BYTES_MAX: usize = 16 * 1024;
/// The longest address to go to after a login.
const NEXT_BYTES_MAX: usize = 4 * 1024;

#[derive(Template)]
#[template(path = "console/login.html")]
struct LoginPage<'a> {
    frame: Frame,
    next: &'a str,
    mistake: Option<&'a str>,
}

/// The form.
pub(super) fn form_page(status: u16, next: &str, mistake: Option<&str>) -> Response {
    let next = if leads_to_page(next) { next } else { "" };
    let frame = Frame::new("Log in", None);
    let page = LoginPage {
        frame,
        next,
        mistake,
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    rendered(status, page.render())
}

/// Shows the form, also to a reader with a login, who may want to use another key.
pub(super) async fn show() -> Response {
    form_page(200, "", None)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginForm {
    key: String,
    #[serde(default)]
    next: String,
}

/// Exchanges a key for a login.
pub(super) async fn enter(State(app): State<App>, request: Request) -> Response {
    match login(&app, request).await {
        Ok(response) => response,
        Err((problem, next)) => {
            let mistake = match problem.status {
                401 => "This key is unknown, revoked or expired.".to_owned(),
                403 if problem.code == Code::Forbidden.text() => {
                    "This key may not read traces. Use one with the role operator or admin."
                        .to_owned()
                }
                400 | 413 => {
                    "This is no form of the console. Paste a key that begins with shk_.".to_owned()
                }
                _ => return refused(None, &problem),
            };
            form_page(problem.status, &next, Some(&mistake))
        }
    }
}

async fn login(app: &App, request: Request) -> Result<Response, (Problem, String)> {
    let nowhere = |problem: Problem| (problem, String::new());
    let (parts, body) = request.into_parts();
    require_own_page(&parts.headers).map_err(nowhere)?;
    let is_secure = is_secure(&parts.headers).map_err(nowhere)?;
    let no_form = || {
        nowhere(Problem::new(
            Code::BadHeader,
            "this is not the form of the console",
        ))
    };
    if !is_form(&parts.headers) {
        return Err(no_form());
    }
    let body = tokio::time::timeout(app.options.body_timeout, to_bytes(body, FORM_BYTES_MAX));
    let body = body.await.ok().and_then(Result::ok).ok_or_else(no_form)?;
    let LoginForm { key, next } = parse(&body).ok_or_else(no_form)?;
    let fail = |problem: Problem| (problem, next.clone());
    let secret = key.trim();
    if !secret.starts_with(KEY_PREFIX) {
        return Err(fail(unauthenticated()));
    }
    let found = app.holder_of_key(&parts.extensions, secret).await;
    let (caller, _) = found.map_err(fail)?;
    let login = page_login(&app.engine, &caller, LOGIN_SECONDS);
    let login = login.map_err(|error| fail(error.into()))?;
    let to = if leads_to_page(&next) {
        &next
    } else {
        "/console/sessions"
    };
    let cookie = set_cookie(&app.sealer, Some(&login), (LOGIN_SECONDS, is_secure));
    Ok(with_cookie(moved(to), &cookie))
}

/// Reads a form as a query is read.
fn parse(body: &[u8]) -> Option<LoginForm> {
    let body = std::str::from_utf8(body).ok()?;
    let uri: Uri = format!("/?{body}").parse().ok()?;
    let Query(form) = Query::try_from_uri(&uri).ok()?;
    Some(form)
}

/// Ends the login of this browser.
pub(super) async fn leave(
    State(app): State<App>,
    call: Result<ConsoleCall, Response>,
    request: Request,
) -> Response {
    let headers = request.headers();
    let is_secure = match require_own_page(headers).and_then(|()| is_secure(headers)) {
        Ok(is_secure) => is_secure,
        Err(problem) => return refused(call.ok().as_ref(), &problem),
    };
    let cookie = set_cookie(&app.sealer, None, (0, is_secure));
    with_cookie(moved("/console/login"), &cookie)
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Whether a login may lead there: a page of the console, and no other place that looks like one.
fn leads_to_page(next: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/_-.~?&=%+:".contains(&byte);
    next.len() <= NEXT_BYTES_MAX
        && next.starts_with("/console/")
        && !next.contains("//")
        && !next.contains("..")
        && !next.to_ascii_lowercase().contains("%2e")
        && next.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_pages_of_the_console_only() {
        for page in [
            "/console/sessions",
            "/console/tasks/tsk_1?cursor=a-b_c&x=%20",
        ] {
            assert!(leads_to_page(page), "{page}");
        }
        for other in [
            "",
            "/",
            "/console",
            "//evil.example",
            "/console//evil.example",
            "https://evil.example/console/",
            "/console/../v1",
            "/console/\\evil",
            "/console/a b",
            "/console/\r\nset-cookie: a",
            "/console/é",
        ] {
            assert!(!leads_to_page(other), "{other}");
        }
    }
}

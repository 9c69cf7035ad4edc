//! The reader of a page: the login in the cookie, a key in a header as for every other call, or the developer of a
//! development server.

use axum::extract::FromRequestParts;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, header};
use statehold_engine::Caller;
use statehold_engine::api::caller::{KeyWatch, PageLogin, with_page_login};
use statehold_engine::api::trace::require_reader;

use super::login::form_page;
use super::page::refused;
use crate::http::call::{App, CallContext, text};
use crate::http::problem::{Code, Problem};
use crate::http::seal::Sealer;

/// The cookie that holds a login.
const COOKIE: &str = "statehold_console";
/// Purpose of the seal.
const PURPOSE: &str = "console login";

/// A call for a page. Its caller may read traces.
pub(super) struct ConsoleCall {
    pub(super) context: CallContext,
    /// Whether a login in the cookie says who it is: then there is a way out.
    pub(super) is_login: bool,
}

impl FromRequestParts<App> for ConsoleCall {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let wanted = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let wanted = wanted.to_owned();
        match read(parts, app).await {
            Ok(call) => Ok(call),
            Err(problem) if problem.status == 401 => Err(form_page(401, &wanted, None)),
            Err(problem) => Err(refused(None, &problem)),
        }
    }
}

async fn read(parts: &mut Parts, app: &App) -> Result<ConsoleCall, Problem> {
    let names_key = ["authorization", "api-key"]
        .into_iter()
        .any(|name| parts.headers.contains_key(name));
    let login = match cookie(&parts.headers)? {
        Some(sealed) if !names_key => holder_of_login(app, sealed).await?,
        Some(_) | None => None,
    };
    let is_login = login.is_some();
    let found = match login {
        Some(found) => found,
        None => app.authenticate(parts).await?,
    };
    let context = CallContext::begin(parts, app, found).await?;
    // The right comes before any read, so that a refusal does not tell which sessions exist.
    require_reader(&context.caller)?;
    Ok(ConsoleCall { context, is_login })
}

async fn holder_of_login(app: &App, sealed: &str) -> Result<Option<(Caller, KeyWatch)>, Problem> {
    let Ok(content) = app.sealer.open(PURPOSE, &[], sealed) else {
        return Ok(None);
    };
    let Ok(login) = serde_json::from_slice::<PageLogin>(&content) else {
        return Ok(None);
    };
    Ok(with_page_login(&app.engine, &login).await?)
}

/// The value of the cookie. Browsers send the cookies of all ports of a host in one header.
fn cookie(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(cookies) = text(headers, "cookie")? else {
        return Ok(None);
    };
    let mut found = cookies.split(';').filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == COOKIE).then_some(value)
    });
    let value = found.next();
    if found.next().is_some() {
        let detail = "the cookie of the console is there twice; delete the cookies of this host";
        return Err(Problem::new(Code::BadHeader, detail));
    }
    Ok(value)
}

/// `Set-Cookie` for a login, or for its end.
pub(super) fn set_cookie(
    sealer: &Sealer,
    login: Option<&PageLogin>,
    (seconds, is_secure): (u64, bool),
) -> String {
    let (value, seconds) = match login {
        Some(login) => {
            let content = serde_json::to_vec(login).expect("a login is plain JSON");
            (sealer.seal(PURPOSE, &[], &content), seconds)
        }
        None => (String::new(), 0),
    };
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/console; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// Whether the browser reached the server over TLS, which a proxy before it speaks.
pub(super) fn is_secure(headers: &HeaderMap) -> Result<bool, Problem> {
    Ok(text(headers, "x-forwarded-proto")? == Some("https"))
}

/// Refuses a form that was sent from the page of another site.
pub(super) fn require_own_page(headers: &HeaderMap) -> Result<(), Problem> {
    crate::http::call::require_own_origin(headers)?;
    let is_foreign = match text(headers, "sec-fetch-site")? {
        None | Some("same-origin" | "none") => false,
        Some(_) => true,
    };
    if is_foreign {
        let detail =
            "a page of another site sent this form; open the console and send it from there";
        return Err(Problem::new(Code::ForeignOrigin, detail));
    }
    Ok(())
}

/// Whether a form came as browsers send it.
pub(super) fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

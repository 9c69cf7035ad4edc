//! Callers whom DIAL Core vouches for. Core calls an application with a key that it made for one
//! request, which is no key of this server. Core says whose request it is; the call is then made
//! under the configured API key, for that user.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{Extensions, HeaderMap, header};
use statehold_engine::Credential;

use crate::dial;
use crate::http::call::{App, is_own_key, text, unauthenticated};
use crate::http::core_lookups;
use crate::http::problem::Problem;

/// The user of a call whom DIAL Core vouches for.
#[derive(Debug, Clone)]
pub(crate) struct DialUser(pub(crate) String);

/// The token of the user that came beside the key of a call: the whole value of `Authorization`.
#[derive(Debug, Clone)]
pub(crate) struct UserToken(pub(crate) Credential);

/// Finds out who calls the surface of DIAL: asks DIAL Core about keys that are not of this server,
/// if one is configured.
pub(crate) async fn identify(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if !dial::is_dial(&request) {
        return next.run(request).await;
    }
    let headers = request.headers_mut();
    if headers.contains_key(API_KEY) {
        // The key says who calls. The token of the user beside it is for applications that are
        // called with it.
        let token = headers.remove(header::AUTHORIZATION);
        // A key of this server is for this server alone.
        let token = token
            .as_ref()
            .and_then(|token| token.to_str().ok())
            .filter(|token| !is_own_key(token))
            .and_then(|token| Credential::new(token.to_owned()));
        if let Some(token) = token {
            request.extensions_mut().insert(UserToken(token));
        }
    } else if app.options.keys_required && !headers.contains_key(header::AUTHORIZATION) {
        return dial::errors::key_missing();
    }
    let extensions = request.extensions().clone();
    match user_of(&app, request.headers(), &extensions).await {
        Ok(None) => {}
        Ok(Some(user)) => {
            // The key of the request says who the user is, and goes on to agents; nothing else
            // does.
            request.headers_mut().remove("x-statehold-user");
            request.extensions_mut().insert(user);
        }
        Err(problem) => return problem.into_response(),
    }
    next.run(request).await
}

const API_KEY: &str = "api-key";

/// The user whose request Core says it is. None for keys of this server, and without a Core.
async fn user_of(
    app: &App,
    headers: &HeaderMap,
    connection: &Extensions,
) -> Result<Option<DialUser>, Problem> {
    let Some(core) = &app.options.dial_core else {
        return Ok(None);
    };
    let Some((name, secret)) = foreign_credential(headers)? else {
        return Ok(None);
    };
    // Core's calls share one address with all who reach this server through the same proxy, so unknown keys from there
    // refuse nobody before Core is asked. The line for these questions bounds them.
    let secret = Credential::new(secret.to_owned()).ok_or_else(unauthenticated)?;
    let asked = app
        .core_lookups
        .ask(connection, core.user_of(name, &secret));
    let user = asked.await?.map_err(|error| {
        tracing::warn!(%error, "a caller of DIAL cannot be authenticated");
        core_lookups::unavailable()
    })?;
    let Some(user) = user else {
        app.shares.count_stranger(connection)?;
        return Err(unauthenticated());
    };
    Ok(Some(DialUser(user)))
}

/// The credential of a call that is no key of this server, with the header that it came in. The key
/// of a request counts before the token of its user.
fn foreign_credential(headers: &HeaderMap) -> Result<Option<(&'static str, &str)>, Problem> {
    let found = match text(headers, API_KEY)? {
        Some(key) => Some((API_KEY, key)),
        None => text(headers, "authorization")?.map(|token| ("authorization", token)),
    };
    Ok(found.filter(|(_, value)| !value.is_empty() && !is_own_key(value)))
}

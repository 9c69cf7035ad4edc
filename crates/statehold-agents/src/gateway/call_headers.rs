//! Headers of calls to agents: ids of the calling request, and ids that the agent returns.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use statehold_engine::leased::RequestRef;
use statehold_engine::trace;

const SESSION: HeaderName = HeaderName::from_static("x-statehold-session");
const TASK: HeaderName = HeaderName::from_static("x-statehold-task");
const REQUEST: HeaderName = HeaderName::from_static("x-statehold-request");
const CONVERSATION: HeaderName = HeaderName::from_static("x-conversation-id");
const USER: HeaderName = HeaderName::from_static("x-statehold-user");
const IDEMPOTENCY: HeaderName = HeaderName::from_static("idempotency-key");
/// Longest id accepted from another service.
const ID_BYTES_MAX: usize = 512;

/// Which session id a call sends.
#[derive(Debug, Clone, Copy)]
pub(super) enum SessionHeader<'a> {
    /// The local one, for the agent's log.
    Local,
    /// The agent's own. None asks for a new one.
    Remote(Option<&'a str>),
    /// No session id: the call is stateless.
    Absent,
}

pub(super) type CallHeaders = Vec<(HeaderName, HeaderValue)>;

/// Headers with the ids of the calling request.
pub(super) fn origin_headers(request_ref: RequestRef) -> CallHeaders {
    let RequestRef {
        session,
        task,
        request,
        ..
    } = request_ref;
    let headers = [
        ("x-statehold-origin-session", session.to_string()),
        ("x-statehold-origin-task", task.to_string()),
        ("x-statehold-origin-request", request.to_string()),
        ("traceparent", traceparent(request_ref)),
    ];
    let headers =
        headers.map(|(name, value)| (HeaderName::from_static(name), header_value(&value)));
    headers.into()
}

/// W3C trace context: the turn is the parent span. Without traces, the session is the trace.
pub(crate) fn traceparent(request_ref: RequestRef) -> String {
    let context = trace::current().unwrap_or_else(|| trace::turn_context(request_ref));
    context.header()
}

/// Headers of a chat call. A retry of the n-th call of a request has the same idempotency key, unless
/// the agent lost its session meanwhile. A session that the agent creates belongs to the local user's
/// pseudonym.
pub(super) fn for_chat(
    request_ref: RequestRef,
    session: SessionHeader<'_>,
    user: &str,
    call: usize,
) -> CallHeaders {
    let mut headers = origin_headers(request_ref);
    let which = match session {
        SessionHeader::Local | SessionHeader::Absent => "",
        SessionHeader::Remote(Some(_)) => "-known",
        SessionHeader::Remote(None) => "-new",
    };
    headers.push(idempotency_key(request_ref, call, which));
    match session {
        SessionHeader::Local => {
            headers.push((SESSION, header_value(&request_ref.session.to_string())));
            headers.push((TASK, header_value(&request_ref.task.to_string())));
            headers.push((REQUEST, header_value(&request_ref.request.to_string())));
        }
        SessionHeader::Remote(Some(session)) => headers.push((SESSION, header_value(session))),
        SessionHeader::Remote(None) => {
            headers.push((SESSION, HeaderValue::from_static("new")));
            headers.push((USER, header_value(user)));
        }
        SessionHeader::Absent => {}
    }
    headers
}

/// Removes the user header. Returns whether it was present. Some keys may not act for users on the
/// remote server: a key that may decide holds there may not.
pub(super) fn drop_user(headers: &mut CallHeaders) -> bool {
    let before = headers.len();
    headers.retain(|(name, _)| *name != USER);
    headers.len() < before
}

/// Idempotency key of a call, the same for all its retries.
pub(super) fn idempotency_key(
    request_ref: RequestRef,
    step: usize,
    what: &str,
) -> (HeaderName, HeaderValue) {
    let key = format!("{}-{step}{what}", request_ref.request);
    (IDEMPOTENCY, header_value(&key))
}

/// Ids that the agent returned.
pub(super) fn returned_ids(headers: &HeaderMap) -> BTreeMap<String, String> {
    let named = [SESSION, TASK, REQUEST, CONVERSATION];
    let ids = named.into_iter().filter_map(|name| {
        let value = headers.get(&name)?.to_str().ok()?;
        let fits = !value.is_empty() && value.len() <= ID_BYTES_MAX;
        fits.then(|| (name.to_string(), value.to_owned()))
    });
    ids.collect()
}

/// The session that the agent replied in.
pub(super) fn session_of(ids: &BTreeMap<String, String>) -> Option<&str> {
    ids.get(SESSION.as_str()).map(String::as_str)
}

/// Our ids are plain ASCII. Ids of agents came from a header, so they fit into one.
fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

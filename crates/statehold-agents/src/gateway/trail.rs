//! Who asks, told to the agent that is asked, and who answered, kept with its answer.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::runner::Place;

const SESSION: HeaderName = HeaderName::from_static("x-statehold-session");
const TASK: HeaderName = HeaderName::from_static("x-statehold-task");
const REQUEST: HeaderName = HeaderName::from_static("x-statehold-request");
const CONVERSATION: HeaderName = HeaderName::from_static("x-conversation-id");
const USER: HeaderName = HeaderName::from_static("x-statehold-user");
const IDEMPOTENCY: HeaderName = HeaderName::from_static("idempotency-key");
/// The longest id that is taken from somebody else.
const ID_BYTES_MAX: usize = 512;

/// Whose session the agent is told.
#[derive(Debug, Clone, Copy)]
pub(super) enum SessionTold<'a> {
    /// Ours, so that it can be found in its log.
    Ours,
    /// Its own. None asks for a new one.
    Its(Option<&'a str>),
    /// None: it keeps nothing for this call.
    Nothing,
}

pub(super) type Headers = Vec<(HeaderName, HeaderValue)>;

/// Where a call comes from.
pub(super) fn origin(place: Place) -> Headers {
    let Place {
        session,
        task,
        request,
        ..
    } = place;
    let told = [
        ("x-statehold-origin-session", session.to_string()),
        ("x-statehold-origin-task", task.to_string()),
        ("x-statehold-origin-request", request.to_string()),
        ("traceparent", traceparent(place)),
    ];
    let told = told.map(|(name, value)| (HeaderName::from_static(name), plain(&value)));
    told.into()
}

/// A call as traces of others know it: the session is the trace, the request the span that it is from.
pub(crate) fn traceparent(place: Place) -> String {
    let trace = place.session.as_uuid().simple();
    let (_, span) = place.request.as_uuid().as_u64_pair();
    format!("00-{trace}-{span:016x}-01")
}

/// The headers of a chat call. The n-th call of a request that is made again is the same call, unless it
/// is made elsewhere because the agent lost its session. A session that the agent makes is one of the
/// user here, under a name that tells nobody who that is.
pub(super) fn of_chat(place: Place, told: SessionTold<'_>, user: &str, call: usize) -> Headers {
    let mut headers = origin(place);
    let which = match told {
        SessionTold::Ours | SessionTold::Nothing => "",
        SessionTold::Its(Some(_)) => "-known",
        SessionTold::Its(None) => "-new",
    };
    headers.push(idempotency(place, call, which));
    match told {
        SessionTold::Ours => {
            headers.push((SESSION, plain(&place.session.to_string())));
            headers.push((TASK, plain(&place.task.to_string())));
            headers.push((REQUEST, plain(&place.request.to_string())));
        }
        SessionTold::Its(Some(session)) => headers.push((SESSION, plain(session))),
        SessionTold::Its(None) => {
            headers.push((SESSION, HeaderValue::from_static("new")));
            headers.push((USER, plain(user)));
        }
        SessionTold::Nothing => {}
    }
    headers
}

/// Leaves out who the user is, if it was to be told. Not every key may speak for users where the agent is:
/// one that may also decide there may not.
pub(super) fn drop_user(headers: &mut Headers) -> bool {
    let told = headers.len();
    headers.retain(|(name, _)| *name != USER);
    headers.len() < told
}

/// The key under which a service may tell that a call is made again.
pub(super) fn idempotency(place: Place, step: usize, what: &str) -> (HeaderName, HeaderValue) {
    let key = format!("{}-{step}{what}", place.request);
    (IDEMPOTENCY, plain(&key))
}

/// What an agent calls its own side of a call.
pub(super) fn returned(headers: &HeaderMap) -> BTreeMap<String, String> {
    let named = [SESSION, TASK, REQUEST, CONVERSATION];
    let ids = named.into_iter().filter_map(|name| {
        let value = headers.get(&name)?.to_str().ok()?;
        let fits = !value.is_empty() && value.len() <= ID_BYTES_MAX;
        fits.then(|| (name.to_string(), value.to_owned()))
    });
    ids.collect()
}

/// The session that an agent says it answered in.
pub(super) fn session_of(ids: &BTreeMap<String, String>) -> Option<&str> {
    ids.get(SESSION.as_str()).map(String::as_str)
}

/// Ids of ours are plain; those of others came in a header and so fit into one.
fn plain(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

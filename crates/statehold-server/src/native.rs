//! The native API, one file per noun: its handlers and its routes. A handler parses, calls one use case
//! of the engine, and converts.

pub(crate) mod agent;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod chat;
pub(crate) mod dev;
pub(crate) mod feed;
pub(crate) mod hold;
pub(crate) mod key;
pub(crate) mod key_ring;
pub(crate) mod operations;
pub(crate) mod request;
pub(crate) mod resume_address;
pub(crate) mod session;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod user;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use statehold_core::digest::Digest;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::limits::EXACT_INTEGER_MAX;
use statehold_core::name::Name;
use statehold_engine::api::json::to_body;
use statehold_engine::api::request::RequestView;
use statehold_engine::api::session::LONG_PAGE_BYTES;
use statehold_engine::{EngineError, Receipt};

use crate::http::call::CallContext;
use crate::http::problem::{Code, Problem};
use crate::http::seal::Sealer;

/// Default and maximum number of entries on a page.
const PAGE_DEFAULT: usize = 50;
const PAGE_MAX: usize = 200;

/// The answer of a handler.
pub(crate) type Answer = Result<Response, Problem>;

/// The headers of an answer: revision, session, task, request, and whether it is a replay.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct AnswerHeaders {
    pub(crate) revision: Option<u64>,
    pub(crate) session: Option<SessionId>,
    pub(crate) task: Option<TaskId>,
    pub(crate) request: Option<RequestId>,
    pub(crate) replayed: bool,
}

impl AnswerHeaders {
    /// Headers of an answer about a session.
    pub(crate) fn session(session: SessionId) -> Self {
        Self {
            session: Some(session),
            ..Self::default()
        }
    }

    /// Headers of an answer about a part of a request, such as its items or lease.
    pub(crate) fn in_request(session: SessionId, request: RequestId) -> Self {
        Self {
            request: Some(request),
            ..Self::session(session)
        }
    }

    /// Headers of an answer that shows a request.
    pub(crate) fn request(view: &RequestView) -> Self {
        Self::in_request(view.session_id, view.id).task(view.task_id)
    }

    /// Adds the task.
    pub(crate) fn task(self, task: TaskId) -> Self {
        Self {
            task: Some(task),
            ..self
        }
    }

    /// Adds the revision at which the answer was read.
    pub(crate) fn at(self, revision: u64) -> Self {
        Self {
            revision: Some(revision),
            ..self
        }
    }

    /// Writes the headers, and forbids to cache the answer.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let values = [
            ("etag", self.revision.map(|at| format!("\"{at}\""))),
            ("x-statehold-session", self.session.map(|id| id.to_string())),
            ("x-statehold-task", self.task.map(|id| id.to_string())),
            ("x-statehold-request", self.request.map(|id| id.to_string())),
            (
                "idempotency-replayed",
                self.replayed.then(|| "true".to_owned()),
            ),
        ];
        for (name, value) in values {
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                headers.insert(name, value);
            }
        }
    }
}

/// The answer to a use case that committed. Retries with the same idempotency key get the same bytes.
pub(crate) fn committed<V>(
    status: StatusCode,
    receipt: Receipt<V>,
    headers: AnswerHeaders,
) -> Response {
    let headers = AnswerHeaders {
        replayed: receipt.replayed,
        ..headers.at(receipt.revision)
    };
    answer(status, receipt.body, headers)
}

/// A JSON answer with its headers; an empty body has no media type.
pub(crate) fn answer(status: StatusCode, body: Vec<u8>, values: AnswerHeaders) -> Response {
    let is_json = !body.is_empty();
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    if is_json {
        let kind = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, kind);
    } else {
        headers.remove(header::CONTENT_TYPE);
    }
    values.write(headers);
    response
}

/// The answer to a read, without headers of its own.
pub(crate) fn plain<T: Serialize>(value: &T) -> Response {
    shown(value, AnswerHeaders::default())
}

/// The answer to a read of a page with so many bytes of texts. A long one is written beside the threads that serve
/// calls.
pub(crate) async fn plain_page<T: Serialize + Send + 'static>(page: T, bytes: usize) -> Answer {
    if bytes <= LONG_PAGE_BYTES {
        return Ok(plain(&page));
    }
    let body = tokio::task::spawn_blocking(move || to_body(&page)).await;
    let body = body.map_err(|_| Problem::from(EngineError::Stopping))?;
    Ok(answer(StatusCode::OK, body, AnswerHeaders::default()))
}

/// The answer to a call that leaves nothing to show.
pub(crate) fn no_content() -> Response {
    answer(StatusCode::NO_CONTENT, Vec::new(), AnswerHeaders::default())
}

/// The answer to a read.
pub(crate) fn shown<T: Serialize>(value: &T, headers: AnswerHeaders) -> Response {
    answer(StatusCode::OK, to_body(value), headers)
}

/// A name from a query.
pub(crate) fn name_in_query(text: &str, path: &str) -> Result<Name, Problem> {
    text.parse()
        .map_err(|error| Problem::new(Code::BadQuery, format!("`{path}`: {error}")))
}

/// A word of a list in a query; `words` says which there are.
pub(crate) fn word_in_query<T: DeserializeOwned>(
    word: Option<&str>,
    words: &str,
) -> Result<Option<T>, Problem> {
    let Some(word) = word else { return Ok(None) };
    let parsed = serde_json::from_value(Value::from(word));
    parsed
        .map(Some)
        .map_err(|_| Problem::new(Code::BadQuery, words))
}

/// The page size that the caller asked for, within bounds.
pub(crate) fn page_limit(asked: Option<usize>, max: usize) -> Result<usize, Problem> {
    match asked {
        None => Ok(PAGE_DEFAULT.min(max)),
        Some(asked) if (1..=max).contains(&asked) => Ok(asked),
        Some(_) => {
            let detail = format!("`limit` is 1 to {max}");
            Err(Problem::new(Code::BadQuery, detail))
        }
    }
}

/// A revision in a query. Revisions stay below 2^53, so that every JSON reader holds them exactly.
pub(crate) fn revision(asked: Option<u64>, name: &str) -> Result<Option<u64>, Problem> {
    match asked {
        Some(asked) if asked > EXACT_INTEGER_MAX => {
            let detail = format!("`{name}` is a revision: at most {EXACT_INTEGER_MAX}");
            Err(Problem::new(Code::BadQuery, detail))
        }
        _ => Ok(asked),
    }
}

/// Seals and opens page cursors for one caller, one list and one filter.
pub(crate) struct Cursor<'a> {
    sealer: &'a Sealer,
    list: &'static str,
    bound_to: [String; 3],
}

impl<'a> Cursor<'a> {
    pub(crate) fn of(context: &'a CallContext, list: &'static str, filter: &str) -> Self {
        let caller = &context.caller;
        Self {
            sealer: &context.app.sealer,
            list,
            bound_to: [
                caller.tenant.to_string(),
                caller.principal.to_string(),
                Digest::sha256(filter.as_bytes()).to_string(),
            ],
        }
    }

    pub(crate) fn seal(&self, place: impl Serialize) -> String {
        let bound_to = self.bound_to.each_ref().map(String::as_str);
        self.sealer.seal(self.list, &bound_to, &to_body(&place))
    }

    pub(crate) fn open<T: DeserializeOwned>(
        &self,
        cursor: Option<&str>,
    ) -> Result<Option<T>, Problem> {
        let Some(cursor) = cursor else {
            return Ok(None);
        };
        let bound_to = self.bound_to.each_ref().map(String::as_str);
        let place = self.sealer.open(self.list, &bound_to, cursor).ok();
        let place = place.and_then(|place| serde_json::from_slice(&place).ok());
        place.map(Some).ok_or_else(|| {
            Problem::new(
                Code::BadCursor,
                "the cursor was given to another caller or for another filter; begin without one",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_a_body_has_no_media_type() {
        let kind_of = |status, body: &[u8]| {
            let response = answer(status, body.to_vec(), AnswerHeaders::default());
            response.headers().get(header::CONTENT_TYPE).cloned()
        };
        assert_eq!(kind_of(StatusCode::NO_CONTENT, b""), None);
        let json = HeaderValue::from_static("application/json");
        assert_eq!(kind_of(StatusCode::OK, b"{}"), Some(json));
    }
}

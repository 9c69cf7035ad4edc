//! Problems in the forms of errors that clients of chat completions expect: those of OpenAI and of
//! DIAL.

use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Map, Value};
use statehold_engine::api::turn::DeliveryReceipt;

use crate::chat::forbid_retry;
use crate::http::delivery::whole;
use crate::http::problem::{Code, Problem};
use crate::http::turn_failure::agent_code;

/// The parts of a problem that every form has in a place of its own.
pub(crate) struct ErrorParts {
    /// The error, and the next step.
    pub(crate) message: String,
    /// The parameter with the error.
    pub(crate) param: Option<String>,
    /// Further fields, without those that have another meaning in the form.
    pub(crate) more: Map<String, Value>,
}

impl ErrorParts {
    pub(crate) fn of(problem: &Problem, own_members: &[&str]) -> Self {
        let mut more = (*problem.more).clone();
        let param = more.remove("path");
        let param = param.and_then(|path| path.as_str().map(str::to_owned));
        more.retain(|name, _| !own_members.contains(&name.as_str()));
        Self {
            message: problem.detail.clone(),
            param,
            more,
        }
    }
}

/// Translates the problem of a response, if it has one that is not translated yet. The receipt is
/// confirmed when the error has been delivered. `form` gives the status and the body.
pub(crate) fn translate_problem(
    mut response: Response,
    receipt: Option<DeliveryReceipt>,
    form: impl FnOnce(&Problem) -> (u16, Vec<u8>),
) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else {
        return response;
    };
    let (status, body) = form(&problem);
    let status = StatusCode::from_u16(status);
    *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    forbids_retry(&problem, headers);
    *response.body_mut() = whole(body, receipt);
    response
}

/// Tells clients not to repeat the call by themselves, if that is of no use: the turn has ended and
/// is recorded, or the same call would conflict again. A person decides what to do. A turn that a
/// limit stopped goes on.
fn forbids_retry(problem: &Problem, headers: &mut HeaderMap) {
    let is_limited = problem.status == 429;
    if is_end_of_turn(problem) && !is_limited || problem.status == 409 {
        forbid_retry(headers);
    }
}

/// Whether a problem is the end of a turn.
fn is_end_of_turn(problem: &Problem) -> bool {
    let code = problem.code;
    let own = [Code::RequestFailed, Code::RequestCancelled];
    own.iter().any(|own| own.text() == code) || agent_code(code).is_some()
}

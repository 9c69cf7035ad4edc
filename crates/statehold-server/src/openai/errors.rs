//! Errors in the form that OpenAI's clients expect.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use statehold_engine::api::json::to_body;
use statehold_engine::api::schema::NullableText;
use statehold_engine::api::turn::DeliveryReceipt;
use utoipa::ToSchema;

use crate::http::error_form::{ErrorParts, translate_problem};
use crate::http::problem::{Code, Problem};

/// APIs of OpenAI that this server does not have.
const NOT_SERVED: [&str; 8] = [
    "audio",
    "batches",
    "completions",
    "embeddings",
    "files",
    "images",
    "moderations",
    "responses",
];

/// An error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatError)]
pub(crate) struct ErrorOut {
    error: ErrorBody,
}

/// The error of a call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatErrorBody)]
struct ErrorBody {
    /// The error, and the next step, for people.
    message: String,
    /// The kind of error, as OpenAI's clients know it.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The error code, for programs: the codes of the native API.
    code: &'static str,
    /// The parameter with the error.
    #[schema(value_type = NullableText)]
    param: Option<String>,
    /// Further fields, as the page of the code lists them.
    #[serde(flatten)]
    #[schema(ignore)]
    more: Map<String, Value>,
}

impl ErrorOut {
    pub(crate) fn of(problem: &Problem) -> Self {
        let own = ["message", "type", "code", "param"];
        let ErrorParts {
            message,
            param,
            more,
        } = ErrorParts::of(problem, &own);
        Self {
            error: ErrorBody {
                message,
                kind: kind_of(problem.status),
                code: problem.code,
                param,
                more,
            },
        }
    }
}

fn kind_of(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        ..500 => "invalid_request_error",
        500.. => "server_error",
    }
}

/// The problem for a path of an API of OpenAI that this server does not have.
pub(crate) fn not_served(path: &str) -> Option<Problem> {
    let bases = ["/openai/v1", "/v1"];
    let (base, rest) = bases
        .into_iter()
        .find_map(|base| Some((base, path.strip_prefix(base)?.strip_prefix('/')?)))?;
    let name = rest.split('/').next().unwrap_or_default();
    let name = NOT_SERVED.iter().find(|known| **known == name)?;
    let detail = format!(
        "the API `{name}` is not served here; use `POST {base}/chat/completions`, with an agent of \
         `GET {base}/models` as the model. Clients that prefer another API have a setting for chat completions"
    );
    Some(Problem::new(Code::NotFound, detail))
}

/// Translates every problem on the paths of OpenAI's clients into their form of errors.
pub(crate) async fn translate(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_theirs = path.starts_with("/openai/")
        || path == "/v1/chat/completions"
        || path == "/v1/models"
        || path.starts_with("/v1/models/")
        || not_served(path).is_some();
    let response = next.run(request).await;
    if is_theirs {
        as_openai_error(response, None)
    } else {
        response
    }
}

/// Translates the problem of a response, if it has one that is not translated yet. The receipt is confirmed
/// when the error has been delivered.
pub(crate) fn as_openai_error(response: Response, receipt: Option<DeliveryReceipt>) -> Response {
    translate_problem(response, receipt, |problem| {
        (problem.status, to_body(&ErrorOut::of(problem)))
    })
}

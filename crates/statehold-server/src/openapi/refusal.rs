//! The refusals of operations: which statuses each one may answer with, and one response per status and form.
//!
//! Most statuses follow from what an operation shares with others: it needs a key, has an id in its path, reads a
//! body, or commits. A route declares the others, as `(status = 409)`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::object;
use super::operation::ApiOperation;
use crate::dial::errors::{self as dial, ErrorOut as DialErrorOut};
use crate::http::problem::{Code, Problem};
use crate::openai::errors::ErrorOut;

/// The response for every failure of the server itself.
const FAILURE: &str = "5XX";

/// The form in which the paths of a surface answer refusals.
struct RefusalForm {
    /// The paths that begin with it have this form; the first of the table counts.
    path: &'static str,
    schema: &'static str,
    media_type: &'static str,
    status: fn(&Problem) -> u16,
    code: fn(&Problem) -> &'static str,
    body: fn(&Problem) -> Value,
}

/// The paths of DIAL, which takes a 429 for the condition of a service: only a route that calls one declares it.
const DIAL: &str = "/openai/deployments";

const FORMS: [RefusalForm; 3] = [
    RefusalForm {
        path: DIAL,
        schema: "DialError",
        media_type: "application/json",
        status: dial::status_of,
        code: dial::code_of,
        body: |problem| json!(DialErrorOut::of(problem)),
    },
    RefusalForm {
        path: "/openai/",
        schema: "ChatError",
        media_type: "application/json",
        status: |problem| problem.status,
        code: |problem| problem.code,
        body: |problem| json!(ErrorOut::of(problem)),
    },
    RefusalForm {
        path: "/",
        schema: "Problem",
        media_type: "application/problem+json",
        status: |problem| problem.status,
        code: |problem| problem.code,
        body: |problem| json!(problem),
    },
];

/// An example for each status that an operation declares: a code with a detail that the server gives.
const EXAMPLES: [(Code, &str); 14] = [
    (Code::BadQuery, "`limit` is 1 to 200"),
    (
        Code::Unauthenticated,
        "send a valid key as `Authorization: Bearer shk_…`; make one with: statehold token create",
    ),
    (Code::Forbidden, "this needs the role `client`"),
    (
        Code::NotFound,
        "there is no such object, or this key may not see it",
    ),
    (
        Code::BodyTimeout,
        "the body did not arrive in time; send it again",
    ),
    (
        Code::DigestMismatch,
        "the digest is not that of the stored action; look again before you decide",
    ),
    (
        Code::HoldExpired,
        "hold hld_0192f0c1a2b37c4d8e9f0a1b2c3d4e5f has expired",
    ),
    (
        Code::RevisionMismatch,
        "the session is at revision 13, not 12; read it again",
    ),
    (
        Code::BodyTooLarge,
        "a body has at most 8388608 bytes; send less at a time",
    ),
    (
        Code::UnsupportedMedia,
        "send the body as `Content-Type: application/json`",
    ),
    (Code::InvalidBody, "`ttl_seconds` is 1 to 86400"),
    (
        Code::TooMany,
        "too many long bodies are being read; wait for other calls of this key to end, then send it again",
    ),
    (
        Code::AgentRateLimited,
        "the agent clerk takes no more calls for now; try again in a minute",
    ),
    (Code::Stopping, "the server is stopping; try again"),
];

/// The refusals that the operations of a document share.
#[derive(Default)]
pub(super) struct Refusals {
    used: BTreeMap<String, Value>,
}

impl Refusals {
    /// Replaces the refusals that a route declares by references, and adds those that follow from what it is.
    pub(super) fn declare(&mut self, call: ApiOperation<'_>, operation: &mut Value) {
        let has_body = operation.get("requestBody").is_some();
        let responses = object(&mut operation["responses"]);
        let is_success = |status: &str| status.starts_with('2');
        let declared = responses.keys().filter(|status| !is_success(status));
        let mut statuses: BTreeSet<String> = declared.cloned().collect();
        statuses.extend(statuses_of(call, has_body));
        responses.retain(|status, _| is_success(status));
        for status in statuses {
            let reference = self.reference(call.path, &status);
            responses.insert(status, reference);
        }
    }

    fn reference(&mut self, path: &str, status: &str) -> Value {
        let form = FORMS.iter().find(|form| path.starts_with(form.path));
        let form = form.expect("the last form is of every path");
        let name = format!("{}{status}", form.schema);
        let reference = json!({"$ref": format!("#/components/responses/{name}")});
        self.used
            .entry(name)
            .or_insert_with(|| form.response(status));
        reference
    }

    /// The responses that are referred to, by their names.
    pub(super) fn into_responses(self) -> Value {
        self.used.into_iter().collect()
    }
}

/// The statuses with which an operation may refuse a call, because of what it shares with others.
fn statuses_of(call: ApiOperation<'_>, has_body: bool) -> impl Iterator<Item = String> {
    let has_revision = call.header_names().contains(&"IfMatch");
    let is_open = call.is_open();
    let shared: [(bool, &[&str]); 8] = [
        // Headers and queries are parsed strictly; who calls, for whom, and how often is for every operation.
        (!is_open, &["400", "401", "403", "422"]),
        (!is_open && !call.path.starts_with(DIAL), &["429"]),
        (call.path.contains('{'), &["404"]),
        (has_body, &["408", "413", "415"]),
        (call.commits(), &["409"]),
        (has_revision, &["412"]),
        // Values of an app or a user outlive sessions.
        (
            has_revision && !call.path.starts_with("/v1/state/"),
            &["410"],
        ),
        (!is_open || call.path == "/readyz", &[FAILURE]),
    ];
    let met = shared.into_iter().filter(|(is_met, _)| *is_met);
    met.flat_map(|(_, statuses)| statuses.iter().map(ToString::to_string))
}

impl RefusalForm {
    /// The response with a status, for all operations of this form.
    fn response(&self, status: &str) -> Value {
        let is_of_status = |code: Code| {
            let own = (self.status)(&Problem::new(code, "")).to_string();
            own == status || status == FAILURE && own.starts_with('5')
        };
        let codes = Code::ALL.iter().filter(|code| is_of_status(**code));
        let codes: Vec<String> = codes
            .map(|code| {
                let shown = (self.code)(&Problem::new(*code, ""));
                format!("`{shown}` ({})", code.title())
            })
            .collect();
        let mut content = json!({
            "schema": {"$ref": format!("#/components/schemas/{}", self.schema)},
        });
        let example = EXAMPLES.iter().find(|(code, _)| is_of_status(*code));
        if let Some((code, detail)) = example {
            content["example"] = (self.body)(&Problem::new(*code, *detail));
        }
        json!({
            "description": format!("The code is one of: {}.", codes.join(", ")),
            "content": {self.media_type: content},
        })
    }
}

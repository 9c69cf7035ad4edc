//! The document of the API, as every answer that a test gets is held to it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

/// An operation of the document.
struct Operation {
    method: String,
    path: String,
    statuses: BTreeSet<String>,
}

static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    let text = statehold_server::openapi_json();
    let document: Value = serde_json::from_str(text).expect("the document is JSON");
    let paths = document["paths"].as_object().into_iter().flatten();
    let operations = paths.flat_map(|(path, item)| {
        let operations = item.as_object().into_iter().flatten();
        operations.map(move |(method, operation)| Operation {
            method: method.to_uppercase(),
            path: path.clone(),
            statuses: statuses_of(operation),
        })
    });
    operations.collect()
});

fn statuses_of(operation: &Value) -> BTreeSet<String> {
    let responses = operation["responses"].as_object().into_iter().flatten();
    responses.map(|(status, _)| status.clone()).collect()
}

impl Operation {
    /// How many segments of the path are parameters, if the operation serves the target of a call.
    fn parameters_in(&self, target: &str) -> Option<usize> {
        let target = target.split('?').next().unwrap_or_default();
        let (own, called) = (self.path.split('/'), target.split('/'));
        if own.clone().count() != called.clone().count() {
            return None;
        }
        own.zip(called).try_fold(0, |parameters, (own, called)| {
            if own.starts_with('{') {
                Some(parameters + 1)
            } else {
                (own == called).then_some(parameters)
            }
        })
    }
}

/// Fails if an operation answers with a status that its document does not have.
pub(crate) fn require_declared(method: &str, target: &str, status: u16) {
    let served = OPERATIONS.iter().filter(|one| one.method == method);
    let served = served.filter_map(|one| Some((one.parameters_in(target)?, one)));
    // A path without parameters takes precedence. Other surfaces have no operations in the document.
    let Some((_, operation)) = served.min_by_key(|(parameters, _)| *parameters) else {
        return;
    };
    let range = format!("{}XX", status / 100);
    let is_declared = [status.to_string(), range]
        .iter()
        .any(|status| operation.statuses.contains(status));
    assert!(
        is_declared,
        "{method} {}: the document has no {status}",
        operation.path
    );
}

#[test]
#[should_panic(expected = "GET /v1/sessions/{session_id}: the document has no 418")]
fn an_answer_with_a_status_that_the_document_does_not_have_fails_its_test() {
    require_declared("GET", "/v1/sessions/ses_1?at=1", 418);
}

//! Problems as MCP reports them: errors of the protocol for resources, results with `isError` for tools.

use rmcp::ErrorData;
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use crate::http::problem::{Code, Problem};

/// The error of a resource. Missing and foreign ones get the same.
pub(super) fn resource_error(problem: &Problem, uri: &str) -> ErrorData {
    if problem.code == Code::NotFound.text() {
        let detail = "there is no such resource, or this caller may not read it";
        return ErrorData::resource_not_found(detail, Some(json!({"uri": uri})));
    }
    let mut data = detail_of(problem);
    data["uri"] = uri.into();
    with_data(problem, data)
}

/// The error of a call that is about no resource.
pub(super) fn call_error(problem: &Problem) -> ErrorData {
    with_data(problem, detail_of(problem))
}

fn with_data(problem: &Problem, data: Value) -> ErrorData {
    let detail = problem.detail.clone();
    if problem.status >= 500 {
        ErrorData::internal_error(detail, Some(data))
    } else {
        ErrorData::invalid_params(detail, Some(data))
    }
}

/// The result of a tool that was refused or failed, so that a model can read why.
pub(super) fn tool_error(problem: &Problem) -> CallToolResult {
    let detail = detail_of(problem);
    let mut result = CallToolResult::error(vec![ContentBlock::text(detail.to_string())]);
    result.structured_content = Some(detail);
    result
}

fn detail_of(problem: &Problem) -> Value {
    serde_json::to_value(problem).unwrap_or_default()
}

//! Validates tool lists: names that models accept, bounded texts, and a limited number of tools.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use statehold_core::name::Name;

use super::McpTool;
use crate::spec::ToolServerSpec;

/// Most tools per server.
pub(super) const TOOLS_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 64;
/// Separator between server and tool in a full name.
const SEPARATOR: &str = "__";
const DESCRIPTION_BYTES_MAX: usize = 4 * 1024;
/// The usual limit of schemas. The schema is sent with every model call.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// Name in `_meta` of a tool that runs only as a task.
const TASK_MARK: &str = "statehold/task_required";

/// Marks the tools in a message that run only as tasks. The library drops the member that says so.
pub(super) fn mark_task_tools(message: &str) -> Cow<'_, str> {
    if !message.contains("\"taskSupport\"") {
        return message.into();
    }
    let Ok(mut marked) = serde_json::from_str::<Value>(message) else {
        return message.into();
    };
    let tools = marked.pointer_mut("/result/tools");
    for tool in tools.and_then(Value::as_array_mut).into_iter().flatten() {
        if tool["execution"]["taskSupport"] == "required" {
            tool["_meta"] = json!({ TASK_MARK: true });
        }
    }
    marked.to_string().into()
}

/// Validates a listed tool. None if no model could use it.
pub(super) fn accept_tool(server: &ToolServerSpec, tool: rmcp::model::Tool) -> Option<McpTool> {
    let name = model_safe_name(&tool.name);
    let schema = Value::Object(Arc::unwrap_or_clone(tool.input_schema));
    let is_usable =
        (1..=NAME_BYTES_MAX).contains(&name.len()) && schema.to_string().len() <= SCHEMA_BYTES_MAX;
    let needs_task = tool.meta.is_some_and(|meta| meta.0.contains_key(TASK_MARK));
    let hints = tool.annotations.unwrap_or_default();
    let says = |hint: Option<bool>| server.trust_hints && hint == Some(true);
    (is_usable && !needs_task).then(|| McpTool {
        server: server.name.clone(),
        name,
        original: tool.name.into_owned(),
        description: tool
            .description
            .map(|text| truncate(&text, DESCRIPTION_BYTES_MAX).to_owned()),
        input_schema: Arc::new(schema),
        idempotent: says(hints.idempotent_hint),
        only_reads: says(hints.read_only_hint),
        destructive: hints.destructive_hint,
    })
}

/// Merges the lists of several servers under unique names. The first tool keeps its name, further ones
/// get the server name as prefix. Omits tools whose full name could denote a tool of another declared
/// server, because that server's policy would apply to it.
pub(super) fn offered_tools<'a>(
    listings: &[Arc<Vec<McpTool>>],
    declared: impl Iterator<Item = &'a Name>,
) -> Vec<McpTool> {
    let declared: Vec<String> = declared
        .map(|name| model_safe_name(name.as_str()))
        .collect();
    let mut taken = BTreeSet::new();
    let mut offered_tools = Vec::new();
    for tool in listings.iter().flat_map(|listing| listing.iter()) {
        let full = full_name(&tool.server, &tool.name);
        if !names_only_server(&model_safe_name(tool.server.as_str()), &full, &declared) {
            tracing::warn!(server = %tool.server, tool = %tool.original, "omitting a tool whose name could belong to another server");
            continue;
        }
        let longer = || full.clone();
        let name = if taken.contains(&tool.name) {
            longer()
        } else {
            tool.name.clone()
        };
        if name.len() <= NAME_BYTES_MAX && taken.insert(name.clone()) {
            offered_tools.push(McpTool {
                name,
                ..tool.clone()
            });
        } else {
            tracing::warn!(server = %tool.server, tool = %tool.original, "omitting a second tool of the same name");
        }
    }
    offered_tools
}

/// Tool name with its server as prefix.
fn full_name(server: &Name, tool: &str) -> String {
    format!("{}{SEPARATOR}{tool}", model_safe_name(server.as_str()))
}

/// Whether a full name can be read as a tool of this server only. Policies match after any separator,
/// so check every position.
fn names_only_server(server: &str, full: &str, declared: &[String]) -> bool {
    let marks = (1..full.len()).filter(|at| full[..*at].ends_with(SEPARATOR));
    let mut beginnings = std::iter::once(0).chain(marks);
    beginnings.all(|at| {
        let said = declared.iter().filter(|name| {
            let rest = full[at..].strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.starts_with(SEPARATOR))
        });
        // If one server name is a prefix of another, the longer one counts.
        let said = said.max_by_key(|name| name.len());
        said.is_none_or(|said| said == server)
    })
}

/// Replaces characters that models do not accept in names.
pub(crate) fn model_safe_name(name: &str) -> String {
    let letters = name.chars().map(|c| match c {
        'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '-' => c,
        _ => '_',
    });
    letters.collect()
}

/// Truncates at a character boundary.
pub(super) fn truncate(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tools_that_need_tasks_are_marked() {
        let tool = |support: &str| {
            format!(
                r#"{{"name":"a","execution":{{"taskSupport":"{support}"}},"inputSchema":{{"n":1.0}}}}"#
            )
        };
        let list = |tool: &str| format!(r#"{{"id":1,"result":{{"tools":[{tool}]}}}}"#);
        let is_marked = |json: &str| mark_task_tools(json).contains(TASK_MARK);
        assert!(is_marked(&list(&tool("required"))));
        assert!(!is_marked(&list(&tool("optional"))));
        for other in [
            "",
            "no JSON \"taskSupport\"",
            "{\"result\":{\"taskSupport\":[]}}",
        ] {
            assert!(!is_marked(other), "{other}");
        }
        let plain = list(r#"{"name":"a"}"#);
        assert!(matches!(mark_task_tools(&plain), Cow::Borrowed(_)));
    }

    #[test]
    fn a_tool_is_not_named_like_one_of_another_server() {
        let declared = ["files", "evil", "a", "a__b"].map(str::to_owned);
        for (server, tool, is) in [
            ("evil", "read", true),
            ("evil", "evil__read", true),
            ("evil", "filesread", true),
            ("evil", "my__read", true),
            ("evil", "files_read", true),
            ("evil", "files__read", false),
            ("evil", "my__files__read", false),
            ("evil", "_files__read", false),
            ("files", "files__read", true),
            ("files", "evil__read", false),
            ("a__b", "c", true),
            ("a", "b__c", false),
            ("a", "c", true),
        ] {
            let full = format!("{server}__{tool}");
            assert_eq!(names_only_server(server, &full, &declared), is, "{full}");
        }
    }
}

//! What is believed of a list of tools: names that models can say, texts that fit, not too many.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use statehold_core::name::Name;

use super::Tool;
use crate::spec::ToolServerSpec;

/// The most tools that one server may have.
pub(super) const TOOLS_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 64;
/// Between a server and its tool, where a name says both.
const OF_SERVER: &str = "__";
const DESCRIPTION_BYTES_MAX: usize = 4 * 1024;
/// As for any other schema. It goes to a model with every call.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// A tool as its server describes it. None if no model could use it.
pub(super) fn accepted(server: &ToolServerSpec, tool: rmcp::model::Tool) -> Option<Tool> {
    let name = sayable(&tool.name);
    let schema = Value::Object(Arc::unwrap_or_clone(tool.input_schema));
    let is_usable =
        (1..=NAME_BYTES_MAX).contains(&name.len()) && schema.to_string().len() <= SCHEMA_BYTES_MAX;
    let hints = tool.annotations.unwrap_or_default();
    let says = |hint: Option<bool>| server.trust_hints && hint == Some(true);
    is_usable.then(|| Tool {
        server: server.name.clone(),
        name,
        original: tool.name.into_owned(),
        description: tool
            .description
            .map(|text| clipped(&text, DESCRIPTION_BYTES_MAX).to_owned()),
        input_schema: Arc::new(schema),
        idempotent: says(hints.idempotent_hint),
        only_reads: says(hints.read_only_hint),
        destructive: hints.destructive_hint,
    })
}

/// The tools of some servers under names of which each is there once. The first of several keeps its
/// name, the others carry their server's. What could be taken for a tool of another server that is declared
/// is left out: a policy that speaks of that one would count for it.
pub(super) fn shown<'a>(
    listings: &[Arc<Vec<Tool>>],
    declared: impl Iterator<Item = &'a Name>,
) -> Vec<Tool> {
    let declared: Vec<String> = declared.map(|name| sayable(name.as_str())).collect();
    let mut taken = BTreeSet::new();
    let mut shown = Vec::new();
    for tool in listings.iter().flat_map(|listing| listing.iter()) {
        let whole = whole_name(&tool.server, &tool.name);
        if !is_of(&sayable(tool.server.as_str()), &whole, &declared) {
            tracing::warn!(server = %tool.server, tool = %tool.original, "a tool is named as if it were on another server: it is left out");
            continue;
        }
        let longer = || whole.clone();
        let name = if taken.contains(&tool.name) {
            longer()
        } else {
            tool.name.clone()
        };
        if name.len() <= NAME_BYTES_MAX && taken.insert(name.clone()) {
            shown.push(Tool {
                name,
                ..tool.clone()
            });
        } else {
            tracing::warn!(server = %tool.server, tool = %tool.original, "two tools have this name: the second is left out");
        }
    }
    shown
}

/// The name of a tool with its server before it.
fn whole_name(server: &Name, tool: &str) -> String {
    format!("{}{OF_SERVER}{tool}", sayable(server.as_str()))
}

/// Whether a whole name says one server only, wherever one begins to read it. Policies are found by what
/// follows any mark between server and tool, so that is looked at too.
fn is_of(server: &str, whole: &str, declared: &[String]) -> bool {
    let marks = (1..whole.len()).filter(|at| whole[..*at].ends_with(OF_SERVER));
    let mut beginnings = std::iter::once(0).chain(marks);
    beginnings.all(|at| {
        let said = declared.iter().filter(|name| {
            let rest = whole[at..].strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.starts_with(OF_SERVER))
        });
        // The longest is meant where one server is named like the beginning of another.
        let said = said.max_by_key(|name| name.len());
        said.is_none_or(|said| said == server)
    })
}

/// A name in the letters that models know.
pub(crate) fn sayable(name: &str) -> String {
    let letters = name.chars().map(|c| match c {
        'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '-' => c,
        _ => '_',
    });
    letters.collect()
}

/// The beginning of a text, up to a whole character.
pub(super) fn clipped(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let whole = format!("{server}__{tool}");
            assert_eq!(is_of(server, &whole, &declared), is, "{whole}");
        }
    }
}

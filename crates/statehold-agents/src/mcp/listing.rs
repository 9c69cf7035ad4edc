//! What is believed of a list of tools: names that models can say, texts that fit, not too many.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::Tool;
use crate::spec::ToolServerSpec;

/// The most tools that one server may have.
pub(super) const TOOLS_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 64;
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
/// name, the others carry their server's.
pub(super) fn shown(listings: &[Arc<Vec<Tool>>]) -> Vec<Tool> {
    let mut taken = BTreeSet::new();
    let mut shown = Vec::new();
    for tool in listings.iter().flat_map(|listing| listing.iter()) {
        let longer = || format!("{}__{}", sayable(tool.server.as_str()), tool.name);
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

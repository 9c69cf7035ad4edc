//! Contexts of this API as contexts that an answerer runs.

use serde_json::{Map, Value};
use statehold_core::name::Name;
use statehold_engine::api::json::{raw_bytes, to_body};

use crate::chat::InlineContext;
use crate::http::call::App;

/// The context for an answerer: the instructions, and everything else as a data source. A model of Google's counts as
/// none; a configured answerer may be named as the model.
pub(super) fn inline_context(app: &App, context: &Map<String, Value>) -> InlineContext {
    let instructions = context.get("systemInstruction").and_then(Value::as_str);
    let model = context
        .get("options")
        .and_then(|options| options["model"].as_str());
    let is_answerer = |model: &&str| {
        app.options
            .answerers
            .iter()
            .map(Name::as_str)
            .any(|name| name == *model)
    };
    let mut sources = context.clone();
    sources.remove("systemInstruction");
    sources.remove("options");
    let sources = (!sources.is_empty()).then(|| raw_bytes(&to_body(&sources)));
    InlineContext {
        instructions: instructions.map(str::to_owned),
        model: model.filter(is_answerer).map(str::to_owned),
        tools: Vec::new(),
        data_sources: sources.into_iter().collect(),
    }
}

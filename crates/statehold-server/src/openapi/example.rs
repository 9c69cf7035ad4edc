//! Examples of bodies and answers: what a server said in the story that `scripts/openapi/examples.py` plays.
//!
//! `examples.json` has them by the name of their schema. An answer that is special for one operation, or has no named
//! schema, is there by the id of the operation; a text by the id and `Text`. So a new operation with known schemas
//! needs no examples of its own.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{object, schema_name};

const RECORDED: &str = include_str!("examples.json");

/// The examples of a document, and which of them it shows.
pub(super) struct Examples {
    recorded: Map<String, Value>,
    shown: BTreeSet<String>,
}

impl Examples {
    pub(super) fn new() -> Self {
        Self {
            recorded: serde_json::from_str(RECORDED).expect("the examples are a JSON object"),
            shown: BTreeSet::new(),
        }
    }

    /// Adds an example to the body and to each answer of an operation.
    pub(super) fn show(&mut self, operation: &mut Value) {
        let id = operation["operationId"].as_str().unwrap_or_default();
        let (special, text) = (id.to_owned(), format!("{id}Text"));
        if let Some(body) = operation.get_mut("requestBody") {
            self.show_in(body, &[]);
        }
        for answer in object(&mut operation["responses"]).values_mut() {
            self.show_in(answer, &[&special, &text]);
        }
    }

    /// Adds an example to each content of a body or an answer: the first of the names that has one, or that of the
    /// schema.
    fn show_in(&mut self, body: &mut Value, names: &[&str]) {
        let contents = body.get_mut("content").and_then(Value::as_object_mut);
        for content in contents.into_iter().flatten().map(|(_, content)| content) {
            let is_text = content["schema"]["type"] == "string";
            let mut names = names
                .iter()
                .filter(|name| name.ends_with("Text") == is_text);
            let special = names.find(|name| self.recorded.contains_key(**name));
            let of_schema = || schema_name(&content["schema"]["$ref"]);
            let Some(name) = special.copied().or_else(of_schema).map(str::to_owned) else {
                continue;
            };
            if self.recorded.contains_key(&name) {
                let reference = json!({"$ref": format!("#/components/examples/{name}")});
                content["examples"] = json!({(name.as_str()): reference});
                self.shown.insert(name);
            }
        }
    }

    /// The examples that are referred to, by their names.
    pub(super) fn into_shown(self) -> Value {
        let shown = self.recorded.into_iter();
        let shown = shown.filter(|(name, _)| self.shown.contains(name));
        shown
            .map(|(name, value)| (name, json!({"value": value})))
            .collect::<Map<_, _>>()
            .into()
    }
}

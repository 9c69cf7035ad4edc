//! The rules that schemas share: answers leave out missing values, fields that mean the same everywhere are described
//! once, and problems have known codes.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{object, schema_name};
use crate::http::problem::Code;

/// Adds the rules to all schemas of the document, and returns them.
pub(super) fn complete(document: &mut Value) -> Map<String, Value> {
    let taken = taken_schemas(document);
    let schemas = object(&mut document["components"]["schemas"]);
    for (name, schema) in schemas.iter_mut() {
        describe_fields(schema);
        if !taken.contains(name) {
            never_null(schema);
        }
    }
    describe_problem(&mut schemas["Problem"]);
    schemas.clone()
}

/// Fields that mean the same in every schema that does not describe them.
const COMMON_FIELDS: [(&str, &str); 22] = [
    (
        "alias",
        "A short name in the session, such as `R7`, for people.",
    ),
    ("allowed", "The decisions that the hold offers."),
    ("annotations", "What clients have noted about the message."),
    ("args", "The arguments of the tool, as JSON."),
    ("args_schema", "The JSON Schema of the arguments."),
    ("attachments", "Files of the message."),
    (
        "call_id",
        "The id of the tool call: the worker's own, or the id of its item.",
    ),
    ("comment", "A comment of the decider."),
    (
        "fence",
        "The number of the claim. Writes under an older fence are refused.",
    ),
    ("gated", "Whether the call waits for an approval."),
    (
        "idempotent",
        "Whether the tool honours the execution key, so that a call may run again.",
    ),
    ("labels", "Labels for people and filters."),
    (
        "next_cursor",
        "The `cursor` of the next page. Missing if there are no more rows.",
    ),
    ("on_expiry", "What becomes of the hold at its deadline."),
    ("quorum", "Number of people who must approve."),
    (
        "reason",
        "The id of the reason that the decider chose, of those that the hold offers.",
    ),
    ("reasons", "The reasons that a decider may choose from."),
    ("response_schema", "The JSON Schema of the answer."),
    ("revision", "A revision of the session."),
    (
        "seq",
        "The number of the item in its session, in ascending order.",
    ),
    ("task_path", "The tasks from the root to this one."),
    ("versions", "The version of each key, for `if_versions`."),
];

/// Describes the fields that have a common meaning, and moves descriptions from the choices of a field to the field.
fn describe_fields(schema: &mut Value) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    for (name, property) in properties {
        let Value::Object(property) = property else {
            continue;
        };
        if property.contains_key("description") || property.contains_key("$ref") {
            continue;
        }
        let choices = property.get_mut("oneOf").and_then(Value::as_array_mut);
        let mut choices = choices
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut);
        let own = choices.find_map(|choice| choice.shift_remove("description"));
        let common = COMMON_FIELDS.iter().find(|(common, _)| common == name);
        let common = || common.map(|(_, text)| Value::from(*text));
        if let Some(text) = own.or_else(common) {
            property.insert("description".to_owned(), text);
        }
    }
}

/// The names of the schemas in request bodies.
fn taken_schemas(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let paths = document["paths"].as_object().into_iter().flatten();
    let operations = paths.filter_map(|(_, item)| item.as_object()).flatten();
    let mut open: Vec<&Value> = operations
        .map(|(_, operation)| &operation["requestBody"])
        .collect();
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(name) = fields.get("$ref").and_then(schema_name)
                    && found.insert(name.to_owned())
                {
                    open.push(&document["components"]["schemas"][name]);
                }
                open.extend(fields.values());
            }
            Value::Array(values) => open.extend(values),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    found
}

/// Removes `null` from a schema of answers: answers leave out missing values.
fn never_null(schema: &mut Value) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    for property in properties.values_mut() {
        if let Some(Value::Array(kinds)) = property.get_mut("type") {
            kinds.retain(|kind| kind != "null");
            if let [only] = kinds.as_slice() {
                property["type"] = only.clone();
            }
        }
        if let Some(Value::Array(choices)) = property.get_mut("oneOf") {
            choices.retain(|choice| choice["type"] != "null");
            if let [only] = choices.as_slice() {
                let mut only = only.clone();
                if let Some(description) = property.get("description") {
                    only["description"] = description.clone();
                }
                *property = only;
            }
        }
    }
}

fn describe_problem(schema: &mut Value) {
    let codes = Code::ALL.iter().map(|code| Value::from(code.text()));
    schema["properties"]["code"]["enum"] = codes.collect();
    schema["additionalProperties"] = true.into();
    schema["properties"]["type"]["format"] = "uri".into();
    schema["properties"]["status"]["minimum"] = 400.into();
    schema["properties"]["status"]["maximum"] = 599.into();
}

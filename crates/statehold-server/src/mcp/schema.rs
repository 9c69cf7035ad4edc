//! Schemas of tools, made from those of the native API: the same types are behind both.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use rmcp::model::JsonObject;
use serde_json::{Map, Value, json};

const COMPONENTS: &str = "#/components/schemas/";

/// The schemas of the document of the native API.
static SCHEMAS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let document: Value = serde_json::from_str(crate::openapi_json()).unwrap_or_default();
    let schemas = document.pointer("/components/schemas");
    schemas
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
});

/// The schema of an object with the members of a type of the native API, if one is named, and members of its own.
pub(super) fn object(native: Option<&str>, own: &[(&str, Value, bool)]) -> Arc<JsonObject> {
    let mut schema = native.map_or_else(Map::new, whole);
    schema.insert("type".to_owned(), "object".into());
    let mut properties = taken(&mut schema, "properties");
    let mut required: Vec<Value> = match schema.remove("required") {
        Some(Value::Array(names)) => names,
        _ => Vec::new(),
    };
    for (name, member, is_required) in own {
        properties.insert((*name).to_owned(), member.clone());
        if *is_required {
            required.push((*name).into());
        }
    }
    schema.insert("properties".to_owned(), properties.into());
    schema.insert("required".to_owned(), required.into());
    Arc::new(schema)
}

/// The schema of a result. Names of members are left free: frameworks keep keys that the native API does not write.
pub(super) fn output(native: &str) -> Arc<JsonObject> {
    let mut schema = Value::Object(Arc::unwrap_or_clone(object(Some(native), &[])));
    free_names(&mut schema);
    match schema {
        Value::Object(schema) => Arc::new(schema),
        _ => Arc::default(),
    }
}

fn free_names(schema: &mut Value) {
    match schema {
        Value::Array(list) => list.iter_mut().for_each(free_names),
        Value::Object(object) => {
            object.remove("propertyNames");
            object.values_mut().for_each(free_names);
        }
        _ => {}
    }
}

fn taken(schema: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match schema.remove(name) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// A type of the native API, with every type that it refers to in `$defs`.
fn whole(name: &str) -> Map<String, Value> {
    let mut schema = match SCHEMAS.get(name) {
        Some(Value::Object(schema)) => schema.clone(),
        _ => Map::new(),
    };
    let mut found = BTreeSet::new();
    let mut definitions = Map::new();
    for member in schema.values_mut() {
        point_to_definitions(member, &mut found);
    }
    while let Some(name) = found.pop_first() {
        if definitions.contains_key(&name) {
            continue;
        }
        let mut definition = SCHEMAS.get(&name).cloned().unwrap_or_else(|| json!({}));
        point_to_definitions(&mut definition, &mut found);
        definitions.insert(name, definition);
    }
    if !definitions.is_empty() {
        schema.insert("$defs".to_owned(), definitions.into());
    }
    schema
}

/// Lets references point to `$defs`, and collects the names that they refer to.
fn point_to_definitions(schema: &mut Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Array(list) => list
            .iter_mut()
            .for_each(|one| point_to_definitions(one, found)),
        Value::Object(object) => {
            for (name, member) in object {
                let referred = member.as_str().filter(|_| name == "$ref");
                match referred.and_then(|text| text.strip_prefix(COMPONENTS)) {
                    Some(referred) => {
                        found.insert(referred.to_owned());
                        *member = format!("#/$defs/{referred}").into();
                    }
                    None => point_to_definitions(member, found),
                }
            }
        }
        _ => {}
    }
}

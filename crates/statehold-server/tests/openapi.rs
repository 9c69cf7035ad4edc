//! The document of the API: that the committed one is current, and that it says what it must.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn the_committed_document_is_what_the_routes_say() -> Outcome {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi.json");
    let made = statehold_server::openapi_json();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, made)?;
    }
    let committed = std::fs::read_to_string(&path)?;
    assert!(
        committed == made,
        "openapi.json is out of date; write it with: \
         UPDATE=1 cargo test -p statehold-server --test openapi"
    );
    Ok(())
}

#[test]
fn every_reference_leads_somewhere() -> Outcome {
    let document: Value = serde_json::from_str(statehold_server::openapi_json())?;
    let mut open = vec![&document];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    let pointer = reference.trim_start_matches('#');
                    assert!(document.pointer(pointer).is_some(), "{reference}");
                }
                open.extend(fields.values());
            }
            Value::Array(values) => open.extend(values),
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn every_operation_has_an_id_of_its_own_and_says_what_it_and_its_parameters_are() -> Outcome {
    let document: Value = serde_json::from_str(statehold_server::openapi_json())?;
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            let call = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].to_string()), "{call}");
            assert!(operation["summary"].is_string(), "{call}");
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let is_said = parameter["description"].is_string();
                assert!(
                    is_said || parameter["$ref"].is_string(),
                    "{call} {parameter}"
                );
            }
            for answer in operation["responses"].as_object().into_iter().flatten() {
                assert!(answer.1["description"].is_string(), "{call} {}", answer.0);
            }
        }
    }
    assert!(ids.len() >= 40, "{} operations", ids.len());
    Ok(())
}

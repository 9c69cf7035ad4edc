//! The document of the API: that the committed one is current, and that it says what it must.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};
use statehold_core::redact::Redactor;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The verbs that ids of operations begin with. A new one reads well as the name of a function.
const VERBS: [&str; 29] = [
    "annotate", "append", "cancel", "claim", "close", "complete", "count", "create", "decide",
    "delete", "erase", "extend", "fail", "follow", "fork", "get", "list", "open", "release",
    "reload", "revoke", "rewind", "rotate", "rate", "send", "set", "start", "update", "verify",
];

/// Operations that need no key and read nothing of the call, so there is nothing to refuse.
const NEVER_REFUSED: [&str; 3] = ["getHealth", "getReadiness", "getApiDocument"];

/// The media type of a file, for which there is no example.
const FILE: &str = "application/octet-stream";

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
    let document = document()?;
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
fn every_operation_has_an_id_of_its_own_that_is_a_verb_and_a_noun() -> Outcome {
    let mut ids = BTreeSet::new();
    for operation in operations(&document()?) {
        let id = operation.id();
        let verb = id.split(|letter: char| letter.is_uppercase()).next();
        let verb = verb.unwrap_or_default();
        assert!(
            VERBS.contains(&verb),
            "{id}: `{verb}` is no verb of the list"
        );
        assert!(verb.len() < id.len(), "{id} has no noun");
        let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(is_plain, "{id} is no name of a function");
        assert!(ids.insert(id.to_owned()), "{id} is there twice");
    }
    assert!(ids.len() >= 40, "{} operations", ids.len());
    Ok(())
}

#[test]
fn every_operation_says_what_it_its_parameters_and_its_answers_are() -> Outcome {
    let document = document()?;
    for operation in operations(&document) {
        let (id, value) = (operation.id(), &operation.value);
        let (summary, description) = (&value["summary"], &value["description"]);
        assert!(is_sentence(summary), "{id} has no summary");
        assert!(is_sentence(description), "{id} has no description");
        assert_ne!(summary, description, "{id}");
        for parameter in list(&value["parameters"]) {
            let parameter = resolved(&document, parameter);
            assert!(is_sentence(&parameter["description"]), "{id} {parameter}");
        }
        for (status, answer) in map(&value["responses"]) {
            let answer = resolved(&document, answer);
            assert!(is_sentence(&answer["description"]), "{id} {status}");
        }
    }
    Ok(())
}

#[test]
fn every_operation_that_can_refuse_a_call_has_the_statuses_of_its_refusals() -> Outcome {
    let document = document()?;
    for operation in operations(&document) {
        let (id, responses) = (operation.id(), &operation.value["responses"]);
        let has = |statuses: &[&str]| {
            for status in statuses {
                assert!(responses.get(status).is_some(), "{id} has no {status}");
            }
        };
        if NEVER_REFUSED.contains(&id) {
            assert_eq!(operation.value["security"], Value::Array(vec![]), "{id}");
            continue;
        }
        has(&["400", "401", "403", "422", "5XX"]);
        // DIAL takes a 429 for the condition of the service that was called.
        if !operation.path.starts_with("/openai/deployments") {
            has(&["429"]);
        }
        if operation.path.contains('{') {
            has(&["404"]);
        }
        if operation.value.get("requestBody").is_some() {
            has(&["408", "413", "415"]);
        }
        let parameters = list(&operation.value["parameters"]);
        let mut parameters = parameters.map(|parameter| resolved(&document, parameter));
        if parameters.any(|parameter| parameter["name"] == "If-Match") {
            has(&["409", "412"]);
        }
    }
    Ok(())
}

#[test]
fn every_body_and_every_answer_has_an_example_that_fits_its_schema() -> Outcome {
    let document = document()?;
    for operation in operations(&document) {
        let body = operation.value.get("requestBody").into_iter();
        let answers = map(&operation.value["responses"]).map(|(_, answer)| answer);
        for content in body.chain(answers) {
            let content = resolved(&document, content);
            let shown = map(&content["content"]).filter(|(kind, _)| *kind != FILE);
            for (kind, content) in shown {
                let id = format!("{} {kind}", operation.id());
                let named = map(&content["examples"]).map(|(_, one)| resolved(&document, one));
                let values = named.map(|one| &one["value"]).chain(content.get("example"));
                let values: Vec<&Value> = values.collect();
                assert!(!values.is_empty(), "{id} has no example");
                for value in values {
                    let mut schema = content["schema"].clone();
                    schema["components"] = document["components"].clone();
                    let validator = jsonschema::validator_for(&schema)?;
                    if let Err(error) = validator.validate(value) {
                        panic!("the example of {id}: {error} at {}", error.instance_path());
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn examples_have_no_secrets_and_each_is_shown() -> Outcome {
    let document = document()?;
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/openapi/examples.json");
    let recorded: Map<String, Value> = serde_json::from_str(&std::fs::read_to_string(recorded)?)?;
    let redactor = Redactor::default();
    for (name, value) in &recorded {
        let shown = &document["components"]["examples"][name]["value"];
        assert_eq!(shown, value, "nothing shows the example `{name}`");
        let found = redactor.json(&value.to_string(), &[]);
        let findings = found.map(|found| found.findings).unwrap_or_default();
        assert!(findings.is_empty(), "{name}: {findings:?}");
    }
    assert!(recorded.len() > 60, "{} examples", recorded.len());
    Ok(())
}

/// An operation of the document.
struct Operation {
    path: String,
    value: Value,
}

impl Operation {
    fn id(&self) -> &str {
        self.value["operationId"].as_str().unwrap_or_default()
    }
}

fn document() -> Result<Value, serde_json::Error> {
    serde_json::from_str(statehold_server::openapi_json())
}

fn operations(document: &Value) -> Vec<Operation> {
    let items = map(&document["paths"]);
    let operations = items.flat_map(|(path, item)| {
        map(item).map(|(_, value)| Operation {
            path: path.clone(),
            value: value.clone(),
        })
    });
    operations.collect()
}

fn map(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The value itself, or the one that it refers to.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let reference = value["$ref"].as_str();
    let found = reference.and_then(|text| document.pointer(text.trim_start_matches('#')));
    found.unwrap_or(value)
}

fn is_sentence(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    text.len() > 5 && text.ends_with('.')
}

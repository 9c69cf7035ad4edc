//! State values in system prompts: `{user:language}` becomes the value of that key, `{user:language?}`
//! becomes nothing if there is none. The rules are those of ADK's instructions: braces around anything but a
//! key stay as they are, and a missing value without `?` fails the turn. `{{name}}` is written `{name}`.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use statehold_core::scope::StateKey;
use statehold_engine::bodies::Raw;

use crate::turn::TurnError;

/// Most bytes of one value in a prompt.
const VALUE_BYTES_MAX: usize = 16 * 1024;

/// A system prompt, read once.
#[derive(Debug)]
pub(crate) struct PromptTemplate {
    parts: Vec<PromptPart>,
}

#[derive(Debug, PartialEq, Eq)]
enum PromptPart {
    Text(String),
    Value { key: StateKey, is_optional: bool },
}

impl PromptTemplate {
    pub(crate) fn new(prompt: &str) -> Self {
        let (mut parts, mut text) = (Vec::new(), String::new());
        let mut rest = prompt;
        while let Some(open) = rest.find('{') {
            let (before, from) = rest.split_at(open);
            text.push_str(before);
            if let Some((name, after)) = escaped(from) {
                text.extend(["{", name, "}"]);
                rest = after;
            } else if let Some((part, after)) = placeholder(from) {
                parts.push(PromptPart::Text(std::mem::take(&mut text)));
                parts.push(part);
                rest = after;
            } else {
                text.push('{');
                rest = &from[1..];
            }
        }
        text.push_str(rest);
        parts.push(PromptPart::Text(text));
        parts.retain(|part| !matches!(part, PromptPart::Text(text) if text.is_empty()));
        Self { parts }
    }

    /// The keys that it names, each once.
    pub(crate) fn keys(&self) -> Vec<StateKey> {
        let mut keys: Vec<StateKey> = Vec::new();
        for part in &self.parts {
            if let PromptPart::Value { key, .. } = part
                && !keys.contains(key)
            {
                keys.push(key.clone());
            }
        }
        keys
    }

    /// The prompt with these values.
    pub(crate) fn render(&self, values: &[(StateKey, Raw)]) -> Result<String, TurnError> {
        let values: BTreeMap<&StateKey, &Raw> =
            values.iter().map(|(key, raw)| (key, raw)).collect();
        let mut prompt = String::new();
        for part in &self.parts {
            match part {
                PromptPart::Text(text) => prompt.push_str(text),
                PromptPart::Value { key, is_optional } => match values.get(key) {
                    Some(value) => prompt.push_str(&shown(key, value)?),
                    None if *is_optional => {}
                    None => return Err(missing(key)),
                },
            }
        }
        Ok(prompt)
    }
}

/// `{{name}}` at the begin of a text: the name, and the text after it.
fn escaped(from: &str) -> Option<(&str, &str)> {
    let (inner, after) = from.strip_prefix("{{")?.split_once("}}")?;
    is_name(inner).then_some((inner, after))
}

/// `{name}` or `{name?}` at the begin of a text, and the text after it.
fn placeholder(from: &str) -> Option<(PromptPart, &str)> {
    let (inner, after) = from.strip_prefix('{')?.split_once('}')?;
    if !is_name(inner) {
        return None;
    }
    let inner = inner.trim();
    let (name, is_optional) = match inner.strip_suffix('?') {
        Some(name) => (name, true),
        None => (inner, false),
    };
    let key = name.parse().ok()?;
    Some((PromptPart::Value { key, is_optional }, after))
}

/// Whether braces hold the name of a state key: a scope and an identifier, with white space around them.
fn is_name(inner: &str) -> bool {
    let name = inner.trim();
    let name = name.strip_suffix('?').unwrap_or(name);
    let name = match name.split_once(':') {
        Some(("app" | "user" | "temp", name)) => name,
        Some(_) => return false,
        None => name,
    };
    let mut letters = name.chars();
    let begins = letters
        .next()
        .is_some_and(|c| c.is_alphabetic() || c == '_');
    begins && letters.all(|c| c.is_alphanumeric() || c == '_')
}

/// A value as it stands in a prompt: a text as it is, null as nothing, everything else as JSON.
fn shown(key: &StateKey, value: &RawValue) -> Result<String, TurnError> {
    let json = value.get();
    let text = match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str(json).unwrap_or_default(),
        Some(b'n') => String::new(),
        _ => json.to_owned(),
    };
    if text.len() <= VALUE_BYTES_MAX {
        return Ok(text);
    }
    let message = format!(
        "the value of `{key}` has {} bytes, and a prompt takes {VALUE_BYTES_MAX} of one value; write a \
         shorter one, or give the agent the key as a state tool",
        text.len()
    );
    Err(TurnError::failed("state_too_large", message))
}

fn missing(key: &StateKey) -> TurnError {
    let message = format!(
        "the prompt names `{{{key}}}`, and this key has no value here; write it first, or let it be \
         optional: `{{{key}?}}`"
    );
    TurnError::failed("state_missing", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::raw;

    fn values() -> Vec<(StateKey, Raw)> {
        let value = |key: &str, json: &str| {
            let json = RawValue::from_string(json.to_owned()).expect("JSON");
            (key.parse().expect("a key"), json)
        };
        vec![
            value("user:language", "\"Fran\\u00e7ais\""),
            value("limits", r#"{"rows":50}"#),
            value("app:beta", "true"),
            value("temp:none", "null"),
        ]
    }

    #[test]
    fn keys_in_braces_become_their_values_and_everything_else_stays() {
        for (prompt, expected) in [
            ("Answer in {user:language}.", "Answer in Français."),
            ("{ user:language } {limits}", "Français {\"rows\":50}"),
            ("beta={app:beta}, none={temp:none}.", "beta=true, none=."),
            ("[{user:name?}]", "[]"),
            ("[{user:language?}]", "[Français]"),
            (
                r#"Write {"a": 1} or {} or {x y}."#,
                r#"Write {"a": 1} or {} or {x y}."#,
            ),
            ("{other:x} {1a} {App:x} {a", "{other:x} {1a} {App:x} {a"),
            (
                "{{user:language}} and {{limits?}}",
                "{user:language} and {limits?}",
            ),
        ] {
            let template = PromptTemplate::new(prompt);
            let rendered = template.render(&values()).expect(prompt);
            assert_eq!(rendered, expected, "{prompt}");
        }
    }

    #[test]
    fn a_value_never_names_another_one() {
        let key: StateKey = "a".parse().expect("a key");
        let told = [(key, raw(&"{user:secret}"))];
        let rendered = PromptTemplate::new("{a}").render(&told).expect("a prompt");
        assert_eq!(rendered, "{user:secret}");
    }

    #[test]
    fn a_missing_value_fails_the_turn_and_says_what_to_do() {
        let template = PromptTemplate::new("{user:name} {user:name} {topic?}");
        assert_eq!(template.keys().len(), 2);
        let error = template.render(&[]).expect_err("no value");
        let TurnError::Failed(failure) = error else {
            panic!("{error}");
        };
        assert_eq!(failure.code, "state_missing");
        assert!(
            failure.message.contains("`{user:name?}`"),
            "{}",
            failure.message
        );
        let long = [("topic".parse().expect("a key"), raw(&"x".repeat(20_000)))];
        let error = PromptTemplate::new("{topic}").render(&long);
        let error = error.expect_err("too long").to_string();
        assert!(error.contains("20000 bytes"), "{error}");
    }
}

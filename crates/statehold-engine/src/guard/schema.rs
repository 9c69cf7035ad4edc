//! JSON Schemas from workers, used to validate people's answers.
//!
//! Any worker that may open a hold may send a schema, so schemas are untrusted: nothing is fetched,
//! patterns run in linear time, and references must not form a cycle. So the cost of a validation is at
//! most the size of the schema with all references expanded, times the size of the answer.

use std::collections::BTreeMap;

use jsonschema::PatternOptions;
use serde::Serialize;
use serde_json::Value;

/// The longest schema, in bytes.
const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of parts of a schema, with all references expanded.
const SCHEMA_PARTS_MAX: usize = 20_000;
/// The maximum nesting depth, with references expanded.
const SCHEMA_DEPTH_MAX: usize = 64;
/// The maximum size of one compiled pattern.
const PATTERN_BYTES_MAX: usize = 1024 * 1024;
/// How many errors are reported, and how long each may be.
const ERRORS_MAX: usize = 16;
const MESSAGE_BYTES_MAX: usize = 256;

/// One validation error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// The JSON Pointer of the value.
    pub path: String,
    /// The problem.
    pub message: String,
}

impl FieldError {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: cut(path.into()),
            message: cut(message.into()),
        }
    }
}

/// Shortens a text of an error: names and values of callers are in it.
fn cut(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX));
        text.push('…');
    }
    text
}

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    validator: jsonschema::Validator,
}

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    ///
    /// If it is not a schema, is too large, or refers outside itself. The error names the path.
    pub fn new(text: &str) -> Result<Self, FieldError> {
        if text.len() > SCHEMA_BYTES_MAX {
            return Err(FieldError::new("", "a schema has at most 65536 bytes"));
        }
        let schema: Value = serde_json::from_str(text)
            .map_err(|error| FieldError::new("", format!("it is not JSON: {error}")))?;
        if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
            return Err(FieldError::new("", "a schema is an object"));
        }
        let mut sizes = Sizes {
            schema: &schema,
            known: BTreeMap::new(),
        };
        sizes.of(&schema, "", 0)?;
        let built = jsonschema::options()
            .offline()
            .with_pattern_options(
                PatternOptions::regex()
                    .size_limit(PATTERN_BYTES_MAX)
                    .dfa_size_limit(PATTERN_BYTES_MAX),
            )
            .should_validate_formats(true)
            .should_ignore_unknown_formats(true)
            .build(&schema);
        match built {
            Ok(validator) => Ok(Self { validator }),
            Err(error) => {
                let path = error.instance_path().to_string();
                Err(FieldError::new(path, error.to_string()))
            }
        }
    }

    /// The first validation error of a value. Unlike all of them, it needs no memory for each part of the value.
    pub fn first_error(&self, value: &Value) -> Option<FieldError> {
        let error = self.validator.validate(value).err()?;
        let path = error.instance_path().to_string();
        Some(FieldError::new(path, error.to_string()))
    }

    /// Validation errors of a value, up to a limit. For short values: the validator finds all of them first.
    pub fn errors(&self, value: &Value) -> Vec<FieldError> {
        // Most values are valid, and `is_valid` is faster than collecting errors.
        if self.validator.is_valid(value) {
            return Vec::new();
        }
        let errors = self.validator.iter_errors(value).take(ERRORS_MAX);
        errors
            .map(|error| FieldError::new(error.instance_path().to_string(), error.to_string()))
            .collect()
    }

    /// Validation errors of a value with redacted parts: reports only paths that exist in `seen`, and
    /// never a part of the value.
    pub(crate) fn places(&self, value: &Value, seen: &Value) -> Vec<FieldError> {
        if self.validator.is_valid(value) {
            return Vec::new();
        }
        let errors = self.validator.iter_errors(value).take(ERRORS_MAX);
        let told = errors.map(|error| {
            let path = error.instance_path().to_string();
            let is_seen = seen.pointer(&path).is_some();
            let path = if is_seen { path } else { String::new() };
            FieldError::new(path, "does not fit the schema of the arguments")
        });
        told.collect()
    }
}

/// The sizes of a schema's parts with all references expanded.
struct Sizes<'a> {
    schema: &'a Value,
    /// By the pointer of a part. None while it is being measured: finding it again means a cycle.
    known: BTreeMap<String, Option<SchemaSize>>,
}

/// The number of parts and levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SchemaSize {
    parts: usize,
    levels: usize,
}

impl Sizes<'_> {
    fn of(&mut self, part: &Value, path: &str, depth: usize) -> Result<SchemaSize, FieldError> {
        let too_deep = || {
            let what = "a schema nests at most 64 levels, references included";
            Err(FieldError::new(path, what))
        };
        if depth > SCHEMA_DEPTH_MAX {
            return too_deep();
        }
        let mut extent = SchemaSize {
            parts: 1,
            levels: 1,
        };
        let mut add = |below: SchemaSize| {
            extent.parts += below.parts;
            extent.levels = extent.levels.max(below.levels + 1);
        };
        match part {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let below = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
                    add(self.of_field(name, value, &below, depth)?);
                }
            }
            Value::Array(parts) => {
                for (index, value) in parts.iter().enumerate() {
                    add(self.of(value, &format!("{path}/{index}"), depth + 1)?);
                }
            }
            _ => {}
        }
        if depth + extent.levels > SCHEMA_DEPTH_MAX + 1 {
            return too_deep();
        }
        if extent.parts > SCHEMA_PARTS_MAX {
            let what = "the schema is too large with its references written out";
            return Err(FieldError::new(path, what));
        }
        Ok(extent)
    }

    fn of_field(
        &mut self,
        name: &str,
        value: &Value,
        path: &str,
        depth: usize,
    ) -> Result<SchemaSize, FieldError> {
        match (name, value) {
            ("$ref", Value::String(target)) => self.of_target(target, path, depth),
            ("$dynamicRef" | "$recursiveRef" | "$dynamicAnchor" | "$anchor", _)
                if !value.is_object() =>
            {
                let what = "only references of the form #/… can be used";
                Err(FieldError::new(path, what))
            }
            ("$id", Value::String(_)) if path != "/$id" => {
                let what = "`$id` can only stand at the top of a schema";
                Err(FieldError::new(path, what))
            }
            _ => self.of(value, path, depth + 1),
        }
    }

    fn of_target(
        &mut self,
        target: &str,
        path: &str,
        depth: usize,
    ) -> Result<SchemaSize, FieldError> {
        let Some(pointer) = target
            .strip_prefix('#')
            .filter(|rest| rest.starts_with('/') && !rest.contains('%'))
        else {
            let what = "only references of the form #/… can be used, and none to the whole schema";
            return Err(FieldError::new(path, what));
        };
        match self.known.get(pointer) {
            Some(Some(extent)) => return Ok(*extent),
            Some(None) => {
                let what = "a schema may not refer to itself in a circle";
                return Err(FieldError::new(path, what));
            }
            None => {}
        }
        let Some(part) = self.schema.pointer(pointer) else {
            return Err(FieldError::new(path, "there is nothing at this reference"));
        };
        self.known.insert(pointer.to_owned(), None);
        let extent = self.of(part, pointer, depth + 1)?;
        self.known.insert(pointer.to_owned(), Some(extent));
        Ok(extent)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(schema: &Value) -> Result<Schema, FieldError> {
        Schema::new(&schema.to_string())
    }

    #[track_caller]
    fn refused(bad: &Value, path: &str, says: &str) {
        let error = schema(bad).expect_err("it is refused");
        assert_eq!(error.path, path, "{error:?}");
        assert!(error.message.contains(says), "{error:?}");
    }

    #[test]
    fn values_are_checked_and_told_by_pointer() {
        let person = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object", "required": ["name"], "additionalProperties": false,
            "properties": {"name": {"$ref": "#/$defs/text"}, "tags": {"items": {"$ref": "#/$defs/text"}},
                           "mail": {"type": "string", "format": "email"}},
            "$defs": {"text": {"type": "string", "maxLength": 3, "pattern": "^[a-z]+$"}},
        });
        let person = schema(&person).expect("a schema");
        assert!(
            person
                .errors(&json!({"name": "ann", "tags": ["a"]}))
                .is_empty()
        );
        let wrong = json!({"name": "Anna!", "tags": ["a", 5], "mail": "x", "more": 1});
        let paths: Vec<String> = person.errors(&wrong).into_iter().map(|e| e.path).collect();
        for path in ["/name", "/tags/1", "/mail", ""] {
            assert!(paths.contains(&path.to_owned()), "{path} in {paths:?}");
        }
    }

    #[test]
    fn errors_are_few_and_short() {
        let texts =
            schema(&json!({"items": {"type": "string", "maxLength": 1}})).expect("a schema");
        let long: Vec<String> = (0..100).map(|_| "é".repeat(1_000)).collect();
        let errors = texts.errors(&json!(long));
        assert_eq!(errors.len(), ERRORS_MAX);
        assert!(
            errors
                .iter()
                .all(|e| e.message.len() <= MESSAGE_BYTES_MAX + 3)
        );
    }

    #[test]
    fn a_bad_schema_is_refused_with_its_place() {
        refused(
            &json!({"properties": {"a": {"type": "nothing"}}}),
            "/properties/a/type",
            "nothing",
        );
        refused(&json!([]), "", "object");
        refused(&json!({"minimum": "x"}), "/minimum", "");
        refused(
            &json!({"properties": {"a": {"pattern": "(?=x)"}}}),
            "/properties/a/pattern",
            "",
        );
        refused(&json!({"title": "x".repeat(SCHEMA_BYTES_MAX)}), "", "65536");
        let mut deep = json!({});
        for _ in 0..70 {
            deep = json!({"not": deep});
        }
        let error = schema(&deep).expect_err("too deep");
        assert!(error.message.contains("64 levels"), "{error:?}");
    }

    #[test]
    fn nothing_is_fetched() {
        for target in [
            "https://x.test/s",
            "file:///etc/passwd",
            "other.json",
            "#anchor",
            "#",
        ] {
            refused(&json!({"$ref": target}), "/$ref", "#/");
        }
        refused(
            &json!({"not": {"$id": "https://x.test/"}}),
            "/not/$id",
            "top",
        );
        refused(&json!({"$dynamicRef": "#x"}), "/$dynamicRef", "#/");
        schema(&json!({"$schema": "https://x.test/mine"})).expect_err("an unknown language");
        // A property named `$ref` is not a reference.
        schema(&json!({"properties": {"$ref": {"type": "string"}}})).expect("a schema");
    }

    #[test]
    fn circles_and_explosions_are_refused() {
        refused(
            &json!({"allOf": [{"$ref": "#/$defs/a"}],
                    "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
            "/$defs/b/not/$ref",
            "circle",
        );
        let mut defs = serde_json::Map::new();
        for n in 0..10 {
            let next = format!("#/$defs/a{}", n + 1);
            let many: Vec<Value> = (0..8).map(|_| json!({"$ref": next})).collect();
            defs.insert(format!("a{n}"), json!({"allOf": many}));
        }
        defs.insert("a10".to_owned(), json!({"type": "string"}));
        let error = schema(&json!({"$ref": "#/$defs/a0", "$defs": defs})).expect_err("too large");
        assert!(error.message.contains("too large"), "{error:?}");
        // A chain is too deep even if its end is measured first.
        let link = |n: usize| {
            (
                format!("a{n}"),
                json!({"not": {"$ref": format!("#/$defs/a{}", n - 1)}}),
            )
        };
        let mut defs: serde_json::Map<String, Value> = (1..100).map(link).collect();
        defs.insert("a0".to_owned(), json!({"type": "string"}));
        let error = schema(&json!({"$defs": defs, "$ref": "#/$defs/a99"})).expect_err("too deep");
        assert!(error.message.contains("64 levels"), "{error:?}");
    }

    #[test]
    fn patterns_run_in_linear_time() {
        let slow = schema(&json!({"pattern": "^(a+)+$"})).expect("a schema");
        let text = format!("{}!", "a".repeat(100_000));
        assert_eq!(slow.errors(&json!(text)).len(), 1);
        refused(&json!({"pattern": "(a{1000}){1000}"}), "/pattern", "");
    }
}

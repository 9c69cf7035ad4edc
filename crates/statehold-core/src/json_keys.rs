//! Keys of JSON objects from outside: each occurs once.
//!
//! Parsers disagree about an object with the same key twice: some take the first value, most the last. A person
//! could approve one value and a tool take the other.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// How many characters of a key an error has.
const SHOWN_MAX: usize = 64;

/// An object with the same key twice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an object has the key {key:?} twice; send each key once")]
pub struct DuplicateKey {
    /// The key without escapes, cut after 64 characters.
    pub key: String,
}

/// Refuses a JSON text in which an object has a key twice, however deep and however the key is spelled.
///
/// # Errors
///
/// If there is one. A text that is not JSON may pass: parsers refuse it.
pub fn require_unique_keys(json: &str) -> Result<(), DuplicateKey> {
    let found = RefCell::new(None);
    let mut deserializer = serde_json::Deserializer::from_str(json);
    // A text that is not JSON stops the walk too.
    drop(Walk { found: &found }.deserialize(&mut deserializer));
    found.into_inner().map_or(Ok(()), Err)
}

/// Walks through a value up to the first duplicate.
#[derive(Clone, Copy)]
struct Walk<'a> {
    found: &'a RefCell<Option<DuplicateKey>>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        while values.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let mut keys = BTreeSet::new();
        while let Some(key) = fields.next_key::<Cow<'de, str>>()? {
            if keys.contains(&key) {
                let key = key.chars().take(SHOWN_MAX).collect();
                *self.found.borrow_mut() = Some(DuplicateKey { key });
                return Err(A::Error::custom("a key stands there twice"));
            }
            keys.insert(key);
            fields.next_value_seed(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, duplicate: Option<&str>) {
        let found = require_unique_keys(json).err().map(|error| error.key);
        assert_eq!(found.as_deref(), duplicate, "{json}");
    }

    #[test]
    fn a_key_that_occurs_twice_in_an_object_is_found_however_deep_and_however_spelled() {
        check(r#"{"amount":1,"amount":1000}"#, Some("amount"));
        check(r#"{"amount":1,"amount":1}"#, Some("amount"));
        check(r#"{"a":[{"b":{"c":1,"d":2,"c":3}}]}"#, Some("c"));
        check(
            r#"[{"amount":1},{"am\u006funt":1,"amount":2}]"#,
            Some("amount"),
        );
        check(r#"{"":1,"":2}"#, Some(""));
        check(r#"{"a":{"x":1},"b":{"x":1},"c":[{"x":1},{"x":1}]}"#, None);
        check(r#"{"a":"{\"x\":1,\"x\":2}","A":1}"#, None);
        check("[1, -2, 1.5, true, null, \"a\"]", None);
        check("no json", None);
    }
}

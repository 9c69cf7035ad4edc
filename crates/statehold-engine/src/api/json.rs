//! JSON that passes through untouched, and times as views show them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use statehold_core::time::Timestamp;

pub use crate::bodies::{Raw, to_bytes as to_body};

/// A point in time as a view shows it: RFC 3339 in UTC with microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Self(at)
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0.as_micros()) {
            Ok(at) => write!(f, "{at:.6}"),
            // Beyond the year 9999.
            Err(_) => f.write_str("9999-12-31T23:59:59.999999Z"),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        let at: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(Timestamp::from_micros(at.as_microsecond())))
    }
}

/// A list of at most `MAX` elements. It is refused when the next one comes, so that a long list costs no memory.
pub(crate) fn list_at_most<'de, const MAX: usize, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct List<const MAX: usize, T>(PhantomData<T>);

    impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for List<MAX, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "a list of at most {MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut found = Vec::new();
            while let Some(element) = list.next_element()? {
                if found.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                found.push(element);
            }
            Ok(found)
        }
    }

    deserializer.deserialize_seq(List::<MAX, T>(PhantomData))
}

/// An object of at most `MAX` members, refused in the same way.
pub(crate) fn map_at_most<'de, const MAX: usize, T, D>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Members<const MAX: usize, T>(PhantomData<T>);

    impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for Members<MAX, T> {
        type Value = BTreeMap<String, T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "an object of at most {MAX} members")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = BTreeMap::new();
            while let Some((name, value)) = map.next_entry()? {
                if found.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                found.insert(name, value);
            }
            Ok(found)
        }
    }

    deserializer.deserialize_map(Members::<MAX, T>(PhantomData))
}

/// Text as JSON.
///
/// # Panics
///
/// Never: a JSON string is JSON.
pub fn raw_text(text: &str) -> Raw {
    let json = serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned());
    RawValue::from_string(json).expect("a JSON string is JSON")
}

/// Stored bytes as JSON. They were validated when they were stored; damaged ones are shown as null.
pub fn raw_bytes(bytes: &[u8]) -> Raw {
    let text = String::from_utf8_lossy(bytes).into_owned();
    RawValue::from_string(text).unwrap_or_else(|_| raw_null())
}

/// The JSON `null`.
///
/// # Panics
///
/// Never: null is JSON.
pub fn raw_null() -> Raw {
    RawValue::from_string("null".to_owned()).expect("null is JSON")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// How many elements were read.
    static READ: AtomicUsize = AtomicUsize::new(0);

    struct Counted;

    impl<'de> Deserialize<'de> for Counted {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            READ.fetch_add(1, Ordering::Relaxed);
            serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_refused_at_the_first_element_too_many() {
        let long = format!("[{}]", vec!["{}"; 1_000].join(","));
        let mut json = serde_json::Deserializer::from_str(&long);
        let read = list_at_most::<3, Counted, _>(&mut json);
        let error = read.map(drop).expect_err("it is too long").to_string();
        assert!(error.contains("a list of at most 3 elements"), "{error}");
        assert_eq!(READ.load(Ordering::Relaxed), 4);
        let mut json = serde_json::Deserializer::from_str("[1, 2, 3]");
        let read = list_at_most::<3, u8, _>(&mut json);
        assert_eq!(read.ok(), Some(vec![1, 2, 3]));
        let mut json = serde_json::Deserializer::from_str(r#"{"a": 1, "b": 2}"#);
        let read = map_at_most::<1, u8, _>(&mut json);
        assert!(read.is_err());
    }

    #[test]
    fn times_have_six_digits_and_a_z() {
        let time = |micros| Time(Timestamp::from_micros(micros)).to_string();
        assert_eq!(time(1_763_000_000_000_007), "2025-11-13T02:13:20.000007Z");
        assert_eq!(time(0), "1970-01-01T00:00:00.000000Z");
        assert!(time(i64::MAX).starts_with("9999"));
    }

    #[test]
    fn a_time_that_was_shown_is_read_back_exactly() -> Result<(), serde_json::Error> {
        let time = Time(Timestamp::from_micros(1_763_000_000_000_007));
        let back: Time = serde_json::from_slice(&to_body(&time))?;
        assert_eq!(back, time);
        Ok(())
    }
}

//! JSON that passes through untouched, and times as views show them.

use std::borrow::Cow;

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
    use super::*;

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

//! What goes over the wire, and how it becomes what the core knows, and back.

mod credential;
pub(crate) mod feed;
pub(crate) mod hold;
pub(crate) mod item;
pub(crate) mod pushed;
pub(crate) mod request;
pub(crate) mod schema;
pub(crate) mod session;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod tree;

use serde_json::value::RawValue;
use statehold_core::time::Timestamp;

/// JSON as it came, validated and never interpreted.
pub(crate) type Raw = Box<RawValue>;

/// A point in time as RFC 3339 in UTC with microseconds.
pub(crate) fn time(at: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(at) => format!("{at:.6}"),
        // Beyond the year 9999.
        Err(_) => "9999-12-31T23:59:59.999999Z".to_owned(),
    }
}

/// Text as JSON.
pub(crate) fn raw_text(text: &str) -> Raw {
    let json = serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned());
    RawValue::from_string(json).expect("a JSON string is JSON")
}

/// Stored bytes as JSON. They were validated on the way in; what is damaged is shown as null.
pub(crate) fn raw_bytes(bytes: &[u8]) -> Raw {
    let text = String::from_utf8_lossy(bytes).into_owned();
    RawValue::from_string(text).unwrap_or_else(|_| raw_null())
}

pub(crate) fn raw_null() -> Raw {
    RawValue::from_string("null".to_owned()).expect("null is JSON")
}

/// The bytes of an answer.
pub(crate) fn to_body<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("answers always serialize to JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_six_digits_and_a_z() {
        let at = Timestamp::from_micros(1_763_000_000_000_007);
        assert_eq!(time(at), "2025-11-13T02:13:20.000007Z");
        assert_eq!(time(Timestamp::default()), "1970-01-01T00:00:00.000000Z");
        assert!(time(Timestamp::from_micros(i64::MAX)).starts_with("9999"));
    }
}

//! Numbers in JSON from outside: their grammar, which of them are kept as they are written, and their
//! canonical form.
//!
//! The rule:
//!
//! - A number without fraction and exponent is an integer. It lies between -2^63 and 2^64 - 1, and is kept
//!   exactly; its canonical form is its decimal digits.
//! - Any other number is neither too large for a double nor so small that it would become zero, and
//!   its significant digits (without zeros at either end) are exactly those of the shortest decimal
//!   that reads as the same double, as every usual writer of JSON writes it. Its canonical form is that
//!   of RFC 8785.
//! - In the arguments of an action, such a number is not an integer of 2^53 or more: readers would take
//!   it for another one.
//!
//! So reading a number and writing it back never changes its digits. Every number with at most 15
//! significant digits passes, apart from the outer ends of the range; no fraction with more than 17 does.
//! `0.1`, `1.50`, `1e3`, `-0` and 2^64 - 1 pass; `0.10000000000000001`, `1e400` and 2^64 do not.
//! `docs/formats/numbers-v1.json` has test vectors.

use std::ops::Range;

use serde_json::Value;

use crate::digest::canonical_bytes;

/// The least integer that a double may confuse with another one.
const INEXACT_FROM: f64 = 9_007_199_254_740_992.0;
/// No double needs more significant digits.
const DIGITS_MAX: usize = 17;
/// A double holds this many digits exactly within the powers of ten that [`EASY_POWER_MAX`] allows.
const EASY_DIGITS_MAX: usize = 15;
/// Well within the range in which doubles have their full precision.
const EASY_POWER_MAX: usize = 290;

/// A number that would not be kept as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a number cannot be kept as it is written: integers have 64 bits, and others the digits of a double; \
     send it as a string"
)]
pub struct InexactNumber;

/// Why a text has no number that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberError {
    /// It is no number.
    Syntax {
        /// The first byte that does not belong there.
        offset: usize,
        /// The token that would be valid there.
        expected: &'static str,
    },
    /// The number would not be kept as it is written.
    Inexact,
}

/// Refuses a JSON text with a number that would not be kept as it is written.
///
/// # Errors
///
/// If there is one, however deep. A text that is not JSON may pass: parsers refuse it.
pub fn require_exact_text(json: &str) -> Result<(), InexactNumber> {
    let bytes = json.as_bytes();
    let (mut at, mut in_text) = (0, false);
    while let Some(byte) = bytes.get(at) {
        at = match byte {
            b'\\' if in_text => at + 2,
            b'"' => {
                in_text = !in_text;
                at + 1
            }
            b'-' | b'0'..=b'9' if !in_text => match scan(json, at) {
                Ok(end) => end,
                Err(NumberError::Inexact) => return Err(InexactNumber),
                Err(NumberError::Syntax { .. }) => at + 1,
            },
            _ => at + 1,
        };
    }
    Ok(())
}

/// Refuses numbers that the arguments of an action may not have.
///
/// # Errors
///
/// If there is one, however deep.
pub fn require_exact_arguments(value: &Value) -> Result<(), InexactNumber> {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
        Value::Number(number) => {
            let is_integer = number.is_i64() || number.is_u64();
            let double = number.as_f64().filter(|double| double.is_finite());
            let is_exact = |double: f64| double.fract() != 0.0 || double.abs() < INEXACT_FROM;
            if is_integer || double.is_some_and(is_exact) {
                Ok(())
            } else {
                Err(InexactNumber)
            }
        }
        Value::Array(values) => values.iter().try_for_each(require_exact_arguments),
        Value::Object(fields) => fields.values().try_for_each(require_exact_arguments),
    }
}

/// The canonical bytes of a value: RFC 8785, with every integer as its decimal digits.
pub fn canonical_value(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_canonical(value, &mut bytes);
    bytes
}

fn write_canonical(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Number(number) if number.is_i64() || number.is_u64() => {
            bytes.extend_from_slice(number.to_string().as_bytes());
        }
        Value::Array(values) => {
            bytes.push(b'[');
            for (at, value) in values.iter().enumerate() {
                if at > 0 {
                    bytes.push(b',');
                }
                write_canonical(value, bytes);
            }
            bytes.push(b']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            bytes.push(b'{');
            for (at, (name, value)) in fields.into_iter().enumerate() {
                if at > 0 {
                    bytes.push(b',');
                }
                bytes.extend(canonical_bytes(name));
                bytes.push(b':');
                write_canonical(value, bytes);
            }
            bytes.push(b'}');
        }
        scalar => bytes.extend(canonical_bytes(scalar)),
    }
}

/// Checks the number that begins at byte `start` and returns the offset of the byte after it.
///
/// # Errors
///
/// If it is no number, or would not be kept as it is written.
pub fn scan(text: &str, start: usize) -> Result<usize, NumberError> {
    let bytes = text.as_bytes();
    let NumberToken {
        whole,
        fraction,
        exponent,
        end,
    } = NumberToken::at(bytes, start)?;
    let is_exact = if end == whole.end {
        is_exact_integer(&text[start..end])
    } else {
        is_exact_decimal(
            &text[start..end],
            &bytes[whole],
            &bytes[fraction],
            &bytes[exponent],
        )
    };
    if is_exact {
        Ok(end)
    } else {
        Err(NumberError::Inexact)
    }
}

/// The end of the number at `start`, whether or not it is kept as it is written.
///
/// # Errors
///
/// If there is no number.
pub fn scan_any(text: &str, start: usize) -> Result<usize, NumberError> {
    Ok(NumberToken::at(text.as_bytes(), start)?.end)
}

/// The places of the digits of a number.
struct NumberToken {
    whole: Range<usize>,
    fraction: Range<usize>,
    exponent: Range<usize>,
    end: usize,
}

impl NumberToken {
    fn at(bytes: &[u8], start: usize) -> Result<Self, NumberError> {
        let whole_from = start + usize::from(bytes[start] == b'-');
        let whole_to = digits(bytes, whole_from)?;
        if bytes[whole_from] == b'0' && whole_to - whole_from > 1 {
            return Err(NumberError::Syntax {
                offset: whole_from,
                expected: "a number without leading zeros",
            });
        }
        let mut end = whole_to;
        let mut fraction = 0..0;
        if bytes.get(end) == Some(&b'.') {
            fraction = end + 1..digits(bytes, end + 1)?;
            end = fraction.end;
        }
        let mut exponent = 0..0;
        if let Some(b'e' | b'E') = bytes.get(end) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            exponent = end + 1 + sign..digits(bytes, end + 1 + sign)?;
            end = exponent.end;
        }

        Ok(Self {
            whole: whole_from..whole_to,
            fraction,
            exponent,
            end,
        })
    }
}

/// The end of one or more digits.
fn digits(bytes: &[u8], from: usize) -> Result<usize, NumberError> {
    let count = bytes[from..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if count == 0 {
        return Err(NumberError::Syntax {
            offset: from,
            expected: "a digit",
        });
    }
    Ok(from + count)
}

fn is_exact_integer(number: &str) -> bool {
    // A parser would read a long number to its end.
    const BYTES_MAX: usize = 20;
    number.len() <= BYTES_MAX && (number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok())
}

fn is_exact_decimal(number: &str, whole: &[u8], fraction: &[u8], exponent: &[u8]) -> bool {
    let written = || whole.iter().chain(fraction).copied();
    let Some(first) = written().position(|digit| digit != b'0') else {
        return true;
    };
    let trailing = written().rev().take_while(|&digit| digit == b'0').count();
    let count = whole.len() + fraction.len() - first - trailing;
    if count > DIGITS_MAX {
        return false;
    }
    // The fast path: most numbers are short.
    if count <= EASY_DIGITS_MAX
        && whole.len().max(fraction.len()) + power(exponent) <= EASY_POWER_MAX
    {
        return true;
    }

    let Ok(value) = number.parse::<f64>() else {
        return false;
    };
    if !value.is_finite() || value == 0.0 {
        return false;
    }
    // Two decimals are equally short and equally close to a few doubles. Writers differ in which of
    // them they choose, so both are taken.
    let is_written = |form: &str| significant(form).eq(written().skip(first).take(count));
    is_written(&format!("{value:e}")) || is_written(&Value::from(value).to_string())
}

/// The digits of a written number, without its zeros at either end.
fn significant(form: &str) -> impl Iterator<Item = u8> {
    let mantissa = form.split('e').next().unwrap_or_default().as_bytes();
    let is_nonzero = |byte: &u8| matches!(byte, b'1'..=b'9');
    let from = mantissa.iter().position(is_nonzero).unwrap_or(0);
    let to = mantissa
        .iter()
        .rposition(is_nonzero)
        .map_or(0, |last| last + 1);
    mantissa[from..to]
        .iter()
        .copied()
        .filter(|&byte| byte != b'.')
}

/// The exponent without its sign; anything beyond the range of doubles counts as far beyond it.
fn power(digits: &[u8]) -> usize {
    digits.iter().fold(0_usize, |power, digit| {
        (power * 10 + usize::from(digit - b'0')).min(100_000)
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::IgnoredAny;

    use super::*;

    /// The test vectors that other languages read too.
    #[derive(Deserialize)]
    struct Vectors {
        numbers: Vec<NumberVector>,
        actions: Vec<ActionVector>,
    }

    #[derive(Deserialize)]
    struct NumberVector {
        json: String,
        value: bool,
        args: bool,
        canonical: Option<String>,
    }

    #[derive(Deserialize)]
    struct ActionVector {
        hold_id: String,
        tool: String,
        args: String,
        canonical: String,
        digest: String,
    }

    fn vectors() -> Vectors {
        let text = include_str!("../../../docs/formats/numbers-v1.json");
        serde_json::from_str(text).expect("test vectors")
    }

    #[test]
    fn the_test_vectors_hold() {
        let vectors = vectors();
        assert!(vectors.numbers.len() > 30 && vectors.actions.len() > 2);
        for NumberVector {
            json,
            value,
            args,
            canonical,
        } in vectors.numbers
        {
            assert_eq!(scan(&json, 0) == Ok(json.len()), value, "{json}");
            let list = format!("[\"1e999\",{json}]");
            if serde_json::from_str::<IgnoredAny>(&list).is_ok() {
                assert_eq!(require_exact_text(&list).is_ok(), value, "{json}");
            }
            if value {
                let read: Value = serde_json::from_str(&json).expect("a number");
                assert_eq!(require_exact_arguments(&read).is_ok(), args, "{json}");
                let written = String::from_utf8(canonical_value(&read)).expect("text");
                assert_eq!(Some(written), canonical, "{json}");
            } else {
                assert!(!args && canonical.is_none(), "{json}");
            }
        }
        for action in vectors.actions {
            let args: Value = serde_json::from_str(&action.args).expect("arguments");
            let hold = action.hold_id.parse().expect("an id");
            let digest = crate::digest::action_digest(hold, &action.tool, &args);
            assert_eq!(
                digest.expect("exact").to_string(),
                action.digest,
                "{}",
                action.args
            );
            let whole = serde_json::json!({
                "v": 1, "hold_id": action.hold_id, "tool": action.tool, "args": args,
            });
            let written = String::from_utf8(canonical_value(&whole)).expect("text");
            assert_eq!(written, action.canonical);
        }
    }

    #[test]
    fn a_text_is_searched_for_numbers_outside_of_strings() {
        for json in [
            r#"{"1e999":"1e999","a":["\"1e999",18446744073709551615]}"#,
            r#"{"a\\":-9223372036854775808}"#,
            "",
        ] {
            assert_eq!(require_exact_text(json), Ok(()), "{json}");
        }
        for json in [
            r#"{"a":["x",{"b":1e999}]}"#,
            r#"{"a\\":18446744073709551616}"#,
            "[0.10000000000000001]",
        ] {
            assert_eq!(require_exact_text(json), Err(InexactNumber), "{json}");
        }
    }
}

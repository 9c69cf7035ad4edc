//! Numbers: their grammar, and which of them a double holds as written.
//!
//! The rule:
//!
//! - A number without fraction and exponent lies between -(2^53 - 1) and 2^53 - 1.
//! - Any other number is neither too large for a double nor so small that it would become zero, and
//!   its significant digits (without zeros at either end) are exactly those of the shortest decimal
//!   that reads as the same double, as every usual writer of JSON writes it.
//!
//! So reading a number and writing it back never changes its digits. Every number with at most 15
//! significant digits passes, apart from the outer ends of the range; none with more than 17 does.
//! `0.1`, `1.50`, `1e3` and `-0` pass; `0.10000000000000001`, `1e400` and 2^64 + 1 do not.

use std::io::Write as _;

use super::JsonError;

const EXACT_INTEGER_MAX: u64 = (1 << 53) - 1;
/// No double needs more significant digits.
const DIGITS_MAX: usize = 17;
/// A double holds this many digits exactly within the powers of ten that [`EASY_POWER_MAX`] allows.
const EASY_DIGITS_MAX: usize = 15;
/// Well within the range in which doubles have their full precision.
const EASY_POWER_MAX: usize = 290;

/// Checks the number that begins at byte `start` and returns the offset of the byte after it.
pub(super) fn scan(text: &str, start: usize) -> Result<usize, JsonError> {
    let bytes = text.as_bytes();
    let whole_from = start + usize::from(bytes[start] == b'-');
    let whole_to = digits(bytes, whole_from)?;
    if bytes[whole_from] == b'0' && whole_to - whole_from > 1 {
        return Err(JsonError::Syntax {
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

    let is_exact = if end == whole_to {
        is_exact_integer(&bytes[whole_from..whole_to])
    } else {
        is_exact_decimal(
            &text[start..end],
            &bytes[whole_from..whole_to],
            &bytes[fraction],
            &bytes[exponent],
        )
    };
    if is_exact {
        Ok(end)
    } else {
        Err(JsonError::InexactNumber { offset: start })
    }
}

/// The end of one or more digits.
fn digits(bytes: &[u8], from: usize) -> Result<usize, JsonError> {
    let count = bytes[from..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if count == 0 {
        return Err(JsonError::Syntax {
            offset: from,
            expected: "a digit",
        });
    }
    Ok(from + count)
}

fn is_exact_integer(digits: &[u8]) -> bool {
    match digits.len() {
        0..=15 => true,
        16 => {
            let value = digits
                .iter()
                .fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
            value <= EXACT_INTEGER_MAX
        }
        _ => false,
    }
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
    let is_written = |form: &[u8]| significant(form).eq(written().skip(first).take(count));
    let mut form = [0; 32];
    let mut rest = &mut form[..];
    if write!(rest, "{value:e}").is_ok() && is_written(&form) {
        return true;
    }
    let mut form = [0; 32];
    serde_json::to_writer(&mut form[..], &value).is_ok() && is_written(&form)
}

/// The digits of a written number, without its zeros at either end.
fn significant(form: &[u8]) -> impl Iterator<Item = u8> {
    let mantissa = form
        .split(|byte| matches!(byte, b'e' | 0))
        .next()
        .unwrap_or_default();
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

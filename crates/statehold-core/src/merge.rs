//! The value that a write under a merge policy leaves.
//!
//! Callers choose both values, so the work is linear in their bytes and the result is bounded. [`merge_json`] is for writers. [`merge`] has no bounds: a verifier repeats merges that
//! were accepted when they were written.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use serde_json::{Map, Number, Value};

use crate::limits::{
    COMMAND_MERGE_BYTES_MAX, EXACT_INTEGER_MAX, MERGE_SIDE_VALUES_MAX, MERGED_BYTES_MAX,
    MERGED_ELEMENTS_MAX,
};
use crate::scope::MergePolicy;

/// Why two values do not merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The policy wants another type on one side.
    #[error("{}", types_text(*.policy, *.found, .sent))]
    Types {
        /// The policy.
        policy: MergePolicy,
        /// The type of the stored value, if there is one.
        found: Option<&'static str>,
        /// The type of the value that was sent.
        sent: &'static str,
    },
    /// The sum is too large to stay exact.
    #[error(
        "the sum would be beyond 2^53 and cannot be kept exactly; write a smaller number with `replace`"
    )]
    Overflow,
    /// One side is not JSON.
    #[error("a value is not JSON")]
    NotJson,
    /// The result has too many elements.
    #[error(
        "the merged value would have more than {MERGED_ELEMENTS_MAX} elements; spread it over several keys"
    )]
    TooManyElements,
    /// One side has too many values, whatever the result has.
    #[error(
        "a side of the merge has more than {MERGE_SIDE_VALUES_MAX} values; send fewer at a time, or spread them over \
         several keys"
    )]
    TooManyValues,
    /// The result has too many bytes.
    #[error(
        "the merged value would have more than {MERGED_BYTES_MAX} bytes; spread it over several keys"
    )]
    TooLarge,
    /// All values that the command merges have too many bytes together.
    #[error(
        "the values to merge and those that are stored have more than {COMMAND_MERGE_BYTES_MAX} bytes together; merge \
         fewer keys at a time"
    )]
    CommandTooLarge,
}

/// The JSON that `old` becomes when `new` is written under `policy`, within the limits.
///
/// `replace` and `keep_first` leave one of the two as it is, byte for byte, and have the limits of a plain
/// write.
///
/// # Errors
///
/// As [`merge`], and if one side is not JSON or the result is beyond a limit.
pub fn merge_json(
    policy: MergePolicy,
    old: Option<&[u8]>,
    new: &[u8],
) -> Result<Vec<u8>, MergeError> {
    match (policy, old) {
        (MergePolicy::Replace, _) | (MergePolicy::KeepFirst, None) => return Ok(new.to_vec()),
        (MergePolicy::KeepFirst, Some(old)) => return Ok(old.to_vec()),
        (
            MergePolicy::Add
            | MergePolicy::Append
            | MergePolicy::Union
            | MergePolicy::Patch
            | MergePolicy::Max
            | MergePolicy::Min,
            _,
        ) => {}
    }
    let merged = merge(policy, old.map(parse).transpose()?, parse(new)?)?;
    if elements(&merged) > MERGED_ELEMENTS_MAX {
        return Err(MergeError::TooManyElements);
    }
    let json = merged.to_string().into_bytes();
    if json.len() > MERGED_BYTES_MAX {
        return Err(MergeError::TooLarge);
    }
    Ok(json)
}

fn parse(json: &[u8]) -> Result<Value, MergeError> {
    if values(json) > MERGE_SIDE_VALUES_MAX {
        return Err(MergeError::TooManyValues);
    }
    serde_json::from_slice(json).map_err(|_| MergeError::NotJson)
}

/// How many values JSON has, with those inside of others: one, and one more behind each bracket and comma. Empty lists
/// and objects count twice.
fn values(json: &[u8]) -> usize {
    let (mut count, mut in_string, mut is_escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' | b',' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// How many elements a list has, or how many members an object and the objects in it have.
fn elements(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.len(),
        Value::Object(members) => {
            members.len() + members.values().map(members_below).sum::<usize>()
        }
        _ => 0,
    }
}

/// A list inside an object is a value that a merge replaces whole, so its elements do not count.
fn members_below(value: &Value) -> usize {
    match value {
        Value::Object(_) => elements(value),
        _ => 0,
    }
}

/// The value that `old` becomes when `new` is written under `policy`.
///
/// # Errors
///
/// If the policy cannot merge values of these types, or a sum would lose precision.
pub fn merge(policy: MergePolicy, old: Option<Value>, new: Value) -> Result<Value, MergeError> {
    let (found, sent) = (old.as_ref().map(type_of), type_of(&new));
    match (policy, old, new) {
        (MergePolicy::Replace, _, new) | (MergePolicy::KeepFirst, None, new) => Ok(new),
        (MergePolicy::KeepFirst, Some(old), _) => Ok(old),
        (MergePolicy::Add | MergePolicy::Max | MergePolicy::Min, None, Value::Number(new)) => {
            Ok(Value::Number(new))
        }
        (MergePolicy::Max, Some(Value::Number(old)), Value::Number(new)) => {
            let is_new = compare(&new, &old) == Ordering::Greater;
            Ok(Value::Number(if is_new { new } else { old }))
        }
        (MergePolicy::Min, Some(Value::Number(old)), Value::Number(new)) => {
            let is_new = compare(&new, &old) == Ordering::Less;
            Ok(Value::Number(if is_new { new } else { old }))
        }
        (MergePolicy::Add, Some(Value::Number(old)), Value::Number(new)) => add(&old, &new),
        (MergePolicy::Append, None, Value::Array(new)) => Ok(Value::Array(new)),
        (MergePolicy::Append, Some(Value::Array(mut list)), Value::Array(new)) => {
            list.extend(new);
            Ok(Value::Array(list))
        }
        (MergePolicy::Union, None, Value::Array(new)) => Ok(Value::Array(union(Vec::new(), new))),
        (MergePolicy::Union, Some(Value::Array(old)), Value::Array(new)) => {
            Ok(Value::Array(union(old, new)))
        }
        (MergePolicy::Patch, old, Value::Object(new)) => Ok(patch(old.unwrap_or(Value::Null), new)),
        (
            MergePolicy::Add
            | MergePolicy::Append
            | MergePolicy::Union
            | MergePolicy::Patch
            | MergePolicy::Max
            | MergePolicy::Min,
            _,
            _,
        ) => Err(MergeError::Types {
            policy,
            found,
            sent,
        }),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn types_text(policy: MergePolicy, found: Option<&str>, sent: &str) -> String {
    let (name, wanted) = match policy {
        MergePolicy::Add => ("add", "a number"),
        MergePolicy::Max => ("max", "a number"),
        MergePolicy::Min => ("min", "a number"),
        MergePolicy::Append => ("append", "a list"),
        MergePolicy::Union => ("union", "a list"),
        MergePolicy::Patch => ("patch", "an object"),
        MergePolicy::Replace | MergePolicy::KeepFirst => ("replace", "any value"),
    };
    if sent == wanted {
        let found = found.unwrap_or("missing");
        format!(
            "`{name}` merges into {wanted}, and the stored value is {found}; write {wanted} with \
             `replace` first, or use another merge policy"
        )
    } else {
        format!(
            "`{name}` merges {wanted}, and the value sent is {sent}; send {wanted}, or use `replace`"
        )
    }
}

fn add(old: &Number, new: &Number) -> Result<Value, MergeError> {
    let integers = (integer(old), integer(new));
    if let (Some(a), Some(b)) = integers {
        return match i64::try_from(a + b) {
            Ok(sum) if sum.unsigned_abs() <= EXACT_INTEGER_MAX => Ok(sum.into()),
            _ => Err(MergeError::Overflow),
        };
    }
    // The sum of a fraction and an integer that no double holds would be another number.
    let is_held = |n: i128| n.unsigned_abs() <= u128::from(EXACT_INTEGER_MAX);
    let mut held = [integers.0, integers.1].into_iter().flatten();
    if !held.all(is_held) {
        return Err(MergeError::Overflow);
    }
    let sum = old.as_f64().zip(new.as_f64()).map(|(a, b)| a + b);
    sum.and_then(Number::from_f64)
        .map(Value::Number)
        .ok_or(MergeError::Overflow)
}

/// Compares numbers exactly, also an integer that no double holds with a fraction.
fn compare(a: &Number, b: &Number) -> Ordering {
    let float = |number: &Number| number.as_f64().unwrap_or_default();
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(a), None) => compare_with_float(a, float(b)),
        (None, Some(b)) => compare_with_float(b, float(a)).reverse(),
        (None, None) => float(a).partial_cmp(&float(b)).unwrap_or(Ordering::Equal),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the cast stops at the ends of its range, beyond which no integer of JSON is"
)]
fn compare_with_float(integer: i128, float: f64) -> Ordering {
    let whole = integer.cmp(&(float.trunc() as i128));
    whole.then(0.0.partial_cmp(&float.fract()).unwrap_or(Ordering::Equal))
}

fn integer(number: &Number) -> Option<i128> {
    let signed = number.as_i64().map(i128::from);
    signed.or_else(|| number.as_u64().map(i128::from))
}

/// The old list as it is, duplicates included, then each new value that is not there yet.
fn union(old: Vec<Value>, new: Vec<Value>) -> Vec<Value> {
    // The standard hasher has random keys, so a caller cannot choose values that collide.
    let mut seen = HashSet::with_capacity(old.len() + new.len());
    seen.extend(old.iter().map(Element));
    let is_added: Vec<bool> = new
        .iter()
        .map(|value| seen.insert(Element(value)))
        .collect();
    let mut list = old;
    let added = new.into_iter().zip(is_added).filter(|(_, added)| *added);
    list.extend(added.map(|(value, _)| value));
    list
}

/// A value that can be looked up in a set. Values that are equal have the same hash.
struct Element<'a>(&'a Value);

impl PartialEq for Element<'_> {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(test)]
        tests::count_operation();
        self.0 == other.0
    }
}

// JSON has no NaN, so equality of values is reflexive.
impl Eq for Element<'_> {}

impl Hash for Element<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        #[cfg(test)]
        tests::count_operation();
        match self.0 {
            Value::Null => state.write_u8(0),
            Value::Bool(value) => {
                state.write_u8(1);
                value.hash(state);
            }
            Value::Number(number) => hash_number(number, state),
            Value::String(text) => {
                state.write_u8(5);
                text.hash(state);
            }
            Value::Array(list) => {
                state.write_u8(6);
                state.write_usize(list.len());
                for value in list {
                    Element(value).hash(state);
                }
            }
            Value::Object(members) => {
                state.write_u8(7);
                state.write_usize(members.len());
                // Equality of objects ignores the order of their members.
                let mut sorted: Vec<_> = members.iter().collect();
                sorted.sort_unstable_by_key(|(name, _)| *name);
                for (name, value) in sorted {
                    name.hash(state);
                    Element(value).hash(state);
                }
            }
        }
    }
}

/// Integers and floats are never equal, and neither are integers of different signs.
fn hash_number<H: Hasher>(number: &Number, state: &mut H) {
    if let Some(integer) = number.as_u64() {
        state.write_u8(2);
        state.write_u64(integer);
    } else if let Some(integer) = number.as_i64() {
        state.write_u8(3);
        state.write_i64(integer);
    } else {
        // Adding zero turns -0.0 into 0.0, which it is equal to.
        let float = number.as_f64().unwrap_or_default() + 0.0;
        state.write_u8(4);
        state.write_u64(float.to_bits());
    }
}

/// RFC 7396: members are merged one by one, and null removes.
fn patch(old: Value, new: Map<String, Value>) -> Value {
    let mut merged = match old {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    let mut removed = HashSet::new();
    for (name, value) in new {
        match value {
            Value::Null => {
                removed.insert(name);
            }
            Value::Object(below) => {
                let there = merged.get_mut(&name).map(Value::take);
                merged.insert(name, patch(there.unwrap_or(Value::Null), below));
            }
            value => {
                merged.insert(name, value);
            }
        }
    }
    if !removed.is_empty() {
        // One pass: removing a member by itself moves all those behind it.
        merged.retain(|name, _| !removed.contains(name));
    }
    Value::Object(merged)
}

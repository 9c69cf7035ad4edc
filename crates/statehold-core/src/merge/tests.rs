use std::cell::Cell;

use serde_json::json;

use super::*;

thread_local! {
    static OPERATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts one value that was hashed or compared.
pub(super) fn count_operation() {
    OPERATIONS.set(OPERATIONS.get() + 1);
}

/// How many values were hashed or compared while `work` ran.
fn operations_of(work: impl FnOnce()) -> usize {
    OPERATIONS.set(0);
    work();
    OPERATIONS.get()
}

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "reads better in the cases")]
fn check(policy: MergePolicy, old: Option<Value>, new: Value, expected: Option<Value>) {
    let bytes = old.as_ref().map(|old| old.to_string().into_bytes());
    let json = merge_json(policy, bytes.as_deref(), new.to_string().as_bytes());
    let text = |value: &Value| value.to_string().into_bytes();
    assert_eq!(json.ok(), expected.as_ref().map(text));
    assert_eq!(merge(policy, old, new).ok(), expected);
}

#[test]
fn policies_merge_what_they_say() {
    use MergePolicy::{Add, Append, KeepFirst, Max, Min, Patch, Replace, Union};
    check(Replace, Some(json!(1)), json!(2), Some(json!(2)));
    check(KeepFirst, Some(json!(1)), json!(2), Some(json!(1)));
    check(KeepFirst, None, json!(2), Some(json!(2)));
    check(Add, None, json!(2), Some(json!(2)));
    check(Add, Some(json!(1)), json!(2), Some(json!(3)));
    check(Add, Some(json!(1.5)), json!(2), Some(json!(3.5)));
    check(Add, Some(json!("1")), json!(2), None);
    check(Add, Some(json!(9_007_199_254_740_991_i64)), json!(1), None);
    check(Max, None, json!(2), Some(json!(2)));
    check(Max, Some(json!(3)), json!(2), Some(json!(3)));
    check(Max, Some(json!(2)), json!(2.5), Some(json!(2.5)));
    check(Max, Some(json!(-2.5)), json!(-2), Some(json!(-2)));
    check(Max, Some(json!("3")), json!(2), None);
    check(Min, Some(json!(3)), json!(2), Some(json!(2)));
    check(Min, Some(json!(-2)), json!(-2.5), Some(json!(-2.5)));
    check(Min, Some(json!(2)), json!(null), None);
    // A double does not hold these two apart.
    let (large, larger) = (
        json!(9_007_199_254_740_992_u64),
        json!(9_007_199_254_740_993_u64),
    );
    check(
        Max,
        Some(large.clone()),
        larger.clone(),
        Some(larger.clone()),
    );
    check(Min, Some(large.clone()), larger.clone(), Some(large));
    check(
        Max,
        Some(json!(9_007_199_254_740_992.0)),
        larger.clone(),
        Some(larger),
    );
    check(Append, Some(json!([1])), json!([1]), Some(json!([1, 1])));
    check(Append, None, json!({}), None);
    check(
        Union,
        Some(json!([1])),
        json!([1, 2, 2]),
        Some(json!([1, 2])),
    );
    check(Union, None, json!([2, 2]), Some(json!([2])));
    check(
        Patch,
        Some(json!({"a": 1, "b": 2})),
        json!({"b": null, "c": {"d": null}}),
        Some(json!({"a": 1, "c": {}})),
    );
    check(Patch, Some(json!({})), json!(1), None);
    check(
        Patch,
        Some(json!([1])),
        json!({"a": 1}),
        Some(json!({"a": 1})),
    );
}

#[test]
fn a_union_compares_as_json_values_compare() {
    let old = json!([1, 1.0, 0.0, {"a": 1, "b": [2]}, {"a": {"b": null}}, "1", null, [1, 2], 1]);
    let same = json!([-0.0, {"b": [2], "a": 1}, {"a": {"b": null}}, [1, 2], null, "1", 1.0, 1]);
    check(
        MergePolicy::Union,
        Some(old.clone()),
        same,
        Some(old.clone()),
    );
    let others = json!([-1, 2.0, [2, 1], {"a": 1}, {"a": {}}, true, "", [], {}, 0]);
    let mut all = old.as_array().cloned().unwrap_or_default();
    all.extend(others.as_array().cloned().unwrap_or_default());
    check(
        MergePolicy::Union,
        Some(old),
        others,
        Some(Value::Array(all)),
    );
}

/// Merging as it was first defined: each value is compared with each.
fn reference(policy: MergePolicy, old: Option<&Value>, new: &Value) -> Result<Value, MergeError> {
    let types = MergeError::Types {
        policy,
        found: old.map(type_of),
        sent: type_of(new),
    };
    let Some(old) = old else {
        let fits = match policy {
            MergePolicy::Replace | MergePolicy::KeepFirst => true,
            MergePolicy::Add | MergePolicy::Max | MergePolicy::Min => new.is_number(),
            MergePolicy::Append | MergePolicy::Union => new.is_array(),
            MergePolicy::Patch => new.is_object(),
        };
        return match policy {
            _ if !fits => Err(types),
            MergePolicy::Union => reference(policy, Some(&json!([])), new),
            MergePolicy::Patch => Ok(reference_patch(&Value::Null, new)),
            _ => Ok(new.clone()),
        };
    };
    match policy {
        MergePolicy::Replace => Ok(new.clone()),
        MergePolicy::KeepFirst => Ok(old.clone()),
        MergePolicy::Max | MergePolicy::Min => {
            let whole = |value: &Value| value.to_string().parse::<i128>().ok();
            let (Some(a), Some(b)) = (old.as_f64(), new.as_f64()) else {
                return Err(types);
            };
            let order = match (whole(old), whole(new)) {
                (Some(a), Some(b)) => b.cmp(&a),
                _ => b.total_cmp(&a),
            };
            let is_new = match policy {
                MergePolicy::Max => order.is_gt(),
                _ => order.is_lt(),
            };
            Ok(if is_new { new } else { old }.clone())
        }
        MergePolicy::Add => {
            let whole = |value: &Value| value.to_string().parse::<i128>().ok();
            let is_small = |n: i128| n.abs() <= i128::from(EXACT_INTEGER_MAX);
            match (whole(old), whole(new)) {
                (Some(a), Some(b)) if is_small(a + b) => {
                    return Ok(json!(i64::try_from(a + b).expect("it is small")));
                }
                (Some(_), Some(_)) => return Err(MergeError::Overflow),
                (Some(n), None) | (None, Some(n))
                    if !is_small(n) && old.is_number() && new.is_number() =>
                {
                    return Err(MergeError::Overflow);
                }
                _ => {}
            }
            let (Some(a), Some(b)) = (old.as_f64(), new.as_f64()) else {
                return Err(types);
            };
            let sum = Number::from_f64(a + b).map(Value::Number);
            sum.ok_or(MergeError::Overflow)
        }
        MergePolicy::Append | MergePolicy::Union => {
            let (Value::Array(old), Value::Array(new)) = (old, new) else {
                return Err(types);
            };
            let mut joined = old.clone();
            for value in new {
                if policy == MergePolicy::Append || !joined.contains(value) {
                    joined.push(value.clone());
                }
            }
            Ok(Value::Array(joined))
        }
        MergePolicy::Patch if new.is_object() => Ok(reference_patch(old, new)),
        MergePolicy::Patch => Err(types),
    }
}

fn reference_patch(old: &Value, new: &Value) -> Value {
    let Value::Object(new) = new else {
        return new.clone();
    };
    let mut merged = old.as_object().cloned().unwrap_or_default();
    for (key, value) in new {
        if value.is_null() {
            merged.shift_remove(key);
        } else {
            let below = merged.get(key).unwrap_or(&Value::Null);
            let below = reference_patch(below, value);
            merged.insert(key.clone(), below);
        }
    }
    Value::Object(merged)
}

/// Numbers that look random and are the same in every run (`SplitMix64`).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    /// A value from a small world, so that equal ones meet often.
    fn value(&mut self, depth: u64) -> Value {
        let numbers = [
            json!(0),
            json!(1),
            json!(-1),
            json!(0.0),
            json!(-0.0),
            json!(1.0),
            json!(-1.0),
            json!(1.5),
            json!(1e300),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(9_007_199_254_740_991_i64),
        ];
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(["", "a", "b"][usize::try_from(self.below(3)).unwrap_or(0)]),
            3 | 4 => {
                let index = self.below(numbers.len() as u64);
                numbers[usize::try_from(index).unwrap_or(0)].clone()
            }
            5 | 6 => self.list(depth - 1),
            _ => self.object(depth - 1),
        }
    }

    fn list(&mut self, depth: u64) -> Value {
        (0..self.below(6)).map(|_| self.value(depth)).collect()
    }

    fn object(&mut self, depth: u64) -> Value {
        let mut members = Map::new();
        for _ in 0..self.below(5) {
            let name = ["a", "b", "c", "d"][usize::try_from(self.below(4)).unwrap_or(0)];
            members.insert(name.to_owned(), self.value(depth));
        }
        Value::Object(members)
    }

    /// A value of the type that a policy merges, mostly.
    fn value_for(&mut self, policy: MergePolicy) -> Value {
        match policy {
            _ if self.below(8) == 0 => self.value(3),
            MergePolicy::Append | MergePolicy::Union => self.list(3),
            MergePolicy::Patch => self.object(3),
            _ => self.value(0),
        }
    }
}

#[test]
fn merging_is_what_it_was_when_each_value_was_compared_with_each() {
    use MergePolicy::{Add, Append, KeepFirst, Patch, Replace, Union};
    let mut dice = Dice(7);
    let mut merged = 0;
    for round in 0..60_000 {
        let policy = [Replace, KeepFirst, Add, Append, Union, Patch][round % 6];
        let old = (dice.below(6) > 0).then(|| dice.value_for(policy));
        let new = dice.value_for(policy);
        let expected = reference(policy, old.as_ref(), &new);
        merged += usize::from(expected.is_ok());
        let found = merge(policy, old.clone(), new.clone());
        // As text too: the order of members is kept, which equality of objects leaves out.
        let text = |value: &Value| value.to_string();
        assert_eq!(
            found.as_ref().map(text),
            expected.as_ref().map(text),
            "{policy:?} of {old:?} and {new}"
        );
    }
    assert!(merged > 30_000, "most rounds merge: {merged}");
}

/// Lists without a value in common, of `n` elements each.
fn apart(n: usize) -> (Vec<Value>, Vec<Value>) {
    let element = |side: &str, index: usize| json!({"id": format!("{side}{index}")});
    let list = |side: &'static str| (0..n).map(move |index| element(side, index)).collect();
    (list("a"), list("b"))
}

#[test]
fn a_union_hashes_each_value_once_and_compares_few() {
    let operations = |n: usize| {
        let (old, new) = apart(n);
        operations_of(|| assert_eq!(union(old, new).len(), 2 * n))
    };
    // An element is an object with one member: two values to hash, and hardly one to compare.
    for n in [1_000, 10_000, 125_000] {
        let found = operations(n);
        assert!((4 * n..5 * n).contains(&found), "{n}: {found}");
    }
    // All of one kind: each new value is compared with the one that is there, once.
    let equal = |n: usize| vec![json!("x"); n];
    let found = operations_of(|| assert_eq!(union(equal(1), equal(125_000)).len(), 1));
    assert!(found <= 3 * 125_001, "{found}");
}

#[test]
fn a_patch_that_removes_everything_takes_one_pass() {
    let name = |index: usize| format!("key {index}");
    let n = 200_000;
    let old: Map<_, _> = (0..n).map(|index| (name(index), json!(1))).collect();
    let new: Map<_, _> = (0..n - 1).map(|index| (name(index), Value::Null)).collect();
    let left = patch(Value::Object(old), new);
    assert_eq!(left, json!({name(n - 1): 1}));
}

fn list_json(n: usize) -> Vec<u8> {
    let list: Value = (0..n).collect::<Vec<_>>().into();
    list.to_string().into_bytes()
}

#[test]
fn a_merge_leaves_a_bounded_number_of_elements() {
    use MergePolicy::{Append, Patch, Union};
    let full = list_json(MERGED_ELEMENTS_MAX);
    let too_many = Err(MergeError::TooManyElements);
    for policy in [Append, Union] {
        assert_eq!(merge_json(policy, None, &full).as_ref(), Ok(&full));
        assert_eq!(merge_json(policy, Some(&full), b"[]").as_ref(), Ok(&full));
        assert_eq!(merge_json(policy, Some(&full), b"[-1]"), too_many);
        assert_eq!(merge_json(policy, None, &list_json(250_000)), too_many);
    }
    assert_eq!(merge_json(Union, Some(&full), &full).as_ref(), Ok(&full));
    // Members are counted through all depths, and lists in an object are one member each.
    let members = |n: usize| -> Map<String, Value> {
        (0..n)
            .map(|index| (index.to_string(), json!([1, 2])))
            .collect()
    };
    let nested = |n: usize| json!({"a": {"b": members(n)}}).to_string().into_bytes();
    let most = nested(MERGED_ELEMENTS_MAX - 2);
    assert_eq!(merge_json(Patch, None, &most).as_ref(), Ok(&most));
    assert_eq!(
        merge_json(Patch, Some(&most), br#"{"a":{"c":1}}"#),
        too_many
    );
    assert_eq!(
        merge_json(Patch, None, &nested(MERGED_ELEMENTS_MAX)),
        too_many
    );
}

#[test]
fn a_merge_leaves_a_bounded_number_of_bytes() {
    use MergePolicy::{Append, KeepFirst, Patch, Replace, Union};
    let text = |bytes: usize| format!("[\"{}\"]", "x".repeat(bytes - 4)).into_bytes();
    let full = text(MERGED_BYTES_MAX);
    for policy in [Append, Union] {
        assert_eq!(merge_json(policy, None, &full).as_ref(), Ok(&full));
        for (old, new) in [
            (None, text(MERGED_BYTES_MAX + 1)),
            (Some(&full), b"[1]".to_vec()),
        ] {
            let found = merge_json(policy, old.map(Vec::as_slice), &new);
            assert_eq!(found, Err(MergeError::TooLarge));
        }
    }
    let member = format!("{{\"a\":\"{}\"}}", "x".repeat(MERGED_BYTES_MAX));
    let found = merge_json(Patch, None, member.as_bytes());
    assert_eq!(found, Err(MergeError::TooLarge));
    // A value is not parsed where it stays as it is.
    let long = text(MERGED_BYTES_MAX + 1);
    assert_eq!(merge_json(Replace, Some(&full), &long).as_ref(), Ok(&long));
    assert_eq!(merge_json(KeepFirst, Some(&long), b"1").as_ref(), Ok(&long));
}

#[test]
fn bytes_that_are_not_json_do_not_merge() {
    for (old, new) in [(Some(&b"nonsense"[..]), &b"[1]"[..]), (None, b"[1")] {
        let found = merge_json(MergePolicy::Append, old, new);
        assert_eq!(found, Err(MergeError::NotJson));
    }
}

#[test]
fn a_side_with_too_many_values_is_refused_before_it_is_parsed() {
    // As many as allowed: the list, and each of its elements twice, because they are empty.
    let most = (MERGE_SIDE_VALUES_MAX - 2) / 2;
    let list = |count: usize| format!("[{}]", vec!["{}"; count].join(",")).into_bytes();
    assert_eq!(values(&list(most)), MERGE_SIDE_VALUES_MAX - 1);
    assert_eq!(
        merge_json(MergePolicy::Union, None, &list(most)),
        Ok(b"[{}]".to_vec())
    );
    let many = list(most + 1);
    assert_eq!(
        merge_json(MergePolicy::Union, None, &many),
        Err(MergeError::TooManyValues)
    );
    let one = b"[{}]";
    assert_eq!(
        merge_json(MergePolicy::Append, Some(&many), one),
        Err(MergeError::TooManyValues)
    );
    // Brackets and commas in texts are no values.
    assert_eq!(values(br#"["[,{\",[", 1]"#), 3);
}

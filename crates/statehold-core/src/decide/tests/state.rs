//! Scoped state: versions, scopes, and what a patch may not do.

use super::*;
use crate::command::{StateAppend, StateSet};
use crate::limits;
use crate::scope::{KeyPrefix, MergePolicy, StateKey};

fn key(text: &str) -> StateKey {
    text.parse().expect("a fixture key")
}

pub(super) fn write_of(name: &str, value: &str) -> StateSet {
    StateSet {
        key: key(name),
        value: body(value),
        merge: MergePolicy::Replace,
    }
}

fn delete(name: &str) -> StatePatch {
    StatePatch {
        delete: vec![key(name)],
        ..StatePatch::default()
    }
}

fn expecting(mut patch: StatePatch, name: &str, version: u64) -> StatePatch {
    patch.if_versions.insert(key(name), version);
    patch
}

fn merging(name: &str, merge: MergePolicy) -> StatePatch {
    let mut patch = set(name, "1");
    patch.set[0].merge = merge;
    patch
}

fn put(patch: StatePatch) -> Command {
    Command::PutState { patch, by: None }
}

fn version(w: &World, name: &str) -> Option<u64> {
    w.state.keys.get(&key(name)).map(|known| known.revision)
}

fn conflict(name: &str, expected: u64, found: u64) -> Rejection {
    Rejection::VersionConflict {
        key: key(name),
        expected,
        found,
    }
}

#[test]
fn the_values_of_a_session_have_a_limit_together_however_they_are_written() {
    let max = limits::SESSION_STATE_BYTES_MAX;
    let long = |name: &str, bytes: u64| {
        let mut patch = set(name, "a");
        patch.set[0].value.bytes = u32::try_from(bytes).expect("a length");
        patch
    };
    let too_large = |bytes| Rejection::StateTooLarge { bytes, max };
    let mut w = new_session();
    w.ok(put(long("one", max / 2)));
    w.ok(put(long("two", max / 2)));
    assert_eq!(w.state.state_bytes(), max);
    assert_eq!(w.no(put(long("three", 1))), too_large(max + 1));
    assert_eq!(w.no(put(long("two", max / 2 + 1))), too_large(max + 1));
    let mut moved = long("three", max / 2);
    moved.delete.push(key("two"));
    w.ok(put(moved));
    w.ok(put(long("three", 1)));
    w.ok(put(long("two", max / 2 - 1)));
    let full = w.state.revision;
    w.ok(put(long("two", 1)));
    w.ok(Command::Rewind { to: full });
    assert_eq!(
        w.state.state_bytes(),
        max,
        "a rewind counts what it restores"
    );
    assert_eq!(w.no(put(long("four", 1))), too_large(max + 1));
    let copy = w.fork_at(usize::try_from(full).expect("a few"));
    assert_eq!(copy.state.state_bytes(), max, "and a fork what it copies");
}

#[test]
fn a_state_that_is_too_long_already_may_shrink() {
    let max = limits::SESSION_STATE_BYTES_MAX;
    let mut w = new_session();
    w.ok(put(set("one", "a")));
    let keys = std::sync::Arc::make_mut(&mut w.state.keys);
    let known = keys.get_mut(&key("one")).expect("it was written");
    known.bytes = u32::try_from(2 * max).expect("a length");
    w.ok(put(set("one", "b")));
    assert!(w.state.state_bytes() < max);
}

#[test]
fn a_version_is_the_revision_that_wrote_the_value() {
    let mut w = new_session();
    w.ok(put(set("topic", "a")));
    assert_eq!(version(&w, "topic"), Some(2));
    w.ok(start("a1"));
    w.ok(put(set("topic", "b")));
    assert_eq!(version(&w, "topic"), Some(4));
}

#[test]
fn a_session_can_begin_with_state() {
    let mut w = World::before_the_first_record();
    let mut create = create_session();
    if let Command::CreateSession { state, .. } = &mut create {
        *state = set("topic", "a");
    }
    w.ok(create);
    assert_eq!(version(&w, "topic"), Some(1));
}

#[test]
fn a_write_may_name_the_version_it_replaces() {
    let mut w = new_session();
    w.ok(put(expecting(set("topic", "a"), "topic", 0)));
    assert_eq!(
        w.no(put(expecting(set("topic", "b"), "topic", 0))),
        conflict("topic", 0, 2)
    );
    w.ok(put(expecting(set("topic", "b"), "topic", 2)));
    assert_eq!(
        w.no(put(expecting(delete("topic"), "topic", 2))),
        conflict("topic", 2, 3)
    );
}

#[test]
fn a_write_may_depend_on_a_key_it_does_not_touch() {
    let mut w = new_session();
    w.ok(put(set("plan", "a")));
    w.ok(put(expecting(set("step", "1"), "plan", 2)));
    assert_eq!(
        w.no(put(expecting(set("step", "2"), "plan", 1))),
        conflict("plan", 1, 2)
    );
}

#[test]
fn a_deleted_key_is_gone_and_can_be_written_again() {
    let mut w = new_session();
    w.ok(put(set("topic", "a")));
    w.ok(put(delete("topic")));
    assert_eq!(version(&w, "topic"), None);
    w.ok(put(expecting(set("topic", "b"), "topic", 0)));
}

#[test]
fn deleting_what_is_not_there_writes_no_event() {
    let mut w = new_session();
    w.ok(put(delete("topic")));
    assert_eq!(w.last_events(), []);
}

#[test]
fn shared_keys_leave_the_session_and_keep_their_condition() {
    let mut w = new_session();
    let patch = expecting(merging("user:visits", MergePolicy::Add), "user:visits", 3);
    w.ok(put(patch));
    let put_event = Event::SharedStatePut {
        key: key("user:visits"),
        merge: MergePolicy::Add,
        operand: Some(body("1")),
        expected: Some(3),
        request: None,
    };
    assert_eq!(w.last_events(), [put_event]);
    assert!(w.state.keys.is_empty());
}

#[test]
fn removing_a_shared_key_is_a_write_without_a_value() {
    let mut w = new_session();
    w.ok(put(delete("app:flags")));
    assert!(matches!(
        w.last_events(),
        [Event::SharedStatePut { operand: None, .. }]
    ));
}

#[test]
fn a_shared_version_is_compared_only_where_it_is_written() {
    let mut w = new_session();
    let patch = expecting(set("topic", "a"), "app:flags", 1);
    let refusal = Rejection::VersionWithoutWrite {
        key: key("app:flags"),
    };
    assert_eq!(w.no(put(patch)), refusal);
}

#[test]
fn temporary_keys_are_never_recorded() {
    let mut w = chain(1);
    let temp = Rejection::TempKey {
        key: key("temp:chunk"),
    };
    assert_eq!(w.no(put(set("temp:chunk", "x"))), temp);
    assert_eq!(w.no(put(delete("temp:chunk"))), temp);
    let condition = expecting(set("topic", "x"), "temp:chunk", 0);
    assert_eq!(w.no(put(condition)), temp);
    let mut append = w.append("R1", &[]);
    if let Command::AppendItems { state, .. } = &mut append {
        *state = set("temp:chunk", "x");
    }
    assert_eq!(w.no(append), temp);
}

#[test]
fn a_key_stands_once_in_a_patch() {
    let mut w = new_session();
    let twice = Rejection::DuplicateKey { key: key("topic") };
    let mut patch = set("topic", "a");
    patch.set.push(write_of("topic", "b"));
    assert_eq!(w.no(put(patch)), twice);
    let mut patch = set("topic", "a");
    patch.delete.push(key("topic"));
    assert_eq!(w.no(put(patch)), twice);
}

#[test]
fn session_keys_have_no_merge_policy() {
    let mut w = new_session();
    for merge in [
        MergePolicy::KeepFirst,
        MergePolicy::Add,
        MergePolicy::Append,
        MergePolicy::Union,
        MergePolicy::Patch,
    ] {
        let refusal = Rejection::MergeOfSessionKey { key: key("topic") };
        assert_eq!(w.no(put(merging("topic", merge))), refusal);
        w.ok(put(merging("user:topic", merge)));
    }
}

#[test]
fn a_patch_is_taken_whole_or_not_at_all() {
    let mut w = new_session();
    let mut patch = set("good", "a");
    patch.set.extend(merging("bad", MergePolicy::Add).set);
    w.no(put(patch));
    assert_eq!(version(&w, "good"), None);
}

#[test]
fn state_says_which_request_wrote_it() {
    let mut w = chain(1);
    let by = w.fenced("R1");
    let patch = set("topic", "a");
    w.ok(Command::PutState {
        patch,
        by: Some(by),
    });
    let wrote = |w: &World| match w.last_events() {
        [Event::StatePut { request, .. }] => *request,
        other => panic!("{other:?}"),
    };
    assert_eq!(wrote(&w), Some(w.request("R1")));
    w.ok(put(set("topic", "b")));
    assert_eq!(wrote(&w), None);
}

#[test]
fn an_answer_writes_state_in_the_same_record() {
    let mut w = chain(1);
    let mut complete = w.complete("R1");
    if let Command::CompleteRequest {
        state, task_state, ..
    } = &mut complete
    {
        (*state, *task_state) = (set("topic", "a"), Some(body("private")));
    }
    w.ok(complete);
    assert_eq!(version(&w, "topic"), Some(w.state.revision));
    let private = Event::TaskStatePut {
        task: w.task("T1"),
        request: w.request("R1"),
        value: body("private"),
    };
    assert!(w.last_events().contains(&private));
}

#[test]
fn a_refused_answer_writes_no_state() {
    let mut w = chain(1);
    let mut complete = w.complete("R1");
    if let Command::CompleteRequest { state, .. } = &mut complete {
        *state = expecting(set("topic", "a"), "topic", 9);
    }
    assert_eq!(w.no(complete), conflict("topic", 9, 0));
    w.check("T1 running R1#1 running");
}

/// A patch of session keys, numbered from `first`.
fn many(first: usize, count: usize) -> StatePatch {
    let keys = first..first + count;
    StatePatch {
        set: keys.map(|n| write_of(&format!("k{n}"), "x")).collect(),
        ..StatePatch::default()
    }
}

#[test]
fn one_call_writes_only_so_many_keys() {
    let mut w = new_session();
    w.ok(put(many(0, limits::COMMAND_KEYS_MAX)));
    let refusal = Rejection::Limit {
        limit: "state keys in one call",
        max: 1_024,
    };
    assert_eq!(w.no(put(many(0, limits::COMMAND_KEYS_MAX + 1))), refusal);
}

#[test]
fn one_session_holds_only_so_many_keys() {
    let mut w = new_session();
    for batch in 0..10 {
        w.ok(put(many(batch * 1_000, 1_000)));
    }
    let refusal = Rejection::Limit {
        limit: "session state keys",
        max: 10_000,
    };
    assert_eq!(w.no(put(set("one-more", "x"))), refusal);
    w.ok(put(set("k0", "again")));
    let mut swap = set("one-more", "x");
    swap.delete.push(key("k0"));
    w.ok(put(swap));
}

#[test]
fn an_expected_version_survives_the_bytes_of_its_record() {
    let mut w = new_session();
    let patch = expecting(set("app:flags", "x"), "app:flags", u64::MAX);
    w.no(put(patch));
}

#[test]
fn a_value_is_only_so_long() {
    let mut w = new_session();
    let mut patch = set("user:topic", "x");
    patch.set[0].value.bytes = limits::PAYLOAD_BYTES_MAX + 1;
    assert!(matches!(w.no(put(patch)), Rejection::Limit { .. }));
}

/// A patch that adds values to a list.
fn added(list: &str, count: usize) -> StatePatch {
    let value = write_of("x", "x").value;
    StatePatch {
        append: vec![StateAppend {
            list: KeyPrefix::of_list(list).expect("a list"),
            values: vec![value; count],
        }],
        ..StatePatch::default()
    }
}

fn without_prefix(prefix: &str) -> StatePatch {
    StatePatch {
        delete_prefix: vec![prefix.parse().expect("a prefix")],
        ..StatePatch::default()
    }
}

fn keys_of(w: &World) -> Vec<String> {
    w.state.keys.keys().map(ToString::to_string).collect()
}

#[test]
fn elements_of_a_list_get_numbers_that_are_never_used_again() {
    let mut w = new_session();
    w.ok(put(added("items/", 2)));
    let first = keys_of(&w);
    assert_eq!(
        first,
        ["items/00000000000000020000", "items/00000000000000020001"]
    );
    w.ok(put(without_prefix("items/")));
    assert_eq!(keys_of(&w), [""; 0]);
    w.ok(put(added("items/", 1)));
    assert_eq!(keys_of(&w), ["items/00000000000000040000"]);
}

#[test]
fn a_number_that_a_caller_took_in_advance_is_refused_once() {
    let mut w = new_session();
    w.ok(put(set("items/00000000000000030000", "x")));
    let key = key("items/00000000000000030000");
    assert_eq!(
        w.no(put(added("items/", 1))),
        Rejection::DuplicateKey { key }
    );
    w.ok(put(set("other", "x")));
    w.ok(put(added("items/", 1)));
    assert_eq!(version(&w, "items/00000000000000040000"), Some(4));
}

#[test]
fn a_prefix_removes_its_keys_and_no_others() {
    let mut w = new_session();
    w.ok(put(added("a/", 3)));
    w.ok(put(added("ab/", 1)));
    w.ok(put(set("a", "x")));
    let mut patch = without_prefix("a/");
    patch.set.push(write_of("a/kept", "x"));
    patch.append = added("a/", 1).append;
    w.ok(put(patch));
    let left = [
        "a",
        "a/00000000000000050000",
        "a/kept",
        "ab/00000000000000030000",
    ];
    assert_eq!(keys_of(&w), left);
    // A record changes a key once, so that its past can be read from the log.
    let mut patch = without_prefix("a/");
    patch.set.push(write_of("a/kept", "y"));
    w.ok(put(patch));
    assert_eq!(version(&w, "a/kept"), Some(6));
    assert_eq!(keys_of(&w), ["a", "a/kept", "ab/00000000000000030000"]);
}

#[test]
fn lists_count_towards_the_keys_of_a_call_and_of_a_session() {
    let mut w = new_session();
    let limit = |limit, max| Rejection::Limit { limit, max };
    let refusal = limit("state keys in one call", 1_024);
    assert_eq!(
        w.no(put(added("items/", limits::COMMAND_KEYS_MAX))),
        refusal
    );
    for _ in 0..10 {
        w.ok(put(added("items/", 1_000)));
    }
    let refusal = limit("session state keys", 10_000);
    assert_eq!(w.no(put(added("items/", 1))), refusal);
    w.ok(put(without_prefix("items/")));
    assert_eq!(keys_of(&w), [""; 0]);
}

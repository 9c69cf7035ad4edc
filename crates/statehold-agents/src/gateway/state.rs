//! Rules for sending an agent's state back to it: the state must fit a schema, and old pairs of tool
//! call and result may be pruned. The stored state is never changed. Without rules, the state is
//! opaque.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;
use statehold_engine::Schema;
use statehold_engine::bodies::Raw;

use super::raw_object::RawObject;
use crate::message::raw;
use crate::spec::AgentSpec;

/// Member with the tool history, as one list.
const HISTORY: &str = "tool_call_history";
/// Members with the tool history, as two lists.
const CALLS: &str = "tool_calls";
const RESPONSES: &str = "tool_responses";

/// State rules in an agent's declaration.
#[derive(Debug, Clone)]
pub(super) struct StateRules {
    schema: Option<Arc<Schema>>,
    keep_pairs: Option<usize>,
}

/// State to send back.
#[derive(Debug)]
pub(super) struct ReturnedState {
    pub(super) state: Raw,
    /// Whether a malformed tool history was replaced by an empty list.
    pub(super) was_reset: bool,
    /// Number of pruned pairs.
    pub(super) left_out: usize,
}

impl StateRules {
    /// None if the declaration has no rules.
    pub(super) fn of(spec: &AgentSpec) -> Option<Self> {
        let rules = Self {
            schema: spec.state_schema.clone(),
            keep_pairs: spec.keep_pairs,
        };
        (rules.schema.is_some() || rules.keep_pairs.is_some()).then_some(rules)
    }

    /// Applies the rules, or returns why the state does not fit.
    pub(super) fn apply(&self, state: &RawValue) -> Result<ReturnedState, String> {
        let mut given = ReturnedState {
            state: state.to_owned(),
            was_reset: false,
            left_out: 0,
        };
        if let Some(reset) = reset_history(state) {
            given.state = reset;
            given.was_reset = true;
        }
        if let Some(schema) = &self.schema {
            require_valid(schema, &given.state)?;
        }
        let pruned = self
            .keep_pairs
            .and_then(|keep| prune_pairs(&given.state, keep));
        if let Some((state, left_out)) = pruned {
            given.state = state;
            given.left_out = left_out;
        }
        Ok(given)
    }
}

fn require_valid(schema: &Schema, state: &RawValue) -> Result<(), String> {
    let value: Value =
        serde_json::from_str(state.get()).map_err(|error| format!("it cannot be read: {error}"))?;
    let errors = schema.errors(&value);
    if errors.is_empty() {
        return Ok(());
    }
    let errors = errors.iter().map(|error| match error.path.as_str() {
        "" => error.message.clone(),
        path => format!("{path}: {}", error.message),
    });
    let errors: Vec<String> = errors.collect();
    Err(errors.join("; "))
}

/// The state with an empty tool history, if the history is not a list.
fn reset_history(state: &RawValue) -> Option<Raw> {
    let mut members = RawObject::parse(state)?;
    if members.get(HISTORY)?.get().starts_with('[') {
        return None;
    }
    members.replace(HISTORY, raw(&[(); 0]));
    Some(raw(&members))
}

/// Prunes all but the last pairs of call and result. Returns the number pruned. None if nothing is to
/// be pruned, or if calls and results cannot be matched.
fn prune_pairs(state: &RawValue, keep: usize) -> Option<(Raw, usize)> {
    let mut members = RawObject::parse(state)?;
    let left_out = if members.get(HISTORY).is_some() {
        prune_history(&mut members, keep)?
    } else {
        prune_lists(&mut members, keep)?
    };
    (left_out > 0).then(|| (raw(&members), left_out))
}

/// Calls of one message with their results. Models accept them only together.
struct CallGroup {
    first: usize,
    pairs: usize,
}

fn prune_history(members: &mut RawObject, keep: usize) -> Option<usize> {
    let entries: Vec<Raw> = serde_json::from_str(members.get(HISTORY)?.get()).ok()?;
    let mut groups: Vec<CallGroup> = Vec::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for (first, entry) in entries.iter().enumerate() {
        let entry = RawObject::parse(entry)?;
        let calls: Option<Vec<Raw>> = entry.get(CALLS).and_then(read);
        let calls = calls.filter(|calls| !calls.is_empty());
        let answers: Option<String> = entry.get("tool_call_id").and_then(read);
        match (calls, answers) {
            (Some(calls), _) => {
                known.extend(ids(&calls)?);
                let pairs = calls.len();
                groups.push(CallGroup { first, pairs });
            }
            // A result without its call: the pairs cannot be matched.
            (None, Some(answers)) if !known.contains(&answers) => return None,
            (None, Some(_)) => {}
            // A message in between belongs to the preceding group.
            (None, None) if entry.get("role").is_some() && !groups.is_empty() => {}
            // A call and its result in one entry.
            (None, None) => groups.push(CallGroup { first, pairs: 1 }),
        }
    }
    let (mut kept, mut from) = (0, entries.len());
    for group in groups.iter().rev() {
        let is_first = kept == 0 && keep > 0;
        if kept + group.pairs > keep && !is_first {
            break;
        }
        kept += group.pairs;
        from = group.first;
    }
    let total: usize = groups.iter().map(|group| group.pairs).sum();
    members.replace(HISTORY, raw(&entries.get(from..)?));
    Some(total - kept)
}

fn prune_lists(members: &mut RawObject, keep: usize) -> Option<usize> {
    let calls: Vec<Raw> = read(members.get(CALLS)?)?;
    let responses: Vec<Raw> = read(members.get(RESPONSES)?)?;
    let left_out = calls.len().saturating_sub(keep);
    let kept_calls = calls.get(left_out..)?;
    let known = ids(&calls);
    let answered: Option<Vec<String>> = responses
        .iter()
        .map(|response| read(RawObject::parse(response)?.get("tool_call_id")?))
        .collect();
    let kept_responses: Vec<&Raw> = match (known, answered) {
        (Some(known), Some(answered)) => {
            if !answered.iter().all(|id| known.contains(id)) {
                return None;
            }
            let kept = ids(kept_calls)?;
            let pairs = responses.iter().zip(&answered);
            pairs
                .filter(|(_, id)| kept.contains(*id))
                .map(|(response, _)| response)
                .collect()
        }
        // Without ids, match by position.
        _ if calls.len() == responses.len() => responses.get(left_out..)?.iter().collect(),
        _ => return None,
    };
    let (calls, responses) = (raw(&kept_calls), raw(&kept_responses));
    members.replace(CALLS, calls);
    members.replace(RESPONSES, responses);
    Some(left_out)
}

/// Ids of the calls. None if an id is missing or duplicate.
fn ids(calls: &[Raw]) -> Option<BTreeSet<String>> {
    let id = |call: &Raw| read(RawObject::parse(call)?.get("id")?);
    let ids: BTreeSet<String> = calls.iter().map(id).collect::<Option<_>>()?;
    (ids.len() == calls.len()).then_some(ids)
}

fn read<T: for<'de> serde::Deserialize<'de>>(value: &RawValue) -> Option<T> {
    serde_json::from_str(value.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Raw {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    fn rules(schema: Option<&str>, keep_pairs: Option<usize>) -> StateRules {
        let schema = schema.map(|text| Arc::new(Schema::new(text).expect("a schema")));
        StateRules { schema, keep_pairs }
    }

    #[track_caller]
    fn prunes(keep: usize, state: &str, to: &str, left_out: usize) {
        let given = rules(None, Some(keep)).apply(&json(state)).expect("fits");
        assert_eq!(given.state.get(), to);
        assert_eq!(given.left_out, left_out);
    }

    #[test]
    fn the_last_pairs_stay_whole_and_the_rest_as_it_was_written() {
        let turn = |n: u8| {
            format!(
                r#"{{"role":"assistant","tool_calls":[{{"id":"c{n}"}}]}},{{"role":"tool","tool_call_id":"c{n}","content":"{n}.0"}}"#
            )
        };
        let all = format!(
            r#"{{"z":1E400,"tool_call_history":[{},{},{}]}}"#,
            turn(1),
            turn(2),
            turn(3)
        );
        let last_two = format!(
            r#"{{"z":1E400,"tool_call_history":[{},{}]}}"#,
            turn(2),
            turn(3)
        );
        prunes(2, &all, &last_two, 1);
        prunes(3, &all, &all, 0);
        prunes(0, &all, r#"{"z":1E400,"tool_call_history":[]}"#, 3);
    }

    #[test]
    fn calls_that_were_made_together_are_kept_together() {
        let state = r#"{"tool_call_history":[{"tool_calls":[{"id":"a"}]},{"tool_call_id":"a"},{"tool_calls":[{"id":"b"},{"id":"c"}]},{"tool_call_id":"c"},{"tool_call_id":"b"}]}"#;
        let last = r#"{"tool_call_history":[{"tool_calls":[{"id":"b"},{"id":"c"}]},{"tool_call_id":"c"},{"tool_call_id":"b"}]}"#;
        prunes(1, state, last, 1);
        prunes(2, state, last, 1);
        prunes(3, state, state, 0);
    }

    #[test]
    fn a_history_of_many_calls_is_looked_through_once() {
        let calls = (0..100_000).map(|n| format!(r#"{{"tool_calls":[{{"id":"c{n}"}}]}}"#));
        let results = (0..100_000).map(|_| r#"{"tool_call_id":"c99999"}"#.to_owned());
        let all: Vec<String> = calls.chain(results).collect();
        let last = &all[99_999..];
        let state =
            |entries: &[String]| format!(r#"{{"tool_call_history":[{}]}}"#, entries.join(","));
        prunes(1, &state(&all), &state(last), 99_999);
    }

    #[test]
    fn calls_and_responses_in_two_lists_go_by_their_ids_or_by_their_places() {
        prunes(
            1,
            r#"{"tool_calls":[{"id":"a"},{"id":"b"}],"k":1,"tool_responses":[{"tool_call_id":"b"},{"tool_call_id":"a"}]}"#,
            r#"{"tool_calls":[{"id":"b"}],"k":1,"tool_responses":[{"tool_call_id":"b"}]}"#,
            1,
        );
        prunes(
            1,
            r#"{"tool_calls":["a","b"],"tool_responses":[1,2]}"#,
            r#"{"tool_calls":["b"],"tool_responses":[2]}"#,
            1,
        );
    }

    #[test]
    fn what_is_not_recognised_is_not_touched() {
        for state in [
            "17",
            "[1,2,3]",
            r#"{"tool_call_history":[1,2,3]}"#,
            r#"{"tool_call_history":[{"tool_call_id":"nobody"},{"x":1}]}"#,
            r#"{"tool_calls":["a","b"],"tool_responses":[1]}"#,
            r#"{"tool_calls":[{"id":"a"}],"tool_responses":[{"tool_call_id":"b"}]}"#,
            r#"{"tool_calls":["a","b"]}"#,
            r#"{"inner":{"tool_call_history":[{"x":1},{"x":2}]}}"#,
        ] {
            prunes(0, state, state, 0);
        }
    }

    #[test]
    fn a_history_that_is_no_list_is_an_empty_one_before_the_schema_is_asked() {
        let schema = r#"{"type":"object","properties":{"tool_call_history":{"type":"array"}}}"#;
        let rules = rules(Some(schema), None);
        let given = rules
            .apply(&json(r#"{"b":1,"tool_call_history":"no"}"#))
            .expect("fits");
        assert_eq!(given.state.get(), r#"{"b":1,"tool_call_history":[]}"#);
        assert!(given.was_reset);
        let why = rules.apply(&json("[]")).expect_err("does not fit");
        assert!(why.contains("object"), "{why}");
    }
}

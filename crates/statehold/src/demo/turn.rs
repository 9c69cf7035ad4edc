//! One turn of a demo agent: its input and its result. Agents are pure functions from one to the
//! other: no state, no calls.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use statehold_engine::bodies::text_of_value;

/// The input of an agent's turn.
#[derive(Debug, Clone, Default)]
pub(super) struct DemoTurn {
    /// The message.
    pub(super) text: String,
    /// The earlier tool calls of this conversation, oldest first.
    pub(super) memory: Vec<FinishedCall>,
    /// The state values that the session sees.
    pub(super) state: BTreeMap<String, Value>,
    /// The versions of these values.
    pub(super) versions: BTreeMap<String, u64>,
    /// The decisions of this turn's holds, oldest first.
    pub(super) decisions: Vec<DemoDecision>,
    /// The call without a result.
    pub(super) open_call: Option<DemoOpenCall>,
}

/// A tool call with its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FinishedCall {
    pub(super) name: String,
    pub(super) arguments: Value,
    pub(super) result: Value,
}

impl FinishedCall {
    pub(super) fn new(name: &str, arguments: Value, result: Value) -> Self {
        Self {
            name: name.to_owned(),
            arguments,
            result,
        }
    }
}

/// A tool call without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DemoOpenCall {
    /// The execution key.
    pub(super) id: String,
    /// The state of the call, as the claim reports it.
    pub(super) state: String,
}

/// A decided hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct DemoDecision {
    /// `approved`, `edited`, `answered`, `rejected` or `expired`.
    pub(super) status: String,
    /// The proposed arguments, and the edited ones.
    pub(super) asked: Value,
    pub(super) edited: Option<Value>,
    /// The content of the response.
    pub(super) content: Option<Value>,
    pub(super) comment: Option<String>,
}

/// The next step of a turn.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum DemoStep {
    /// The turn is done. The whole answer is one commit.
    Answer(Box<DemoAnswer>),
    /// The agent needs a person: the body of a hold, without the fence.
    Ask(Value),
    /// The hold is still open: the worker releases the request.
    Wait,
}

/// The answer of a turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct DemoAnswer {
    pub(super) text: String,
    /// Calls of this turn, with their results.
    pub(super) calls: Vec<FinishedCall>,
    /// The result of the call that was open.
    pub(super) settled: Option<DemoCallResult>,
    /// Values to write, merge policies, and expected versions.
    pub(super) set: Map<String, Value>,
    pub(super) merge: Map<String, Value>,
    pub(super) if_versions: Map<String, Value>,
}

/// The result of a call that was recorded before.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DemoCallResult {
    /// The execution key.
    pub(super) call: String,
    pub(super) outcome: &'static str,
    pub(super) result: Value,
}

impl From<DemoAnswer> for DemoStep {
    fn from(answer: DemoAnswer) -> Self {
        Self::Answer(Box::new(answer))
    }
}

impl DemoAnswer {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    /// The body of `complete`.
    pub(super) fn body(&self, fence: u64) -> Value {
        let mut items = Vec::new();
        for (index, call) in self.calls.iter().enumerate() {
            let id = format!("{}-{}", call.name, index + 1);
            items.push(json!({
                "kind": "tool_call", "name": call.name, "call_id": id,
                "arguments": call.arguments, "idempotent": true,
            }));
            items.push(json!({ "kind": "tool_result", "call_id": id, "result": call.result }));
        }
        if let Some(settled) = &self.settled {
            items.push(json!({
                "kind": "tool_result", "call_id": settled.call,
                "outcome": settled.outcome, "result": settled.result,
            }));
        }
        let mut body = json!({ "fence": fence, "output": self.text, "items": items });
        if !self.set.is_empty() {
            body["state"] = json!({
                "set": self.set, "merge": self.merge, "if_versions": self.if_versions,
            });
        }
        body
    }
}

impl DemoTurn {
    /// Writes a value on condition that it still has the version this turn has read.
    pub(super) fn replace(&self, answer: &mut DemoAnswer, key: &str, value: Value) {
        let version = self.versions.get(key).copied().unwrap_or(0);
        answer.set.insert(key.to_owned(), value);
        answer.if_versions.insert(key.to_owned(), version.into());
    }
}

impl DemoDecision {
    /// Reads a decision from a hold, as a claim shows it.
    pub(super) fn read(hold: &Value) -> Self {
        let decision = &hold["decision"];
        let there = |value: &Value| (!value.is_null()).then(|| value.clone());
        Self {
            status: hold["status"].as_str().unwrap_or_default().to_owned(),
            asked: hold["action"]["args"].clone(),
            edited: there(&decision["args"]),
            content: there(&decision["content"]),
            comment: decision["comment"].as_str().map(str::to_owned),
        }
    }
}

/// The finished tool calls among items, oldest first.
pub(super) fn calls_done<'a>(items: impl IntoIterator<Item = &'a Value>) -> Vec<FinishedCall> {
    let mut open: Vec<(&Value, FinishedCall)> = Vec::new();
    let mut done = Vec::new();
    for item in items {
        match item["kind"].as_str() {
            Some("tool_call") => {
                let name = item["name"].as_str().unwrap_or_default();
                let call = FinishedCall::new(name, item["arguments"].clone(), Value::Null);
                open.push((item, call));
            }
            Some("tool_result") => {
                // A result names its call by `call_id`, or by the id of the item.
                let is_of = |call: &Value| {
                    let id = &item["call_id"];
                    call["request_id"] == item["request_id"]
                        && (call["id"] == *id || !id.is_null() && call["call_id"] == *id)
                };
                if let Some(at) = open.iter().position(|(call, _)| is_of(call)) {
                    let (_, mut call) = open.remove(at);
                    call.result = item["result"].clone();
                    done.push(call);
                }
            }
            _ => {}
        }
    }
    done
}

/// The text of an input: a string, or the texts of a message in parts.
pub(super) fn text_of(input: &Value) -> String {
    match input {
        Value::Object(message) => message.get("content").map(text_of).unwrap_or_default(),
        content => text_of_value(content.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_find_their_calls_by_either_name_and_never_those_of_another_request() {
        let history = [
            json!({ "kind": "tool_call", "id": "itm_1", "call_id": "a-1", "request_id": "r1", "name": "a", "arguments": { "n": 1 } }),
            json!({ "kind": "tool_call", "id": "itm_2", "request_id": "r1", "name": "b", "arguments": {} }),
            json!({ "kind": "tool_result", "call_id": "itm_2", "request_id": "r1", "result": "two" }),
            json!({ "kind": "tool_result", "call_id": "a-1", "request_id": "r1", "result": 1 }),
            json!({ "kind": "tool_call", "id": "itm_3", "call_id": "a-1", "request_id": "r2", "name": "a", "arguments": { "n": 2 } }),
            json!({ "kind": "message", "content": "x", "request_id": "r2" }),
            json!({ "kind": "tool_result", "call_id": "a-1", "request_id": "r2", "result": 2 }),
            json!({ "kind": "tool_call", "id": "itm_4", "request_id": "r3", "name": "c", "arguments": {} }),
        ];
        let done = calls_done(&history);
        let told: Vec<_> = done
            .iter()
            .map(|call| (call.name.as_str(), call.result.to_string()))
            .collect();
        assert_eq!(
            told,
            [
                ("b", "\"two\"".to_owned()),
                ("a", "1".to_owned()),
                ("a", "2".to_owned())
            ]
        );
        assert_eq!(done[2].arguments, json!({ "n": 2 }));
    }

    #[test]
    fn a_message_is_a_text_or_parts_with_texts() {
        assert_eq!(text_of(&json!("hi")), "hi");
        assert_eq!(text_of(&json!({ "content": "hi" })), "hi");
        let parts = json!({ "content": [
            { "type": "text", "text": "a" }, { "type": "image_url" }, { "type": "text", "text": "b" },
        ]});
        assert_eq!(text_of(&parts), "a\nb");
        assert_eq!(text_of(&Value::Null), "");
    }

    #[test]
    fn an_answer_that_writes_nothing_has_no_state() {
        let body = DemoAnswer::text("hi").body(3);
        assert_eq!(body, json!({ "fence": 3, "output": "hi", "items": [] }));
    }
}

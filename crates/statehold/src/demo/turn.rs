//! One turn of a demo agent: what it is given, and what it wants done. Agents are functions from one
//! to the other; they keep nothing and call nobody.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// What an agent knows when it is its turn.
#[derive(Debug, Clone, Default)]
pub(super) struct Turn {
    /// What it was asked.
    pub(super) text: String,
    /// The tool calls that it made earlier in this conversation, the oldest first.
    pub(super) memory: Vec<CallDone>,
    /// The values that its session sees.
    pub(super) state: BTreeMap<String, Value>,
    /// The versions of these values.
    pub(super) versions: BTreeMap<String, u64>,
    /// How the holds of this turn were decided, the oldest first.
    pub(super) decisions: Vec<Decided>,
    /// The call that has no result yet.
    pub(super) open_call: Option<OpenCall>,
}

/// A tool call with its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallDone {
    pub(super) name: String,
    pub(super) arguments: Value,
    pub(super) result: Value,
}

/// A tool call without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenCall {
    /// The execution key.
    pub(super) id: String,
    /// What may be done with it, as the claim says.
    pub(super) state: String,
}

/// A hold that was decided.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Decided {
    /// `approved`, `edited`, `answered`, `rejected` or `expired`.
    pub(super) status: String,
    /// What was asked for, and what it was changed to.
    pub(super) asked: Value,
    pub(super) edited: Option<Value>,
    /// What was answered.
    pub(super) content: Option<Value>,
    pub(super) comment: Option<String>,
}

/// What an agent wants done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// It is done. All of the answer is one commit.
    Answer(Box<Answer>),
    /// It needs a person: the body of a hold, without the fence.
    Ask(Value),
    /// People have not decided yet: the request is given back.
    Wait,
}

/// The end of a turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) text: String,
    /// Calls that were made in this turn, with their results.
    pub(super) calls: Vec<CallDone>,
    /// What came of the call that was open.
    pub(super) settled: Option<Settled>,
    /// Values to write, how to merge those that are not replaced, and the versions they must have.
    pub(super) set: Map<String, Value>,
    pub(super) merge: Map<String, Value>,
    pub(super) if_versions: Map<String, Value>,
}

/// The result of a call that was recorded before.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settled {
    /// The execution key.
    pub(super) call: String,
    pub(super) outcome: &'static str,
    pub(super) result: Value,
}

impl From<Answer> for Step {
    fn from(answer: Answer) -> Self {
        Self::Answer(Box::new(answer))
    }
}

impl Answer {
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

impl Turn {
    /// Writes a value on the condition that it is still the one that this turn has seen.
    pub(super) fn replace(&self, answer: &mut Answer, key: &str, value: Value) {
        let version = self.versions.get(key).copied().unwrap_or(0);
        answer.set.insert(key.to_owned(), value);
        answer.if_versions.insert(key.to_owned(), version.into());
    }
}

impl Decided {
    /// From a hold, as a claim shows it.
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

/// The tool calls in the history of a task, as the agent sees it, that have a result.
pub(super) fn calls_done(history: &[Value]) -> Vec<CallDone> {
    let mut open: Vec<(&Value, CallDone)> = Vec::new();
    let mut done = Vec::new();
    for item in history {
        match item["kind"].as_str() {
            Some("tool_call") => open.push((
                item,
                CallDone {
                    name: item["name"].as_str().unwrap_or_default().to_owned(),
                    arguments: item["arguments"].clone(),
                    result: Value::Null,
                },
            )),
            Some("tool_result") => {
                // A result names its call by the caller's own name for it, or by its id.
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

/// What was said: a text, or the texts of a message in parts.
pub(super) fn text_of(input: &Value) -> String {
    match input {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts
                .iter()
                .filter_map(|part| part["text"].as_str())
                .collect();
            texts.join("\n")
        }
        Value::Object(message) => message.get("content").map(text_of).unwrap_or_default(),
        _ => String::new(),
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
        let body = Answer::text("hi").body(3);
        assert_eq!(body, json!({ "fence": 3, "output": "hi", "items": [] }));
    }
}

//! The form of calls to DIAL: its agents refuse members that they do not know. State is opaque and
//! passes as it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use statehold_engine::bodies::{Raw, text_of};

use super::raw_object::RawObject;
use crate::message::raw;

/// The members of a message.
const MESSAGE_MEMBERS: [&str; 10] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "function_call",
    "refusal",
    "reasoning_content",
    "custom_fields",
    "custom_content",
];
/// The members of `custom_content` in a request. Stages are never sent.
const CUSTOM_MEMBERS: [&str; 4] = ["state", "attachments", "form_value", "form_schema"];
/// The parameters that a caller may set. One answer is asked for, so `n` is not among them.
const PARAMETERS: [&str; 21] = [
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "user",
    "seed",
    "logprobs",
    "top_logprobs",
    "reasoning_effort",
    "response_format",
    "prompt_cache_key",
    "prompt_cache_options",
    "max_prompt_tokens",
    "custom_fields",
];

/// The fields of a call that this server writes itself. One answer is asked for.
const OWN_FIELDS: [&str; 6] = [
    "messages",
    "model",
    "n",
    "statehold",
    "stream",
    "stream_options",
];

/// An attachment, without its place in a list.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DialAttachment {
    #[serde(default, skip_serializing)]
    index: Value,
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference_url: Option<String>,
}

impl DialAttachment {
    /// None for other values.
    pub(super) fn read(text: &RawValue) -> Option<Self> {
        serde_json::from_str(text.get()).ok()
    }

    /// The attachment as agents take it: with its data or with an address, never both. None if it
    /// has neither.
    fn into_sent(mut self) -> Option<Self> {
        if self.data.is_some() {
            self.url = None;
        } else if self.url.is_none() {
            self.url = Some(self.reference_url.clone()?);
        }
        Some(self)
    }

    /// Adds what a later chunk has under the same index: texts are concatenated.
    fn append(&mut self, more: Self) {
        let texts = [
            (&mut self.kind, more.kind),
            (&mut self.title, more.title),
            (&mut self.data, more.data),
            (&mut self.url, more.url),
            (&mut self.reference_type, more.reference_type),
            (&mut self.reference_url, more.reference_url),
        ];
        for (text, more) in texts {
            match (text, more) {
                (_, None) => {}
                (Some(text), Some(more)) => text.push_str(&more),
                (text, more) => *text = more,
            }
        }
    }
}

/// The attachments of an answer, in order and without their indices. One that cannot be read is
/// left out.
pub(super) fn merged_attachments(streamed: &[Raw]) -> Vec<Raw> {
    let mut all: Vec<DialAttachment> = Vec::new();
    let mut places = BTreeMap::new();
    for file in streamed
        .iter()
        .filter_map(|file| DialAttachment::read(file))
    {
        // A file with an odd index is one of its own.
        let index = file.index.as_u64();
        let known = index.and_then(|index| places.get(&index).copied());
        if let Some(place) = known {
            let known: &mut DialAttachment = &mut all[place];
            known.append(file);
            continue;
        }
        if let Some(index) = index {
            places.insert(index, all.len());
        }
        all.push(file);
    }
    all.iter().map(raw).collect()
}

/// A message with the members that DIAL knows. Its state stays the text that it is.
pub(super) fn message(message: Raw) -> Raw {
    let Some(mut members) = RawObject::parse(&message) else {
        return message;
    };
    members.retain(|name| MESSAGE_MEMBERS.contains(&name));
    let custom = members.get("custom_content").and_then(RawObject::parse);
    if let Some(mut custom) = custom {
        custom.retain(|name| CUSTOM_MEMBERS.contains(&name));
        let files = custom.get("attachments");
        let files = files.and_then(|files| serde_json::from_str::<Vec<Raw>>(files.get()).ok());
        if let Some(files) = files {
            let files = files.iter().filter_map(|file| DialAttachment::read(file));
            let files: Vec<_> = files.filter_map(DialAttachment::into_sent).collect();
            custom.replace("attachments", raw(&files));
        }
        members.replace("custom_content", raw(&custom));
    }
    raw(&members)
}

/// The parameters of a caller that DIAL knows.
pub(super) fn parameters(mut given: Map<String, Value>) -> Map<String, Value> {
    given.retain(|name, value| PARAMETERS.contains(&name.as_str()) && !value.is_null());
    given
}

/// The fields of a caller whom the agent trusts. They go on also if DIAL does not know them: an
/// application may take further ones, and one that refuses them refuses such a caller without this
/// server as well.
pub(super) fn trusted_fields(mut given: Map<String, Value>) -> Map<String, Value> {
    given.retain(|name, value| !OWN_FIELDS.contains(&name.as_str()) && !value.is_null());
    given
}

/// The pause that an agent tells of in its state.
pub(super) fn pause_in(state: &RawValue) -> Option<Raw> {
    let state = RawObject::parse(state)?;
    let told = state.get("statehold")?;
    let status = RawObject::parse(told)?;
    let is_paused = status
        .get("status")
        .is_some_and(|status| text_of(status) == "paused");
    is_paused.then(|| told.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Raw {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    #[test]
    fn a_message_has_known_members_only_and_its_state_as_it_was() {
        let state = r#"{ "index":1.0,"tool_calls":[{"index":0,"z":1E400}],"index":2 }"#;
        let sent = message(json(&format!(
            r#"{{"role":"assistant","content":"x","id":"m1","custom_content":{{"stages":[{{"index":0}}],"state":{state},"shared_context":{{}}}}}}"#
        )));
        let expected =
            format!(r#"{{"role":"assistant","content":"x","custom_content":{{"state":{state}}}}}"#);
        assert_eq!(sent.get(), expected);
    }

    #[test]
    fn an_attachment_is_sent_with_data_or_an_address_and_never_with_both() {
        let sent = message(json(
            r#"{"role":"user","content":"x","custom_content":{"attachments":[
                {"index":0,"type":"text/csv","url":"files/a.csv","data":null,"more":1},
                {"title":"b","data":"1","url":"files/b.csv"},
                {"title":"c","reference_url":"https://c.test"},
                {"title":"nothing"}, 7]}}"#,
        ));
        let files: Value = serde_json::from_str(sent.get()).expect("JSON");
        assert_eq!(
            files["custom_content"]["attachments"],
            serde_json::json!([
                {"type": "text/csv", "url": "files/a.csv"},
                {"title": "b", "data": "1"},
                {"title": "c", "url": "https://c.test", "reference_url": "https://c.test"},
            ])
        );
    }

    #[test]
    fn streamed_attachments_are_merged_by_their_index_and_lose_it() {
        let streamed = [
            r#"{"index":0,"type":"text/plain","title":"a","data":"on"}"#,
            r#"{"index":1,"type":"text/csv","url":"files/r.csv"}"#,
            r#"{"index":0,"type":null,"data":"e"}"#,
            r#""none""#,
            r#"{"title":"whole","url":"files/w"}"#,
            r#"{"index":"0","url":"files/odd"}"#,
            r#"{"index":-1,"url":"files/odder"}"#,
        ];
        let merged = merged_attachments(&streamed.map(json));
        let merged: Vec<&str> = merged.iter().map(|file| file.get()).collect();
        assert_eq!(
            merged,
            [
                r#"{"type":"text/plain","title":"a","data":"one"}"#,
                r#"{"type":"text/csv","url":"files/r.csv"}"#,
                r#"{"title":"whole","url":"files/w"}"#,
                r#"{"url":"files/odd"}"#,
                r#"{"url":"files/odder"}"#,
            ]
        );
    }

    #[test]
    fn parameters_that_dial_does_not_know_are_not_sent() {
        let given = serde_json::json!({"temperature": 0, "n": 2, "statehold": {}, "seed": null, "custom_fields": {"configuration": {"a": 1}}});
        let Value::Object(given) = given else {
            panic!("an object");
        };
        let sent = Value::Object(parameters(given));
        assert_eq!(
            sent,
            serde_json::json!({"temperature": 0, "custom_fields": {"configuration": {"a": 1}}})
        );
    }
}

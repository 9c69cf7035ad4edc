//! Client of a language model behind a chat endpoint, and the recorded form of its replies.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use statehold_core::name::Name;
use statehold_engine::api::turn::TokenUsage;
use statehold_engine::bodies::Raw;

use crate::chat::{ChatClient, ChatEndpoint, ChatReply, ChatTarget, CompletionRequest};
use crate::http::EndpointError;
use crate::message::raw;
use crate::spec::{MediaKind, ModelSpec};
use crate::turn::TurnError;
use crate::turn_watch::calling_model;

/// Bytes per token, for estimating usage that a service does not report.
const BYTES_PER_TOKEN: usize = 4;
/// An error that contains this many consecutive characters of the request repeats it.
const REPEATED_CHARS_MIN: usize = 24;
/// Replacement for such an error text.
const NOT_SHOWN: &str = "its message is not shown because it repeats the request";

/// A configured model and its endpoint.
#[derive(Clone)]
pub(crate) struct ModelClient {
    name: Name,
    chat: ChatClient,
    endpoint: Arc<ChatEndpoint>,
    /// Inputs that the model takes beside text.
    pub(crate) input: BTreeSet<MediaKind>,
}

/// A model reply as recorded in its step.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ModelReply {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) text: String,
    /// Whether the text repeated the prompt, and `text` is what users read instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) withheld: bool,
    /// Requested tool calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<RequestedCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) finish_reason: Option<String>,
    /// Tokens that count against the budget.
    #[serde(default)]
    pub(crate) tokens: u64,
}

/// A requested tool call as recorded in its step, with the results of its check, so that a resumed turn
/// does not check it again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that are independent of each other, as they are recorded"
)]
pub(crate) struct RequestedCall {
    /// The call id that the model chose.
    pub(crate) id: String,
    /// Tool name as the model knows it.
    pub(crate) name: String,
    /// Arguments as the model wrote them, or a redacted preview.
    pub(crate) arguments: String,
    /// Name of the tool server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) server: String,
    /// Tool name on its server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) original: String,
    /// Tool name in records, which selects the policy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) tool: String,
    /// Whether it needs an approval.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) gated: bool,
    /// Whether it may be retried with the same execution key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) idempotent: bool,
    /// Whether a trusted server says that the tool only reads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) only_reads: bool,
    /// Whether the arguments here are only a redacted preview.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) hidden: bool,
    /// Why the call was rejected. The text goes to the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl ModelClient {
    pub(crate) fn new(chat: ChatClient, spec: &ModelSpec) -> Self {
        let endpoint = ChatEndpoint {
            base_url: spec.base_url.clone(),
            target: ChatTarget::Model(spec.model.clone()),
            credential: spec.credential.clone(),
            headers: spec.headers.clone(),
            timeout: spec.timeout,
            retries: spec.retries,
        };
        Self {
            name: spec.name.clone(),
            chat,
            endpoint: Arc::new(endpoint),
            input: spec.input.clone(),
        }
    }

    pub(crate) async fn send(
        &self,
        call: CompletionRequest,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(ChatReply, ModelUsage), TurnError> {
        let asked: usize = call.messages.iter().map(|one| one.get().len()).sum();
        let reply = self.chat.chat(&self.endpoint, &call, on_text);
        let reply = match calling_model(&self.name, reply).await {
            Ok(reply) => reply,
            Err(error) => {
                let failed = error.turn_failure(String::new());
                // Searching the whole request may be slow, so do it off the async threads.
                let shown = tokio::task::spawn_blocking(move || {
                    remove_repeated_text(error, &call.messages).to_string()
                });
                let shown = shown.await.unwrap_or_else(|_| NOT_SHOWN.to_owned());
                return Err(failed.with_message(format!("the model `{}`: {shown}", self.name)));
            }
        };
        let usage = ModelUsage::of(&reply, asked);
        Ok((reply, usage))
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }
}

/// Removes error texts that repeat the prompt or other parts of the request: errors are stored and
/// shown to people who may not see those.
fn remove_repeated_text(mut error: EndpointError, sent: &[Raw]) -> EndpointError {
    if let EndpointError::Status { message, .. } = &mut error
        && repeats_request(message, sent)
    {
        NOT_SHOWN.clone_into(message);
    }
    error
}

/// Whether an error contains a piece of the request. Searches for all pieces in one pass over the
/// request.
fn repeats_request(said: &str, sent: &[Raw]) -> bool {
    let said: Vec<char> = one_line(said).chars().collect();
    let pieces = said.windows(REPEATED_CHARS_MIN);
    let pieces = pieces.map(|piece| regex::escape(&piece.iter().collect::<String>()));
    let pieces: Vec<String> = pieces.collect();
    if pieces.is_empty() {
        return false;
    }
    let Ok(any_piece) = regex::Regex::new(&pieces.join("|")) else {
        // The search failed, so do not show the error.
        return true;
    };
    let mut sent = sent.iter().flat_map(texts_of);
    sent.any(|text| any_piece.is_match(&text))
}

/// A message as sent, and the texts in it.
fn texts_of(message: &Raw) -> Vec<String> {
    fn collect(value: &Value, texts: &mut Vec<String>) {
        match value {
            Value::String(text) => texts.push(one_line(text)),
            Value::Array(values) => values.iter().for_each(|value| collect(value, texts)),
            Value::Object(members) => members.values().for_each(|value| collect(value, texts)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut texts = vec![one_line(message.get())];
    if let Ok(value) = serde_json::from_str(message.get()) {
        collect(&value, &mut texts);
    }
    texts
}

/// Collapses whitespace, as in clipped errors.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_control() || c.is_whitespace());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Token usage of a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ModelUsage {
    /// Usage reported by the service.
    reported: Option<TokenUsage>,
    /// All tokens. Estimated if the service reports none, because they must count against the budget.
    pub(crate) tokens: u64,
}

#[derive(Serialize)]
struct UsageOfModel<'a> {
    #[serde(flatten)]
    usage: TokenUsage,
    /// The name of its declaration.
    model: &'a Name,
}

impl ModelUsage {
    fn of(reply: &ChatReply, asked_bytes: usize) -> Self {
        let answered: usize = reply
            .tool_calls
            .iter()
            .map(|call| call.name.len() + call.arguments.len())
            .sum();
        let bytes = asked_bytes + answered + reply.content.len();
        let guessed = u64::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u64::MAX);
        let counted = reply.usage.map(|usage| usage.total());
        Self {
            reported: reply.usage,
            tokens: counted.unwrap_or(guessed),
        }
    }

    /// Sum of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        let both = self.reported.zip(other.reported);
        Self {
            reported: both
                .map(|(a, b)| a.plus(b))
                .or(self.reported)
                .or(other.reported),
            tokens: self.tokens.saturating_add(other.tokens),
        }
    }

    /// The reported usage of a model, in chat completions form.
    pub(crate) fn to_json(self, model: &Name) -> Option<Raw> {
        let usage = self.reported?;
        Some(raw(&UsageOfModel { usage, model }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_does_not_repeat_what_was_sent() {
        let prompt = "You are the assistant.\nThe word of the day is \"xyzzy-plugh\".";
        let sent = [raw(
            &serde_json::json!({"role": "system", "content": prompt}),
        )];
        let shown = |message: &str| {
            let error = EndpointError::Status {
                status: http::StatusCode::BAD_REQUEST,
                message: message.to_owned(),
                retry_after_seconds: None,
                display_message: None,
            };
            remove_repeated_text(error, &sent).to_string()
        };
        for repeated in [
            "cannot read: You are the assistant. The word of the day is",
            r#"in {"content":"You are the assistant.\nThe word of the day"#,
            r#"word of the day is "xyzzy-plugh"."#,
        ] {
            let shown = shown(repeated);
            assert!(!shown.contains("word of the"), "{shown}");
            assert!(shown.contains("400"), "{shown}");
        }
        // At any position, with any surrounding text.
        let noise: String = ('!'..='~').cycle().take(2_000_000).collect();
        let far = [raw(&format!("{noise} {prompt} {noise}"))];
        assert!(repeats_request(
            r#"(a|b)* word of the day is "xyzzy?"#,
            &far
        ));
        assert!(!repeats_request(
            r#"(a|b)* word of the day was "xyzzy?"#,
            &far
        ));
        assert!(!repeats_request("short", &far) && !repeats_request("", &far));
        let told = shown("model gpt-9 does not exist, ask the assistant.");
        assert!(told.contains("model gpt-9 does not exist"), "{told}");
    }
}

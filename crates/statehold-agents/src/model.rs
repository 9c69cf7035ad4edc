//! A model behind a chat endpoint, as agents use it, and what is kept of what it said.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use statehold_core::name::Name;
use statehold_engine::kept::Raw;

use crate::chat::{ChatCall, ChatClient, ChatEndpoint, ChatReply, Usage};
use crate::http::CallError;
use crate::spec::ModelSpec;
use crate::turn::TurnError;
use crate::words::raw;

/// Where nothing is said about tokens, so many bytes count as one.
const BYTES_PER_TOKEN: usize = 4;
/// An error that has a piece of this length of what was sent repeats it.
const REPEATED_CHARS_MIN: usize = 24;
/// What is shown in its place.
const NOT_SHOWN: &str = "what it said is not shown because it repeats what it was told";

/// A model, and the way to it.
#[derive(Clone)]
pub(crate) struct Model {
    name: Name,
    chat: ChatClient,
    endpoint: Arc<ChatEndpoint>,
}

/// What a model said, as its step keeps it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Said {
    /// Its words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) text: String,
    /// The tools it wants called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<Wish>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) finish_reason: Option<String>,
    /// What counts against the budget.
    #[serde(default)]
    pub(crate) tokens: u64,
}

/// A tool call that a model wants, as its step keeps it: whatever is judged about it is judged once.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that are independent of each other, as they are recorded"
)]
pub(crate) struct Wish {
    /// What the model calls this call.
    pub(crate) id: String,
    /// The tool, as the model knows it.
    pub(crate) name: String,
    /// What the model wrote, or the preview where the policy hides something of it.
    pub(crate) arguments: String,
    /// The server of the tool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) server: String,
    /// What its server calls the tool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) original: String,
    /// The name under which the call is recorded, and whose policy holds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) tool: String,
    /// Whether a person must approve it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) gated: bool,
    /// Whether calling it again under the same key is harmless.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) idempotent: bool,
    /// Whether it only looks, as a server says that is believed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) only_reads: bool,
    /// Whether the arguments here are only a preview.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) hidden: bool,
    /// Why it is not even tried. The model is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// What a model is asked.
pub(crate) struct Question {
    pub(crate) messages: Vec<Raw>,
    pub(crate) extra: Map<String, Value>,
    pub(crate) stream: bool,
}

impl Model {
    pub(crate) fn new(chat: ChatClient, spec: &ModelSpec) -> Self {
        let endpoint = ChatEndpoint {
            base_url: spec.base_url.clone(),
            model: spec.model.clone(),
            credential: spec.credential.clone(),
            timeout: spec.timeout,
            retries: spec.retries,
        };
        Self {
            name: spec.name.clone(),
            chat,
            endpoint: Arc::new(endpoint),
        }
    }

    pub(crate) async fn ask(
        &self,
        question: Question,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(ChatReply, Took), TurnError> {
        let mut extra = question.extra;
        if question.stream {
            extra.insert(
                "stream_options".to_owned(),
                serde_json::json!({"include_usage": true}),
            );
        }
        let call = ChatCall {
            messages: question.messages,
            extra,
            headers: Vec::new(),
            stream: question.stream,
        };
        let asked: usize = call.messages.iter().map(|one| one.get().len()).sum();
        let reply = match self.chat.chat(&self.endpoint, &call, on_text).await {
            Ok(reply) => reply,
            Err(error) => {
                let code = error.code();
                // All that was sent is looked through, which may be long.
                let shown = tokio::task::spawn_blocking(move || {
                    without_what_was_sent(error, &call.messages).to_string()
                });
                let shown = shown.await.unwrap_or_else(|_| NOT_SHOWN.to_owned());
                let message = format!("the model `{}`: {shown}", self.name);
                return Err(TurnError::failed(code, message));
            }
        };
        let took = Took::of(&reply, asked);
        Ok((reply, took))
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }
}

/// An error that does not repeat the prompt or anything else that the model was told: errors are kept and
/// shown to people who may not see those.
fn without_what_was_sent(error: CallError, sent: &[Raw]) -> CallError {
    let CallError::Status { status, message } = error else {
        return error;
    };
    let message = if repeats(&message, sent) {
        NOT_SHOWN.to_owned()
    } else {
        message
    };
    CallError::Status { status, message }
}

/// Whether an error has a piece of what was sent. All pieces are looked for at once: what was sent is read
/// through once, however long it is.
fn repeats(said: &str, sent: &[Raw]) -> bool {
    let said: Vec<char> = one_line(said).chars().collect();
    let pieces = said.windows(REPEATED_CHARS_MIN);
    let pieces = pieces.map(|piece| regex::escape(&piece.iter().collect::<String>()));
    let pieces: Vec<String> = pieces.collect();
    if pieces.is_empty() {
        return false;
    }
    let Ok(any_piece) = regex::Regex::new(&pieces.join("|")) else {
        // What cannot be looked for is not shown.
        return true;
    };
    let mut sent = sent.iter().flat_map(texts);
    sent.any(|text| any_piece.is_match(&text))
}

/// A message as it was sent, and the texts in it.
fn texts(message: &Raw) -> Vec<String> {
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

/// As errors are clipped: without line breaks, and with single spaces.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_control() || c.is_whitespace());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// What an answer took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Took {
    /// As the service says.
    reported: Option<Usage>,
    /// Every token, guessed if the service does not say: what nobody counts would be free.
    pub(crate) tokens: u64,
}

impl Took {
    fn of(reply: &ChatReply, asked_bytes: usize) -> Self {
        let answered: usize = reply
            .tool_calls
            .iter()
            .map(|call| call.name.len() + call.arguments.len())
            .sum();
        let bytes = asked_bytes + answered + reply.content.len();
        let guessed = u64::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u64::MAX);
        let counted = reply.usage.map(|usage| {
            let parts = usage.prompt_tokens.saturating_add(usage.completion_tokens);
            usage.total_tokens.max(parts)
        });
        Self {
            reported: reply.usage,
            tokens: counted.unwrap_or(guessed),
        }
    }

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        let sum = |a: Usage, b: Usage| Usage {
            prompt_tokens: a.prompt_tokens.saturating_add(b.prompt_tokens),
            completion_tokens: a.completion_tokens.saturating_add(b.completion_tokens),
            total_tokens: a.total_tokens.saturating_add(b.total_tokens),
        };
        let both = self.reported.zip(other.reported);
        Self {
            reported: both
                .map(|(a, b)| sum(a, b))
                .or(self.reported)
                .or(other.reported),
            tokens: self.tokens.saturating_add(other.tokens),
        }
    }

    /// What the service said it took, in the words of chat completions.
    pub(crate) fn recorded(&self) -> Option<Raw> {
        self.reported.map(|usage| {
            raw(&serde_json::json!({
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
            }))
        })
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
            let error = CallError::Status {
                status: http::StatusCode::BAD_REQUEST,
                message: message.to_owned(),
            };
            without_what_was_sent(error, &sent).to_string()
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
        // Wherever in it, and whatever stands around it.
        let noise: String = ('!'..='~').cycle().take(2_000_000).collect();
        let far = [raw(&format!("{noise} {prompt} {noise}"))];
        assert!(repeats(r#"(a|b)* word of the day is "xyzzy?"#, &far));
        assert!(!repeats(r#"(a|b)* word of the day was "xyzzy?"#, &far));
        assert!(!repeats("short", &far) && !repeats("", &far));
        let told = shown("model gpt-9 does not exist, ask the assistant.");
        assert!(told.contains("model gpt-9 does not exist"), "{told}");
    }
}

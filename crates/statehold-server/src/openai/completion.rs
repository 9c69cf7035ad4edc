//! The answer to a chat call: one completion, or its chunks.

use http::HeaderMap;
use serde::Serialize;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_engine::HoldDetail;
use statehold_engine::api::json::{Raw, to_body};
use statehold_engine::api::schema::NullableText;
use statehold_engine::api::turn::{EarlierAnswer, TokenUsage};
use utoipa::ToSchema;

use super::errors::ErrorOut;
use crate::chat::{CompletionFormat, Ending, Preface, StateholdOut, TurnFormat, TurnHead, TurnIds};
use crate::http::problem::Problem;
use crate::http::sse;

/// The answer to a chat call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatCompletion)]
pub(crate) struct CompletionOut<'a> {
    id: &'a str,
    object: &'static str,
    /// In seconds since 1970.
    created: i64,
    /// The agent.
    model: &'a str,
    choices: [ChoiceOut<'a>; 1],
    usage: TokenUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<MetadataOut>,
    statehold: StateholdOut,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChoice)]
struct ChoiceOut<'a> {
    index: u8,
    message: CompletionMessage<'a>,
    /// `stop`, or `tool_calls`.
    finish_reason: &'static str,
}

/// The message of the agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatAnswer)]
struct CompletionMessage<'a> {
    role: &'static str,
    #[schema(value_type = NullableText)]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<serde_json::Value>>)]
    tool_calls: Option<&'a [serde_json::Value]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom_content: Option<CustomOut<'a>>,
}

/// Files that go with an answer, and a value that the client sends back with its next call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatFiles)]
struct CustomOut<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<serde_json::Value>, required = false)]
    attachments: &'a [Raw],
    /// Sealed. Send the message back with it, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    state: Option<&'a Raw>,
}

/// The ids of the turn, for clients that read only metadata.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = ChatMetadata)]
struct MetadataOut {
    #[serde(rename = "statehold_session")]
    session: SessionId,
    #[serde(rename = "statehold_task")]
    task: TaskId,
    #[serde(rename = "statehold_request")]
    request: RequestId,
}

impl MetadataOut {
    fn of(ids: TurnIds) -> Self {
        Self {
            session: ids.session,
            task: ids.task,
            request: ids.request,
        }
    }
}

#[derive(Debug, Serialize)]
struct ChunkOut<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: &'a [ChunkChoiceOut<'a>],
    #[serde(skip_serializing_if = "UsageOut::is_unasked")]
    usage: UsageOut<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<MetadataOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    statehold: Option<StateholdOut>,
}

/// Token usage in a stream: null in all chunks but the last, if the client asked for it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum UsageOut<'a> {
    Unasked,
    Later(Option<&'a TokenUsage>),
}

impl UsageOut<'_> {
    fn is_unasked(&self) -> bool {
        matches!(self, Self::Unasked)
    }
}

#[derive(Debug, Serialize)]
struct ChunkChoiceOut<'a> {
    index: u8,
    delta: CompletionDelta<'a>,
    finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize)]
struct CompletionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom_content: Option<CustomOut<'a>>,
}

fn finish_reason(ending: &Ending) -> &'static str {
    match ending.answer.tool_calls {
        Some(_) => "tool_calls",
        None => "stop",
    }
}

fn custom(ending: &Ending) -> Option<CustomOut<'_>> {
    let attachments = ending.answer.attachments.as_slice();
    let state = ending.carried.as_ref();
    let is_empty = attachments.is_empty() && state.is_none();
    (!is_empty).then_some(CustomOut { attachments, state })
}

/// The fields that all chunks of one answer share.
#[derive(Debug)]
pub(crate) struct CompletionWriter {
    id: String,
    created: i64,
    model: String,
    /// The ids of the turn. None for a call without a session.
    ids: Option<TurnIds>,
    replaced: Option<SessionId>,
    with_usage: bool,
}

impl CompletionWriter {
    pub(crate) fn new(model: String, head: &TurnHead, with_usage: bool) -> Self {
        let request = head.request.to_string();
        Self {
            id: format!("chatcmpl-{}", request.trim_start_matches("req_")),
            created: head.started_at.as_micros() / 1_000_000,
            model,
            ids: head.ids,
            replaced: head.replaced,
            with_usage,
        }
    }

    /// The fields at the end of an answer.
    fn ended(&self, ending: &Ending, earlier: Vec<EarlierAnswer>) -> StateholdOut {
        StateholdOut {
            left_out: ending.left_out.clone(),
            debug: ending.debug.clone(),
            ..self.statehold(ending.account.via.clone(), &ending.holds, earlier)
        }
    }

    fn statehold(
        &self,
        via: Vec<String>,
        holds: &[HoldDetail],
        earlier: Vec<EarlierAnswer>,
    ) -> StateholdOut {
        StateholdOut {
            earlier,
            replaced: self.replaced,
            ..StateholdOut::of(self.ids, via, holds)
        }
    }

    fn completion(&self, mut ending: Ending) -> Vec<u8> {
        let text = std::mem::take(&mut ending.answer.text);
        let text = ending.preface.before(text);
        let earlier = std::mem::take(&mut ending.preface.earlier);
        let ending = &ending;
        let tool_calls = ending.answer.tool_calls.as_deref();
        to_body(&CompletionOut {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: &self.model,
            choices: [ChoiceOut {
                index: 0,
                message: CompletionMessage {
                    role: "assistant",
                    content: (!text.is_empty() || tool_calls.is_none()).then_some(&text),
                    tool_calls,
                    custom_content: custom(ending),
                },
                finish_reason: finish_reason(ending),
            }],
            usage: ending.account.usage,
            metadata: self.ids.map(MetadataOut::of),
            statehold: self.ended(ending, earlier),
        })
    }

    fn chunk(
        &self,
        delta: CompletionDelta<'_>,
        finish_reason: Option<&'static str>,
        statehold: Option<StateholdOut>,
    ) -> Vec<u8> {
        let usage = if self.with_usage {
            UsageOut::Later(None)
        } else {
            UsageOut::Unasked
        };
        let choice = ChunkChoiceOut {
            index: 0,
            delta,
            finish_reason,
        };
        to_body(&ChunkOut {
            metadata: self
                .ids
                .filter(|_| finish_reason.is_some())
                .map(MetadataOut::of),
            statehold,
            ..self.chunk_of(&[choice], usage)
        })
    }

    fn chunk_of<'a>(
        &'a self,
        choices: &'a [ChunkChoiceOut<'a>],
        usage: UsageOut<'a>,
    ) -> ChunkOut<'a> {
        ChunkOut {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage,
            metadata: None,
            statehold: None,
        }
    }

    fn text_chunk(&self, text: &str) -> Vec<u8> {
        let delta = CompletionDelta {
            content: Some(text),
            ..CompletionDelta::default()
        };
        self.chunk(delta, None, None)
    }

    /// The last chunk.
    fn last(&self, ending: &Ending) -> Vec<u8> {
        let calls = ending.answer.tool_calls.iter().flatten().enumerate();
        let calls = calls.map(|(index, call)| {
            let mut call = call.clone();
            if let Some(fields) = call.as_object_mut() {
                fields.insert("index".to_owned(), index.into());
            }
            call
        });
        let has_calls = ending.answer.tool_calls.is_some();
        let delta = CompletionDelta {
            tool_calls: has_calls.then(|| calls.collect()),
            custom_content: custom(ending),
            ..CompletionDelta::default()
        };
        let earlier = ending.preface.earlier.clone();
        let statehold = self.ended(ending, earlier);
        self.chunk(delta, Some(finish_reason(ending)), Some(statehold))
    }
}

impl CompletionFormat for CompletionWriter {
    fn whole(self, ending: Ending) -> Vec<u8> {
        self.completion(ending)
    }
}

impl TurnFormat for CompletionWriter {
    fn set_headers(&self, headers: &mut HeaderMap) {
        sse::set_headers(headers);
    }

    fn begin(&mut self, preface: &Preface) -> Vec<u8> {
        let delta = CompletionDelta {
            role: Some("assistant"),
            content: Some(""),
            ..CompletionDelta::default()
        };
        let mut bytes = event(&self.chunk(delta, None, None));
        let earlier = preface.text();
        if !earlier.is_empty() {
            bytes.extend(self.text(&earlier));
        }
        bytes
    }

    fn text(&mut self, text: &str) -> Vec<u8> {
        event(&self.text_chunk(text))
    }

    fn pause(&mut self, via: Vec<String>, holds: &[HoldDetail]) -> Vec<u8> {
        // The text at the beginning has the earlier answers, and so has the last chunk.
        let statehold = self.statehold(via, holds, Vec::new());
        event(&self.chunk(CompletionDelta::default(), None, Some(statehold)))
    }

    fn end(&mut self, rest: &str, ending: &Ending) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !rest.is_empty() {
            bytes.extend(self.text(rest));
        }
        bytes.extend(event(&self.last(ending)));
        if self.with_usage {
            let usage = UsageOut::Later(Some(&ending.account.usage));
            bytes.extend(event(&to_body(&self.chunk_of(&[], usage))));
        }
        bytes.extend(event(b"[DONE]"));
        bytes
    }

    fn error(&mut self, problem: &Problem) -> Vec<u8> {
        event(&to_body(&ErrorOut::of(problem)))
    }

    fn keep_alive(&self) -> &'static [u8] {
        sse::KEEP_ALIVE
    }
}

/// One event of a stream.
fn event(data: &[u8]) -> Vec<u8> {
    let mut event = Vec::with_capacity(data.len() + 8);
    sse::push_event(&mut event, None, None, data);
    event
}

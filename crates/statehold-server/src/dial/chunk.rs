//! The bytes of answers in DIAL's form: one completion, or chunks of which each is about one thing.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use statehold_engine::api::json::{Raw, to_body};
use statehold_engine::api::schema::NullableText;
use statehold_engine::api::turn::{TokenUsage, TurnAccount};
use statehold_engine::stage::StageStatus;
use utoipa::ToSchema;

use crate::chat::StateholdOut;
use crate::http::sse;

/// The tokens of each model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DialStatistics)]
pub(super) struct StatisticsOut<'a> {
    usage_per_model: Vec<ModelUsageOut<'a>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DialModelUsage)]
struct ModelUsageOut<'a> {
    index: usize,
    model: &'a str,
    #[serde(flatten)]
    usage: TokenUsage,
}

impl<'a> StatisticsOut<'a> {
    /// None if no model is named.
    pub(super) fn of(account: &'a TurnAccount) -> Option<Self> {
        let models = account.models.iter().enumerate();
        let usage_per_model = models.map(|(index, (model, usage))| ModelUsageOut {
            index,
            model,
            usage: *usage,
        });
        (!account.models.is_empty()).then(|| Self {
            usage_per_model: usage_per_model.collect(),
        })
    }
}

/// The fields that all chunks of an answer share.
#[derive(Debug, Clone, Serialize)]
pub(super) struct AnswerHead {
    pub(super) id: String,
    /// In seconds since 1970.
    pub(super) created: i64,
}

/// A file of an answer or of a stage, as DIAL knows it: either its data or its address.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = DialAttachment)]
pub(super) struct AttachmentOut {
    /// Its place, in chunks only.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<usize>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reference_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reference_type: Option<String>,
}

impl AttachmentOut {
    /// A file in the form of DIAL. None for other JSON, and for a file without data and address.
    pub(super) fn of(file: &Raw) -> Option<Self> {
        let mut file: Self = serde_json::from_str(file.get()).ok()?;
        if file.url.is_some() {
            file.data = None;
        } else if file.data.is_none() {
            file.url = Some(file.reference_url.clone()?);
        }
        Some(file)
    }

    pub(super) fn at(self, index: usize) -> Self {
        Self {
            index: Some(index),
            ..self
        }
    }
}

/// The word for the status of a stage.
pub(super) fn status_word(status: StageStatus) -> &'static str {
    match status {
        StageStatus::Completed => "completed",
        StageStatus::Failed => "failed",
    }
}

/// A stage, or a change of it.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = DialStage)]
pub(super) struct StageOut<'a> {
    /// Its place, in chunks only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(super) attachments: Vec<AttachmentOut>,
    /// `completed` or `failed`. Null while the stage is open, in chunks only.
    #[schema(value_type = NullableText)]
    pub(super) status: Option<&'static str>,
    /// The place of the stage that it lies below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent_stage_index: Option<usize>,
}

/// The part of a message that only clients of DIAL know.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = DialCustomContent)]
pub(super) struct CustomContentOut<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(super) stages: Vec<StageOut<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(super) attachments: Vec<AttachmentOut>,
    /// Sealed. Send the message back with it, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(super) state: Option<&'a Raw>,
}

impl CustomContentOut<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.stages.is_empty() && self.attachments.is_empty() && self.state.is_none()
    }
}

/// The tokens, or null if no service has counted any: applications that count none say nothing about them.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = DialUsage)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each answer, on the stack"
)]
pub(super) enum UsageOut {
    Counted(TokenUsage),
    NotCounted,
}

impl UsageOut {
    pub(super) fn of(usage: TokenUsage) -> Self {
        if usage == TokenUsage::default() {
            Self::NotCounted
        } else {
            Self::Counted(usage)
        }
    }
}

/// The answer to a call of a deployment.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DialCompletion)]
pub(super) struct CompletionOut<'a> {
    pub(super) choices: [ChoiceOut<'a>; 1],
    pub(super) usage: UsageOut,
    pub(super) id: &'a str,
    /// In seconds since 1970.
    pub(super) created: i64,
    pub(super) object: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) statistics: Option<StatisticsOut<'a>>,
    /// Of a paused turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) statehold: Option<StateholdOut>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DialChoice)]
pub(super) struct ChoiceOut<'a> {
    pub(super) index: u8,
    /// `stop`, or `tool_calls`.
    pub(super) finish_reason: &'static str,
    pub(super) message: MessageOut<'a>,
}

/// The message of the agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DialMessage)]
pub(super) struct MessageOut<'a> {
    pub(super) role: &'static str,
    #[serde(skip_serializing_if = "CustomContentOut::is_empty")]
    #[schema(required = false)]
    pub(super) custom_content: CustomContentOut<'a>,
    #[schema(value_type = NullableText)]
    pub(super) content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<serde_json::Value>>)]
    pub(super) tool_calls: Option<&'a [Value]>,
}

#[derive(Serialize)]
struct ChunkOut<'a> {
    choices: [ChunkChoiceOut<'a>; 1],
    usage: UsageOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    statistics: Option<StatisticsOut<'a>>,
    #[serde(flatten)]
    head: &'a AnswerHead,
    object: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    statehold: Option<StateholdOut>,
}

#[derive(Serialize)]
struct ChunkChoiceOut<'a> {
    index: u8,
    finish_reason: Option<&'static str>,
    delta: DeltaOut<'a>,
}

#[derive(Default, Serialize)]
struct DeltaOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    /// Null, beside tool calls.
    #[serde(rename = "content", skip_serializing_if = "Option::is_none")]
    no_content: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[&'a Value; 1]>,
    #[serde(skip_serializing_if = "CustomContentOut::is_empty")]
    custom_content: CustomContentOut<'a>,
}

impl AnswerHead {
    fn event(
        &self,
        delta: DeltaOut<'_>,
        end: Option<(&'static str, &TurnAccount, Option<StateholdOut>)>,
    ) -> Vec<u8> {
        let account = end.as_ref().map(|(_, account, _)| *account);
        let (finish_reason, statehold) = match end {
            Some((reason, _, statehold)) => (Some(reason), statehold),
            None => (None, None),
        };
        event(&to_body(&ChunkOut {
            choices: [ChunkChoiceOut {
                index: 0,
                finish_reason,
                delta,
            }],
            usage: account.map_or(UsageOut::NotCounted, |account| UsageOut::of(account.usage)),
            statistics: account.and_then(StatisticsOut::of),
            head: self,
            object: "chat.completion.chunk",
            statehold,
        }))
    }

    /// The first chunk.
    pub(super) fn role(&self) -> Vec<u8> {
        let delta = DeltaOut {
            role: Some("assistant"),
            ..DeltaOut::default()
        };
        self.event(delta, None)
    }

    /// A piece of the answer. Nothing for an empty one.
    pub(super) fn content(&self, text: &str) -> Vec<u8> {
        if text.is_empty() {
            return Vec::new();
        }
        let delta = DeltaOut {
            content: Some(text),
            ..DeltaOut::default()
        };
        self.event(delta, None)
    }

    pub(super) fn tool_call(&self, call: &Value) -> Vec<u8> {
        let delta = DeltaOut {
            no_content: Some(()),
            tool_calls: Some([call]),
            ..DeltaOut::default()
        };
        self.event(delta, None)
    }

    fn custom(&self, custom_content: CustomContentOut<'_>) -> Vec<u8> {
        let delta = DeltaOut {
            custom_content,
            ..DeltaOut::default()
        };
        self.event(delta, None)
    }

    pub(super) fn stage(&self, stage: StageOut<'_>) -> Vec<u8> {
        self.custom(CustomContentOut {
            stages: vec![stage],
            ..CustomContentOut::default()
        })
    }

    pub(super) fn attachment(&self, file: AttachmentOut) -> Vec<u8> {
        self.custom(CustomContentOut {
            attachments: vec![file],
            ..CustomContentOut::default()
        })
    }

    pub(super) fn state(&self, state: &Raw) -> Vec<u8> {
        self.custom(CustomContentOut {
            state: Some(state),
            ..CustomContentOut::default()
        })
    }

    /// The last chunk: everything that may come only once all else was sent.
    pub(super) fn last(
        &self,
        finish_reason: &'static str,
        account: &TurnAccount,
        statehold: Option<StateholdOut>,
    ) -> Vec<u8> {
        let end = (finish_reason, account, statehold);
        self.event(DeltaOut::default(), Some(end))
    }
}

/// One event of a stream.
pub(super) fn event(data: &[u8]) -> Vec<u8> {
    let mut event = Vec::with_capacity(data.len() + 8);
    sse::push_event(&mut event, None, None, data);
    event
}

//! The account of a turn: the agents that took part, and the tokens they used.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::item::{Item, ItemKind};
use statehold_core::record::{Event, Record};
use statehold_store::StoredRecord;
use utoipa::ToSchema;

use crate::bodies::{ItemBody, parse, payload};
use crate::engine::Engine;
use crate::error::EngineError;

/// How many models an account names.
const MODELS_MAX: usize = 64;

/// Tokens, as far as agents recorded them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = ChatUsage)]
pub struct TokenUsage {
    #[serde(rename = "prompt_tokens")]
    prompt: u64,
    #[serde(rename = "completion_tokens")]
    completion: u64,
    #[serde(rename = "total_tokens")]
    total: u64,
    #[serde(
        rename = "prompt_tokens_details",
        deserialize_with = "readable",
        skip_serializing_if = "Option::is_none"
    )]
    prompt_details: Option<TokenDetails>,
    #[serde(
        rename = "completion_tokens_details",
        deserialize_with = "readable",
        skip_serializing_if = "Option::is_none"
    )]
    completion_details: Option<TokenDetails>,
}

/// Kinds of tokens, as far as a service tells them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ChatUsageDetails)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
struct TokenDetails {
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_write_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audio_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_prediction_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected_prediction_tokens: Option<u64>,
}

/// Details that cannot be read do not make the tokens unreadable.
fn readable<'de, D: Deserializer<'de>>(details: D) -> Result<Option<TokenDetails>, D::Error> {
    let details = Value::deserialize(details)?;
    Ok(serde_json::from_value(details).ok())
}

/// The sum of two numbers that may be missing.
fn sum<T>(one: Option<T>, other: Option<T>, add: impl Fn(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(add(one, other)),
        (one, other) => one.or(other),
    }
}

impl TokenDetails {
    fn plus(self, other: Self) -> Self {
        let sum = |one, other| sum(one, other, u64::saturating_add);
        Self {
            cached_tokens: sum(self.cached_tokens, other.cached_tokens),
            cache_write_tokens: sum(self.cache_write_tokens, other.cache_write_tokens),
            audio_tokens: sum(self.audio_tokens, other.audio_tokens),
            reasoning_tokens: sum(self.reasoning_tokens, other.reasoning_tokens),
            accepted_prediction_tokens: sum(
                self.accepted_prediction_tokens,
                other.accepted_prediction_tokens,
            ),
            rejected_prediction_tokens: sum(
                self.rejected_prediction_tokens,
                other.rejected_prediction_tokens,
            ),
        }
    }
}

impl TokenUsage {
    /// All tokens: the total, or the sum of its parts if that is more.
    pub fn total(&self) -> u64 {
        let parts = self.prompt.saturating_add(self.completion);
        self.total.max(parts)
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let total = |usage: Self| match usage.total {
            0 => usage.total(),
            total => total,
        };
        Self {
            prompt: self.prompt.saturating_add(other.prompt),
            completion: self.completion.saturating_add(other.completion),
            total: total(self).saturating_add(total(other)),
            prompt_details: sum(
                self.prompt_details,
                other.prompt_details,
                TokenDetails::plus,
            ),
            completion_details: sum(
                self.completion_details,
                other.completion_details,
                TokenDetails::plus,
            ),
        }
    }
}

/// The agents that took part in a turn, and their tokens.
#[derive(Debug, Clone, Default)]
pub struct TurnAccount {
    /// The agents below the root, in the order in which they were first asked.
    pub via: Vec<String>,
    /// The tokens of all of them.
    pub usage: TokenUsage,
    /// The tokens of each model that was named, in the order in which they were first asked.
    pub models: Vec<(String, TokenUsage)>,
}

impl TurnAccount {
    fn add(&mut self, used: UsedTokens) {
        self.usage = self.usage.plus(used.usage);
        let Some(model) = used.model else {
            return;
        };
        let mut known = self.models.iter_mut();
        if let Some((_, usage)) = known.find(|(known, _)| *known == model) {
            *usage = usage.plus(used.usage);
        } else if self.models.len() < MODELS_MAX {
            self.models.push((model, used.usage));
        }
    }
}

/// The tokens of a step, and the model that used them.
#[derive(Default, Deserialize)]
struct UsedTokens {
    #[serde(flatten)]
    usage: TokenUsage,
    model: Option<String>,
}

/// An account while records are added to it.
pub(super) struct TurnLedger {
    /// The requests of the turn, the root first.
    pub(super) requests: Vec<RequestId>,
    /// The agents of the tasks that were opened meanwhile.
    agents: BTreeMap<TaskId, String>,
    pub(super) account: TurnAccount,
}

impl TurnLedger {
    /// The account of the turn at whose root this request is.
    pub(super) fn new(root: RequestId) -> Self {
        Self {
            requests: vec![root],
            agents: BTreeMap::new(),
            account: TurnAccount::default(),
        }
    }

    /// Whether the record has tokens of agents, which are in its payloads.
    pub(super) fn has_usage(record: &Record) -> bool {
        let is_step = |item: &Item| item.kind == ItemKind::Step;
        let events = &record.content.events;
        events.iter().any(|event| match event {
            Event::ItemsAppended { items, .. } => items.iter().any(is_step),
            _ => false,
        })
    }

    /// Adds a record of the session.
    pub(super) async fn add(
        &mut self,
        engine: &Engine,
        stored: &StoredRecord,
    ) -> Result<(), EngineError> {
        let content = &stored.record.content;
        for event in &content.events {
            match event {
                Event::TaskOpened { task, agent, .. } => {
                    self.agents.insert(*task, agent.to_string());
                }
                Event::RequestStarted {
                    request,
                    parent: Some(parent),
                    task,
                    ..
                } if self.requests.contains(parent) => {
                    self.requests.push(*request);
                    let agent = match self.agents.get(task) {
                        Some(agent) => agent.clone(),
                        None => engine.agent_of(content.session, *task).await?.to_string(),
                    };
                    if !self.account.via.contains(&agent) {
                        self.account.via.push(agent);
                    }
                }
                Event::ItemsAppended { request, items, .. } if self.requests.contains(request) => {
                    for item in items.iter().filter(|item| item.kind == ItemKind::Step) {
                        self.account.add(usage_of(stored, item));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn usage_of(stored: &StoredRecord, item: &Item) -> UsedTokens {
    #[derive(Deserialize)]
    struct UsageData {
        usage: Option<UsedTokens>,
    }
    let body: ItemBody = parse(payload(stored, item.body));
    let data = body
        .data
        .and_then(|data| serde_json::from_str::<UsageData>(data.get()).ok());
    data.and_then(|data| data.usage).unwrap_or_default()
}

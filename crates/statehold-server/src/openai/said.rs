//! What was said in a turn, read from the records that hold it.

use serde::{Deserialize, Serialize};
use statehold_core::digest::BodyRef;
use statehold_core::ids::RequestId;
use statehold_core::item::{Item, ItemKind, Role};
use statehold_core::record::Event;
use statehold_core::request::RequestOutcome;
use statehold_core::time::Timestamp;
use statehold_engine::{Caller, Engine, EngineError, RequestDetail, StoredRecord, StoredRequest};
use utoipa::ToSchema;

use statehold_engine::api::json::{Raw, raw_bytes};
use statehold_engine::kept::ItemBody;

/// How many records of a turn are looked at to add up what it took.
const RECORDS_MAX: usize = 4_000;
/// How many are read at a time.
const STEP: usize = 200;

/// A request by what every reader of it needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sign {
    pub(crate) id: RequestId,
    pub(crate) number: u64,
    pub(crate) parent: Option<RequestId>,
    pub(crate) started_by: u64,
    pub(crate) started_at: Timestamp,
    /// How it ended, when, and by which record.
    pub(crate) ended: Option<(RequestOutcome, Timestamp, u64)>,
}

impl Sign {
    pub(crate) fn of(detail: &RequestDetail) -> Option<Self> {
        let started_at = detail.started.as_ref()?.record.content.at;
        Some(match &detail.request {
            StoredRequest::Live(live) => Self {
                id: live.id,
                number: live.number,
                parent: live.parent,
                started_by: live.started_by,
                started_at,
                ended: None,
            },
            StoredRequest::Ended(ended) => Self {
                id: ended.id,
                number: ended.number,
                parent: ended.parent,
                started_by: ended.started_by,
                started_at,
                ended: Some((ended.outcome, ended.ended_at, ended.ended_by)),
            },
        })
    }

    /// What people call it.
    pub(crate) fn alias(&self) -> String {
        format!("R{}", self.number)
    }
}

/// The item with which a request began.
pub(crate) fn input_of(detail: &RequestDetail) -> Option<&Item> {
    let id = Sign::of(detail)?.id;
    let events = &detail.started.as_ref()?.record.content.events;
    let items = events.iter().find_map(|event| match event {
        Event::ItemsAppended { request, items, .. } if *request == id => Some(items),
        _ => None,
    })?;
    items.iter().find(|item| item.role == Some(Role::User))
}

/// The answer of a request.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    /// Files that go with it.
    pub(crate) attachments: Vec<Raw>,
    /// What the agent wants its caller to call, where the caller brought tools.
    pub(crate) tool_calls: Option<Vec<serde_json::Value>>,
}

impl Answer {
    /// The answer of a request that has completed; nothing where it was erased.
    pub(crate) fn of(detail: &RequestDetail) -> Self {
        Self {
            // What an agent wants of its tools is its own affair.
            tool_calls: None,
            ..Self::with_calls(detail)
        }
    }

    /// The same with what the agent wants of the tools that its caller brought.
    pub(crate) fn with_calls(detail: &RequestDetail) -> Self {
        Self::read(detail).unwrap_or_default()
    }

    fn read(detail: &RequestDetail) -> Option<Self> {
        let id = Sign::of(detail)?.id;
        let stored = detail.finished.as_ref()?;
        let mut items = stored
            .record
            .content
            .events
            .iter()
            .filter_map(|event| match event {
                Event::ItemsAppended { request, items, .. } if *request == id => Some(items),
                _ => None,
            })
            .flatten();
        let item = items.rfind(|item| item.role == Some(Role::Assistant))?;
        let body: ItemBody = serde_json::from_slice(payload(stored, item.body)?).ok()?;
        let files = item.attachments.iter();
        let files = files.filter_map(|file| Some(raw_bytes(payload(stored, file.body)?)));
        Some(Self {
            text: body.content.as_ref().map(text_of).unwrap_or_default(),
            attachments: files.collect(),
            tool_calls: body.data.as_ref().and_then(tool_calls),
        })
    }
}

fn payload(stored: &StoredRecord, name: BodyRef) -> Option<&[u8]> {
    let named = stored.record.bodies();
    let index = named.iter().position(|body| *body == name)?;
    stored.bodies.get(index)?.as_deref()
}

/// The text of content: itself, or the texts of its parts.
fn text_of(content: &Raw) -> String {
    let value: serde_json::Value = serde_json::from_str(content.get()).unwrap_or_default();
    match value {
        serde_json::Value::String(text) => text,
        serde_json::Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn tool_calls(data: &Raw) -> Option<Vec<serde_json::Value>> {
    #[derive(Deserialize)]
    struct Data {
        tool_calls: Vec<serde_json::Value>,
    }
    let data: Data = serde_json::from_str(data.get()).ok()?;
    Some(data.tool_calls).filter(|calls| !calls.is_empty())
}

/// Tokens, as far as agents recorded them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = ChatUsage)]
pub(crate) struct Usage {
    #[serde(rename = "prompt_tokens")]
    prompt: u64,
    #[serde(rename = "completion_tokens")]
    completion: u64,
    #[serde(rename = "total_tokens")]
    total: u64,
}

impl Usage {
    fn add(&mut self, other: Self) {
        let total = match other.total {
            0 => other.prompt.saturating_add(other.completion),
            total => total,
        };
        self.prompt = self.prompt.saturating_add(other.prompt);
        self.completion = self.completion.saturating_add(other.completion);
        self.total = self.total.saturating_add(total);
    }
}

/// What a turn took: the agents that were asked on the way, and their tokens.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) via: Vec<String>,
    pub(crate) usage: Usage,
}

impl Account {
    /// Adds up a turn so far.
    pub(crate) async fn of(
        engine: &Engine,
        reader: &Caller,
        detail: &RequestDetail,
    ) -> Result<Self, EngineError> {
        let mut account = Self::default();
        let Some(sign) = Sign::of(detail) else {
            return Ok(account);
        };
        let session = detail.session.id;
        let last = sign.ended.map_or(detail.revision, |(.., by)| by);
        let mut inside = vec![sign.id];
        let mut agents = std::collections::BTreeMap::new();
        let (mut after, mut looked_at) = (sign.started_by.saturating_sub(1), 0);
        while after < last && looked_at < RECORDS_MAX {
            let entries = engine.feed(reader, session, after, STEP).await?;
            let Some(newest) = entries.last() else { break };
            after = newest.stored.record.content.seq;
            looked_at += entries.len();
            for entry in &entries {
                let content = &entry.stored.record.content;
                if content.seq > last {
                    break;
                }
                for event in &content.events {
                    match event {
                        Event::TaskOpened { task, agent, .. } => {
                            agents.insert(*task, agent.to_string());
                        }
                        Event::RequestStarted {
                            request,
                            parent: Some(parent),
                            task,
                            ..
                        } if inside.contains(parent) => {
                            inside.push(*request);
                            let agent = if let Some(agent) = agents.get(task) {
                                String::clone(agent)
                            } else {
                                engine.agent_of(session, *task).await?.to_string()
                            };
                            if !account.via.contains(&agent) {
                                account.via.push(agent);
                            }
                        }
                        Event::ItemsAppended { request, items, .. } if inside.contains(request) => {
                            for item in items.iter().filter(|item| item.kind == ItemKind::Step) {
                                account.usage.add(usage_of(&entry.stored, item));
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(account)
    }
}

fn usage_of(stored: &StoredRecord, item: &Item) -> Usage {
    #[derive(Default, Deserialize)]
    struct Data {
        #[serde(default)]
        usage: Option<Usage>,
    }
    let body = payload(stored, item.body);
    let body = body.and_then(|body| serde_json::from_slice::<ItemBody>(body).ok());
    let data = body.and_then(|body| body.data);
    let data = data.and_then(|data| serde_json::from_str::<Data>(data.get()).ok());
    data.and_then(|data| data.usage).unwrap_or_default()
}

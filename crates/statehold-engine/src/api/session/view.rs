//! Sessions as callers see them.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::session::{SessionStatus, TtlMode};
use statehold_store::SessionSummary;
use utoipa::ToSchema;

use crate::api::hold::PendingHoldView;
use crate::api::item::{ItemView, MessageView};
use crate::api::json::Time;
use crate::api::schema::RecordForm;
use crate::api::trace::FailedRequest;

/// A session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionView {
    pub id: SessionId,
    pub app: Name,
    pub user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub agent: Name,
    pub status: SessionStatus,
    pub revision: u64,
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub ttl_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_mode: Option<TtlMode>,
    pub created_at: Time,
    pub updated_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub hidden_ttl_seconds: Option<u64>,
    /// When its hidden items and private states are removed. It moves with each commit, and is missing while a request
    /// is live and once they are removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_expires_at: Option<Time>,
    /// The origin of a fork.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkOrigin>,
    /// Open holds of the session, oldest first, at most 100. Left out in lists and answers to commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<Vec<PendingHoldView>>,
    /// Number of open holds of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_total: Option<usize>,
}

impl SessionView {
    pub(crate) fn of(summary: &SessionSummary, user: String) -> Self {
        Self {
            id: summary.id,
            app: summary.owner.app.clone(),
            user,
            name: summary.name.clone(),
            agent: summary.owner.agent.clone(),
            status: summary.status,
            revision: summary.revision,
            labels: Labels::stored(summary.labels.as_deref()),
            ttl_seconds: summary.ttl.map(|ttl| ttl.ms / 1_000),
            ttl_mode: summary.ttl.map(|ttl| ttl.mode),
            created_at: summary.created_at.into(),
            updated_at: summary.updated_at.into(),
            expires_at: summary.expires_at.map(Into::into),
            hidden_ttl_seconds: summary.hidden_ttl_ms.map(|ms| ms / 1_000),
            hidden_expires_at: summary.hidden_expires_at.map(Into::into),
            forked_from: summary.forked_from.map(Into::into),
            pending: None,
            pending_total: None,
        }
    }
}

/// The labels of a session, as they are stored: a list passes them on without parsing them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(Box<RawValue>);

impl Labels {
    fn stored(text: Option<&str>) -> Self {
        let stored = text.filter(|text| text.starts_with('{'));
        let stored = stored.and_then(|text| RawValue::from_string(text.to_owned()).ok());
        let none = || to_raw_value(&BTreeMap::<String, String>::new());
        Self(stored.unwrap_or_else(|| none().expect("an empty object is JSON")))
    }

    /// The labels by their keys.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        parse_labels(Some(self.0.get()))
    }

    /// The bytes of their JSON.
    pub fn bytes(&self) -> usize {
        self.0.get().len()
    }
}

/// The session that a fork was made from, and the last revision that both share.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct ForkOrigin {
    pub session_id: SessionId,
    pub revision: u64,
}

impl From<(SessionId, u64)> for ForkOrigin {
    fn from((session_id, revision): (SessionId, u64)) -> Self {
        Self {
            session_id,
            revision,
        }
    }
}

/// A page of sessions.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionPage {
    pub sessions: Vec<SessionView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A page of the transcript.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct MessagePage {
    pub messages: Vec<MessageView>,
    pub revision: u64,
    /// Annotations that were added later are left out, because all of them are too long for the page.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub annotations_cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A page of the trace.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TracePage {
    pub messages: Vec<ItemView>,
    /// The failed requests among those of the items, the newest first, and why each failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub failures: Vec<FailedRequest>,
    pub revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A page of records, in the order of the chain.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RecordPage {
    #[schema(value_type = Vec<RecordForm>)]
    pub records: Vec<Box<RawValue>>,
    /// The names of the people who are principals in the records. Erased names are left out.
    pub names: BTreeMap<String, String>,
    pub revision: u64,
}

/// The labels of a session as they are stored.
pub(crate) fn parse_labels(text: Option<&str>) -> BTreeMap<String, String> {
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

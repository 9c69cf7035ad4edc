//! Sessions on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::limits;
use statehold_core::record::Change;
use statehold_core::session::{SessionStatus, TimeToLive, TtlMode};
use statehold_engine::SessionSummary;
use utoipa::ToSchema;

use super::hold::PendingHoldOut;
use super::schema::{
    LabelText, NameText, SessionIdText, SessionStatusWord, StateKeyText, TimeText,
};
use super::{Raw, time};
use crate::problem::Problem;

/// The longest name of a session, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// How many labels a session may have, and how long their parts may be.
const LABELS_MAX: usize = 64;
const LABEL_KEY_BYTES_MAX: usize = 64;
const LABEL_VALUE_BYTES_MAX: usize = 256;

/// A session to begin.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionIn {
    /// The app.
    #[schema(value_type = NameText)]
    pub(crate) app: String,
    /// The user. A key that is bound to one may leave it out.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) user: Option<String>,
    /// A name, unique for the app and the user.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) name: Option<String>,
    /// The agent that answers when none is named.
    #[serde(default)]
    #[schema(value_type = Option<NameText>)]
    pub(crate) agent: Option<String>,
    /// Words to find it by.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<LabelText, String>>)]
    pub(crate) labels: Option<BTreeMap<String, String>>,
    /// First values of its state.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<StateKeyText, serde_json::Value>>)]
    pub(crate) state: Option<BTreeMap<String, Raw>>,
    /// How long it lives.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub(crate) ttl_seconds: Option<u64>,
    /// From when that counts.
    #[serde(default)]
    pub(crate) ttl_mode: Option<TtlModeWire>,
}

/// From when a time to live counts.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TtlMode)]
pub(crate) enum TtlModeWire {
    /// From the last commit.
    Sliding,
    /// From the commit that set it.
    Fixed,
}

/// Changes to a session. What is left out stays; null removes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionPatch {
    /// Its name.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    pub(crate) name: Option<Change<String>>,
    /// Labels to set, or to remove with null.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<LabelText, Option<String>>>)]
    pub(crate) labels: Option<BTreeMap<String, Option<String>>>,
    /// How long it lives.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 316_224_000)]
    pub(crate) ttl_seconds: Option<Change<u64>>,
    /// From when that counts.
    #[serde(default)]
    pub(crate) ttl_mode: Option<TtlModeWire>,
}

/// Tells a field that is null from one that is not there.
fn present<'de, T, D>(deserializer: D) -> Result<Option<Change<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    let value = Option::<T>::deserialize(deserializer)?;
    Ok(Some(value.map_or(Change::Clear, Change::Set)))
}

/// How to close a session.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloseIn {
    /// Stop what still runs.
    #[serde(default)]
    pub(crate) cancel_live: bool,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct SessionOut {
    #[schema(value_type = SessionIdText)]
    pub(crate) id: String,
    #[schema(value_type = NameText)]
    pub(crate) app: String,
    pub(crate) user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[schema(value_type = NameText)]
    pub(crate) agent: String,
    #[schema(value_type = SessionStatusWord)]
    pub(crate) status: SessionStatus,
    pub(crate) revision: u64,
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub(crate) ttl_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_mode: Option<TtlModeWire>,
    #[schema(value_type = TimeText)]
    pub(crate) created_at: String,
    #[schema(value_type = TimeText)]
    pub(crate) updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TimeText>)]
    pub(crate) expires_at: Option<String>,
    /// Open holds in it, the oldest first, at most 100. Left out in lists and answers to commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pending: Option<Vec<PendingHoldOut>>,
    /// How many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pending_total: Option<usize>,
}

impl SessionOut {
    pub(crate) fn of(summary: &SessionSummary, user: String) -> Self {
        Self {
            id: summary.id.to_string(),
            app: summary.owner.app.to_string(),
            user,
            name: summary.name.clone(),
            agent: summary.owner.agent.to_string(),
            status: summary.status,
            revision: summary.revision,
            labels: parse_labels(summary.labels.as_deref()),
            ttl_seconds: summary.ttl.map(|ttl| ttl.ms / 1_000),
            ttl_mode: summary.ttl.map(|ttl| match ttl.mode {
                TtlMode::Sliding => TtlModeWire::Sliding,
                TtlMode::Fixed => TtlModeWire::Fixed,
            }),
            created_at: time(summary.created_at),
            updated_at: time(summary.updated_at),
            expires_at: summary.expires_at.map(time),
            pending: None,
            pending_total: None,
        }
    }
}

/// A page of sessions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionPage {
    pub(crate) sessions: Vec<SessionOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

pub(crate) fn parse_labels(text: Option<&str>) -> BTreeMap<String, String> {
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

pub(crate) fn require_labels(labels: &BTreeMap<String, String>) -> Result<(), Problem> {
    let fits = |(key, value): (&String, &String)| {
        (1..=LABEL_KEY_BYTES_MAX).contains(&key.len())
            && value.len() <= LABEL_VALUE_BYTES_MAX
            && !key.chars().any(|c| c.is_control() || c == ':')
            && !value.chars().any(char::is_control)
    };
    if labels.len() <= LABELS_MAX && labels.iter().all(fits) {
        Ok(())
    } else {
        Err(Problem::invalid(
            "`labels` has at most 64 entries, with keys of 1 to 64 bytes without `:` and values of \
             at most 256 bytes, without control characters",
        )
        .with("path", "labels"))
    }
}

pub(crate) fn require_name(name: &str) -> Result<(), Problem> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    if fits {
        Ok(())
    } else {
        let detail = "`name` is 1 to 256 bytes without control characters";
        Err(Problem::invalid(detail).with("path", "name"))
    }
}

pub(crate) fn time_to_live(seconds: u64, mode: Option<TtlModeWire>) -> Result<TimeToLive, Problem> {
    let ms = seconds.saturating_mul(1_000);
    if !limits::SESSION_TTL_MS.contains(&ms) {
        let detail = "`ttl_seconds` is 1 to 316224000 (ten years)";
        return Err(Problem::invalid(detail).with("path", "ttl_seconds"));
    }
    let mode = match mode {
        Some(TtlModeWire::Fixed) => TtlMode::Fixed,
        Some(TtlModeWire::Sliding) | None => TtlMode::Sliding,
    };
    Ok(TimeToLive { mode, ms })
}

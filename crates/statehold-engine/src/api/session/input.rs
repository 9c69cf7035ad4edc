//! Plain input of the use cases about sessions, and its checks.

use std::collections::BTreeMap;

use serde::Deserialize;
use statehold_core::limits;
use statehold_core::name::{Name, is_deceptive};
use statehold_core::record::Change;
use statehold_core::scope::StateKey;
use statehold_core::session::{TimeToLive, TtlMode};
use utoipa::ToSchema;

use crate::api::json::Raw;
use crate::api::schema::LabelText;
use crate::error::EngineError;

/// The longest name of a session, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// Limits of the labels of a session.
const LABELS_MAX: usize = 64;
const LABEL_KEY_BYTES_MAX: usize = 64;
const LABEL_VALUE_BYTES_MAX: usize = 256;

/// A session to create.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SessionIn)]
pub struct SessionInput {
    /// The app.
    #[schema(value_type = Name)]
    pub app: String,
    /// The user. Optional with a key that is bound to a user.
    #[schema(min_length = 1, max_length = 256)]
    pub user: Option<String>,
    /// A name, unique for the app and the user.
    #[schema(min_length = 1, max_length = 256)]
    pub name: Option<String>,
    /// The default agent of the session's requests.
    #[schema(value_type = Option<Name>)]
    pub agent: Option<String>,
    /// Labels to filter by.
    #[schema(value_type = Option<BTreeMap<LabelText, String>>)]
    pub labels: Option<BTreeMap<String, String>>,
    /// Initial values of its state.
    #[schema(value_type = Option<BTreeMap<StateKey, serde_json::Value>>)]
    pub state: Option<BTreeMap<String, Raw>>,
    /// Time to live, in seconds.
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub ttl_seconds: Option<u64>,
    /// The start of the time to live.
    pub ttl_mode: Option<TtlMode>,
    /// How long the session keeps its hidden items and private states after its last commit, in seconds. They wait
    /// for live requests.
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub hidden_ttl_seconds: Option<u64>,
    /// Whether a chat surface makes it, so that the defaults of chats apply.
    #[serde(skip)]
    pub is_chat: bool,
    /// Whether to answer with the session that has the `name`, if there is one; it stays as it is.
    #[serde(default)]
    pub get_or_create: bool,
}

/// Changes to a session. Omitted fields stay; null removes a value.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SessionPatch)]
pub struct SessionChanges {
    /// Its name.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    pub name: Option<Change<String>>,
    /// Labels to set, or to remove with null.
    #[schema(value_type = Option<BTreeMap<LabelText, Option<String>>>)]
    pub labels: Option<BTreeMap<String, Option<String>>>,
    /// Time to live, in seconds.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 316_224_000)]
    pub ttl_seconds: Option<Change<u64>>,
    /// The start of the time to live.
    pub ttl_mode: Option<TtlMode>,
    /// How long the session keeps its hidden items and private states after its last commit, in seconds.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 316_224_000)]
    pub hidden_ttl_seconds: Option<Change<u64>>,
}

/// Distinguishes a field that is null from a missing one.
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
#[schema(as = CloseIn)]
pub struct CloseSessionInput {
    /// Cancel live requests.
    #[serde(default)]
    pub cancel_live: bool,
}

/// The point to fork a session at.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ForkIn)]
pub struct ForkInput {
    /// The revision to copy; the newest one by default.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991u64)]
    pub at: Option<u64>,
}

/// The point to rewind a session to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RewindIn)]
pub struct RewindInput {
    /// An earlier revision of the session.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991u64)]
    pub to: u64,
}

pub(crate) fn require_labels(labels: &BTreeMap<String, String>) -> Result<(), EngineError> {
    let fits = |(key, value): (&String, &String)| {
        (1..=LABEL_KEY_BYTES_MAX).contains(&key.len())
            && value.len() <= LABEL_VALUE_BYTES_MAX
            && !key.chars().any(|c| is_deceptive(c) || c == ':')
            && !value.chars().any(is_deceptive)
    };
    if labels.len() <= LABELS_MAX && labels.iter().all(fits) {
        Ok(())
    } else {
        Err(EngineError::invalid(
            "labels",
            "`labels` has at most 64 entries, with keys of 1 to 64 bytes without `:` and values of \
             at most 256 bytes, without control or invisible characters",
        ))
    }
}

pub(crate) fn require_name(name: &str) -> Result<(), EngineError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(is_deceptive);
    if fits {
        Ok(())
    } else {
        let detail = "`name` is 1 to 256 bytes without control or invisible characters";
        Err(EngineError::invalid("name", detail))
    }
}

pub(crate) fn hidden_ttl_ms(seconds: u64) -> Result<u64, EngineError> {
    let ms = seconds.saturating_mul(1_000);
    if !limits::SESSION_TTL_MS.contains(&ms) {
        let detail = "`hidden_ttl_seconds` is 1 to 316224000 (ten years)";
        return Err(EngineError::invalid("hidden_ttl_seconds", detail));
    }
    Ok(ms)
}

pub(crate) fn time_to_live(seconds: u64, mode: Option<TtlMode>) -> Result<TimeToLive, EngineError> {
    let ms = seconds.saturating_mul(1_000);
    if !limits::SESSION_TTL_MS.contains(&ms) {
        let detail = "`ttl_seconds` is 1 to 316224000 (ten years)";
        return Err(EngineError::invalid("ttl_seconds", detail));
    }
    let mode = mode.unwrap_or_default();
    Ok(TimeToLive { mode, ms })
}

//! Annotations that are added to messages after they were written, and metadata of the whole conversation. Both are
//! values of the session, so they have versions and a past, and go along with forks and rewinds.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_core::command::{Command, Rejection, StatePatch, StateSet};
use statehold_core::ids::SessionId;
use statehold_core::scope::{MergePolicy, StateKey};
use statehold_core::session::SessionState;
use statehold_store::{KeyRange, PageLimit, PastStateQuery, StatePage, StateValue, StoreError};
use utoipa::ToSchema;

use super::item::MessageView;
use super::json::Raw;
use crate::bodies::to_bytes;
use crate::caller::Caller;
use crate::commit::call::{Call, Receipt};
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::Act;

/// Keys of these values begin with it. No other key of the API has a prefix that is no scope.
pub(crate) const KEY_PREFIX: &str = "conversation:";
const METADATA_KEY: &str = "conversation:metadata";
const ANNOTATIONS_PREFIX: &str = "conversation:annotations/";
/// The most bytes of the annotations of a message, and of the metadata of a conversation.
const ANNOTATIONS_BYTES_MAX: usize = 4 * 1024;
const METADATA_BYTES_MAX: usize = 64 * 1024;
/// How often a write is tried while others write the same value.
const ATTEMPTS_MAX: usize = 64;

type Members = BTreeMap<String, Raw>;

/// Members to set, or to remove with null.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnnotationsIn)]
pub struct AnnotationsInput {
    /// Members to set; null removes one. Others stay as they are.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub annotations: Members,
    /// Write only if the annotations have this version; 0: only if nothing was added yet.
    pub if_version: Option<u64>,
}

/// Members to set, or to remove with null.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MetadataIn)]
pub struct MetadataInput {
    /// Members to set; null removes one. Others stay as they are.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub metadata: Members,
    /// Write only if the metadata have this version; 0: only if there are none yet.
    pub if_version: Option<u64>,
}

/// The annotations that were added to a message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Annotations)]
pub struct AnnotationsView {
    /// The message. Absent for those of the whole conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// All that were added.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub annotations: Members,
    /// The revision that wrote them.
    pub version: u64,
    /// The revision of the session.
    pub revision: u64,
}

/// The metadata of a conversation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Metadata)]
pub struct MetadataView {
    /// All members.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub metadata: Members,
    /// The revision that wrote them. Absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The revision of the session.
    pub revision: u64,
}

/// Adds annotations to a message.
///
/// # Errors
///
/// If the caller may not, there is no such message, another version is stored, or they are too long.
pub async fn annotate(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    seq: u64,
    input: AnnotationsInput,
) -> Result<Receipt<AnnotationsView>, EngineError> {
    let key = key_of(seq);
    let change = Change {
        name: "annotations",
        bytes_max: ANNOTATIONS_BYTES_MAX,
        members: input.annotations,
        if_version: input.if_version,
        message: Some(seq),
    };
    let view = |annotations: Members, revision| AnnotationsView {
        seq: Some(seq),
        annotations,
        version: revision,
        revision,
    };
    write(engine, call, session, (key, change), view).await
}

/// Changes the metadata of a conversation.
///
/// # Errors
///
/// If the caller may not, another version is stored, or they are too long.
pub async fn set_metadata(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    input: MetadataInput,
) -> Result<Receipt<MetadataView>, EngineError> {
    let change = Change {
        name: "metadata",
        bytes_max: METADATA_BYTES_MAX,
        members: input.metadata,
        if_version: input.if_version,
        message: None,
    };
    let view = |metadata: Members, revision| MetadataView {
        metadata,
        version: Some(revision),
        revision,
    };
    write(engine, call, session, (metadata_key(), change), view).await
}

/// The metadata of a conversation, as of a revision.
///
/// # Errors
///
/// If the caller may not read the session.
pub async fn metadata(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    at: Option<u64>,
) -> Result<MetadataView, EngineError> {
    let state = engine.readable_conversation(caller, session).await?;
    let revision = at.unwrap_or(state.revision).min(state.revision);
    let range = (state.as_ref(), revision, key_before_metadata());
    let limit = PageLimit {
        entries: 1,
        bytes: METADATA_BYTES_MAX as u64,
    };
    let key = metadata_key();
    let page = values_after(engine, caller, range, (METADATA_KEY, limit)).await?;
    let found = page.values.get(&key);
    Ok(MetadataView {
        version: found.map(|found| found.version),
        metadata: members_of(found.map(|found| found.value.as_slice())),
        revision,
    })
}

/// The session values after a key, of those with a prefix, as of a revision. Keys of other prefixes may be among them.
async fn values_after(
    engine: &Engine,
    caller: &Caller,
    (state, revision, after): (&SessionState, u64, StateKey),
    (prefix, limit): (&str, PageLimit),
) -> Result<StatePage<StateValue>, EngineError> {
    let none = || StatePage {
        values: BTreeMap::new(),
        has_more: false,
    };
    let later = state
        .keys
        .range::<StateKey, _>((Bound::Excluded(&after), Bound::Unbounded));
    let mut known = later.take_while(|(key, _)| key.as_str().starts_with(prefix));
    let store = Arc::clone(&engine.inner().store);
    let is_current = revision == state.revision;
    let has_some = known.clone().next().is_some();
    if is_current && !has_some {
        return Ok(none());
    }
    // A rewind may have removed keys that were there.
    let is_kept = is_current || store.last_rewind(state.session).await? <= revision;
    if is_kept && known.all(|(_, version)| version.revision <= revision) {
        if !has_some {
            return Ok(none());
        }
        let range = KeyRange::of_prefix(prefix).after(Some(&after));
        let page = store.state(state.session, range, limit).await?;
        // Another writer may have come in between.
        if page.values.values().all(|value| value.version <= revision) {
            return Ok(page);
        }
    }
    let query = PastStateQuery {
        revision,
        after: Some(after),
        limit,
    };
    let session = state.session;
    let read = async move { store.past_state(session, query).await };
    match engine.long_read(caller, read).await? {
        // The first value has another prefix, and is longer than these may be.
        Err(StoreError::PageTooSmall { .. }) => Ok(none()),
        page => Ok(page?),
    }
}

/// Adds the annotations that messages of a page had at a revision. Returns false if some are left out, because they
/// are longer than `bytes_max` together.
pub(crate) async fn add_annotations(
    engine: &Engine,
    caller: &Caller,
    (session, revision): (SessionId, u64),
    messages: &mut [MessageView],
    bytes_max: u64,
) -> Result<bool, EngineError> {
    let (Some(first), Some(last)) = (messages.first(), messages.last()) else {
        return Ok(true);
    };
    let (first, last) = (first.seq, last.seq);
    let state = engine.readable_conversation(caller, session).await?;
    let limit = PageLimit {
        entries: messages.len(),
        bytes: bytes_max,
    };
    let range = (state.as_ref(), revision, key_of(first.saturating_sub(1)));
    let page = values_after(engine, caller, range, (ANNOTATIONS_PREFIX, limit)).await?;
    let (mut by_seq, mut is_whole) = (BTreeMap::new(), !page.has_more);
    for (key, found) in page.values {
        match seq_of(&key) {
            Some(seq) if seq <= last => {
                by_seq.insert(seq, members_of(Some(&found.value)));
            }
            // All of the page are before it.
            _ => {
                is_whole = true;
                break;
            }
        }
    }
    for message in messages {
        let Some(added) = by_seq.remove(&message.seq) else {
            continue;
        };
        let own = message.annotations.take();
        let mut all = own.map_or_else(Members::new, members_of_any);
        all.extend(added);
        message.annotations = RawValue::from_string(text_of(&all)).ok();
    }
    Ok(is_whole)
}

/// A change of annotations or metadata.
struct Change {
    name: &'static str,
    bytes_max: usize,
    members: Members,
    if_version: Option<u64>,
    /// The message that must be there.
    message: Option<u64>,
}

async fn write<V: Serialize + DeserializeOwned + Send>(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    (key, change): (StateKey, Change),
    view: impl Fn(Members, u64) -> V + Sync,
) -> Result<Receipt<V>, EngineError> {
    if change.members.is_empty() {
        let detail = format!("`{}` names at least one member", change.name);
        return Err(EngineError::invalid(change.name, detail));
    }
    let (_, _) = SessionWrite::authorised(engine, call, session, &Act::ManageSession).await?;
    if let Some(key) = call.key
        && let Some(kept) = engine.kept_answer(key).await?
    {
        return kept.parse();
    }
    if let Some(seq) = change.message {
        require_message(engine, &call.caller, session, seq).await?;
    }
    let store = &engine.inner().store;
    for _ in 0..ATTEMPTS_MAX {
        let known = store.state_value(session, key.clone()).await?;
        let version = known.as_ref().map_or(0, |known| known.version);
        let mut members = members_of(known.as_ref().map(|known| known.value.as_slice()));
        for (name, value) in &change.members {
            if value.get() == "null" {
                members.remove(name);
            } else {
                members.insert(name.clone(), value.clone());
            }
        }
        let text = text_of(&members);
        if text.len() > change.bytes_max {
            let (name, max) = (change.name, change.bytes_max);
            let detail =
                format!("`{name}` have at most {max} bytes together; remove some with null");
            return Err(EngineError::invalid(name, detail));
        }
        let (mut write, _) =
            SessionWrite::authorised(engine, call, session, &Act::ManageSession).await?;
        let value = write.payloads.put(text.into_bytes());
        let members = members_of(write.payloads.get(&value));
        let patch = StatePatch {
            set: vec![StateSet {
                key: key.clone(),
                value,
                merge: MergePolicy::Replace,
            }],
            if_versions: [(key.clone(), change.if_version.unwrap_or(version))].into(),
            ..StatePatch::default()
        };
        let command = Command::PutState { patch, by: None };
        let made = write
            .commit(&command, |made| {
                Some(view(members.clone(), made.record.content.seq))
            })
            .await;
        match made {
            // Another writer was faster.
            Err(EngineError::Rejected(Rejection::VersionConflict { .. }))
                if change.if_version.is_none() => {}
            done => return done,
        }
    }
    Err(EngineError::TooMany(
        "this value changes too fast; try again",
    ))
}

/// Requires that the transcript has a message.
async fn require_message(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    seq: u64,
) -> Result<(), EngineError> {
    let limit = PageLimit::entries(1);
    let before = Some(seq.saturating_add(1));
    let page = engine.transcript(caller, session, before, limit).await?;
    let is_there = page.items.iter().any(|item| item.placed.item.seq == seq);
    if is_there {
        Ok(())
    } else {
        Err(EngineError::NotFound)
    }
}

fn metadata_key() -> StateKey {
    StateKey::lenient(METADATA_KEY).expect("a fixed key is a key")
}

/// A key before that of the metadata, and behind those of annotations.
fn key_before_metadata() -> StateKey {
    StateKey::lenient("conversation:annotations~").expect("a fixed key is a key")
}

/// The key of the annotations of a message. Keys sort as their messages do.
fn key_of(seq: u64) -> StateKey {
    let text = format!("{ANNOTATIONS_PREFIX}{seq:020}");
    StateKey::lenient(&text).expect("a number makes a key")
}

fn seq_of(key: &StateKey) -> Option<u64> {
    key.as_str().strip_prefix(ANNOTATIONS_PREFIX)?.parse().ok()
}

fn members_of(value: Option<&[u8]>) -> Members {
    let members = value.and_then(|value| serde_json::from_slice(value).ok());
    members.unwrap_or_default()
}

/// The members of annotations that came with a message, which need not be an object.
fn members_of_any(own: Raw) -> Members {
    match serde_json::from_str(own.get()) {
        Ok(members) => members,
        Err(_) => [("annotations".to_owned(), own)].into(),
    }
}

fn text_of(members: &Members) -> String {
    String::from_utf8(to_bytes(members)).expect("JSON is text")
}

//! Where the values of a session come from: who wrote each, when, and for which request.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::principal::Principal;
use statehold_core::record::{Event, Record};
use statehold_core::scope::{Scope, StateKey};
use statehold_core::time::Timestamp;
use statehold_store::SharedOwner;
use utoipa::ToSchema;

use super::view::StateView;
use crate::api::json::Time;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;

/// How many keys a page with provenance may have: each is looked up by itself.
pub const PROVENANCE_KEYS_MAX: usize = 256;

/// The write that a value comes from.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Provenance {
    pub at: Time,
    /// Who wrote it: the name of a person, the id of a key, `local` or `system`.
    pub by: String,
    /// The request that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// Refuses a caller who may not see who wrote the state of a session.
///
/// # Errors
///
/// If the caller may not read the session, or is no operator.
pub async fn require_provenance_reader(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
) -> Result<(), EngineError> {
    let summary = engine.traceable(caller, session).await?;
    if summary.deleted {
        return Err(EngineError::NotFound);
    }
    Ok(())
}

/// Adds to a page of state where its values come from. A value that was written again meanwhile is left out.
///
/// # Errors
///
/// As [`require_provenance_reader`].
pub async fn add_provenance(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    view: &mut StateView,
) -> Result<(), EngineError> {
    require_provenance_reader(engine, caller, session).await?;
    let owner = engine.owner(session).await?;
    let mut records: BTreeMap<u64, Option<Record>> = BTreeMap::new();
    let mut writers = BTreeMap::new();
    for (text, version) in view.versions.iter().take(PROVENANCE_KEYS_MAX) {
        let Ok(key) = StateKey::lenient(text) else {
            continue;
        };
        let write = match key.scope() {
            Scope::Temp => None,
            scope @ (Scope::App | Scope::User) => {
                let owner = SharedOwner::of(&owner, scope);
                let value = engine.inner().store.shared_value(owner, key).await?;
                let value = value.filter(|value| value.version == *version);
                value.map(|value| (value.by, value.at, value.request))
            }
            Scope::Session => {
                if !records.contains_key(version) {
                    let record = engine.record_head(session, *version).await?;
                    records.insert(*version, record);
                }
                let record = records.get(version).and_then(Option::as_ref);
                record.map(|record| write_in(record, &key))
            }
        };
        writers.extend(write.map(|write| (text.clone(), write)));
    }
    let people = writers.values().map(|(by, ..)| *by);
    let names = engine.names_for(caller, people).await?;
    let found = writers.into_iter().map(|(text, (by, at, request_id))| {
        let (at, by) = (at.into(), names.of(&by));
        (text, Provenance { at, by, request_id })
    });
    view.provenance = Some(found.collect());
    Ok(())
}

/// Who wrote a value, when, and for which request.
type Write = (Principal, Timestamp, Option<RequestId>);

fn write_in(record: &Record, key: &StateKey) -> Write {
    let content = &record.content;
    let mut events = content.events.iter();
    let request = events.find_map(|event| match event {
        Event::StatePut {
            key: written,
            request,
            ..
        } if written == key => *request,
        _ => None,
    });
    (content.principal, content.at, request)
}

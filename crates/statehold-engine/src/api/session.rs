//! Sessions: create, list, read, change, close, delete; their messages and records.

mod history;
mod input;
mod named;
mod view;

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use statehold_core::command::{Command, StatePatch};
use statehold_core::digest::BodyRef;
use statehold_core::ids::{IdMint, SessionId, Shard};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::record::{Change, Event, Record};
use statehold_core::session::{Owner, SessionStatus, TimeToLive};
use statehold_store::{PageLimit, SessionOrder, SessionPlace, SessionSummary};

use self::input::{hidden_ttl_ms, require_labels, require_name, time_to_live};
use super::annotation::add_annotations;
use super::hold::pending_views;
use super::item::MessageView;
use super::json::{Raw, raw_bytes, to_body};
use super::request::{agent_name, parse_name};
use super::state::StatePatchInput;
use crate::caller::Caller;
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::payloads::Payloads;
use crate::commit::write::SessionWrite;
use crate::engine::{Engine, entropy};
use crate::error::EngineError;
use crate::guard::rights::{self, Act};
use crate::read::Page;
use crate::users::{NamedUser, NewUser};

pub use crate::guard::access::require_lister;
pub(crate) use history::fork_to_start;
pub use history::{fork, rewind};
pub use input::{CloseSessionInput, ForkInput, RewindInput, SessionChanges, SessionInput};
pub use named::{CreatedSession, create_or_get, read_named};
pub(crate) use view::parse_labels;
pub use view::{ForkOrigin, Labels, MessagePage, RecordPage, SessionPage, SessionView, TracePage};

/// Number of retries when concurrent callers change the labels of one session.
const RETRIES_MAX: usize = 64;

/// A page with more names and labels is built beside the threads that serve calls.
pub const LONG_PAGE_BYTES: usize = 64 * 1024;

/// The agent of a session that names none.
const DEFAULT_AGENT: &str = "coordinator";

/// Requires the role for creating sessions, before a call is validated.
///
/// # Errors
///
/// If the caller does not have it.
pub fn require_creator(caller: &Caller) -> Result<(), EngineError> {
    rights::require_role(caller, &Act::CreateSession)
}

/// Creates a session.
///
/// # Errors
///
/// If the caller may not, the input is malformed, or the name is taken.
pub async fn create(
    engine: &Engine,
    call: &Call,
    input: SessionInput,
) -> Result<Receipt<SessionView>, EngineError> {
    create_new(engine, call, &input).await
}

async fn create_new(
    engine: &Engine,
    call: &Call,
    input: &SessionInput,
) -> Result<Receipt<SessionView>, EngineError> {
    let state = |payloads: &mut Payloads| first_state(engine, input.state.as_ref(), payloads);
    create_with(engine, call, input, state).await
}

/// Creates a session with the state that `state` makes, in place of that of the input.
pub(crate) async fn create_with(
    engine: &Engine,
    call: &Call,
    input: &SessionInput,
    state: impl FnOnce(&mut Payloads) -> Result<StatePatch, EngineError>,
) -> Result<Receipt<SessionView>, EngineError> {
    let (owner, user, _new) = owner_of_new(engine, &call.caller, input).await?;
    let session = fresh_session(engine, &owner, &user)?;
    let mut write = SessionWrite::of_owner(engine, call, session, &owner).await?;
    let state = state(&mut write.payloads)?;
    let defaults = engine.policies().lifetimes.of_new(&owner, input.is_chat);
    let command = create_command(&owner, input, defaults, state, &mut write.payloads)?;
    let labels = input.labels.as_ref().filter(|labels| !labels.is_empty());
    let view = |made: &DecidedCommit<'_>| {
        let content = &made.record.content;
        let summary = SessionSummary {
            place: 0,
            id: content.session,
            owner: owner.clone(),
            name: input.name.clone(),
            labels: labels.map(|labels| serde_json::to_string(labels).unwrap_or_default()),
            status: made.after.status(),
            deleted: false,
            ttl: made.after.ttl,
            expires_at: made.after.expires_at,
            hidden_ttl_ms: made.after.hidden_ttl_ms,
            hidden_expires_at: made.after.hidden_expires_at,
            revision: content.seq,
            created_at: content.at,
            updated_at: content.at,
            forked_from: None,
        };
        Some(SessionView {
            pending: Some(Vec::new()),
            pending_total: Some(0),
            ..SessionView::of(&summary, user.clone())
        })
    };
    write.commit(&command, view).await
}

/// The owner of a session that a caller may create, and the name of its user. Keep the new user, if it is one, until
/// the session is created.
pub(crate) async fn owner_of_new(
    engine: &Engine,
    caller: &Caller,
    input: &SessionInput,
) -> Result<(Owner, String, Option<NewUser>), EngineError> {
    rights::require_role(caller, &Act::CreateSession)?;
    let user = session_user(engine, caller, input.user.as_deref()).await?;
    let agent = agent_name(input.agent.as_deref().unwrap_or(DEFAULT_AGENT))?;
    let app = parse_name(&input.app, "app")?;
    // A bound key knows its user also where the name cannot be read any more.
    let named = match caller.user {
        Some(id) => NamedUser {
            id,
            new: caller.new_user.clone(),
        },
        None => engine.named_user(&caller.tenant, &user, "user").await?,
    };
    let owner = Owner {
        agent,
        app,
        user: named.id,
        tenant: caller.tenant.clone(),
    };
    Ok((owner, user, named.new))
}

fn fresh_session(engine: &Engine, owner: &Owner, user: &str) -> Result<SessionId, EngineError> {
    let shard = Shard::of_owner(owner.tenant.as_str(), owner.app.as_str(), user);
    let mut mint = IdMint::new(engine.now(), shard, entropy()?);
    Ok(SessionId::from_uuid(mint.next_uuid()))
}

/// The command that makes a session. It lives as long as the input says, or else the defaults.
pub(crate) fn create_command(
    owner: &Owner,
    input: &SessionInput,
    (default_ttl, default_hidden_ms): (Option<TimeToLive>, Option<u64>),
    state: StatePatch,
    payloads: &mut Payloads,
) -> Result<Command, EngineError> {
    if let Some(name) = &input.name {
        require_name(name)?;
    }
    if let Some(labels) = &input.labels {
        require_labels(labels)?;
    }
    let ttl = input
        .ttl_seconds
        .map(|seconds| time_to_live(seconds, input.ttl_mode))
        .transpose()?;
    let hidden_ttl_ms = input.hidden_ttl_seconds.map(hidden_ttl_ms).transpose()?;
    let labels = input.labels.as_ref().filter(|labels| !labels.is_empty());
    Ok(Command::CreateSession {
        name: input
            .name
            .as_ref()
            .map(|name| payloads.put_opaque(name.clone().into_bytes())),
        labels: labels.map(|labels| payloads.put_opaque(to_body(labels))),
        state,
        ttl: ttl.or(default_ttl),
        hidden_ttl_ms: hidden_ttl_ms.or(default_hidden_ms),
        owner: owner.clone(),
    })
}

/// The state that a session begins with.
fn first_state(
    engine: &Engine,
    state: Option<&BTreeMap<String, Raw>>,
    payloads: &mut Payloads,
) -> Result<StatePatch, EngineError> {
    let Some(set) = state else {
        return Ok(StatePatch::default());
    };
    let patch = StatePatchInput {
        set: set.clone(),
        ..StatePatchInput::default()
    };
    let writes = patch.parse(None)?;
    Ok(writes.into_core(&engine.policies().state, payloads))
}

/// The user of a new session: the one the key is bound to, or the one it names.
async fn session_user(
    engine: &Engine,
    caller: &Caller,
    named: Option<&str>,
) -> Result<String, EngineError> {
    match (caller.user, named) {
        (None, Some(named)) => Ok(named.to_owned()),
        (None, None) => Err(EngineError::UserNeeded),
        (Some(bound), named) => {
            let bound = engine.user_name(&caller.tenant, bound).await?;
            if named.is_none_or(|named| named == bound) {
                Ok(bound)
            } else {
                Err(EngineError::WrongUser)
            }
        }
    }
}

/// Filter of a session list.
#[derive(Debug, Clone, Default)]
pub struct SessionListInput {
    /// Only sessions of this app.
    pub app: Option<Name>,
    /// Only sessions of the user with this name.
    pub user: Option<String>,
    /// Only sessions with this status.
    pub status: Option<SessionStatus>,
    /// Only sessions with this label and, if given, this value.
    pub label: Option<(String, Option<String>)>,
    /// Only sessions with this text in the name or a label.
    pub text: Option<String>,
    /// Only the session with this name, of the app and of the user.
    pub name: Option<String>,
    /// In this order.
    pub order: SessionOrder,
}

/// A page of sessions.
///
/// # Errors
///
/// If the caller may not list sessions, or asks for a name without saying of which app and user.
pub async fn list(
    engine: &Engine,
    caller: &Caller,
    input: SessionListInput,
    after: Option<SessionPlace>,
    limit: usize,
) -> Result<Page<SessionView, SessionPlace>, EngineError> {
    // Authorise before looking up the user: an empty list must not reveal which users exist.
    require_lister(caller)?;
    let user = match &input.user {
        Some(name) => match engine.known_user(&caller.tenant, name).await? {
            Some(user) => Some(user),
            None => return Ok(Page::empty()),
        },
        None => None,
    };
    let page = engine.sessions(caller, &input, user, after, limit).await?;
    let mut users = Vec::with_capacity(page.entries.len());
    for SessionSummary { owner, .. } in &page.entries {
        users.push(engine.user_name(&owner.tenant, owner.user).await?);
    }
    let (summaries, next) = (page.entries, page.next);
    let bytes: usize = summaries.iter().map(SessionSummary::text_bytes).sum();
    let views = move || {
        let views = summaries.iter().zip(users);
        let views = views.map(|(summary, user)| SessionView::of(summary, user));
        views.collect()
    };
    let entries = if bytes > LONG_PAGE_BYTES {
        let views = tokio::task::spawn_blocking(views).await;
        views.map_err(|_| EngineError::Stopping)?
    } else {
        views()
    };
    Ok(Page { entries, next })
}

async fn session_view(
    engine: &Engine,
    summary: &SessionSummary,
) -> Result<SessionView, EngineError> {
    let owner = &summary.owner;
    let user = engine.user_name(&owner.tenant, owner.user).await?;
    Ok(SessionView::of(summary, user))
}

/// Reads a session, with its open holds.
///
/// # Errors
///
/// If the caller may not read it.
pub async fn read(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
) -> Result<SessionView, EngineError> {
    let summary = engine.session(caller, session).await?;
    let (pending, total) = pending_views(&engine.pending_in(summary.id).await?);
    Ok(SessionView {
        pending: Some(pending),
        pending_total: Some(total),
        ..session_view(engine, &summary).await?
    })
}

/// How many turns of a session have ended with an answer, or without one after a tool had run.
///
/// # Errors
///
/// If the caller may not read it.
pub async fn exchanges(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
) -> Result<u64, EngineError> {
    let state = engine.readable_conversation(caller, session).await?;
    let roots = state.memories.iter();
    let roots = roots.filter(|(path, _)| !path.as_str().contains('/'));
    Ok(roots.map(|(_, memory)| memory.exchanges).sum())
}

/// The newest durable revision of a session.
///
/// # Errors
///
/// If the caller may not read it.
pub async fn revision(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
) -> Result<u64, EngineError> {
    let state = engine.readable_conversation(caller, session).await?;
    Ok(state.revision)
}

/// Changes the name, the labels or the time to live of a session.
///
/// # Errors
///
/// If the caller may not, the input is malformed, or the session moved on.
pub async fn patch(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    changes: &SessionChanges,
) -> Result<Receipt<SessionView>, EngineError> {
    // Before validating, and before waiting for the lock.
    let act = Act::ManageSession;
    engine.authorise(&call.caller, session, &act).await?;
    // The change merges into the stored labels, so it depends on the revision that was read.
    let _lock = match changes.labels {
        Some(_) => Some(engine.lock_session(session).await?),
        None => None,
    };
    for _ in 0..RETRIES_MAX {
        match patch_once(engine, call, session, changes).await {
            Err(EngineError::RevisionMismatch { .. }) if call.if_revision.is_none() => {}
            other => return other,
        }
    }
    Err(EngineError::TooMany(
        "the session changes too fast; try again",
    ))
}

async fn patch_once(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    changes: &SessionChanges,
) -> Result<Receipt<SessionView>, EngineError> {
    let mut summary = engine.session(&call.caller, session).await?;
    let owner = summary.owner.clone();
    let mut call = call.clone();
    let labels = match &changes.labels {
        Some(changes) => {
            let merged = merge_labels(summary.labels.as_deref(), changes);
            require_labels(&merged)?;
            let json = to_body(&merged);
            summary.labels = Some(String::from_utf8_lossy(&json).into_owned());
            call.if_revision = call.if_revision.or(Some(summary.revision));
            Some(json)
        }
        None => None,
    };
    let mut write = SessionWrite::of_owner(engine, &call, session, &owner).await?;
    let labels = labels.map(|json| write.payloads.put_opaque(json));
    let name = new_name(changes, &mut write.payloads)?;
    if let Some(name) = &changes.name {
        summary.name = name.clone().value();
    }
    let ttl = new_ttl(changes)?;
    let hidden_ttl_ms = new_hidden_ttl(changes)?;
    let command = Command::PatchSession {
        labels,
        name,
        ttl,
        hidden_ttl_ms,
    };
    let user = engine.user_name(&owner.tenant, owner.user).await?;
    let view = |made: &DecidedCommit<'_>| {
        let summary = SessionSummary {
            ttl: made.after.ttl,
            hidden_ttl_ms: made.after.hidden_ttl_ms,
            ..after_commit(&summary, made)
        };
        Some(SessionView::of(&summary, user.clone()))
    };
    write.commit(&command, view).await
}

fn new_name(
    changes: &SessionChanges,
    payloads: &mut Payloads,
) -> Result<Option<Change<BodyRef>>, EngineError> {
    Ok(match &changes.name {
        Some(Change::Set(name)) => {
            require_name(name)?;
            Some(Change::Set(payloads.put_opaque(name.clone().into_bytes())))
        }
        Some(Change::Clear) => Some(Change::Clear),
        None => None,
    })
}

fn new_ttl(changes: &SessionChanges) -> Result<Option<Change<TimeToLive>>, EngineError> {
    Ok(match changes.ttl_seconds {
        Some(Change::Set(seconds)) => Some(Change::Set(time_to_live(seconds, changes.ttl_mode)?)),
        Some(Change::Clear) => Some(Change::Clear),
        None if changes.ttl_mode.is_some() => {
            let detail = "`ttl_mode` goes with `ttl_seconds`";
            return Err(EngineError::invalid("ttl_mode", detail));
        }
        None => None,
    })
}

fn new_hidden_ttl(changes: &SessionChanges) -> Result<Option<Change<u64>>, EngineError> {
    Ok(match changes.hidden_ttl_seconds {
        Some(Change::Set(seconds)) => Some(Change::Set(hidden_ttl_ms(seconds)?)),
        Some(Change::Clear) => Some(Change::Clear),
        None => None,
    })
}

fn merge_labels(
    there: Option<&str>,
    changes: &BTreeMap<String, Option<String>>,
) -> BTreeMap<String, String> {
    let mut labels = parse_labels(there);
    for (key, value) in changes {
        match value {
            Some(value) => labels.insert(key.clone(), value.clone()),
            None => labels.remove(key),
        };
    }
    labels
}

/// A session as a commit leaves it.
fn after_commit(before: &SessionSummary, made: &DecidedCommit<'_>) -> SessionSummary {
    let content = &made.record.content;
    SessionSummary {
        status: made.after.status(),
        expires_at: made.after.expires_at,
        revision: content.seq,
        updated_at: content.at,
        ..before.clone()
    }
}

/// Closes a session: it accepts no more commands.
///
/// # Errors
///
/// If the caller may not, or requests are live.
pub async fn close(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    input: &CloseSessionInput,
) -> Result<Receipt<SessionView>, EngineError> {
    rights::require_role(&call.caller, &Act::ManageSession)?;
    let summary = engine.session(&call.caller, session).await?;
    let owner = &summary.owner;
    let user = engine.user_name(&owner.tenant, owner.user).await?;
    let view = |made: &DecidedCommit<'_>| {
        let summary = after_commit(&summary, made);
        Some(SessionView::of(&summary, user.clone()))
    };
    let cancel_live = input.cancel_live;
    SessionWrite::new(engine, call, session)
        .commit(&Command::CloseSession { cancel_live }, view)
        .await
}

/// Deletes every payload of a session. Its records stay. Repeating the call succeeds, even when nothing is
/// left to delete.
///
/// # Errors
///
/// If the caller may not.
pub async fn delete(
    engine: &Engine,
    call: &Call,
    session: SessionId,
) -> Result<Receipt<()>, EngineError> {
    SessionWrite::new(engine, call, session)
        .commit_unseen(&Command::DeleteSession)
        .await
}

/// The messages of a session. The first page has the newest ones; within a page the oldest come first.
/// With the `seq` before which the next page begins.
///
/// # Errors
///
/// If the caller may not read it.
pub async fn messages(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    (before, limit): (Option<u64>, PageLimit),
) -> Result<(MessagePage, Option<u64>), EngineError> {
    let page = engine.transcript(caller, session, before, limit).await?;
    let mut messages: Vec<_> = page.items.iter().rev().map(MessageView::of).collect();
    let place = (session, page.revision);
    let is_whole = add_annotations(engine, caller, place, &mut messages, limit.bytes).await?;
    let view = MessagePage {
        messages,
        revision: page.revision,
        annotations_cut: !is_whole,
        next_cursor: None,
    };
    Ok((view, page.next))
}

/// Every item of a session, in pages like those of [`messages`]. The audit stream records the read before
/// the answer.
///
/// # Errors
///
/// If the caller may not read traces.
pub async fn trace(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    page: (Option<u64>, PageLimit),
) -> Result<(TracePage, Option<u64>), EngineError> {
    super::trace::items(engine, caller, session, None, page).await
}

/// The records of a session: a hash chain that any reader can verify.
///
/// # Errors
///
/// If the caller may not read records.
pub async fn records(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    after: u64,
    limit: PageLimit,
) -> Result<RecordPage, EngineError> {
    let summary = engine.traceable(caller, session).await?;
    let records = engine.inner().store.chain(session, after, limit).await?;
    let chained = |record: &Record| with_hash(record.as_bytes(), &record.hash.to_string());
    let principals = records.iter().flat_map(principals_in);
    let names = engine.names_for(caller, principals).await?;
    Ok(RecordPage {
        records: records.iter().map(chained).collect(),
        names: names.by_principal(),
        revision: summary.revision,
    })
}

/// The principal of a record, and the people who decided its holds.
fn principals_in(record: &Record) -> impl Iterator<Item = Principal> {
    let events = record.content.events.iter();
    let deciders = events.filter_map(decider_in);
    std::iter::once(record.content.principal).chain(deciders)
}

/// Who decided the hold that an event is about.
pub(crate) fn decider_in(event: &Event) -> Option<Principal> {
    match event {
        Event::HoldDecided { decision, .. } => Some(decision.by),
        _ => None,
    }
}

/// The canonical bytes of a record, with its hash as one more field.
pub(crate) fn with_hash(bytes: &[u8], hash: &str) -> Box<RawValue> {
    let text = String::from_utf8_lossy(bytes);
    let open = text.strip_suffix('}').unwrap_or(&text);
    raw_bytes(format!("{open},\"hash\":\"{hash}\"}}").as_bytes())
}

//! Errors of the engine.

use statehold_core::command::Rejection;
use statehold_core::ids::SessionId;
use statehold_core::merge::MergeError;
use statehold_core::scope::StateKey;
use statehold_store::{FORK_LEVELS_MAX, StoreError};

use crate::api::hold::{DecisionView, HoldRef};
use crate::caller::Role;
use crate::guard::schema::FieldError;

/// Roles in a sentence: `client`, `operator` or `admin`.
fn any_of(roles: &[Role]) -> String {
    let names: Vec<String> = roles
        .iter()
        .map(|role| format!("`{}`", role.name()))
        .collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// Why the engine refused a call or failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The object does not exist, or the caller may not know that it does.
    #[error("there is no such object")]
    NotFound,
    /// The caller's key was revoked or expired while the call waited.
    #[error("the key was revoked or has expired; make another with: statehold token create")]
    KeyEnded,
    /// The caller lacks a role, independent of the object.
    #[error("this needs the role {}", any_of(needs))]
    Forbidden {
        /// Roles of which one is enough. Never empty.
        needs: Vec<Role>,
    },
    /// A key bound to a user named another user.
    #[error("this key may not act for that user; leave the user out, or use another key")]
    WrongUser,
    /// A key without a user gave none.
    #[error("name the user with `user`, or use a key that is bound to one")]
    UserNeeded,
    /// A key bound to agents named another agent.
    #[error("this key does not work for the agent `{agent}`")]
    WrongAgent {
        /// The agent named in the call.
        agent: String,
    },
    /// A key bound to agents left the agent out, and does not work for that of the session. The text does
    /// not name it.
    #[error(
        "this key does not work for the agent of the session; name one of its own with `agent`"
    )]
    WrongSessionAgent,
    /// A key bound to agents started a child request of an agent that its own agent may not call.
    #[error("the agent `{agent}` may not call `{called}`; add it to `calls` of `[agents.{agent}]`")]
    MayNotCall {
        /// The agent of the parent request.
        agent: String,
        /// The agent of the child request.
        called: String,
    },
    /// The user was erased while the call was in progress.
    #[error(
        "the user is being erased, so nothing was stored; a new call begins as a new user of that name"
    )]
    UserErased,
    /// The caller's revision is stale.
    #[error("the session is at revision {current}, not {expected}; read it again")]
    RevisionMismatch {
        /// The revision the caller expected.
        expected: u64,
        /// The current revision.
        current: u64,
    },
    /// The core refused.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The hold was already decided, or its deadline has passed.
    #[error("{rejection}")]
    DecidedBefore {
        /// Why the core refused it.
        rejection: Rejection,
        /// The decision that stands, if the caller may see it.
        decision: Option<Box<DecisionView>>,
    },
    /// A request with several holds was resumed without naming one.
    #[error("the request has had several holds; say which one with `hold_id` or `digest`")]
    SeveralHolds {
        /// The holds that the caller may see.
        holds: Vec<HoldRef>,
    },
    /// The idempotency key was used for a different call.
    #[error("this idempotency key was used for another call; use a new one")]
    KeyReused,
    /// Another session of this app and user has this name.
    #[error("the name is taken by session {session}; use it, or choose another name")]
    NameTaken {
        /// The session with the name.
        session: SessionId,
    },
    /// A value does not fit the schema that the configuration gives its key.
    #[error("the value of `{key}` does not fit its schema: {}", first_error(.errors))]
    StateInvalid {
        /// The key.
        key: StateKey,
        /// Why it does not fit.
        errors: Vec<FieldError>,
    },
    /// The session has another event with this id.
    #[error("the session has another event with the id `{id}`; give each event an id of its own")]
    EventTaken {
        /// The id.
        id: String,
    },
    /// The caller's version of a shared key is stale.
    #[error("`{key}` is at version {found}, not {expected}")]
    VersionConflict {
        /// The key.
        key: StateKey,
        /// The version the caller expected.
        expected: u64,
        /// The current version.
        found: u64,
    },
    /// A value cannot be merged with the current value.
    #[error("`{key}`: {source}")]
    Merge {
        /// The key.
        key: StateKey,
        /// The reason.
        source: MergeError,
    },
    /// A stored or sent value is not JSON.
    #[error("a value is not JSON")]
    NotJson,
    /// An invalid hold.
    #[error("`{path}` {what}")]
    HoldMalformed {
        /// The field.
        path: String,
        /// The expected form.
        what: String,
    },
    /// An invalid field.
    #[error("`{path}`: {what}")]
    InvalidField {
        /// The field.
        path: &'static str,
        /// The expected form.
        what: String,
    },
    /// Input of the wrong shape.
    #[error("{detail}")]
    InvalidInput {
        /// The field.
        path: String,
        /// The expected form.
        detail: String,
    },
    /// An item whose fields do not fit its kind.
    #[error("`{path}`: {what}")]
    ItemMalformed {
        /// The item.
        path: String,
        /// The expected form.
        what: String,
    },
    /// A tool result names a call that is not open.
    #[error("there is no open tool call with this `call_id` in the request")]
    UnknownCall {
        /// The given id, truncated.
        call_id: String,
    },
    /// An append without content.
    #[error("name at least one of `items`, `state` and `task_state`")]
    NothingToAppend,
    /// An invalid state key, or one that cannot be written there.
    #[error("{detail}")]
    BadStateKey {
        /// The key, truncated.
        key: Option<String>,
        /// The expected form.
        detail: String,
    },
    /// Edited arguments that do not match the tool's schema.
    #[error("the arguments do not fit the schema of the tool; see `errors`")]
    InvalidArgs(Vec<FieldError>),
    /// An answer that does not match the requested form.
    #[error("the answer does not have the form that was asked for; see `errors`")]
    InvalidContent(Vec<FieldError>),
    /// A rejection without the required comment.
    #[error("the policy wants a reason for a rejection; send a `comment`")]
    CommentNeeded,
    /// A worker asked for weaker terms than the policy sets.
    #[error(
        "the policy sets `{field}` to {policy}, and a worker may only tighten it; leave `{field}` out"
    )]
    PolicyStricter {
        /// The field.
        field: &'static str,
        /// The value that the policy sets.
        policy: String,
    },
    /// A call that needs approval was recorded as ungated.
    #[error("calls of `{tool}` need an approval; open a hold for it first")]
    ApprovalNeeded {
        /// The tool.
        tool: String,
    },
    /// Another invalid part of the call.
    #[error("{0}")]
    Invalid(String),
    /// An address that decisions must not be pushed to.
    #[error("{0}")]
    AddressRefused(String),
    /// A feed was to continue after a revision that the session does not have.
    #[error(
        "the feed is at revision {current}, which is before the one to go on after; read the session \
         again, it may have been restored from a backup"
    )]
    FeedAhead {
        /// The newest revision.
        current: u64,
    },
    /// A read of the past named a revision that the session does not have.
    #[error("`{name}` is a revision of the session: {first} to {current}")]
    UnknownRevision {
        /// The parameter.
        name: &'static str,
        /// The first revision that it may be.
        first: u64,
        /// The newest revision.
        current: u64,
    },
    /// A fork of forks would be too deep.
    #[error(
        "the session is {FORK_LEVELS_MAX} forks away from its first origin and cannot be forked again; begin a \
         new session"
    )]
    ForkTooDeep,
    /// A limit was exceeded.
    #[error("{0}")]
    TooMany(&'static str),
    /// The first entry of a page is longer than the whole page may be. Ask again for a page of so many bytes.
    #[error("the next entry has {bytes} bytes, which is more than the page may have")]
    PageTooSmall {
        /// The length of the entry.
        bytes: u64,
    },
    /// The disk is full.
    #[error("the disk is full; nothing was written, and reads go on")]
    Full,
    /// The engine is stopping, or its store has stopped.
    #[error("the server is stopping; try again")]
    Stopping,
    /// The engine stops while a caller waits for a chat turn, which continues after the restart.
    #[error("the server is stopping; nothing is lost, send the same message again for the answer")]
    TurnInterrupted,
    /// Stored data that the call needs is damaged.
    #[error(
        "stored data that this call needs is damaged; other sessions go on. An operator finds the place \
         with: statehold check"
    )]
    Damaged(#[source] StoreError),
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] StoreError),
}

impl EngineError {
    /// State that cannot be written there.
    pub(crate) fn bad_state(detail: impl Into<String>) -> Self {
        let (key, detail) = (None, detail.into());
        Self::BadStateKey { key, detail }
    }

    /// Input of the wrong shape at `path`.
    pub(crate) fn invalid(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::InvalidInput {
            path: path.into(),
            detail: detail.into(),
        }
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::SharedConflict {
                key,
                expected,
                found,
            } => Self::VersionConflict {
                key,
                expected,
                found,
            },
            StoreError::NameTaken { session } => Self::NameTaken { session },
            StoreError::ForkTooDeep => Self::ForkTooDeep,
            StoreError::PageTooSmall { bytes } => Self::PageTooSmall { bytes },
            StoreError::Full => Self::Full,
            StoreError::Stopped => Self::Stopping,
            error @ StoreError::Corrupt { .. } => Self::Damaged(error),
            other => Self::Store(other),
        }
    }
}

/// The first of several errors, with its place.
fn first_error(errors: &[FieldError]) -> String {
    match errors.first() {
        Some(FieldError { path, message }) if path.is_empty() => message.clone(),
        Some(FieldError { path, message }) => format!("at {path}: {message}"),
        None => String::new(),
    }
}

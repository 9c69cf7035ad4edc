//! Why the engine did not do what it was asked.

use statehold_core::command::Rejection;
use statehold_core::ids::SessionId;
use statehold_core::merge::MergeError;
use statehold_core::scope::StateKey;
use statehold_store::StoreError;

use crate::api::hold::{DecisionView, HoldRef};
use crate::caller::Role;
use crate::schema::FieldError;

/// Why not.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such thing, or the caller may not know of it.
    #[error("there is no such object")]
    NotFound,
    /// The caller lacks a right, whatever the object.
    #[error("this needs the role `{}`", needs.name())]
    Forbidden {
        /// A role that would do.
        needs: Role,
    },
    /// A user-bound key named somebody else.
    #[error("this key may not act for that user; leave the user out, or use another key")]
    WrongUser,
    /// An unbound key named nobody.
    #[error("name the user with `user`, or use a key that is bound to one")]
    UserNeeded,
    /// A key bound to agents named another.
    #[error("this key does not work for the agent `{agent}`")]
    WrongAgent {
        /// That agent.
        agent: String,
    },
    /// The session has moved on.
    #[error("the session is at revision {current}, not {expected}; read it again")]
    RevisionMismatch {
        /// The revision the caller expected.
        expected: u64,
        /// The revision that is there.
        current: u64,
    },
    /// The core refused.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// A decision that came after another, or after the deadline.
    #[error("{rejection}")]
    DecidedBefore {
        /// Why the core refused it.
        rejection: Rejection,
        /// The decision that stands, as far as the caller may see it.
        decision: Option<Box<DecisionView>>,
    },
    /// A request that had several holds is resumed without saying which.
    #[error("the request has had several holds; say which one with `hold_id` or `digest`")]
    SeveralHolds {
        /// Those that the caller may see.
        holds: Vec<HoldRef>,
    },
    /// The idempotency key came with another call before.
    #[error("this idempotency key was used for another call; use a new one")]
    KeyReused,
    /// A session of this app and user has this name.
    #[error("the name is taken by session {session}; use it, or choose another name")]
    NameTaken {
        /// That session.
        session: SessionId,
    },
    /// A shared key has another version.
    #[error("`{key}` is at version {found}, not {expected}")]
    VersionConflict {
        /// The key.
        key: StateKey,
        /// What was expected.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// A value does not merge with the one that is there.
    #[error("`{key}`: {source}")]
    Merge {
        /// The key.
        key: StateKey,
        /// Why not.
        source: MergeError,
    },
    /// A stored or sent value is not JSON.
    #[error("a value is not JSON")]
    NotJson,
    /// `temp:` values without a request to live with.
    #[error("{0}")]
    Temp(&'static str),
    /// A hold that makes no sense.
    #[error("`{path}` {what}")]
    HoldMalformed {
        /// The field.
        path: String,
        /// What it should be.
        what: String,
    },
    /// A field that makes no sense.
    #[error("`{path}`: {what}")]
    InvalidField {
        /// The field.
        path: &'static str,
        /// What it should be.
        what: String,
    },
    /// Input of the wrong shape.
    #[error("{detail}")]
    InvalidInput {
        /// The field.
        path: String,
        /// What it should be.
        detail: String,
    },
    /// An item whose fields do not fit its kind.
    #[error("`{path}`: {what}")]
    ItemMalformed {
        /// The item.
        path: String,
        /// What it should be.
        what: String,
    },
    /// A tool result names a call that is not open.
    #[error("there is no open tool call with this `call_id` in the request")]
    UnknownCall {
        /// The name that was given, clipped.
        call_id: String,
    },
    /// A worker appends nothing at all.
    #[error("name at least one of `items`, `state` and `task_state`")]
    NothingToAppend,
    /// A text that is no state key, or one that cannot be written there.
    #[error("{detail}")]
    BadStateKey {
        /// The key, clipped.
        key: Option<String>,
        /// What it should be.
        detail: String,
    },
    /// Edited arguments that the tool does not take.
    #[error("the arguments do not fit the schema of the tool; see `errors`")]
    InvalidArgs(Vec<FieldError>),
    /// An answer that is not of the form that was asked for.
    #[error("the answer does not have the form that was asked for; see `errors`")]
    InvalidContent(Vec<FieldError>),
    /// A rejection without a word.
    #[error("the policy wants a reason for a rejection; send a `comment`")]
    CommentNeeded,
    /// A worker asked for less than the policy wants.
    #[error(
        "the policy sets `{field}` to {policy}, and a worker may only tighten it; leave `{field}` out"
    )]
    PolicyStricter {
        /// The field.
        field: &'static str,
        /// What the policy says.
        policy: String,
    },
    /// A call that the policy wants approved was recorded as if it could just run.
    #[error("calls of `{tool}` need an approval; open a hold for it first")]
    ApprovalNeeded {
        /// The tool.
        tool: String,
    },
    /// Something else in the call makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Too much of something that is bounded.
    #[error("{0}")]
    TooMany(&'static str),
    /// The disk is full.
    #[error("the disk is full; nothing was written, and reads go on")]
    Full,
    /// The engine is stopping, or its store has stopped.
    #[error("the server is stopping; try again")]
    Stopping,
    /// The engine stops while a caller waits for a chat turn, which continues after the restart.
    #[error("the server is stopping; nothing is lost, send the same message again for the answer")]
    TurnInterrupted,
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] StoreError),
}

impl EngineError {
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
            StoreError::Full => Self::Full,
            StoreError::Stopped => Self::Stopping,
            other => Self::Store(other),
        }
    }
}

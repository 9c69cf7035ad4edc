//! The engine: it orders the commands of each session, decides them on the newest state, and answers
//! only when they are durable.
//!
//! An [`Engine`] has ports: a store, a clock, and keys for payloads and holds. It decides with the core,
//! commits in pipelined groups, keeps hot sessions in memory, serves feeds in order, runs timers, hands
//! out work, and checks rights. It speaks no protocol.

mod access;
mod addresses;
mod answer;
pub mod api;
mod ask;
mod audit;
mod auto_claim;
mod caller;
mod claim;
mod credentials;
mod drafts;
mod engine;
mod error;
mod feed;
mod holds;
mod idempotency;
pub mod kept;
mod keys;
mod mailbox;
mod merge;
mod own_work;
mod payloads;
pub mod policy;
mod ports;
mod read;
mod redact;
mod rights;
mod schema;
mod sealed;
mod shared;
mod swap;
mod temp;
mod timers;
mod users;

pub use access::{require_admin, require_lister};
pub use addresses::{
    ADDRESS_BYTES_MAX, AddressChanges, Resumable, SigningSecret, require_address_right,
};
pub use answer::NewAnswer;
pub use ask::{NewAction, NewAsk};
pub use audit::{AuditPage, Verification};
pub use auto_claim::AutoClaim;
pub use caller::{Caller, Role, Roles};
pub use claim::{Claim, ClaimedRequest};
pub use credentials::{CREDENTIAL_BYTES_MAX, Credential, CredentialSource};
pub use drafts::{DraftPiece, DraftReader, OpenDraft};
pub use engine::{Engine, EngineOptions};
pub use error::EngineError;
pub use feed::{Delta, FeedEntry, GlobalPosition, News, SessionFeed, SessionNews};
pub use holds::{
    HoldCounts, HoldDetail, HoldFilter, HoldGroup, HoldNews, HoldPosition, Pending, PendingHold,
};
pub use idempotency::{IdempotencyKey, SessionLock};
pub use keys::{IssuedKey, KEY_PREFIX, KeyChanges, NewKey};
pub use mailbox::{Call, Committed, Done, Receipt, Reply};
pub use own_work::{Ended, Progress};
pub use payloads::Payloads;
pub use ports::{
    Clock, HoldKeys, MemoryHoldKeys, MemoryKeys, OffsetClock, PayloadKeys, SystemClock,
};
pub use read::{ItemPage, Page, RequestDetail, SessionFilter, StoredRequest, TaskDetail};
pub use redact::{PathRule, Pattern};
pub use schema::{FieldError, Schema};
pub use sealed::OpenedArgs;
pub use shared::SharedView;
pub use statehold_store::{
    ApiKey, CallResult, CheckReport, DueKind, HoldChangeKind, HoldOrder, HoldPlace, LineageStep,
    Problem as CheckProblem, ProblemKind, ResumeAddress, SessionSummary, SharedValue, StateValue,
    StoredItem, StoredRecord,
};
pub use swap::Swap;

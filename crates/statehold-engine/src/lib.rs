//! The engine: it orders the commands of each session, decides them on the newest state, and answers
//! only when they are durable.
//!
//! An [`Engine`] has ports: a store, a clock, and keys for payloads and holds. It decides with the core,
//! commits in pipelined groups, keeps hot sessions in memory, serves feeds in order, runs timers, hands
//! out work, and checks rights. It speaks no protocol.

mod addresses;
mod answer_memory;
pub mod api;
mod audit;
mod background;
pub mod bodies;
mod caller;
mod claim;
mod commit;
mod engine;
mod error;
mod feed;
mod guard;
mod holds;
mod keys;
pub mod leased;
mod locks;
mod long_reads;
pub mod measures;
mod open_hold;
mod own_work;
mod people;
pub mod phases;
mod ports;
mod read;
mod reconcile;
mod shared;
mod shares;
pub mod stage;
mod starters;
mod swap;
mod temp;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trace;
mod turn_memory;
mod users;
mod watch;

pub use addresses::{Resumable, SigningSecret};
pub use answer_memory::{AnswerMemory, SMALL_PAYLOAD_BYTES, UnmeteredMemory};
pub use background::drafts::{DraftChange, DraftPiece, DraftReader, OpenDraft};
pub use caller::{Caller, PhaseScope, Role, Roles};
pub use claim::{Claim, ClaimedRequest};
pub use commit::auto_claim::AutoClaim;
pub use commit::call::{Call, Receipt};
pub use commit::idempotency::IdempotencyKey;
pub use commit::payloads::Payloads;
pub use engine::{Engine, EngineOptions};
pub use error::EngineError;
pub use feed::FeedEntry;
pub use guard::credentials::{
    Audience, CREDENTIAL_BYTES_MAX, CallCredential, CallCredentialRef, Credential, CredentialSource,
};
pub use guard::lifetimes::{DefaultLifetimes, Lifetimes};
pub use guard::policy;
pub use guard::redact::{PathRule, Pattern, RedactionRules};
pub use guard::schema::{FieldError, Schema};
pub use guard::sealed::OpenedArgs;
pub use guard::state_rules::{StateKeyPattern, StateRule, StateRules};
pub use holds::{HoldDetail, HoldFilter, HoldGroup, Pending, PendingHold};
pub use keys::{IssuedKey, KEY_PREFIX, NewKey};
pub use locks::Lock;
pub use open_hold::{HoldSpec, NewAction};
pub use own_work::{Ended, Progress};
pub use statehold_store::{debug_log, key_ring};

pub use ports::{
    Clock, HoldKeys, MemoryHoldKeys, MemoryKeys, OffsetClock, PayloadKeys, SystemClock,
};
pub use read::{ItemPage, Page, RequestDetail, RequestHolds, StoredRequest};
pub use shares::{PendingShare, PoolFull, ReleasedShare, Share, Shares};
pub use statehold_store::{
    ApiKey, CallResult, CheckReport, DueKind, HoldChangeKind, HoldOrder, HoldPlace, LineageStep,
    PageLimit, Problem as CheckProblem, ProblemKind, ResumeAddress, SessionOrder, SessionPlace,
    SessionSummary, SharedValue, StateValue, StoredItem, StoredRecord,
};
pub use swap::Swap;
pub use turn_memory::{TurnMemories, TurnMemory, TurnMemoryFull};
pub use users::NewUser;

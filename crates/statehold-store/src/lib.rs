//! Durable storage: the store port, the stored form of records, and the adapters.
//!
//! [`Store`] is the contract; its documentation says what holds after a crash. One conformance
//! suite (feature `suite`) is run against every adapter: [`memory`], the reference, and [`sqlite`],
//! the default. No type of an adapter's engine appears in a public signature.

pub mod check;
pub mod codec;
mod commit;
pub mod debug_log;
mod durations;
pub mod hold_keys;
pub mod key_ring;
pub mod keys;
pub mod memory;
mod port;
mod private_file;
pub mod seal;
pub mod signing;
pub mod sqlite;
#[cfg(feature = "suite")]
pub mod suite;

pub use check::{CheckReport, Problem, ProblemKind};
pub use commit::{Answer, BodyMismatch, CHAT_REQUESTS_MAX, Commit, MergedValue};
pub use durations::{BUCKET_SECONDS, DurationCounts, Durations};
pub use port::{
    AddressChange, AgentQueue, ApiKey, BoxError, CallResult, ChangedHead, Committed, DamageCounts,
    DamageLog, Due, DueKind, DuePage, DuePlace, FORK_LEVELS_MAX, HoldChange, HoldChangeKind,
    HoldOrder, HoldPlace, HoldQuery, HoldSummary, ItemQuery, KeyRange, LineageStep, LiveWork,
    MemoryPage, MemoryQuery, PageLimit, PastItemQuery, PastStateQuery, PastValue, PendingCommit,
    ResumeAddress, SessionOrder, SessionPlace, SessionQuery, SessionSummary, SharedOwner,
    SharedValue, StatePage, StateValue, Store, StoreError, StoreMeasures, StoredExchange,
    StoredItem, StoredRecord, TenantChange, TenantCommit, ValueSize, WorkTotals, record_bytes,
};

//! The store port: the operations the engine needs, and the guarantees that hold after a crash.

mod damage;
mod due;
mod holds;
mod measures;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, KeyId, RequestId, SessionId, TaskId, UserId};
use statehold_core::item::PlacedItem;
use statehold_core::memory::{AgentPath, Memory};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::record::Record;
use statehold_core::request::{LiveRequest, RequestOutcome};
use statehold_core::root::SignedHead;
use statehold_core::scope::{KeyPrefix, Scope, StateKey};
use statehold_core::session::{Owner, SessionState};
use statehold_core::tenant::{TenantHead, TenantRecord};
use statehold_core::time::Timestamp;
use statehold_core::view::View;

pub use damage::{DamageCounts, DamageLog};
pub use due::{Due, DueKind, DuePage, DuePlace};
pub use holds::{
    CallResult, HoldChange, HoldChangeKind, HoldOrder, HoldPlace, HoldQuery, HoldSummary,
    LineageStep,
};
pub use measures::{AgentQueue, StoreMeasures, WorkTotals};
pub use sessions::{SessionOrder, SessionPlace, SessionQuery, SessionSummary};

use crate::check::CheckReport;
use crate::commit::{Answer, Commit};
use crate::keys::KnownKeys;

/// An error of the engine below, kept as a source.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How many forks lie between a session and its first origin at most. Reads of a fork look into each of them.
pub const FORK_LEVELS_MAX: usize = 64;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The session has moved on; read again, decide again.
    #[error("session {session} is at revision {found}, not {expected}")]
    Conflict {
        /// The session.
        session: SessionId,
        /// The revision the commit was decided on.
        expected: u64,
        /// The current revision.
        found: u64,
    },
    /// A shared key has moved on.
    #[error("`{key}` is at version {found}, not {expected}")]
    SharedConflict {
        /// The key.
        key: StateKey,
        /// The version the commit expects.
        expected: u64,
        /// The current version.
        found: u64,
    },
    /// A session of this user and app has this name.
    #[error("the name is taken by session {session}")]
    NameTaken {
        /// The session that has the name.
        session: SessionId,
    },
    /// A fork of forks would be too deep.
    #[error("a session may be {FORK_LEVELS_MAX} forks away from its first origin, not more")]
    ForkTooDeep,
    /// The audit stream has moved on.
    #[error("the audit stream has moved on to entry {found}")]
    TenantConflict {
        /// The current entry.
        found: u64,
    },
    /// The idempotency key was used by another call in the meantime.
    #[error("the idempotency key was used by revision {revision} of session {session}")]
    KeyTaken {
        /// The session it committed to.
        session: SessionId,
        /// The revision it committed.
        revision: u64,
    },
    /// The user whom a commit brings got another pseudonym in the meantime.
    #[error("the new user is known as {known} now; try again")]
    UserTaken {
        /// The pseudonym.
        known: UserId,
    },
    /// The disk is full. Nothing was written; reads still work.
    #[error("the store is full; free some disk space, then try again")]
    Full,
    /// The disk did not confirm a write. Nothing more is written by this process.
    #[error("the store has stopped, because the disk did not confirm a write")]
    Stopped,
    /// The stored data is damaged.
    #[error("the store is damaged at {place}")]
    Corrupt {
        /// The session whose data it is, where that is known.
        session: Option<SessionId>,
        /// Where.
        place: String,
        /// The cause.
        #[source]
        source: BoxError,
    },
    /// This build cannot use the files.
    #[error("{0}")]
    Unusable(String),
    /// The first entry of a page is longer than the whole page may be. Ask again for a page of so many bytes.
    #[error("the next entry has {bytes} bytes, which is more than the page may have")]
    PageTooSmall {
        /// The length of the entry.
        bytes: u64,
    },
    /// The engine below failed.
    #[error("the store cannot be reached")]
    Unavailable(#[source] BoxError),
}

impl StoreError {
    /// The same error; damage is in the data of this session, unless it names another.
    #[must_use]
    pub fn in_session(mut self, of: SessionId) -> Self {
        if let Self::Corrupt { session, .. } = &mut self {
            session.get_or_insert(of);
        }
        self
    }

    /// Whether the same call may succeed if it is made again.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Conflict { .. }
            | Self::SharedConflict { .. }
            | Self::TenantConflict { .. }
            | Self::UserTaken { .. }
            | Self::Full
            | Self::Unavailable(_) => true,
            Self::NameTaken { .. }
            | Self::ForkTooDeep
            | Self::KeyTaken { .. }
            | Self::Stopped
            | Self::Corrupt { .. }
            | Self::PageTooSmall { .. }
            | Self::Unusable(_) => false,
        }
    }
}

/// A commit that is in line: resolves when it is durable, or refused.
pub type PendingCommit = Pin<Box<dyn Future<Output = Result<u64, StoreError>> + Send>>;

/// Where sessions last.
///
/// A session has one writer order: a commit is taken only at the revision it was decided on. Reads
/// see whole commits only.
///
/// # Pages
///
/// A method with a [`PageLimit`] returns a page that ends before the entry that would exceed the limit, so it
/// may be short. It knows the length of an entry before it unpacks a payload. If the first entry alone is too
/// long, that is a [`StoreError::PageTooSmall`], which says how many bytes it has.
///
/// # Damage
///
/// Lists of sessions, holds, requests, commits, deadlines, keys and addresses leave damaged rows out, so that one
/// hides no other, and note them in [`Store::damage`]. So does every read that fails because of damage.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Writes a commit: its record, payloads, projections, shared state, kept answer and new user, all
    /// of them or none.
    ///
    /// After `Ok`, all of it survives a crash of this process and a loss of power. After an error
    /// nothing of it is there; a crash before the answer leaves all of it or nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if the session is at another revision or has another head, the
    /// other conflicts if shared state, a name, an idempotency key or a user has been taken in between. If
    /// several apply: revision, key, name, shared state, user. [`StoreError::Unusable`] if a shared key
    /// has a merge policy and no merged value.
    ///
    /// # Shared state
    ///
    /// A store merges nothing: a commit brings the merged value, and the version it was merged
    /// with. If the key has another version by then, that is a [`StoreError::SharedConflict`], as
    /// it is for a version that the record expects.
    ///
    /// # Forks
    ///
    /// The first record of a fork ends requests and holds that are still live in the origin; they
    /// are not ended there, and look-ups by id still answer for the origin. State keys and private
    /// states are copied as they were at the revision the fork was made from. A deleted session is
    /// not copied: that is a conflict.
    async fn commit(&self, commit: Commit) -> Result<u64, StoreError> {
        self.begin_commit(commit).await?.await
    }

    /// Enqueues a commit and returns at once; the returned future resolves as [`Store::commit`]
    /// does.
    ///
    /// The store writes commits in the order of the queue, so a session may decide on a state that
    /// is not durable yet: if one commit is refused, later commits that build on it are refused
    /// with a conflict.
    ///
    /// # Errors
    ///
    /// If the store takes no more commits at all.
    async fn begin_commit(&self, commit: Commit) -> Result<PendingCommit, StoreError>;

    /// Waits until each commit that was begun before is written or refused. A commit that is encrypted when the key of
    /// its user is deleted would otherwise be written after a reader looked for it.
    ///
    /// # Errors
    ///
    /// If the store takes no more commits at all.
    async fn settle_begun_commits(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// The state of a session, from its projections.
    async fn load(&self, session: SessionId) -> Result<Option<SessionState>, StoreError>;

    /// The state that a session had at an earlier revision, from its log. None at revision 0 and
    /// beyond the head; for a revision that a fork shares, the state is the origin's.
    async fn load_at(
        &self,
        session: SessionId,
        revision: u64,
    ) -> Result<Option<SessionState>, StoreError>;

    /// The newest revision at or before this one that no rewind has taken back.
    async fn kept_revision(&self, session: SessionId, revision: u64) -> Result<u64, StoreError>;

    /// The revision of the newest rewind of a session itself; 0 if there is none. Those that a fork inherited do not
    /// count.
    async fn last_rewind(&self, session: SessionId) -> Result<u64, StoreError>;

    /// A page of the records after revision `after`, in order, each verified against the chain.
    async fn records(
        &self,
        session: SessionId,
        after: u64,
        limit: PageLimit,
    ) -> Result<Vec<StoredRecord>, StoreError>;

    /// The same without payloads, which are not read and do not count.
    async fn chain(
        &self,
        session: SessionId,
        after: u64,
        limit: PageLimit,
    ) -> Result<Vec<Record>, StoreError>;

    /// A page of items, newest first, and the `seq` before which the next page begins, if there may be more.
    /// In a fork, inherited tasks have the ids that the fork gave them.
    async fn items(
        &self,
        session: SessionId,
        query: ItemQuery,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError>;

    /// A page of the transcript: what clients see, newest first, and the `seq` before which the next
    /// page begins. A page looks at a bounded number of records, so it may be short.
    async fn transcript(
        &self,
        session: SessionId,
        before: Option<u64>,
        limit: PageLimit,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError>;

    /// A page of the items that a session had at an earlier revision, newest first, and the `seq` before which the
    /// next page begins. Items that a later rewind removed are there. None beyond the head. A page looks at a
    /// bounded number of records, so it may be short.
    async fn items_at(
        &self,
        session: SessionId,
        query: PastItemQuery,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError>;

    /// A page of a memory, newest exchange first. The cost does not depend on the exchanges of other paths,
    /// nor on what came before.
    async fn memory(
        &self,
        session: SessionId,
        query: MemoryQuery,
    ) -> Result<MemoryPage, StoreError>;

    /// A page of the session keys in a range with their values, by key.
    async fn state(
        &self,
        session: SessionId,
        range: KeyRange,
        limit: PageLimit,
    ) -> Result<StatePage<StateValue>, StoreError>;

    /// One session key with its value.
    async fn state_value(
        &self,
        session: SessionId,
        key: StateKey,
    ) -> Result<Option<StateValue>, StoreError>;

    /// The sizes of the values of session keys, in the same order; none where a key has no value. Reads at most
    /// `bytes_max` bytes of values: beyond that, a size is the length of the stored form.
    async fn state_sizes(
        &self,
        session: SessionId,
        keys: Vec<StateKey>,
        bytes_max: u64,
    ) -> Result<Vec<Option<ValueSize>>, StoreError>;

    /// The value that a session key had at an earlier revision.
    async fn state_at(
        &self,
        session: SessionId,
        key: StateKey,
        revision: u64,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// A page of the session keys with the values that they had at an earlier revision, by key. Erased values are
    /// left out. Nothing at revision 0 and beyond the head.
    async fn past_state(
        &self,
        session: SessionId,
        query: PastStateQuery,
    ) -> Result<StatePage<StateValue>, StoreError>;

    /// The values that session keys had at the revisions that wrote them, in the same order. A value of more than
    /// `bytes_max` bytes is not read, only its length. None where the key had no value.
    async fn past_values(
        &self,
        session: SessionId,
        places: Vec<(StateKey, u64)>,
        bytes_max: u64,
    ) -> Result<Vec<Option<PastValue>>, StoreError>;

    /// The private state of a task.
    async fn task_state(&self, task: TaskId) -> Result<Option<Vec<u8>>, StoreError>;

    /// A page of the shared keys of an app or a user in a range, by key.
    async fn shared(
        &self,
        owner: SharedOwner,
        range: KeyRange,
        limit: PageLimit,
    ) -> Result<StatePage<SharedValue>, StoreError>;

    /// One shared key of an app or a user.
    async fn shared_value(
        &self,
        owner: SharedOwner,
        key: StateKey,
    ) -> Result<Option<SharedValue>, StoreError>;

    /// The sizes of shared values, as [`Store::state_sizes`] gives them.
    async fn shared_sizes(
        &self,
        owner: SharedOwner,
        keys: Vec<StateKey>,
        bytes_max: u64,
    ) -> Result<Vec<Option<ValueSize>>, StoreError>;

    /// A request that has ended.
    async fn ended_request(&self, id: RequestId) -> Result<Option<EndedRequest>, StoreError>;

    /// A task that is final.
    async fn closed_task(&self, id: TaskId) -> Result<Option<ClosedTask>, StoreError>;

    /// A hold that is decided.
    async fn closed_hold(&self, id: HoldId) -> Result<Option<ClosedHold>, StoreError>;

    /// The session that a request, live or ended, belongs to.
    async fn session_of_request(&self, id: RequestId) -> Result<Option<SessionId>, StoreError>;

    /// The session that a task, open or final, belongs to.
    async fn session_of_task(&self, id: TaskId) -> Result<Option<SessionId>, StoreError>;

    /// The session that a hold, open or decided, belongs to.
    async fn session_of_hold(&self, id: HoldId) -> Result<Option<SessionId>, StoreError>;

    /// The answer kept for an idempotency key. Its body is empty if the session it was about was
    /// deleted or has expired.
    async fn answer(&self, key: Digest) -> Result<Option<Answer>, StoreError>;

    /// How many answers are kept.
    async fn answers_kept(&self) -> Result<u64, StoreError>;

    /// Forgets answers whose time is over at `now`, the ones that expire at that very moment included, at
    /// most `limit`; returns how many.
    async fn forget_answers(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// One session as lists show it, deleted ones too.
    async fn session(&self, session: SessionId) -> Result<Option<SessionSummary>, StoreError>;

    /// The holds that a request ever opened, in the order of opening.
    async fn holds_of(&self, request: RequestId) -> Result<Vec<HoldId>, StoreError>;

    /// The requests that a request ever started, oldest first.
    async fn children_of(&self, request: RequestId) -> Result<Vec<RequestId>, StoreError>;

    /// Up to `limit` requests that chat calls started with this digest, newest first. Of each session only
    /// requests among its newest [`CHAT_REQUESTS_MAX`] are found, and none once its payloads are erased.
    ///
    /// [`CHAT_REQUESTS_MAX`]: crate::CHAT_REQUESTS_MAX
    async fn chat_requests(
        &self,
        digest: Digest,
        limit: usize,
    ) -> Result<Vec<(SessionId, RequestId)>, StoreError>;

    /// Commits after a place in the order of arrival, of all sessions: for feeds.
    ///
    /// Places only grow. A commit that is seen has every commit with a smaller place before it.
    async fn committed(&self, after: u64, limit: usize) -> Result<Vec<Committed>, StoreError>;

    /// The place of the newest commit; 0 without any.
    async fn last_place(&self) -> Result<u64, StoreError>;

    /// The newest heads of the sessions with a commit after a place, in the order of these commits: a
    /// session with several commits is there several times. Cheap if little was committed.
    async fn heads_after(&self, after: u64, limit: usize) -> Result<Vec<ChangedHead>, StoreError>;

    /// The tenants that have sessions or an audit stream.
    async fn tenants(&self) -> Result<Vec<Name>, StoreError>;

    /// Verifies the data of a tenant on one snapshot, while the store is in use: chains, payloads
    /// as far as `keys` go, all projections, the audit stream, and that every record its roots name
    /// exists. `expected` is an entry that the stream must have.
    ///
    /// Checks of the whole store run only if no other tenant has data in it. Commits continue
    /// meanwhile. Dropping the future stops the check.
    async fn verify(
        &self,
        tenant: Name,
        expected: Option<TenantHead>,
        keys: Arc<dyn KnownKeys>,
    ) -> Result<CheckReport, StoreError>;

    /// Continues erasing payloads of deleted or expired sessions, within the limit, but at least one record;
    /// returns whether more are left. Payloads shared with a living fork are kept.
    async fn erase_some(&self, limit: PageLimit) -> Result<bool, StoreError>;

    /// The pseudonym of a user, which is `fresh` if the name is new.
    ///
    /// After `Ok`, it survives a crash.
    async fn intern_user(
        &self,
        tenant: Name,
        name: String,
        fresh: UserId,
    ) -> Result<UserId, StoreError>;

    /// Up to `limit` sessions of a user after a place, by place: those that lists show, or the others, which are
    /// deleted or keep the shared values of the user.
    async fn sessions_of_user(
        &self,
        tenant: Name,
        user: UserId,
        is_listed: bool,
        after: u64,
        limit: usize,
    ) -> Result<Vec<SessionSummary>, StoreError>;

    /// The pseudonym of a user who was here before.
    async fn user(&self, tenant: Name, name: String) -> Result<Option<UserId>, StoreError>;

    /// Who is behind a pseudonym.
    async fn user_name(&self, user: UserId) -> Result<Option<String>, StoreError>;

    /// The users behind some pseudonyms, in the requested order.
    async fn user_names(&self, users: Vec<UserId>) -> Result<Vec<Option<String>>, StoreError>;

    /// Appends to the audit stream of a tenant, and changes a row beside it in the same transaction.
    ///
    /// After `Ok`, it survives a crash and a loss of power.
    ///
    /// # Errors
    ///
    /// [`StoreError::TenantConflict`] if the stream has moved on.
    async fn commit_tenant(&self, commit: TenantCommit) -> Result<(), StoreError>;

    /// The end of the audit stream of a tenant.
    async fn tenant_head(&self, tenant: Name) -> Result<TenantHead, StoreError>;

    /// Up to `limit` entries of the audit stream after number `after`, in order.
    async fn tenant_records(
        &self,
        tenant: Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<TenantRecord>, StoreError>;

    /// The key with this digest, also if it was revoked or has ended.
    async fn api_key(&self, secret: Digest) -> Result<Option<ApiKey>, StoreError>;

    /// Up to `limit` keys of a tenant, oldest first, after the named one.
    async fn api_keys(
        &self,
        tenant: Name,
        after: Option<KeyId>,
        limit: usize,
    ) -> Result<Vec<ApiKey>, StoreError>;

    /// One key of a tenant.
    async fn api_key_of(&self, tenant: Name, key: KeyId) -> Result<Option<ApiKey>, StoreError>;

    /// How many keys a tenant has, revoked ones included.
    async fn api_key_count(&self, tenant: Name) -> Result<usize, StoreError>;

    /// Whether there is any key that is not revoked.
    async fn has_api_keys(&self) -> Result<bool, StoreError>;

    /// The addresses of all agents of all tenants, by tenant and agent.
    async fn resume_addresses(&self) -> Result<Vec<ResumeAddress>, StoreError>;

    /// Up to `limit` live requests of an agent in any status, by id, after the named one.
    async fn live_work(
        &self,
        tenant: Name,
        agent: Name,
        after: Option<RequestId>,
        limit: usize,
    ) -> Result<Vec<LiveWork>, StoreError>;

    /// The session that has this name, for one user of an app.
    async fn session_named(
        &self,
        tenant: Name,
        app: Name,
        user: UserId,
        name: String,
    ) -> Result<Option<SessionSummary>, StoreError>;

    /// A page of sessions, newest first, without deleted sessions and sessions that only carry
    /// shared state. By creation, the next page misses none and repeats none. By change, a session that changed
    /// in between stands before the first page again, and the next page misses none of the others.
    async fn sessions(&self, query: SessionQuery) -> Result<Vec<SessionSummary>, StoreError>;

    /// A page of open holds. The sort keys of a hold never change while it is open, so the next
    /// page misses none and repeats none, even if holds were decided in between.
    async fn open_holds(&self, query: HoldQuery) -> Result<Vec<HoldSummary>, StoreError>;

    /// A page of decided holds in the order of their decisions: the last first, unless the oldest are
    /// asked for.
    async fn decided_holds(&self, query: HoldQuery) -> Result<Vec<HoldSummary>, StoreError>;

    /// Holds by their ids, open or decided. Unknown ids are left out.
    async fn holds(&self, ids: Vec<HoldId>) -> Result<Vec<HoldSummary>, StoreError>;

    /// All holds that some requests ever opened, open or decided; those of one request in the order of
    /// opening.
    async fn held_by(&self, requests: Vec<RequestId>) -> Result<Vec<HoldSummary>, StoreError>;

    /// The changes of a tenant's holds after a place in the order of commits, and the last place
    /// that was read. Reads at most `limit` commits, including commits of other tenants.
    async fn hold_changes(
        &self,
        tenant: Name,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<HoldChange>, u64), StoreError>;

    /// The lineage of each request, live or ended, from the root down. Empty for unknown requests.
    async fn lineages(&self, requests: Vec<RequestId>)
    -> Result<Vec<Vec<LineageStep>>, StoreError>;

    /// Single records of any sessions, each verified against the chain, in the order asked for. None
    /// for a revision that is not there. The page ends before the record with which it would have more than
    /// `bytes_max`; it has one record at least.
    async fn records_at(
        &self,
        places: Vec<(SessionId, u64)>,
        bytes_max: u64,
    ) -> Result<Vec<Option<StoredRecord>>, StoreError>;

    /// How many open holds there are in the sessions of a user, counted up to `limit`.
    async fn open_holds_of_user(
        &self,
        tenant: Name,
        user: UserId,
        limit: usize,
    ) -> Result<usize, StoreError>;

    /// Requests of an agent that wait for a worker, oldest first, after the one named; of one user only, if one
    /// is named.
    async fn claimable(
        &self,
        tenant: Name,
        agent: Name,
        user: Option<UserId>,
        after: Option<RequestId>,
        limit: usize,
    ) -> Result<Vec<(SessionId, RequestId)>, StoreError>;

    /// A page of the leases, holds and sessions that are due at `now` or earlier, in the order of their times,
    /// behind a place of an earlier page. Reads at most `limit` rows of each kind, damaged ones included.
    async fn due(
        &self,
        now: Timestamp,
        after: Option<DuePlace>,
        limit: usize,
    ) -> Result<DuePage, StoreError>;

    /// The leases, holds and lives of these sessions that are due at the time given for each session.
    async fn due_in(&self, sessions: Vec<(SessionId, Timestamp)>) -> Result<Vec<Due>, StoreError>;

    /// At most `limit` sessions whose last commit is later than `now`, with its time. May read every
    /// session.
    async fn sessions_ahead(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(SessionId, Timestamp)>, StoreError>;

    /// The open holds of a tenant, and the requests that wait for workers, by agent: at most `agents` of them.
    async fn work_totals(&self, tenant: Name, agents: usize) -> Result<WorkTotals, StoreError>;

    /// A copy of everything in the store as it was at one moment, for a backup: an open file without a name. Keys are
    /// not part of it. Commits go on meanwhile. Dropping the future stops the copy.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if there is no room for the copy beside the data, [`StoreError::Unusable`] if the store
    /// keeps nothing in files.
    async fn copy(&self) -> Result<File, StoreError> {
        let what = "this store keeps its data in memory only, so there is nothing to back up";
        Err(StoreError::Unusable(what.to_owned()))
    }

    /// Whether a small write fits, without a commit. Blocks.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] if it does not.
    fn check_room(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Times of commits since this store was opened, and the sizes of its files. A store without files has none.
    fn measures(&self) -> StoreMeasures {
        StoreMeasures::default()
    }

    /// The damage that reads have met.
    fn damage(&self) -> &DamageLog;
}

/// The two lines of queries that wait for a reading thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadLine {
    /// Reads of single rows, which writes and turns wait for.
    Points,
    /// Reads of many rows, for lists and views of the past.
    Pages,
}

/// The line that a method of [`impl_store`] names.
macro_rules! read_line {
    () => {
        $crate::port::ReadLine::Points
    };
    (pages) => {
        $crate::port::ReadLine::Pages
    };
}
pub(crate) use read_line;

/// Implements [`Store`]: a line per method that reads, with its name, its arguments, the session whose data it
/// reads, `in pages` if it reads many rows, and its query, which the store's own `read` runs; then the other methods.
macro_rules! impl_store {
    (
        for $store:ty, reads with $from:ident {
            $(fn $name:ident($($argument:ident: $type:ty),*) $(of $session:ident)? $(in $line:ident)?
                -> $answer:ty = $query:expr;)*
        }
        $($other:tt)*
    ) => {
        #[async_trait]
        impl Store for $store {
            $(
                async fn $name(&self, $($argument: $type),*) -> Result<$answer, StoreError> {
                    let line = $crate::port::read_line!($($line)?);
                    let answer = self.read::<$answer>(line, move |$from| $query).await;
                    $(let answer = answer.map_err(|error| error.in_session($session));)?
                    answer.inspect_err(|error| self.damage().note(error))
                }
            )*
            $($other)*
        }
    };
}
pub(crate) use impl_store;

/// How much one page may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimit {
    /// The maximum number of entries.
    pub entries: usize,
    /// The maximum size of their payloads together, unpacked. Records count with their own bytes too.
    pub bytes: u64,
}

impl PageLimit {
    /// So many entries, however long they are: for one entry, and for readers that may take any memory.
    pub const fn entries(entries: usize) -> Self {
        let bytes = u64::MAX;
        Self { entries, bytes }
    }
}

/// The room that is left on a page in the making.
#[derive(Debug)]
pub(crate) struct PageRoom {
    left: PageLimit,
    is_empty: bool,
}

impl PageRoom {
    pub(crate) fn new(limit: PageLimit) -> Self {
        Self {
            left: limit,
            is_empty: true,
        }
    }

    /// Whether there is room for no entry at all, however short.
    pub(crate) fn is_used_up(&self) -> bool {
        self.left.entries == 0
    }

    /// Takes the room of one more entry. False ends the page before it.
    ///
    /// # Errors
    ///
    /// [`StoreError::PageTooSmall`] if the entry is the first one and does not fit.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<bool, StoreError> {
        if self.is_used_up() {
            return Ok(false);
        }
        let Some(left) = self.left.bytes.checked_sub(bytes) else {
            let too_small = StoreError::PageTooSmall { bytes };
            return if self.is_empty {
                Err(too_small)
            } else {
                Ok(false)
            };
        };
        self.left.entries -= 1;
        self.left.bytes = left;
        self.is_empty = false;
        Ok(true)
    }
}

/// Which keys of a table of state a page takes, and from which end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The smallest text of the range.
    begin: String,
    /// The smallest text behind it.
    end: String,
    reverse: bool,
    /// Only these keys of it, if given.
    keys: Option<BTreeSet<StateKey>>,
}

impl Default for KeyRange {
    fn default() -> Self {
        Self::of_prefix("")
    }
}

impl KeyRange {
    /// The keys that begin with a text.
    pub fn of_prefix(prefix: &str) -> Self {
        Self {
            begin: prefix.to_owned(),
            end: KeyPrefix::end(prefix),
            reverse: false,
            keys: None,
        }
    }

    /// Some keys.
    pub fn of_keys(keys: impl IntoIterator<Item = StateKey>) -> Self {
        let keys = keys.into_iter().collect();
        Self {
            keys: Some(keys),
            ..Self::default()
        }
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.begin >= self.end || self.keys.as_ref().is_some_and(BTreeSet::is_empty)
    }

    pub(crate) fn keys(&self) -> Option<&BTreeSet<StateKey>> {
        self.keys.as_ref()
    }

    pub(crate) fn bounds(&self) -> (&str, &str) {
        (&self.begin, &self.end)
    }

    pub(crate) fn is_reverse(&self) -> bool {
        self.reverse
    }

    /// The range read from its last key on.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            reverse: true,
            ..self
        }
    }

    /// The part of the range that is read after a key.
    #[must_use]
    pub fn after(self, key: Option<&StateKey>) -> Self {
        match key {
            None => self,
            Some(key) if self.reverse => Self {
                end: self.end.min(key.as_str().to_owned()),
                ..self
            },
            Some(key) => Self {
                begin: self.begin.max(behind(key)),
                ..self
            },
        }
    }
}

/// The smallest text that sorts behind a key. Keys have no control characters, so no key is between the two.
fn behind(key: &StateKey) -> String {
    format!("{key}\0")
}

/// A page of state keys with their values. The lengths of the keys count too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatePage<V> {
    /// The values.
    pub values: BTreeMap<StateKey, V>,
    /// Whether the range has more keys behind those of the page.
    pub has_more: bool,
}

impl<V> StatePage<V> {
    /// The page with other values under the same keys.
    pub fn map<W>(self, map: impl Fn(V) -> W) -> StatePage<W> {
        let values = self.values.into_iter();
        StatePage {
            values: values.map(|(key, value)| (key, map(value))).collect(),
            has_more: self.has_more,
        }
    }
}

impl<V> Default for StatePage<V> {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            has_more: false,
        }
    }
}

/// A record with its payloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// The record.
    pub record: Record,
    /// Its payloads, in the order of [`Record::bodies`]. None where one was erased.
    pub bodies: Vec<Option<Vec<u8>>>,
}

impl StoredRecord {
    /// The size of the record and its payloads, erased ones included.
    pub fn bytes(&self) -> u64 {
        record_bytes(&self.record)
    }
}

/// The size of a record with its payloads, erased ones included.
pub fn record_bytes(record: &Record) -> u64 {
    let bodies = record.bodies();
    let bodies = bodies.iter().map(|body| u64::from(body.bytes));
    record.as_bytes().len() as u64 + bodies.sum::<u64>()
}

/// Which items to read.
#[derive(Debug, Clone, Copy)]
pub struct ItemQuery {
    /// Only items of this task.
    pub task: Option<TaskId>,
    /// Only items before this `seq`.
    pub before: Option<u64>,
    /// The maximum size of the page.
    pub limit: PageLimit,
}

/// Which items of an earlier revision to read.
#[derive(Debug, Clone, Copy)]
pub struct PastItemQuery {
    /// The revision.
    pub revision: u64,
    /// Only items that this view shows.
    pub view: View,
    /// Only items before this `seq`.
    pub before: Option<u64>,
    /// The maximum size of the page.
    pub limit: PageLimit,
}

/// Which session keys of an earlier revision to read.
#[derive(Debug, Clone)]
pub struct PastStateQuery {
    /// The revision.
    pub revision: u64,
    /// Only keys after this one.
    pub after: Option<StateKey>,
    /// The maximum size of the page.
    pub limit: PageLimit,
}

/// An earlier value of a session key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastValue {
    /// The length of the value.
    pub bytes: u64,
    /// JSON. None if it was erased, or is longer than the reader allows.
    pub value: Option<Vec<u8>>,
}

/// An item with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredItem {
    /// The item and where it belongs.
    pub placed: PlacedItem,
    /// When it was committed.
    pub at: Timestamp,
    /// The content. None if it was erased.
    pub body: Option<Vec<u8>>,
    /// The attachments, in order.
    pub attachments: Vec<Option<Vec<u8>>>,
}

impl StoredItem {
    /// The size of its payloads, erased ones included.
    pub fn payload_bytes(&self) -> u64 {
        let item = &self.placed.item;
        let attached = item.attachments.iter().map(|file| file.body.bytes);
        let bodies = std::iter::once(item.body.bytes).chain(attached);
        bodies.map(u64::from).sum()
    }
}

/// Which exchanges of a memory to read.
#[derive(Debug, Clone)]
pub struct MemoryQuery {
    /// The path.
    pub path: AgentPath,
    /// The memory, or what a page before has left of it. None is a memory without an exchange.
    pub memory: Option<Memory>,
    /// The live request that reads. The private state that it wrote comes before that of the memory.
    pub reader: Option<(TaskId, RequestId)>,
    /// The maximum number of exchanges.
    pub exchanges: usize,
    /// The maximum size of their payloads together.
    pub bytes: u64,
}

/// A page of a memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryPage {
    /// The exchanges, newest first.
    pub exchanges: Vec<StoredExchange>,
    /// The rest of the memory, for the next page.
    pub rest: Option<Memory>,
    /// The private state of the agent: the one that the reader wrote, or the last one that a completed
    /// exchange of the memory wrote.
    pub task_state: Option<Vec<u8>>,
}

/// An exchange with its items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredExchange {
    /// Its number in the memory: 1, 2, 3, …
    pub number: u64,
    /// The request.
    pub request: RequestId,
    /// The task whose history it is in.
    pub task: TaskId,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Its items, oldest first.
    pub items: Vec<StoredItem>,
    /// Whether the payloads are larger than a page may be. The items are left out then; they are in the
    /// history of the task.
    pub too_large: bool,
    /// The private state that it wrote last, if it completed.
    pub task_state: Option<Vec<u8>>,
}

/// The value of a session key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateValue {
    /// JSON.
    pub value: Vec<u8>,
    /// The revision that wrote it.
    pub version: u64,
}

/// Whose shared keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedOwner {
    /// The isolation wall.
    pub tenant: Name,
    /// The app.
    pub app: Name,
    /// The user, for `user:` keys.
    pub user: Option<UserId>,
}

impl SharedOwner {
    /// Whose keys of `scope` a session of `owner` writes.
    pub fn of(owner: &Owner, scope: Scope) -> Self {
        let user = (scope == Scope::User).then_some(owner.user);
        Self {
            tenant: owner.tenant.clone(),
            app: owner.app.clone(),
            user,
        }
    }
}

/// The size of a value that is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueSize {
    /// The version of the value.
    pub version: u64,
    /// The bytes of the value.
    pub bytes: u64,
}

/// The value of a shared key, with who wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedValue {
    /// JSON.
    pub value: Vec<u8>,
    /// Counts the writes of this key. A removed key counts as version 0, but its numbers are not used
    /// again.
    pub version: u64,
    /// The session that wrote it.
    pub session: SessionId,
    /// The revision that wrote it.
    pub revision: u64,
    /// Who wrote it.
    pub by: Principal,
    /// When.
    pub at: Timestamp,
    /// The request that wrote it.
    pub request: Option<RequestId>,
}

impl StateValue {
    /// Its size.
    pub(crate) fn size(&self) -> ValueSize {
        ValueSize {
            version: self.version,
            bytes: self.value.len() as u64,
        }
    }
}

impl From<SharedValue> for StateValue {
    fn from(shared: SharedValue) -> Self {
        let (value, version) = (shared.value, shared.version);
        Self { value, version }
    }
}

/// A commit in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Its place.
    pub place: u64,
    /// The session.
    pub session: SessionId,
    /// The revision it made.
    pub revision: u64,
}

/// The newest head of a session, found by one of its commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedHead {
    /// The place of the commit.
    pub place: u64,
    /// Whose session it is.
    pub tenant: Name,
    /// Its newest record.
    pub head: SignedHead,
}

/// An entry of the audit stream with the row that it changes.
#[derive(Debug, Clone)]
pub struct TenantCommit {
    /// The entry.
    pub record: TenantRecord,
    /// The row beside the stream that changes with it.
    pub change: Option<TenantChange>,
}

/// A change of a row beside the audit stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantChange {
    /// A key that is new or different, whole.
    Key(ApiKey),
    /// An address that is new, different or gone.
    Address(AddressChange),
    /// The name of a user, who was erased, is removed. The next user of that name gets another pseudonym.
    UserForgotten(UserId),
}

/// A change of the resume address of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressChange {
    /// It is this one now.
    Set(ResumeAddress),
    /// The agent of this name, in the tenant of the entry, has no address now.
    Removed(Name),
}

/// Where decisions for an agent are pushed to. The secret that signs them is not kept: it is made from
/// the salt and a key that is not in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeAddress {
    /// The isolation wall.
    pub tenant: Name,
    /// The agent.
    pub agent: Name,
    /// Where to.
    pub url: String,
    /// 32 random bytes.
    pub salt: Digest,
    /// When it was set.
    pub set_at: Timestamp,
}

impl ResumeAddress {
    /// The salted digest of the address in the audit stream.
    pub fn commitment(&self) -> Digest {
        let parts = [self.salt.as_bytes().as_slice(), self.url.as_bytes()];
        Digest::sha256(&parts.concat())
    }
}

/// A live request, with where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveWork {
    /// Its session.
    pub session: SessionId,
    /// The request.
    pub live: LiveRequest,
}

/// The stored form of an API key: its digest, never the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    /// The id.
    pub id: KeyId,
    /// The isolation wall it opens.
    pub tenant: Name,
    /// SHA-256 of the key.
    pub secret: Digest,
    /// The display name.
    pub name: Option<String>,
    /// The roles it grants.
    pub roles: BTreeSet<Name>,
    /// The user it is bound to.
    pub user: Option<UserId>,
    /// The person it belongs to. A key that is bound to a user belongs to that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UserId>,
    /// The agents it is bound to; none means any.
    pub agents: BTreeSet<Name>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

//! The embedded store: one SQLite file, one writing thread with group commit, a few reading threads.
//!
//! After a crash the file holds every acknowledged commit, whole: WAL with `synchronous = FULL`, and
//! an answer only after the transaction that holds the commit was synced. A data directory belongs to
//! one process at a time.

mod backup;
mod check;
mod due;
mod erase;
mod history;
mod holds;
mod log;
mod memory;
mod read;
mod readers;
mod schema;
mod sql;
mod tenant;
mod verify;
mod wal;
mod write;
mod writer;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags};
use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::scope::StateKey;
use statehold_core::session::SessionState;
use statehold_core::tenant::{TenantHead, TenantRecord};
use statehold_core::time::Timestamp;

use crate::commit::{Answer, Commit};
use crate::keys::{KnownKeys, create_private, sync_directory};
use crate::port::{
    ApiKey, ChangedHead, Committed, DueDeadlines, HoldChange, HoldQuery, HoldSummary, ItemQuery,
    LineageStep, LiveWork, MemoryPage, MemoryQuery, PendingCommit, ResumeAddress, SessionQuery,
    SessionSummary, SharedOwner, SharedValue, StateValue, Store, StoreError, StoredItem,
    StoredRecord, TenantCommit,
};
use erase::Erased;
use readers::Readers;
use verify::Verifier;
use writer::Writer;

pub use crate::check::{CheckReport, Problem, ProblemKind};
pub use schema::{APPLICATION_ID, LAYOUT_VERSION};

/// Called when the disk does not confirm a write.
pub type OnStop = Arc<dyn Fn(&StoreError) + Send + Sync>;

/// The name of the data file in a data directory.
pub const FILE_NAME: &str = "statehold.db";
/// The name of the lock file in a data directory. Its holder writes its process id into it.
pub const LOCK_NAME: &str = "statehold.lock";

/// How to open a data directory.
#[derive(Clone)]
pub struct SqliteOptions {
    /// Reading threads.
    pub readers: usize,
    /// Called when the disk does not confirm a write. The default ends the process.
    pub on_stop: OnStop,
    /// The most pages the file may have; a full disk for tests.
    pub pages_max: Option<u32>,
    /// Whether the disk must confirm each commit. Only a test that wants to see a loss says no.
    pub sync: bool,
    /// Counts the operations of the connections.
    pub meter: Option<Arc<Meter>>,
}

/// Counts work instead of timing it.
#[derive(Debug, Default)]
pub struct Meter {
    /// Instructions of the engine's virtual machine, for writing.
    pub steps: AtomicU64,
    /// The same, for reading.
    pub read_steps: AtomicU64,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            readers: 2,
            on_stop: writer::end_process(),
            pages_max: None,
            sync: true,
            meter: None,
        }
    }
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("readers", &self.readers)
            .field("pages_max", &self.pages_max)
            .finish_non_exhaustive()
    }
}

/// Lets a connection count its instructions.
fn count_steps(
    conn: &mut Connection,
    meter: Arc<Meter>,
    counter: fn(&Meter) -> &AtomicU64,
) -> Result<(), StoreError> {
    let count = move || {
        counter(&meter).fetch_add(1, Ordering::Relaxed);
        false
    };
    conn.progress_handler(1, Some(count))
        .map_err(sql::corrupt_or_unavailable("the settings"))
}

/// The embedded store.
pub struct SqliteStore {
    /// First of all, so that its connections are closed before the one that writes.
    verifier: Verifier,
    writer: Writer,
    readers: Readers,
    /// Held as long as the store is open.
    _lock: File,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens a data directory, or begins one.
    ///
    /// # Errors
    ///
    /// If another process has it open, the file is not ours, is newer, is a backup, or is damaged.
    pub fn open(directory: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        schema::require_engine()?;
        create_directory(directory)?;
        let lock = take_lock(directory)?;
        let path = directory.join(FILE_NAME);
        wal::require_no_gap(&path)?;
        // The engine gives the files beside it the same mode.
        create_private(&path)?;
        let create = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut conn = schema::open(&path, create)?;
        schema::require_usable(&conn, &path)?;
        schema::make_writer(&conn, options.sync)?;
        schema::migrate(&mut conn)?;
        sync_directory(directory)?;
        if let Some(pages) = options.pages_max {
            conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
                .map_err(sql::corrupt_or_unavailable("the settings"))?;
        }
        let epoch = schema::meta(&conn, "epoch")?;
        if let Some(meter) = &options.meter {
            count_steps(&mut conn, Arc::clone(meter), |meter| &meter.steps)?;
        }
        let readers = Readers::start(&path, options.readers.max(1), options.meter.as_ref())?;
        let writer = Writer::start(conn, epoch, options.on_stop);
        Ok(Self {
            verifier: Verifier::new(path, writer.folder()),
            writer,
            readers,
            _lock: lock,
        })
    }

    /// Copies the whole store to a new file while it is in use. Keys are not part of it.
    ///
    /// # Errors
    ///
    /// If the file exists or cannot be written.
    pub async fn backup(&self, to: PathBuf) -> Result<(), StoreError> {
        self.readers.read(move |conn| backup::copy(conn, &to)).await
    }

    /// Makes a data directory from a backup. Requests that ran when it was made wait for a worker
    /// again, and the new store has a later epoch.
    ///
    /// # Errors
    ///
    /// If the directory is in use or has data, or the file is not a backup of ours.
    pub fn restore(backup: &Path, directory: &Path) -> Result<(), StoreError> {
        schema::require_engine()?;
        create_directory(directory)?;
        let _lock = take_lock(directory)?;
        backup::restore(backup, &directory.join(FILE_NAME))?;
        sync_directory(directory)
    }

    /// Compares all tables of the file with its log. Changes nothing.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened at all.
    pub fn check(
        directory: &Path,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CheckReport, StoreError> {
        schema::require_engine()?;
        let path = directory.join(FILE_NAME);
        if !path.is_file() {
            return Err(StoreError::Unusable(format!(
                "there is no data in {}; name the data directory with --data",
                directory.display()
            )));
        }
        let _lock = take_lock(directory)?;
        wal::require_no_gap(&path)?;
        check::check(&path, directory, progress)
    }

    /// Folds the log into the data file completely.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub async fn fold_log(&self) -> Result<(), StoreError> {
        self.writer.fold_log().await
    }
}

/// Creates a data directory that only its owner can read; an existing one keeps its mode.
fn create_directory(directory: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| StoreError::Unavailable(Box::new(error)))
}

/// One process per data directory.
fn take_lock(directory: &Path) -> Result<File, StoreError> {
    let unavailable = |error: std::io::Error| StoreError::Unavailable(Box::new(error));
    let mut options = OpenOptions::new();
    let options = std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600)
        .read(true)
        .write(true)
        .create(true)
        .truncate(false);
    let mut file = options
        .open(directory.join(LOCK_NAME))
        .map_err(unavailable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(unavailable)?;
            return Err(StoreError::Unusable(format!(
                "the data directory {} is in use by process {}; stop it first",
                directory.display(),
                pid.trim()
            )));
        }
        Err(TryLockError::Error(error)) => return Err(unavailable(error)),
    }
    file.set_len(0).map_err(unavailable)?;
    file.write_all(std::process::id().to_string().as_bytes())
        .map_err(unavailable)?;
    Ok(file)
}

#[async_trait]
impl Store for SqliteStore {
    async fn begin_commit(&self, commit: Commit) -> Result<PendingCommit, StoreError> {
        self.writer.begin_commit(commit).await
    }

    async fn session(&self, session: SessionId) -> Result<Option<SessionSummary>, StoreError> {
        self.readers
            .read(move |conn| read::session(conn, session))
            .await
    }

    async fn holds_of(&self, request: RequestId) -> Result<Vec<HoldId>, StoreError> {
        self.readers
            .read(move |conn| holds::holds_of(conn, request))
            .await
    }

    async fn children_of(&self, request: RequestId) -> Result<Vec<RequestId>, StoreError> {
        self.readers
            .read(move |conn| read::children_of(conn, request))
            .await
    }

    async fn committed(&self, after: u64, limit: usize) -> Result<Vec<Committed>, StoreError> {
        self.readers
            .read(move |conn| read::committed(conn, after, limit))
            .await
    }

    async fn last_place(&self) -> Result<u64, StoreError> {
        self.readers.read(read::last_place).await
    }

    async fn heads_after(&self, after: u64, limit: usize) -> Result<Vec<ChangedHead>, StoreError> {
        self.readers
            .read(move |conn| read::heads_after(conn, after, limit))
            .await
    }

    async fn tenants(&self) -> Result<Vec<Name>, StoreError> {
        self.readers.read(tenant::names).await
    }

    async fn verify(
        &self,
        tenant: Name,
        expected: Option<TenantHead>,
        keys: Arc<dyn KnownKeys>,
    ) -> Result<CheckReport, StoreError> {
        let task = verify::Task {
            tenant,
            expected,
            keys,
        };
        self.verifier.verify(task).await
    }

    async fn erase_some(&self, limit: usize) -> Result<bool, StoreError> {
        let removed = self
            .writer
            .run(move |conn| erase::some(conn, limit))
            .await?;
        if removed == Erased::Last && !self.verifier.delays_folding() {
            // Removed payloads would stay readable in the log of the engine below until it wraps.
            self.writer.fold_log().await?;
        }
        Ok(removed == Erased::Some)
    }

    async fn intern_user(
        &self,
        tenant: Name,
        name: String,
        fresh: UserId,
    ) -> Result<UserId, StoreError> {
        self.writer
            .run(move |conn| tenant::intern_user(conn, &tenant, &name, fresh))
            .await
    }

    async fn user(&self, tenant: Name, name: String) -> Result<Option<UserId>, StoreError> {
        self.readers
            .read(move |conn| tenant::user(conn, &tenant, &name))
            .await
    }

    async fn user_name(&self, user: UserId) -> Result<Option<String>, StoreError> {
        self.readers
            .read(move |conn| tenant::user_name(conn, user))
            .await
    }

    async fn user_names(&self, users: Vec<UserId>) -> Result<Vec<Option<String>>, StoreError> {
        self.readers
            .read(move |conn| {
                let names = users.iter().map(|user| tenant::user_name(conn, *user));
                names.collect()
            })
            .await
    }

    async fn commit_tenant(&self, commit: TenantCommit) -> Result<(), StoreError> {
        self.writer
            .run(move |conn| tenant::commit(conn, &commit))
            .await
    }

    async fn tenant_head(&self, tenant: Name) -> Result<TenantHead, StoreError> {
        self.readers
            .read(move |conn| tenant::head(conn, &tenant))
            .await
    }

    async fn tenant_records(
        &self,
        tenant: Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<TenantRecord>, StoreError> {
        self.readers
            .read(move |conn| tenant::records(conn, &tenant, after, limit))
            .await
    }

    async fn api_key(&self, secret: Digest) -> Result<Option<ApiKey>, StoreError> {
        self.readers
            .read(move |conn| tenant::api_key(conn, secret))
            .await
    }

    async fn api_keys(&self, tenant: Name) -> Result<Vec<ApiKey>, StoreError> {
        self.readers
            .read(move |conn| tenant::api_keys(conn, Some(&tenant)))
            .await
    }

    async fn resume_addresses(&self) -> Result<Vec<ResumeAddress>, StoreError> {
        let filed = self.readers.read(tenant::filed_addresses).await?;
        Ok(filed.into_iter().map(|(_, _, address)| address).collect())
    }

    async fn live_work(
        &self,
        tenant: Name,
        agent: Name,
        after: Option<RequestId>,
        limit: usize,
    ) -> Result<Vec<LiveWork>, StoreError> {
        self.readers
            .read(move |conn| read::live_work(conn, &tenant, &agent, after, limit))
            .await
    }

    async fn has_api_keys(&self) -> Result<bool, StoreError> {
        let keys = self
            .readers
            .read(|conn| tenant::api_keys(conn, None))
            .await?;
        Ok(keys.iter().any(|key| key.revoked_at.is_none()))
    }

    async fn load(&self, session: SessionId) -> Result<Option<SessionState>, StoreError> {
        self.readers
            .read(move |conn| read::load(conn, session))
            .await
    }

    async fn load_at(
        &self,
        session: SessionId,
        revision: u64,
    ) -> Result<Option<SessionState>, StoreError> {
        let query = move |conn: &rusqlite::Connection| match log::session_row(conn, session)? {
            Some(row) => log::fold(conn, &row, revision),
            None => Ok(None),
        };
        self.readers.read(query).await
    }

    async fn records(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let query = move |conn: &rusqlite::Connection| match log::session_row(conn, session)? {
            Some(row) => {
                let last = after.saturating_add(limit as u64);
                log::read_range(conn, &row, after.saturating_add(1), last)
            }
            None => Ok(Vec::new()),
        };
        self.readers.read(query).await
    }

    async fn items(
        &self,
        session: SessionId,
        query: ItemQuery,
    ) -> Result<Vec<StoredItem>, StoreError> {
        self.readers
            .read(move |conn| history::items(conn, session, query))
            .await
    }

    async fn transcript(
        &self,
        session: SessionId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        self.readers
            .read(move |conn| history::transcript(conn, session, before, limit))
            .await
    }

    async fn state(
        &self,
        session: SessionId,
    ) -> Result<BTreeMap<StateKey, StateValue>, StoreError> {
        self.readers
            .read(move |conn| read::state(conn, session))
            .await
    }

    async fn state_value(
        &self,
        session: SessionId,
        key: StateKey,
    ) -> Result<Option<StateValue>, StoreError> {
        self.readers
            .read(move |conn| read::state_value(conn, session, &key))
            .await
    }

    async fn state_at(
        &self,
        session: SessionId,
        key: StateKey,
        revision: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.readers
            .read(move |conn| read::state_at(conn, session, &key, revision))
            .await
    }

    async fn kept_revision(&self, session: SessionId, revision: u64) -> Result<u64, StoreError> {
        self.readers
            .read(move |conn| memory::kept_revision(conn, session, revision))
            .await
    }

    async fn memory(
        &self,
        session: SessionId,
        query: MemoryQuery,
    ) -> Result<MemoryPage, StoreError> {
        self.readers
            .read(move |conn| memory::page(conn, session, &query))
            .await
    }

    async fn task_state(&self, task: TaskId) -> Result<Option<Vec<u8>>, StoreError> {
        self.readers
            .read(move |conn| read::task_state(conn, task))
            .await
    }

    async fn shared(
        &self,
        owner: SharedOwner,
    ) -> Result<BTreeMap<StateKey, SharedValue>, StoreError> {
        self.readers
            .read(move |conn| read::shared(conn, &owner))
            .await
    }

    async fn shared_value(
        &self,
        owner: SharedOwner,
        key: StateKey,
    ) -> Result<Option<SharedValue>, StoreError> {
        self.readers
            .read(move |conn| read::shared_value(conn, &owner, &key))
            .await
    }

    async fn ended_request(&self, id: RequestId) -> Result<Option<EndedRequest>, StoreError> {
        self.readers
            .read(move |conn| read::by_id(conn, "ended_request", id.as_uuid()))
            .await
    }

    async fn closed_task(&self, id: TaskId) -> Result<Option<ClosedTask>, StoreError> {
        self.readers
            .read(move |conn| read::by_id(conn, "closed_task", id.as_uuid()))
            .await
    }

    async fn closed_hold(&self, id: HoldId) -> Result<Option<ClosedHold>, StoreError> {
        self.readers
            .read(move |conn| read::by_id(conn, "closed_hold", id.as_uuid()))
            .await
    }

    async fn session_of_request(&self, id: RequestId) -> Result<Option<SessionId>, StoreError> {
        let tables = ["live_request", "ended_request"];
        self.readers
            .read(move |conn| read::session_of(conn, tables, id.as_uuid()))
            .await
    }

    async fn session_of_task(&self, id: TaskId) -> Result<Option<SessionId>, StoreError> {
        let tables = ["open_task", "closed_task"];
        self.readers
            .read(move |conn| read::session_of(conn, tables, id.as_uuid()))
            .await
    }

    async fn session_of_hold(&self, id: HoldId) -> Result<Option<SessionId>, StoreError> {
        let tables = ["open_hold", "closed_hold"];
        self.readers
            .read(move |conn| read::session_of(conn, tables, id.as_uuid()))
            .await
    }

    async fn answer(&self, key: Digest) -> Result<Option<Answer>, StoreError> {
        self.readers.read(move |conn| read::answer(conn, key)).await
    }

    async fn answers_kept(&self) -> Result<u64, StoreError> {
        let count = |conn: &rusqlite::Connection| {
            let sql = "SELECT count(*) FROM answer";
            let found = read::first(conn, sql, [], |row| row.get::<_, i64>(0))?;
            Ok(found.map_or(0, sql::from_sql))
        };
        self.readers.read(count).await
    }

    async fn forget_answers(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.writer
            .run(move |conn| {
                let sql = "DELETE FROM answer WHERE rowid IN
                           (SELECT rowid FROM answer WHERE expires_at <= ?1 LIMIT ?2)";
                conn.execute(sql, (now.as_micros(), sql::to_sql(limit as u64)))
                    .map_err(sql::corrupt_or_unavailable("the table `answer`"))
            })
            .await
    }

    async fn sessions(&self, query: SessionQuery) -> Result<Vec<SessionSummary>, StoreError> {
        self.readers
            .read(move |conn| read::sessions(conn, &query))
            .await
    }

    async fn open_holds(&self, query: HoldQuery) -> Result<Vec<HoldSummary>, StoreError> {
        self.readers
            .read(move |conn| holds::open_holds(conn, &query))
            .await
    }

    async fn decided_holds(&self, query: HoldQuery) -> Result<Vec<HoldSummary>, StoreError> {
        self.readers
            .read(move |conn| holds::decided_holds(conn, &query))
            .await
    }

    async fn holds(&self, ids: Vec<HoldId>) -> Result<Vec<HoldSummary>, StoreError> {
        self.readers
            .read(move |conn| holds::by_ids(conn, &ids))
            .await
    }

    async fn held_by(&self, requests: Vec<RequestId>) -> Result<Vec<HoldSummary>, StoreError> {
        self.readers
            .read(move |conn| holds::held_by(conn, &requests))
            .await
    }

    async fn hold_changes(
        &self,
        tenant: Name,
        after: u64,
        limit: usize,
    ) -> Result<(Vec<HoldChange>, u64), StoreError> {
        self.readers
            .read(move |conn| holds::changes(conn, &tenant, after, limit))
            .await
    }

    async fn lineages(
        &self,
        requests: Vec<RequestId>,
    ) -> Result<Vec<Vec<LineageStep>>, StoreError> {
        self.readers
            .read(move |conn| {
                let lineages = requests.iter().map(|id| holds::lineage(conn, *id));
                lineages.collect()
            })
            .await
    }

    async fn records_at(
        &self,
        places: Vec<(SessionId, u64)>,
    ) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        self.readers
            .read(move |conn| holds::records_at(conn, &places))
            .await
    }

    async fn open_holds_of_user(
        &self,
        tenant: Name,
        user: UserId,
        limit: usize,
    ) -> Result<usize, StoreError> {
        self.readers
            .read(move |conn| holds::count_of_user(conn, &tenant, user, limit))
            .await
    }

    async fn claimable(
        &self,
        tenant: Name,
        agent: Name,
        user: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(SessionId, RequestId)>, StoreError> {
        self.readers
            .read(move |conn| read::claimable(conn, &tenant, &agent, user, limit))
            .await
    }

    async fn due(&self, now: Timestamp, limit: usize) -> Result<DueDeadlines, StoreError> {
        self.readers
            .read(move |conn| due::due(conn, now, limit))
            .await
    }

    async fn due_in(
        &self,
        sessions: Vec<(SessionId, Timestamp)>,
    ) -> Result<DueDeadlines, StoreError> {
        self.readers
            .read(move |conn| due::due_in(conn, &sessions))
            .await
    }

    async fn sessions_ahead(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(SessionId, Timestamp)>, StoreError> {
        self.readers
            .read(move |conn| due::sessions_ahead(conn, now, limit))
            .await
    }
}

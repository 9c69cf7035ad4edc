//! The embedded store: one SQLite file, one writing thread with group commit, a few reading threads.
//!
//! After a crash the file holds every acknowledged commit, whole: WAL with `synchronous = FULL`, and
//! an answer only after the transaction that holds the commit was synced. A data directory belongs to
//! one process at a time.

mod backup;
mod chats;
mod check;
mod due;
mod erase;
mod fork;
mod history;
mod holds;
mod hot;
mod log;
mod measures;
mod memory;
mod past;
mod read;
mod readers;
mod recent;
mod schema;
mod sealing;
mod snapshot;
mod sql;
mod sums;
mod tail;
mod tenant;
mod updates;
mod verify;
mod wal;
mod write;
mod writer;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags};
use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, KeyId, RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::record::Record;
use statehold_core::scope::StateKey;
use statehold_core::session::SessionState;
use statehold_core::tenant::{TenantHead, TenantRecord};
use statehold_core::time::Timestamp;

use crate::commit::{Answer, Commit, StateWrite};
use crate::keys::KnownKeys;
use crate::port::{
    ApiKey, ChangedHead, Committed, DamageLog, Due, DuePage, DuePlace, HoldChange, HoldQuery,
    HoldSummary, ItemQuery, KeyRange, LineageStep, LiveWork, MemoryPage, MemoryQuery, PageLimit,
    PastItemQuery, PastStateQuery, PastValue, PendingCommit, ReadLine, ResumeAddress, SessionQuery,
    SessionSummary, SharedOwner, SharedValue, StatePage, StateValue, Store, StoreError,
    StoreMeasures, StoredItem, StoredRecord, TenantCommit, ValueSize, WorkTotals, impl_store,
};
use crate::private_file::{self, create_private, sync_directory, unopened};
use erase::ErasedRows;
use fork::ForkPlaces;
use measures::CommitTimes;
use readers::Readers;
use snapshot::{KeyedConnection, Snapshot};
use tail::{RowReader, Tail};
use verify::Verifier;
use writer::Writer;

use crate::seal::{NoKeys, SealKeys};

pub use crate::check::{CheckReport, Problem, ProblemKind};
pub use schema::{APPLICATION_ID, LAYOUT_VERSION};

/// Called when the disk does not confirm a write.
pub type OnStop = Arc<dyn Fn(&StoreError) + Send + Sync>;

/// The name of the data file in a data directory.
pub const FILE_NAME: &str = "statehold.db";
/// The name of the lock file in a data directory. Its holder writes its process id into it.
pub const LOCK_NAME: &str = "statehold.lock";
/// The name of the file that is there while the store looks for room after a write did not fit.
const ROOM_NAME: &str = "statehold.room";

/// How to open a data directory.
#[derive(Clone)]
pub struct SqliteOptions {
    /// Reading threads.
    pub readers: usize,
    /// How many bytes the newest rows of sessions may take in memory. With 0 every read goes to the file.
    pub tail_bytes_max: usize,
    /// Called when the disk does not confirm a write. The default ends the process.
    pub on_stop: OnStop,
    /// The most pages the file may have; a full disk for tests.
    pub pages_max: Option<u32>,
    /// Whether the disk must confirm each commit. Only a test that wants to see a loss says no.
    pub sync: bool,
    /// Counts the operations of the connections.
    pub meter: Option<Arc<Meter>>,
    /// The keys that seal and open what was said. Without keys nothing is sealed.
    pub keys: Arc<dyn SealKeys>,
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
            tail_bytes_max: 64 * 1024 * 1024,
            on_stop: writer::end_process(),
            pages_max: None,
            sync: true,
            meter: None,
            keys: Arc::new(NoKeys),
        }
    }
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("readers", &self.readers)
            .field("tail_bytes_max", &self.tail_bytes_max)
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
    tail: Arc<Tail>,
    damage: Arc<DamageLog>,
    keys: Arc<dyn SealKeys>,
    /// Read from the encryption of a commit until it is in line.
    sealing: tokio::sync::RwLock<()>,
    times: Arc<CommitTimes>,
    locked: DataDirectory,
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
    /// If another process has it open, the file is not ours, is of another version, is a backup, or is damaged.
    pub fn open(directory: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        Self::open_locked(DataDirectory::lock(directory)?, options)
    }

    /// Opens a data directory that this process has locked, or begins one.
    ///
    /// # Errors
    ///
    /// If the file is not ours, is of another version, is a backup, or is damaged.
    pub fn open_locked(locked: DataDirectory, options: SqliteOptions) -> Result<Self, StoreError> {
        schema::require_engine()?;
        let directory = &locked.path;
        let path = directory.join(FILE_NAME);
        wal::require_no_gap(&path)?;
        // The engine gives the files beside it the same mode.
        create_private(&path)?;
        let create = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut conn = schema::open(&path, create)?;
        schema::require_usable(&conn, &path)?;
        schema::make_writer(&conn, options.sync)?;
        schema::create(&mut conn)?;
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
        let keys = options.keys;
        let tail = Arc::new(Tail::new(options.tail_bytes_max, Arc::clone(&keys)));
        let damage = Arc::new(DamageLog::default());
        let noted = Arc::clone(&damage);
        let times = Arc::<CommitTimes>::default();
        let beside = (Arc::clone(&tail), Arc::clone(&times));
        let writer = Writer::start(conn, epoch, options.on_stop, beside, noted);
        Ok(Self {
            verifier: Verifier::new(path, writer.folder()),
            writer,
            readers,
            tail,
            damage,
            keys,
            sealing: tokio::sync::RwLock::default(),
            times,
            locked,
        })
    }

    /// Copies the whole store to a new file while it is in use. Keys are not part of it.
    ///
    /// # Errors
    ///
    /// If the file exists or cannot be written.
    pub async fn backup(&self, to: PathBuf) -> Result<(), StoreError> {
        let copy = move |conn: &Connection, nobody_waits: &dyn Fn() -> bool| {
            backup::copy(conn, &to, nobody_waits)
        };
        self.verifier.on_snapshot(copy).await
    }

    /// Checks a backup like [`SqliteStore::restore`] does, and renames it if it is sound; otherwise it is removed.
    /// Payloads are compared with their digests as far as the keys in a directory go, if one is named.
    ///
    /// # Errors
    ///
    /// If a file of the new name exists, or the backup is not one of ours, or is damaged.
    pub fn accept_backup(
        (backup, name): (&Path, &Path),
        keys: Option<&Path>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CheckReport, StoreError> {
        schema::require_engine()?;
        backup::accept(backup, name, keys, progress)
    }

    /// Makes a data directory from a backup, and checks it like [`SqliteStore::check`]. The new store has a
    /// later epoch, and no worker of the original can write to it: every live request has a new fence.
    ///
    /// # Errors
    ///
    /// If the directory is in use or has data, or the file is not a backup of ours, or is damaged. A
    /// directory that was made for it is removed again.
    pub fn restore(
        backup: &Path,
        directory: &Path,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CheckReport, StoreError> {
        schema::require_engine()?;
        let is_new = !directory.exists();
        create_directory(directory)?;
        let _lock = take_lock(directory)?;
        let restored = backup::restore(backup, directory, progress)
            .and_then(|report| sync_directory(directory).map(|()| report));
        if is_new && restored.is_err() {
            // A directory that is not empty by now stays.
            drop(std::fs::remove_file(directory.join(LOCK_NAME)));
            drop(std::fs::remove_dir(directory));
        }
        restored
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

    /// Folds the log into the data file. While a reader uses the log, it is folded as far as possible and emptied later.
    ///
    /// # Errors
    ///
    /// If the disk fails.
    pub async fn fold_log(&self) -> Result<(), StoreError> {
        self.writer.fold_log().await
    }

    /// How many bytes the newest rows of sessions take in memory.
    pub fn tail_bytes(&self) -> usize {
        self.tail.bytes()
    }

    /// Runs a query on one snapshot of the file.
    async fn read<T: Send + 'static>(
        &self,
        line: ReadLine,
        query: impl FnOnce(&Snapshot<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (damage, keys) = (Arc::clone(&self.damage), Arc::clone(&self.keys));
        let query = move |conn: &Connection| {
            let (keys, damage) = (&*keys, &*damage);
            let conn = KeyedConnection { conn, keys };
            query(&Snapshot { conn, damage })
        };
        self.readers.read(line, query).await
    }

    /// Runs a query that walks the rows of a session. With `fills`, the tail keeps them.
    async fn walk<T: Send + 'static>(
        &self,
        line: ReadLine,
        (session, fills): (SessionId, bool),
        query: impl FnOnce(&RowReader<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let tail = Arc::clone(&self.tail);
        let walk = move |conn: &Connection| {
            // Before the first statement, which takes the snapshot.
            let rows = tail.reader(conn, session, fills)?;
            let found = query(&rows)?;
            rows.keep_walked();
            Ok(found)
        };
        let walked = self.readers.read(line, walk).await;
        self.noted(session, walked)
    }

    /// Notes damage in the data of a session.
    fn noted<T>(&self, session: SessionId, read: Result<T, StoreError>) -> Result<T, StoreError> {
        read.map_err(|error| error.in_session(session))
            .inspect_err(|error| self.damage.note(error))
    }
}

/// A data directory that this process has locked. Nobody else may touch its files until this is dropped.
#[derive(Debug)]
pub struct DataDirectory {
    path: PathBuf,
    _lock: File,
}

impl DataDirectory {
    /// Locks a data directory, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// If another process has it open, or it cannot be made.
    pub fn lock(path: &Path) -> Result<Self, StoreError> {
        create_directory(path)?;
        Ok(Self {
            _lock: take_lock(path)?,
            path: path.to_owned(),
        })
    }
}

/// Creates a data directory that only its owner can read; an existing one keeps its mode.
///
/// # Errors
///
/// If it cannot be created.
pub fn create_directory(directory: &Path) -> Result<(), StoreError> {
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
    let path = directory.join(LOCK_NAME);
    let mut file = options.open(&path).map_err(unopened(&path))?;
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

impl_store! {
    for SqliteStore, reads with conn {
        fn load(session: SessionId) of session -> Option<SessionState> = read::load(conn, session);
        fn load_at(session: SessionId, revision: u64) of session in pages -> Option<SessionState> =
            log::load_at(conn, session, revision);
        fn kept_revision(session: SessionId, revision: u64) of session -> u64 =
            memory::kept_revision(conn, session, revision);
        fn last_rewind(session: SessionId) of session -> u64 = memory::last_rewind(conn, session);
        fn records_at(places: Vec<(SessionId, u64)>, bytes_max: u64) -> Vec<Option<StoredRecord>> =
            holds::records_at(conn, &places, bytes_max);

        fn chain(session: SessionId, after: u64, limit: PageLimit) of session in pages -> Vec<Record> =
            log::chain(conn, session, after, limit);
        fn state(session: SessionId, range: KeyRange, limit: PageLimit) of session in pages
            -> StatePage<StateValue> = read::state(conn, session, &range, limit);
        fn state_value(session: SessionId, key: StateKey) of session -> Option<StateValue> =
            read::state_value(conn, session, &key);
        fn state_sizes(session: SessionId, keys: Vec<StateKey>, bytes_max: u64) of session
            -> Vec<Option<ValueSize>> = read::state_sizes(conn, session, &keys, bytes_max);
        fn state_at(session: SessionId, key: StateKey, revision: u64) of session -> Option<Vec<u8>> =
            read::state_at(conn, session, &key, revision);
        fn past_state(session: SessionId, query: PastStateQuery) of session in pages -> StatePage<StateValue> =
            past::state(conn, session, &query);
        fn past_values(session: SessionId, places: Vec<(StateKey, u64)>, bytes_max: u64) of session in pages
            -> Vec<Option<PastValue>> = past::values(conn, session, &places, bytes_max);
        fn task_state(task: TaskId) -> Option<Vec<u8>> = read::task_state(conn, task);
        fn shared(owner: SharedOwner, range: KeyRange, limit: PageLimit) in pages
            -> StatePage<SharedValue> = read::shared(conn, &owner, &range, limit);
        fn shared_value(owner: SharedOwner, key: StateKey) -> Option<SharedValue> =
            read::shared_value(conn, &owner, &key);
        fn shared_sizes(owner: SharedOwner, keys: Vec<StateKey>, bytes_max: u64)
            -> Vec<Option<ValueSize>> = read::shared_sizes(conn, &owner, &keys, bytes_max);

        fn closed_task(id: TaskId) -> Option<ClosedTask> =
            read::by_id(conn, "closed_task", id.as_uuid());
        fn closed_hold(id: HoldId) -> Option<ClosedHold> =
            read::by_id(conn, "closed_hold", id.as_uuid());
        fn session_of_request(id: RequestId) -> Option<SessionId> =
            read::session_of(conn, ["live_request", "ended_request"], id.as_uuid());
        fn session_of_task(id: TaskId) -> Option<SessionId> =
            read::session_of(conn, ["open_task", "closed_task"], id.as_uuid());
        fn session_of_hold(id: HoldId) -> Option<SessionId> =
            read::session_of(conn, ["open_hold", "closed_hold"], id.as_uuid());

        fn answer(key: Digest) -> Option<Answer> = read::answer(conn, key);
        fn answers_kept() -> u64 = read::answers_kept(conn);

        fn sessions(query: SessionQuery) in pages -> Vec<SessionSummary> = read::sessions(conn, &query);
        fn sessions_of_user(tenant: Name, user: UserId, is_listed: bool, after: u64, limit: usize) in pages
            -> Vec<SessionSummary> =
            read::sessions_of_user(conn, (&tenant, user), is_listed, after, limit);
        fn session_named(tenant: Name, app: Name, user: UserId, name: String)
            -> Option<SessionSummary> = read::session_named(conn, (&tenant, &app, user), &name);
        fn children_of(request: RequestId) -> Vec<RequestId> = read::children_of(conn, request);
        fn chat_requests(digest: Digest, limit: usize) -> Vec<(SessionId, RequestId)> =
            chats::find(conn, digest, limit);
        fn committed(after: u64, limit: usize) -> Vec<Committed> = read::committed(conn, after, limit);
        fn last_place() -> u64 = read::last_place(conn);
        fn heads_after(after: u64, limit: usize) -> Vec<ChangedHead> =
            read::heads_after(conn, after, limit);
        fn claimable(tenant: Name, agent: Name, user: Option<UserId>, after: Option<RequestId>, limit: usize)
            -> Vec<(SessionId, RequestId)> = read::claimable(conn, &tenant, &agent, user, after, limit);
        fn live_work(tenant: Name, agent: Name, after: Option<RequestId>, limit: usize) in pages
            -> Vec<LiveWork> = read::live_work(conn, &tenant, &agent, after, limit);
        fn due(now: Timestamp, after: Option<DuePlace>, limit: usize) -> DuePage = due::due(conn, now, after, limit);
        fn due_in(sessions: Vec<(SessionId, Timestamp)>) -> Vec<Due> = due::due_in(conn, &sessions);
        fn sessions_ahead(now: Timestamp, limit: usize) in pages -> Vec<(SessionId, Timestamp)> =
            due::sessions_ahead(conn, now, limit);

        fn holds_of(request: RequestId) -> Vec<HoldId> = holds::holds_of(conn, request);
        fn open_holds(query: HoldQuery) in pages -> Vec<HoldSummary> = holds::open_holds(conn, &query);
        fn decided_holds(query: HoldQuery) in pages -> Vec<HoldSummary> = holds::decided_holds(conn, &query);
        fn holds(ids: Vec<HoldId>) -> Vec<HoldSummary> = holds::by_ids(conn, &ids);
        fn held_by(requests: Vec<RequestId>) -> Vec<HoldSummary> = holds::held_by(conn, &requests);
        fn hold_changes(tenant: Name, after: u64, limit: usize) in pages -> (Vec<HoldChange>, u64) =
            holds::changes(conn, &tenant, after, limit);
        fn lineages(requests: Vec<RequestId>) -> Vec<Vec<LineageStep>> =
            requests.iter().map(|id| holds::lineage(conn, *id)).collect();
        fn open_holds_of_user(tenant: Name, user: UserId, limit: usize) -> usize =
            holds::count_of_user(conn, &tenant, user, limit);

        fn tenants() -> Vec<Name> = tenant::names(conn);
        fn user(tenant: Name, name: String) -> Option<UserId> = tenant::user(conn, &tenant, &name);
        fn user_name(user: UserId) -> Option<String> = tenant::user_name(conn, user);
        fn user_names(users: Vec<UserId>) -> Vec<Option<String>> =
            users.iter().map(|user| tenant::user_name(conn, *user)).collect();
        fn tenant_head(tenant: Name) -> TenantHead = tenant::head(conn, &tenant);
        fn tenant_records(tenant: Name, after: u64, limit: usize) in pages -> Vec<TenantRecord> =
            tenant::records(conn, &tenant, after, limit);
        fn api_key(secret: Digest) -> Option<ApiKey> = tenant::api_key(conn, secret);
        fn api_keys(tenant: Name, after: Option<KeyId>, limit: usize) in pages -> Vec<ApiKey> =
            tenant::api_keys(conn, &tenant, after, limit);
        fn api_key_of(tenant: Name, key: KeyId) -> Option<ApiKey> =
            tenant::api_key_of(conn, &tenant, key);
        fn api_key_count(tenant: Name) -> usize = tenant::api_key_count(conn, &tenant);
        fn has_api_keys() -> bool = tenant::has_api_keys(conn);
        fn resume_addresses() -> Vec<ResumeAddress> = tenant::addresses(conn);
        fn work_totals(tenant: Name, agents: usize) in pages -> WorkTotals =
            measures::work_totals(conn, &tenant, agents);
    }

    async fn copy(&self) -> Result<File, StoreError> {
        let directory = self.locked.path.clone();
        let copy = move |conn: &Connection, nobody_waits: &dyn Fn() -> bool| {
            backup::copy_without_name(conn, &directory, nobody_waits)
        };
        self.verifier.on_snapshot(copy).await
    }

    fn check_room(&self) -> Result<(), StoreError> {
        private_file::check_room(&self.locked.path.join(ROOM_NAME))
    }

    fn measures(&self) -> StoreMeasures {
        self.times.measures(&self.locked.path.join(FILE_NAME))
    }

    fn damage(&self) -> &DamageLog {
        &self.damage
    }

    async fn begin_commit(&self, mut commit: Commit) -> Result<PendingCommit, StoreError> {
        let _sealing = self.sealing.read().await;
        // Here, so that the writing thread encrypts and hashes nothing of a caller.
        sealing::prepare(&mut commit, &*self.keys)?;
        commit.answer_sum = commit.answer.as_ref().map(sums::answer_sum);
        let is_restored = |write: &StateWrite| matches!(write, StateWrite::Restore { .. });
        if commit.writes.fork.is_none() && !commit.writes.state.iter().any(is_restored) {
            return self.writer.begin_commit(commit, None).await;
        }
        let session = commit.session();
        let looked_up = self.read(ReadLine::Points, move |conn| {
            read::find_restored(conn, &mut commit);
            let places = ForkPlaces::find(conn, &commit)?;
            Ok((commit, places))
        });
        let (commit, places) = self.noted(session, looked_up.await)?;
        self.writer.begin_commit(commit, places).await
    }

    async fn settle_begun_commits(&self) -> Result<(), StoreError> {
        drop(self.sealing.write().await);
        self.writer.run(|_| Ok(())).await
    }

    async fn session(&self, session: SessionId) -> Result<Option<SessionSummary>, StoreError> {
        if let Some(summary) = self.tail.summary(session) {
            return Ok(Some(summary));
        }
        self.walk(ReadLine::Points, (session, true), move |rows| {
            let found = read::session(rows, session)?;
            rows.keep_summary(found.as_ref());
            Ok(found)
        })
        .await
    }

    async fn ended_request(&self, id: RequestId) -> Result<Option<EndedRequest>, StoreError> {
        if let Some(ended) = self.tail.ended_request(id) {
            return Ok(Some(ended));
        }
        let find = move |conn: &Snapshot<'_>| read::by_id(conn, "ended_request", id.as_uuid());
        let read = self.read(ReadLine::Points, find);
        read.await.inspect_err(|error| self.damage.note(error))
    }

    async fn records(
        &self,
        session: SessionId,
        after: u64,
        limit: PageLimit,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        if let Some(hot) = self.tail.hot(session)
            && let Some(records) = hot::records(&hot, after, limit)
        {
            return Ok(records);
        }
        let line = if limit.entries > 1 {
            ReadLine::Pages
        } else {
            ReadLine::Points
        };
        let read = self.read(line, move |conn| log::records(conn, session, after, limit));
        self.noted(session, read.await)
    }

    async fn items(
        &self,
        session: SessionId,
        query: ItemQuery,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        if query.before.is_none()
            && let Some(hot) = self.tail.hot(session)
            && let Some(page) = hot::items(&hot, query)
        {
            return Ok(page);
        }
        let fills = query.before.is_none() && query.task.is_none();
        self.walk(ReadLine::Points, (session, fills), move |rows| {
            history::items(rows, session, query)
        })
        .await
    }

    async fn transcript(
        &self,
        session: SessionId,
        before: Option<u64>,
        limit: PageLimit,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        if before.is_none()
            && let Some(hot) = self.tail.hot(session)
            && let Some(page) = hot::transcript(&hot, limit)
        {
            return Ok(page);
        }
        let line = if before.is_some() {
            ReadLine::Pages
        } else {
            ReadLine::Points
        };
        self.walk(line, (session, before.is_none()), move |rows| {
            history::transcript(rows, session, before, limit)
        })
        .await
    }

    async fn items_at(
        &self,
        session: SessionId,
        query: PastItemQuery,
    ) -> Result<(Vec<StoredItem>, Option<u64>), StoreError> {
        self.walk(ReadLine::Pages, (session, false), move |rows| {
            history::items_at(rows, session, query)
        })
        .await
    }

    async fn memory(
        &self,
        session: SessionId,
        query: MemoryQuery,
    ) -> Result<MemoryPage, StoreError> {
        if let Some(hot) = self.tail.hot(session)
            && let Some(page) = hot::memory(&hot, &query)
        {
            return Ok(page);
        }
        self.walk(ReadLine::Points, (session, false), move |rows| {
            memory::page(rows, session, &query)
        })
        .await
    }

    async fn verify(
        &self,
        tenant: Name,
        expected: Option<TenantHead>,
        keys: Arc<dyn KnownKeys>,
    ) -> Result<CheckReport, StoreError> {
        let job = verify::VerifyJob {
            tenant,
            expected,
            keys,
        };
        self.verifier.verify(job).await
    }

    async fn erase_some(&self, limit: PageLimit) -> Result<bool, StoreError> {
        let tail = Arc::clone(&self.tail);
        let damage = Arc::clone(&self.damage);
        let erase = move |conn: &mut Connection| erase::some(conn, limit, &tail, &damage);
        let removed = self.writer.run_counted(erase).await?;
        if removed == ErasedRows::Last && !self.verifier.delays_folding() {
            // Removed payloads would stay readable in the log of the engine below until it wraps.
            self.writer.fold_log().await?;
        }
        Ok(removed == ErasedRows::Some)
    }

    async fn intern_user(
        &self,
        tenant: Name,
        name: String,
        fresh: UserId,
    ) -> Result<UserId, StoreError> {
        let name = sealing::user_text(&*self.keys, &tenant, fresh, &name);
        let intern = move |conn: &mut Connection| tenant::intern_user(conn, &tenant, &name, fresh);
        self.writer.run(intern).await
    }

    async fn commit_tenant(&self, commit: TenantCommit) -> Result<(), StoreError> {
        let write = move |conn: &mut Connection| tenant::commit(conn, &commit);
        self.writer.run(write).await
    }

    async fn forget_answers(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let forget = move |conn: &mut Connection| write::forget_answers(conn, now, limit);
        self.writer.run(forget).await
    }
}

//! The writer thread: group commit. It commits all queued commits in one transaction and answers
//! only when the disk has confirmed it.
//!
//! A commit is refused before its first row as a rule, so a conflict refuses one caller and not the group. If
//! one was refused later, its rows must go: the group is rolled back and written again, each commit in a
//! savepoint of its own. The first attempt has none, because a savepoint copies each page that a commit changes.
//!
//! If the disk does not confirm, no caller gets `Ok`, now or later: pages that the kernel
//! dropped after a failed sync cannot be recovered by a retry.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot};

use super::fork::ForkPlaces;
use super::log::RowColumns;
use super::measures::CommitTimes;
use super::recent::Recent;
use super::sql::corrupt_or_unavailable;
use super::tail::Tail;
use super::{OnStop, schema, updates, write};
use crate::commit::Commit;
use crate::port::{DamageLog, PendingCommit, StoreError};

/// How many commits may wait before callers do.
const QUEUE_MAX: usize = 1024;
/// How many commits share one transaction at most.
const GROUP_MAX: usize = 512;
/// Bytes of records and payloads between two checkpoints of the log. A page that many commits change is
/// written to the file once per checkpoint, and each checkpoint waits for the disk.
const CHECKPOINT_BYTES: u64 = 8 * 1024 * 1024;
/// Pages that the log grows by between two checkpoints at most: small commits write far more pages than bytes.
const CHECKPOINT_PAGES: u64 = 32 * 1024;

/// How long a statement waits for another process that looks at the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

type Reply = oneshot::Sender<Result<Written, StoreError>>;
/// Work for the writing connection, or the error that the writer has stopped. It answers its caller
/// itself and returns how many bytes it wrote, or a failure of the disk.
type Task = Box<dyn FnOnce(Result<&mut Connection, StoreError>) -> Result<u64, StoreError> + Send>;

/// A commit that is durable. Its caller frees what is left of it, because freeing takes as long as a part of
/// the writing, and the next group waits.
struct Written {
    revision: u64,
    _rest: Option<Box<Commit>>,
}

/// A commit in line, with the places of a fork.
struct Queued {
    commit: Box<Commit>,
    places: Option<ForkPlaces>,
    reply: Reply,
    begun: Instant,
}

enum Job {
    Commit(Queued),
    Run(Task),
    FoldLog(oneshot::Sender<Result<(), StoreError>>),
}

/// The handle of the writing thread.
pub(super) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    damage: Arc<DamageLog>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread with the connection that writes.
    pub(super) fn start(
        conn: Connection,
        epoch: String,
        on_stop: OnStop,
        (tail, times): (Arc<Tail>, Arc<CommitTimes>),
        damage: Arc<DamageLog>,
    ) -> Self {
        let (jobs, mut queue) = mpsc::channel(QUEUE_MAX);
        let name = "statehold-writer".to_owned();
        // Damage in the order of sessions fails lists in that order, and no commit.
        let updates_until = updates::until(&conn)
            .inspect_err(|error| damage.note(error))
            .ok();
        let mut group = Group {
            conn,
            epoch,
            on_stop,
            unfolded_bytes: 0,
            log_pages: Arc::default(),
            folded_pages: 0,
            updates_until,
            recent: Recent::default(),
            tail,
            times,
            damage: Arc::clone(&damage),
            is_log_to_empty: false,
            stopped: false,
        };
        group.count_log_pages();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || group.run(&mut queue));
        Self {
            jobs: Some(jobs),
            damage,
            thread: thread.ok(),
        }
    }

    /// Puts a commit in line for the next group, a fork with the places of its rows.
    pub(super) async fn begin_commit(
        &self,
        commit: Commit,
        places: Option<ForkPlaces>,
    ) -> Result<PendingCommit, StoreError> {
        let (reply, answer) = oneshot::channel();
        let commit = Box::new(commit);
        let queued = Queued {
            commit,
            places,
            reply,
            begun: Instant::now(),
        };
        self.send(Job::Commit(queued)).await?;
        Ok(Box::pin(async {
            let written = answer.await.unwrap_or(Err(StoreError::Stopped));
            written.map(|written| written.revision)
        }))
    }

    /// Runs a task that writes a few bytes on the writing connection, between groups.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_counted(move |conn| task(conn).map(|done| (done, 0)))
            .await
    }

    /// Runs a task that tells how many bytes it wrote: the log is folded as often as behind commits.
    pub(super) async fn run_counted<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Connection) -> Result<(T, u64), StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let damage = Arc::clone(&self.damage);
        let task: Task = Box::new(move |conn| {
            let (answer, wrote) = match conn.and_then(task) {
                Ok((done, bytes)) => (Ok(done), Ok(bytes)),
                Err(error @ StoreError::Unavailable(_)) => (Err(StoreError::Stopped), Err(error)),
                Err(error) => (Err(error), Ok(0)),
            };
            if let Err(error) = &answer {
                damage.note(error);
            }
            // The caller may have dropped its future; the task has run anyway.
            drop(reply.send(answer));
            wrote
        });
        self.send(Job::Run(task)).await?;
        answer.await.unwrap_or(Err(StoreError::Stopped))
    }

    /// A handle that requests a checkpoint without waiting for it.
    pub(super) fn folder(&self) -> Folder {
        Folder(self.jobs.as_ref().map(mpsc::Sender::downgrade))
    }

    /// Folds the whole log into the file and empties it.
    pub(super) async fn fold_log(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::FoldLog(reply)).await?;
        answer.await.unwrap_or(Err(StoreError::Stopped))
    }

    async fn send(&self, job: Job) -> Result<(), StoreError> {
        let jobs = self.jobs.as_ref().ok_or(StoreError::Stopped)?;
        jobs.send(job).await.map_err(|_| StoreError::Stopped)
    }
}

/// Requests a checkpoint from another thread.
pub(super) struct Folder(Option<mpsc::WeakSender<Job>>);

impl Folder {
    pub(super) fn fold_soon(&self) {
        let jobs = self.0.as_ref().and_then(mpsc::WeakSender::upgrade);
        let (reply, _) = oneshot::channel();
        // A writer that has stopped checkpoints its log itself.
        drop(jobs.map(|jobs| jobs.blocking_send(Job::FoldLog(reply))));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the writer; nothing is left to save.
            drop(thread.join());
        }
    }
}

/// Why a group was not written.
enum GroupError {
    /// A commit was refused after some of its rows were written.
    LeftRows,
    /// The store failed.
    Failed(StoreError),
}

impl From<StoreError> for GroupError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

struct Group {
    conn: Connection,
    epoch: String,
    on_stop: OnStop,
    unfolded_bytes: u64,
    /// How many pages the log had after the last transaction. It begins anew once all of it is folded and no reader
    /// uses it.
    log_pages: Arc<AtomicU64>,
    /// How many of them were there at the last checkpoint.
    folded_pages: u64,
    /// The row of the log up to which the order of sessions is right. None if that is damaged.
    updates_until: Option<i64>,
    recent: Recent,
    tail: Arc<Tail>,
    times: Arc<CommitTimes>,
    damage: Arc<DamageLog>,
    /// Whether the log still has bytes that were removed, because readers used it when it was to be emptied.
    is_log_to_empty: bool,
    stopped: bool,
}

impl Group {
    fn run(&mut self, queue: &mut mpsc::Receiver<Job>) {
        let mut commits = Vec::with_capacity(GROUP_MAX);
        while let Some(first) = queue.blocking_recv() {
            let mut next = Some(first);
            while let Some(job) = next.take() {
                match job {
                    Job::Commit(queued) => commits.push(queued),
                    Job::Run(task) => {
                        self.commit_group(&mut commits);
                        if self.is_log_to_empty && !self.stopped {
                            // On a full disk a later task tries it again; another failure stops the writer.
                            drop(self.empty_log());
                        }
                        let conn = if self.stopped {
                            Err(StoreError::Stopped)
                        } else {
                            Ok(&mut self.conn)
                        };
                        match task(conn) {
                            Ok(bytes) => self.wrote(bytes),
                            Err(error) => self.stop(&error),
                        }
                    }
                    Job::FoldLog(reply) => {
                        self.commit_group(&mut commits);
                        // The caller may have gone away; the log is folded all the same.
                        drop(reply.send(self.empty_log()));
                    }
                }
                if commits.len() < GROUP_MAX {
                    next = queue.try_recv().ok();
                }
            }
            self.commit_group(&mut commits);
        }
        if !self.stopped {
            // A clean stop leaves one tidy file. If it fails, the log is still there.
            drop(self.conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"));
        }
    }

    fn commit_group(&mut self, commits: &mut Vec<Queued>) {
        if commits.is_empty() {
            return;
        }
        let results = if self.stopped {
            commits.iter().map(|_| Err(StoreError::Stopped)).collect()
        } else {
            self.write_group(commits)
        };
        let (mut durable, mut answers) = (Vec::new(), Vec::with_capacity(results.len()));
        for (queued, result) in commits.drain(..).zip(results) {
            let Queued {
                commit,
                reply,
                begun,
                ..
            } = queued;
            let revision = commit.record.content.seq;
            let session = commit.session();
            // Noted here, because the caller may have dropped its future.
            let result = result
                .map_err(|error| error.in_session(session))
                .inspect_err(|error| self.damage.note(error));
            if result.is_ok() {
                self.times.commits.observe(begun.elapsed());
            }
            let answer = result.map(|columns| durable.push((commit, columns)));
            answers.push((reply, answer.map(|()| revision)));
        }
        // Before the answers: a caller that has its answer finds the row in the tail.
        let mut rest = self.tail.end_group(durable).into_iter();
        for (reply, answer) in answers {
            let written = answer.map(|revision| Written {
                revision,
                _rest: rest.next().flatten(),
            });
            drop(reply.send(written));
        }
        self.wrote(0);
    }

    /// Counts the pages of the log from here on.
    fn count_log_pages(&mut self) {
        let log_pages = Arc::clone(&self.log_pages);
        let hook = move |_: &mut Wal, pages: c_int| {
            log_pages.store(u64::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        if let Err(error) = self.conn.wal_hook(Some(hook)) {
            tracing::warn!(%error, "the length of the log of the store is not watched");
        }
    }

    /// Folds the log if it has become long.
    fn wrote(&mut self, bytes: u64) {
        self.unfolded_bytes = self.unfolded_bytes.saturating_add(bytes);
        let pages = self.log_pages.load(Ordering::Relaxed);
        self.folded_pages = self.folded_pages.min(pages);
        let is_long = self.unfolded_bytes >= CHECKPOINT_BYTES
            || pages - self.folded_pages >= CHECKPOINT_PAGES;
        if is_long && !self.stopped {
            self.fold_log();
        }
    }

    /// Writes a group in one transaction. What it returns is durable, or it is an error.
    fn write_group(&mut self, commits: &[Queued]) -> Vec<Result<RowColumns, StoreError>> {
        let mut written = self.write_transaction(commits, false);
        if matches!(written, Err(GroupError::LeftRows)) {
            written = self.write_transaction(commits, true);
        }
        match written {
            Ok(results) => {
                let bytes = commits
                    .iter()
                    .map(|queued| queued.commit.stored_bytes() as u64);
                self.unfolded_bytes += bytes.sum::<u64>();
                results
            }
            Err(GroupError::Failed(StoreError::Full)) => {
                commits.iter().map(|_| Err(StoreError::Full)).collect()
            }
            Err(GroupError::Failed(error)) => {
                self.stop(&error);
                commits.iter().map(|_| Err(StoreError::Stopped)).collect()
            }
            Err(GroupError::LeftRows) => unreachable!("a savepoint takes the rows back"),
        }
    }

    fn write_transaction(
        &mut self,
        commits: &[Queued],
        has_savepoints: bool,
    ) -> Result<Vec<Result<RowColumns, StoreError>>, GroupError> {
        let written = self.write_all(commits, has_savepoints);
        if written.is_err() {
            self.recent.clear();
            if !self.conn.is_autocommit() {
                // If this fails too, the next BEGIN fails, which stops the process before any caller gets an
                // answer.
                drop(self.conn.execute_batch("ROLLBACK"));
            }
        }
        written
    }

    fn write_all(
        &mut self,
        commits: &[Queued],
        has_savepoints: bool,
    ) -> Result<Vec<Result<RowColumns, StoreError>>, GroupError> {
        self.execute("BEGIN IMMEDIATE")?;
        self.require_epoch()?;
        let mut results = Vec::with_capacity(commits.len());
        for queued in commits {
            results.push(if has_savepoints {
                self.write_in_savepoint(queued)?
            } else {
                self.write_one(queued)?
            });
        }
        let newest = results.iter().flatten().map(|columns| columns.id).max();
        let updates_until = self.order_sessions(newest.unwrap_or(0))?;
        let sessions = commits.iter().map(|queued| queued.commit.session());
        self.tail.begin_group(sessions);
        let begun = Instant::now();
        self.execute("COMMIT")?;
        self.times.syncs.observe(begun.elapsed());
        self.updates_until = updates_until;
        Ok(results)
    }

    /// Brings the order of sessions up to date if the log is far ahead of it, also of the rows in this transaction.
    fn order_sessions(&self, newest: i64) -> Result<Option<i64>, StoreError> {
        let Some(until) = self.updates_until else {
            return Ok(None);
        };
        if newest - until <= updates::LAG_MAX {
            return Ok(Some(until));
        }
        self.execute("SAVEPOINT updates")?;
        let ordered = match updates::catch_up(&self.conn, until) {
            Err(error @ StoreError::Corrupt { .. }) => {
                self.damage.note(&error);
                self.execute("ROLLBACK TO updates")?;
                None
            }
            ordered => Some(ordered?),
        };
        self.execute("RELEASE updates")?;
        Ok(ordered)
    }

    /// Writes one commit. The inner error refuses this one; the outer, the group.
    fn write_one(&mut self, queued: &Queued) -> Result<Result<RowColumns, StoreError>, GroupError> {
        let changes = self.conn.total_changes();
        match self.write_rows(queued) {
            // The engine itself failed: no use in trying the others.
            Err(error @ (StoreError::Full | StoreError::Unavailable(_))) => Err(error.into()),
            Err(_) if self.conn.total_changes() != changes => Err(GroupError::LeftRows),
            result => Ok(result),
        }
    }

    fn write_rows(&mut self, queued: &Queued) -> Result<RowColumns, StoreError> {
        let places = queued.places.as_ref();
        write::commit(&self.conn, &queued.commit, places, &mut self.recent)
    }

    fn write_in_savepoint(
        &mut self,
        queued: &Queued,
    ) -> Result<Result<RowColumns, StoreError>, GroupError> {
        self.execute("SAVEPOINT one")?;
        let result = match self.write_rows(queued) {
            Err(error @ (StoreError::Full | StoreError::Unavailable(_))) => {
                return Err(error.into());
            }
            result => result,
        };
        if result.is_err() {
            self.execute("ROLLBACK TO one")?;
        }
        self.execute("RELEASE one")?;
        Ok(result)
    }

    fn execute(&self, sql: &str) -> Result<(), StoreError> {
        self.conn
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute([]))
            .map(drop)
            .map_err(corrupt_or_unavailable("committing"))
    }

    /// A file that was restored from a backup in the meantime belongs to another process.
    fn require_epoch(&self) -> Result<(), StoreError> {
        let found = schema::meta(&self.conn, "epoch")?;
        if found == self.epoch {
            Ok(())
        } else {
            Err(StoreError::Unusable(format!(
                "the data was restored while this process ran (epoch {found}, not {})",
                self.epoch
            )))
        }
    }

    /// Folds the log into the file, on this thread only, and notices a disk that fails at it.
    fn fold_log(&mut self) {
        self.unfolded_bytes = 0;
        self.folded_pages = self.log_pages.load(Ordering::Relaxed);
        let folded = self
            .conn
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        match folded {
            Ok(()) => {}
            // The disk is full: the log keeps acknowledged commits until a later checkpoint succeeds.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {}
            Err(error) => self.stop(&corrupt_or_unavailable("folding the log")(error)),
        }
    }

    /// Folds the log and empties it, without waiting for readers: while one uses the log, it is emptied before a later
    /// task instead. Commits wait for this thread.
    fn empty_log(&mut self) -> Result<(), StoreError> {
        if self.stopped {
            return Err(StoreError::Stopped);
        }
        self.unfolded_bytes = 0;
        let folded = self
            .without_waiting(|conn| {
                conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            })
            .map_err(corrupt_or_unavailable("folding the log"));
        self.is_log_to_empty = !matches!(folded, Ok(false));
        match folded.map(|_is_used: bool| ()) {
            Ok(()) => Ok(()),
            Err(StoreError::Full) => Err(StoreError::Full),
            Err(error) => {
                self.stop(&error);
                Err(StoreError::Stopped)
            }
        }
    }

    /// Runs a statement that fails at once where it would wait for another connection.
    fn without_waiting<T>(
        &self,
        run: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.conn.busy_timeout(Duration::ZERO)?;
        let done = run(&self.conn);
        self.conn.busy_timeout(BUSY_TIMEOUT)?;
        done
    }

    fn stop(&mut self, error: &StoreError) {
        self.stopped = true;
        (self.on_stop)(error);
    }
}

/// Ends the process, so that it cannot acknowledge an unconfirmed write.
pub(super) fn end_process() -> OnStop {
    Arc::new(|error: &StoreError| {
        let mut message = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(inner) = source {
            message = format!("{message}: {inner}");
            source = inner.source();
        }
        eprintln!(
            "statehold: the disk did not confirm a write ({message}). Nothing after the last \
             acknowledged commit was kept. Check the disk, then start again."
        );
        std::process::exit(74);
    })
}

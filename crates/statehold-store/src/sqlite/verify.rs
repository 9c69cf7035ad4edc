//! Reading the whole of a file in use, to verify or to copy it: on a thread and a connection of its own, on one
//! snapshot.
//!
//! The snapshot blocks checkpoints of the write-ahead log, so the log grows meanwhile, and checkpoints wait until the
//! last reader has ended.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::{Connection, OpenFlags};
use statehold_core::name::Name;
use statehold_core::tenant::TenantHead;
use tokio::sync::oneshot;

use super::check::{self, Extent};
use super::schema;
use super::sql::corrupt_or_unavailable;
use super::writer::Folder;
use crate::check::CheckReport;
use crate::keys::KnownKeys;
use crate::port::StoreError;

/// SQLite steps between two checks whether the caller still waits.
const STEPS_BETWEEN_LOOKS: i32 = 10_000;

/// Readings of the whole file under way. Dropping this ends them.
pub(super) struct Verifier {
    path: PathBuf,
    threads: Mutex<Vec<JoinHandle<()>>>,
    shared: Arc<VerifierState>,
}

struct VerifierState {
    is_closing: AtomicBool,
    running: AtomicUsize,
    /// Whether a checkpoint was requested meanwhile.
    wants_folding: AtomicBool,
    folder: Folder,
}

/// One verification job.
pub(super) struct VerifyJob {
    pub(super) tenant: Name,
    pub(super) expected: Option<TenantHead>,
    pub(super) keys: Arc<dyn KnownKeys>,
}

/// Sets its flag on drop, when the caller no longer waits.
struct Abandon(Arc<AtomicBool>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Verifier {
    pub(super) fn new(path: PathBuf, folder: Folder) -> Self {
        let shared = VerifierState {
            is_closing: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            wants_folding: AtomicBool::new(false),
            folder,
        };
        Self {
            path,
            threads: Mutex::default(),
            shared: Arc::new(shared),
        }
    }

    /// Whether the log cannot be emptied now; then it is done later.
    pub(super) fn delays_folding(&self) -> bool {
        let is_running = self.shared.running.load(Ordering::Acquire) > 0;
        if is_running {
            self.shared.wants_folding.store(true, Ordering::Release);
        }
        is_running
    }

    pub(super) async fn verify(&self, task: VerifyJob) -> Result<CheckReport, StoreError> {
        self.on_snapshot(move |conn, _| {
            let extent = Extent {
                tenant: Some(&task.tenant),
                expected: task.expected,
                is_backup: false,
            };
            check::check_snapshot(conn, Some(&*task.keys), extent, &mut |_, _| {})
        })
        .await
    }

    /// Reads one snapshot of the whole file, on a thread of its own. Work that does not read through SQL asks whether
    /// its caller still waits.
    pub(super) async fn on_snapshot<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection, &dyn Fn() -> bool) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let _abandon = Abandon(Arc::clone(&is_abandoned));
        let (reply, answer) = oneshot::channel();
        let (path, shared) = (self.path.clone(), Arc::clone(&self.shared));
        shared.running.fetch_add(1, Ordering::AcqRel);
        let work = move || {
            let found = run(&path, &shared, is_abandoned, read);
            shared.end_one();
            // The caller may have gone away.
            drop(reply.send(found));
        };
        let thread = std::thread::Builder::new()
            .name("statehold-verifier".to_owned())
            .spawn(work)
            .map_err(|error| {
                self.shared.running.fetch_sub(1, Ordering::AcqRel);
                StoreError::Unavailable(Box::new(error))
            })?;
        self.keep(thread);
        answer.await.unwrap_or(Err(StoreError::Stopped))
    }
}

impl Verifier {
    fn keep(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }
}

impl VerifierState {
    fn end_one(&self) {
        let is_last = self.running.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && self.wants_folding.swap(false, Ordering::AcqRel) {
            self.folder.fold_soon();
        }
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        let threads = self.threads.get_mut();
        for thread in threads.unwrap_or_else(PoisonError::into_inner).drain(..) {
            // The panic hook has already reported a panic of a verification.
            drop(thread.join());
        }
    }
}

fn run<T>(
    path: &Path,
    shared: &Arc<VerifierState>,
    is_abandoned: Arc<AtomicBool>,
    read: impl FnOnce(&Connection, &dyn Fn() -> bool) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut conn = open(path)?;
    let closing = Arc::clone(shared);
    let nobody_waits =
        move || is_abandoned.load(Ordering::Relaxed) || closing.is_closing.load(Ordering::Relaxed);
    let place = corrupt_or_unavailable("the settings");
    conn.progress_handler(STEPS_BETWEEN_LOOKS, Some(nobody_waits.clone()))
        .and_then(|()| conn.execute_batch("BEGIN"))
        .map_err(&place)?;
    // The first read begins the snapshot; what the caller knows of was committed before it.
    let found = read(&conn, &nobody_waits);
    drop(conn.execute_batch("ROLLBACK"));
    found
}

fn open(path: &Path) -> Result<Connection, StoreError> {
    let conn = schema::open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    conn.execute_batch("PRAGMA query_only = ON; PRAGMA wal_autocheckpoint = 0;")
        .map_err(corrupt_or_unavailable("the settings"))?;
    Ok(conn)
}

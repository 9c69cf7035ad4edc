//! Reader threads, each with its own read-only connection.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::{Semaphore, oneshot};

use super::sql::corrupt_or_unavailable;
use super::{Meter, count_steps, schema};
use crate::port::StoreError;

/// How many queries may wait or run before callers do.
const QUERIES_MAX: usize = 1024;

type Query = Box<dyn FnOnce(&Connection) + Send>;

/// The handle of the reading threads.
pub(super) struct Readers {
    queue: Arc<Queue>,
    places: Arc<Semaphore>,
    threads: Vec<JoinHandle<()>>,
}

/// A thread that takes queries. When the last one has ended, by a panic too, waiting queries are dropped.
struct Reader(Arc<Queue>);

impl Reader {
    fn new(queue: &Arc<Queue>) -> Self {
        queue.lock().threads += 1;
        Self(Arc::clone(queue))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.threads -= 1;
        if waiting.threads == 0 {
            waiting.is_closed = true;
            let dropped = std::mem::take(&mut waiting.queries);
            drop(waiting);
            drop(dropped);
        }
    }
}

/// The queries that wait for a thread. A new one wakes one thread only.
#[derive(Default)]
struct Queue {
    waiting: Mutex<WaitingQueries>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingQueries {
    queries: VecDeque<Query>,
    threads: usize,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, WaitingQueries> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a query. Drops it if the queue is closed.
    fn push(&self, query: Query) {
        let mut waiting = self.lock();
        if !waiting.is_closed {
            waiting.queries.push_back(query);
            drop(waiting);
            self.changed.notify_one();
        }
    }

    /// Waits for the next query. None if the queue is closed and empty.
    fn next(&self) -> Option<Query> {
        let mut waiting = self.lock();
        loop {
            if let Some(query) = waiting.queries.pop_front() {
                return Some(query);
            }
            if waiting.is_closed {
                return None;
            }
            let woken = self.changed.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl Readers {
    /// Opens `count` reading connections.
    pub(super) fn start(
        path: &Path,
        count: usize,
        meter: Option<&Arc<Meter>>,
    ) -> Result<Self, StoreError> {
        let queue = Arc::<Queue>::default();
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let mut conn = schema::open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            conn.execute_batch(
                "PRAGMA query_only = ON; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -16384;",
            )
            .map_err(corrupt_or_unavailable("the settings"))?;
            if let Some(meter) = meter {
                count_steps(&mut conn, Arc::clone(meter), |meter| &meter.read_steps)?;
            }
            let reader = Reader::new(&queue);
            let thread = std::thread::Builder::new()
                .name(format!("statehold-reader-{number}"))
                .spawn(move || {
                    while let Some(query) = reader.0.next() {
                        query(&conn);
                    }
                })
                .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
            threads.push(thread);
        }
        Ok(Self {
            queue,
            places: Arc::new(Semaphore::new(QUERIES_MAX)),
            threads,
        })
    }

    /// Runs a query on one snapshot of the file.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(|_| StoreError::Stopped)?;
        let (reply, answer) = oneshot::channel();
        let query: Query = Box::new(move |conn| {
            // The caller may have gone away.
            drop(reply.send(on_snapshot(conn, query)));
            drop(place);
        });
        self.queue.push(query);
        answer.await.unwrap_or(Err(StoreError::Stopped))
    }
}

/// Several statements of one query must see the same commits.
fn on_snapshot<T>(
    conn: &Connection,
    query: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let place = corrupt_or_unavailable("reading");
    conn.prepare_cached("BEGIN")
        .and_then(|mut begin| begin.execute([]))
        .map_err(&place)?;
    let result = query(conn);
    conn.prepare_cached("COMMIT")
        .and_then(|mut end| end.execute([]))
        .map_err(&place)?;
    result
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            // The panic hook has already reported a panic of a reader.
            drop(thread.join());
        }
    }
}

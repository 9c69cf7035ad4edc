//! Reader threads, each with its own read-only connection.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use super::sql::corrupt_or_unavailable;
use super::{Meter, count_steps, schema};
use crate::port::StoreError;

const QUEUE_MAX: usize = 1024;

type Query = Box<dyn FnOnce(&Connection) + Send>;

/// The handle of the reading threads.
pub(super) struct Readers {
    queries: Option<SyncSender<Query>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Opens `count` reading connections.
    pub(super) fn start(
        path: &Path,
        count: usize,
        meter: Option<&Arc<Meter>>,
    ) -> Result<Self, StoreError> {
        let (queries, queue) = sync_channel::<Query>(QUEUE_MAX);
        let queue = Arc::new(Mutex::new(queue));
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
            let queue = Arc::clone(&queue);
            let thread = std::thread::Builder::new()
                .name(format!("statehold-reader-{number}"))
                .spawn(move || answer(&conn, &queue))
                .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
            threads.push(thread);
        }
        Ok(Self {
            queries: Some(queries),
            threads,
        })
    }

    /// Runs a query on one snapshot of the file.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let query: Query = Box::new(move |conn| {
            // The caller may have gone away.
            drop(reply.send(on_snapshot(conn, query)));
        });
        let queries = self.queries.as_ref().ok_or(StoreError::Stopped)?;
        queries.send(query).map_err(|_| StoreError::Stopped)?;
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

fn answer(conn: &Connection, queue: &Mutex<Receiver<Query>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(query) => query(conn),
            Err(_) => return,
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.queries = None;
        for thread in self.threads.drain(..) {
            // The panic hook has already reported a panic of a reader.
            drop(thread.join());
        }
    }
}

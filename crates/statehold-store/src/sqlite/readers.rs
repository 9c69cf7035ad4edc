//! Reader threads, each with its own read-only connection. Reads of single rows go before reads of many, which never
//! take all threads: a write waits for no list.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::{Semaphore, oneshot};

use super::sql::corrupt_or_unavailable;
use super::{Meter, count_steps, schema};
use crate::port::{ReadLine, StoreError};

/// How many queries of each line may wait or run before callers do.
const QUERIES_MAX: usize = 1024;
/// How many point reads in a row go before a page that waits: under a steady load of them, pages go on all the same.
const POINTS_IN_ROW_MAX: usize = 64;

type Query = Box<dyn FnOnce(&Connection) + Send>;

/// The handle of the reading threads.
pub(super) struct Readers {
    queue: Arc<Queue<Query>>,
    points: Arc<Semaphore>,
    pages: Arc<Semaphore>,
    threads: Vec<JoinHandle<()>>,
}

/// A thread that takes queries. When the last one has ended, by a panic too, waiting queries are dropped.
struct Reader {
    queue: Arc<Queue<Query>>,
    /// The line of the query that it runs.
    running: Option<ReadLine>,
}

impl Reader {
    fn new(queue: &Arc<Queue<Query>>) -> Self {
        queue.lock().threads += 1;
        Self {
            queue: Arc::clone(queue),
            running: None,
        }
    }

    /// Waits for the next query, now that the one before is done.
    fn next(&mut self) -> Option<Query> {
        let (line, query) = self.queue.next(self.running.take())?;
        self.running = Some(line);
        Some(query)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        waiting.end(self.running);
        waiting.threads -= 1;
        if waiting.threads == 0 {
            waiting.is_closed = true;
            let dropped = (
                std::mem::take(&mut waiting.points),
                std::mem::take(&mut waiting.pages),
            );
            drop(waiting);
            drop(dropped);
        }
    }
}

/// The queries that wait for a thread. A new one wakes one thread only.
struct Queue<Q> {
    waiting: Mutex<WaitingQueries<Q>>,
    changed: Condvar,
}

impl<Q> Default for Queue<Q> {
    fn default() -> Self {
        Self {
            waiting: Mutex::new(WaitingQueries {
                points: VecDeque::new(),
                pages: VecDeque::new(),
                running_pages: 0,
                points_in_row: 0,
                threads: 0,
                is_closed: false,
            }),
            changed: Condvar::new(),
        }
    }
}

struct WaitingQueries<Q> {
    points: VecDeque<Q>,
    pages: VecDeque<Q>,
    running_pages: usize,
    /// How many point reads were taken in a row while a page waited that a thread could have run.
    points_in_row: usize,
    threads: usize,
    is_closed: bool,
}

impl<Q> WaitingQueries<Q> {
    /// The next query for a thread: point reads come before pages, and pages leave one thread to them.
    fn take(&mut self) -> Option<(ReadLine, Q)> {
        let pages_max = self.threads.saturating_sub(1).max(1);
        let page_may_run = !self.pages.is_empty() && self.running_pages < pages_max;
        let page_is_next = self.points.is_empty() || self.points_in_row >= POINTS_IN_ROW_MAX;
        if page_may_run && page_is_next {
            self.points_in_row = 0;
            self.running_pages += 1;
            return Some((ReadLine::Pages, self.pages.pop_front()?));
        }
        let point = self.points.pop_front()?;
        self.points_in_row = if page_may_run {
            self.points_in_row + 1
        } else {
            0
        };
        Some((ReadLine::Points, point))
    }

    fn end(&mut self, line: Option<ReadLine>) {
        self.running_pages -= usize::from(line == Some(ReadLine::Pages));
    }
}

impl<Q> Queue<Q> {
    fn lock(&self) -> MutexGuard<'_, WaitingQueries<Q>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a query. Drops it if the queue is closed.
    fn push(&self, line: ReadLine, query: Q) {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return;
        }
        match line {
            ReadLine::Points => waiting.points.push_back(query),
            ReadLine::Pages => waiting.pages.push_back(query),
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// Waits for the next query, for a thread that has run one of the line `ended`. None if the queue is closed, and
    /// nothing in it is for this thread.
    fn next(&self, ended: Option<ReadLine>) -> Option<(ReadLine, Q)> {
        let mut waiting = self.lock();
        waiting.end(ended);
        loop {
            if let Some(next) = waiting.take() {
                return Some(next);
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
        let queue = Arc::<Queue<Query>>::default();
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
            let mut reader = Reader::new(&queue);
            let thread = std::thread::Builder::new()
                .name(format!("statehold-reader-{number}"))
                .spawn(move || {
                    while let Some(query) = reader.next() {
                        query(&conn);
                    }
                })
                .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
            threads.push(thread);
        }
        Ok(Self {
            queue,
            points: Arc::new(Semaphore::new(QUERIES_MAX)),
            pages: Arc::new(Semaphore::new(QUERIES_MAX)),
            threads,
        })
    }

    /// Runs a query on one snapshot of the file.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        line: ReadLine,
        query: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let places = match line {
            ReadLine::Points => &self.points,
            ReadLine::Pages => &self.pages,
        };
        let place = Arc::clone(places).acquire_owned().await;
        let place = place.map_err(|_| StoreError::Stopped)?;
        let (reply, answer) = oneshot::channel();
        let query: Query = Box::new(move |conn| {
            // The caller may have gone away.
            drop(reply.send(on_snapshot(conn, query)));
            drop(place);
        });
        self.queue.push(line, query);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(threads: usize) -> Queue<&'static str> {
        let queue = Queue::default();
        queue.lock().threads = threads;
        queue
    }

    #[test]
    fn point_reads_go_before_pages_and_pages_leave_a_thread_to_them() {
        let queue = queue(3);
        for page in ["page 1", "page 2", "page 3"] {
            queue.push(ReadLine::Pages, page);
        }
        queue.push(ReadLine::Points, "point 1");
        queue.push(ReadLine::Points, "point 2");
        let taken = || queue.lock().take().map(|(_, query)| query);
        let order = [(); 5].map(|()| taken());
        let expected = ["point 1", "point 2", "page 1", "page 2"].map(Some);
        assert_eq!(order[..4], expected);
        assert_eq!(order[4], None, "the last thread is for point reads");
        queue.push(ReadLine::Points, "point 3");
        let next = queue.next(None);
        assert_eq!(next, Some((ReadLine::Points, "point 3")));
        let next = queue.next(Some(ReadLine::Pages));
        assert_eq!(next, Some((ReadLine::Pages, "page 3")), "one has ended");
    }

    #[test]
    fn a_page_waits_for_a_bounded_number_of_point_reads() {
        let queue = queue(2);
        queue.push(ReadLine::Pages, "page");
        for _ in 0..3 * POINTS_IN_ROW_MAX {
            queue.push(ReadLine::Points, "point");
        }
        let order = (0..3 * POINTS_IN_ROW_MAX).map(|_| queue.lock().take());
        let order: Vec<_> = order.flatten().map(|(line, _)| line).collect();
        let place = order.iter().position(|line| *line == ReadLine::Pages);
        assert_eq!(place, Some(POINTS_IN_ROW_MAX));
    }

    #[test]
    fn a_single_thread_runs_both() {
        let queue = queue(1);
        queue.push(ReadLine::Pages, "page");
        assert_eq!(queue.next(None), Some((ReadLine::Pages, "page")));
        queue.push(ReadLine::Points, "point");
        let next = queue.next(Some(ReadLine::Pages));
        assert_eq!(next, Some((ReadLine::Points, "point")));
    }
}

//! Engines in memory for turns that leave nothing behind. Records are never removed from an engine, so
//! one that was used for a while is left to those who are still in it, and goes with the last of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use statehold_core::name::Name;
use statehold_engine::{Engine, EngineError};
use tokio::sync::Mutex;

use crate::runner::{Runner, RunnerError, RunnerOptions};
use crate::spec::AgentBook;

/// How many turns one engine takes before it is replaced.
const TURNS_MAX: usize = 1_000;

/// Makes an engine in memory.
pub type MakeEngine =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Engine, EngineError>> + Send + Sync>;

/// Engines in memory, one after the other.
pub struct Scratch {
    place: Mutex<Place>,
}

struct Place {
    source: Source,
    room: Option<Arc<ScratchRoom>>,
}

enum Source {
    Made {
        make: MakeEngine,
        tenant: Name,
        book: Arc<AgentBook>,
    },
    Given(Engine),
}

/// One engine in memory, with somebody who works there. Stops when nobody is in it any more.
pub struct ScratchRoom {
    engine: Engine,
    book: Option<Arc<AgentBook>>,
    /// None where somebody else does the work.
    runner: Option<Runner>,
    turns: AtomicUsize,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ScratchRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScratchRoom").finish_non_exhaustive()
    }
}

impl Scratch {
    /// Engines that are made when they are needed, in which the agents of the book work.
    pub fn new(make: MakeEngine, tenant: Name, book: Arc<AgentBook>) -> Self {
        Self::of(Source::Made { make, tenant, book })
    }

    /// One engine for everything, in which somebody else works.
    pub fn given(engine: Engine) -> Self {
        Self::of(Source::Given(engine))
    }

    fn of(source: Source) -> Self {
        let place = Place { source, room: None };
        Self {
            place: Mutex::new(place),
        }
    }

    /// Lets the agents of another book work from now on. Whoever is in goes on with those of the book
    /// before. An engine that was given stays.
    pub async fn declare(&self, make: MakeEngine, book: Arc<AgentBook>) {
        let place = &mut *self.place.lock().await;
        if let Source::Made {
            make: old_make,
            book: old_book,
            ..
        } = &mut place.source
        {
            (*old_make, *old_book) = (make, book);
            place.room = None;
        }
    }

    /// An engine for one turn.
    ///
    /// # Errors
    ///
    /// If there can be none.
    pub async fn enter(&self) -> Result<Arc<ScratchRoom>, RunnerError> {
        let place = &mut *self.place.lock().await;
        if let Some(room) = &place.room
            && room.turns.fetch_add(1, Ordering::Relaxed) < TURNS_MAX
        {
            return Ok(Arc::clone(room));
        }
        let (engine, book, runner) = match &place.source {
            Source::Made { make, tenant, book } => {
                let engine = make().await?;
                let (tenant, declared) = (tenant.clone(), Arc::clone(book));
                // What is asked here goes with the engine before anybody can answer.
                let options = RunnerOptions {
                    asks_people: false,
                    ..RunnerOptions::default()
                };
                let runner = Runner::start_with(engine.clone(), tenant, declared, options).await?;
                (engine, Some(Arc::clone(book)), Some(runner))
            }
            Source::Given(engine) => (engine.clone(), None, None),
        };
        let room = Arc::new(ScratchRoom {
            engine,
            book,
            runner,
            turns: AtomicUsize::new(1),
        });
        place.room = Some(Arc::clone(&room));
        Ok(room)
    }

    /// Lets nobody in any more. Whoever is in goes on to the end.
    pub async fn close(&self) {
        self.place.lock().await.room.take();
    }
}

impl ScratchRoom {
    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The agents that work there. None if somebody else has them work.
    pub fn book(&self) -> Option<&AgentBook> {
        self.book.as_deref()
    }
}

impl Drop for ScratchRoom {
    fn drop(&mut self) {
        if let Some(runner) = &self.runner {
            runner.begin_stop();
            self.engine.begin_stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use statehold_engine::{EngineOptions, MemoryKeys, SystemClock};
    use statehold_store::memory::MemoryStore;

    use super::*;

    fn make() -> MakeEngine {
        Arc::new(|| {
            Box::pin(Engine::start(
                Arc::new(MemoryStore::new()),
                Arc::new(MemoryKeys::default()),
                Arc::new(SystemClock),
                EngineOptions::default(),
            ))
        })
    }

    fn scratch() -> Scratch {
        let tenant = "default".parse().expect("a name");
        Scratch::new(make(), tenant, Arc::default())
    }

    #[tokio::test]
    async fn an_engine_is_replaced_after_a_while_and_stops_with_the_last_who_is_in_it() {
        let scratch = scratch();
        let first = scratch.enter().await.expect("a room");
        for _ in 1..TURNS_MAX {
            let room = scratch.enter().await.expect("a room");
            assert!(Arc::ptr_eq(&room, &first));
        }
        let next = scratch.enter().await.expect("a room");
        assert!(!Arc::ptr_eq(&next, &first));
        let engine = first.engine().clone();
        let mut stopped = std::pin::pin!(engine.stopping());
        let is_open = tokio::time::timeout(Duration::ZERO, &mut stopped).await;
        assert!(is_open.is_err(), "somebody is still in it");
        drop(first);
        let over = tokio::time::timeout(Duration::from_secs(10), stopped).await;
        over.expect("nobody is in it any more");
    }
    #[tokio::test]
    async fn whoever_comes_in_after_a_reload_finds_the_agents_of_the_new_book() {
        let scratch = scratch();
        let name: Name = "helper".parse().expect("a name");
        let before = scratch.enter().await.expect("a room");
        let spec = Arc::new(crate::spec::AgentSpec::worker(name.clone()));
        let book = AgentBook {
            agents: [(name.clone(), spec)].into(),
            ..AgentBook::default()
        };
        scratch.declare(make(), Arc::new(book)).await;
        let after = scratch.enter().await.expect("a room");
        let has_it = |room: &ScratchRoom| {
            let book = room.book().expect("a book");
            book.agent(&name).is_some()
        };
        assert!(!has_it(&before) && has_it(&after));
        let mut stopped = std::pin::pin!(before.engine().stopping());
        let is_open = tokio::time::timeout(Duration::ZERO, &mut stopped).await;
        assert!(is_open.is_err(), "somebody is still in the old one");
    }
}

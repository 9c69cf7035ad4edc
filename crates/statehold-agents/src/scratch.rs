//! In-memory engines for stateless turns. An engine never deletes records, so it is replaced after a
//! number of turns; the old one is dropped with its last turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use statehold_core::name::Name;
use statehold_engine::{Engine, EngineError};
use tokio::sync::Mutex;

use crate::runner::{Runner, RunnerError, RunnerOptions};
use crate::spec::AgentBook;

/// Turns per engine before it is replaced.
const TURNS_MAX: usize = 1_000;

/// Builds an in-memory engine.
pub type EngineFactory =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Engine, EngineError>> + Send + Sync>;

/// The current in-memory engine, and how to build the next.
pub struct Scratch {
    state: Mutex<ScratchState>,
}

struct ScratchState {
    source: EngineSource,
    current: Option<Arc<ScratchEngine>>,
}

enum EngineSource {
    Made {
        make: EngineFactory,
        tenant: Name,
        book: Arc<AgentBook>,
    },
    Given(Engine),
}

/// One in-memory engine with its runner. Both stop when the last turn drops it.
pub struct ScratchEngine {
    engine: Engine,
    book: Option<Arc<AgentBook>>,
    /// None if the caller of [`Scratch::given`] runs the agents.
    runner: Option<Runner>,
    turns: AtomicUsize,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl Scratch {
    /// Engines that are built on demand and run the agents of the book.
    pub fn new(make: EngineFactory, tenant: Name, book: Arc<AgentBook>) -> Self {
        Self::of(EngineSource::Made { make, tenant, book })
    }

    /// One given engine for all turns, whose agents the caller runs.
    pub fn given(engine: Engine) -> Self {
        Self::of(EngineSource::Given(engine))
    }

    fn of(source: EngineSource) -> Self {
        let state = ScratchState {
            source,
            current: None,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Replaces the book. Running turns finish with the previous one. No effect on a given engine.
    pub async fn declare(&self, make: EngineFactory, book: Arc<AgentBook>) {
        let state = &mut *self.state.lock().await;
        if let EngineSource::Made {
            make: old_make,
            book: old_book,
            ..
        } = &mut state.source
        {
            (*old_make, *old_book) = (make, book);
            state.current = None;
        }
    }

    /// Returns an engine for one turn.
    ///
    /// # Errors
    ///
    /// If no engine can be started.
    pub async fn enter(&self) -> Result<Arc<ScratchEngine>, RunnerError> {
        let state = &mut *self.state.lock().await;
        if let Some(current) = &state.current
            && current.turns.fetch_add(1, Ordering::Relaxed) < TURNS_MAX
        {
            return Ok(Arc::clone(current));
        }
        let (engine, book, runner) = match &state.source {
            EngineSource::Made { make, tenant, book } => {
                let engine = make().await?;
                let (tenant, declared) = (tenant.clone(), Arc::clone(book));
                // Holds are useless here: the engine is dropped before a person could decide.
                let options = RunnerOptions {
                    asks_people: false,
                    ..RunnerOptions::default()
                };
                let runner = Runner::start(engine.clone(), tenant, declared, options).await?;
                (engine, Some(Arc::clone(book)), Some(runner))
            }
            EngineSource::Given(engine) => (engine.clone(), None, None),
        };
        let current = Arc::new(ScratchEngine {
            engine,
            book,
            runner,
            turns: AtomicUsize::new(1),
        });
        state.current = Some(Arc::clone(&current));
        Ok(current)
    }

    /// Accepts no new turns; running turns finish.
    pub async fn close(&self) {
        self.state.lock().await.current.take();
    }
}

impl ScratchEngine {
    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The agents that it runs. None for a given engine.
    pub fn book(&self) -> Option<&AgentBook> {
        self.book.as_deref()
    }
}

impl Drop for ScratchEngine {
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

    fn make() -> EngineFactory {
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
    async fn an_engine_is_replaced_after_its_turns_and_stops_with_the_last_one() {
        let scratch = scratch();
        let first = scratch.enter().await.expect("an engine");
        for _ in 1..TURNS_MAX {
            let current = scratch.enter().await.expect("an engine");
            assert!(Arc::ptr_eq(&current, &first));
        }
        let next = scratch.enter().await.expect("an engine");
        assert!(!Arc::ptr_eq(&next, &first));
        let engine = first.engine().clone();
        let mut stopped = std::pin::pin!(engine.stopping());
        let is_open = tokio::time::timeout(Duration::ZERO, &mut stopped).await;
        assert!(is_open.is_err(), "a turn still uses it");
        drop(first);
        let over = tokio::time::timeout(Duration::from_secs(10), stopped).await;
        over.expect("no turn uses it");
    }
    #[tokio::test]
    async fn a_turn_after_a_reload_uses_the_new_book() {
        let scratch = scratch();
        let name: Name = "helper".parse().expect("a name");
        let before = scratch.enter().await.expect("an engine");
        let spec = Arc::new(crate::spec::AgentSpec::worker(name.clone()));
        let book = AgentBook {
            agents: [(name.clone(), spec)].into(),
            ..AgentBook::default()
        };
        scratch.declare(make(), Arc::new(book)).await;
        let after = scratch.enter().await.expect("an engine");
        let has_it = |current: &ScratchEngine| {
            let book = current.book().expect("a book");
            book.agent(&name).is_some()
        };
        assert!(!has_it(&before) && has_it(&after));
        let mut stopped = std::pin::pin!(before.engine().stopping());
        let is_open = tokio::time::timeout(Duration::ZERO, &mut stopped).await;
        assert!(is_open.is_err(), "a turn still uses the old one");
    }
}

//! A store and the engines that live on it one after the other.

use std::sync::Arc;
use std::time::Duration;

use statehold_core::command::{Command, StatePatch, StateSet};
use statehold_core::ids::{IdMint, SessionId, Shard};
use statehold_core::record::Event;
use statehold_core::scope::MergePolicy;
use statehold_core::session::Owner;
use statehold_core::time::Timestamp;
use statehold_engine::testing::{self, RawView};
use statehold_engine::{
    Call, Caller, Clock, Engine, EngineError, EngineOptions, IdempotencyKey, MemoryKeys, Payloads,
    Receipt,
};
use statehold_store::memory::MemoryStore;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_store::{PageLimit, Store};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::KeyBug;
use super::judge::{CallBody, HeardAnswer, KeyedCall, LoggedCall};
use super::script::Fate;
use crate::gated::GatedStore;
use crate::rig::StillClock;

/// Where the data is while no process runs.
pub(super) enum Disk {
    Memory(Arc<MemoryStore>),
    Sqlite(TempDir),
}

impl Disk {
    pub(super) fn in_memory() -> Self {
        Self::Memory(Arc::new(MemoryStore::new()))
    }

    pub(super) fn in_a_file() -> Self {
        Self::Sqlite(TempDir::new().expect("a directory"))
    }

    fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::<MemoryStore>::clone(store),
            Self::Sqlite(directory) => {
                // One reader answers in the order of the questions, and `Lives::send` relies on it.
                let options = SqliteOptions {
                    readers: 1,
                    ..SqliteOptions::default()
                };
                Arc::new(SqliteStore::open(directory.path(), options).expect("it opens"))
            }
        }
    }
}

/// One process: everything in it is gone after a crash.
struct ProcessLife {
    engine: Engine,
    store: Arc<GatedStore>,
    /// Dropped last: the tasks of the process end with it.
    runtime: Runtime,
}

/// Two sessions on a disk, and the process that has them now.
pub(super) struct Lives {
    life: Option<ProcessLife>,
    disk: Disk,
    bug: Option<KeyBug>,
    clock: Arc<StillClock>,
    keys: Arc<MemoryKeys>,
    caller: Caller,
    sessions: Vec<SessionId>,
    /// How far the log of each session was read.
    read: Vec<u64>,
}

impl Lives {
    pub(super) fn begin(disk: Disk, bug: Option<KeyBug>) -> Self {
        let mut lives = Self {
            life: None,
            disk,
            bug,
            clock: Arc::new(StillClock::new()),
            keys: Arc::new(MemoryKeys::default()),
            caller: Caller::local("default".parse().expect("a name")),
            sessions: Vec::new(),
            read: Vec::new(),
        };
        lives.start();
        let shard = Shard::of_owner("default", "app", "bob");
        let mut mint = IdMint::new(lives.clock.now(), shard, 7);
        for _ in 0..2 {
            let session = SessionId::from_uuid(mint.next_uuid());
            lives.block_on(lives.create(session));
            lives.sessions.push(session);
            lives.read.push(1);
        }
        lives
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn wait_hours(&self, hours: u32) {
        self.clock.pass_ms(hours * 3_600 * 1_000);
    }

    /// Lets the engine forget answers whose time is over.
    pub(super) fn sweep(&self) {
        let engine = &self.life().engine;
        self.block_on(engine.run_timers(true)).expect("it sweeps");
    }

    /// Ends the process where it is, and starts another.
    pub(super) fn crash(&mut self) {
        self.life = None;
        self.start();
    }

    fn start(&mut self) {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let bug = self.bug.and_then(KeyBug::of_store);
        let store = Arc::new(GatedStore::over(self.disk.open(), bug));
        // Timers run when the script says so.
        let options = EngineOptions {
            tick: Duration::from_hours(1),
            ..EngineOptions::default()
        };
        let engine = Engine::start(
            store.clone(),
            self.keys.clone(),
            self.clock.clone(),
            options,
        );
        let engine = runtime.block_on(engine).expect("it starts");
        self.life = Some(ProcessLife {
            engine,
            store,
            runtime,
        });
    }

    fn life(&self) -> &ProcessLife {
        self.life.as_ref().expect("a process runs")
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.life().runtime.block_on(future)
    }

    async fn create(&self, session: SessionId) {
        let engine = &self.life().engine;
        let tenant = self.caller.tenant.clone();
        let user = engine.user_id(&tenant, "bob").await.expect("a user");
        let create = Command::CreateSession {
            owner: Owner {
                agent: "helper".parse().expect("a name"),
                app: "app".parse().expect("a name"),
                tenant,
                user,
            },
            name: None,
            labels: None,
            state: StatePatch::default(),
            ttl: None,
            hidden_ttl_ms: None,
        };
        let (call, payloads) = (Call::by(self.caller.clone()), Payloads::none());
        let done = testing::commit(engine, session, &call, (&create, &payloads), None);
        done.await.expect("it begins");
    }

    /// Makes calls that are under way together, and returns the end of each.
    pub(super) fn call(&mut self, asks: &[KeyedCall], fate: Fate) -> Vec<(KeyedCall, HeardAnswer)> {
        let heard = self.block_on(self.call_together(asks, fate));
        if matches!(fate, Fate::CrashBefore | Fate::CrashAfter) {
            self.crash();
        }
        asks.iter().copied().zip(heard).collect()
    }

    async fn call_together(&self, asks: &[KeyedCall], fate: Fate) -> Vec<HeardAnswer> {
        let store = &self.life().store;
        let unheard = || vec![HeardAnswer::Nothing; asks.len()];
        store.set_open(false);
        let mut calls = self.send(asks).await;
        match fate {
            Fate::Answered | Fate::CrashAfter => {}
            Fate::Abandoned => {
                calls.iter().for_each(JoinHandle::abort);
                calls = self.send(asks).await;
            }
            Fate::Full => store.fail_next(),
            Fate::CrashBefore => return unheard(),
        }
        store.set_open(true);
        if fate == Fate::CrashAfter {
            store.drained().await;
            return unheard();
        }
        let mut heard = Vec::new();
        for call in calls {
            heard.push(heard_of(call.await.expect("no panic")));
        }
        store.drained().await;
        store.fail_at(0);
        heard
    }

    /// Sends calls, and waits until each is in line, waits for another, or is answered.
    async fn send(
        &self,
        asks: &[KeyedCall],
    ) -> Vec<JoinHandle<Result<Receipt<RawView>, EngineError>>> {
        let mut calls = Vec::new();
        for ask in asks {
            calls.push(self.send_one(*ask).await);
        }
        for _ in 0..12 {
            let store = &self.life().store;
            store.last_place().await.expect("it answers");
            for _ in 0..12 {
                tokio::task::yield_now().await;
            }
        }
        calls
    }

    async fn send_one(&self, ask: KeyedCall) -> JoinHandle<Result<Receipt<RawView>, EngineError>> {
        let engine = self.life().engine.clone();
        let tenant = &self.caller.tenant;
        let session = self.sessions[usize::from(ask.session)];
        let payloads = testing::payloads(&engine, session).await;
        let mut payloads = payloads.expect("keys");
        let name = state_key(ask).parse().expect("a state key");
        let mut patch = StatePatch::default();
        if ask.body == CallBody::Refused {
            // No value ever has this version.
            patch
                .if_versions
                .insert(state_key(ask).parse().expect("a state key"), u64::MAX);
        }
        patch.set.push(StateSet {
            key: name,
            value: payloads.put(b"1".to_vec()),
            merge: MergePolicy::default(),
        });
        let text = format!("{session} {:?}", ask.body);
        let fingerprint = match self.bug {
            Some(KeyBug::ForgetsTheBody) => "a call",
            Some(KeyBug::OfStore(_)) | None => text.as_str(),
        };
        let key = ask.key.to_string();
        let principal = self.caller.principal;
        let call = Call {
            key: Some(IdempotencyKey::new(
                tenant,
                principal,
                &key,
                &[fingerprint.as_bytes()],
            )),
            ..Call::by(self.caller.clone())
        };
        let command = Command::PutState { patch, by: None };
        tokio::spawn(async move {
            testing::commit(&engine, session, &call, (&command, &payloads), None).await
        })
    }

    /// The records that calls have left in the log since the last look.
    pub(super) fn effects(&mut self) -> Vec<LoggedCall> {
        let mut found = Vec::new();
        for session in 0..self.sessions.len() {
            let store = &self.life().store;
            let records = store.records(
                self.sessions[session],
                self.read[session],
                PageLimit::entries(1_000),
            );
            for stored in self.block_on(records).expect("it reads") {
                let content = &stored.record.content;
                self.read[session] = content.seq;
                for event in &content.events {
                    if let Event::StatePut { key, .. } = event {
                        let session = u8::try_from(session).expect("two sessions");
                        found.push(LoggedCall {
                            ask: asked(key.as_str(), session),
                            revision: content.seq,
                        });
                    }
                }
            }
        }
        found
    }
}

/// The state key that a call writes: it says in the log which call it was.
fn state_key(ask: KeyedCall) -> String {
    let body = match ask.body {
        CallBody::Plain => "plain",
        CallBody::Other => "other",
        CallBody::Refused => "refused",
    };
    format!("{body}_{}", ask.key)
}

/// The call that wrote a state key.
fn asked(key: &str, session: u8) -> KeyedCall {
    let (body, number) = key.split_once('_').expect("a key of a call");
    KeyedCall {
        key: number.parse().expect("a number"),
        session,
        body: match body {
            "plain" => CallBody::Plain,
            "other" => CallBody::Other,
            _ => CallBody::Refused,
        },
    }
}

fn heard_of(result: Result<Receipt<RawView>, EngineError>) -> HeardAnswer {
    match result {
        Ok(done) => HeardAnswer::Done {
            revision: done.revision,
            body: done.body,
            replayed: done.replayed,
        },
        Err(EngineError::KeyReused) => HeardAnswer::Reused,
        Err(EngineError::Rejected(_)) => HeardAnswer::Refused,
        Err(EngineError::Full) => HeardAnswer::Full,
        Err(other) => panic!("{other}"),
    }
}

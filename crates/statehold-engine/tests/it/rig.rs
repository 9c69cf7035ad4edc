//! An engine with everything that a test wants to hold in its hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use statehold_core::command::{Command, Fenced, StartRequest, StatePatch};
use statehold_core::ids::{IdMint, RequestId, SessionId, Shard};
use statehold_core::record::RecordContent;
use statehold_core::session::{Owner, TimeToLive};
use statehold_core::task::CloseOn;
use statehold_core::time::Timestamp;
use statehold_engine::PageLimit;
use statehold_engine::testing::{self, RawView};
use statehold_engine::{
    Call, Caller, Clock, Credential, Engine, EngineError, EngineOptions, MemoryKeys, Payloads,
    Receipt, TurnMemories,
};

use crate::gated::GatedStore;

/// A clock that goes on only when it is told to.
#[derive(Debug)]
pub(crate) struct StillClock {
    micros: AtomicI64,
    steady_ms: AtomicU64,
}

impl StillClock {
    pub(crate) fn new() -> Self {
        Self {
            micros: AtomicI64::new(1_000_000_000_000),
            steady_ms: AtomicU64::new(0),
        }
    }

    pub(crate) fn pass_ms(&self, ms: u32) {
        self.step_ms(i64::from(ms));
        self.steady_ms.fetch_add(u64::from(ms), Ordering::SeqCst);
    }

    /// Sets the clock forward or back. No time passes.
    pub(crate) fn step_ms(&self, ms: i64) {
        self.micros.fetch_add(ms * 1_000, Ordering::SeqCst);
    }
}

impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.load(Ordering::SeqCst))
    }

    fn steady(&self) -> Duration {
        Duration::from_millis(self.steady_ms.load(Ordering::SeqCst))
    }
}

pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) store: Arc<GatedStore>,
    pub(crate) clock: Arc<StillClock>,
    pub(crate) caller: Caller,
    pub(crate) session: SessionId,
}

impl Rig {
    /// An engine with one session.
    pub(crate) async fn new(ttl: Option<TimeToLive>) -> Self {
        Self::with(ttl, EngineOptions::default().hot_sessions).await
    }

    /// An engine that keeps so many sessions in memory.
    pub(crate) async fn with_hot_sessions(hot_sessions: usize) -> Self {
        Self::with(None, hot_sessions).await
    }

    async fn with(ttl: Option<TimeToLive>, hot_sessions: usize) -> Self {
        let store = Arc::new(GatedStore::new());
        let clock = Arc::new(StillClock::new());
        let options = EngineOptions {
            hot_sessions,
            ..EngineOptions::default()
        };
        Self::start_on(store, clock, options, ttl).await
    }

    /// An engine whose turns share this memory.
    pub(crate) async fn with_turn_memory(turn_memories: TurnMemories) -> Self {
        let (store, clock) = (Arc::new(GatedStore::new()), Arc::new(StillClock::new()));
        let options = EngineOptions {
            turn_memories,
            ..EngineOptions::default()
        };
        Self::start_on(store, clock, options, None).await
    }

    async fn start_on(
        store: Arc<GatedStore>,
        clock: Arc<StillClock>,
        options: EngineOptions,
        ttl: Option<TimeToLive>,
    ) -> Self {
        let engine = start(&store, &clock, options).await;
        let tenant = "default".parse().expect("a name");
        let shard = Shard::of_owner("default", "app", "bob");
        let mut mint = IdMint::new(clock.now(), shard, 7);
        let rig = Self {
            engine,
            store,
            clock,
            caller: Caller::local(tenant),
            session: SessionId::from_uuid(mint.next_uuid()),
        };
        rig.begin(rig.session, "bob", ttl).await;
        // A new key is made on another thread: later that would be a wait of its own.
        rig.payloads().await;
        rig
    }

    async fn begin(&self, session: SessionId, user: &str, ttl: Option<TimeToLive>) {
        let tenant = self.caller.tenant.clone();
        let user = self.engine.user_id(&tenant, user).await.expect("a user");
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
            ttl,
            hidden_ttl_ms: None,
        };
        let (call, payloads) = (Call::by(self.caller.clone()), Payloads::none());
        let command = (&create, &payloads);
        let begun = testing::commit(&self.engine, session, &call, command, None).await;
        begun.expect("it begins");
    }

    /// The n-th further session, of any user.
    pub(crate) async fn another(&self, n: u64, user: &str, ttl: Option<TimeToLive>) -> SessionId {
        let shard = Shard::of_owner("default", "app", user);
        let mut mint = IdMint::new(self.clock.now(), shard, 1_000 + n);
        let session = SessionId::from_uuid(mint.next_uuid());
        self.begin(session, user, ttl).await;
        session
    }

    /// Another engine on the same store, as after a restart.
    pub(crate) async fn restart(&mut self) {
        self.engine.shut_down().await;
        self.engine = start(&self.store, &self.clock, EngineOptions::default()).await;
    }

    pub(crate) async fn payloads(&self) -> Payloads {
        let payloads = testing::payloads(&self.engine, self.session).await;
        payloads.expect("keys are there")
    }

    /// Sends a command without payloads.
    pub(crate) async fn send(&self, command: &Command) -> Result<Receipt<RawView>, EngineError> {
        let payloads = Payloads::none();
        let call = Call::by(self.caller.clone());
        testing::commit(
            &self.engine,
            self.session,
            &call,
            (command, &payloads),
            None,
        )
        .await
    }

    /// Sends a command that `make` builds with its payloads.
    pub(crate) async fn submit(
        &self,
        make: impl FnOnce(&mut Payloads) -> Command,
    ) -> Result<Receipt<RawView>, EngineError> {
        let call = Call::by(self.caller.clone());
        self.submit_as(&call, None, make).await
    }

    pub(crate) async fn submit_as(
        &self,
        call: &Call,
        credential: Option<&Credential>,
        make: impl FnOnce(&mut Payloads) -> Command,
    ) -> Result<Receipt<RawView>, EngineError> {
        let mut payloads = self.payloads().await;
        let command = make(&mut payloads);
        let command = (&command, &payloads);
        testing::commit(&self.engine, self.session, call, command, credential).await
    }

    /// Starts a request, with a lease if one is asked for.
    pub(crate) async fn start(
        &self,
        lease_ttl_ms: Option<u64>,
    ) -> Result<Receipt<RawView>, EngineError> {
        self.start_for("helper", lease_ttl_ms).await
    }

    /// The same for any agent.
    pub(crate) async fn start_for(
        &self,
        agent: &str,
        lease_ttl_ms: Option<u64>,
    ) -> Result<Receipt<RawView>, EngineError> {
        self.submit(|payloads| start_of(agent, payloads, lease_ttl_ms))
            .await
    }

    /// The records from a revision on.
    pub(crate) async fn records_from(&self, revision: u64) -> Vec<RecordContent> {
        let feed = self.engine.feed(
            &self.caller,
            self.session,
            revision - 1,
            PageLimit::entries(100),
        );
        let entries = feed.await.expect("records");
        let records = entries.into_iter();
        records.map(|entry| entry.stored.record.content).collect()
    }

    pub(crate) async fn revision(&self) -> u64 {
        let found = self.engine.session(&self.caller, self.session).await;
        found.expect("it is there").revision
    }
}

async fn start(store: &Arc<GatedStore>, clock: &Arc<StillClock>, options: EngineOptions) -> Engine {
    // Timers run when a test says so.
    let options = EngineOptions {
        tick: Duration::from_hours(1),
        ..options
    };
    let keys = Arc::new(MemoryKeys::default());
    let engine = Engine::start(store.clone(), keys, clock.clone(), options).await;
    engine.expect("it starts")
}

/// The command that starts a request to the agent of the session.
pub(crate) fn start_helper(payloads: &mut Payloads, lease_ttl_ms: Option<u64>) -> Command {
    start_of("helper", payloads, lease_ttl_ms)
}

fn start_of(agent: &str, payloads: &mut Payloads, lease_ttl_ms: Option<u64>) -> Command {
    Command::StartRequest(StartRequest {
        chat: None,
        continues: None,
        agent: agent.parse().expect("a name"),
        task: None,
        parent: None,
        input: payloads.put(br#"{"content":"hello"}"#.to_vec()),
        attachments: Vec::new(),
        close_on: CloseOn::Never,
        lease_ttl_ms,
        items: Vec::new(),
        state: StatePatch::default(),
        output: None,
    })
}

/// The request that a start made.
pub(crate) fn request_of(done: &Receipt<RawView>) -> RequestId {
    done.view.request.expect("a request")
}

pub(crate) fn fenced(request: RequestId, fence: u64) -> Fenced {
    Fenced { request, fence }
}

//! Stores to be damaged, copied and filled: what was written to them, and all that they say.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use statehold_core::command::{
    Command, Context, Fenced, LoadedFacts, Outcome, Past, Rejection, StartRequest, StatePatch,
    StateSet,
};
use statehold_core::decide::decide;
use statehold_core::digest::{BodyRef, Digest, PayloadKey};
use statehold_core::hold::{CallTarget, HoldKind, NewHold, OnExpiry};
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId};
use statehold_core::item::{ItemKind, NewCallMark, NewItem, Visibility};
use statehold_core::principal::Actor;
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::record::Record;
use statehold_core::scope::{MergePolicy, Scope, StateKey};
use statehold_core::session::SessionState;
use statehold_core::time::Timestamp;
use statehold_model::fixtures;
use statehold_store::keys::{KeyFile, KeyOwner, PayloadKeys, UserKey};
use statehold_store::sqlite::{CheckReport, FILE_NAME, SqliteOptions, SqliteStore};
use statehold_store::{
    Commit, Due, HoldOrder, HoldQuery, HoldSummary, ItemQuery, KeyRange, PageLimit, SessionOrder,
    SessionQuery, SessionSummary, SharedOwner, SharedValue, StateValue, Store, StoreError,
    StoredItem, StoredRecord,
};
use statehold_testkit::workload::{Client, ClientKeys, session_id};
use uuid::Uuid;

/// The run whose session ids are used everywhere here.
pub(crate) const RUN: u64 = 29;

/// Waits for a future on this thread.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// A new data directory with the keys of [`ClientKeys::default`], the same in every run.
pub(crate) fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    write_keys(directory.path());
    directory
}

/// Writes the key file, so that a check can verify payloads.
pub(crate) fn write_keys(directory: &Path) {
    let (owner, keys) = (fixtures::owner(), ClientKeys::default());
    let owners = [
        (KeyOwner::User(owner.user), keys.user),
        (KeyOwner::Tenant(owner.tenant), keys.tenant),
    ];
    let file = KeyFile::open(directory).expect("keys can be kept");
    for (owner, key) in owners {
        let key = UserKey::of(key, Timestamp::from_micros(0));
        file.keep(&owner, &key).expect("the disk has room");
    }
}

/// A key in hexadecimal digits.
pub(crate) fn spelled(key: &PayloadKey) -> String {
    let mut digits = String::new();
    for byte in key.expose() {
        write!(digits, "{byte:02x}").expect("text takes everything");
    }
    digits
}

/// The data file of a directory.
pub(crate) fn data_file(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

/// The log beside the data file.
pub(crate) fn log_file(directory: &Path) -> PathBuf {
    directory.join(format!("{FILE_NAME}-wal"))
}

/// Options for tests: one reader, and a stop that ends the test instead of the process.
pub(crate) fn options() -> SqliteOptions {
    SqliteOptions {
        readers: 1,
        on_stop: Arc::new(|error| panic!("the store stopped: {error:?}")),
        ..SqliteOptions::default()
    }
}

/// Opens a data directory that is fine.
pub(crate) fn open(directory: &Path) -> SqliteStore {
    SqliteStore::open(directory, options()).expect("the data is fine")
}

/// Checks a data directory.
pub(crate) fn check(directory: &Path) -> Result<CheckReport, StoreError> {
    SqliteStore::check(directory, &mut |_, _| {})
}

/// Checks a data directory in which nothing may be wrong.
pub(crate) fn require_clean(directory: &Path) -> CheckReport {
    let report = check(directory).expect("it can be checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    report
}

/// An error with everything below it, in one line.
pub(crate) fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        write!(text, ": {inner}").expect("text takes everything");
        source = inner.source();
    }
    text
}

/// A session with its client, for commands that the workload does not have.
pub(crate) struct Author {
    pub(crate) client: Client,
    payloads: BTreeMap<Digest, Vec<u8>>,
}

impl Author {
    /// The n-th session, still to be created.
    pub(crate) fn new(n: u64) -> Self {
        Self {
            client: Client::new(session_id(RUN, n), ClientKeys::default(), n),
            payloads: BTreeMap::new(),
        }
    }

    /// The n-th session, created.
    pub(crate) async fn begin(store: &SqliteStore, n: u64) -> Self {
        let mut author = Self::new(n);
        let create = author.client.create();
        author.send(store, &create, fixtures::client()).await;
        author
    }

    /// The session.
    pub(crate) fn session(&self) -> SessionId {
        self.client.state.session
    }

    /// A command of the workload, which must be taken.
    pub(crate) async fn send(&mut self, store: &SqliteStore, command: &Command, actor: Actor) {
        let sent = self.client.send(store, command, actor).await;
        sent.expect("the workload is never refused");
    }

    pub(crate) async fn turn(&mut self, store: &SqliteStore) {
        let turn = self.client.turn();
        self.send(store, &turn, fixtures::worker(1)).await;
    }

    pub(crate) async fn count(&mut self, store: &SqliteStore) {
        let count = self.client.count();
        self.send(store, &count, fixtures::client()).await;
    }

    pub(crate) async fn pause_step(&mut self, store: &SqliteStore) {
        let (step, actor) = self.client.pause_step();
        self.send(store, &step, actor).await;
    }

    /// A payload of our own.
    pub(crate) fn body(&mut self, payload: &str) -> BodyRef {
        self.body_under(&ClientKeys::default().user, payload)
    }

    fn body_under(&mut self, key: &PayloadKey, payload: &str) -> BodyRef {
        let body = BodyRef::of(key, payload.as_bytes());
        self.payloads.insert(body.digest, payload.into());
        body
    }

    /// A command of our own, decided but not committed.
    pub(crate) fn prepare(
        &mut self,
        command: &Command,
        actor: Actor,
        past: Option<Past>,
    ) -> Result<Commit, Rejection> {
        let state = &self.client.state;
        let ctx = Context {
            now: state.last_at.plus_ms(1),
            actor,
            entropy: self.client.random.next_u64(),
            leases: BTreeMap::new(),
            loaded: LoadedFacts {
                past,
                ..LoadedFacts::default()
            },
        };
        let Outcome::Commit(record) = decide(state, command, &ctx)? else {
            panic!("no deadlines and no keys here");
        };
        let bodies = record.bodies();
        let bodies = bodies
            .iter()
            .map(|body| self.payloads[&body.digest].clone());
        Ok(Commit::new(state, record, bodies.collect()).expect("the payloads are its own"))
    }

    /// A command of our own, which must be taken.
    pub(crate) async fn own(&mut self, store: &SqliteStore, command: &Command, actor: Actor) {
        self.own_after(store, command, actor, None).await;
    }

    async fn own_after(
        &mut self,
        store: &SqliteStore,
        command: &Command,
        actor: Actor,
        past: Option<Past>,
    ) {
        let commit = self.prepare(command, actor, past).expect("allowed");
        let after = commit.after.clone();
        store.commit(commit).await.expect("committed");
        self.client.state = after;
    }

    /// Writes one key.
    pub(crate) async fn put(&mut self, store: &SqliteStore, key: &str, value: &str) {
        let put = self.putting(key, value);
        self.own(store, &put, fixtures::client()).await;
    }

    /// The command that writes one key.
    pub(crate) fn putting(&mut self, key: &str, value: &str) -> Command {
        let key: StateKey = key.parse().expect("a fixture key");
        let keys = ClientKeys::default();
        let owner = if key.scope() == Scope::App {
            keys.tenant
        } else {
            keys.user
        };
        let set = StateSet {
            value: self.body_under(&owner, value),
            key,
            merge: MergePolicy::Replace,
        };
        let patch = StatePatch {
            set: vec![set],
            ..StatePatch::default()
        };
        Command::PutState { patch, by: None }
    }

    /// Begins a request that runs under a lease.
    pub(crate) async fn run(&mut self, store: &SqliteStore, agent: &str) -> Fenced {
        let start = StartRequest {
            input: self.body("what is the answer?"),
            lease_ttl_ms: Some(30_000),
            ..fixtures::start(agent)
        };
        self.own(store, &Command::StartRequest(start), fixtures::worker(1))
            .await;
        let live = self.client.state.requests.values().last();
        let live = live.expect("it has just been started");
        Fenced {
            request: live.id,
            fence: live.fence,
        }
    }

    /// Leaves a request waiting for a worker.
    pub(crate) async fn queue(&mut self, store: &SqliteStore, agent: &str) {
        let start = StartRequest {
            input: self.body("is anybody there?"),
            ..fixtures::start(agent)
        };
        self.own(store, &Command::StartRequest(start), fixtures::client())
            .await;
    }

    async fn append(&mut self, store: &SqliteStore, by: Fenced, text: &str) {
        let note = NewItem {
            kind: ItemKind::ToolCall,
            visibility: Visibility::Hidden,
            role: None,
            body: self.body(text),
            attachments: Vec::new(),
            call: Some(NewCallMark::Call {
                idempotent: true,
                gated: false,
            }),
        };
        let append = Command::AppendItems {
            by,
            items: vec![note],
            state: StatePatch::default(),
            task_state: Some(self.body("{\"memory\":\"of the agent\"}")),
        };
        self.own(store, &append, fixtures::worker(1)).await;
    }

    pub(crate) async fn hold(&mut self, store: &SqliteStore, by: Fenced) {
        let gated = NewItem {
            kind: ItemKind::ToolCall,
            visibility: Visibility::Hidden,
            role: None,
            body: self.body("{\"amount\":7}"),
            attachments: Vec::new(),
            call: Some(NewCallMark::Call {
                idempotent: false,
                gated: true,
            }),
        };
        let id = HoldId::from_uuid(Uuid::from_u64_pair(0x7000, 0x8000_0000_0000_00ff));
        let hold = NewHold {
            id,
            kind: HoldKind::Approval,
            body: self.body("{\"title\":\"Pay 7\"}"),
            call: Some(CallTarget::SameCommand(0)),
            digest: Some(fixtures::digest("pay 7")),
            allowed: [].into(),
            need: 1,
            expires_in_ms: Some(3_600_000),
            on_expiry: OnExpiry::Reject,
            decide_by: None,
            effect: None,
            risk: None,
            policy: None,
        };
        let items = vec![gated];
        let open = Command::OpenHold { by, hold, items };
        self.own(store, &open, fixtures::worker(1)).await;
    }

    async fn rewind(&mut self, store: &SqliteStore, to: u64) {
        let past = store.load_at(self.session(), to).await.expect("reads");
        let past = past.expect("the revision is in the past");
        let mut past = Past::from(&past);
        let kept = store
            .kept_revision(self.session(), to)
            .await
            .expect("reads");
        let kept = store.load_at(self.session(), kept).await.expect("reads");
        past.memories = kept.expect("the revision is in the past").memories;
        let rewind = Command::Rewind { to };
        self.own_after(store, &rewind, fixtures::client(), Some(past))
            .await;
    }

    /// A session that goes on from an earlier revision of this one.
    async fn fork(&self, store: &SqliteStore, n: u64, at: u64) -> Self {
        let origin = store.load_at(self.session(), at).await.expect("reads");
        let mut fork = Self::new(n);
        let session = fork.session();
        fork.client.state = origin.expect("the revision is in the past");
        fork.own(
            store,
            &Command::Fork {
                session,
                through: None,
            },
            fixtures::client(),
        )
        .await;
        fork
    }
}

/// Something of everything: whole turns past a waypoint, pauses, a rewind, a fork with a turn of
/// its own, a blob, compressed and plain payloads, shared keys, and requests that run, wait and are
/// held.
pub(crate) async fn fill(store: &SqliteStore) {
    let mut long = Author::begin(store, 0).await;
    for _ in 0..4 {
        long.turn(store).await;
        long.count(store).await;
    }
    for _ in 0..4 {
        long.pause_step(store).await;
    }
    for n in 0..64 {
        long.put(store, "lap", &n.to_string()).await;
    }
    let mut rewound = Author::begin(store, 1).await;
    rewound.put(store, "mood", "\"calm\"").await;
    rewound.turn(store).await;
    rewound.put(store, "mood", "\"tense\"").await;
    rewound.turn(store).await;
    rewound.rewind(store, 3).await;
    rewound.turn(store).await;
    let mut fork = rewound.fork(store, 2, 6).await;
    fork.turn(store).await;
    fork.put(store, "user:theme", "\"dark\"").await;
    let mut busy = Author::begin(store, 3).await;
    let by = busy.run(store, "leaf").await;
    let blob = busy.client.random.text(70_000);
    busy.append(store, by, &blob).await;
    busy.append(store, by, &"the same again, ".repeat(40)).await;
    busy.queue(store, "other").await;
    let mut held = Author::begin(store, 4).await;
    let by = held.run(store, "leaf").await;
    held.hold(store, by).await;
    let mut closed = Author::begin(store, 5).await;
    closed.turn(store).await;
    let close = Command::CloseSession { cancel_live: true };
    closed.own(store, &close, fixtures::client()).await;
}

/// What to ask a store for, found in a file that is known to be whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ids {
    sessions: Vec<SessionId>,
    requests: Vec<RequestId>,
    live_requests: usize,
    tasks: Vec<TaskId>,
    holds: Vec<HoldId>,
}

impl Ids {
    /// How many requests have not ended.
    pub(crate) fn live_requests(&self) -> usize {
        self.live_requests
    }

    pub(crate) fn of(directory: &Path) -> Self {
        let conn = rusqlite::Connection::open(data_file(directory)).expect("a file");
        let ids = |tables: &[&str]| -> Vec<Uuid> {
            let mut found = Vec::new();
            for table in tables {
                let sql = format!("SELECT id FROM {table} ORDER BY id");
                let mut statement = conn.prepare(&sql).expect("a table");
                let rows = statement.query_map([], |row| row.get::<_, Vec<u8>>(0));
                found.extend(
                    rows.expect("rows")
                        .map(|id| Uuid::from_slice(&id.expect("a row")).expect("sixteen bytes")),
                );
            }
            found
        };
        let of = |tables: &[&str]| ids(tables).into_iter();
        Self {
            sessions: of(&["session"]).map(SessionId::from_uuid).collect(),
            live_requests: of(&["live_request"]).len(),
            requests: of(&["live_request", "ended_request"])
                .map(RequestId::from_uuid)
                .collect(),
            tasks: of(&["open_task", "closed_task"])
                .map(TaskId::from_uuid)
                .collect(),
            holds: of(&["open_hold", "closed_hold"])
                .map(HoldId::from_uuid)
                .collect(),
        }
    }
}

/// Everything that a store says, as far as anybody can ask.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    sessions: Vec<SessionSummary>,
    of_session: Vec<SessionPicture>,
    tasks: Vec<TaskPicture>,
    requests: Vec<(Option<SessionId>, Option<EndedRequest>)>,
    holds: Vec<(Option<SessionId>, Option<ClosedHold>)>,
    shared: Vec<BTreeMap<StateKey, SharedValue>>,
    open_holds: Vec<HoldSummary>,
    claimable: Vec<Vec<(SessionId, RequestId)>>,
    due: Vec<Due>,
}

#[derive(Debug, PartialEq, Eq)]
struct TaskPicture {
    session: Option<SessionId>,
    closed: Option<ClosedTask>,
    state: Option<Vec<u8>>,
    items: Vec<StoredItem>,
}

#[derive(Debug, PartialEq, Eq)]
struct SessionPicture {
    state: Option<SessionState>,
    halfway: Option<SessionState>,
    records: Vec<StoredRecord>,
    /// Read from the middle, so that the waypoints are used.
    page: Vec<StoredRecord>,
    items: Vec<StoredItem>,
    items_page: Vec<StoredItem>,
    values: BTreeMap<StateKey, StateValue>,
    earlier_values: Vec<Option<Vec<u8>>>,
}

impl Picture {
    pub(crate) async fn of(store: &SqliteStore, ids: &Ids) -> Result<Self, StoreError> {
        let owner = fixtures::owner();
        let tenant = owner.tenant.clone();
        let mut of_session = Vec::new();
        for session in &ids.sessions {
            of_session.push(SessionPicture::of(store, *session).await?);
        }
        let mut tasks = Vec::new();
        for task in &ids.tasks {
            tasks.push(TaskPicture::of(store, *task).await?);
        }
        let mut requests = Vec::new();
        for request in &ids.requests {
            let session = store.session_of_request(*request).await?;
            requests.push((session, store.ended_request(*request).await?));
        }
        let mut holds = Vec::new();
        for hold in &ids.holds {
            let session = store.session_of_hold(*hold).await?;
            holds.push((session, store.closed_hold(*hold).await?));
        }
        let mut shared = Vec::new();
        for scope in [Scope::App, Scope::User] {
            shared.push(
                store
                    .shared(
                        SharedOwner::of(&owner, scope),
                        KeyRange::default(),
                        PageLimit::entries(usize::MAX),
                    )
                    .await?
                    .values,
            );
        }
        let mut claimable = Vec::new();
        for agent in ["coordinator", "leaf", "other"] {
            let agent = fixtures::name(agent);
            claimable.push(
                store
                    .claimable(tenant.clone(), agent, None, None, 100)
                    .await?,
            );
        }
        let sessions = SessionQuery {
            tenant: tenant.clone(),
            app: Some(owner.app),
            user: Some(owner.user),
            order: SessionOrder::Created,
            after: None,
            limit: 100,
        };
        let open_holds = HoldQuery {
            tenant,
            user: None,
            session: None,
            order: HoldOrder::Urgency,
            after: None,
            limit: 100,
        };
        Ok(Self {
            sessions: store.sessions(sessions).await?,
            of_session,
            tasks,
            requests,
            holds,
            shared,
            open_holds: store.open_holds(open_holds).await?,
            claimable,
            due: store
                .due(Timestamp::from_micros(i64::MAX), None, 100)
                .await?
                .due,
        })
    }
}

impl TaskPicture {
    async fn of(store: &SqliteStore, task: TaskId) -> Result<Self, StoreError> {
        let session = store.session_of_task(task).await?;
        let query = ItemQuery {
            task: Some(task),
            before: None,
            limit: PageLimit::entries(1_000),
        };
        let items = match session {
            Some(session) => store.items(session, query).await?.0,
            None => Vec::new(),
        };
        Ok(Self {
            session,
            closed: store.closed_task(task).await?,
            state: store.task_state(task).await?,
            items,
        })
    }
}

impl SessionPicture {
    async fn of(store: &SqliteStore, session: SessionId) -> Result<Self, StoreError> {
        let query = ItemQuery {
            task: None,
            before: None,
            limit: PageLimit::entries(1_000),
        };
        let paged = ItemQuery {
            before: Some(5),
            ..query
        };
        let values = store
            .state(session, KeyRange::default(), PageLimit::entries(usize::MAX))
            .await?
            .values;
        let mut earlier_values = Vec::new();
        for key in values.keys() {
            earlier_values.push(store.state_at(session, key.clone(), 5).await?);
        }
        Ok(Self {
            state: store.load(session).await?,
            halfway: store.load_at(session, 2).await?,
            records: store.records(session, 0, PageLimit::entries(1_000)).await?,
            page: store.records(session, 2, PageLimit::entries(2)).await?,
            items: store.items(session, query).await?.0,
            items_page: store.items(session, paged).await?.0,
            values,
            earlier_values,
        })
    }
}

impl Picture {
    /// Every record that was read.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        let pages = self.of_session.iter();
        let pages = pages.flat_map(|of| [&of.records, &of.page]);
        pages.flatten().map(|stored| &stored.record)
    }
}

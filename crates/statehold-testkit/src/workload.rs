//! What sessions do in crash runs and benchmarks: turns as the peers' benchmark has them, and pauses.

use std::collections::BTreeMap;

use statehold_core::command::{
    Command, Context, Fenced, LoadedFacts, Outcome, Output, StartRequest, StatePatch, StateSet,
};
use statehold_core::decide::decide;
use statehold_core::digest::{BodyRef, Digest, PayloadKey};
use statehold_core::hold::{CallTarget, DecisionKind, HoldKind, NewDecision, NewHold, OnExpiry};
use statehold_core::ids::{HoldId, SessionId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, NewItem, Visibility};
use statehold_core::principal::Actor;
use statehold_core::record::Record;
use statehold_core::scope::{MergePolicy, Scope, StateKey};
use statehold_core::session::{Owner, SessionState};
use statehold_core::task::CloseOn;
use statehold_core::time::Timestamp;
use statehold_model::fixtures;
use statehold_store::suite::driver::{Refusal, merge};
use statehold_store::{Commit, Store, StoreError};
use uuid::Uuid;

const PLEASE: &str = "please delete user 7; ";

/// A small, fast and repeatable source of numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end.max(1)
    }

    /// Text of `bytes` bytes that does not compress: six random bits in each byte, as base64 has.
    pub fn text(&mut self, bytes: usize) -> String {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut text = String::with_capacity(bytes + 10);
        while text.len() < bytes {
            let mut bits = self.next_u64();
            for _ in 0..10 {
                text.push(char::from(LETTERS[(bits & 63) as usize]));
                bits >>= 6;
            }
        }
        text.truncate(bytes);
        text
    }
}

/// One session and the little engine that drives it: decide, commit, fold.
#[derive(Debug)]
pub struct Client {
    /// The state after the last commit.
    pub state: SessionState,
    /// The randomness of this client.
    pub random: Random,
    /// Bytes of payload sent so far.
    pub payload_bytes: usize,
    keys: ClientKeys,
    payloads: BTreeMap<Digest, Vec<u8>>,
    now: Timestamp,
}

/// The keys under which a client's payloads are digested.
#[derive(Debug, Clone)]
pub struct ClientKeys {
    /// For everything of the user.
    pub user: PayloadKey,
    /// For `app:` values.
    pub tenant: PayloadKey,
}

impl Default for ClientKeys {
    fn default() -> Self {
        let tenant = PayloadKey::from_bytes([9; 32]);
        Self {
            user: fixtures::PAYLOAD_KEY,
            tenant,
        }
    }
}

/// What a client may run into.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The core refused, which the workload never provokes.
    #[error("the core refused: {0}")]
    Refused(statehold_core::command::Rejection),
    /// The store did not commit.
    #[error("the store did not commit")]
    Store(#[from] StoreError),
    /// A shared value was not merged, which the workload never provokes.
    #[error("the shared values were not merged: {0:?}")]
    Merge(Refusal),
}

impl Client {
    /// A client of a session that does not exist yet.
    pub fn new(session: SessionId, keys: ClientKeys, seed: u64) -> Self {
        Self::resume(SessionState::new(session), keys, seed)
    }

    /// A client that goes on with a session as the store has it.
    pub fn resume(state: SessionState, keys: ClientKeys, seed: u64) -> Self {
        let now = state
            .last_at
            .max(Timestamp::from_micros(1_700_000_000_000_000));
        let (random, payloads) = (Random::new(seed), BTreeMap::new());
        Self {
            state,
            random,
            payload_bytes: 0,
            keys,
            payloads,
            now,
        }
    }

    fn body(&mut self, payload: String) -> BodyRef {
        let key = self.keys.user.clone();
        self.body_under(&key, payload)
    }

    fn body_under(&mut self, key: &PayloadKey, payload: String) -> BodyRef {
        let body = BodyRef::of(key, payload.as_bytes());
        self.payload_bytes += payload.len();
        self.payloads.insert(body.digest, payload.into_bytes());
        body
    }

    /// Decides a command on the state as it is, and prepares its commit.
    ///
    /// # Panics
    ///
    /// If the command names payloads that this client did not make.
    ///
    /// # Errors
    ///
    /// If the core refuses.
    pub fn prepare(&mut self, command: &Command, actor: Actor) -> Result<Commit, ClientError> {
        let (record, bodies) = self.decide(command, actor)?;
        Ok(Commit::new(&self.state, record, bodies).expect("the payloads are its own"))
    }

    /// The record that a command comes to, with its payloads.
    fn decide(
        &mut self,
        command: &Command,
        actor: Actor,
    ) -> Result<(Record, Vec<Vec<u8>>), ClientError> {
        self.now = self.now.plus_ms(1);
        let ctx = Context {
            now: self.now,
            actor,
            entropy: self.random.next_u64(),
            leases: BTreeMap::new(),
            loaded: LoadedFacts::default(),
        };
        let outcome = decide(&self.state, command, &ctx).map_err(ClientError::Refused)?;
        let Outcome::Commit(record) = outcome else {
            unreachable!("the workload has no deadlines and no keys")
        };
        let payloads = &self.payloads;
        let bodies = record
            .bodies()
            .iter()
            .map(|body| payloads[&body.digest].clone())
            .collect();
        self.payloads.clear();
        Ok((record, bodies))
    }

    /// Sends a command and waits until it is durable. Returns revision and hash.
    ///
    /// # Errors
    ///
    /// If the core refuses or the store does not commit; the state is unchanged then.
    ///
    /// # Panics
    ///
    /// If the store refuses a merge that the workload never makes.
    pub async fn send(
        &mut self,
        store: &impl Store,
        command: &Command,
        actor: Actor,
    ) -> Result<(u64, Digest), ClientError> {
        let (record, bodies) = self.decide(command, actor)?;
        loop {
            let commit = Commit::new(&self.state, record.clone(), bodies.clone());
            let mut commit = commit.expect("the payloads are its own");
            let owner = commit.after.owner.as_ref().expect("it has begun");
            let merged = merge(store, owner, &record, &bodies).await;
            commit.set_merged(merged.map_err(ClientError::Merge)?);
            let (after, hash) = (commit.after.clone(), commit.record.hash);
            match store.commit(commit).await {
                // Another session wrote the counter meanwhile: merge with that.
                Err(StoreError::SharedConflict { .. }) => {}
                revision => {
                    let revision = revision?;
                    self.state = after;
                    return Ok((revision, hash));
                }
            }
        }
    }

    /// The command that begins the session.
    pub fn create(&mut self) -> Command {
        let owner: Owner = fixtures::owner();
        let name = Some(self.body(format!("session {}", self.state.session)));
        Command::CreateSession {
            owner,
            name,
            labels: None,
            state: StatePatch::default(),
            ttl: None,
            hidden_ttl_ms: None,
        }
    }

    /// A whole turn in one call: question 200 B, tool call 300 B, result 2 KiB, answer 400 B, three
    /// state keys.
    pub fn turn(&mut self) -> Command {
        let call = self.random.text(280);
        let call = self.body(format!("{{\"query\":\"{call}\"}}"));
        let [question, result, answer] = [200, 2048, 400].map(|bytes| {
            let text = self.random.text(bytes);
            self.body(text)
        });
        let idempotent = NewCallMark::Call {
            idempotent: true,
            gated: false,
        };
        let ran = NewCallMark::Result {
            call: CallTarget::SameCommand(0),
            outcome: CallOutcome::Ran,
        };
        let items = vec![
            tool_item(ItemKind::ToolCall, call, idempotent),
            tool_item(ItemKind::ToolResult, result, ran),
        ];
        let step = self.state.revision.to_string();
        let topic = format!("\"{}\"", self.random.text(24));
        let score = format!("0.{}", 1 + self.random.below(998));
        let set = [("step", step), ("topic", topic), ("score", score)];
        let set = set.map(|(key, value)| self.set(key, value, MergePolicy::Replace));
        Command::StartRequest(StartRequest {
            chat: None,
            continues: None,
            agent: fixtures::name("coordinator"),
            task: None,
            parent: None,
            input: question,
            attachments: Vec::new(),
            close_on: CloseOn::Never,
            lease_ttl_ms: Some(30_000),
            items,
            state: StatePatch {
                set: set.into(),
                ..StatePatch::default()
            },
            output: Some(Output {
                body: answer,
                attachments: Vec::new(),
            }),
        })
    }

    /// Adds one to a counter that all sessions share.
    pub fn count(&mut self) -> Command {
        let set = vec![self.set("app:count", "1".to_owned(), MergePolicy::Add)];
        Command::PutState {
            patch: StatePatch {
                set,
                ..StatePatch::default()
            },
            by: None,
        }
    }

    /// The next step of a pause: ask, be held, be decided, answer. Each step is a command of its own,
    /// so a crash may fall between any two.
    pub fn pause_step(&mut self) -> (Command, Actor) {
        let worker = fixtures::worker(1);
        let Some(live) = self.state.requests.values().next().cloned() else {
            let mut start = fixtures::start("leaf");
            start.input = self.body(PLEASE.repeat(60));
            start.lease_ttl_ms = Some(30_000);
            return (Command::StartRequest(start), worker);
        };
        let by = Fenced {
            request: live.id,
            fence: live.fence,
        };
        if let Some(hold) = live.holds.first() {
            return (
                decision(*hold, self.state.holds[hold].digest),
                fixtures::approver(1),
            );
        }
        if live.holds_opened == 0 {
            return (self.ask(by), worker);
        }
        // Long enough to be stored once.
        let output = Output {
            body: self.body(PLEASE.repeat(60)),
            attachments: Vec::new(),
        };
        let complete = Command::CompleteRequest {
            by,
            output,
            items: Vec::new(),
            state: StatePatch::default(),
            task_state: None,
            close_task: false,
            cancel_children: false,
        };
        (complete, worker)
    }

    /// An agent asks another, and that one begins at once. Without a parent it is the first of them.
    pub fn descend(&mut self, parent: Option<Fenced>) -> Command {
        let mut start = fixtures::start("agent");
        start.input = self.body("and what do you think?".to_owned());
        start.lease_ttl_ms = Some(3_600_000);
        start.parent = parent;
        Command::StartRequest(start)
    }

    /// Approves a hold that is open.
    pub fn approve(&self, hold: HoldId) -> Command {
        let digest = self.state.holds.get(&hold).and_then(|hold| hold.digest);
        decision(hold, digest)
    }

    /// Asks whether an action may run.
    pub fn ask(&mut self, by: Fenced) -> Command {
        let id = HoldId::from_uuid(Uuid::from_u64_pair(
            0x7000,
            0x8000_0000_0000_0000 | self.random.next_u64(),
        ));
        let gated = NewCallMark::Call {
            idempotent: false,
            gated: true,
        };
        let call = self.body("{\"user_id\":7}".to_owned());
        let hold = NewHold {
            id,
            kind: HoldKind::Approval,
            body: self.body("{\"title\":\"Delete user 7\"}".to_owned()),
            call: Some(CallTarget::SameCommand(0)),
            digest: Some(fixtures::digest(&id.to_string())),
            allowed: [].into(),
            need: 1,
            expires_in_ms: None,
            on_expiry: OnExpiry::Reject,
            decide_by: None,
            effect: None,
            risk: None,
            policy: None,
        };
        let items = vec![tool_item(ItemKind::ToolCall, call, gated)];
        Command::OpenHold { by, hold, items }
    }

    fn set(&mut self, key: &str, value: String, merge: MergePolicy) -> StateSet {
        let key: StateKey = key.parse().expect("a fixture key");
        let value = match key.scope() {
            Scope::App => {
                let tenant = self.keys.tenant.clone();
                self.body_under(&tenant, value)
            }
            Scope::User | Scope::Session | Scope::Temp => self.body(value),
        };
        StateSet { key, value, merge }
    }
}

fn decision(hold: HoldId, digest: Option<Digest>) -> Command {
    let decision = NewDecision {
        key: fixtures::digest("key"),
        fingerprint: fixtures::digest("approve"),
        kind: DecisionKind::Approve,
        digest,
        edited: None,
        body: None,
    };
    Command::DecideHold { hold, decision }
}

fn tool_item(kind: ItemKind, body: BodyRef, call: NewCallMark) -> NewItem {
    NewItem {
        kind,
        visibility: Visibility::Hidden,
        role: None,
        body,
        attachments: Vec::new(),
        call: Some(call),
    }
}

/// The n-th session of a run.
pub fn session_id(run: u64, n: u64) -> SessionId {
    let mut random = Random::new(run.wrapping_mul(1_000_003).wrapping_add(n));
    let low = 0x8000_0000_0000_0000 | (random.next_u64() >> 2);
    SessionId::from_uuid(Uuid::from_u64_pair(
        0x0192_0000_0000_7000 | (n & 0xfff),
        low,
    ))
}

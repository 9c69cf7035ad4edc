//! A short story on the embedded store: a coordinator asks an agent, the agent needs a person, both
//! wait, the person decides twice, the action is released once.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use statehold_core::command::{
    Cold, Command, Context, Fenced, Outcome, Output, StartRequest, StatePatch,
};
use statehold_core::decide::decide;
use statehold_core::digest::{BodyRef, Digest, PayloadKey, action_digest};
use statehold_core::hold::{CallTarget, DecisionKind, HoldKind, NewDecision, NewHold, OnExpiry};
use statehold_core::ids::{HoldId, IdMint, KeyId, RequestId, SessionId, Shard, TaskId, UserId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, NewItem, Visibility};
use statehold_core::name::Name;
use statehold_core::principal::{Actor, Principal};
use statehold_core::session::{Owner, SessionState};
use statehold_core::task::CloseOn;
use statehold_core::time::Timestamp;
use statehold_store::keys::{KeyFile, KeyOwner};
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_store::{Commit, Store};

use crate::cli::block_on;

/// Plays the story into a data directory and prints what happens.
pub(super) fn play(directory: &Path) -> anyhow::Result<()> {
    let mut story = Story::begin(directory)?;
    let root = story.start("coordinator", None)?;
    let leaf = story.start("ums-agent", Some(root))?;
    println!(
        "bob asks the coordinator to delete user 7; it asks ums-agent, which needs a person:\n"
    );
    let hold = story.ask(leaf)?;
    story.draw();
    println!("\na person approves, and, impatient, approves again:\n");
    story.approve(hold, "first click")?;
    story.draw();
    match story.approve(hold, "second click") {
        Err(refusal) => println!("\nsecond click: {refusal}"),
        Ok(()) => bail!("a hold was decided twice"),
    }
    story.finish(leaf, "User 7 is deleted.")?;
    story.finish(root, "Done: user 7 is deleted.")?;
    println!("\nthe agent ran the released action and answered; so did the coordinator:\n");
    story.draw();
    println!(
        "\n{} records in {}",
        story.state.revision, story.state.session
    );
    Ok(())
}

struct Story {
    store: SqliteStore,
    state: SessionState,
    key: PayloadKey,
    payloads: BTreeMap<Digest, Vec<u8>>,
    decided: BTreeMap<HoldId, statehold_core::command::DecidedHold>,
    mint: IdMint,
}

impl Story {
    fn begin(directory: &Path) -> anyhow::Result<Self> {
        let store = SqliteStore::open(directory, SqliteOptions::default())?;
        let shard = Shard::of_owner("default", "demo", "bob");
        let mut mint = IdMint::new(now()?, shard, entropy()?);
        let user = UserId::from_uuid(mint.next_uuid());
        let key = KeyFile::open(directory)?.get_or_create(&KeyOwner::User(user))?;
        let session = SessionId::from_uuid(mint.next_uuid());
        let mut begun = Self {
            store,
            state: SessionState::new(session),
            key,
            payloads: BTreeMap::new(),
            decided: BTreeMap::new(),
            mint,
        };
        let owner = Owner {
            tenant: name("default")?,
            app: name("demo")?,
            user,
            agent: name("coordinator")?,
        };
        let labels = Some(begun.body("{\"story\":\"demo\"}"));
        let state = StatePatch::default();
        begun.send(
            &Command::CreateSession {
                owner,
                name: None,
                labels,
                state,
                ttl: None,
            },
            "bob",
        )?;
        Ok(begun)
    }

    fn start(&mut self, agent: &str, parent: Option<RequestId>) -> anyhow::Result<RequestId> {
        let start = StartRequest {
            agent: name(agent)?,
            task: None,
            parent: parent.map(|request| self.fenced(request)),
            input: self.body("Delete user 7"),
            attachments: Vec::new(),
            close_on: CloseOn::Never,
            lease_ttl_ms: Some(60_000),
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        };
        self.send(&Command::StartRequest(start), "worker")?;
        let newest = self.state.requests.values().max_by_key(|live| live.number);
        newest
            .map(|live| live.id)
            .context("the request was started")
    }

    fn ask(&mut self, request: RequestId) -> anyhow::Result<HoldId> {
        let args = serde_json::json!({ "user_id": 7, "cascade": false });
        let id = HoldId::from_uuid(self.mint.next_uuid());
        let gated = NewCallMark::Call {
            idempotent: false,
            gated: true,
        };
        let call = self.tool_item(ItemKind::ToolCall, &args.to_string(), gated);
        let hold = NewHold {
            id,
            kind: HoldKind::Approval,
            body: self.body("{\"title\":\"Delete user 7\"}"),
            call: Some(CallTarget::SameCommand(0)),
            digest: Some(action_digest(id, "delete_user", &args)?),
            allowed: [].into(),
            need: 1,
            expires_in_ms: Some(3_600_000),
            on_expiry: OnExpiry::Reject,
            decide_by: None,
            effect: None,
            risk: None,
            policy: None,
        };
        let by = self.fenced(request);
        self.send(
            &Command::OpenHold {
                by,
                hold,
                items: vec![call],
            },
            "worker",
        )?;
        Ok(id)
    }

    fn approve(&mut self, hold: HoldId, click: &str) -> anyhow::Result<()> {
        let open = self.state.holds.get(&hold);
        let digest = open
            .or(self.decided.get(&hold).map(|decided| &decided.hold))
            .and_then(|hold| hold.digest);
        let decision = NewDecision {
            key: Digest::sha256(click.as_bytes()),
            fingerprint: Digest::sha256(b"approve"),
            kind: DecisionKind::Approve,
            digest,
            edited: None,
            body: None,
        };
        self.send(&Command::DecideHold { hold, decision }, "approver")
    }

    fn finish(&mut self, request: RequestId, answer: &str) -> anyhow::Result<()> {
        let calls: Vec<_> = self.state.requests[&request]
            .calls
            .keys()
            .copied()
            .collect();
        let items = calls.into_iter().map(|call| {
            let call = CallTarget::Recorded(call);
            let ran = NewCallMark::Result {
                call,
                outcome: CallOutcome::Ran,
            };
            self.tool_item(ItemKind::ToolResult, "{\"deleted\":true}", ran)
        });
        let items = items.collect();
        let complete = Command::CompleteRequest {
            by: self.fenced(request),
            output: Output {
                body: self.body(answer),
                attachments: Vec::new(),
            },
            items,
            state: StatePatch::default(),
            task_state: None,
            close_task: false,
            cancel_children: false,
        };
        self.send(&complete, "worker")
    }

    /// Decides, commits, folds; says why not if it is refused.
    fn send(&mut self, command: &Command, role: &str) -> anyhow::Result<()> {
        let mut ctx = Context {
            now: now()?,
            actor: Self::actor(role)?,
            entropy: entropy()?,
            leases: BTreeMap::new(),
            cold: Cold::default(),
        };
        if let Command::DecideHold { hold, .. } = command {
            ctx.cold.hold = self.decided.get(hold).cloned();
        }
        let Outcome::Commit(record) = decide(&self.state, command, &ctx)? else {
            bail!("the story repeats nothing under one key")
        };
        let bodies = record
            .bodies()
            .iter()
            .map(|body| self.payloads[&body.digest].clone())
            .collect();
        let commit = Commit::new(&self.state, record, bodies)?;
        let after = commit.after.clone();
        let closed = commit.changes.closed_holds.clone();
        let revision = block_on(self.store.commit(commit))??;
        ensure!(revision == after.revision, "the store has another revision");
        self.decided.extend(
            closed
                .into_iter()
                .map(|closed| (closed.hold.id, closed.into())),
        );
        self.state = after;
        Ok(())
    }

    fn actor(role: &str) -> anyhow::Result<Actor> {
        let key = |n: u128| Principal::Key(KeyId::from_uuid(uuid::Uuid::from_u128(n)));
        let principal = match role {
            "worker" => key(1),
            "approver" => key(2),
            _ => key(3),
        };
        Ok(Actor {
            tenant: name("default")?,
            principal,
            roles: [name(role)?].into(),
        })
    }

    fn fenced(&self, request: RequestId) -> Fenced {
        Fenced {
            request,
            fence: self
                .state
                .requests
                .get(&request)
                .map_or(0, |live| live.fence),
        }
    }

    fn body(&mut self, text: &str) -> BodyRef {
        let body = BodyRef::of(&self.key, text.as_bytes());
        self.payloads.insert(body.digest, text.as_bytes().to_vec());
        body
    }

    fn tool_item(&mut self, kind: ItemKind, text: &str, call: NewCallMark) -> NewItem {
        NewItem {
            kind,
            visibility: Visibility::Hidden,
            role: None,
            body: self.body(text),
            attachments: Vec::new(),
            call: Some(call),
        }
    }

    /// Draws tasks, their live requests and open holds, as a tree.
    fn draw(&self) {
        let mut roots: Vec<_> = self
            .state
            .tasks
            .values()
            .filter(|task| task.parent.is_none())
            .collect();
        roots.sort_by_key(|task| task.number);
        for root in roots {
            self.draw_task(root.id, "");
        }
    }

    fn draw_task(&self, id: TaskId, indent: &str) {
        let task = &self.state.tasks[&id];
        let status = format!("{:?}", task.status).to_lowercase();
        let waits: Vec<String> = self
            .state
            .pending_holds(id)
            .iter()
            .map(|hold| self.alias(*hold))
            .collect();
        let waits = if waits.is_empty() {
            String::new()
        } else {
            format!("waits for {}", waits.join(", "))
        };
        println!(
            "  {:<28} {status:<9} {waits}",
            format!("{indent}T{} {}", task.number, task.agent)
        );
        let indent = if indent.is_empty() {
            "└─ ".to_owned()
        } else {
            format!("   {indent}")
        };
        if let Some(live) = task.live.and_then(|live| self.state.requests.get(&live)) {
            let status = format!("{:?}", live.status).to_lowercase();
            println!("  {:<28} {status}", format!("{indent}R{}", live.number));
        }
        let indent = format!("   {indent}");
        let below = self
            .state
            .tasks
            .values()
            .filter(|task| task.parent.is_some_and(|link| link.task == id));
        for task in below {
            self.draw_task(task.id, &indent);
        }
    }

    fn alias(&self, hold: HoldId) -> String {
        let hold = &self.state.holds[&hold];
        let number = self
            .state
            .requests
            .get(&hold.request)
            .map_or(0, |live| live.number);
        format!("R{number}.h{}", hold.number)
    }
}

fn name(text: &str) -> anyhow::Result<Name> {
    Ok(text.parse()?)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the binary is where the clock is read"
)]
fn now() -> anyhow::Result<Timestamp> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(Timestamp::from_micros(i64::try_from(since.as_micros())?))
}

fn entropy() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no randomness: {error}"))?;
    Ok(u64::from_le_bytes(bytes))
}

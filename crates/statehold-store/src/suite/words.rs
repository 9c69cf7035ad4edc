//! The words that stories are told with: commands, and short ways to send the frequent ones.

use statehold_core::command::{Command, Output, StartRequest, StatePatch, StateSet};
use statehold_core::digest::Digest;
use statehold_core::hold::{
    CallTarget, DecisionKind, HoldKind, NewDecision, NewHold, OnExpiry, Risk,
};
use statehold_core::ids::{HoldId, IdMint};
use statehold_core::item::{
    Attachment, AttachmentSource, CallOutcome, ItemKind, NewCallMark, NewItem, Visibility,
};
use statehold_core::record::Change;
use statehold_core::scope::MergePolicy;
use statehold_core::session::{TimeToLive, TtlMode};
use statehold_core::task::CloseOn;

use super::driver::{Driver, Refusal};
use super::fixture::{key, name, system};

/// The lease of a worker that means to stay.
pub(super) const LONG_MS: u64 = 600_000;

impl Driver {
    /// The command that creates the session.
    pub fn create(&mut self, name: Option<&str>) -> Command {
        Command::CreateSession {
            owner: self.owner.clone(),
            name: name.map(|name| self.body(name)),
            labels: None,
            state: StatePatch::default(),
            ttl: None,
            hidden_ttl_ms: None,
        }
    }

    /// The command that creates the session for a limited time.
    pub fn create_for(&mut self, mode: TtlMode, ms: u64) -> Command {
        Command::CreateSession {
            owner: self.owner.clone(),
            name: None,
            labels: None,
            state: StatePatch::default(),
            ttl: Some(TimeToLive { mode, ms }),
            hidden_ttl_ms: None,
        }
    }

    /// Gives the session another name, or none, as the client.
    ///
    /// # Errors
    ///
    /// If the core or the store refuses.
    pub async fn rename(&mut self, name: Option<&str>) -> Result<u64, Refusal> {
        let name = name.map_or(Change::Clear, |name| Change::Set(self.body(name)));
        let patch = Command::PatchSession {
            labels: None,
            name: Some(name),
            ttl: None,
            hidden_ttl_ms: None,
        };
        self.send(&self.client(), patch).await
    }

    /// Gives the session another life, as the client.
    pub async fn live_for(&mut self, ttl: Option<(TtlMode, u64)>) -> u64 {
        let ttl = ttl.map_or(Change::Clear, |(mode, ms)| {
            Change::Set(TimeToLive { mode, ms })
        });
        let patch = Command::PatchSession {
            labels: None,
            name: None,
            ttl: Some(ttl),
            hidden_ttl_ms: None,
        };
        self.ok(&self.client(), patch).await
    }

    /// Has the session keep its hidden payloads for so long, as the client.
    pub async fn keep_hidden_for(&mut self, ms: u64) -> u64 {
        let patch = Command::PatchSession {
            labels: None,
            name: None,
            ttl: None,
            hidden_ttl_ms: Some(Change::Set(ms)),
        };
        self.ok(&self.client(), patch).await
    }

    /// Waits until the life of the hidden payloads is over, and lets the server notice it.
    pub async fn erase_hidden(&mut self) -> u64 {
        let deadline = self.state.hidden_expires_at.expect("they have a limit");
        self.now = self.now.max(deadline);
        let server = system(&self.owner);
        self.ok(&server, Command::EraseHidden).await
    }

    /// Waits until the life of the session is over, and lets the server notice it.
    pub async fn expire(&mut self) -> u64 {
        let deadline = self.state.expires_at.expect("the session has a limit");
        self.now = self.now.max(deadline);
        let server = system(&self.owner);
        self.ok(&server, Command::ExpireSession).await
    }

    /// Deletes the session, as the client.
    pub async fn delete_session(&mut self) -> u64 {
        self.ok(&self.client(), Command::DeleteSession).await
    }

    /// An invocation of an agent that nobody has claimed.
    pub fn start(&mut self, agent: &str) -> StartRequest {
        let input = self.body(format!("question {}", self.requests.len() + 1));
        StartRequest {
            chat: None,
            continues: None,
            agent: name(agent),
            task: None,
            parent: None,
            input,
            attachments: Vec::new(),
            close_on: CloseOn::Never,
            lease_ttl_ms: None,
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        }
    }

    /// An invocation of an agent, claimed in the same breath.
    pub fn leased(&mut self, agent: &str) -> StartRequest {
        StartRequest {
            lease_ttl_ms: Some(LONG_MS),
            ..self.start(agent)
        }
    }

    /// An invocation of an agent by the n-th request, claimed in the same breath.
    pub fn spawn(&mut self, parent: usize, agent: &str) -> StartRequest {
        StartRequest {
            parent: Some(self.fenced(parent)),
            ..self.leased(agent)
        }
    }

    /// An answer.
    pub fn output(&mut self, text: &str) -> Output {
        Output {
            body: self.body(text),
            attachments: Vec::new(),
        }
    }

    /// A file that is kept here.
    pub fn file(&mut self, content: impl AsRef<[u8]>) -> Attachment {
        Attachment {
            source: AttachmentSource::Inline,
            body: self.body(content),
        }
    }

    /// A note in the history.
    pub fn note(&mut self, text: impl AsRef<[u8]>) -> NewItem {
        NewItem {
            kind: ItemKind::Note,
            visibility: Visibility::Hidden,
            role: None,
            body: self.body(text),
            attachments: Vec::new(),
            call: None,
        }
    }

    /// A tool call that must not be repeated.
    pub fn call(&mut self, gated: bool) -> NewItem {
        let idempotent = false;
        NewItem {
            kind: ItemKind::ToolCall,
            call: Some(NewCallMark::Call { idempotent, gated }),
            ..self.note(r#"{"tool":"pay"}"#)
        }
    }

    /// What the last open tool call of the n-th request came to.
    pub fn result_of(&mut self, request: usize, outcome: CallOutcome) -> NewItem {
        let live = self.state.requests.get(&self.requests[request - 1]);
        let last = live.and_then(|live| live.calls.keys().next_back());
        let call = CallTarget::Recorded(*last.expect("the story has an open call there"));
        NewItem {
            kind: ItemKind::ToolResult,
            call: Some(NewCallMark::Result { call, outcome }),
            ..self.note(r#"{"paid":true}"#)
        }
    }

    /// Adds items to the history of the n-th request.
    pub fn append(&mut self, request: usize, items: Vec<NewItem>) -> Command {
        Command::AppendItems {
            by: self.fenced(request),
            items,
            state: StatePatch::default(),
            task_state: None,
        }
    }

    /// Writes the private state of the task of the n-th request.
    pub fn remember(&mut self, request: usize, value: impl AsRef<[u8]>) -> Command {
        Command::AppendItems {
            by: self.fenced(request),
            items: Vec::new(),
            state: StatePatch::default(),
            task_state: Some(self.body(value)),
        }
    }

    /// Ends the n-th request with an answer.
    pub fn complete(&mut self, request: usize) -> Command {
        Command::CompleteRequest {
            by: self.fenced(request),
            output: self.output("done"),
            items: Vec::new(),
            state: StatePatch::default(),
            task_state: None,
            close_task: false,
            cancel_children: false,
        }
    }

    /// Asks for the approval of a tool call that is recorded along.
    pub fn approval(&mut self, request: usize, need: u16) -> Command {
        let (by, call, hold) = (self.fenced(request), self.call(true), self.fresh_hold());
        Command::OpenHold {
            by,
            hold: NewHold {
                call: Some(CallTarget::SameCommand(0)),
                digest: Some(Digest::sha256(b"the action")),
                need,
                ..self.new_hold(hold, HoldKind::Approval)
            },
            items: vec![call],
        }
    }

    /// Asks a person something, for at most so long.
    pub fn question(&mut self, request: usize, expires_in_ms: Option<u64>) -> Command {
        let (by, hold) = (self.fenced(request), self.fresh_hold());
        Command::OpenHold {
            by,
            hold: NewHold {
                expires_in_ms,
                ..self.new_hold(hold, HoldKind::Question)
            },
            items: Vec::new(),
        }
    }

    /// Asks a person something that can go wrong, for at most so long.
    pub fn risky(
        &mut self,
        request: usize,
        risk: Option<Risk>,
        expires_in_ms: Option<u64>,
    ) -> Command {
        let (by, hold) = (self.fenced(request), self.fresh_hold());
        Command::OpenHold {
            by,
            hold: NewHold {
                risk,
                expires_in_ms,
                ..self.new_hold(hold, HoldKind::Question)
            },
            items: Vec::new(),
        }
    }

    fn new_hold(&mut self, id: HoldId, kind: HoldKind) -> NewHold {
        NewHold {
            id,
            kind,
            body: self.body(r#"{"title":"May I?"}"#),
            call: None,
            digest: None,
            allowed: [].into(),
            need: 1,
            expires_in_ms: None,
            on_expiry: OnExpiry::Reject,
            decide_by: None,
            effect: None,
            risk: None,
            policy: None,
        }
    }

    fn fresh_hold(&mut self) -> HoldId {
        let entropy = self.fresh_entropy();
        let mut mint = IdMint::new(self.now, self.session().shard(), entropy);
        HoldId::from_uuid(mint.next_uuid())
    }

    /// Decides the n-th hold.
    pub fn decision(&mut self, hold: usize, kind: DecisionKind) -> Command {
        let hold = self.holds[hold - 1];
        let digest = self.state.holds.get(&hold).and_then(|hold| hold.digest);
        let has_body = matches!(kind, DecisionKind::Edit | DecisionKind::Respond);
        let key = Digest::sha256(&self.fresh_entropy().to_be_bytes());
        Command::DecideHold {
            hold,
            decision: NewDecision {
                key,
                fingerprint: Digest::sha256(format!("{kind:?}").as_bytes()),
                kind,
                digest,
                edited: (kind == DecisionKind::Edit).then(|| Digest::sha256(b"another action")),
                body: has_body.then(|| self.body(r#"{"answer":42}"#)),
            },
        }
    }

    /// A patch that sets keys to JSON values.
    pub fn set(&mut self, values: &[(&str, &str)]) -> StatePatch {
        self.merge(MergePolicy::Replace, values)
    }

    /// A patch that merges JSON values into keys.
    pub fn merge(&mut self, merge: MergePolicy, values: &[(&str, &str)]) -> StatePatch {
        let set = values.iter().map(|(name, value)| StateSet {
            key: key(name),
            value: self.body(value),
            merge,
        });
        StatePatch {
            set: set.collect(),
            ..StatePatch::default()
        }
    }

    /// Writes a patch, as the client.
    pub async fn patch(&mut self, patch: StatePatch) -> u64 {
        let command = Command::PutState { patch, by: None };
        self.ok(&self.client(), command).await
    }

    /// Sets keys to JSON values, as the client.
    pub async fn put(&mut self, values: &[(&str, &str)]) -> u64 {
        let patch = self.set(values);
        self.patch(patch).await
    }

    /// Removes keys, as the client.
    pub async fn delete(&mut self, names: &[&str]) -> u64 {
        let delete = names.iter().map(|name| key(name)).collect();
        let patch = StatePatch {
            delete,
            ..StatePatch::default()
        };
        self.patch(patch).await
    }

    /// A whole turn of an agent in one record: a question and an answer.
    pub async fn turn(&mut self, agent: &str) -> u64 {
        let start = StartRequest {
            output: Some(self.output("answer")),
            ..self.leased(agent)
        };
        self.by_worker(Command::StartRequest(start)).await
    }

    /// Starts a request of an agent that nobody has claimed.
    pub async fn queue(&mut self, agent: &str) -> u64 {
        let start = self.start(agent);
        self.ok(&self.client(), Command::StartRequest(start)).await
    }

    /// Starts a request of an agent, claimed by worker 1 for so long.
    pub async fn run(&mut self, agent: &str, ttl_ms: u64) -> u64 {
        let start = StartRequest {
            lease_ttl_ms: Some(ttl_ms),
            ..self.start(agent)
        };
        self.by_worker(Command::StartRequest(start)).await
    }

    /// Sends a command as worker 1.
    pub async fn by_worker(&mut self, command: Command) -> u64 {
        self.ok(&self.worker(1), command).await
    }
}

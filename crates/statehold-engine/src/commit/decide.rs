//! From a command to its commit: the core's decision, with all the context that it needs besides the state,
//! and the commit of its record with the answer to keep.

use std::collections::BTreeMap;
use std::sync::Arc;

use statehold_core::command::{Command, Context, LoadedFacts, Outcome, Past};
use statehold_core::decide::decide;
use statehold_core::ids::RequestId;
use statehold_core::principal::{Actor, Principal};
use statehold_core::record::Record;
use statehold_core::session::SessionState;
use statehold_core::time::Timestamp;
use statehold_store::{Answer, Commit};

use super::call::DecidedCommit;
use super::idempotency::KEPT_MS;
use super::mailbox::is_missing;
use super::merge::MergeResults;
use super::write::{Authority, Submission};
use crate::caller::Caller;
use crate::engine::{Engine, Inner, entropy};
use crate::error::EngineError;
use crate::guard::credentials::PendingCredential;
use crate::guard::rights;
use crate::locks::KeyLock;
use crate::shares::{Holder, Share};
use crate::starters::PendingStarters;
use crate::users::NewUser;

/// The effects of a commit that are undone if it fails.
#[derive(Debug)]
pub(super) struct PendingEffects {
    pub(super) credential: Option<PendingCredential>,
    pub(super) starters: Option<PendingStarters>,
    /// The holder whose answer the store keeps.
    pub(super) answer_of: Option<Holder>,
}

/// A decided command that is not queued yet.
pub(super) struct PreparedCommit {
    pub(super) commit: Commit,
    pub(super) body: Vec<u8>,
    pub(super) pending: PendingEffects,
    pub(super) key_lock: Option<Arc<KeyLock>>,
    /// The memory of its merges, held until it is written.
    pub(super) merge_bytes: Option<Arc<Share>>,
    /// The user of a session that the commit creates, if the store does not have them yet.
    pub(super) new_user: Option<NewUser>,
    /// Whether the store gets the commit together with the next one of the session.
    pub(super) is_delayed: bool,
}

impl Engine {
    /// Checks the right and the preconditions on the state at hand, then lets the core decide.
    pub(super) async fn decide(
        &self,
        state: &SessionState,
        submission: &Submission<'_>,
    ) -> Result<Outcome, EngineError> {
        let inner = self.inner();
        let Submission { write, command, .. } = submission;
        let (call, named) = (write.call, command.named());
        let finished = self.finished(&call.caller, state, &named).await?;
        let actor = if matches!(write.authority, Authority::Server | Authority::Eraser) {
            Actor::system(call.caller.tenant.clone())
        } else {
            self.require_valid_key(&call.caller)?;
            rights::require(&call.caller, state, &write.act(command), &finished)?;
            call.caller.actor()
        };
        let current = state.revision;
        let mismatch = call.if_revision.filter(|expected| *expected != current);
        let mismatch = mismatch.map(|expected| EngineError::RevisionMismatch { expected, current });
        // A decision is kept by the hold, so the core must say first whether this one is a repeat.
        let is_decision = matches!(command, Command::DecideHold { .. });
        let mismatch = match mismatch {
            Some(mismatch) if !is_decision => return Err(mismatch),
            mismatch => mismatch,
        };
        require_policy(inner, state, submission)?;
        let mut loaded = LoadedFacts {
            hold: finished.hold.map(|closed| (*closed).into()),
            request: finished.request.map(|ended| (ended.id, ended.outcome)),
            task: finished.task,
            ..LoadedFacts::default()
        };
        if let Command::StartRequest(start) = command
            && let Some(request) = start.continues
        {
            let failed = inner.store.ended_request(request).await?;
            loaded.continued = failed.and_then(|failed| failed.continuation());
        }
        if let Some(revision) = named.past {
            loaded.past = inner.past(state, revision).await?;
        }
        if let Command::ClaimRequest { request, .. } = command {
            loaded.unanswered = self.unanswered(state, *request).await?;
            loaded.policy_terms = self
                .policies_of_uncertain_calls(state, *request, &loaded.unanswered)
                .await?;
        }
        let ctx = Context {
            now: inner.time_of(state.session),
            actor,
            entropy: entropy()?,
            leases: inner.leases_of(state),
            loaded,
        };
        let outcome = match (decide(state, command, &ctx), mismatch) {
            (Ok(done @ Outcome::AlreadyDone { .. }), _) => done,
            (_, Some(mismatch)) => return Err(mismatch),
            (outcome, None) => outcome?,
        };
        if let (Outcome::Commit(_), Some(merged)) = (&outcome, submission.merged) {
            merged.require_newest(state)?;
        }
        Ok(outcome)
    }

    /// The commit of a record, and the answer that its caller gets. A command that is refused after
    /// all, because a deadline had passed, has no answer to keep.
    pub(super) fn prepare(
        &self,
        before: &SessionState,
        submission: &Submission<'_>,
        record: Record,
        is_done: bool,
    ) -> Result<PreparedCommit, EngineError> {
        let Submission { write, command, .. } = submission;
        let bodies = submission.payloads.of(&record);
        let mut commit = Commit::new(before, record, bodies)
            .map_err(|error| EngineError::Invalid(error.to_string()))?;
        let owner = commit.after.owner.as_ref();
        // Timers go on, and begin nothing.
        let is_timer = write.authority == Authority::Server
            && !matches!(command, Command::CreateSession { .. });
        let owner = owner.filter(|_| !is_timer && write.authority != Authority::Eraser);
        if owner.is_some_and(|owner| !self.inner().users.takes_commits_of(owner.user)) {
            return Err(EngineError::UserErased);
        }
        if let Some(merged) = submission.merged {
            commit.set_merged(merged.shared.iter().cloned());
        }
        let credentials = &self.inner().credentials;
        let caller = &write.call.caller;
        let starters = self.inner().starters.note(caller, command, &commit);
        let credential = match (write.resumed_with, write.credential) {
            (Some(credential), _) => {
                let holder = self.holder_of_credential(caller, command, &commit)?;
                Some(credentials.keep_resumed((credential, holder), &commit)?)
            }
            (None, Some(credential)) => {
                let holder = self.holder_of_credential(caller, command, &commit)?;
                Some(credentials.keep((credential, holder), command, &commit)?)
            }
            (None, None) => None,
        };
        let new_user = match (command, &commit.after.owner) {
            (Command::CreateSession { .. }, Some(owner)) => self.inner().users.new_user(owner.user),
            _ => None,
        };
        commit.new_user = new_user.as_ref().map(|new| new.name().to_owned());
        let mut ready = PreparedCommit {
            pending: PendingEffects {
                credential,
                starters,
                answer_of: None,
            },
            body: Vec::new(),
            key_lock: submission.key_lock.clone(),
            merge_bytes: submission.merged.and_then(MergeResults::bytes),
            new_user,
            is_delayed: write.is_delayed,
            commit,
        };
        if !is_done {
            return Ok(ready);
        }
        let commit = &mut ready.commit;
        ready.body = (submission.answer)(&DecidedCommit {
            before,
            after: &commit.after,
            record: &commit.record,
            changes: &commit.changes,
            payloads: submission.payloads,
        });
        let kept = write.call.key.map(|_| Holder::of(caller));
        ready.pending.answer_of = kept;
        commit.answer = write.call.key.map(|key| Answer {
            key: key.key,
            fingerprint: key.fingerprint,
            session: commit.session(),
            revision: commit.after.revision,
            body: ready.body.clone(),
            expires_at: self.inner().clock.now().plus_ms(KEPT_MS),
        });
        Ok(ready)
    }

    /// The holder of a credential that comes with a command. A request that the server starts below another one counts
    /// for the user of the session, and for the key behind the root.
    fn holder_of_credential(
        &self,
        caller: &Caller,
        command: &Command,
        commit: &Commit,
    ) -> Result<Holder, EngineError> {
        let owner = commit.after.owner.as_ref().ok_or(EngineError::NotFound)?;
        Ok(match (command, caller.principal) {
            (Command::StartRequest(start), Principal::System) => match start.parent {
                Some(parent) => {
                    let starters = &self.inner().starters;
                    starters.holder_of(owner.user, parent.request)
                }
                None => Holder::of_user(owner.user),
            },
            (_, Principal::System) => Holder::of_user(owner.user),
            _ => Holder::of(caller),
        })
    }

    /// Decides commands behind one that is not queued yet, each on the result of the one before. Stops at the
    /// first that does not result in a commit: any other result is valid only on a durable state.
    pub(super) async fn prepare_next(
        &self,
        decided: &mut Vec<PreparedCommit>,
        submissions: &[Submission<'_>],
    ) {
        for submission in submissions {
            let Some(PreparedCommit { commit, .. }) = decided.last() else {
                return;
            };
            if is_missing(&commit.after, &submission.command.named()) {
                return;
            }
            let Ok(Outcome::Commit(record)) = self.decide(&commit.after, submission).await else {
                return;
            };
            let Ok(next) = self.prepare(&commit.after, submission, record, true) else {
                return;
            };
            decided.push(next);
        }
    }
}

/// Refuses tool calls and child requests that the policy of their agent forbids. Checked here because
/// every surface passes through here.
fn require_policy(
    inner: &Inner,
    state: &SessionState,
    submission: &Submission<'_>,
) -> Result<(), EngineError> {
    let policies = inner.policies.get();
    let (agent, items) = match submission.command {
        Command::StartRequest(start) => {
            let parent = start
                .parent
                .and_then(|parent| state.task_of(parent.request));
            if let Some(parent) = parent.filter(|_| submission.write.call.caller.is_confined()) {
                policies.require_callable(&parent.agent, &start.agent)?;
            }
            (Some(&start.agent), &start.items)
        }
        Command::AppendItems { by, items, .. }
        | Command::CompleteRequest { by, items, .. }
        | Command::OpenHold { by, items, .. } => {
            let task = state.task_of(by.request);
            (task.map(|task| &task.agent), items)
        }
        _ => return Ok(()),
    };
    match agent {
        Some(agent) => policies.require_items(agent, items, submission.payloads),
        // The request has ended: the core refuses the command with the reason.
        None => Ok(()),
    }
}

impl Inner {
    /// The end of each lease of a session, including heartbeats and the grace period after a restart.
    pub(crate) fn leases_of(&self, state: &SessionState) -> BTreeMap<RequestId, Timestamp> {
        let mut reach = BTreeMap::new();
        if state.requests.is_empty() {
            return reach;
        }
        let heartbeats = self.heartbeats.lock();
        let start = self.leases_start(state.session);
        for live in state.requests.values() {
            let Some(lease) = live.lease else { continue };
            // Workers could not send heartbeats while the server was down.
            let mut until = lease.until.max(start.plus_ms(lease.ttl_ms));
            if let Some(extended) = heartbeats.get(&live.id) {
                until = until.max(*extended);
            }
            reach.insert(live.id, until);
        }
        reach
    }

    /// The facts about an earlier revision of a session.
    async fn past(&self, state: &SessionState, revision: u64) -> Result<Option<Past>, EngineError> {
        let then = self.store.load_at(state.session, revision).await?;
        let mut past = then.as_ref().map(Past::from);
        let kept = self.store.kept_revision(state.session, revision).await?;
        if let Some(past) = &mut past
            && kept < revision
            && let Some(then) = self.store.load_at(state.session, kept).await?
        {
            past.memories = then.memories;
        }
        Ok(past)
    }
}

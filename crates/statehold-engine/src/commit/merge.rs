//! Writes under a merge policy.
//!
//! The engine computes a merge before it decides the command, outside the session's mailbox and the
//! store's writer, because the cost depends on what callers have written. It knows the lengths of the stored values
//! before it reads them, and one command merges a bounded number of bytes. The command then carries the
//! result with the version it was merged with. If the version is stale at the commit, the engine merges
//! again and retries.

use std::sync::Arc;

use statehold_core::command::{Command, StatePatch, StateSet};
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::limits::COMMAND_MERGE_BYTES_MAX;
use statehold_core::merge::{MergeError, merge_json};
use statehold_core::scope::{MergePolicy, Scope, StateKey};
use statehold_core::session::{Owner, SessionState};
use statehold_store::{MergedValue, SharedOwner, ValueSize};

use super::call::Receipt;
use super::idempotency::digest;
use super::payloads::Payloads;
use super::write::Submission;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::{self, Finished};
use crate::guard::state_rules::StateRules;
use crate::locks::KeyedLocks;
use crate::shares::{Holder, Share, Shares};

/// How often a merge is retried when other writers were faster.
const TRIES_MAX: usize = 64;
/// Up to this size a merge takes less time than handing it to another thread.
const INLINE_BYTES_MAX: u64 = 64 * 1024;
/// How many long merges and validations run at once: they need a core each.
const LONG_MERGES_MAX: usize = 4;
/// The bytes of all long merges under way, each counted twice: as they are read, and as they are written. One command
/// gets all that it may merge.
const ALL_BYTES_MAX: usize = 128 * 1024 * 1024;
/// How many keys of one command are locked. Versions protect all keys; locks only save retries.
const LOCKED_KEYS_MAX: usize = 16;

/// State of the engine's merges.
#[derive(Debug)]
pub(crate) struct Merges {
    locks: KeyedLocks,
    long: Shares,
    bytes: Shares,
}

impl Default for Merges {
    fn default() -> Self {
        Self {
            locks: KeyedLocks::default(),
            long: Shares::of_turns(LONG_MERGES_MAX),
            bytes: Shares::new(ALL_BYTES_MAX),
        }
    }
}

/// The merge results that a command carries.
#[derive(Debug, Default)]
pub(crate) struct MergeResults {
    /// Session keys, each with the version it was merged with; their values are in the command.
    session: Vec<(StateKey, u64)>,
    pub(crate) shared: Vec<MergedValue>,
    /// The memory of a long merge, held until its commit is written.
    bytes: Option<Arc<Share>>,
}

impl MergeResults {
    pub(super) fn bytes(&self) -> Option<Arc<Share>> {
        self.bytes.clone()
    }

    /// Refuses a session key whose version is stale.
    pub(super) fn require_newest(&self, state: &SessionState) -> Result<(), EngineError> {
        for (key, version) in &self.session {
            let found = state.version_of(key);
            require_version(key, *version, found)?;
        }
        Ok(())
    }

    fn has(&self, key: &StateKey, version: u64) -> bool {
        let mut session = self.session.iter();
        let mut shared = self.shared.iter();
        session.any(|(merged, with)| merged == key && *with == version)
            || shared.any(|merged| merged.key == *key && merged.merged_with == version)
    }
}

/// A command with merged session keys, and all merge results.
struct MergedCommand {
    command: Command,
    payloads: Payloads,
    results: MergeResults,
}

/// Refuses a version that a key does not have.
pub(super) fn require_version(
    key: &StateKey,
    expected: u64,
    found: u64,
) -> Result<(), EngineError> {
    if expected == found {
        return Ok(());
    }
    Err(EngineError::VersionConflict {
        key: key.clone(),
        expected,
        found,
    })
}

/// One value to merge.
struct MergeInput {
    /// The index of the write in the patch.
    index: usize,
    key: StateKey,
    policy: MergePolicy,
    old: Option<Vec<u8>>,
    /// The most bytes that the old value may have: its length when it was counted.
    old_bytes: u64,
    /// The version of the old value; 0 for none.
    version: u64,
    operand: Vec<u8>,
}

/// Whether a command must be merged with current values.
pub(crate) fn merges(command: &Command) -> bool {
    command
        .state()
        .is_some_and(|patch| patch.set.iter().any(is_merge))
}

fn is_merge(set: &StateSet) -> bool {
    // The core refuses `temp:` keys.
    set.merge != MergePolicy::Replace && set.key.scope() != Scope::Temp
}

fn state_of_mut(command: &mut Command) -> Option<&mut StatePatch> {
    match command {
        Command::CreateSession { state, .. }
        | Command::AppendItems { state, .. }
        | Command::CompleteRequest { state, .. } => Some(state),
        Command::StartRequest(start) => Some(&mut start.state),
        Command::RecordTurn(turn) => Some(&mut turn.state),
        Command::PutState { patch, .. } => Some(patch),
        _ => None,
    }
}

impl Engine {
    /// Attempts a command with merges, and retries while other writers are faster. A version named by the
    /// caller stays a precondition: a mismatch is returned, not retried.
    pub(super) async fn attempt_merged(
        &self,
        submission: &Submission<'_>,
    ) -> Result<Receipt<()>, EngineError> {
        let session = submission.write.session;
        let owner = self.owner_to_merge_for(submission).await?;
        let Some(patch) = submission.command.state() else {
            return Err(EngineError::Invalid("the command writes no state".into()));
        };
        let mut locks = Vec::new();
        for name in lock_names(session, &owner, patch) {
            locks.push(self.inner().merges.locks.lock(name).await);
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let merged = match self.merge_command(&owner, submission).await {
                Err(error @ (EngineError::Merge { .. } | EngineError::StateInvalid { .. })) => {
                    self.require_without_merges(&owner, submission).await?;
                    return Err(error);
                }
                // A value has grown since its length was counted.
                Err(EngineError::VersionConflict { .. }) if tries < TRIES_MAX => continue,
                merged => merged?,
            };
            let with_merges = Submission {
                command: &merged.command,
                payloads: &merged.payloads,
                merged: Some(&merged.results),
                ..submission.clone()
            };
            match self.attempt(&[with_merges]).await {
                Err(EngineError::VersionConflict { key, expected, .. })
                    if tries < TRIES_MAX
                        && merged.results.has(&key, expected)
                        && patch.if_versions.get(&key) != Some(&expected) => {}
                done => return done,
            }
        }
    }

    /// Refuses a command whatever its values are, for a caller with the right to it.
    pub(super) async fn require_without_state_values(
        &self,
        submission: &Submission<'_>,
    ) -> Result<(), EngineError> {
        let owner = self.owner_to_merge_for(submission).await?;
        self.require_without_merges(&owner, submission).await
    }

    /// Refuses a command whatever its values merge to: a fence, a revision, a version or a request that
    /// does not fit is reported before a value that cannot be merged or does not fit its schema.
    async fn require_without_merges(
        &self,
        owner: &Owner,
        submission: &Submission<'_>,
    ) -> Result<(), EngineError> {
        let mut command = submission.command.clone();
        let Some(patch) = state_of_mut(&mut command) else {
            return Ok(());
        };
        let if_versions = patch.if_versions.clone();
        for set in &mut patch.set {
            set.merge = MergePolicy::Replace;
        }
        let session = submission.write.session;
        let state = match submission.command {
            Command::CreateSession { .. } => Arc::new(SessionState::new(session)),
            _ => self.durable_state(session).await?,
        };
        let plain = Submission {
            command: &command,
            ..submission.clone()
        };
        self.decide(&state, &plain).await?;
        let keys = if_versions.keys().cloned().collect();
        let found = self.value_sizes(owner, session, keys, 0).await?;
        for ((key, expected), found) in if_versions.into_iter().zip(found) {
            // The core has compared session keys.
            if matches!(key.scope(), Scope::App | Scope::User) {
                let found = found.map_or(0, |found| found.version);
                require_version(&key, expected, found)?;
            }
        }
        Ok(())
    }

    /// Checks the caller's right first, because a refused merge reveals the type of the old value.
    async fn owner_to_merge_for(&self, submission: &Submission<'_>) -> Result<Owner, EngineError> {
        let (write, command) = (submission.write, submission.command);
        let (caller, act) = (&write.call.caller, write.act(command));
        if let Command::CreateSession { owner, .. } = command {
            let state = SessionState::new(write.session);
            rights::require(caller, &state, &act, &Finished::default())?;
            return Ok(owner.clone());
        }
        self.authorise(caller, write.session, &act).await
    }

    /// The sizes of the values of keys of any scope but `temp:`, in the same order. Reads at most `bytes_max` bytes of
    /// the values of each scope.
    async fn value_sizes(
        &self,
        owner: &Owner,
        session: SessionId,
        keys: Vec<StateKey>,
        bytes_max: u64,
    ) -> Result<Vec<Option<ValueSize>>, EngineError> {
        let store = &self.inner().store;
        let mut sizes = vec![None; keys.len()];
        for scope in [Scope::Session, Scope::User, Scope::App] {
            let named = keys.iter().enumerate();
            let named = named.filter(|(_, key)| key.scope() == scope);
            let (places, keys): (Vec<usize>, Vec<StateKey>) =
                named.map(|(place, key)| (place, key.clone())).unzip();
            if keys.is_empty() {
                continue;
            }
            let found = if scope == Scope::Session {
                store.state_sizes(session, keys, bytes_max).await?
            } else {
                let owner = SharedOwner::of(owner, scope);
                store.shared_sizes(owner, keys, bytes_max).await?
            };
            for (place, size) in places.into_iter().zip(found) {
                sizes[place] = size;
            }
        }
        Ok(sizes)
    }

    /// The values to merge of a command, without the stored ones, and the bytes that it merges.
    async fn merge_inputs(
        &self,
        owner: &Owner,
        submission: &Submission<'_>,
    ) -> Result<(Vec<MergeInput>, u64), EngineError> {
        let patch = submission.command.state();
        let sets = patch.map_or(&[][..], |patch| &patch.set);
        let sets = sets.iter().enumerate().filter(|(_, set)| is_merge(set));
        let keys = sets.clone().map(|(_, set)| set.key.clone()).collect();
        let session = submission.write.session;
        let sizes = self
            .value_sizes(owner, session, keys, COMMAND_MERGE_BYTES_MAX)
            .await?;
        let (mut inputs, mut bytes) = (Vec::new(), 0);
        for ((index, set), size) in sets.zip(sizes) {
            let key = set.key.clone();
            let Some(operand) = submission.payloads.get(&set.value) else {
                let detail = format!("`{key}` names a value that did not come with the command");
                return Err(EngineError::Invalid(detail));
            };
            let old_bytes = size.map_or(0, |size| size.bytes);
            bytes += operand.len() as u64 + old_bytes;
            if bytes > COMMAND_MERGE_BYTES_MAX {
                let source = MergeError::CommandTooLarge;
                return Err(EngineError::Merge { key, source });
            }
            inputs.push(MergeInput {
                index,
                key,
                policy: set.merge,
                old: None,
                old_bytes,
                version: 0,
                operand: operand.to_vec(),
            });
        }
        Ok((inputs, bytes))
    }

    /// Reads the stored values. One that has become longer than it was counted is a conflict.
    async fn read_old_values(
        &self,
        owner: &Owner,
        session: SessionId,
        inputs: &mut [MergeInput],
    ) -> Result<(), EngineError> {
        let store = &self.inner().store;
        for input in inputs {
            let key = input.key.clone();
            let there = match key.scope() {
                Scope::Session | Scope::Temp => {
                    let there = store.state_value(session, key).await?;
                    there.map(|there| (there.value, there.version))
                }
                scope @ (Scope::App | Scope::User) => {
                    let owner = SharedOwner::of(owner, scope);
                    let there = store.shared_value(owner, key).await?;
                    there.map(|there| (there.value, there.version))
                }
            };
            let Some((old, version)) = there else {
                continue;
            };
            if old.len() as u64 > input.old_bytes {
                return Err(EngineError::VersionConflict {
                    key: input.key.clone(),
                    expected: 0,
                    found: version,
                });
            }
            (input.old, input.version) = (Some(old), version);
        }
        Ok(())
    }

    /// Merges a command with the durable values. A long merge takes its memory first, and reads and merges in its turn.
    async fn merge_command(
        &self,
        owner: &Owner,
        submission: &Submission<'_>,
    ) -> Result<MergedCommand, EngineError> {
        let (mut inputs, bytes) = self.merge_inputs(owner, submission).await?;
        let session = submission.write.session;
        let (command, payloads) = (submission.command.clone(), submission.payloads.clone());
        let policies = self.policies();
        if bytes <= INLINE_BYTES_MAX {
            self.read_old_values(owner, session, &mut inputs).await?;
            return merge_all(command, payloads, inputs, &policies.state);
        }
        let merges = &self.inner().merges;
        let holder = self.merge_holder(owner, submission);
        let units = usize::try_from(2 * bytes).unwrap_or(usize::MAX);
        let memory = merges.bytes.line_up_for(holder, units).await;
        let memory = memory.map_err(|_| EngineError::Stopping)?;
        let turn = merges.long.line_up_for(holder, 1).await;
        let turn = turn.map_err(|_| EngineError::Stopping)?;
        self.read_old_values(owner, session, &mut inputs).await?;
        let merge = move || merge_all(command, payloads, inputs, &policies.state);
        let mut done = run_in_turn(turn, merge).await??;
        done.results.bytes = Some(Arc::new(memory));
        Ok(done)
    }

    /// The holder of a merge: the caller, or the user and the key behind the request if the server itself works.
    fn merge_holder(&self, owner: &Owner, submission: &Submission<'_>) -> Holder {
        let (caller, command) = (&submission.write.call.caller, submission.command);
        let starters = &self.inner().starters;
        match command {
            Command::AppendItems { by, .. } | Command::CompleteRequest { by, .. } => {
                starters.holder(caller, owner.user, by.request)
            }
            Command::StartRequest(start) => match start.parent {
                Some(parent) => starters.holder(caller, owner.user, parent.request),
                None => Holder::of(caller),
            },
            _ => Holder::of(caller),
        }
    }

    /// Validates long values in another thread, a few callers at a time.
    pub(crate) async fn run_long<T: Send + 'static>(
        &self,
        caller: &Caller,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let turn = self.inner().merges.long.line_up(caller, 1).await;
        run_in_turn(turn.map_err(|_| EngineError::Stopping)?, work).await
    }
}

/// Runs work in another thread, which has the turn until it is done, also if the caller disconnects.
async fn run_in_turn<T: Send + 'static>(
    turn: Share,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EngineError> {
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    done.await.map_err(|_| EngineError::Stopping)
}

/// Merges all values. A session key becomes an ordinary write of the result. The record of a shared key
/// keeps policy and operand, so its result is carried separately.
fn merge_all(
    mut command: Command,
    mut payloads: Payloads,
    inputs: Vec<MergeInput>,
    rules: &StateRules,
) -> Result<MergedCommand, EngineError> {
    let mut results = MergeResults::default();
    let patch = state_of_mut(&mut command);
    let sets = patch.map_or(&mut [][..], |patch| &mut patch.set);
    for input in inputs {
        let (key, version) = (input.key, input.version);
        let value = merge_json(input.policy, input.old.as_deref(), &input.operand);
        let value = value.map_err(|source| EngineError::Merge {
            key: key.clone(),
            source,
        })?;
        // A value that stays is not the caller's.
        if input.old.as_ref() != Some(&value) {
            rules.require_fit([(&key, value.as_slice())])?;
        }
        if matches!(key.scope(), Scope::App | Scope::User) {
            results.shared.push(MergedValue {
                key,
                merged_with: version,
                value,
            });
        } else {
            let set = &mut sets[input.index];
            (set.value, set.merge) = (payloads.put_opaque(value), MergePolicy::Replace);
            results.session.push((key, version));
        }
    }
    Ok(MergedCommand {
        command,
        payloads,
        results,
    })
}

/// The locks of a patch, sorted, so that commands cannot deadlock.
fn lock_names(session: SessionId, owner: &Owner, patch: &StatePatch) -> Vec<Digest> {
    let merged = patch.set.iter().filter(|set| is_merge(set));
    let names = merged.map(|set| {
        let key = set.key.as_str().as_bytes();
        let of_owner = |user: &str| {
            let (tenant, app) = (owner.tenant.as_str(), owner.app.as_str());
            digest(&[tenant.as_bytes(), app.as_bytes(), user.as_bytes(), key])
        };
        match set.key.scope() {
            Scope::App => of_owner(""),
            Scope::User => of_owner(&owner.user.to_string()),
            Scope::Session | Scope::Temp => digest(&[session.to_string().as_bytes(), key]),
        }
    });
    let mut names: Vec<Digest> = names.collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(LOCKED_KEYS_MAX);
    names
}

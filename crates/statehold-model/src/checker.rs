//! The model of the core: every order in which messages, clocks and crashes can happen, on small
//! worlds, through the same functions the server calls.
//!
//! Messages are never taken off the wire: a sent message may arrive at any time, any number of
//! times, in any order, or never. This models duplication, reordering and loss in one. Workers speak with
//! their current fence and with the one before, approvers decide holds that were decided long ago,
//! and the clock may step back. Calls under idempotency keys are the exception: the engine answers their
//! repetitions, so each reaches the core until it has taken effect, and not again.

mod explore;
mod scope;
mod situations;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use statehold_core::command::{Command, Context};
use statehold_core::invariant::Invariant;
use statehold_core::mutant::{self, Mutant};
use stateright::{Model, Property};

pub use explore::{Caught, Report, explore, hunt};
pub use scope::Scope;
pub use world::{Action, World};

/// A small world in which everything can go wrong.
#[derive(Debug, Clone)]
pub struct CoreModel {
    /// How large the world is and what may happen in it.
    pub scope: Scope,
    /// The bug to look for, if the point is to find one.
    pub mutant: Option<Mutant>,
    /// The promises that had something to say so far, as bits.
    pub exercised: Arc<AtomicU32>,
}

impl CoreModel {
    /// The model of one scope, without a bug.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            mutant: None,
            exercised: Arc::default(),
        }
    }

    /// The same world with one bug in it.
    #[must_use]
    pub fn with_mutant(self, mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
            ..self
        }
    }

    /// Sends a command, folds what it commits, and judges everything about it.
    pub(crate) fn deliver(&self, world: &mut World, command: &Command, ctx: &Context) {
        let found = mutant::with(self.mutant, || world.step(command, ctx));
        self.exercised.fetch_or(found.exercised, Ordering::Relaxed);
        world.broken |= found.broken;
    }
}

impl Model for CoreModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // A broken world has told us what we wanted to know.
        if world.broken == 0 {
            self.scope.actions(world, actions);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut next = last.clone();
        next.act(self, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! twins {
            ($($invariant:ident $exercised:literal),* $(,)?) => {
                vec![$(
                    Property::always(Invariant::$invariant.name(), |_, world: &World| {
                        world.broken & Invariant::$invariant.bit() == 0
                    }),
                    Property::sometimes($exercised, |model: &Self, _| {
                        let seen = model.exercised.load(Ordering::Relaxed);
                        seen & Invariant::$invariant.bit() != 0
                    }),
                )*]
            };
        }
        let mut properties = twins! {
            SingleDecision "a hold is decided",
            DecisionIdempotence "a decision comes again",
            AtMostOnceRelease "an action is released",
            NoApprovalNoExecution "a gated action has run",
            ExactPause "a task has a status",
            AtomicCascade "a cascade reaches an ancestor",
            ExactUnpause "a paused task loses a hold",
            StableIdentity "an ancestor shows a hold",
            Tree "a task hangs in the tree",
            TerminalIsFinal "something happens after an end",
            LegalTransitions "a request changes its status",
            CancelCloses "a task is cancelled",
            ExpiryIsADecision "a deadline is met or missed",
            AcknowledgedMeansDurable "an acknowledged record survives a crash",
            PrefixRecovery "a process recovers",
            ReplayDeterminism "a record is read back",
            MonotoneCommitTime "a record has a time",
            DenseOrder "a record has a number",
            Fencing "a worker writes",
            Quorum "enough people approve",
            InboxCompleteness "the inbox shows a hold",
            HiddenStaysHidden "an item is hidden or shown",
            HiddenIsAppendOnly "an item is appended",
            TenantIsolation "another tenant knocks",
            ScopeLifetime "a state key is written or refused",
            RefusalIsClean "a command is refused",
            Progress "a request waits for something",
            OneMemory "an agent has a memory",
            FencesGrow "a request has a fence",
        };
        properties.extend(situations::all());
        properties
    }
}

//! The promises, as 29 named predicates.
//!
//! The model checker, the property tests and `statehold check` all evaluate these same functions. A
//! predicate sees an [`Observation`] and the [`Facts`] that the records before it established; it
//! never trusts a cache that the core keeps for itself. Its [`Verdict`] tells a rule that held from
//! one that had nothing to say, so that a test can prove it was not vacuous.

mod facts;
mod knowledge;
mod naive;
mod predicates;

pub use facts::{Facts, HoldFacts};
pub use knowledge::Knowledge;

use crate::command::{Command, Context, Outcome, Rejection};
use crate::record::Record;
use crate::session::SessionState;

/// Declares every promise with its number, its name and its predicate, in one table.
macro_rules! promises {
    ($($(#[$doc:meta])+ $invariant:ident = $number:literal, $name:literal, $predicate:ident;)*) => {
        /// The promises, by the number they have in the documentation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Invariant { $($(#[$doc])+ $invariant = $number,)* }

        impl Invariant {
            /// All promises, in order.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$invariant),*];

            /// The name in tests, reports and documents.
            pub fn name(self) -> &'static str {
                match self { $(Self::$invariant => $name,)* }
            }

            fn predicate(self) -> predicates::Predicate {
                match self { $(Self::$invariant => predicates::$predicate,)* }
            }
        }
    };
}

promises! {
    /// For each hold at most one decision is ever committed; it never changes.
    SingleDecision = 1, "single decision", single_decision;
    /// The same decision again returns the committed outcome and appends nothing; any other decision
    /// on a decided hold is refused and appends nothing.
    DecisionIdempotence = 2, "decision idempotence", decision_idempotence;
    /// For each hold the action is released at most once, and only by approve, edit or respond.
    AtMostOnceRelease = 3, "at-most-once release", at_most_once_release;
    /// A gated action has run only after an approval of exactly that action in the same request.
    NoApprovalNoExecution = 4, "no approval, no execution", no_approval_no_execution;
    /// A task is stored as paused if and only if the naive derivation says so.
    ExactPause = 5, "exact pause", exact_pause;
    /// No record changes what a task waits for without changing the status of every ancestor.
    AtomicCascade = 6, "atomic cascade", atomic_cascade;
    /// Deciding a hold un-pauses exactly the tasks that no other open hold is reachable from.
    ExactUnpause = 7, "exact un-pause", exact_unpause;
    /// A hold shown at any ancestor has the leaf's id.
    StableIdentity = 8, "stable identity", stable_identity;
    /// Tasks form a tree inside one session, within the limits of depth and fan-out.
    Tree = 9, "tree", tree;
    /// After its end nothing changes a task or request.
    TerminalIsFinal = 10, "terminal is final", terminal_is_final;
    /// Every change of a request's status is an edge of the published table.
    LegalTransitions = 11, "legal transitions only", legal_transitions;
    /// Cancelling a task ends everything below it and closes every hold there, in one record.
    CancelCloses = 12, "cancel closes", cancel_closes;
    /// People decide before the deadline, and expiry is the decision after it; log order settles it.
    ExpiryIsADecision = 13, "expiry is a decision", expiry_is_a_decision;
    /// Every answer is preceded by the durable commit of its record.
    AcknowledgedMeansDurable = 14, "acknowledged means durable", acknowledged_means_durable;
    /// The recovered state is the fold of a prefix of whole records.
    PrefixRecovery = 15, "prefix recovery", prefix_recovery;
    /// Folding is a function of the log; a snapshot plus the tail gives the same state.
    ReplayDeterminism = 16, "replay determinism", replay_determinism;
    /// Commit times never decrease.
    MonotoneCommitTime = 17, "monotone commit time", monotone_commit_time;
    /// Records and items are numbered 1, 2, 3, … without gaps.
    DenseOrder = 18, "dense order", dense_order;
    /// Only the holder of the current fence writes for a request.
    Fencing = 19, "fencing", fencing;
    /// An approval needs as many distinct, authorised people as the hold says.
    Quorum = 20, "quorum", quorum;
    /// Every open hold is reachable from exactly one root task.
    InboxCompleteness = 21, "inbox completeness", inbox_completeness;
    /// Hidden items are in no client view; child tasks and tool items are hidden.
    HiddenStaysHidden = 22, "hidden stays hidden", hidden_stays_hidden;
    /// Only the holder of a lease appends more than the question.
    HiddenIsAppendOnly = 23, "hidden is append-only", hidden_is_append_only;
    /// Another tenant's session answers like one that does not exist.
    TenantIsolation = 24, "tenant isolation", tenant_isolation;
    /// `temp:` is never recorded, scopes stay apart, versions are compared.
    ScopeLifetime = 25, "scope lifetime", scope_lifetime;
    /// A refused or repeated command leaves the state as it was.
    RefusalIsClean = 26, "refusal is clean", refusal_is_clean;
    /// Nothing waits without a reason: held means an open hold, waiting means a live child.
    Progress = 27, "progress", progress;
    /// The number and the newest of the exchanges of each agent path, and what each live request knows
    /// of them, are what the log says.
    OneMemory = 29, "one memory", one_memory;
    /// The fence of a request only grows: by one with each claim, and past every fence of another copy of
    /// the data with each restore.
    FencesGrow = 30, "fences grow", fences_grow;
    /// Hidden payloads of a session that goes on are erased when their time is over and no request is live,
    /// and that does not lengthen its life.
    HiddenWaitsForRequests = 31, "hidden waits for requests", hidden_waits_for_requests;
}

impl Invariant {
    /// The bit that stands for it in a [`Findings`].
    pub fn bit(self) -> u32 {
        1 << (self as u8 - 1)
    }
}

/// The judgement of a predicate about an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The rule has nothing to do with it.
    NotConcerned,
    /// The rule applies, and holds.
    Holds,
    /// The rule applies, and is broken.
    Broken,
}

/// An observation that predicates judge.
#[derive(Debug, Clone, Copy)]
pub enum Observation<'a> {
    /// A command was decided.
    Command(CommandStep<'a>),
    /// A record was folded. Needs no command, so it works on any log.
    Record(RecordStep<'a>),
    /// A process came back after a crash.
    Recovery(Recovery<'a>),
}

/// A command and its outcome.
#[derive(Debug, Clone, Copy)]
pub struct CommandStep<'a> {
    /// The state it was decided on.
    pub before: &'a SessionState,
    /// The command.
    pub command: &'a Command,
    /// The context of the command.
    pub ctx: &'a Context,
    /// The answer.
    pub result: &'a Result<Outcome, Rejection>,
    /// The state afterwards.
    pub after: &'a SessionState,
}

/// A record with the states around it.
#[derive(Debug, Clone, Copy)]
pub struct RecordStep<'a> {
    /// The state before.
    pub before: &'a SessionState,
    /// The record.
    pub record: &'a Record,
    /// The state after.
    pub after: &'a SessionState,
}

/// A crash, seen from outside.
#[derive(Debug, Clone, Copy)]
pub struct Recovery<'a> {
    /// The last revision acknowledged to a caller.
    pub acknowledged: u64,
    /// The session before its first record.
    pub origin: &'a SessionState,
    /// The records that survived.
    pub survived: &'a [Record],
    /// The state the process came back with.
    pub recovered: &'a SessionState,
}

/// Which promises applied, and which were broken, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Findings {
    /// Promises that applied.
    pub exercised: u32,
    /// Promises that were broken.
    pub broken: u32,
}

impl Findings {
    /// Adds the findings of another observation.
    pub fn add(&mut self, other: Self) {
        self.exercised |= other.exercised;
        self.broken |= other.broken;
    }

    /// The broken promises.
    pub fn broken(self) -> impl Iterator<Item = Invariant> {
        Invariant::ALL
            .into_iter()
            .filter(move |invariant| self.broken & invariant.bit() != 0)
    }
}

/// Judges one observation by all promises.
pub fn judge_all(facts: &Facts, seen: &Observation<'_>) -> Findings {
    let mut findings = Findings::default();
    for invariant in Invariant::ALL {
        match invariant.predicate()(facts, seen) {
            Verdict::NotConcerned => {}
            Verdict::Holds => findings.exercised |= invariant.bit(),
            Verdict::Broken => findings.broken |= invariant.bit(),
        }
    }
    findings
}

//! Switches that break one rule each, so that tests can show which invariant notices.
//!
//! Without the feature `mutants` every switch is off at compile time and costs nothing. With it, a
//! mutant is on only inside [`with`], on the calling thread.

use serde::Serialize;

/// A plausible bug. Each breaks one rule of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mutant {
    /// A decided hold takes another decision.
    DecideTwice,
    /// Any decision on a decided hold is answered as if it were the first one again.
    ReplayAnything,
    /// An approved action is released twice.
    DoubleRelease,
    /// A rejected action is released.
    ReleaseRejected,
    /// The core accepts the result of an action without an approval.
    RunUngated,
    /// A pause stops at the parent and never reaches the task above it.
    SkipAncestor,
    /// The statuses of ancestors are changed by the next command instead of this one.
    CascadeLater,
    /// A decision wakes every task above it, including tasks that wait for another hold.
    UnpauseAll,
    /// An ancestor shows a hold under an id of its own.
    RenameHold,
    /// A request may be started below a task it does not belong to.
    ForeignParent,
    /// A finished task takes new requests.
    ReviveFinal,
    /// A request completes without ever having been claimed.
    CompleteUnclaimed,
    /// Cancelling a task leaves the holds below it open.
    CancelKeepsHolds,
    /// An approval is taken after the deadline.
    ApproveLate,
    /// An expired hold goes back to its approvers when the clock steps back.
    ReopenExpired,
    /// An answer leaves before its record is durable.
    AckEarly,
    /// Recovery keeps half of the last record.
    TornRecord,
    /// A snapshot forgets the votes of open holds.
    SnapshotForgetsVotes,
    /// The commit time is the wall clock, even if it stepped back.
    ClockStepsBack,
    /// A record takes a number one too high.
    SkipSequence,
    /// A write with an old fence is taken.
    SkipFence,
    /// A request keeps its fence in a restored copy of the data.
    KeepFence,
    /// One person's votes count each time.
    CountVotesTwice,
    /// The principal that opened a hold may decide it.
    RequesterDecides,
    /// The person who started a request decides its holds.
    StarterDecides,
    /// The inbox does not look below reused child tasks.
    InboxMissesReused,
    /// Hidden items are in the client's view.
    LeakHidden,
    /// Input and output of child tasks are visible.
    ShowChildMessages,
    /// Anyone may append tool results.
    AnyoneAppends,
    /// Another tenant's session answers.
    SkipTenant,
    /// `temp:` keys are written to the log.
    StoreTemp,
    /// Expected versions of state are not compared.
    SkipVersions,
    /// A refused command leaves a trace in the state.
    DirtyRefusal,
    /// A decided request is never woken.
    LostWake,
    /// A parent is not told that its last child ended.
    ForgetParent,
    /// A fork keeps the requests and holds that are in flight in its origin.
    ForkKeepsLive,
    /// A claim lets a request know what has ended since it started.
    MemoryMoves,
    /// Hidden payloads are erased while a request is live.
    EraseWhileLive,
    /// Failed and cancelled requests are exchanges, although no tool ran.
    RememberFailures,
    /// A failed or cancelled request is no exchange if the tool ran for a request below it.
    ForgetRunsBelow,
}

impl Mutant {
    /// All mutants, in the order of their declaration.
    pub const ALL: [Self; 40] = [
        Self::DecideTwice,
        Self::ReplayAnything,
        Self::DoubleRelease,
        Self::ReleaseRejected,
        Self::RunUngated,
        Self::SkipAncestor,
        Self::CascadeLater,
        Self::UnpauseAll,
        Self::RenameHold,
        Self::ForeignParent,
        Self::ReviveFinal,
        Self::CompleteUnclaimed,
        Self::CancelKeepsHolds,
        Self::ApproveLate,
        Self::ReopenExpired,
        Self::AckEarly,
        Self::TornRecord,
        Self::SnapshotForgetsVotes,
        Self::ClockStepsBack,
        Self::SkipSequence,
        Self::SkipFence,
        Self::KeepFence,
        Self::CountVotesTwice,
        Self::RequesterDecides,
        Self::StarterDecides,
        Self::InboxMissesReused,
        Self::LeakHidden,
        Self::ShowChildMessages,
        Self::AnyoneAppends,
        Self::SkipTenant,
        Self::StoreTemp,
        Self::SkipVersions,
        Self::DirtyRefusal,
        Self::LostWake,
        Self::ForgetParent,
        Self::ForkKeepsLive,
        Self::MemoryMoves,
        Self::EraseWhileLive,
        Self::RememberFailures,
        Self::ForgetRunsBelow,
    ];
}

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static CURRENT: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Whether `mutant` is on for this thread.
    pub fn is_on(mutant: Mutant) -> bool {
        CURRENT.get() == Some(mutant)
    }

    /// Runs `f` with one mutant on, or none.
    pub fn with<R>(mutant: Option<Mutant>, f: impl FnOnce() -> R) -> R {
        let before = CURRENT.replace(mutant);
        let result = f();
        CURRENT.set(before);
        result
    }
}

#[cfg(feature = "mutants")]
pub use switch::{is_on, with};

#[cfg(not(feature = "mutants"))]
pub(crate) const fn is_on(_: Mutant) -> bool {
    false
}

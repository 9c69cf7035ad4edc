//! Random scripts: what happens, in words that a world can turn into commands.
//!
//! A step says what kind of thing to do and carries dice; which object is meant, who acts and what
//! is odd about it is read off the dice against the world as it is then. So most commands are
//! meaningful at any point, and a script that lost some of its steps is still a script. Dice that
//! show zero always mean the plain case, which is what a failing script shrinks to.

use proptest::prelude::*;

/// What kind of thing happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Start,
    Spawn,
    Claim,
    Lapse,
    RaiseFence,
    Release,
    Append,
    Ask,
    Decide,
    DecideAgain,
    Expire,
    Complete,
    Fail,
    CancelRequest,
    CloseTask,
    CancelTask,
    Put,
    Rewind,
    Patch,
    Close,
    ExpireSession,
    EraseHidden,
    DeleteSession,
    CreateAgain,
    Fork,
    Resend,
    Heartbeat,
    Restart,
    /// A chain of plain children, each asked by the one before.
    Dive,
}

/// One step of a script.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) act: Act,
    pub(super) dice: u128,
    /// How far the wall clock moves before it, in milliseconds.
    pub(super) clock_ms: i64,
}

/// A script of 20 to 120 steps.
pub(super) fn script() -> impl Strategy<Value = Vec<Step>> {
    let act = prop_oneof![
        22 => Just(Act::Start),
        62 => Just(Act::Spawn),
        62 => Just(Act::Claim),
        24 => Just(Act::Lapse),
        8 => Just(Act::RaiseFence),
        16 => Just(Act::Release),
        60 => Just(Act::Append),
        68 => Just(Act::Ask),
        80 => Just(Act::Decide),
        14 => Just(Act::DecideAgain),
        24 => Just(Act::Expire),
        44 => Just(Act::Complete),
        14 => Just(Act::Fail),
        8 => Just(Act::CancelRequest),
        10 => Just(Act::CloseTask),
        4 => Just(Act::CancelTask),
        22 => Just(Act::Put),
        3 => Just(Act::Rewind),
        12 => Just(Act::Patch),
        2 => Just(Act::Close),
        8 => Just(Act::ExpireSession),
        12 => Just(Act::EraseHidden),
        1 => Just(Act::DeleteSession),
        2 => Just(Act::CreateAgain),
        3 => Just(Act::Fork),
        12 => Just(Act::Resend),
        16 => Just(Act::Heartbeat),
        8 => Just(Act::Restart),
        2 => Just(Act::Dive),
    ];
    let clock_ms = prop_oneof![
        50 => 0_i64..200,
        24 => 1_000_i64..3_000,
        10 => 20_000_i64..70_000,
        6 => -20_000_i64..0,
    ];
    let step = (act, any::<u128>(), clock_ms).prop_map(|(act, dice, clock_ms)| Step {
        act,
        dice,
        clock_ms,
    });
    proptest::collection::vec(step, 20..=120)
}

/// Choices, taken one after the other.
pub(super) struct Dice(pub(super) u128);

impl Dice {
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        let sides = sides as u128;
        let shown = self.0 % sides;
        self.0 /= sides;
        usize::try_from(shown).expect("less than the sides")
    }

    /// True once in `sides`.
    pub(super) fn odd(&mut self, sides: usize) -> bool {
        self.roll(sides) == sides - 1
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.roll(from.len().max(1));
        from.get(at).cloned()
    }

    pub(super) fn one<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())].clone()
    }
}

//! Random scripts of calls under few keys, with everything that can happen to them.

use proptest::prelude::*;

use super::judge::{CallBody, KEYS, KeyedCall};

/// One step of a script.
#[derive(Debug, Clone)]
pub(super) enum KeyStep {
    /// Calls that are under way together.
    Calls(Vec<KeyedCall>, Fate),
    /// Hours pass.
    Wait(u32),
    /// The engine forgets answers whose time is over.
    Sweep,
    /// The process ends while no call is under way, and another begins.
    Crash,
}

/// The fate of calls while their commits are in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// They are written and answered.
    Answered,
    /// Their callers go away and make the same calls again, before anything is written.
    Abandoned,
    /// The first commit finds no room.
    Full,
    /// The process ends before anything is written.
    CrashBefore,
    /// The process ends when everything is written and before any caller is answered.
    CrashAfter,
}

/// A script of 6 to 24 steps.
pub(super) fn script() -> impl Strategy<Value = Vec<KeyStep>> {
    let body = prop_oneof![
        8 => Just(CallBody::Plain),
        2 => Just(CallBody::Other),
        2 => Just(CallBody::Refused),
    ];
    let session = prop_oneof![8 => Just(0_u8), 1 => Just(1_u8)];
    let ask =
        (0..KEYS, session, body).prop_map(|(key, session, body)| KeyedCall { key, session, body });
    let fate = prop_oneof![
        10 => Just(Fate::Answered),
        4 => Just(Fate::Abandoned),
        2 => Just(Fate::Full),
        2 => Just(Fate::CrashBefore),
        4 => Just(Fate::CrashAfter),
    ];
    let calls = (proptest::collection::vec(ask, 1..=4), fate);
    let step = prop_oneof![
        12 => calls.prop_map(|(asks, fate)| KeyStep::Calls(asks, fate)),
        3 => prop_oneof![Just(1), Just(11), Just(24)].prop_map(KeyStep::Wait),
        1 => Just(KeyStep::Sweep),
        2 => Just(KeyStep::Crash),
    ];
    proptest::collection::vec(step, 6..=24)
}

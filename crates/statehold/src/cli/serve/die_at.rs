//! For crash tests: a server of a debug build kills itself at a given step. Release builds do not
//! contain this code.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use statehold_agents::runner::{CommitPhase, StepHook, StepKind};

use crate::exit::Failure;

/// Names the step: `model:before`, or `model:after:2` for the second time.
pub(super) const VARIABLE: &str = "STATEHOLD_DIE_AT";

/// The step at which the process dies.
#[derive(Debug, PartialEq, Eq)]
struct CrashPoint {
    kind: StepKind,
    moment: CommitPhase,
    /// How often the step is reached, the fatal time included.
    times: u64,
}

/// The hook for each step, from the environment variable.
///
/// # Errors
///
/// If the variable names an unknown step.
pub(super) fn on_step() -> Result<StepHook, Failure> {
    let Some(told) = std::env::var_os(VARIABLE) else {
        return Ok(Arc::new(|_, _| ()));
    };
    let told = told.to_string_lossy();
    let at = CrashPoint::read(&told).ok_or_else(|| unknown_step(&told))?;
    let reached = AtomicU64::new(0);
    Ok(Arc::new(move |kind, moment| {
        let is_there = (kind, moment) == (at.kind, at.moment);
        if is_there && reached.fetch_add(1, Ordering::SeqCst) + 1 == at.times {
            kill_self();
        }
    }))
}

impl CrashPoint {
    fn read(told: &str) -> Option<Self> {
        let mut parts = told.split(':');
        let word = parts.next()?;
        let kind = StepKind::ALL.into_iter().find(|kind| kind.word() == word)?;
        let moment = match parts.next()? {
            "before" => CommitPhase::Before,
            "after" => CommitPhase::After,
            _ => return None,
        };
        let times = parts.next().map_or(Ok(1), str::parse).ok()?;
        let is_whole = parts.next().is_none() && times > 0;
        is_whole.then_some(Self {
            kind,
            moment,
            times,
        })
    }
}

fn unknown_step(told: &str) -> Failure {
    let words: Vec<&str> = StepKind::ALL.into_iter().map(StepKind::word).collect();
    let hint = format!(
        "it is STEP:before or STEP:after, and then :N for the N-th time; the steps are {}",
        words.join(", ")
    );
    Failure::usage(format!("`{VARIABLE}` is {told:?}, which is not a step")).hint(&hint)
}

/// Kills this process like a crash: no cleanup, no goodbye.
fn kill_self() {
    use rustix::process::{Signal, getpid, kill_process};
    if let Err(error) = kill_process(getpid(), Signal::KILL) {
        tracing::error!(%error, "cannot die as it was told to");
    }
    // The signal reaches all threads in its own time; this one must do nothing more.
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_can_be_named_and_nothing_else() {
        for kind in StepKind::ALL {
            for (text, moment) in [
                ("before", CommitPhase::Before),
                ("after", CommitPhase::After),
            ] {
                let word = kind.word();
                let at = |times| {
                    Some(CrashPoint {
                        kind,
                        moment,
                        times,
                    })
                };
                assert_eq!(CrashPoint::read(&format!("{word}:{text}")), at(1));
                assert_eq!(CrashPoint::read(&format!("{word}:{text}:3")), at(3));
            }
        }
        for wrong in [
            "",
            "model",
            "model:",
            "model:now",
            "models:before",
            "model:before:0",
            "model:before:x",
            "model:before:1:1",
        ] {
            assert_eq!(CrashPoint::read(wrong), None, "{wrong}");
        }
    }
}

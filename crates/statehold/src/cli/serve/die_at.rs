//! For tests of crashes: a server of a debug build that kills itself where it is told to. Programs that
//! are built for use have none of this.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use statehold_agents::runner::{CommitPhase, StepHook, StepKind};

use crate::exit::Failure;

/// Says where: `model:before`, or `model:after:2` for the second time.
pub(super) const VARIABLE: &str = "STATEHOLD_DIE_AT";

/// Where to die.
#[derive(Debug, PartialEq, Eq)]
struct DieAt {
    kind: StepKind,
    moment: CommitPhase,
    /// How often the place is reached, this time included.
    times: u64,
}

/// What to do at each step, as the variable says.
///
/// # Errors
///
/// If it names no step.
pub(super) fn on_step() -> Result<StepHook, Failure> {
    let Some(told) = std::env::var_os(VARIABLE) else {
        return Ok(Arc::new(|_, _| ()));
    };
    let told = told.to_string_lossy();
    let at = DieAt::read(&told).ok_or_else(|| unknown(&told))?;
    let reached = AtomicU64::new(0);
    Ok(Arc::new(move |kind, moment| {
        let is_there = (kind, moment) == (at.kind, at.moment);
        if is_there && reached.fetch_add(1, Ordering::SeqCst) + 1 == at.times {
            die();
        }
    }))
}

impl DieAt {
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

fn unknown(told: &str) -> Failure {
    let words: Vec<&str> = StepKind::ALL.into_iter().map(StepKind::word).collect();
    let hint = format!(
        "it is STEP:before or STEP:after, and then :N for the N-th time; the steps are {}",
        words.join(", ")
    );
    Failure::usage(format!("`{VARIABLE}` is {told:?}, which is no step")).hint(&hint)
}

/// Ends this process as a crash does: nothing is finished, nobody is told.
fn die() {
    use rustix::process::{Signal, getpid, kill_process};
    if let Err(error) = kill_process(getpid(), Signal::KILL) {
        tracing::error!(%error, "cannot die as it was told to");
    }
    // The signal reaches all threads in its own time; this one does nothing more.
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
                    Some(DieAt {
                        kind,
                        moment,
                        times,
                    })
                };
                assert_eq!(DieAt::read(&format!("{word}:{text}")), at(1));
                assert_eq!(DieAt::read(&format!("{word}:{text}:3")), at(3));
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
            assert_eq!(DieAt::read(wrong), None, "{wrong}");
        }
    }
}

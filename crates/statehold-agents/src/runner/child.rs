//! Child requests: starts a request for another agent once, and waits until it ends.

use statehold_core::ids::RequestId;
use statehold_core::item::Role;
use statehold_core::name::Name;
use statehold_core::request::RequestOutcome;
use statehold_engine::{Ended, Progress};

use super::journal::StepKind;
use super::run::{AgentRun, CommitPhase};
use crate::message::AgentMessage;
use crate::turn::{TurnError, TurnFailure};

/// Result of a child request.
#[derive(Debug)]
pub(crate) enum ChildAnswer {
    /// The child completed with this message.
    Completed(AgentMessage),
    /// The child failed or was cancelled.
    Failed(TurnFailure),
}

impl AgentRun {
    /// Sends a request to another agent and waits for its result. `passes`: stream the child's answer
    /// into this request's answer.
    pub(crate) async fn ask_agent(
        &mut self,
        agent: &Name,
        message: &AgentMessage,
        passes: bool,
    ) -> Result<ChildAnswer, TurnError> {
        let child = match self.children.pop_front() {
            Some((started, asked)) if asked == *agent => started,
            Some((_, asked)) => {
                let what = format!("it had called {asked} and would now call {agent}");
                return Err(step_mismatch(&what));
            }
            None => self.start_child(agent, message).await?,
        };
        self.wait_for(child, passes).await?;
        let ended = self.request.end_of(child).await?;
        self.notify_hook(StepKind::Child, CommitPhase::After);
        Ok(child_answer(agent, ended.as_ref()))
    }

    async fn start_child(
        &mut self,
        agent: &Name,
        message: &AgentMessage,
    ) -> Result<RequestId, TurnError> {
        let mut batch = self.request.batch().await?;
        let input = message.put(batch.payloads());
        // Reserve a turn and claim a hosted child in the commit that starts it. That saves the trip
        // through the claim queue.
        let slot = self.generation.reserve_turn(agent).await;
        let lease_ms = slot.as_ref().map(|_| super::lease_ms());
        self.notify_hook(StepKind::Child, CommitPhase::Before);
        // One write to the disk takes the deferred step and the start.
        let step = self.deferred.take();
        let step_batch = match &step {
            Some(step) => Some(self.step_batch(step).await?),
            None => None,
        };
        let credential = self.credential.as_ref();
        let id = self
            .request
            .start_child((agent, lease_ms), (input, batch), step_batch, credential)
            .await?;
        if let Some(step) = step {
            self.notify_hook(step.kind, CommitPhase::After);
        }
        if let Some(slot) = slot {
            let child = self
                .engine
                .handed_over(&self.generation.caller, self.request.ids.session, id, 1)
                .await;
            match child {
                Ok(child) => slot.start(child),
                // The child has started anyway. It has already ended, or it is claimed again after its
                // lease expires.
                Err(error) => {
                    tracing::warn!(%agent, request = %id, %error, "a request waits to be claimed again");
                }
            }
        }
        Ok(id)
    }

    /// Waits until the child ends. If the child waits for a person, releases this request's lease
    /// instead of waiting.
    async fn wait_for(&mut self, child: RequestId, passes: bool) -> Result<(), TurnError> {
        let session = self.request.ids.session;
        let mut draft = passes.then(|| self.engine.follow_draft(child));
        let mut is_written = false;
        loop {
            let (progress, revision) = self.request.progress_of(child).await?;
            match progress {
                Progress::Ended => {
                    // Forward the rest of the child's draft before returning.
                    if let Some(draft) = &mut draft {
                        self.engine.forget_draft(child);
                        while let Some(piece) = draft.next().await {
                            self.write_draft(&piece);
                        }
                    }
                    return Ok(());
                }
                Progress::Paused => return Err(self.release_lease().await),
                Progress::Live => {}
            }
            let changed = self.engine.changed_after(session, revision);
            tokio::pin!(changed);
            loop {
                let piece = async {
                    match &mut draft {
                        Some(draft) if !is_written => draft.next().await,
                        _ => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = &mut changed => {
                        changed?;
                        break;
                    }
                    piece = piece => match piece {
                        Some(piece) => self.write_draft(&piece),
                        None => is_written = true,
                    },
                }
            }
        }
    }
}

fn child_answer(agent: &Name, ended: Option<&Ended>) -> ChildAnswer {
    let id = ended.map(|ended| ended.request.id);
    let finished = ended.and_then(|ended| ended.finished.as_ref());
    let lost = || TurnFailure {
        code: "agent_failed".to_owned(),
        message: format!("the answer of {agent} is no longer stored"),
    };
    match ended.map(|ended| ended.request.outcome) {
        Some(RequestOutcome::Completed) => {
            let said = id.zip(finished);
            let said = said
                .and_then(|(id, stored)| AgentMessage::from_record(stored, id, Role::Assistant));
            said.map_or_else(|| ChildAnswer::Failed(lost()), ChildAnswer::Completed)
        }
        Some(RequestOutcome::Failed) => {
            let error = id
                .zip(finished)
                .and_then(|(id, stored)| super::read_error(stored, id));
            ChildAnswer::Failed(error.unwrap_or_else(lost))
        }
        Some(RequestOutcome::Cancelled) | None => ChildAnswer::Failed(TurnFailure {
            code: "agent_cancelled".to_owned(),
            message: format!("the request to {agent} was cancelled"),
        }),
    }
}

/// Error for a turn that takes other steps than it took before a crash or a pause.
pub(super) fn step_mismatch(what: &str) -> TurnError {
    let message = format!(
        "this turn cannot resume: {what}; its agent may have been declared anew in \
         between. Nothing was done twice; ask again"
    );
    TurnError::failed("step_mismatch", message)
}

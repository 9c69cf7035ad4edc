//! Child requests: starts a request for another agent once, and waits until it ends.

use std::sync::{Mutex, PoisonError};

use statehold_core::ids::RequestId;
use statehold_core::item::Role;
use statehold_core::name::Name;
use statehold_core::request::RequestOutcome;
use statehold_engine::bodies::{error_in, payload};
use statehold_engine::leased::{ChildLease, ClaimedTurn};
use statehold_engine::stage::StageStatus;
use statehold_engine::{DraftReader, Ended, Progress, StoredRecord};
use tokio::sync::oneshot;

use super::generation::TurnSlot;
use super::journal::StepKind;
use super::run::{AgentRun, CommitPhase, WaitingParent};
use crate::message::AgentMessage;
use crate::stages::OpenStage;
use crate::turn::{TurnError, TurnFailure};
use crate::turn_memory;

/// Longest error code that is copied from another agent's failure, in bytes.
const CODE_BYTES_MAX: usize = 64;

/// Result of a child request.
#[derive(Debug)]
pub(crate) enum ChildAnswer {
    /// The child completed with this message.
    Completed(AgentMessage),
    /// The child failed or was cancelled.
    Failed(TurnFailure),
}

/// The draft of a child's answer, and where its text goes.
pub(super) struct ChildDraft {
    reader: DraftReader,
    /// The stage of the call. None if the answer of the child is the answer of this turn.
    stage: Option<OpenStage>,
}

impl AgentRun {
    /// Sends a request to another agent and waits for its result. `passes`: this turn ends with the answer
    /// of the child, so stream it, and take it as soon as it is decided.
    pub(crate) async fn ask_agent(
        &mut self,
        agent: &Name,
        message: &AgentMessage,
        passes: bool,
    ) -> Result<(RequestId, ChildAnswer), TurnError> {
        let stage = self.stages.open(&format!("Call {agent} Agent"));
        let (child, answer) = match self.children.pop_front() {
            Some((started, asked)) if asked == *agent => {
                // Nothing is committed before the turn goes on with this child, so its lease may not be durable yet.
                self.request.durable().await?;
                (started, None)
            }
            Some((_, asked)) => {
                let what = format!("it had called {asked} and would now call {agent}");
                return Err(step_mismatch(&what));
            }
            None => self.start_child(agent, message, &stage).await?,
        };
        let draft = passes.then(|| ChildDraft {
            reader: self.engine.follow_draft(child),
            stage: None,
        });
        let shown = || stage.shows_text() && self.generation.shows_text_of(agent);
        let draft = draft.or_else(|| {
            shown().then(|| ChildDraft {
                reader: self.engine.follow_draft(child),
                stage: Some(stage.clone()),
            })
        });
        let answer = answer.filter(|_| passes);
        if let Some(message) = self.wait_for(child, draft, answer).await? {
            hold_answer(&message)?;
            stage.close(StageStatus::Completed);
            self.ending_child = Some(child);
            return Ok((child, ChildAnswer::Completed(message)));
        }
        let ended = self.request.end_of(child).await?;
        self.notify_hook(StepKind::Child, CommitPhase::After);
        let answer = child_answer(agent.as_str(), ended.as_ref());
        if let ChildAnswer::Completed(message) = &answer {
            hold_answer(message)?;
        }
        stage.close(match &answer {
            ChildAnswer::Completed(_) => StageStatus::Completed,
            ChildAnswer::Failed(_) => StageStatus::Failed,
        });
        Ok((child, answer))
    }

    /// Leaves out a child whose end is recorded in a step, so that the next agent is not taken for it.
    pub(crate) fn leave_out_child(&mut self, child: RequestId) {
        self.children.retain(|(known, _)| *known != child);
        self.failed_child.take_if(|failed| failed.request == child);
    }

    /// The answer of a child that has ended.
    pub(crate) async fn answer_of(&self, child: RequestId) -> Result<AgentMessage, TurnError> {
        let ended = self.request.end_of(child).await?;
        match child_answer("the agent", ended.as_ref()) {
            ChildAnswer::Completed(message) => Ok(message),
            ChildAnswer::Failed(failure) => Err(TurnError::Failed(failure)),
        }
    }

    /// Starts the child. One that this server hosts begins when its start is decided, and its answer can be
    /// awaited.
    async fn start_child(
        &mut self,
        agent: &Name,
        message: &AgentMessage,
        stage: &OpenStage,
    ) -> Result<(RequestId, Option<oneshot::Receiver<AgentMessage>>), TurnError> {
        let mut batch = self.request.batch().await?;
        let input = message.put(batch.payloads());
        // Reserve a turn and claim a hosted child in the commit that starts it. That saves the trip
        // through the claim queue.
        let slot = self
            .generation
            .reserve_turn(agent, self.request.ids.request)
            .await;
        let starts_with_commit = slot.as_ref().map(TurnSlot::starts_with_commit);
        let (slot, answer) = (Mutex::new(slot), Mutex::new(None));
        let hand_over = |child: ClaimedTurn| {
            let (answer_sender, answer_receiver) = oneshot::channel();
            let parent = WaitingParent {
                answer: answer_sender,
                stages: stage.below(),
            };
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer_receiver);
            let slot = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            match slot {
                Some(slot) => slot.start(child, Some(parent)),
                // The commit of the first start failed, and its turn has taken the permit.
                None => self
                    .generation
                    .start_turn(agent.clone(), child, Some(parent)),
            }
        };
        let lease = starts_with_commit.map(|starts_with_commit| ChildLease {
            ttl_ms: super::LEASE_MS,
            starts_with_commit,
            hand_over: &hand_over,
        });
        self.notify_hook(StepKind::Child, CommitPhase::Before);
        // One write to the disk takes the deferred step and the start.
        let step = self.deferred.take();
        let step_batch = match &step {
            Some(step) => Some(self.step_batch(step).await?),
            None => None,
        };
        let credential = self.credential.as_ref();
        let continued = self.failed_child.take_if(|child| child.agent == *agent);
        let (child, input) = ((agent, lease), (input, batch));
        let id = self
            .request
            .start_child(child, input, continued.as_ref(), step_batch, credential)
            .await?;
        if let Some(step) = step {
            self.notify_hook(step.kind, CommitPhase::After);
        }
        let answer = answer.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((id, answer))
    }

    /// Waits until the child has ended, or until its `answer` is decided, and returns that. If the child
    /// waits for a person, releases this request's lease instead of waiting.
    pub(super) async fn wait_for(
        &mut self,
        child: RequestId,
        mut draft: Option<ChildDraft>,
        mut answer: Option<oneshot::Receiver<AgentMessage>>,
    ) -> Result<Option<AgentMessage>, TurnError> {
        let session = self.request.ids.session;
        let mut is_written = false;
        loop {
            let (progress, revision) = self.request.progress_of(child).await?;
            match progress {
                Progress::Ended => {
                    self.forward_rest(child, draft).await;
                    return Ok(None);
                }
                Progress::Paused => return Err(self.release_lease().await),
                Progress::Live => {}
            }
            let changed = self.engine.changed_after(session, revision);
            tokio::pin!(changed);
            loop {
                let piece = async {
                    match &mut draft {
                        Some(draft) if !is_written => draft.reader.next().await,
                        _ => std::future::pending().await,
                    }
                };
                let decided = async {
                    match &mut answer {
                        Some(answer) => answer.await.ok(),
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    decided = decided => match decided {
                        Some(message) => {
                            self.forward_rest(child, draft).await;
                            return Ok(Some(message));
                        }
                        // It has no answer yet: it failed, or waits for a person.
                        None => answer = None,
                    },
                    changed = &mut changed => {
                        changed?;
                        break;
                    }
                    piece = piece => match piece {
                        Some(piece) => self.forward(&piece, draft.as_ref()),
                        None => is_written = true,
                    },
                }
            }
        }
    }
}

impl AgentRun {
    /// Forwards the rest of the draft of a child that has written its answer.
    async fn forward_rest(&self, child: RequestId, draft: Option<ChildDraft>) {
        let Some(mut draft) = draft else { return };
        self.engine.forget_draft(child);
        while let Some(piece) = draft.reader.next().await {
            self.forward(&piece, Some(&draft));
        }
    }

    /// Writes a piece of a child's answer into its stage, or into the answer of this turn.
    fn forward(&self, piece: &str, draft: Option<&ChildDraft>) {
        match draft.and_then(|draft| draft.stage.as_ref()) {
            Some(stage) => stage.write(piece),
            None => self.write_draft(piece),
        }
    }
}

/// Takes memory for the answer of a child: the turn has it until it ends.
fn hold_answer(message: &AgentMessage) -> Result<(), TurnError> {
    let held = turn_memory::take(message.content.get().len());
    held.map_err(|error| error.turn_failure(error.to_string()))
}

fn child_answer(agent: &str, ended: Option<&Ended>) -> ChildAnswer {
    let id = ended.map(|ended| ended.request.id);
    let finished = ended.and_then(|ended| ended.finished.as_ref());
    let lost = || TurnFailure {
        code: "agent_failed".to_owned(),
        message: format!("the answer of {agent} is no longer stored"),
        retry_after_seconds: None,
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
                .and_then(|(id, stored)| read_error(stored, id));
            ChildAnswer::Failed(error.unwrap_or_else(lost))
        }
        Some(RequestOutcome::Cancelled) | None => ChildAnswer::Failed(TurnFailure {
            code: "agent_cancelled".to_owned(),
            message: format!("the request to {agent} was cancelled"),
            retry_after_seconds: None,
        }),
    }
}

/// Error for a turn that takes other steps than it took before a crash or a pause.
pub(crate) fn step_mismatch(what: &str) -> TurnError {
    let message = format!(
        "this turn cannot resume: {what}; its agent may have been declared anew in \
         between. Nothing was done twice; ask again"
    );
    TurnError::failed("step_mismatch", message)
}

/// Reads the error of a failed request from its record.
fn read_error(stored: &StoredRecord, id: RequestId) -> Option<TurnFailure> {
    let error = error_in(&stored.record.content.events, id)?;
    let value: serde_json::Value = serde_json::from_slice(payload(stored, error)?).ok()?;
    let text = |name: &str| value.get(name).and_then(serde_json::Value::as_str);
    let message = value.as_str().or_else(|| text("message"));
    // Workers choose their own error codes, so bound the length.
    let code = text("code").filter(|code| code.len() <= CODE_BYTES_MAX);
    Some(TurnFailure {
        code: code.unwrap_or("agent_failed").to_owned(),
        message: message.unwrap_or("the agent gave no reason").to_owned(),
        retry_after_seconds: value["retry_after_seconds"].as_u64(),
    })
}

//! Asking another agent: a request of its own, started once, waited for as long as it goes on.

use std::sync::Arc;

use statehold_core::command::{Command, StartRequest, StatePatch};
use statehold_core::ids::RequestId;
use statehold_core::item::Role;
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_core::request::RequestOutcome;
use statehold_core::task::CloseOn;
use statehold_engine::{Committed, Done, Ended, Payloads, Progress, Reply};

use super::journal::StepKind;
use super::run::{Moment, Run};
use crate::turn::{TurnError, TurnFailure};
use crate::words::Words;

/// What another agent answered.
#[derive(Debug)]
pub(crate) enum ChildAnswer {
    /// It answered.
    Said(Words),
    /// It could not.
    Failed(TurnFailure),
}

impl Run {
    /// Asks an agent, and waits for it. With `passes`, what it says is said here while it says it.
    pub(crate) async fn ask_agent(
        &mut self,
        agent: &Name,
        words: &Words,
        passes: bool,
    ) -> Result<ChildAnswer, TurnError> {
        let child = match self.children.pop_front() {
            Some((started, asked)) if asked == *agent => started,
            Some((_, asked)) => {
                let what = format!("it had asked {asked} and would now ask {agent}");
                return Err(step_mismatch(&what));
            }
            None => self.start_child(agent, words).await?,
        };
        self.wait_for(child, passes).await?;
        let ended = self.engine.ended(self.place.session, child).await?;
        self.reach(StepKind::Child, Moment::After);
        Ok(answer_of(agent, ended.as_ref()))
    }

    async fn start_child(&mut self, agent: &Name, words: &Words) -> Result<RequestId, TurnError> {
        let mut payloads = self.payloads().await?;
        let input = words.put(&mut payloads);
        // One of ours is begun in the same breath, without a detour over the line of those who wait.
        let room = self.runner.room_for(agent).await;
        let command = Command::StartRequest(StartRequest {
            agent: agent.clone(),
            task: None,
            parent: Some(self.fenced()),
            input: input.body,
            attachments: input.attachments,
            close_on: CloseOn::Never,
            lease_ttl_ms: room.as_ref().map(|_| super::lease_ms()),
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        });
        let reply: Reply = Arc::new(|made: &Committed<'_>| {
            let events = &made.record.content.events;
            let started = events.iter().find_map(|event| match event {
                Event::RequestStarted { request, .. } => Some(request.to_string().into_bytes()),
                _ => None,
            });
            started.unwrap_or_default()
        });
        self.reach(StepKind::Child, Moment::Before);
        let done = self.send_start(&command, &payloads, &reply).await?;
        let id = String::from_utf8_lossy(&done.body).parse();
        let id =
            id.map_err(|_| TurnError::failed("internal", "a request was started without an id"))?;
        if let Some(room) = room {
            let child = self
                .engine
                .handed_over(&self.caller, self.place.session, id, 1)
                .await;
            match child {
                Ok(child) => room.take(child),
                // It is started all the same, and has ended, or is claimed once its lease has lapsed.
                Err(error) => {
                    tracing::warn!(%agent, request = %id, %error, "a request waits to be claimed again");
                }
            }
        }
        Ok(id)
    }

    /// Starts a request, right behind the step that it follows from, if that waits for it.
    async fn send_start(
        &mut self,
        command: &Command,
        payloads: &Payloads,
        reply: &Reply,
    ) -> Result<Done, TurnError> {
        let (session, credential) = (self.place.session, self.credential.clone());
        let credential = credential.as_ref();
        let Some(step) = self.waiting.take() else {
            let call = self.call();
            let engine = &self.engine;
            let done = engine
                .submit_with_credential(session, &call, command, payloads, reply, credential)
                .await;
            return Ok(done?);
        };
        let (append, with) = self.appending(&step).await?;
        let first = (&append, &with);
        let second = (command, payloads, reply);
        let done = self
            .engine
            .submit_both(session, &self.caller, first, second, credential)
            .await?;
        self.reach(step.kind, Moment::After);
        Ok(done)
    }

    /// Waits until a request has ended. If it waits for a person, nobody stays to wait with it.
    async fn wait_for(&mut self, child: RequestId, passes: bool) -> Result<(), TurnError> {
        let session = self.place.session;
        let mut draft = passes.then(|| self.engine.follow_draft(child));
        let mut is_written = false;
        loop {
            let (progress, revision) = self.engine.progress(session, child).await?;
            match progress {
                Progress::Ended => {
                    // Whatever was written last is passed on before the end.
                    if let Some(draft) = &mut draft {
                        self.engine.forget_draft(child);
                        while let Some(piece) = draft.next().await {
                            self.say(&piece);
                        }
                    }
                    return Ok(());
                }
                Progress::Paused => return Err(self.leave().await),
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
                        Some(piece) => self.say(&piece),
                        None => is_written = true,
                    },
                }
            }
        }
    }
}

fn answer_of(agent: &Name, ended: Option<&Ended>) -> ChildAnswer {
    let id = ended.map(|ended| ended.request.id);
    let finished = ended.and_then(|ended| ended.finished.as_ref());
    let lost = || TurnFailure {
        code: "agent_failed".to_owned(),
        message: format!("what {agent} said is not kept any more"),
    };
    match ended.map(|ended| ended.request.outcome) {
        Some(RequestOutcome::Completed) => {
            let said = id.zip(finished);
            let said = said.and_then(|(id, stored)| Words::of_record(stored, id, Role::Assistant));
            said.map_or_else(|| ChildAnswer::Failed(lost()), ChildAnswer::Said)
        }
        Some(RequestOutcome::Failed) => {
            let error = id
                .zip(finished)
                .and_then(|(id, stored)| super::error_of(stored, id));
            ChildAnswer::Failed(error.unwrap_or_else(lost))
        }
        Some(RequestOutcome::Cancelled) | None => ChildAnswer::Failed(TurnFailure {
            code: "agent_cancelled".to_owned(),
            message: format!("the request to {agent} was cancelled"),
        }),
    }
}

/// A turn that takes other steps than it took before a crash or a pause cannot go on.
pub(super) fn step_mismatch(what: &str) -> TurnError {
    let message = format!(
        "this turn cannot go on where it stopped: {what}; its agent may have been declared anew in \
         between. Nothing was done twice; ask again"
    );
    TurnError::failed("step_mismatch", message)
}

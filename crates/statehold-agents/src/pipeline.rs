//! The pipeline agent: a coordinator that runs its phases in order, each an agent below it.
//!
//! Each begin of a phase is a step, with the end of the phase before it. A turn that resumes replays those
//! steps, reads the answers of the completed phases again, and goes on at the first phase without an end.

mod phase_message;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use statehold_core::name::Name;
use statehold_core::scope::{Scope, StateKey};
use statehold_engine::EngineError;
use statehold_engine::phases::{PhaseBegin, PhaseEnd, PhaseStatus, PhaseStep};

use crate::message::{AgentMessage, raw};
use crate::runner::{AgentRun, ChildAnswer, StepExtras, StepKind, step_mismatch};
use crate::spec::{AgentBook, LoopLimitPolicy, PhaseErrorPolicy, PhaseSpec, PipelineSpec};
use crate::turn::{Agent, TraceNote, TurnAnswer, TurnError, TurnFailure};
use phase_message::phase_message;

/// The step that begins a phase.
const PHASE_STEP: (StepKind, &str) = (StepKind::Phase, "the phase of this turn");
/// The code of a child that was cancelled. It is never started again by itself.
const CANCELLED: &str = "agent_cancelled";

/// Runs agents one after another.
pub(crate) struct PipelineAgent {
    spec: Arc<PipelineSpec>,
    /// The `temp:` keys under which agents of phases write their answers.
    temp_keys: BTreeMap<Name, StateKey>,
}

/// Answers of a turn in the order in which they were given: of each phase the newest.
#[derive(Default)]
struct PhaseAnswers(Vec<(Name, AgentMessage)>);

impl PhaseAnswers {
    fn insert(&mut self, phase: &Name, answer: AgentMessage) {
        self.0.retain(|(known, _)| known != phase);
        self.0.push((phase.clone(), answer));
    }

    fn of(&self, phase: &Name) -> Option<&AgentMessage> {
        let found = self.0.iter().find(|(known, _)| known == phase);
        found.map(|(_, answer)| answer)
    }

    /// The answer of the pipeline.
    fn take(mut self, from: Option<&Name>) -> Option<AgentMessage> {
        let place = match from {
            Some(from) => self.0.iter().position(|(phase, _)| phase == from),
            None => self.0.len().checked_sub(1),
        };
        place.map(|place| self.0.swap_remove(place).1)
    }
}

/// The end of one run of a phase, and the step or the end of the turn that follows.
enum PhaseOutcome {
    Next(PhaseStep),
    /// The last phase has ended.
    Last(PhaseEnd),
}

/// How a turn goes on from the end of a phase.
enum NextMove {
    Begin(PhaseBegin),
    Finish,
}

impl PipelineAgent {
    pub(crate) fn new(spec: Arc<PipelineSpec>, book: &AgentBook) -> Self {
        let keys = spec.phases.iter().filter_map(|phase| {
            let key = book.agent(&phase.agent)?.output_key.clone()?;
            (key.scope() == Scope::Temp).then(|| (phase.agent.clone(), key))
        });
        let temp_keys = keys.collect();
        Self { spec, temp_keys }
    }

    /// A declared phase, and its place.
    fn phase(&self, name: &Name) -> Result<(usize, &PhaseSpec), TurnError> {
        let mut phases = self.spec.phases.iter().enumerate();
        let found = phases.find(|(_, phase)| phase.name == *name);
        found.ok_or_else(|| step_mismatch(&format!("its phase `{name}` is no longer declared")))
    }

    fn begin_of(phase: &PhaseSpec, cycle: u32, attempt: u32) -> PhaseBegin {
        PhaseBegin {
            phase: phase.name.clone(),
            agent: phase.agent.clone(),
            cycle,
            attempt,
            clipped: Vec::new(),
        }
    }

    /// The phase after the one at this place, or the end of the turn.
    fn after(&self, place: usize, cycle: u32) -> NextMove {
        match self.spec.phases.get(place + 1) {
            Some(next) => NextMove::Begin(Self::begin_of(next, cycle, 1)),
            None => NextMove::Finish,
        }
    }

    /// Whether the answer of this run is certain to be the answer of the pipeline, so that it can be
    /// streamed.
    fn is_answer(&self, (place, phase): (usize, &PhaseSpec), began: &PhaseBegin) -> bool {
        let may_go_back = !phase.loop_back.is_empty()
            && (began.cycle <= self.spec.loops_max
                || self.spec.on_loop_limit == LoopLimitPolicy::Fail);
        let may_fail_softly =
            began.attempt <= phase.retries || phase.on_error == PhaseErrorPolicy::Skip;
        let is_last = place + 1 == self.spec.phases.len();
        let answers = self.spec.answer_from.as_ref();
        is_last
            && !may_go_back
            && !may_fail_softly
            && answers.is_none_or(|phase| *phase == began.phase)
    }

    /// How the turn goes on from an answer.
    fn after_answer(
        &self,
        (place, phase): (usize, &PhaseSpec),
        began: &PhaseBegin,
        (answer, end): (&AgentMessage, &mut PhaseEnd),
    ) -> Result<NextMove, TurnError> {
        let text = answer.text();
        let mut rules = phase.loop_back.iter();
        let Some(rule) = rules.find(|rule| rule.pattern.is_match(&text)) else {
            return Ok(self.after(place, began.cycle));
        };
        if began.cycle <= self.spec.loops_max {
            let (_, to) = self.phase(&rule.to)?;
            return Ok(NextMove::Begin(Self::begin_of(to, began.cycle + 1, 1)));
        }
        end.loop_limit = true;
        match self.spec.on_loop_limit {
            LoopLimitPolicy::Continue => Ok(self.after(place, began.cycle)),
            LoopLimitPolicy::Fail => {
                let message = format!(
                    "the phase `{}` asks to go back to `{}` again, after {} times in this turn; raise \
                     `loops_max` of the pipeline, or set `on_loop_limit = \"continue\"`",
                    phase.name, rule.to, self.spec.loops_max
                );
                Err(TurnError::failed("loop_limit", message))
            }
        }
    }

    /// How the turn goes on from a failure. None if it fails.
    fn after_failure(
        &self,
        (place, phase): (usize, &PhaseSpec),
        began: &PhaseBegin,
        (failure, end): (&TurnFailure, &mut PhaseEnd),
    ) -> Option<NextMove> {
        if began.attempt <= phase.retries && failure.code != CANCELLED {
            let again = Self::begin_of(phase, began.cycle, began.attempt + 1);
            return Some(NextMove::Begin(again));
        }
        if phase.on_error == PhaseErrorPolicy::Fail {
            return None;
        }
        end.status = PhaseStatus::Skipped;
        Some(self.after(place, began.cycle))
    }

    /// Records the begin of a phase, and the end of the one before it. The commit that starts the agent takes
    /// the step.
    async fn begin(
        &self,
        run: &mut AgentRun,
        before: Option<&PhaseBegin>,
        next: Option<PhaseStep>,
        answers: &PhaseAnswers,
    ) -> Result<PhaseStep, TurnError> {
        let input = raw(&before);
        let work = async {
            let next = next.ok_or_else(|| step_mismatch("a phase is not recorded"))?;
            let ended = next.ended.as_ref();
            let extras = StepExtras {
                shown: ended.and_then(|end| self.shown(end, answers)),
                is_deferred: true,
                ..StepExtras::default()
            };
            Ok((next, extras))
        };
        run.step(PHASE_STEP, input.get().as_bytes(), work).await
    }

    /// The answer of a phase that has just ended, if clients see it.
    fn shown(&self, end: &PhaseEnd, answers: &PhaseAnswers) -> Option<(Name, AgentMessage)> {
        if !self.spec.show_phases || end.status != PhaseStatus::Completed {
            return None;
        }
        let answer = answers.of(&end.phase)?;
        Some((end.phase.clone(), answer.clone()))
    }

    /// Writes the `temp:` value of an answer again: a pause or a restart may have dropped it.
    async fn restore_temp(
        &self,
        run: &AgentRun,
        agent: &Name,
        answer: &AgentMessage,
    ) -> Result<(), TurnError> {
        if let Some(key) = self.temp_keys.get(agent) {
            let value = raw(&answer.text());
            match run.put_temp(vec![(key.clone(), Some(value))]).await {
                // The phase left it out, too.
                Err(EngineError::StateInvalid { .. }) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Runs the agent of a phase, or waits for the one that was started before.
    async fn run_phase(
        &self,
        run: &mut AgentRun,
        began: &PhaseBegin,
        answers: &mut PhaseAnswers,
    ) -> Result<PhaseOutcome, TurnError> {
        let (place, phase) = self.phase(&began.phase)?;
        let (message, _) = phase_message(&run.input, phase, &answers.0);
        let passes = self.is_answer((place, phase), began);
        let (request_id, answer) = run.ask_agent(&began.agent, &message, passes).await?;
        let mut end = PhaseEnd {
            phase: began.phase.clone(),
            cycle: began.cycle,
            attempt: began.attempt,
            status: PhaseStatus::Completed,
            request_id,
            code: None,
            loop_limit: false,
        };
        let next = match answer {
            ChildAnswer::Completed(answer) => {
                let next = self.after_answer((place, phase), began, (&answer, &mut end))?;
                if let NextMove::Begin(_) = next {
                    // The agent may have answered before this process began.
                    self.restore_temp(run, &began.agent, &answer).await?;
                }
                answers.insert(&phase.name, answer);
                next
            }
            ChildAnswer::Failed(failure) => {
                end.status = PhaseStatus::Failed;
                end.code = Some(failure.code.clone());
                let next = self.after_failure((place, phase), began, (&failure, &mut end));
                let is_empty = answers.0.is_empty();
                match next {
                    Some(NextMove::Begin(next)) => NextMove::Begin(next),
                    Some(NextMove::Finish) if !is_empty => NextMove::Finish,
                    Some(NextMove::Finish) | None => {
                        return Err(fail_turn(run, &end, &began.agent, failure).await);
                    }
                }
            }
        };
        Ok(match next {
            NextMove::Begin(mut began) => {
                let (_, phase) = self.phase(&began.phase)?;
                began.clipped = phase_message(&run.input, phase, &answers.0).1;
                let ended = Some(end);
                PhaseOutcome::Next(PhaseStep { ended, began })
            }
            NextMove::Finish => PhaseOutcome::Last(end),
        })
    }
}

#[async_trait]
impl Agent for PipelineAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        let mut answers = PhaseAnswers::default();
        let first = Self::begin_of(&self.spec.phases[0], 1, 1);
        let first = PhaseStep {
            ended: None,
            began: first,
        };
        let mut began = self.begin(run, None, Some(first), &answers).await?.began;
        loop {
            let is_recorded = run.next_recorded_kind().is_some();
            let next = if is_recorded {
                None
            } else {
                match self.run_phase(run, &began, &mut answers).await? {
                    PhaseOutcome::Next(next) => Some(next),
                    PhaseOutcome::Last(end) => {
                        let answer_from = self.spec.answer_from.as_ref();
                        // The answer of the turn is shown anyway.
                        let is_answer = answer_from.is_none_or(|phase| *phase == end.phase);
                        let shown = self.shown(&end, &answers).filter(|_| !is_answer);
                        let answer = answers.take(answer_from).ok_or_else(no_answer)?;
                        let mut answer = TurnAnswer::plain(answer);
                        answer.notes.push(end_note(&end));
                        answer.shown = shown;
                        return Ok(answer);
                    }
                }
            };
            let step = self.begin(run, Some(&began), next, &answers).await?;
            if let Some(end) = step.ended.filter(|_| is_recorded) {
                let answer = run.replay_child(&began.agent, end.request_id).await?;
                if end.status == PhaseStatus::Completed {
                    let answer = answer.into_message()?;
                    let (_, phase) = self.phase(&end.phase)?;
                    self.restore_temp(run, &phase.agent, &answer).await?;
                    answers.insert(&end.phase, answer);
                }
            }
            began = step.began;
        }
    }

    /// A turn begins with the request to the agent of its first phase.
    fn starts_with_commit(&self) -> bool {
        true
    }
}

fn end_note(end: &PhaseEnd) -> TraceNote {
    TraceNote::new(StepKind::Phase.word(), &serde_json::json!({ "ended": end }))
}

/// Notes the failed phase in the trace. It is no step: a turn that goes on from this failure runs the phase
/// again.
async fn fail_turn(
    run: &AgentRun,
    end: &PhaseEnd,
    agent: &Name,
    failure: TurnFailure,
) -> TurnError {
    if let Err(error) = run.append_note(&end_note(end)).await {
        return error;
    }
    let message = format!("phase `{}`, {agent}: {}", end.phase, failure.message);
    TurnError::Failed(failure).with_message(message)
}

fn no_answer() -> TurnError {
    let message = "the phase that answers for the pipeline was skipped; see the trace for its error, or \
                   change `answer_from` of the pipeline";
    TurnError::failed("agent_failed", message)
}

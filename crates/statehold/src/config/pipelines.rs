//! Pipelines: their phases, the answers that each sees, and where each may go back to.

use statehold_agents::spec::{LoopRule, PHASES_MAX, PhaseSpec, PipelineSpec, SeenAnswers};
use statehold_core::name::Name;

use super::keys::AGENTS;
use super::kinds::{AgentDeclaration, LOOPS_MAX, PhaseTable, SeenPhases, SeenWord};
use super::mistakes::ConfigReader;
use super::routers::others;

impl ConfigReader<'_> {
    /// Builds a pipeline.
    pub(super) fn pipeline(
        &mut self,
        place: &str,
        name: &Name,
        declaration: &mut AgentDeclaration,
    ) -> Option<PipelineSpec> {
        let loops_max = *declaration.loops_max.get_or_insert(LOOPS_MAX);
        let on_loop_limit = *declaration.on_loop_limit.get_or_insert_default();
        let phases = declaration.phases.clone().unwrap_or_default();
        self.require_phases(&format!("{place}.phases"), name, &phases)?;
        if let Some(answer) = &declaration.answer_from
            && !phases.iter().any(|phase| phase.name() == answer)
        {
            let what = format!("is `{answer}`, which is not a phase");
            let hint = format!("name one of: {}", phase_names(&phases));
            self.add_mistake(format!("{place}.answer_from"), &what, hint);
        }
        Some(PipelineSpec {
            phases: phases.iter().map(phase_spec).collect(),
            loops_max: u32::try_from(loops_max.get()).unwrap_or(u32::MAX),
            on_loop_limit,
            answer_from: declaration.answer_from.clone(),
            show_phases: declaration.show_phases.unwrap_or(false),
        })
    }

    /// Requires phases with declared agents, unique names, and names that refer to phases.
    fn require_phases(&mut self, key: &str, name: &Name, phases: &[PhaseTable]) -> Option<()> {
        if phases.is_empty() {
            let hint = "add phases = [{ agent = \"…\" }, { agent = \"…\" }], in order";
            self.add_missing(key.to_owned(), hint);
            return None;
        }
        if phases.len() > PHASES_MAX {
            let what = format!("has {} phases, and may have {PHASES_MAX}", phases.len());
            let hint = "let one of them be a pipeline of its own";
            self.add_mistake(key.to_owned(), &what, hint);
        }
        for (at, phase) in phases.iter().enumerate() {
            // `require_no_circles` reports a pipeline that lists itself.
            if phase.agent != *name {
                let agent = std::slice::from_ref(&phase.agent);
                let others = others(self.config, name);
                self.require_known(key, agent, &others, "agent", AGENTS);
            }
            let own = phase.name();
            if phases[..at].iter().any(|earlier| earlier.name() == own) {
                let what = format!("has two phases named `{own}`");
                let hint = "give one of them another name: name = \"…\"";
                self.add_mistake(key.to_owned(), &what, hint);
            }
            self.require_phase_names(key, phases, at);
        }
        Some(())
    }

    /// Requires that a phase sees phases of the pipeline, and goes back to itself or an earlier one.
    fn require_phase_names(&mut self, key: &str, phases: &[PhaseTable], at: usize) {
        let phase = &phases[at];
        let own = phase.name();
        let seen = match &phase.sees {
            SeenPhases::Named(names) => names.as_slice(),
            SeenPhases::Word(_) => &[],
        };
        for name in seen {
            if !phases.iter().any(|phase| phase.name() == name) {
                let what = format!("lets `{own}` see `{name}`, which is not a phase");
                let hint = format!("name some of: {}", phase_names(phases));
                self.add_mistake(key.to_owned(), &what, hint);
            }
        }
        for rule in &phase.loop_back {
            if !phases[..=at].iter().any(|phase| phase.name() == &rule.to) {
                let to = &rule.to;
                let what = format!("lets `{own}` go back to `{to}`, which is no phase before it");
                let hint = format!("name one of: {}", phase_names(&phases[..=at]));
                self.add_mistake(key.to_owned(), &what, hint);
            }
        }
    }
}

fn phase_names(phases: &[PhaseTable]) -> String {
    let names = phases.iter().map(|phase| phase.name().as_str());
    names.collect::<Vec<_>>().join(", ")
}

fn phase_spec(phase: &PhaseTable) -> PhaseSpec {
    PhaseSpec {
        name: phase.name().clone(),
        agent: phase.agent.clone(),
        input: phase.input,
        sees: match &phase.sees {
            SeenPhases::Word(SeenWord::All) => SeenAnswers::All,
            SeenPhases::Word(SeenWord::Last) => SeenAnswers::Last,
            SeenPhases::Word(SeenWord::None) => SeenAnswers::None,
            SeenPhases::Named(names) => SeenAnswers::Named(names.clone()),
        },
        instructions: phase.instructions.clone().map(Into::into),
        retries: phase.retries.map_or(0, |retries| {
            u32::try_from(retries.get()).unwrap_or(u32::MAX)
        }),
        on_error: phase.on_error,
        loop_back: phase
            .loop_back
            .iter()
            .map(|rule| LoopRule {
                pattern: rule.pattern.regex(),
                to: rule.to.clone(),
            })
            .collect(),
    }
}

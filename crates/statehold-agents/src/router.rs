//! The router agent: a coordinator that chooses one agent per turn, forwards the message to it, and
//! returns its answer or a model's summary of it.

mod model;

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use statehold_core::name::Name;
use statehold_engine::stage::StageStatus;

use crate::message::{AgentMessage, raw};
use crate::model::ModelClient;
use crate::runner::{AgentRun, ChildAnswer, StepExtras, StepKind};
use crate::spec::{AgentBook, FinalAnswer, RouterSpec, Routing, RoutingRule};
use crate::turn::{Agent, TurnAnswer, TurnError};
use model::{AnswerWriter, RouteChooser};

/// Chooses one agent per turn.
pub(crate) struct RouterAgent {
    spec: Arc<RouterSpec>,
    /// Model that chooses, if the router has no rules.
    chooser: Option<RouteChooser>,
    /// Model that writes the final answer, if the agent's answer is not passed through.
    answer_writer: Option<AnswerWriter>,
}

/// The step that chooses, by rules or by a model.
const ROUTE_STEP: (StepKind, &str) = (StepKind::Route, "the route of this turn");

/// The chosen agent, and additional instructions for it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RouteDecision {
    agent_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    additional_instructions: Option<String>,
}

impl RouterAgent {
    /// Builds a router. `model` resolves the models that its declaration names.
    pub(crate) fn new<E>(
        spec: Arc<RouterSpec>,
        book: &AgentBook,
        model: impl Fn(&Name) -> Result<ModelClient, E>,
    ) -> Result<Self, E> {
        let chooser = match &spec.routing {
            Routing::Rules { .. } => None,
            Routing::Model {
                model: name,
                prompt,
            } => {
                let agents = spec.agents.as_slice();
                Some(RouteChooser::new(
                    model(name)?,
                    prompt.as_deref(),
                    agents,
                    book,
                ))
            }
        };
        let answer_writer = match &spec.answer {
            FinalAnswer::Pass => None,
            FinalAnswer::Model {
                model: name,
                prompt,
            } => Some(AnswerWriter::new(model(name)?, prompt.as_deref())),
        };
        Ok(Self {
            spec,
            chooser,
            answer_writer,
        })
    }

    async fn route(&self, run: &mut AgentRun) -> Result<RouteDecision, TurnError> {
        if let Some(chooser) = &self.chooser {
            return chooser.choose(run).await;
        }
        let text = run.input.text();
        let work = async {
            let route = match &self.spec.routing {
                Routing::Rules { rules, otherwise } => {
                    route_by_rules(rules, otherwise.as_ref(), &text)?
                }
                // Unreachable: model routing has a chooser.
                Routing::Model { .. } => route_by_rules(&[], None, &text)?,
            };
            let extras = StepExtras {
                is_deferred: true,
                ..StepExtras::default()
            };
            Ok((route, extras))
        };
        run.step(ROUTE_STEP, text.as_bytes(), work).await
    }

    /// Finds the chosen agent in the router's declaration.
    fn agent(&self, name: &str) -> Result<&Name, TurnError> {
        let found = self.spec.agents.iter().find(|known| known.as_str() == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.spec.agents.iter().map(Name::as_str).collect();
            let clipped: String = name.chars().take(64).collect();
            let message = format!(
                "the turn was routed to {clipped:?}, which is none of the agents here: {}; ask again, or \
                 change `agents` of the router",
                known.join(", ")
            );
            TurnError::failed("agent_unknown", message)
        })
    }
}

#[async_trait]
impl Agent for RouterAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        let stage = run.stages.open("Coordination Request");
        let chosen = self.route(run).await.and_then(|route| {
            let agent = self.agent(&route.agent_name)?;
            Ok((agent, route))
        });
        if let Err(TurnError::Failed(_)) = &chosen {
            stage.close(StageStatus::Failed);
        }
        let (agent, route) = chosen?;
        stage.write(raw(&route).get());
        stage.close(StageStatus::Completed);
        let asked = with_instructions(&run.input, route.additional_instructions.as_deref());
        let passes = self.answer_writer.is_none();
        let said = match run.ask_agent(agent, &asked, passes).await?.1 {
            ChildAnswer::Completed(message) => message,
            ChildAnswer::Failed(failure) => {
                let message = format!("{agent}: {}", failure.message);
                return Err(TurnError::Failed(failure).with_message(message));
            }
        };
        Ok(TurnAnswer::plain(match &self.answer_writer {
            None => said,
            Some(writer) => Box::pin(writer.write_answer(run, agent, said)).await?,
        }))
    }

    /// Rules ask no model: the turn begins with the request to the chosen agent.
    fn starts_with_commit(&self) -> bool {
        self.chooser.is_none()
    }
}

/// Applies the first matching rule, or else the default agent.
fn route_by_rules(
    rules: &[RoutingRule],
    otherwise: Option<&Name>,
    text: &str,
) -> Result<RouteDecision, TurnError> {
    let fitting = rules.iter().find(|rule| rule.pattern.is_match(text));
    let (agent, instructions) = match (fitting, otherwise) {
        (Some(rule), _) => (&rule.agent, rule.instructions.clone()),
        (None, Some(agent)) => (agent, None),
        (None, None) => {
            let message = "no rule of the router fits this message; say it otherwise, or give the router \
                           an `otherwise` agent";
            return Err(TurnError::failed("no_route", message));
        }
    };
    Ok(RouteDecision {
        agent_name: agent.to_string(),
        additional_instructions: instructions,
    })
}

/// The message for the agent, with the instructions below it.
fn with_instructions(input: &AgentMessage, instructions: Option<&str>) -> AgentMessage {
    let mut asked = input.clone();
    asked.annotations = None;
    let Some(instructions) = instructions.filter(|text| !text.trim().is_empty()) else {
        return asked;
    };
    asked.push_text_below(instructions);
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn rule(pattern: &str, agent: &str) -> RoutingRule {
        RoutingRule {
            pattern: regex::Regex::new(pattern).expect("a pattern"),
            agent: name(agent),
            instructions: None,
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides_and_otherwise_the_rest() {
        let rules = [rule("(?i)weather", "weather"), rule("(?i)user", "ums")];
        let agent = |text: &str, otherwise: Option<&Name>| {
            route_by_rules(&rules, otherwise, text).map(|route| route.agent_name)
        };
        assert_eq!(
            agent("Weather for users", None).expect("a route"),
            "weather"
        );
        assert_eq!(agent("List users", None).expect("a route"), "ums");
        let math = name("math");
        assert_eq!(agent("2+2", Some(&math)).expect("a route"), "math");
        let error = agent("2+2", None).expect_err("no rule fits");
        assert!(matches!(error, TurnError::Failed(failure) if failure.code == "no_route"));
    }

    #[test]
    fn instructions_stand_below_the_message() {
        let told = with_instructions(&AgentMessage::plain("Hello"), Some("Be short."));
        assert_eq!(told.text(), "Hello\n\nBe short.");
        let told = with_instructions(&AgentMessage::plain("Hello"), Some(" "));
        assert_eq!(told.text(), "Hello");
    }
}

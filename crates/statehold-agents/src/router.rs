//! The coordinator that chooses one agent per turn: a decision, the agent's answer, and the last words.

mod model;

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use statehold_core::name::Name;
use statehold_engine::kept::Raw;

use crate::model::Model;
use crate::runner::{Beside, ChildAnswer, Run, StepDone, StepKind};
use crate::spec::{AgentBook, FinalAnswer, RouterSpec, Routing, Rule};
use crate::turn::{Agent, Answer, TurnError};
use crate::words::{Words, raw};
use model::{Chooser, Finisher};

/// Chooses one agent per turn.
pub(crate) struct Router {
    spec: Arc<RouterSpec>,
    /// Who chooses, if rules do not.
    chooser: Option<Chooser>,
    /// Who writes the last words, if the agent's are not the last.
    finisher: Option<Finisher>,
}

/// Who gets a turn, and what they are told in addition.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Route {
    agent_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    additional_instructions: Option<String>,
}

impl Router {
    /// A router, with `model` for the models that its declaration names.
    pub(crate) fn new<E>(
        spec: Arc<RouterSpec>,
        book: &AgentBook,
        model: impl Fn(&Name) -> Result<Model, E>,
    ) -> Result<Self, E> {
        let chooser = match &spec.routing {
            Routing::Rules { .. } => None,
            Routing::Model {
                model: name,
                prompt,
            } => {
                let agents = spec.agents.as_slice();
                Some(Chooser::new(model(name)?, prompt.as_deref(), agents, book))
            }
        };
        let finisher = match &spec.answer {
            FinalAnswer::Pass => None,
            FinalAnswer::Model {
                model: name,
                prompt,
            } => Some(Finisher::new(model(name)?, prompt.as_deref())),
        };
        Ok(Self {
            spec,
            chooser,
            finisher,
        })
    }

    async fn route(&self, run: &mut Run) -> Result<Route, TurnError> {
        if let Some(chooser) = &self.chooser {
            return chooser.choose(run).await;
        }
        let text = run.input.text();
        let work = async {
            let route = match &self.spec.routing {
                Routing::Rules { rules, otherwise } => by_rules(rules, otherwise.as_ref(), &text)?,
                // There is a chooser then.
                Routing::Model { .. } => by_rules(&[], None, &text)?,
            };
            let done = StepDone {
                result: raw(&route),
                usage: None,
            };
            // Nobody was asked: if it is lost with the request that follows from it, nothing is.
            let beside = Beside {
                waits: true,
                ..Beside::default()
            };
            Ok((done, beside))
        };
        let text = text.as_bytes();
        let route = run.step_beside(StepKind::Route, text, work).await?;
        read_route(&route)
    }

    /// The agent of that name, if it is one that this router may choose.
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
impl Agent for Router {
    async fn turn(&self, run: &mut Run) -> Result<Answer, TurnError> {
        let route = self.route(run).await?;
        let agent = self.agent(&route.agent_name)?;
        let asked = with_instructions(&run.input, route.additional_instructions.as_deref());
        let passes = self.finisher.is_none();
        let said = match run.ask_agent(agent, &asked, passes).await? {
            ChildAnswer::Said(words) => words,
            ChildAnswer::Failed(failure) => {
                let message = format!("{agent}: {}", failure.message);
                return Err(TurnError::failed(&failure.code, message));
            }
        };
        match &self.finisher {
            None => Ok(Answer::plain(said)),
            Some(finisher) => Ok(Answer::plain(finisher.finish(run, agent, said).await?)),
        }
    }
}

fn read_route(route: &Raw) -> Result<Route, TurnError> {
    serde_json::from_str(route.get())
        .map_err(|error| TurnError::step_malformed("where this turn was routed", &error))
}

/// The first rule that fits, or the agent for everything else.
fn by_rules(rules: &[Rule], otherwise: Option<&Name>, text: &str) -> Result<Route, TurnError> {
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
    Ok(Route {
        agent_name: agent.to_string(),
        additional_instructions: instructions,
    })
}

/// What the agent is asked: the message, and below it what it is told in addition.
fn with_instructions(input: &Words, instructions: Option<&str>) -> Words {
    let mut asked = input.clone();
    asked.annotations = None;
    let Some(instructions) = instructions.filter(|text| !text.trim().is_empty()) else {
        return asked;
    };
    asked.content = match serde_json::from_str(input.content.get()) {
        Ok(Value::Array(mut parts)) => {
            parts.push(serde_json::json!({"type": "text", "text": instructions}));
            raw(&parts)
        }
        _ => raw(&format!("{}\n\n{instructions}", input.text())),
    };
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn rule(pattern: &str, agent: &str) -> Rule {
        Rule {
            pattern: regex::Regex::new(pattern).expect("a pattern"),
            agent: name(agent),
            instructions: None,
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides_and_otherwise_the_rest() {
        let rules = [rule("(?i)weather", "weather"), rule("(?i)user", "ums")];
        let agent = |text: &str, otherwise: Option<&Name>| {
            by_rules(&rules, otherwise, text).map(|route| route.agent_name)
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
        let told = with_instructions(&Words::plain("Hello"), Some("Be short."));
        assert_eq!(told.text(), "Hello\n\nBe short.");
        let told = with_instructions(&Words::plain("Hello"), Some(" "));
        assert_eq!(told.text(), "Hello");
    }
}

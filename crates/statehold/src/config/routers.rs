//! Routers: the agents they choose from, how they choose, and that no coordinator reaches itself.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use statehold_agents::spec::{FinalAnswer, RouterSpec, Routing, RoutingRule};
use statehold_core::name::Name;

use super::Config;
use super::book::suggest_declaration;
use super::keys::AGENTS;
use super::kinds::{AgentDeclaration, AnswerBy, DeclaredKind, RouteBy};
use super::layers::step;
use super::mistakes::ConfigReader;

impl ConfigReader<'_> {
    /// Builds a router. Rules and models are checked even if unused: switching between them then
    /// takes one changed word.
    pub(super) fn router(
        &mut self,
        place: &str,
        name: &Name,
        declaration: &mut AgentDeclaration,
    ) -> Option<RouterSpec> {
        let route_by = *declaration.route_by.get_or_insert_default();
        let answer_by = *declaration.answer_by.get_or_insert_default();
        let agents = declaration.agents.clone().unwrap_or_default();
        if self.require_agents(place, name, &agents) {
            self.require_listed_agents(place, name, &agents, declaration);
        }
        let needs_model = route_by == RouteBy::Model || answer_by == AnswerBy::Model;
        let model = if needs_model || declaration.model.is_some() {
            self.declared_model(place, declaration.model.as_ref())
        } else {
            None
        };
        let routing = match route_by {
            RouteBy::Rules => {
                let rules = declaration.rules.iter().flatten().map(|rule| RoutingRule {
                    pattern: rule.pattern.regex(),
                    agent: rule.agent.clone(),
                    instructions: rule.instructions.clone().map(Into::into),
                });
                let rules: Vec<RoutingRule> = rules.collect();
                let otherwise = declaration.otherwise.clone();
                if rules.is_empty() && otherwise.is_none() {
                    let hint = "add rules = [{ pattern = \"(?i)user\", agent = \"…\" }], or \
                                otherwise, or choose by a model: route_by = \"model\"";
                    self.add_missing(format!("{place}.rules"), hint);
                }
                Routing::Rules { rules, otherwise }
            }
            RouteBy::Model => Routing::Model {
                model: model.clone()?,
                prompt: declaration.routing_prompt.clone().map(Into::into),
            },
        };
        let answer = match answer_by {
            AnswerBy::Agent => FinalAnswer::Pass,
            AnswerBy::Model => FinalAnswer::Model {
                model: model?,
                prompt: declaration.answer_prompt.clone().map(Into::into),
            },
        };
        Some(RouterSpec {
            agents,
            routing,
            answer,
        })
    }

    /// Requires that the candidates are declared. False if there are none.
    fn require_agents(&mut self, place: &str, name: &Name, agents: &[Name]) -> bool {
        let key = format!("{place}.agents");
        if agents.is_empty() {
            self.add_missing(key, suggest_agents(self.config, name));
            return false;
        }
        // `require_no_circles` reports a router that lists itself.
        let named = agents.iter().filter(|agent| *agent != name);
        let named: Vec<Name> = named.cloned().collect();
        let others = others(self.config, name);
        self.require_known(&key, &named, &others, "agent", AGENTS);
        true
    }

    /// Requires that rules name only candidates of the router.
    fn require_listed_agents(
        &mut self,
        place: &str,
        name: &Name,
        agents: &[Name],
        declaration: &AgentDeclaration,
    ) {
        let of_rules = declaration.rules.iter().flatten();
        let of_rules = of_rules.map(|rule| (format!("{place}.rules"), &rule.agent));
        let otherwise = declaration.otherwise.iter();
        let otherwise = otherwise.map(|agent| (format!("{place}.otherwise"), agent));
        for (key, agent) in of_rules.chain(otherwise) {
            if agents.contains(agent) {
                continue;
            }
            if agent == name {
                let hint = format!("name one of `{place}.agents`");
                self.add_mistake(key, &format!("has `{agent}`, which is itself"), hint);
            } else if self.config.agents.contains_key(agent) {
                let what = format!("has `{agent}`, which is not among `{place}.agents`");
                self.add_mistake(key, &what, "add it there, or name another");
            } else {
                let what = format!("has `{agent}`, which is not a declared agent");
                let others = others(self.config, name);
                let hint = suggest_declaration("agent", AGENTS, agent.as_str(), others);
                self.add_mistake(key, &what, hint);
            }
        }
    }

    /// Requires that no coordinator reaches itself, directly or through others.
    pub(super) fn require_no_circles(&mut self) {
        for name in self.config.agents.keys() {
            let Some(circle) = find_circle(self.config, name) else {
                continue;
            };
            // Report a circle once, at the first of its names.
            if circle.iter().all(|other| name <= *other) {
                let path: Vec<&str> = circle.into_iter().map(Name::as_str).collect();
                let what = format!("leads back to itself: {}", path.join(" → "));
                let is_pipeline = is_pipeline(self.config, name);
                let list = if is_pipeline { "phases" } else { "agents" };
                let key = format!("{AGENTS}.{}.{list}", step(name.as_str()));
                let hint = if path.len() > 2 {
                    "take one of them out of the list of another".to_owned()
                } else if is_pipeline {
                    "take it out; to repeat a phase, use `loop_back`".to_owned()
                } else {
                    format!("take it out; {}", suggest_agents(self.config, name))
                };
                self.add_mistake(key, &what, hint);
            }
        }
    }
}

/// All agents but this one: a coordinator never calls itself.
pub(super) fn others<'a>(
    config: &'a Config,
    name: &Name,
) -> impl Iterator<Item = &'a Name> + Clone {
    config.agents.keys().filter(move |other| *other != name)
}

/// Suggests the agents that a router could choose, or to declare one.
fn suggest_agents(config: &Config, name: &Name) -> String {
    let others: Vec<&str> = others(config, name).map(Name::as_str).collect();
    if others.is_empty() {
        format!(
            "declare another agent, for example with [{AGENTS}.helper], and name it: agents = [\"helper\"]"
        )
    } else {
        let others = others.join(", ");
        format!("name those that it may choose: agents = [\"…\"], of: {others}")
    }
}

/// The shortest path from a coordinator through others back to it.
fn find_circle<'a>(config: &'a Config, start: &'a Name) -> Option<Vec<&'a Name>> {
    let mut came_from: BTreeMap<&Name, &Name> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(name) = next.pop_front() {
        for other in candidates_of(config, name) {
            if other == start {
                let mut circle = vec![start];
                let mut at = name;
                while at != start {
                    circle.push(at);
                    at = came_from[at];
                }
                circle.push(start);
                circle.reverse();
                return Some(circle);
            }
            if let Entry::Vacant(entry) = came_from.entry(other) {
                entry.insert(name);
                next.push_back(other);
            }
        }
    }
    None
}

/// The agents that a coordinator calls; empty for other agents.
fn candidates_of<'a>(config: &'a Config, name: &Name) -> Vec<&'a Name> {
    let Some(agent) = config.agents.get(name) else {
        return Vec::new();
    };
    let declared = &agent.declared;
    match declared.kind.unwrap_or_default() {
        DeclaredKind::Router => declared.agents.iter().flatten().collect(),
        DeclaredKind::Pipeline => {
            let phases = declared.phases.iter().flatten();
            phases.map(|phase| &phase.agent).collect()
        }
        DeclaredKind::Worker
        | DeclaredKind::Openai
        | DeclaredKind::Dial
        | DeclaredKind::Conversations
        | DeclaredKind::Analytics
        | DeclaredKind::Mcp
        | DeclaredKind::Llm => Vec::new(),
    }
}

fn is_pipeline(config: &Config, name: &Name) -> bool {
    let agent = config.agents.get(name);
    agent.is_some_and(|agent| agent.declared.kind == Some(DeclaredKind::Pipeline))
}

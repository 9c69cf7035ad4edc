//! `statehold agents show`.

use clap::Args;
use serde_json::Value;

use super::chosen_agents;
use crate::cli::answers::{elements, text};
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct AgentsShowArgs {
    /// The name of the agent.
    name: statehold_core::name::Name,
}

impl AgentsShowArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let answer = client.get(&format!("/v1/agents/{}", self.name)).await?.body;
        if output.json {
            return output.json(&answer);
        }
        output.table(&TextTable::facts(facts(&answer), TextTone::Dim))?;
        Ok(Exit::Done)
    }
}

fn facts(agent: &Value) -> Vec<(&'static str, TableCell)> {
    let of = |field: &str| TableCell::of(&agent[field]);
    let mut facts = vec![
        ("agent", of("name").tone(TextTone::Strong)),
        ("kind", of("kind")),
        ("description", of("description")),
        ("chat without a session", of("sessions")),
    ];
    if let Some(chosen) = chosen_agents(agent) {
        let calls = if agent["kind"] == "pipeline" {
            "runs"
        } else {
            "chooses from"
        };
        facts.push((calls, TableCell::new(chosen)));
    }
    for tool in elements(agent, "tools") {
        let approval = match text(tool, "approval") {
            "always" => "every call needs an approval",
            "never" => "calls need no approval",
            "conditional" => "some calls need an approval, by their arguments",
            _ => "the worker decides whether to ask",
        };
        let name = match text(tool, "name") {
            "*" => "every other tool",
            name => name,
        };
        facts.push(("tool", TableCell::new(format!("{name}: {approval}"))));
    }
    if let Some(has_address) = agent["has_resume_address"].as_bool() {
        let how = if has_address { "pushed" } else { "by claim" };
        facts.push(("hears of decisions", TableCell::new(how)));
    }
    facts.push(("digest", of("digest")));
    facts
}

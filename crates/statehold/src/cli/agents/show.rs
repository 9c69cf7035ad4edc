//! `statehold agents show`.

use clap::Args;

use super::Agent;
use crate::cli::answers::read;
use crate::cli::output::{Cell, Output, Table, Tone};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct Show {
    /// The name of the agent.
    name: statehold_core::name::Name,
}

impl Show {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let answer = client.get(&format!("/v1/agents/{}", self.name)).await?.body;
        if output.json {
            output.json(&answer)?;
            return Ok(Exit::Done);
        }
        let mut table = Table::new(&[]);
        for (name, value) in facts(read(&answer)?) {
            table.row(vec![Cell::new(name).tone(Tone::Dim), value]);
        }
        output.table(&table)?;
        Ok(Exit::Done)
    }
}

fn facts(agent: Agent) -> Vec<(&'static str, Cell)> {
    let mut facts = vec![
        ("agent", Cell::new(&agent.name).tone(Tone::Strong)),
        ("kind", Cell::new(&agent.kind)),
        ("description", Cell::optional(agent.description)),
        ("chat without a session", Cell::new(&agent.openai_default)),
    ];
    if !agent.agents.is_empty() {
        facts.push(("chooses from", Cell::new(agent.agents.join(", "))));
    }
    for tool in &agent.tools {
        let approval = match tool.approval.as_str() {
            "always" => "every call needs an approval",
            "never" => "calls need no approval",
            "conditional" => "some calls need an approval, by their arguments",
            _ => "the worker asks if it wants to",
        };
        let name = match tool.name.as_str() {
            "*" => "every other tool",
            name => name,
        };
        facts.push(("tool", Cell::new(format!("{name}: {approval}"))));
    }
    if let Some(has_address) = agent.has_resume_address {
        let how = if has_address { "pushed" } else { "by claim" };
        facts.push(("hears of decisions", Cell::new(how)));
    }
    facts.push(("digest", Cell::new(agent.digest)));
    facts
}

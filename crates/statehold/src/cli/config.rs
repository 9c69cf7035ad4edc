//! `statehold config`: what is set, and by whom.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::CONFIG_HELP;
use super::output::{Cell, Output, Table, Tone};
use super::printable;
use super::serve::{log_filter, push_guard};
use crate::config::{Explained, Source, Surroundings, declared, layers};
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print every value and the layer that set it.
    Show(Show),
    /// Find every mistake without starting a server. Ends with 2 if there are any.
    Validate(Validate),
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Validate {
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

impl ConfigCommand {
    pub(super) fn run(&self, output: &Output) -> anyhow::Result<Exit> {
        match self {
            Self::Show(show) => show.run(output),
            Self::Validate(validate) => validate.run(output),
        }
    }
}

impl Show {
    fn run(&self, output: &Output) -> anyhow::Result<Exit> {
        let layers = layers(&Surroundings::of_process(), self.config.as_deref())?;
        let (_, values) = layers.finish()?;
        if output.json {
            let values: Vec<_> = values.iter().map(Explained::to_json).collect();
            output.json(&json!({ "values": values }))?;
        } else {
            output.table(&table(&values))?;
        }
        Ok(Exit::Done)
    }
}

impl Validate {
    fn run(&self, output: &Output) -> anyhow::Result<Exit> {
        let around = Surroundings::of_process();
        let (config, values) = layers(&around, self.config.as_deref())?.finish()?;
        push_guard(&config)?;
        log_filter(&config.log)?;
        let mistakes = match declared(&config, &values, &around) {
            Ok(declared) => {
                let book = declared.book;
                if output.json {
                    output.json(&json!({ "valid": true, "mistakes": [] }))?;
                } else {
                    let [agents, models, servers] = [
                        (book.agents.len(), "agents"),
                        (book.models.len(), "models"),
                        (book.tool_servers.len(), "tool servers"),
                    ]
                    .map(|(count, what)| format!("{count} {what}"));
                    output.line(&format!("✓ no mistakes; {agents}, {models}, {servers}"))?;
                }
                return Ok(Exit::Done);
            }
            Err(mistakes) => mistakes.0,
        };
        if output.json {
            output.json(&json!({ "valid": false, "mistakes": mistakes }))?;
        } else {
            for mistake in &mistakes {
                let (message, hint) = (printable(&mistake.message), printable(&mistake.hint));
                output.line(&format!("✗ {message}\n  {hint}"))?;
            }
        }
        Ok(Exit::Usage)
    }
}

fn table(values: &[Explained]) -> Table {
    let mut table = Table::new(&["KEY", "VALUE", "SOURCE"]);
    for value in values {
        let tone = match value.source {
            Source::Default => Tone::Dim,
            Source::Command(_) | Source::File(_) | Source::Environment(_) | Source::Flag(_) => {
                Tone::Plain
            }
        };
        let source = Cell::new(value.source.to_string()).tone(tone);
        table.row(vec![Cell::new(&value.key), Cell::new(value.text()), source]);
    }
    table
}

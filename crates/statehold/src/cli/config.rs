//! `statehold config`: prints the configuration and the source of each value.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::CONFIG_HELP;
use super::output::{CliOutput, TableCell, TextTable, TextTone};
use super::printable;
use super::serve::{log_filter, push_guard};
use crate::config::{ConfigEnvironment, SourcedValue, ValueSource, declare_agents, layers};
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print every value and its source.
    Show(ConfigFileArgs),
    /// Find every mistake without starting a server. Ends with 2 if there are any.
    Validate(ConfigFileArgs),
}

#[derive(Debug, Args)]
pub(super) struct ConfigFileArgs {
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

impl ConfigCommand {
    pub(super) fn run(&self, output: &CliOutput) -> anyhow::Result<Exit> {
        match self {
            Self::Show(file) => file.show(output),
            Self::Validate(file) => file.validate(output),
        }
    }
}

impl ConfigFileArgs {
    fn show(&self, output: &CliOutput) -> anyhow::Result<Exit> {
        let layers = layers(&ConfigEnvironment::of_process(), self.config.as_deref())?;
        let (_, values) = layers.finish()?;
        if output.json {
            let values: Vec<_> = values.iter().map(SourcedValue::to_json).collect();
            output.json(&json!({ "values": values }))?;
        } else {
            output.table(&table(&values))?;
        }
        Ok(Exit::Done)
    }

    fn validate(&self, output: &CliOutput) -> anyhow::Result<Exit> {
        let environment = ConfigEnvironment::of_process();
        let (config, values) = layers(&environment, self.config.as_deref())?.finish()?;
        push_guard(&config)?;
        log_filter(&config.log)?;
        let mistakes = match declare_agents(&config, &values, &environment) {
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

fn table(values: &[SourcedValue]) -> TextTable {
    let mut table = TextTable::new(&["KEY", "VALUE", "SOURCE"]);
    for value in values {
        let tone = match value.source {
            ValueSource::Default => TextTone::Dim,
            ValueSource::Command(_)
            | ValueSource::File(_)
            | ValueSource::Environment(_)
            | ValueSource::Flag(_) => TextTone::Plain,
        };
        let source = TableCell::new(value.source.to_string()).tone(tone);
        table.row(vec![
            TableCell::new(&value.key),
            TableCell::new(value.text()),
            source,
        ]);
    }
    table
}

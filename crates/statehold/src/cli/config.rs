//! `statehold config`: prints the configuration and the source of each value.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use statehold_agents::spec::AgentBook;
use statehold_server::ReloadMistake;

use super::CONFIG_HELP;
use super::output::{CliOutput, TableCell, TextTable, TextTone, plural};
use super::printable;
use super::serve::{log_filter, push_guard};
use crate::config::{
    CheckedLayers, ConfigEnvironment, SourcedValue, ValueSource, declare_agents, layers,
};
use crate::exit::{Exit, Failure};

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
        let CheckedLayers {
            config,
            explained,
            mut mistakes,
        } = layers(&environment, self.config.as_deref())?.check();
        for (key, checked) in [
            (
                "push.allow",
                push_guard(&config).map(drop).map_err(Into::into),
            ),
            ("log.level", log_filter(&config.log).map(drop)),
        ] {
            mistakes.extend(checked.err().map(|error| mistake(key, &error)));
        }
        let declared = declare_agents(&config, &explained, &environment);
        let mistakes = match declared {
            Ok(declared) if mistakes.is_empty() => {
                print_valid(&declared.book, output)?;
                return Ok(Exit::Done);
            }
            Ok(_) => mistakes,
            Err(others) => others.after(mistakes).0,
        };
        if output.json {
            output.json(&json!({ "valid": false, "mistakes": mistakes }))?;
        } else {
            for mistake in &mistakes {
                output.prose(&format!("✗ {}", printable(&mistake.message)))?;
                for line in printable(&mistake.hint).lines() {
                    output.prose(&format!("  {line}"))?;
                }
            }
            let count = mistakes.len();
            output.note(&plural(count, "mistake"));
        }
        Ok(Exit::Usage)
    }
}

/// A failure to read one setting, as a mistake.
fn mistake(key: &str, error: &anyhow::Error) -> ReloadMistake {
    let failure = error.downcast_ref::<Failure>();
    let hint = failure.and_then(|failure| failure.hint.clone());
    ReloadMistake {
        key: key.to_owned(),
        message: error.to_string(),
        hint: hint.unwrap_or_default(),
    }
}

fn print_valid(book: &AgentBook, output: &CliOutput) -> anyhow::Result<()> {
    if output.json {
        return output
            .json(&json!({ "valid": true, "mistakes": [] }))
            .map(drop);
    }
    let [agents, models, servers] = [
        (book.agents.len(), "agent"),
        (book.models.len(), "model"),
        (book.tool_servers.len(), "tool server"),
    ]
    .map(|(count, what)| plural(count, what));
    output.line(&format!("✓ no mistakes; {agents}, {models}, {servers}"))
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

//! `statehold config`: what is set, and by whom.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use super::CONFIG_HELP;
use super::output::{Cell, Output, Table, Tone};
use crate::config::{Explained, Source, Surroundings, layers};
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print every value and the layer that set it.
    Show(Show),
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

impl ConfigCommand {
    pub(super) fn run(&self, output: &Output) -> anyhow::Result<Exit> {
        match self {
            Self::Show(show) => show.run(output),
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

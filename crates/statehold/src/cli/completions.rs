//! `statehold completions`: what a shell needs to complete our verbs and flags.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::output::Output;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(super) struct Completions {
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self, output: &Output) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "statehold", &mut script);
        output.line(String::from_utf8(script)?.trim_end())?;
        Ok(Exit::Done)
    }
}

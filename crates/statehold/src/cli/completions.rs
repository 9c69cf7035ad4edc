//! `statehold completions`: prints the completion script for a shell.

use clap::Args;
use clap_complete::Shell;

use super::command_line;
use super::output::CliOutput;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(&self, output: &CliOutput) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut command_line::command(),
            "statehold",
            &mut script,
        );
        output.line(String::from_utf8(script)?.trim_end())?;
        Ok(Exit::Done)
    }
}

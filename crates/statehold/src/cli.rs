//! The command line.

mod agents;
mod answers;
mod approvals;
mod ask;
mod audit;
mod backup;
mod chat;
mod check;
mod completions;
mod config;
mod demo;
mod doctor;
mod frame;
mod globals;
mod hold;
mod items;
mod output;
mod printable;
mod resolve;
mod restore;
mod serve;
mod sessions;
mod state;
mod status;
mod tasks;
mod times;
mod token;
mod tree;

use clap::{Parser, Subcommand};

use crate::exit::Exit;
use globals::Globals;

pub(crate) use printable::printable;

/// What `--config` says about itself, wherever it is.
const CONFIG_HELP: &str =
    "The configuration file [env: STATEHOLD_CONFIG] [default: statehold.toml if it is there]";

/// The state server for multi-agent AI systems.
#[derive(Debug, Parser)]
#[command(name = "statehold", version, about, after_long_help = exit_codes())]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a local server for development: loopback only, no key needed.
    Dev(serve::Dev),
    /// Start a server for real use.
    Serve(serve::Serve),
    /// Talk to an agent in the terminal.
    Chat(chat::Chat),
    /// Play the guided tour in the terminal, and check every claim of it.
    Demo(demo::Demo),
    /// Say whether a server runs, and where.
    Status(status::Status),
    /// Look at sessions, follow them, delete them.
    #[command(subcommand)]
    Sessions(sessions::Sessions),
    /// Look at tasks and requests, wait for them, cancel them.
    #[command(subcommand)]
    Tasks(tasks::Tasks),
    /// See what waits for a person, and decide it.
    #[command(subcommand, visible_alias = "holds")]
    Approvals(approvals::Approvals),
    /// Read and write the values that apps, users and sessions keep.
    #[command(subcommand)]
    State(state::State),
    /// See which agents there are, and what they are.
    #[command(subcommand)]
    Agents(agents::Agents),
    /// Make, list and revoke keys.
    Token(token::Token),
    /// See who did what, and verify that all of it is as it was written.
    #[command(subcommand)]
    Audit(audit::Audit),
    /// Find problems and say what helps.
    Doctor(doctor::Doctor),
    /// Show the configuration and where each value comes from, or find its mistakes.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Compare everything a data directory says with what its log says.
    Check(check::Check),
    /// Copy a data directory to one file. Keys are not part of it.
    Backup(backup::Backup),
    /// Make a data directory from a backup.
    Restore(restore::Restore),
    /// Print the completions for a shell.
    Completions(completions::Completions),
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let globals = &self.globals;
        let output = globals.output();
        match self.command {
            Command::Dev(dev) => serve::run(move |around| dev.plan(around), &output),
            Command::Serve(serve) => serve::run(move |around| serve.plan(around), &output),
            Command::Chat(chat) => chat.run(globals, &output),
            Command::Demo(demo) => demo.run(&output),
            Command::Status(status) => status.run(globals, &output),
            Command::Sessions(sessions) => sessions.run(globals, &output),
            Command::Tasks(tasks) => tasks.run(globals, &output),
            Command::Approvals(approvals) => approvals.run(globals, &output),
            Command::State(state) => state.run(globals, &output),
            Command::Agents(agents) => agents.run(globals, &output),
            Command::Token(token) => token.run(globals, &output),
            Command::Audit(audit) => audit.run(globals, &output),
            Command::Doctor(doctor) => doctor.run(globals, &output),
            Command::Config(config) => config.run(&output),
            Command::Check(check) => check.run(globals.json),
            Command::Backup(backup) => backup.run(),
            Command::Restore(restore) => restore.run(&output),
            Command::Completions(completions) => completions.run(&output),
        }
    }
}

fn exit_codes() -> String {
    let lines: Vec<String> = Exit::ALL
        .iter()
        .map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning()))
        .collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}

/// Runs one asynchronous thing to its end.
fn block_on<T>(future: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(future))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn no_two_flags_want_the_same_name() {
        Cli::command().debug_assert();
    }
}

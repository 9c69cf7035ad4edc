//! The command line.

mod agents;
mod answers;
mod approvals;
mod ask;
mod audit;
mod backup;
mod chat;
mod check;
mod command_line;
mod completions;
mod config;
mod data_engine;
mod debug_log;
mod demo;
mod diff;
mod doctor;
mod frame;
mod globals;
mod hints;
mod hold;
mod items;
mod keys;
mod man_pages;
mod mcp;
mod output;
mod printable;
mod resolve;
mod restore;
mod serve;
mod sessions;
mod state;
mod status;
mod table;
mod tasks;
mod times;
mod token;
mod tree;
mod users;

use clap::{Parser, Subcommand};

use crate::exit::Exit;
use globals::GlobalArgs;

pub(crate) use command_line::parse;
pub(crate) use hints::for_terminal;
pub(crate) use printable::printable;

/// Help text of `--config`, shared by every command that takes it.
const CONFIG_HELP: &str =
    "The configuration file [env: STATEHOLD_CONFIG] [default: statehold.toml if it is there]";

/// The state server for multi-agent AI systems.
#[derive(Debug, Parser)]
#[command(name = "statehold", version, about, after_long_help = exit_codes())]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: GlobalArgs,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Start a local server for development: loopback only, no key needed.
    Dev(serve::DevArgs),
    /// Start a server for real use.
    Serve(serve::ServeArgs),
    /// Talk to an agent in the terminal.
    Chat(chat::ChatArgs),
    /// Play the guided tour in the terminal and check every claim it makes.
    Demo(demo::DemoArgs),
    /// Print whether a server runs, and where.
    Status(status::StatusArgs),
    /// List, show, follow and delete sessions.
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Show tasks and requests, wait for them, cancel them.
    #[command(subcommand)]
    Tasks(tasks::TasksCommand),
    /// List the actions and questions that wait for a person, and decide them.
    #[command(subcommand, visible_alias = "holds")]
    Approvals(approvals::ApprovalsCommand),
    /// Read and write the state of apps, users and sessions.
    #[command(subcommand)]
    State(state::StateCommand),
    /// List and show agents, or make the server reload its configuration.
    #[command(subcommand)]
    Agents(agents::AgentsCommand),
    /// Serve conversations over MCP on standard input and output, for programs that start their servers.
    Mcp(mcp::McpArgs),
    /// Create, list and revoke API keys.
    Token(token::TokenArgs),
    /// List and rotate the secrets of the key ring.
    Keys(keys::KeysArgs),
    /// Erase a user.
    Users(users::UsersArgs),
    /// Show who did what, and verify that no record was changed.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Find problems with the data, the disk and the network, and suggest fixes.
    Doctor(doctor::DoctorArgs),
    /// Show the configuration and the source of each value, or find its mistakes.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Show the exchanges of agents with models, other agents and tools.
    #[command(subcommand)]
    DebugLog(debug_log::DebugLogCommand),
    /// Compare the tables of a data directory with its log of records.
    Check(check::Check),
    /// Copy everything that is stored into one file, of a running server or of a data directory. Key files are not included.
    Backup(backup::BackupArgs),
    /// Create a data directory from a backup.
    Restore(restore::RestoreArgs),
    /// Print the completion script for a shell.
    Completions(completions::CompletionsArgs),
    /// Write the man pages of all commands.
    #[command(hide = true)]
    ManPages(man_pages::ManPagesArgs),
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let globals = &self.globals;
        let output = globals.output();
        hints::remember(globals);
        match self.command {
            CliCommand::Dev(dev) => serve::run(move |environment| dev.plan(environment), &output),
            CliCommand::Serve(serve) => {
                serve::run(move |environment| serve.plan(environment), &output)
            }
            CliCommand::Chat(chat) => chat.run(globals, &output),
            CliCommand::Demo(demo) => demo.run(&output),
            CliCommand::Status(status) => status.run(globals, &output),
            CliCommand::Sessions(sessions) => sessions.run(globals, &output),
            CliCommand::Tasks(tasks) => tasks.run(globals, &output),
            CliCommand::Approvals(approvals) => approvals.run(globals, &output),
            CliCommand::State(state) => state.run(globals, &output),
            CliCommand::Agents(agents) => agents.run(globals, &output),
            CliCommand::Mcp(mcp) => mcp.run(globals, &output),
            CliCommand::Token(token) => token.run(globals, &output),
            CliCommand::Keys(keys) => keys.run(globals, &output),
            CliCommand::Users(users) => users.run(globals, &output),
            CliCommand::Audit(audit) => audit.run(globals, &output),
            CliCommand::Doctor(doctor) => doctor.run(globals, &output),
            CliCommand::Config(config) => config.run(&output),
            CliCommand::DebugLog(debug_log) => debug_log.run(&output),
            CliCommand::Check(check) => check.run(globals.json),
            CliCommand::Backup(backup) => backup.run(globals, &output),
            CliCommand::Restore(restore) => restore.run(&output),
            CliCommand::Completions(completions) => completions.run(&output),
            CliCommand::ManPages(pages) => pages.run(),
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

/// Runs a future to completion on a runtime of its own.
fn block_on<T>(future: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(future))
}

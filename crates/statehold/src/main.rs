//! Statehold in one binary: the server and its command line.
//!
//! `dev` and `serve` run a server. `status`, `sessions`, `tasks`, `approvals` and `token` call one;
//! `check`, `backup` and `restore` maintain a data directory; `doctor` checks both.

mod cli;
mod client;
mod config;
mod data_directory;
mod demo;
mod exit;
mod leftover_programs;
mod run_file;
mod wire;

use std::process::ExitCode;

use exit::{Exit, Failure};

/// mimalloc, because a turn makes hundreds of small allocations on one thread and frees them on
/// another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::parse() {
        Ok(cli) => {
            let json = cli.globals.json;
            cli.run().unwrap_or_else(|error| fail(&error, json)).into()
        }
        Err(wrong) if wrong.use_stderr() && std::env::args_os().any(|arg| arg == "--json") => {
            let text = wrong.to_string();
            let (message, hint) = text.split_once('\n').unwrap_or((&text, ""));
            let message = message.trim_start_matches("error: ");
            fail(&Failure::usage(message).hint(hint.trim()).into(), true).into()
        }
        Err(wrong) => wrong.exit(),
    }
}

fn fail(error: &anyhow::Error, json: bool) -> Exit {
    let (said, exit) = exit::explain(error, json);
    if let Some(said) = said {
        let said = if json { said } else { cli::for_terminal(&said) };
        anstream::eprintln!("{said}");
    }
    exit
}

//! The state server for multi-agent AI systems: one binary.
//!
//! Today it looks after the embedded store: `check` compares everything a data directory says with
//! what its log says, `backup` copies it while it is in use by nobody else.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", cli::printable(&error.to_string()));
            for cause in error.chain().skip(1) {
                eprintln!("  because: {}", cli::printable(&cause.to_string()));
            }
            ExitCode::FAILURE
        }
    }
}

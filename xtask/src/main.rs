//! Project automation: `cargo xtask tidy|model|crash|bench|dist`.

mod dist;
mod tidy;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Project automation")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check the rules of the house: dependency direction, what the core may use, documents.
    Tidy {
        /// Print the lines of the product instead, per crate, without tests, comments and blank lines.
        #[arg(long)]
        count: bool,
    },
    /// Explore the model of the core. `--deep` for millions of states.
    Model {
        /// Larger worlds.
        #[arg(long)]
        deep: bool,
        /// The most seconds per world.
        #[arg(long, default_value_t = 3_600)]
        seconds: u64,
    },
    /// Kill writers, cut their power, fail their disk, and look for every acknowledged record.
    Crash {
        /// Kill the server under load of clients, and not the store alone.
        #[arg(long)]
        server: bool,
        /// How many crashes.
        #[arg(long, default_value_t = 1_000)]
        cycles: u64,
        /// The same seed takes the same decisions.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Keep everything in this directory, and go on behind the last hundred kills of an earlier run there.
        #[arg(long, value_name = "DIR", requires = "server")]
        keep: Option<String>,
    },
    /// Make packages of the program: an archive, for Debian, for pip and for npm.
    Dist {
        /// The profile of the build.
        #[arg(long, default_value = "dist")]
        profile: String,
        /// Another target than that of the toolchain.
        #[arg(long)]
        target: Option<String>,
        /// Pack this program, which is built already.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
        /// How hard to compress, from 0 to 9.
        #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(0..=9))]
        level: u8,
    },
    /// Measure speed as a ratio to a limit taken in the same run.
    Bench {
        /// The subject to measure.
        #[arg(value_parser = ["store", "server", "holds", "hostile", "chat", "dial", "recall", "lists", "mcp", "redact", "wire"])]
        what: String,
        /// One short round.
        #[arg(long)]
        quick: bool,
        /// Write the figures to a file as JSON.
        #[arg(long, value_name = "FILE")]
        json: Option<String>,
    },
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Task::Tidy { count: true } => {
            let crates = tidy::count::product_lines()?;
            let total = crates.iter().map(|(_, lines)| lines).sum();
            for (name, lines) in crates.into_iter().chain([("total".to_owned(), total)]) {
                println!("{lines:>6} {name}");
            }
            Ok(())
        }
        Task::Tidy { count: false } => {
            let problems = tidy::problems()?;
            for problem in &problems {
                eprintln!("✗ {problem}");
            }
            if problems.is_empty() {
                Ok(())
            } else {
                bail!("{} rules are broken", problems.len())
            }
        }
        Task::Model { deep, seconds } => {
            let mut args = vec!["--seconds".to_owned(), seconds.to_string()];
            args.extend(deep.then(|| "--deep".to_owned()));
            run(
                Profile::Release,
                "statehold-model",
                &["--bin", "model"],
                &args,
            )
        }
        Task::Crash {
            server,
            cycles,
            seed,
            keep,
        } => {
            let [cycles, seed] = [cycles, seed].map(|number| number.to_string());
            let mut args = ["--cycles", &cycles, "--seed", &seed]
                .map(str::to_owned)
                .to_vec();
            if server {
                build(Profile::Release, "statehold", "statehold")?;
                build(Profile::Release, "statehold-testkit", "http_client")?;
                args.push("--server".to_owned());
                if let Some(directory) = keep {
                    args.extend(["--keep".to_owned(), directory]);
                }
            }
            tool(Profile::Release, "crash", &args)
        }
        Task::Dist {
            profile,
            target,
            program,
            level,
        } => dist::packages(&dist::DistOptions {
            profile,
            target,
            program,
            level,
        }),
        Task::Bench { what, quick, json } => {
            if !["lists", "redact", "store"].contains(&what.as_str()) {
                build(Profile::Dist, "statehold", "statehold")?;
            }
            let mut args = Vec::new();
            args.extend(quick.then(|| "--quick".to_owned()));
            args.extend(
                json.into_iter()
                    .flat_map(|file| ["--json".to_owned(), file]),
            );
            if what == "redact" {
                let example = ["--example", "bench_redact"];
                return run(Profile::Dist, "statehold-core", &example, &args);
            }
            // The same programs are called in both.
            let name = if ["dial", "recall"].contains(&what.as_str()) {
                args.push(format!("--{what}"));
                "bench_chat".to_owned()
            } else {
                format!("bench_{what}")
            };
            tool(Profile::Dist, &name, &args)
        }
    }
}

/// A profile of the workspace that optimises.
#[derive(Debug, Clone, Copy)]
enum Profile {
    /// Quick to compile, for tools that run long and measure nothing.
    Release,
    /// The fastest program: figures are taken with the profile that packages are built with.
    Dist,
}

/// Compiles a program that a tool starts as a process of its own. It then lies beside the tool.
fn build(profile: Profile, package: &str, name: &str) -> Result<()> {
    cargo(
        profile,
        &["build", "--package", package, "--bin", name],
        &[],
    )
}

/// Runs a tool of the testkit. All have the same features, so the testkit is compiled once for all.
fn tool(profile: Profile, name: &str, args: &[String]) -> Result<()> {
    let features = "statehold-testkit/bench";
    run(
        profile,
        "statehold-testkit",
        &["--bin", name, "--features", features],
        args,
    )
}

/// Runs a program of a test crate, compiled for speed.
fn run(profile: Profile, package: &str, which: &[&str], args: &[String]) -> Result<()> {
    let run = [&["run", "--package", package], which].concat();
    let mut rest = vec!["--".to_owned()];
    rest.extend_from_slice(args);
    cargo(profile, &run, &rest)
}

fn cargo(profile: Profile, args: &[&str], rest: &[String]) -> Result<()> {
    let profile = match profile {
        Profile::Release => "release",
        Profile::Dist => "dist",
    };
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(args)
        .args(["--quiet", "--profile", profile])
        .args(rest)
        .status()
        .context("running cargo")?;
    if status.success() {
        Ok(())
    } else {
        bail!("cargo {} ended with {status}", args.join(" "))
    }
}

//! Explores the model and prints what it found. `--deep` explores larger worlds, `--seconds N` limits
//! each of them.

use std::process::ExitCode;
use std::time::Duration;

use statehold_model::checker::{Scope, explore};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let is_deep = args.iter().any(|arg| arg == "--deep");
    let seconds = args
        .iter()
        .position(|arg| arg == "--seconds")
        .and_then(|at| args.get(at + 1));
    let seconds = seconds
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(3_600);
    let scopes = if is_deep {
        Scope::deep()
    } else {
        Scope::small()
    };
    let report = explore(scopes, Duration::from_secs(seconds), |line| {
        println!("{line}");
    });
    println!(
        "{:>10} states {:>11} transitions in all",
        report.states, report.transitions
    );
    for scope in &report.cut_short {
        println!("ran out of time: {scope}");
    }
    for (promise, path) in &report.broken {
        println!("BROKEN: {promise}, by {path}");
    }
    for property in &report.vacuous {
        println!("NEVER HAPPENED: {property}");
    }
    // A scope that ran out of time may still reach the missing situations.
    let is_vacuous = report.cut_short.is_empty() && !report.vacuous.is_empty();
    if report.broken.is_empty() && !is_vacuous {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

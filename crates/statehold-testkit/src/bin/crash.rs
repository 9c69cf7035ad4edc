//! Kills writers and looks for what they acknowledged: `crash [--cycles N] [--seed S]`. With
//! `--server STATEHOLD` it kills the server and not the store alone; with `--keep DIR` it goes on behind the last hundred
//! kills of an earlier run in that directory.

use std::path::Path;
use std::process::ExitCode;

use statehold_testkit::crash::{Plan, run, write_until_killed};
use statehold_testkit::http_crash::{self, HttpCrashOptions};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let result = match args.get(1).map(String::as_str) {
        Some("writer") => {
            let number = |at: usize| args.get(at).and_then(|text| text.parse().ok()).unwrap_or(0);
            write_until_killed(Path::new(&args[2]), number(3), number(4))
        }
        _ => harness(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

fn harness(args: &[String]) -> anyhow::Result<()> {
    let value = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    let cycles = usize::try_from(value("--cycles").unwrap_or(100))?;
    let seed = value("--seed").unwrap_or(1);
    if let Some(at) = args.iter().position(|arg| arg == "--server") {
        // What it is made of lies beside this program, compiled by the same profile.
        let beside =
            |name: &str| Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name(name));
        let program = args
            .get(at + 1)
            .map_or_else(|| beside("statehold"), |path| Ok(path.into()))?;
        let mut options = HttpCrashOptions::new(&program, &beside("http_client")?, cycles, seed);
        let keep = args.iter().position(|arg| arg == "--keep");
        options.keep = keep.and_then(|at| args.get(at + 1)).map(Into::into);
        return http_crash::run(&options).map(drop);
    }
    let plan = Plan {
        kills: cycles / 2,
        power_losses: cycles / 2 - cycles / 10,
        sync_failures: cycles / 10,
    };
    println!("{plan:?}, seed {seed}");
    let report = run(&std::env::current_exe()?, plan, seed, |line| {
        println!("{line}");
    })?;
    println!("nothing acknowledged was lost: {report:?}");
    Ok(())
}

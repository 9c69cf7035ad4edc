//! A worker in a process of its own: `tool_worker DATA AGENT KEY LEASE_SECONDS TOOL EFFECTS LOG`. Ends
//! when its standard input does.

use statehold_testkit::tool_worker::{WorkerOptions, run};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    run(&WorkerOptions::from_args(&args)?)
}

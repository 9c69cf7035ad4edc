//! One client of the crash harness of the server: `http_client DATA LOG SEED CLIENT LANES`. Ends when
//! its standard input does.

use statehold_testkit::http_crash::load::{LoadOptions, run};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    run(&LoadOptions::from_args(&args)?)
}

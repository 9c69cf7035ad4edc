//! Nothing that was acknowledged is lost: not by SIGKILL, not by a loss of power, not by a failing
//! disk.

use std::path::Path;

use statehold_testkit::crash::{Ending, Harness, Plan, build_shim, run};

#[test]
fn whatever_was_acknowledged_survives() {
    let seed = std::env::var("STATEHOLD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(20_261_115);
    println!("seed {seed}; the same seed takes the same decisions (STATEHOLD_SEED)");
    let plan = Plan {
        kills: 50,
        power_losses: 60,
        sync_failures: 10,
    };
    let program = Path::new(env!("CARGO_BIN_EXE_crash"));
    let report = run(program, plan, seed, |line| println!("{line}")).expect("nothing is lost");
    println!("{report:?}");
    assert_eq!(report.cycles, 120);
    assert!(
        report.acknowledged > 1_000,
        "too little happened to mean anything: {report:?}"
    );
    assert!(report.erased > 100, "nothing was removed: {report:?}");
}

#[test]
fn the_harness_notices_a_store_that_does_not_wait_for_its_disk() {
    let shims = tempfile::tempdir().expect("a directory");
    let shim = build_shim(shims.path()).expect("the shim compiles");
    let program = Path::new(env!("CARGO_BIN_EXE_crash"));
    let lost = (1..=20).find(|run| {
        let mut harness = Harness::new(program, *run).expect("a directory");
        harness.no_sync = true;
        harness
            .cycle(Ending::PowerLoss(300 + 50 * run, 0), *run, Some(&shim))
            .is_err()
    });
    println!("the loss was noticed in run {lost:?}");
    assert!(
        lost.is_some(),
        "twenty power losses without a single sync, and nothing was missed"
    );
}

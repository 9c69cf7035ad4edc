//! Sixty-four people decide one hold at the same moment, a hundred times, against the real binary; and
//! the same against servers with a bug, to see that it is noticed.

use std::path::{Path, PathBuf};

use statehold_testkit::duplicate_storm::{StormOptions, can_decide, run};
use statehold_testkit::http::{built_program, told_seed};

fn options(program: &Path, rounds: usize) -> StormOptions {
    StormOptions {
        program: program.to_owned(),
        worker: env!("CARGO_BIN_EXE_tool_worker").into(),
        tool: env!("CARGO_BIN_EXE_effect_tool").into(),
        cli: None,
        rounds,
        deciders: 64,
        kill_every: 4,
        seed: 7,
    }
}

fn statehold() -> PathBuf {
    built_program(Path::new(env!("CARGO_BIN_EXE_tool_worker")))
}

#[test]
fn a_hundred_storms_come_to_one_decision_and_one_effect_each() {
    let seed = told_seed();
    let program = statehold();
    let options = StormOptions {
        cli: can_decide(&program).then(|| program.clone()),
        seed,
        ..options(&program, 100)
    };
    let report = run(&options).expect("nothing happens twice");
    assert_eq!((report.rounds, report.kills), (100, 25));
    assert!(report.approved > 0 && report.edited > 0 && report.rejected > 0);
    assert!(report.answers_lost > 0, "no kill hit: {report:?}");
    assert_eq!(report.by_command_line > 0, options.cli.is_some());
}

/// The real server with a bug of the core.
fn with_bug(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mutant_server"), &path).expect("a link");
    path
}

#[test]
fn a_server_without_a_bug_passes() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = with_bug(directory.path(), "none");
    run(&options(&program, 6)).expect("nothing happens twice");
}

#[track_caller]
fn notices(bug: &str, complaint: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let options = StormOptions {
        kill_every: 100,
        ..options(&with_bug(directory.path(), bug), 40)
    };
    let error = run(&options).expect_err("it has a bug");
    let said = format!("{error:#}");
    let (place, _) = said.split_once(": in round").expect("it says where");
    let (_, kept) = place.split_once("kept in ").expect("it says what is kept");
    std::fs::remove_dir_all(kept).expect("the kept directory is there");
    println!("{bug}: {said}");
    assert!(said.contains(complaint), "expected {complaint:?}: {said}");
}

#[test]
fn a_server_that_decides_twice_is_noticed() {
    notices("decide-twice", "decisions were committed");
}

#[test]
fn a_server_that_tells_everybody_that_they_decided_is_noticed() {
    notices("replay-anything", "was told");
}

#[test]
fn a_server_that_releases_what_was_rejected_is_noticed() {
    notices("release-rejected", "released is");
}

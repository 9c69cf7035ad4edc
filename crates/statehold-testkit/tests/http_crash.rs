//! The crash harness of the server: the real binary, killed under load and started again; and the
//! harness itself, tried on a pretended server: it passes one that keeps its word, and notices each
//! kind of one that does not.

use std::path::{Path, PathBuf};

use statehold_testkit::http::{built_program, told_seed};
use statehold_testkit::http_crash::{BROKEN_WORD, HttpCrashOptions, run};

fn options(program: &Path, cycles: usize) -> HttpCrashOptions {
    let client = Path::new(env!("CARGO_BIN_EXE_http_client"));
    HttpCrashOptions {
        clients: 2,
        lanes: 3,
        ..HttpCrashOptions::new(program, client, cycles, 7)
    }
}

/// The pretended server under the name of its bug.
fn with_bug(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pretend_server"), &path).expect("a link");
    path
}

#[track_caller]
fn notices(bug: &str, complaints: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let error = run(&options(&with_bug(directory.path(), bug), 4)).expect_err("it has a bug");
    let said = format!("{error:#}");
    println!("{bug}: {said}");
    if let Some((_, kept)) = said.split_once("everything is kept in ") {
        let kept = kept.split(": ").next().unwrap_or_default();
        std::fs::remove_dir_all(kept).expect("the kept directory is there");
    }
    let is_expected = complaints.iter().any(|complaint| said.contains(complaint));
    assert!(is_expected, "expected one of {complaints:?}");
}

/// How often the real server is killed.
const CYCLES: usize = 50;

fn statehold() -> PathBuf {
    built_program(Path::new(env!("CARGO_BIN_EXE_http_client")))
}

#[test]
fn nothing_that_the_server_acknowledged_is_lost_when_it_is_killed() {
    let seed = told_seed();
    let client = Path::new(env!("CARGO_BIN_EXE_http_client"));
    let report = run(&HttpCrashOptions::new(&statehold(), client, CYCLES, seed))
        .expect("nothing acknowledged is lost");
    println!("{report:?}");
    assert_eq!(report.cycles, CYCLES);
    let covered = report.covered;
    assert!(covered.acknowledged > 1_000, "too little: {report:?}");
    assert!(covered.feed_events > 500, "no feed was read: {report:?}");
}

#[test]
fn a_run_goes_on_where_an_earlier_one_stopped() {
    let program = Path::new(env!("CARGO_BIN_EXE_pretend_server"));
    let directory = tempfile::tempdir().expect("a directory");
    let kept = |cycles| HttpCrashOptions {
        keep: Some(directory.path().to_owned()),
        ..options(program, cycles)
    };
    let first = run(&kept(3)).expect("nothing is lost");
    let both = run(&kept(5)).expect("nothing is lost");
    assert_eq!((first.cycles, both.cycles), (3, 5));
    assert!(both.covered.sessions > first.covered.sessions, "{both:?}");
    let other = HttpCrashOptions { seed: 8, ..kept(6) };
    let refused = run(&other).expect_err("another seed takes other decisions");
    assert!(
        refused.to_string().contains("has the seed 7"),
        "{refused:#}"
    );
}

#[test]
fn a_server_that_keeps_its_word_passes() {
    let program = Path::new(env!("CARGO_BIN_EXE_pretend_server"));
    let report = run(&options(program, 6)).expect("nothing is lost");
    let covered = report.covered;
    assert_eq!((report.cycles, report.feeds), (6, 6));
    assert!(
        covered.acknowledged > 500,
        "too little happened: {report:?}"
    );
    assert!(covered.repeated > 0, "no call was repeated: {report:?}");
    assert!(covered.lost > 0, "no answer was lost: {report:?}");
    assert!(covered.deleted > 0, "nothing was deleted: {report:?}");
    assert!(covered.feed_events > 100, "no feed was read: {report:?}");
    assert!(report.replayed > 50, "no key was used again: {report:?}");
}

#[test]
fn a_server_that_forgets_is_noticed() {
    // What is met first depends on where the kills fall: a session, an item, a revision, a key, or a
    // client that could not go on at all.
    notices("forgets", &[BROKEN_WORD, "a client ended"]);
}

#[test]
fn a_server_that_carries_out_a_repeated_call_twice_is_noticed() {
    notices("repeats", &[BROKEN_WORD]);
}

#[test]
fn a_feed_that_skips_an_event_is_noticed() {
    notices("skips", &[BROKEN_WORD]);
}

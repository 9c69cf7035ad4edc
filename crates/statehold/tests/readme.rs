//! Runs what the README and the first session show: both must match the real program.

use std::path::Path;
use std::process::{Command, Stdio};

use statehold_testkit::http::DevServer;

fn readme() -> String {
    page("README.md")
}

/// The text of a page, by its path in the repository.
fn page(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).expect("there is such a page")
}

/// The fenced block that follows a mark.
fn block<'a>(text: &'a str, mark: &str) -> &'a str {
    let mark = format!("<!-- test: {mark} -->\n```");
    let (_, after) = text.split_once(&mark).expect("the page has the mark");
    let (_, body) = after.split_once('\n').expect("a block has lines");
    let (body, _) = body.split_once("```\n").expect("a block ends");
    body
}

fn require(program: &str) {
    let found = Command::new(program).arg("--version").output();
    assert!(
        found.is_ok_and(|found| found.status.success()),
        "this test needs {program}, which is not there; install it, for example with: \
         apt-get install {program}"
    );
}

#[test]
fn the_first_session_runs_and_prints_what_its_page_says() {
    require("curl");
    require("python3");
    let text = page("docs/first-session.md");
    let directory = tempfile::tempdir().expect("a directory");
    let program = Path::new(env!("CARGO_BIN_EXE_statehold"));
    let data = directory.path().join("data");
    let server = DevServer::start(program, Some(&data), &["--no-demo"], &[]);
    let output = Command::new("sh")
        .args(["-eu", "-c", block(&text, "first-session")])
        .env("STATEHOLD_URL", &server.url)
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::null())
        .output()
        .expect("there is a shell");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the session failed after:\n{said}\n{errors}"
    );
    assert_eq!(said, block(&text, "first-session output"), "{errors}");
}

/// Lines without the parts that differ between runs: padding and durations.
fn without_times(text: &str) -> Vec<String> {
    let is_time = |word: &str| {
        let number = word.trim_end_matches(['s', 'm', 'h']);
        number != word && number.parse::<u64>().is_ok()
    };
    let words = |line: &str| {
        let words = line.split_whitespace().filter(|word| !is_time(word));
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(words).collect()
}

#[test]
fn every_claim_of_the_tour_holds_and_the_readme_shows_what_it_prints() {
    let directory = tempfile::tempdir().expect("a directory");
    let tour = Command::new(env!("CARGO_BIN_EXE_statehold"))
        .args(["demo", "--crash", "--fast"])
        .env_clear()
        .current_dir(directory.path())
        .output()
        .expect("the program starts");
    let out = String::from_utf8_lossy(&tour.stdout);
    let err = String::from_utf8_lossy(&tour.stderr);
    assert_eq!(tour.status.code(), Some(0), "{out}\n{err}");
    assert!(out.contains("14 claims, all true"), "{out}");
    let printed = without_times(&out);
    let mut after = printed.iter();
    for line in without_times(block(&readme(), "tour")) {
        let is_there = after.any(|printed| *printed == line);
        assert!(is_there, "{line:?} is not in, or not in its place: {out}");
    }
}

#[test]
fn the_server_greets_as_the_readme_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = Path::new(env!("CARGO_BIN_EXE_statehold"));
    let data = directory.path().join("statehold-data");
    let server = DevServer::start(program, Some(&data), &[], &[]);
    let said = server.said.replace(&server.url, "http://127.0.0.1:7717");
    let said = said.replace(&*data.to_string_lossy(), "./statehold-data");
    // At the default address, the hint names none.
    let named = " --url http://127.0.0.1:7717\n  Stop: Ctrl-C";
    let said = said.replace(named, "        Stop: Ctrl-C");
    let (before, ready) = said.split_once("Ready in ").expect("it says when");
    let (_, after) = ready.split_once(" ms").expect("it says how fast");
    let said = format!("{before}Ready in 12 ms{after}");
    assert_eq!(said, block(&readme(), "banner"));
}

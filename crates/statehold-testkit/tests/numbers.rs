//! The rule about numbers, judged by readers in other languages: they take and refuse the same numbers as the
//! server, and compute the same digests. `statehold-core` reads the same test vectors.

use std::path::Path;
use std::process::Command;

/// Runs a reader over the test vectors.
fn check(interpreter: &str, script: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = root.join("examples").join(script);
    let vectors = root.join("docs/formats/numbers-v1.json");
    let ran = Command::new(interpreter).arg(script).arg(vectors).output();
    let ran = ran.unwrap_or_else(|error| panic!("install {interpreter}: {error}"));
    let told = String::from_utf8_lossy(&ran.stdout);
    let complaint = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success() && told.ends_with("hold\n"),
        "{told}{complaint}"
    );
}

#[test]
fn python_agrees_about_numbers() {
    check("python3", "check_numbers.py");
}

#[test]
fn javascript_agrees_about_numbers() {
    check("node", "check_numbers.mjs");
}

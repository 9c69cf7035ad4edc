//! The rules of the house that a machine can check. Also run as a test.

mod code_map;
pub(crate) mod count;
mod links;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

/// Which of our crates may use which. Anything else points the wrong way.
const DIRECTION: &[(&str, &[&str])] = &[
    ("statehold-core", &[]),
    ("statehold-store", &["statehold-core"]),
    ("statehold-engine", &["statehold-core", "statehold-store"]),
    ("statehold-agents", &["statehold-core", "statehold-engine"]),
    (
        "statehold-server",
        &["statehold-core", "statehold-engine", "statehold-agents"],
    ),
    (
        "statehold",
        &[
            "statehold-core",
            "statehold-store",
            "statehold-engine",
            "statehold-agents",
            "statehold-server",
        ],
    ),
    ("statehold-fakes", &[]),
    ("statehold-model", &["statehold-core"]),
    (
        "statehold-testkit",
        &[
            "statehold-core",
            "statehold-fakes",
            "statehold-model",
            "statehold-store",
            "statehold-engine",
            "statehold-agents",
            "statehold-server",
        ],
    ),
    ("xtask", &[]),
];

/// Features for tests: planted bugs of the core, raw commands of the engine, fixtures of the server. Only
/// unpublished crates may switch them on outside of their tests.
const TEST_FEATURES: &[&str] = &["conformance", "mutants", "testing"];
const UNPUBLISHED: &[&str] = &["statehold-model", "statehold-testkit"];

/// The core does no I/O: its dependency list is closed.
const CORE_DEPENDENCIES: &[&str] = &[
    "aho-corasick",
    "data-encoding",
    "hmac",
    "regex",
    "serde",
    "serde_json",
    "serde_json_canonicalizer",
    "sha2",
    "thiserror",
    // Optional, behind the feature `schema`: descriptions, no behaviour.
    "utoipa",
    "uuid",
];

/// Names that must not appear in the core.
const CORE_FORBIDDEN: &[&str] = &[
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "std::env",
    "std::io",
    "SystemTime",
    "Instant::now",
    "async fn",
    "tokio",
    "println!",
    "getrandom",
    "now_v7",
    "new_v4",
];

const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
    "BSL-1.0",
    "MIT-0",
    "CC0-1.0",
    "0BSD",
    "Apache-2.0 WITH LLVM-exception",
    "LLVM-exception",
    // For data: the root certificates that rustls uses on platforms without their own. The crate is in the
    // lock file only; builds for servers do not contain it.
    "CDLA-Permissive-2.0",
];

/// Every rule that is broken, in a sentence.
pub(crate) fn problems() -> Result<Vec<String>> {
    let root = root()?;
    let mut problems = Vec::new();
    let metadata = metadata(&root)?;
    check_direction(&metadata, &mut problems);
    check_licences(&metadata, &mut problems);
    check_core(&root, &mut problems)?;
    check_todos(&root, &mut problems)?;
    check_evidence(&root, &mut problems)?;
    check_decisions(&root, &mut problems)?;
    code_map::check(&root, &mut problems)?;
    links::check(&root, &mut problems)?;
    Ok(problems)
}

fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here
        .parent()
        .context("xtask lies in the workspace")?
        .to_owned())
}

fn metadata(root: &Path) -> Result<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        format!(
            "cargo metadata said: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn check_direction(metadata: &Value, problems: &mut Vec<String>) {
    let rules: BTreeMap<&str, &[&str]> = DIRECTION.iter().copied().collect();
    for package in packages(metadata).filter(|package| package["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(allowed) = rules.get(name) else {
            problems.push(format!(
                "{name} has no place in the dependency order; add it to tidy"
            ));
            continue;
        };
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        for dependency in dependencies.filter(|dependency| dependency["kind"].is_null()) {
            let used = dependency["name"].as_str().unwrap_or_default();
            if rules.contains_key(used) && !allowed.contains(&used) {
                problems.push(format!("{name} must not depend on {used}"));
            }
            if name == "statehold-core" && !CORE_DEPENDENCIES.contains(&used) {
                problems.push(format!(
                    "{name} must not depend on {used}: its list is closed"
                ));
            }
            let features = dependency["features"].as_array().into_iter().flatten();
            let mut features = features.filter_map(Value::as_str);
            let for_tests = features.find(|feature| TEST_FEATURES.contains(feature));
            if let Some(feature) = for_tests.filter(|_| !UNPUBLISHED.contains(&name)) {
                problems.push(format!("{name} must not switch on `{feature}` of {used}"));
            }
        }
    }
}

fn check_licences(metadata: &Value, problems: &mut Vec<String>) {
    for package in packages(metadata) {
        let licence = package["license"]
            .as_str()
            .unwrap_or_default()
            .replace('/', " OR ");
        let is_free = |choice: &str| {
            let choice = choice.trim_matches(|c| matches!(c, '(' | ')' | ' '));
            choice
                .split(" AND ")
                .all(|part| LICENCES.contains(&part.trim_matches(|c| matches!(c, '(' | ')' | ' '))))
        };
        if !licence.split(" OR ").any(is_free) {
            problems.push(format!("{} has the licence `{licence}`", package["name"]));
        }
    }
}

fn check_core(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    for file in files(&root.join("crates/statehold-core/src"), "rs")? {
        if is_test(file.strip_prefix(root)?) {
            continue;
        }
        let text = std::fs::read_to_string(&file)?;
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in CORE_FORBIDDEN.iter().filter(|word| code.contains(**word)) {
                let file = file.strip_prefix(root).unwrap_or(&file).display();
                problems.push(format!(
                    "{file}:{}: the core must not use `{word}`",
                    number + 1
                ));
            }
        }
    }
    Ok(())
}

fn check_todos(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let mark = ["TO", "DO"].concat();
    for folder in ["crates", "xtask"] {
        for file in files(&root.join(folder), "rs")? {
            let text = std::fs::read_to_string(&file)?;
            for (number, line) in text.lines().enumerate() {
                if line.contains(&mark) && !line.contains(&format!("{mark}(#")) {
                    let file = file.strip_prefix(root).unwrap_or(&file).display();
                    problems.push(format!("{file}:{}: a {mark} names its issue", number + 1));
                }
            }
        }
    }
    Ok(())
}

/// Pages that name a test, a check of a script or a decision as evidence; each of them must exist.
const EVIDENCE: [&str; 2] = ["docs/seeds.md", "docs/security.md"];

/// How many attacks the page about security has a row for.
const ATTACKS: usize = 40;

fn check_evidence(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let mut tests = BTreeSet::new();
    for folder in ["crates", "xtask"] {
        for file in files(&root.join(folder), "rs")? {
            tests.extend(tests_in(&std::fs::read_to_string(file)?));
        }
    }
    let mut checks = BTreeSet::new();
    for file in files(&root.join("scripts"), "py")? {
        checks.extend(checks_in(&std::fs::read_to_string(file)?));
    }
    let decisions = decision_numbers(root)?;
    for page in EVIDENCE {
        let text = std::fs::read_to_string(root.join(page)).context(page)?;
        let mut named = 0;
        for word in text.split('`') {
            if let Some(test) = word.strip_prefix("test: ") {
                named += 1;
                if !tests.contains(test) {
                    problems.push(format!("{page} names the test `{test}`, which is gone"));
                }
            } else if let Some(check) = word.strip_prefix("check: ") {
                if !checks.contains(check) {
                    problems.push(format!("{page} names the check `{check}`, which is gone"));
                }
            } else if let Some(number) = word.strip_prefix("decision: ")
                && !decisions.contains(number)
            {
                problems.push(format!("{page} names decision {number}, which is gone"));
            }
        }
        if named == 0 {
            problems.push(format!("{page} names no test at all"));
        }
    }
    let page = std::fs::read_to_string(root.join("docs/security.md"))?;
    for number in 1..=ATTACKS {
        if !has_evidence(&page, number) {
            let what = "names neither a test nor a reason for attack";
            problems.push(format!("docs/security.md {what} {number}"));
        }
    }
    Ok(())
}

/// The names of the tests in a source file.
fn tests_in(source: &str) -> BTreeSet<String> {
    let (mut found, mut is_test) = (BTreeSet::new(), false);
    for line in source.lines().map(str::trim_start) {
        let function = line.strip_prefix("async ").unwrap_or(line);
        if let Some(function) = function.strip_prefix("fn ") {
            let name = function.split(['(', '<']).next();
            found.extend(name.filter(|_| is_test).map(str::to_owned));
            is_test = false;
        } else if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        }
    }
    found
}

/// The names of the functions of a script.
fn checks_in(source: &str) -> BTreeSet<String> {
    let functions = source.lines().filter_map(|line| line.strip_prefix("def "));
    let names = functions.filter_map(|function| function.split('(').next());
    names.map(str::to_owned).collect()
}

/// Whether a row of the table of attacks has something in its second column.
fn has_evidence(page: &str, number: usize) -> bool {
    let begin = format!("| {number}. ");
    let mut rows = page.lines().filter_map(|line| line.strip_prefix(&begin));
    let evidence = |row: &str| row.split('|').nth(1).map(|text| text.trim().to_owned());
    rows.next()
        .and_then(evidence)
        .is_some_and(|evidence| !evidence.is_empty())
}

fn decision_numbers(root: &Path) -> Result<BTreeSet<String>> {
    let found = files(&root.join("docs/decisions"), "md")?;
    let names = found.iter().filter_map(|file| file.file_name()?.to_str());
    Ok(names
        .filter_map(|name| name.split('-').next())
        .map(str::to_owned)
        .collect())
}

/// Decisions are numbered without gaps and never renumbered.
fn check_decisions(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let numbers = decision_numbers(root)?;
    for (index, number) in numbers.iter().enumerate() {
        if *number != format!("{:04}", index + 1) {
            problems.push(format!(
                "docs/decisions: expected {:04}, found {number}",
                index + 1
            ));
        }
    }
    Ok(())
}

/// The folder of each crate of the workspace, by its name.
fn crates(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let folder = root.join("crates");
    let mut crates = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        crates.push((
            entry.file_name().to_string_lossy().into_owned(),
            entry.path(),
        ));
    }
    crates.push(("xtask".to_owned(), root.join("xtask")));
    crates.sort();
    Ok(crates)
}

/// Whether a source file is for tests, by the names on its path inside a crate.
fn is_test(file: &Path) -> bool {
    file.with_extension("").components().any(|part| {
        let part = part.as_os_str().to_string_lossy();
        ["tests", "suite", "testing"].contains(&&*part) || part.ends_with("_tests")
    })
}

fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_are_evidence() {
        let source = "\
#[test]
fn first() {}

fn helper() {}

    #[tokio::test(start_paused = true)]
    #[ignore = \"slow\"]
    async fn second() {}
";
        let names: Vec<String> = tests_in(source).into_iter().collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn checks_are_functions_of_scripts() {
        let source =
            "def check_first(server, year):\n    def inner():\nclass Second:\ndef third():\n";
        let names: Vec<String> = checks_in(source).into_iter().collect();
        assert_eq!(names, ["check_first", "third"]);
    }

    #[test]
    fn an_attack_without_evidence_is_noticed() {
        let page = "| 1. Read | `test: x` |\n| 2. Write |  |\n| 10. List | not yet |\n";
        let found: Vec<bool> = [1, 2, 3, 10]
            .map(|number| has_evidence(page, number))
            .into();
        assert_eq!(found, [true, false, false, true]);
    }

    #[test]
    fn the_house_is_tidy() {
        let problems = super::problems().expect("the rules can be checked");
        assert!(problems.is_empty(), "{problems:#?}");
    }
}

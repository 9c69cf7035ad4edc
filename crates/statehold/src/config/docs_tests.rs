//! Checks the documentation of the configuration: every example is valid, every setting is documented.

use std::collections::BTreeMap;
use std::path::Path;

use super::agents::TOOL_SETTINGS;
use super::kinds::{DeclaredKind, SETTINGS};
use super::models::MODEL_SETTINGS;
use super::tool_servers::TOOL_SERVER_SETTINGS;
use super::*;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name);
    std::fs::read_to_string(path).expect("the page is there")
}

/// The examples of a page that are configurations.
fn examples(text: &str) -> Vec<&str> {
    let blocks = text.split("```toml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split_once("```").expect("a block ends").0);
    blocks.collect()
}

/// The rows of the tables under a heading: the first cell, and the others.
fn rows<'a>(text: &'a str, heading: &str) -> Vec<(&'a str, Vec<&'a str>)> {
    let (_, section) = text.split_once(heading).expect("the heading is there");
    let section = section.split("\n#").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| {
        let cells = line.strip_prefix("| ")?.strip_suffix('|')?.split(" | ");
        let mut cells = cells.map(|cell| cell.trim().trim_end_matches(" |").trim());
        Some((cells.next()?, cells.collect()))
    });
    rows.collect()
}

/// The other cells of each table row, by the names in its first cell.
fn explained<'a>(text: &'a str, heading: &str) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut found = BTreeMap::new();
    for (first, others) in rows(text, heading) {
        for name in first.split('`').skip(1).step_by(2) {
            found.insert(name, others.clone());
        }
    }
    found
}

#[test]
fn every_example_can_be_used() {
    let pages = [
        "README.md",
        "docs/agents.md",
        "docs/analytics.md",
        "docs/configuration.md",
        "docs/holds.md",
        "docs/operations.md",
        "docs/state-modes.md",
        "docs/ums.md",
    ];
    let mut count = 0;
    for name in pages {
        let text = page(name);
        for example in examples(&text) {
            count += 1;
            let directory = tempfile::tempdir().expect("a directory");
            std::fs::write(directory.path().join(FILE_NAME), example).expect("a file");
            let variables = example.split("_env = \"").skip(1);
            let variables = variables.filter_map(|rest| rest.split('"').next());
            let environment = ConfigEnvironment {
                directory: directory.path().to_owned(),
                variables: variables.map(|name| (name.into(), "x".into())).collect(),
            };
            let layers = layers(&environment, None).expect(example);
            let (config, explained) = layers.finish().expect(example);
            declare_agents(&config, &explained, &environment).expect(example);
        }
    }
    assert!(count >= 4, "only {count} examples were found");
}

#[test]
fn every_setting_is_explained() {
    let (agents, server) = (page("docs/configuration.md"), page("docs/operations.md"));
    let of_agents = explained(&agents, "## 2. Agents");
    for (setting, kinds) in SETTINGS {
        let found = of_agents.get(setting).expect(setting);
        let words: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
        let words = if kinds.len() == DeclaredKind::ALL.len() {
            "all".to_owned()
        } else {
            words.join(", ")
        };
        assert_eq!(found[0], words, "the kinds of {setting}");
    }
    for kind in DeclaredKind::ALL {
        assert!(of_agents.contains_key(kind.word()), "{kind:?}");
    }
    for (text, heading, settings) in [
        (&agents, "## 3. Models", &MODEL_SETTINGS[..]),
        (&agents, "## 4. Tool servers", &TOOL_SERVER_SETTINGS),
        (&server, "### Policies of agents and tools", &TOOL_SETTINGS),
    ] {
        let found = explained(text, heading);
        for setting in settings {
            assert!(found.contains_key(setting), "{heading}: {setting}");
        }
    }
    let of_server = explained(&server, "## 2. Configuration");
    let (_, values) = ConfigLayers::defaults().finish().expect("defaults fit");
    for value in values {
        assert!(of_server.contains_key(value.key.as_str()), "{}", value.key);
    }
}

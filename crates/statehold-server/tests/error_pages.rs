//! Every error code has a page in `docs/errors/`, and every page a code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use statehold_server::problem::Code;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_code_has_a_page_and_every_page_a_code() {
    let entries = std::fs::read_dir(folder()).expect("docs/errors is there");
    let names = entries.map(|entry| entry.expect("it can be listed").file_name());
    let mut pages: BTreeSet<String> = names
        .map(|name| name.into_string().expect("a plain name"))
        .collect();
    assert!(pages.remove("README.md"), "docs/errors/README.md is gone");
    let wanted: BTreeSet<String> = Code::ALL
        .iter()
        .map(|code| format!("{}.md", code.text()))
        .collect();
    let missing: Vec<_> = wanted.difference(&pages).collect();
    let left_over: Vec<_> = pages.difference(&wanted).collect();
    assert!(missing.is_empty(), "codes without a page: {missing:?}");
    assert!(left_over.is_empty(), "pages without a code: {left_over:?}");
}

#[test]
fn a_page_names_its_code_title_and_status_and_says_what_to_do() {
    for code in Code::ALL {
        let name = code.text();
        let page = read(&folder().join(format!("{name}.md")));
        let title = format!("# `{name}`: {}", code.title());
        assert_eq!(page.lines().next(), Some(title.as_str()), "{name}.md");
        let status = format!("Status: {}", code.status());
        assert!(
            page.lines().any(|line| line == status),
            "{name}.md does not say {status:?}"
        );
        for part in [
            "**What happened.**",
            "**Typical cause.**",
            "**Fields.**",
            "**What to do.**",
            "```sh",
        ] {
            assert!(page.contains(part), "{name}.md has no {part}");
        }
    }
}

#[test]
fn the_table_has_every_code_in_order() {
    let table = read(&folder().join("README.md"));
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("| [`"))
        .collect();
    let wanted: Vec<String> = Code::ALL
        .iter()
        .map(|code| {
            let (name, status, title) = (code.text(), code.status(), code.title());
            format!("| [`{name}`]({name}.md) | {status} | {title} |")
        })
        .collect();
    assert_eq!(rows, wanted);
}

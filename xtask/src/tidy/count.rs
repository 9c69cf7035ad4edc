//! Counts the lines of the product: code of each crate without tests, comments and blank lines.
//!
//! It relies on the layout that rustfmt writes, and does not parse Rust.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{crates, files, is_test};

/// Lines of each crate that is part of the product, by name. Crates for tests and automation are not
/// published.
pub(crate) fn product_lines() -> Result<Vec<(String, usize)>> {
    let mut lines = Vec::new();
    for (name, folder) in crates(&super::root()?)? {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml"))?;
        if !manifest.contains("publish = false") {
            lines.push((name, crate_lines(&folder.join("src"))?));
        }
    }
    Ok(lines)
}

fn crate_lines(src: &Path) -> Result<usize> {
    let mut sources = Vec::new();
    for file in files(src, "rs")? {
        if !is_test(file.strip_prefix(src)?) {
            let text = std::fs::read_to_string(&file)?;
            sources.push((file, text));
        }
    }
    let counts: Vec<_> = sources.iter().map(|(_, text)| count(text)).collect();
    let test_modules: BTreeSet<PathBuf> = sources
        .iter()
        .zip(&counts)
        .flat_map(|((file, _), count)| {
            let names = count.test_modules.iter();
            names.map(|name| submodules(file).join(name))
        })
        .collect();
    let lines = sources.iter().zip(&counts).filter(|((file, _), _)| {
        let module = file.with_extension("");
        !module
            .ancestors()
            .any(|module| test_modules.contains(module))
    });
    Ok(lines.map(|(_, count)| count.lines).sum())
}

/// The folder in which the modules that `file` declares lie.
fn submodules(file: &Path) -> PathBuf {
    if file.ends_with("lib.rs") || file.ends_with("main.rs") {
        file.with_file_name("")
    } else {
        file.with_extension("")
    }
}

#[derive(Debug, Default, PartialEq)]
struct Count {
    lines: usize,
    /// Modules in files of their own that are declared for tests only.
    test_modules: Vec<String>,
}

fn count(text: &str) -> Count {
    let mut count = Count::default();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if code == "#[cfg(test)]" {
            let indent = &line[..line.len() - code.len()];
            count.test_modules.extend(skip_item(&mut lines, indent));
        } else if !code.is_empty() && !code.starts_with("//") {
            count.lines += 1;
        }
    }
    count
}

/// Skips the item behind a `#[cfg(test)]`, and returns its name if it is a module in another file.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>, indent: &str) -> Option<String> {
    let first = lines.find(|line| !line.trim_start().starts_with(['#', '/']))?;
    if !first.ends_with([';', ',', '}']) {
        lines.find(|line| {
            let end = line.strip_prefix(indent);
            end.is_some_and(|end| matches!(end, "}" | "};" | "}," | ");"))
        });
    }
    let name = first.strip_suffix(';')?.rsplit_once("mod ")?.1;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, lines: usize, test_modules: &[&str]) {
        let test_modules = test_modules.iter().map(|name| (*name).to_owned()).collect();
        let expected = Count {
            lines,
            test_modules,
        };
        assert_eq!(count(text), expected);
    }

    #[test]
    fn comments_and_blank_lines_are_left_out() {
        let text = "//! A module.\n\n/// Adds.\nfn add() {\n    // why\n    one() // here\n}\n";
        check(text, 3, &[]);
    }

    #[test]
    fn tests_are_left_out_wherever_they_are() {
        let inline =
            "fn one() {}\n#[cfg(test)]\nmod tests {\n    fn two() {\n    }\n}\nfn three() {}\n";
        check(inline, 2, &[]);
        let method = "impl A {\n    #[cfg(test)]\n    fn a(\n        &self,\n    ) {\n        b();\n    }\n    fn c() {}\n}\n";
        check(method, 3, &[]);
        check("#[cfg(test)]\nuse a::{\n    b,\n};\nuse c;\n", 1, &[]);
        check("#[cfg(test)]\nuse a::b;\nuse c;\n", 1, &[]);
    }

    #[test]
    fn files_of_modules_for_tests_are_named() {
        let text = "mod one;\n#[cfg(test)]\nmod two;\n#[cfg(test)]\npub(crate) mod three;\n";
        check(text, 1, &["two", "three"]);
        assert_eq!(submodules(Path::new("src/lib.rs")), Path::new("src/"));
        assert_eq!(submodules(Path::new("src/chat.rs")), Path::new("src/chat"));
    }
}

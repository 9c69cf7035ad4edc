//! Compares the code map of `ARCHITECTURE.md` with the tree: every top-level module has one place in the
//! table of its crate, and every name in a table is a module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

use super::{crates, files};

/// The modules of each crate, as paths such as `feed` and `feed::session`.
type Modules = BTreeMap<String, BTreeSet<String>>;

pub(super) fn check(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let map = std::fs::read_to_string(root.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    problems.extend(differences(&map, &modules(root)?));
    Ok(())
}

fn modules(root: &Path) -> Result<Modules> {
    let mut modules = Modules::new();
    for (name, folder) in crates(root)? {
        let src = folder.join("src");
        let found = modules.entry(name).or_default();
        for file in files(&src, "rs")? {
            let file = file.strip_prefix(&src)?.with_extension("");
            let is_program = ["lib", "main", "bin"].iter().any(|at| file.starts_with(at));
            if !is_program {
                let parts = file.iter().map(|part| part.to_string_lossy());
                found.insert(parts.collect::<Vec<_>>().join("::"));
            }
        }
    }
    Ok(modules)
}

fn differences(map: &str, tree: &Modules) -> Vec<String> {
    let listed = listed(map);
    let mut problems = Vec::new();
    for (package, modules) in tree {
        for module in modules.iter().filter(|module| !module.contains("::")) {
            if !listed.contains_key(&(package, module)) {
                problems.push(format!(
                    "ARCHITECTURE.md: add `{module}` to the table of `{package}`"
                ));
            }
        }
    }
    for ((package, module), lines) in listed {
        let is_there = tree.get(package).is_some_and(|all| all.contains(module));
        let reason = if is_there {
            "it is listed twice"
        } else {
            "there is no such module"
        };
        for line in lines.iter().skip(usize::from(is_there)) {
            problems.push(format!(
                "ARCHITECTURE.md:{line}: remove `{module}` from the table of `{package}`: {reason}"
            ));
        }
    }
    problems
}

/// The lines on which each module is listed: names of the first column, and paths such as
/// `feed::session` in the others.
fn listed(map: &str) -> BTreeMap<(&str, &str), Vec<usize>> {
    let mut listed = BTreeMap::<_, Vec<usize>>::new();
    let mut package = None;
    for (index, line) in map.lines().enumerate() {
        if line.starts_with('#') {
            package = line
                .strip_prefix("### `")
                .and_then(|name| name.split('`').next());
        } else if let (Some(package), Some(row)) = (package, line.strip_prefix("| `")) {
            let (first, rest) = row.split_once(" | ").unwrap_or((row, ""));
            // Between backticks is every second part; the first row of names begins with one.
            let names = first.split('`').step_by(2).filter(|name| !name.is_empty());
            let paths = rest
                .split('`')
                .skip(1)
                .step_by(2)
                .filter(|name| name.contains("::"));
            for name in names.chain(paths) {
                listed.entry((package, name)).or_default().push(index + 1);
            }
        }
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "\
## 2. Code map

### `engine`: what happens

| module | for |
| --- | --- |
| `feed`, `read` | questions; `feed::session` one of them, `feed::gone` another, through `Store` |
| `timers` | leases |
| `keys`, `feed` | keys |

## 3. Invariants

| `elsewhere` | no table of a crate |
";

    fn tree(package: &str, modules: &[&str]) -> Modules {
        let modules = modules.iter().map(|module| (*module).to_owned());
        [(package.to_owned(), modules.collect())].into()
    }

    #[test]
    fn each_difference_says_what_to_add_and_what_to_remove() {
        let tree = tree(
            "engine",
            &[
                "feed",
                "feed::session",
                "feed::hub",
                "keys",
                "policy",
                "read",
            ],
        );
        let expected = [
            "ARCHITECTURE.md: add `policy` to the table of `engine`",
            "ARCHITECTURE.md:9: remove `feed` from the table of `engine`: it is listed twice",
            "ARCHITECTURE.md:7: remove `feed::gone` from the table of `engine`: there is no such module",
            "ARCHITECTURE.md:8: remove `timers` from the table of `engine`: there is no such module",
        ];
        assert_eq!(differences(MAP, &tree), expected);
    }

    #[test]
    fn a_crate_without_a_table_has_all_its_modules_missing() {
        let problems = differences("", &tree("store", &["port", "sqlite", "sqlite::write"]));
        assert_eq!(
            problems,
            [
                "ARCHITECTURE.md: add `port` to the table of `store`",
                "ARCHITECTURE.md: add `sqlite` to the table of `store`",
            ]
        );
    }
}

//! Links between documents: the file is there, and so is the heading. The index of the documents names every page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use super::files;

/// Folders with documents, besides the root.
const FOLDERS: [&str; 5] = ["crates", "docs", "examples", "packaging", "scripts"];

/// The index: a newcomer finds every page of its folder there.
const INDEX: &str = "docs/README.md";

pub(super) fn check(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let pages = pages(root)?;
    let is_there = |path: &Path| root.join(path).exists();
    problems.extend(broken(&pages, is_there));
    problems.extend(unlisted(&pages));
    Ok(())
}

/// The text of each document, by its path in the repository.
type Pages = BTreeMap<PathBuf, String>;

fn pages(root: &Path) -> Result<Pages> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        if path.is_file() && path.extension().is_some_and(|found| found == "md") {
            paths.push(path);
        }
    }
    for folder in FOLDERS {
        paths.extend(files(&root.join(folder), "md")?);
    }
    let mut pages = Pages::new();
    for path in paths {
        let text = std::fs::read_to_string(&path)?;
        pages.insert(path.strip_prefix(root)?.to_owned(), text);
    }
    Ok(pages)
}

fn broken(pages: &Pages, is_there: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    let anchors: BTreeMap<&Path, BTreeSet<String>> = pages
        .iter()
        .map(|(path, text)| (path.as_path(), anchors(text)))
        .collect();
    for (page, text) in pages {
        for (number, target) in links(text) {
            let Some((path, anchor)) = resolve(page, &target) else {
                continue;
            };
            let found = anchors.get(path.as_path());
            let reason = if found.is_none() && !is_there(&path) {
                "there is no such file"
            } else if let Some(anchor) = anchor
                && !found.is_some_and(|anchors| anchors.contains(&anchor))
            {
                "there is no such heading"
            } else {
                continue;
            };
            let page = page.display();
            problems.push(format!("{page}:{number}: the link `{target}`: {reason}"));
        }
    }
    problems
}

/// Pages beside the index that it does not name.
fn unlisted(pages: &Pages) -> Vec<String> {
    let index = Path::new(INDEX);
    let text = pages.get(index).map(String::as_str).unwrap_or_default();
    let listed: BTreeSet<PathBuf> = links(text)
        .filter_map(|(_, target)| Some(resolve(index, &target)?.0))
        .collect();
    let beside = |path: &&PathBuf| path.parent() == index.parent() && path.as_path() != index;
    let missing = pages
        .keys()
        .filter(beside)
        .filter(|path| !listed.contains(*path));
    missing
        .map(|path| format!("{INDEX} does not name {}", path.display()))
        .collect()
}

/// The file and the heading that a relative link means. Addresses elsewhere mean none.
fn resolve(page: &Path, target: &str) -> Option<(PathBuf, Option<String>)> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor.to_owned())),
        None => (target, None),
    };
    if file.is_empty() {
        return Some((page.to_owned(), anchor));
    }
    let mut path = PathBuf::new();
    for part in page.parent()?.join(file).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => path.push(part),
        }
    }
    Some((path, anchor))
}

/// The lines that are text, with their numbers: not those of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fence && !is_fenced
    })
}

/// The targets of links, with the numbers of their lines.
fn links(text: &str) -> impl Iterator<Item = (usize, String)> {
    prose(text).flat_map(|(number, line)| {
        let line = without_code(line);
        let targets = line.split("](").skip(1);
        let targets = targets.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
        targets.map(|target| (number, target)).collect::<Vec<_>>()
    })
}

/// A line without what is in backticks. A lone backtick belongs to code of several lines and is left as it is.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return line.to_owned();
    }
    parts.into_iter().step_by(2).collect()
}

/// The names under which parts of a page can be linked to, as GitHub makes them of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        if let Some(heading) = line.strip_prefix('#') {
            let first = slug(heading.trim_start_matches('#').trim());
            let mut name = first.clone();
            for again in 1.. {
                if found.insert(name) {
                    break;
                }
                name = format!("{first}-{again}");
            }
        }
        let named = line.split("<a id=\"").skip(1);
        found.extend(named.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    }
    found
}

fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let heading = heading.to_lowercase();
    heading
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(texts: &[(&str, &str)]) -> Pages {
        let owned = |(path, text): &(&str, &str)| (PathBuf::from(*path), (*text).to_owned());
        texts.iter().map(owned).collect()
    }

    #[test]
    fn a_link_to_a_file_or_a_heading_that_is_gone_is_noticed() {
        let pages = pages(&[
            (
                "README.md",
                "[a](docs/a.md#two-words) [b](docs/b.md) [c](docs/a.md#gone)",
            ),
            (
                "docs/a.md",
                "# A\n## Two `words`!\n[up](../README.md) [here](#a) [x](https://x.test/y)",
            ),
        ]);
        let problems = broken(&pages, |_| false);
        let expected = [
            "README.md:1: the link `docs/b.md`: there is no such file",
            "README.md:1: the link `docs/a.md#gone`: there is no such heading",
        ];
        assert_eq!(problems, expected);
    }

    #[test]
    fn code_has_no_links() {
        let text = "`[a](b)` [c](d)\n```\n[e](f)\n# no heading\n```\n[g](h)\n";
        let found: Vec<(usize, String)> = links(text).collect();
        assert_eq!(found, [(1, "d".to_owned()), (6, "h".to_owned())]);
        assert!(anchors(text).is_empty());
    }

    #[test]
    fn headings_of_the_same_words_are_told_apart() {
        let found: Vec<String> = anchors("## One\n## One\n<a id=\"other\"></a>")
            .into_iter()
            .collect();
        assert_eq!(found, ["one", "one-1", "other"]);
    }

    #[test]
    fn a_page_that_the_index_does_not_name_is_noticed() {
        let pages = pages(&[
            ("docs/README.md", "[a](a.md)"),
            ("docs/a.md", ""),
            ("docs/b.md", ""),
            ("docs/errors/c.md", ""),
        ]);
        assert_eq!(unlisted(&pages), ["docs/README.md does not name docs/b.md"]);
    }
}

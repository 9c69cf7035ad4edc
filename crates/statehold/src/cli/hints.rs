//! Commands in hints, as the reader can type them: with the program as it was started, and the server that it was
//! told to call.
//!
//! Texts name commands as `statehold sessions list`. A person who typed `target/debug/statehold --url URL …` has no
//! `statehold` at hand, and another server at the default address.

use std::path::Path;
use std::sync::OnceLock;

use super::globals::GlobalArgs;
use super::output::{error_columns, visible_width, wrapped};

/// The name of the program in texts.
const PROGRAM: &str = "statehold ";

/// The commands that call a server.
const CALLERS: [&str; 13] = [
    "agents",
    "approvals",
    "audit",
    "chat",
    "doctor",
    "keys",
    "mcp",
    "sessions",
    "state",
    "status",
    "tasks",
    "token",
    "users",
];
/// Other commands that hints name.
const OTHERS: [&str; 10] = [
    "backup",
    "check",
    "completions",
    "config",
    "debug-log",
    "demo",
    "dev",
    "man-pages",
    "restore",
    "serve",
];

/// How this program was started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Invocation {
    program: Option<String>,
    /// The options that name the server and the key.
    options: String,
}

static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// Remembers how the program was started, for all hints of this process.
pub(super) fn remember(globals: &GlobalArgs) {
    let started = std::env::args_os().next();
    let started = started.as_deref().map(Path::new);
    let invocation = Invocation {
        program: started.and_then(typed_program),
        options: globals.server_options(),
    };
    // A second call in one process would be the same.
    drop(INVOCATION.set(invocation));
}

/// The program as it was typed, if not by its name alone: `target/debug/statehold`. An absolute path was not typed.
fn typed_program(started: &Path) -> Option<String> {
    let is_typed = started.is_relative() && started.components().count() > 1;
    started.to_str().filter(|_| is_typed).map(quoted)
}

/// A text as one word of a POSIX shell. Plain words stay as they are.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./…:@=+,%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// A text whose commands can be typed as they are.
pub(super) fn typed(text: &str) -> String {
    match INVOCATION.get() {
        Some(invocation) if *invocation != Invocation::default() => invocation.apply(text),
        Some(_) | None => text.to_owned(),
    }
}

impl Invocation {
    fn apply(&self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(PROGRAM) {
            let (before, found) = rest.split_at(at);
            let after = &found[PROGRAM.len()..];
            let word = after.split(|c: char| !c.is_ascii_lowercase() && c != '-');
            let word = word.into_iter().next().unwrap_or_default();
            let begins = !before.ends_with(|c: char| c.is_alphanumeric() || "/-_.".contains(c));
            let line = after.lines().next().unwrap_or_default();
            let calls =
                CALLERS.contains(&word) && !line.contains("--url") && !line.contains("--data");
            shown.push_str(before);
            match &self.program {
                Some(program) if begins && (CALLERS.contains(&word) || OTHERS.contains(&word)) => {
                    shown.push_str(program);
                    shown.push(' ');
                }
                _ => shown.push_str(PROGRAM),
            }
            if begins && calls {
                shown.push_str(&self.options);
            }
            rest = after;
        }
        shown + rest
    }
}

/// The lines of a hint for a terminal of so many columns. A command that does not fit behind its sentence gets a line
/// of its own, and is never broken.
pub(super) fn fitted(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        if visible_width(line) <= columns {
            lines.push(line.to_owned());
            continue;
        }
        match line.find(": ").filter(|at| is_command(&line[at + 2..])) {
            Some(at) => {
                lines.extend(wrapped(&line[..=at], columns));
                lines.push(format!("  {}", &line[at + 2..]));
            }
            None if is_command(line.trim_start()) => lines.push(line.to_owned()),
            None => lines.extend(wrapped(line, columns)),
        }
    }
    lines
}

/// An error as it fits the terminal, with commands that can be typed. Lines below the first stay indented.
pub(crate) fn for_terminal(said: &str) -> String {
    let said = typed(said);
    let Some(columns) = error_columns() else {
        return said;
    };
    let lines = said.split('\n').flat_map(|line| {
        let text = line.trim_start_matches(' ');
        let indent = &line[..line.len() - text.len()];
        let lines = fitted(text, columns.saturating_sub(indent.len()));
        lines.into_iter().map(move |line| format!("{indent}{line}"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn is_command(text: &str) -> bool {
    let first = text.split(' ').next().unwrap_or_default();
    first.ends_with("statehold") || first.ends_with("statehold'")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(program: Option<&str>, options: &str, text: &str, expected: &str) {
        let invocation = Invocation {
            program: program.map(str::to_owned),
            options: options.to_owned(),
        };
        assert_eq!(invocation.apply(text), expected);
    }

    #[test]
    fn a_command_is_named_as_the_program_was_started() {
        let text = "Look at one with: statehold sessions show X; or start one: statehold dev";
        let cargo = Some("target/debug/statehold");
        check(
            cargo,
            "--url http://a:1 ",
            text,
            "Look at one with: target/debug/statehold --url http://a:1 sessions show X; or start one: \
             target/debug/statehold dev",
        );
        check(None, "", text, text);
        let other = "a statehold server; my-statehold sessions; statehold.db";
        check(cargo, "--url http://a:1 ", other, other);
        let offline = "statehold token list --data x; statehold chat --url http://b:2";
        check(None, "--url http://a:1 ", offline, offline);
    }

    #[test]
    fn a_program_is_repeated_only_as_it_was_typed() {
        let typed = |path: &str| typed_program(Path::new(path));
        assert_eq!(typed("statehold"), None);
        assert_eq!(typed("/usr/bin/statehold"), None);
        assert_eq!(
            typed("target/debug/statehold").as_deref(),
            Some("target/debug/statehold")
        );
        assert_eq!(
            typed("./my dir/statehold").as_deref(),
            Some("'./my dir/statehold'")
        );
    }

    #[test]
    fn a_command_that_does_not_fit_gets_a_line_of_its_own() {
        let text = "Nothing waits at the moment. Follow with: statehold approvals watch";
        assert_eq!(
            fitted(text, 40),
            [
                "Nothing waits at the moment. Follow",
                "with:",
                "  statehold approvals watch"
            ]
        );
        assert_eq!(fitted(text, 80), [text]);
    }
}

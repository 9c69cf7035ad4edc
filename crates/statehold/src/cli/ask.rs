//! Asking the person at the terminal, if there is one.
//!
//! Questions go to standard error; standard output has results only. In a pipe or in CI the command
//! does not ask: it fails and names the flag that answers.

use std::io::{BufRead, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::for_terminal;
use crate::exit::Failure;

/// Whether there is a person to ask: standard input is a terminal, and this is not CI.
pub(super) fn can_ask() -> bool {
    let is_automatic = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    std::io::stdin().is_terminal() && !is_automatic
}

/// Requires a person to ask, unless `--yes` was given.
///
/// # Errors
///
/// With exit code 2. `what` is the action that needs a confirmation.
pub(super) fn require_person(yes: bool, what: &str) -> Result<(), Failure> {
    if yes || can_ask() {
        return Ok(());
    }
    let message = format!("{what} needs a confirmation, and there is no terminal to ask on");
    Err(Failure::usage(message).hint("confirm with: --yes"))
}

/// Asks for one line. `None` at the end of input.
pub(super) fn ask_line(question: &str) -> anyhow::Result<Option<String>> {
    let mut out = anstream::stderr().lock();
    write!(out, "{}", for_terminal(question))?;
    out.flush()?;
    drop(out);
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer)?;
    if read == 0 {
        // Enter was not pressed behind the question.
        anstream::eprintln!();
    }
    let answer = answer.trim_end_matches(['\n', '\r']).to_owned();
    Ok((read > 0).then_some(answer))
}

/// Asks a yes/no question. The default is no.
pub(super) fn ask_yes(question: &str) -> anyhow::Result<bool> {
    let answer = ask_line(&format!("{question} [y/N] "))?.unwrap_or_default();
    let answer = answer.trim().to_ascii_lowercase();
    Ok(matches!(answer.as_str(), "y" | "yes"))
}

/// Asks for one line without echoing it.
pub(super) fn ask_secret(question: &str) -> anyhow::Result<Option<String>> {
    let input = std::io::stdin();
    let shown = tcgetattr(&input)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&input, OptionalActions::Flush, &hidden)?;
    let answer = ask_line(question);
    tcsetattr(&input, OptionalActions::Now, &shown)?;
    anstream::eprintln!();
    answer
}

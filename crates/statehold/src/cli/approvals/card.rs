//! A hold as a person sees it before a decision: the end of the conversation, what is asked and why, who asks for whom,
//! the risk, the deadline, and the whole arguments.

use serde_json::Value;

use super::arguments::lines;
use crate::cli::hints::typed;
use crate::cli::hold::{HoldInfo, MessageInfo};
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone, wrapped};
use crate::cli::printable::{cell, printable};
use crate::cli::resolve::exact_name;

/// The longest message of a hold on a card.
pub(super) const MESSAGE_CHARS_MAX: usize = 4_096;

/// The lines of a card for a terminal of so many columns. `args` are the arguments of an edit.
pub(super) fn lines_of(
    hold: &HoldInfo,
    args: Option<&Value>,
    columns: usize,
    output: &CliOutput,
) -> Vec<String> {
    // The action stands nearest to the question, also on a screen of 24 rows.
    let mut card = conversation(hold, columns);
    if !card.is_empty() {
        card.remove(0);
        card.push(String::new());
    }
    let title = wrapped(&cell(&hold.title), columns);
    card.extend(title.iter().map(|line| TextTone::Strong.paint(line)));
    if let Some(message) = &hold.message {
        let rest = format!(
            "the rest: statehold approvals show {} --full",
            exact_name(&hold.session_id, &hold.alias)
        );
        card.extend(prose(message, (MESSAGE_CHARS_MAX, &rest), columns, ""));
    }
    card.push(String::new());
    let facts = TextTable::facts(facts(hold, args.is_some(), output), TextTone::Dim);
    card.extend(
        facts
            .render(Some(columns), false)
            .lines()
            .map(str::to_owned),
    );
    if let Some(action) = &hold.action {
        let mut action = action.clone();
        if let Some(args) = args {
            action.args = args.clone();
        }
        card.push(String::new());
        card.push(TextTone::Strong.paint(&cell(&action.tool)));
        card.extend(lines(&action, true, columns));
    }
    card
}

/// The facts that a decision needs, one value each.
fn facts(hold: &HoldInfo, is_edit: bool, output: &CliOutput) -> Vec<(&'static str, TableCell)> {
    let asks = match hold.for_whom() {
        Some(user) => format!("{} for {user}", hold.agent),
        None => hold.agent.clone(),
    };
    let mut facts = vec![("asked by", TableCell::new(asks))];
    if !hold.chain.is_empty() {
        facts.push(("chain", TableCell::new(&hold.chain)));
    }
    if hold.action.is_some() {
        let tone = if hold.is_high_risk() {
            TextTone::Bad
        } else {
            TextTone::Plain
        };
        facts.push(("risk", TableCell::new(hold.risk_words()).tone(tone)));
    }
    facts.extend(hold.approvals().map(|count| {
        (
            "approvals",
            TableCell::new(format!("{count}; each person once")),
        )
    }));
    facts.push(("expires", TableCell::new(hold.until(&output.times))));
    let digest = hold
        .action
        .as_ref()
        .and_then(|action| action.digest.as_deref());
    // The server compares it with the action that was asked for; the arguments of an edit are in
    // the decision.
    let name = if is_edit { "digest before" } else { "digest" };
    facts.extend(digest.map(|digest| (name, TableCell::new(digest))));
    facts
}

/// The end of the conversation, or nothing if this key does not see it.
pub(super) fn conversation(hold: &HoldInfo, columns: usize) -> Vec<String> {
    let Some(excerpt) = hold
        .excerpt
        .as_ref()
        .filter(|excerpt| !excerpt.messages.is_empty())
    else {
        return Vec::new();
    };
    let heading = match excerpt.messages.len() {
        1 => "last message".to_owned(),
        count => format!("last {count} messages"),
    };
    let mut shown = vec![String::new(), TextTone::Strong.paint(&heading)];
    for message in &excerpt.messages {
        shown.push(format!("  {}", TextTone::Dim.paint(&speaker(message))));
        shown.extend(prose(&message.text, (usize::MAX, ""), columns, "    "));
    }
    shown
}

fn speaker(message: &MessageInfo) -> String {
    let mut words = cell(&message.role);
    if let Some(name) = &message.name {
        words.push_str(" (");
        words.push_str(&cell(name));
        words.push(')');
    }
    match message.attachments {
        0 => {}
        1 => words.push_str(", with a file"),
        count => {
            let files = format!(", with {count} files");
            words.push_str(&files);
        }
    }
    if message.is_cut {
        words.push_str(", the beginning");
    }
    words
}

/// A text of several lines behind an indent, at most so many characters. A text that was cut says
/// where its rest is.
fn prose(
    text: &str,
    (chars_max, rest): (usize, &str),
    columns: usize,
    indent: &str,
) -> Vec<String> {
    let length = text.chars().count();
    let mut shown = printable(&text.chars().take(chars_max).collect::<String>());
    if length > chars_max {
        let more = format!(
            "… ({} more characters)\n{}",
            length - chars_max,
            typed(rest)
        );
        shown.push_str(&more);
    }
    let width = columns.saturating_sub(indent.len());
    let lines = shown.lines().flat_map(|line| wrapped(line, width));
    lines
        .map(|line| format!("{indent}{line}").trim_end().to_owned())
        .collect()
}

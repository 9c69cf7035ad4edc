//! A paused turn as text that any chat window can show.

use serde_json::Value;
use statehold_core::hold::HoldKind;
use statehold_core::name::is_deceptive;

use super::question::choices;
use crate::api::hold::{ActionView, HoldView, confirmation_text, title_of};
use crate::bodies::{HoldBody, parse};
use crate::holds::HoldDetail;

/// The longest call of a tool that is shown whole, in characters.
const CALL_CHARS_MAX: usize = 1_000;
/// The server that the commands call if none is named.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7717";
/// How many open questions a reminder names.
const REMINDED_MAX: usize = 3;

/// The text for a person who waits for a paused turn: what the turn waits for, the next step of a reader who
/// may decide, and where the answer will appear. `base` is the address of the server.
pub fn pause_text(holds: &[HoldDetail], base: &str) -> String {
    let is_asked = |hold: &&HoldDetail| hold.hold.kind == HoldKind::Question && may_decide(hold);
    let answers_here = holds.iter().filter(is_asked).count() == 1;
    let summaries: Vec<String> = holds.iter().map(hold_summary).collect();
    let mut steps: Vec<String> = holds
        .iter()
        .map(|hold| next_step(hold, base, answers_here))
        .collect();
    steps.dedup();
    let is_answered_here = answers_here && holds.len() == 1;
    if !is_answered_here && !holds.iter().all(takes_next_call) {
        steps.push("The answer of the agent comes with your next message after that.".to_owned());
    }
    format!("{}\n\n{}", summaries.join("\n"), steps.join("\n"))
}

/// The beginning of the text about a hold, without blank lines: the same for every reader, and also after the
/// decision. A chat client that repeats it is recognised by it.
pub(super) fn hold_summary(detail: &HoldDetail) -> String {
    let HoldView {
        id, agent, message, ..
    } = HoldView::of(detail);
    let title = title_of(detail.hold.kind, detail.body.as_deref());
    let mut text = without_links(&without_blank_lines(&title));
    let message = without_links(&without_blank_lines(&message.unwrap_or_default()));
    if !message.is_empty() {
        if !text.ends_with(['.', '!', '?', ':', '…']) {
            text.push('.');
        }
        text.push(' ');
        text.push_str(&message);
    }
    let waits = match detail.hold.kind {
        HoldKind::Question | HoldKind::Form => "asks",
        HoldKind::Link => "waits for a visit",
        HoldKind::Credential => "needs a credential",
        HoldKind::Approval | HoldKind::Reconcile => "waits for a decision",
    };
    format!("{agent} {waits}: {text} ({id})")
}

/// One line about the questions that stay open while their reader talks about something else.
pub(super) fn question_reminder(questions: &[HoldDetail]) -> Option<String> {
    let named: Vec<String> = questions.iter().take(REMINDED_MAX).map(named).collect();
    let agent = HoldView::of(questions.first()?).agent;
    Some(match named.as_slice() {
        [question] => format!("({agent} still waits for an answer: {question})"),
        questions => format!(
            "({agent} still waits for answers: {}. Answer each with: statehold approvals respond ID)",
            questions.join(", ")
        ),
    })
}

/// One line about a message that was not read, because its call brought the credential that a turn waited for.
pub(super) fn credential_reminder(hold: &HoldDetail) -> String {
    let agent = HoldView::of(hold).agent;
    format!(
        "(This call brought the key that {agent} waited for, so {agent} went on. The words of the message were not \
         read; send them again.)"
    )
}

/// One line about an approval, for a reader whose message sounds like one.
pub(super) fn approval_reminder(approval: &HoldDetail) -> String {
    let agent = HoldView::of(approval).agent;
    let approval = named(approval);
    format!("(Messages here decide nothing; {agent} still waits for a decision: {approval})")
}

/// The title of a hold on one line, and its id.
fn named(hold: &HoldDetail) -> String {
    let title = title_of(hold.hold.kind, hold.body.as_deref());
    let title: Vec<&str> = title.split_whitespace().collect();
    format!("{} ({})", without_links(&title.join(" ")), hold.hold.id)
}

/// An agent's words in which chats that draw Markdown find no link and no picture: one could pass for the link of the
/// server to the decision.
pub fn without_links(text: &str) -> String {
    text.replace("](", "] (")
}

fn without_blank_lines(text: &str) -> String {
    let lines = text.lines().map(str::trim_end);
    let lines = lines.filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a call with a credential of its own answers the hold.
fn takes_next_call(detail: &HoldDetail) -> bool {
    let body: HoldBody = parse(detail.body.as_deref());
    body.audience.is_some()
}

fn may_decide(detail: &HoldDetail) -> bool {
    detail.why_not.is_none()
}

/// The next step of the reader about a hold. Only readers who may decide it get the action and a command.
fn next_step(detail: &HoldDetail, base: &str, answers_here: bool) -> String {
    let HoldView {
        id, url, action, ..
    } = HoldView::of(detail);
    let server = server_option(base);
    let respond = format!("statehold approvals respond {id}{server}");
    match detail.hold.kind {
        HoldKind::Approval | HoldKind::Reconcile if !may_decide(detail) => {
            "Another person has to decide this.".to_owned()
        }
        _ if !may_decide(detail) => "Another person has to answer this.".to_owned(),
        HoldKind::Question if answers_here => match choices(detail).as_slice() {
            [] => "Your next message here is the answer.".to_owned(),
            choices => format!("Answer with your next message: {}.", choices.join(" or ")),
        },
        HoldKind::Question | HoldKind::Form => format!("Answer with: {respond}"),
        HoldKind::Link => match url {
            Some(url) => format!("Open {url}, then confirm with: {respond}"),
            None => format!("Confirm with: {respond}"),
        },
        HoldKind::Credential if takes_next_call(detail) => {
            "Your next message here lets it go on, whatever it says.".to_owned()
        }
        HoldKind::Credential => format!("Give it with: {respond}"),
        // Approving a reconcile hold runs the action again: the person has to look at it first.
        HoldKind::Reconcile => {
            format!("Look at it and decide with: statehold approvals show {id}{server}")
        }
        HoldKind::Approval => {
            let confirm = action.as_ref().and_then(confirm_option).unwrap_or_default();
            let call = action.as_ref().map(call_line).unwrap_or_default();
            format!(
                "{call}Decide with: statehold approvals approve {id}{confirm}{server}\n\
                 To refuse: statehold approvals reject {id}{server}"
            )
        }
    }
}

/// The option that names the server on the command line, unless it is the default one.
fn server_option(base: &str) -> String {
    if base.is_empty() || base == DEFAULT_SERVER {
        return String::new();
    }
    format!(" --url {base}")
}

/// The option that confirms an action of high risk on the command line.
fn confirm_option(action: &ActionView) -> Option<String> {
    let args: Value = serde_json::from_str(action.args.get()).unwrap_or_default();
    let is_hidden = |pointer: &str| {
        action
            .redactions
            .iter()
            .any(|hidden| hidden.path == pointer)
    };
    let text = confirmation_text(&action.tool, &args, is_hidden);
    action
        .is_high_risk()
        .then(|| format!(" --confirm \"{text}\""))
}

/// The call of a tool on one line, without characters that could make it look like another call.
fn call_line(action: &ActionView) -> String {
    let call = format!("It would call {} with {}", action.tool, action.args.get());
    let mut line = String::new();
    for c in call.chars().take(CALL_CHARS_MAX) {
        if is_deceptive(c) {
            line.extend(c.escape_unicode());
        } else {
            line.push(c);
        }
    }
    if call.chars().nth(CALL_CHARS_MAX).is_some() {
        line.push('…');
    }
    line.push('\n');
    line
}

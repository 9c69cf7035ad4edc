//! `statehold approvals show`.

use clap::Args;
use serde_json::Value;

use super::arguments::{lines, rows};
use super::confirm::phrase;
use crate::cli::answers::read;
use crate::cli::hold::{Hold, why_not};
use crate::cli::output::{Cell, Output, Table, Tone};
use crate::cli::printable::{cell, printable};
use crate::cli::resolve;
use crate::client::Client;
use crate::exit::Exit;

/// How much of a message is shown, unless all of it is asked for.
const MESSAGE_CHARS_MAX: usize = 4_096;

#[derive(Debug, Args)]
pub(in crate::cli) struct Show {
    /// The hold: R8.h1, SESSION/R8.h1, or its id or a part of it.
    hold: String,
    /// Print long texts to their end.
    #[arg(long)]
    full: bool,
}

impl Show {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let id = resolve::hold(client, &self.hold).await?;
        let answer = client.get(&format!("/v1/holds/{id}")).await?.body;
        if output.json {
            output.json(&answer)?;
            return Ok(Exit::Done);
        }
        let hold: Hold = read(&answer)?;
        if output.is_terminal {
            self.for_people(&hold, output)?;
        } else {
            for_pipes(&hold, output)?;
        }
        Ok(Exit::Done)
    }

    fn for_people(&self, hold: &Hold, output: &Output) -> anyhow::Result<()> {
        output.line(&Tone::Strong.paint(&cell(&hold.title)))?;
        if let Some(message) = &hold.message {
            output.line(&self.message(message))?;
        }
        output.line("")?;
        let mut table = Table::new(&[]);
        for (name, value) in facts(hold, output) {
            table.row(vec![Cell::new(name).tone(Tone::Dim), value]);
        }
        output.table(&table)?;
        self.action(hold, output)?;
        if let Some(schema) = &hold.response_schema {
            output.line(&format!("\n{}", Tone::Strong.paint("answer")))?;
            for line in schema_lines(schema) {
                output.line(&format!("  {line}"))?;
            }
        }
        let reasons = reasons(hold);
        if !reasons.is_empty() {
            output.line(&format!("\n{}", Tone::Strong.paint("reasons to reject")))?;
            for reason in reasons {
                output.line(&format!("  {reason}"))?;
            }
        }
        output.line("")?;
        for line in self.what_next(hold, output) {
            output.line(&line)?;
        }
        Ok(())
    }

    /// What may be decided, as commands; or why nothing may be.
    fn what_next(&self, hold: &Hold, output: &Output) -> Vec<String> {
        if !hold.is_open() {
            let task = cell(&hold.task_id);
            return vec![format!(
                "{}; the result is in: statehold tasks show {task}",
                hold.outcome(&output.times)
            )];
        }
        if hold.may_decide == Some(false) {
            let role = hold
                .decide_by
                .as_deref()
                .and_then(|by| by.strip_prefix("role:"));
            let why = hold.why_not.as_deref().map_or_else(
                || "this key may not decide it".to_owned(),
                |word| why_not(word, role),
            );
            return vec![format!("You cannot decide this: {}", cell(&why))];
        }
        if hold.action.is_none() && hold.kind == "approval" {
            return vec![
                "This key may not see the action, so it cannot approve it. Use one with the role \
                 `approver`."
                    .to_owned(),
            ];
        }
        let mut lines = vec![Tone::Strong.paint("decide with")];
        // What was typed meant this hold, and is shorter than its id.
        let name = typed(&self.hold);
        for decision in &hold.allowed {
            let is_reconcile = hold.kind == "reconcile";
            let more = match decision.as_str() {
                "approve" if is_reconcile => {
                    let text = hold.is_high_risk().then(|| phrase(hold, None));
                    let text = text.map(|text| format!("--confirm \"{text}\""));
                    format!("{}   # run it again", text.unwrap_or_default())
                }
                "reject" if is_reconcile => "  # it did not run and must not".to_owned(),
                "respond" if is_reconcile => {
                    "--content '{\"outcome\":\"ran\",\"result\":…}'   # it ran".to_owned()
                }
                "approve" if hold.is_high_risk() => format!("--confirm \"{}\"", phrase(hold, None)),
                "edit" => "--set PATH=VALUE".to_owned(),
                "reject" => "--comment TEXT".to_owned(),
                "respond" if hold.response_schema.is_some() => "--content JSON".to_owned(),
                "respond" => "TEXT".to_owned(),
                _ => String::new(),
            };
            let line = format!("  statehold approvals {} {name} {more}", cell(decision));
            lines.push(line.trim_end().to_owned());
        }
        lines
    }

    fn message(&self, message: &str) -> String {
        let length = message.chars().count();
        if self.full || length <= MESSAGE_CHARS_MAX {
            return printable(message);
        }
        let start: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
        let left = length - MESSAGE_CHARS_MAX;
        format!("{}… ({left} more characters: --full)", printable(&start))
    }

    fn action(&self, hold: &Hold, output: &Output) -> anyhow::Result<()> {
        let Some(action) = &hold.action else {
            return Ok(());
        };
        output.line(&format!("\n{}", Tone::Strong.paint(&cell(&action.tool))))?;
        for line in lines(action, self.full) {
            output.line(&line)?;
        }
        Ok(())
    }
}

/// A text as it is typed in a shell.
fn typed(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./…".contains(c);
    if text.chars().all(is_plain) {
        cell(text)
    } else {
        format!("'{}'", cell(text).replace('\'', "'\\''"))
    }
}

/// Everything that is one value.
fn facts(hold: &Hold, output: &Output) -> Vec<(&'static str, Cell)> {
    let times = &output.times;
    let mut facts = vec![
        ("hold", Cell::new(format!("{}   {}", hold.alias, hold.id))),
        ("kind", Cell::new(&hold.kind)),
        (
            "status",
            Cell::new(if hold.is_open() {
                "open".to_owned()
            } else {
                hold.outcome(times)
            })
            .tone(Tone::of_status(&hold.status)),
        ),
        ("asked by", Cell::new(&hold.agent)),
        ("for", Cell::optional(for_whom(hold))),
        ("session", Cell::new(&hold.session_id)),
        ("chain", Cell::new(chain(hold))),
        ("since", Cell::new(times.show(&hold.created_at))),
    ];
    if hold.is_open() {
        facts.push(("until", Cell::new(until(hold, output))));
    }
    if let Some(action) = &hold.action {
        let risk = action.risk.as_deref();
        let tone = if hold.is_high_risk() {
            Tone::Bad
        } else {
            Tone::Plain
        };
        facts.push(("risk", Cell::optional(risk).tone(tone)));
        facts.push((
            "effect",
            Cell::optional(action.effect.as_deref()).tone(tone),
        ));
        facts.push(("digest", Cell::optional(action.digest.as_deref())));
        if !action.redactions.is_empty() {
            let redacted: Vec<String> = action
                .redactions
                .iter()
                .map(|redaction| format!("{} ({})", redaction.path, redaction.rule))
                .collect();
            facts.push(("redacted", Cell::new(redacted.join(", "))));
        }
    }
    facts.extend(more_facts(hold));
    facts
}

/// What only some holds have.
fn more_facts(hold: &Hold) -> Vec<(&'static str, Cell)> {
    let mut facts = Vec::new();
    if hold.quorum > 1 {
        let votes: Vec<String> = hold.votes.iter().flatten().map(principal).collect();
        let by = if votes.is_empty() {
            String::new()
        } else {
            format!(": {}", votes.join(", "))
        };
        let count = votes.len();
        facts.push((
            "approvals",
            Cell::new(format!("{count} of {}{by}", hold.quorum)),
        ));
    }
    if let Some(group) = hold.group.as_ref().filter(|group| !group.is_null()) {
        facts.push((
            "group",
            Cell::new(format!(
                "{} of {} decided",
                group["decided"], group["holds"]
            )),
        ));
    }
    for (name, value) in [
        ("who decides", hold.decide_by.as_deref().map(who_decides)),
        ("execution key", hold.execution_key.clone()),
        ("link", hold.url.clone()),
    ] {
        if let Some(value) = value {
            facts.push((name, Cell::new(value)));
        }
    }
    if let Some(decision) = &hold.decision {
        let values = [
            ("comment", decision.comment.as_deref().map(Value::from)),
            ("reason", decision.reason.clone()),
            ("ran with", decision.args.clone()),
            ("answer", decision.content.clone()),
        ];
        for (name, value) in values {
            if let Some(value) = value.filter(|value| !value.is_null()) {
                let shown = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                facts.push((name, Cell::new(shown)));
            }
        }
    }
    if let Some(evidence) = &hold.evidence {
        for ran in evidence["ran"].as_array().into_iter().flatten() {
            let outcome = ran["outcome"].as_str().unwrap_or("unknown");
            facts.push((
                "outcome",
                Cell::new(format!("{outcome} in revision {}", ran["revision"])),
            ));
        }
    }
    facts
}

fn who_decides(policy: &str) -> String {
    match (policy, policy.strip_prefix("role:")) {
        ("other", _) => "an approver who is neither the user nor the one who asks".to_owned(),
        ("user", _) => "the user, or an approver".to_owned(),
        (_, Some(role)) => format!("people with the role {role}"),
        (other, None) => other.to_owned(),
    }
}

/// A vote is a principal, or an object that names one.
fn principal(vote: &Value) -> String {
    let by = vote.as_str().or_else(|| vote["by"].as_str());
    by.map_or_else(|| vote.to_string(), str::to_owned)
}

fn for_whom(hold: &Hold) -> Option<String> {
    let user = hold.user.as_deref()?;
    Some(match hold.app.as_deref() {
        Some(app) => format!("{user} in {app}"),
        None => user.to_owned(),
    })
}

/// The way from the root to the request, by aliases if the server says them.
fn chain(hold: &Hold) -> String {
    if let Some(chain) = &hold.chain {
        return chain.clone();
    }
    let request = hold.alias.split('.').next().unwrap_or_default();
    let depth = hold.task_path.len();
    match depth {
        0 | 1 => request.to_owned(),
        _ => format!(
            "{request}, {depth} tasks deep; see: statehold tasks tree {}",
            hold.session_id
        ),
    }
}

/// Until when it can be decided, and what then.
fn until(hold: &Hold, output: &Output) -> String {
    let Some(at) = &hold.expires_at else {
        return "it does not expire".to_owned();
    };
    let then = match hold.on_expiry.as_deref() {
        Some("dismiss") => "then the request is cancelled",
        Some("fail") => "then the request fails",
        Some("reject") => "then it is rejected",
        _ => "then it expires",
    };
    let soon = if hold.expires_soon(&output.times) {
        ", soon"
    } else {
        ""
    };
    format!("{}{soon}; {then}", output.times.show(at))
}

fn reasons(hold: &Hold) -> Vec<String> {
    let reasons = hold.reasons.as_ref().and_then(Value::as_array);
    reasons
        .into_iter()
        .flatten()
        .map(
            |reason| match (reason["id"].as_str(), reason["title"].as_str()) {
                (Some(id), Some(title)) => format!("{}   {}", cell(id), cell(title)),
                (Some(only), None) | (None, Some(only)) => cell(only),
                (None, None) => cell(reason.as_str().unwrap_or(&reason.to_string())),
            },
        )
        .collect()
}

/// The fields that an answer has.
fn schema_lines(schema: &Value) -> Vec<String> {
    let Some(fields) = schema["properties"].as_object() else {
        return vec![cell(&schema.to_string())];
    };
    let required = schema["required"].as_array();
    fields
        .iter()
        .map(|(name, field)| {
            let kind = field["type"].as_str().unwrap_or("any");
            let needed = required.is_some_and(|required| required.iter().any(|one| one == name));
            let needed = if needed { ", required" } else { "" };
            let choices = match field["enum"].as_array() {
                Some(choices) => {
                    let choices: Vec<String> = choices.iter().map(ToString::to_string).collect();
                    format!(", one of {}", choices.join(", "))
                }
                None => String::new(),
            };
            let title = field["title"].as_str().or(field["description"].as_str());
            let title = title.map(|title| format!("   {title}"));
            cell(&format!(
                "{name}  {kind}{needed}{choices}{}",
                title.unwrap_or_default()
            ))
        })
        .collect()
}

/// Each line begins with what it is about, so that `grep` and `cut` can take it apart.
fn for_pipes(hold: &Hold, output: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[]);
    table.row(vec![Cell::new("id"), Cell::new(&hold.id)]);
    table.row(vec![Cell::new("title"), Cell::new(&hold.title)]);
    if let Some(message) = &hold.message {
        table.row(vec![Cell::new("message"), Cell::new(message)]);
    }
    for (name, value) in facts(hold, output) {
        table.row(vec![Cell::new(name), value]);
    }
    if let Some(action) = &hold.action {
        table.row(vec![Cell::new("tool"), Cell::new(&action.tool)]);
        for row in rows(action, true)
            .into_iter()
            .filter(|row| !row.value.is_empty())
        {
            let value = action.args.pointer(&row.path).map(Value::to_string);
            table.row(vec![
                Cell::new("arg"),
                Cell::new(&row.path),
                Cell::optional(value),
                Cell::shown(row.note),
            ]);
        }
    }
    for reason in reasons(hold) {
        table.row(vec![Cell::new("offered reason"), Cell::shown(reason)]);
    }
    if hold.is_open() {
        let allowed = Cell::new(hold.allowed.join(","));
        table.row(vec![Cell::new("allowed"), allowed]);
    }
    if hold.is_open() && hold.may_decide == Some(false) {
        let why = hold.why_not.as_deref().map(|word| why_not(word, None));
        table.row(vec![Cell::new("why not"), Cell::optional(why)]);
    }
    output.table(&table)
}

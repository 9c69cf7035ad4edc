//! `statehold approvals show`.

use clap::Args;
use serde_json::Value;

use super::arguments::{lines, rows};
use super::card::{MESSAGE_CHARS_MAX, conversation};
use super::confirm::confirm_option;
use crate::cli::answers::{read, text};
use crate::cli::hold::{HoldInfo, explain_why_not};
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone, wrapped};
use crate::cli::printable::{cell, printable};
use crate::cli::resolve::{self, exact_name};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct ApprovalsShowArgs {
    /// The hold: R8.h1, SESSION/R8.h1, or its id or a part of it.
    hold: String,
    /// Print long texts to their end.
    #[arg(long)]
    full: bool,
}

impl ApprovalsShowArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let id = resolve::hold(client, &self.hold).await?;
        let answer = client.get(&format!("/v1/holds/{id}")).await?.body;
        if output.json {
            return output.json(&answer);
        }
        let hold: HoldInfo = read(&answer)?;
        if output.is_terminal {
            // Approvers need not be able to read tasks.
            let path = format!("/v1/tasks/{}", hold.task_id);
            let reads_task = !hold.is_open() && client.get(&path).await.is_ok();
            self.for_people(&hold, reads_task, output)?;
        } else {
            for_pipes(&hold, output)?;
        }
        Ok(Exit::Done)
    }

    fn for_people(
        &self,
        hold: &HoldInfo,
        reads_task: bool,
        output: &CliOutput,
    ) -> anyhow::Result<()> {
        for line in wrapped(&cell(&hold.title), output.columns) {
            output.line(&TextTone::Strong.paint(&line))?;
        }
        if let Some(message) = &hold.message {
            for line in self.message(message).lines() {
                output.line(&wrapped(line, output.columns).join("\n"))?;
            }
        }
        output.line("")?;
        output.table(&TextTable::facts(facts(hold, output), TextTone::Dim))?;
        self.action(hold, output)?;
        for line in conversation(hold, output.columns) {
            output.line(&line)?;
        }
        if let Some(schema) = &hold.response_schema {
            output.line(&format!("\n{}", TextTone::Strong.paint("answer")))?;
            for line in schema_lines(schema) {
                let lines = wrapped(&line, output.columns.saturating_sub(2));
                for line in lines {
                    output.line(&format!("  {line}"))?;
                }
            }
        }
        let reasons = reasons(hold);
        if !reasons.is_empty() {
            output.line(&format!(
                "\n{}",
                TextTone::Strong.paint("reasons to reject")
            ))?;
            for reason in reasons {
                output.line(&format!("  {reason}"))?;
            }
        }
        output.line("")?;
        for line in Self::what_next(hold, reads_task, output) {
            output.prose(&line)?;
        }
        Ok(())
    }

    /// The allowed decisions as commands, or the reason why there are none.
    fn what_next(hold: &HoldInfo, reads_task: bool, output: &CliOutput) -> Vec<String> {
        if !hold.is_open() {
            let task = cell(&hold.task_id);
            let result = if reads_task {
                format!("; the result is in: statehold tasks show {task}")
            } else {
                String::new()
            };
            return vec![format!("{}{result}", hold.outcome(&output.times))];
        }
        if hold.may_decide == Some(false) {
            let role = hold
                .decide_by
                .as_deref()
                .and_then(|by| by.strip_prefix("role:"));
            let why = hold.why_not.as_deref().map_or_else(
                || "this key may not decide it".to_owned(),
                |word| explain_why_not(word, role),
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
        let mut lines = vec![TextTone::Strong.paint("decide with")];
        let name = exact_name(&hold.session_id, &hold.alias);
        for decision in &hold.allowed {
            let is_reconcile = hold.kind == "reconcile";
            let more = match decision.as_str() {
                "approve" if is_reconcile => {
                    format!("{}   # run it again", confirm_option(hold).trim_start())
                }
                "reject" if is_reconcile => "  # it did not run and must not".to_owned(),
                "respond" if is_reconcile => {
                    "--content '{\"outcome\":\"ran\",\"result\":…}'   # it ran".to_owned()
                }
                "approve" => confirm_option(hold).trim_start().to_owned(),
                "edit" => "--set PATH=VALUE".to_owned(),
                "reject" => "--comment TEXT".to_owned(),
                "respond" if !hold.takes_text() => "--content JSON".to_owned(),
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

    fn action(&self, hold: &HoldInfo, output: &CliOutput) -> anyhow::Result<()> {
        let Some(action) = &hold.action else {
            return Ok(());
        };
        output.line(&format!(
            "\n{}",
            TextTone::Strong.paint(&cell(&action.tool))
        ))?;
        for line in lines(action, self.full, output.columns) {
            output.line(&line)?;
        }
        Ok(())
    }
}

/// The facts that every hold has, one value each.
fn facts(hold: &HoldInfo, output: &CliOutput) -> Vec<(&'static str, TableCell)> {
    let times = &output.times;
    let mut facts = vec![
        (
            "hold",
            TableCell::new(format!("{} {}", hold.alias, hold.id)),
        ),
        ("kind", TableCell::new(&hold.kind)),
        (
            "status",
            TableCell::new(if hold.is_open() {
                "open".to_owned()
            } else {
                hold.outcome(times)
            })
            .tone(TextTone::of_status(&hold.status)),
        ),
        ("asked by", TableCell::new(&hold.agent)),
        ("for", TableCell::optional(hold.for_whom())),
        ("session", TableCell::new(&hold.session_id)),
        ("chain", TableCell::new(&hold.chain)),
        ("since", TableCell::new(times.show(&hold.created_at))),
    ];
    if hold.is_open() {
        facts.push(("expires", TableCell::new(hold.until(times))));
    }
    if let Some(action) = &hold.action {
        let tone = if hold.is_high_risk() {
            TextTone::Bad
        } else {
            TextTone::Plain
        };
        let or_unknown = |word: &Option<String>| {
            let word = word.as_deref().unwrap_or("not known");
            TableCell::new(word).tone(tone)
        };
        facts.push(("risk", or_unknown(&action.risk)));
        facts.push(("effect", or_unknown(&action.effect)));
        facts.push(("digest", TableCell::optional(action.digest.as_deref())));
        if !action.redactions.is_empty() {
            let redacted: Vec<String> = action
                .redactions
                .iter()
                .map(|redaction| format!("{} ({})", redaction.path, redaction.rule))
                .collect();
            facts.push(("redacted", TableCell::new(redacted.join(", "))));
        }
    }
    facts.extend(more_facts(hold));
    facts
}

/// The facts that only some holds have.
fn more_facts(hold: &HoldInfo) -> Vec<(&'static str, TableCell)> {
    let mut facts = Vec::new();
    facts.extend(
        hold.approvals()
            .map(|count| ("approvals", TableCell::new(count))),
    );
    if let Some(group) = hold.group.as_ref().filter(|group| !group.is_null()) {
        facts.push((
            "group",
            TableCell::new(format!(
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
            facts.push((name, TableCell::new(value)));
        }
    }
    if let Some(decision) = &hold.decision {
        let values = [
            ("comment", decision.comment.as_deref().map(Value::from)),
            ("reason", decision.reason.clone()),
            ("edited to", decision.args.clone()),
            ("answer", decision.content.clone()),
        ];
        for (name, value) in values {
            if let Some(value) = value.filter(|value| !value.is_null()) {
                let shown = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                facts.push((name, TableCell::new(shown)));
            }
        }
    }
    if let Some(evidence) = &hold.evidence {
        for ran in evidence["ran"].as_array().into_iter().flatten() {
            let outcome = ran["outcome"].as_str().unwrap_or("unknown");
            facts.push((
                "outcome",
                TableCell::new(format!("{outcome} in revision {}", ran["revision"])),
            ));
        }
    }
    facts
}

fn who_decides(policy: &str) -> String {
    match (policy, policy.strip_prefix("role:")) {
        ("other", _) => "an approver who is neither the user nor the requester".to_owned(),
        ("user", _) => "the user, or an approver".to_owned(),
        (_, Some(role)) => format!("people with the role {role}"),
        (other, None) => other.to_owned(),
    }
}

fn reasons(hold: &HoldInfo) -> Vec<String> {
    let reasons = hold.reasons.iter().flatten();
    let reasons = reasons.map(|reason| (text(reason, "id"), text(reason, "title")));
    reasons
        .map(|(id, title)| format!("{}   {}", cell(id), cell(title)))
        .collect()
}

/// The fields of a response schema.
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

/// Each line begins with its subject, so that `grep` and `cut` can take it apart.
fn for_pipes(hold: &HoldInfo, output: &CliOutput) -> anyhow::Result<()> {
    let mut all = vec![
        ("id", TableCell::new(&hold.id)),
        ("title", TableCell::new(&hold.title)),
    ];
    all.extend(
        hold.message
            .as_ref()
            .map(|text| ("message", TableCell::new(text))),
    );
    all.extend(facts(hold, output));
    let mut table = TextTable::facts(all, TextTone::Plain);
    if let Some(action) = &hold.action {
        table.row(vec![TableCell::new("tool"), TableCell::new(&action.tool)]);
        for row in rows(action, true)
            .into_iter()
            .filter(|row| !row.value.is_empty())
        {
            let value = action.args.pointer(&row.path).map(Value::to_string);
            table.row(vec![
                TableCell::new("arg"),
                TableCell::new(&row.path),
                TableCell::optional(value),
                TableCell::shown(row.note),
            ]);
        }
    }
    let messages = hold.excerpt.iter().flat_map(|excerpt| &excerpt.messages);
    for message in messages {
        table.row(vec![
            TableCell::new("said"),
            TableCell::new(&message.role),
            TableCell::new(&message.text),
        ]);
    }
    for reason in reasons(hold) {
        table.row(vec![
            TableCell::new("offered reason"),
            TableCell::shown(reason),
        ]);
    }
    if hold.is_open() {
        let allowed = TableCell::new(hold.allowed.join(","));
        table.row(vec![TableCell::new("allowed"), allowed]);
    }
    if hold.is_open() && hold.may_decide == Some(false) {
        let why = hold
            .why_not
            .as_deref()
            .map(|word| explain_why_not(word, None));
        table.row(vec![TableCell::new("why not"), TableCell::optional(why)]);
    }
    output.table(&table)
}

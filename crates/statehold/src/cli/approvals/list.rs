//! `statehold approvals list`.

use std::collections::BTreeMap;

use clap::Args;

use crate::cli::answers::{LimitArgs, ListPages, read};
use crate::cli::hold::HoldInfo;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::cli::printable::{cell, excerpt};
use crate::cli::resolve::{HoldNames, exact_name, short};
use crate::client::Client;
use crate::exit::Exit;

/// The longest title and the longest action shown in a row.
const TITLE_CHARS_MAX: usize = 60;
const ACTION_CHARS_MAX: usize = 48;

const STATUSES: [&str; 8] = [
    "open",
    "decided",
    "approved",
    "edited",
    "answered",
    "rejected",
    "expired",
    "cancelled",
];
const KINDS: [&str; 6] = [
    "approval",
    "question",
    "form",
    "link",
    "credential",
    "reconcile",
];

const OPEN_COLUMNS: [&str; 9] = [
    "HOLD", "TITLE", "RISK", "ACTION", "AGENT", "FOR", "SESSION", "AGE", "EXPIRES",
];
const DECIDED_COLUMNS: [&str; 9] = [
    "HOLD", "TITLE", "RISK", "ACTION", "AGENT", "FOR", "SESSION", "AGE", "DECISION",
];

#[derive(Debug, Args)]
pub(in crate::cli) struct ApprovalsListArgs {
    /// Only holds of this agent.
    #[arg(long)]
    agent: Option<String>,
    /// Only holds of this kind.
    #[arg(long, value_parser = KINDS)]
    kind: Option<String>,
    /// Only actions of this risk.
    #[arg(long, value_parser = ["low", "medium", "high"])]
    risk: Option<String>,
    /// Only holds for this user.
    #[arg(long)]
    user: Option<String>,
    /// Open holds (the default), all decided holds, or holds that ended with this status.
    #[arg(long, value_parser = STATUSES)]
    status: Option<String>,
    #[command(flatten)]
    limit: LimitArgs,
}

impl ApprovalsListArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let limit = self.limit.count();
        let mut pages = ListPages::holds(vec![
            ("status", self.status.clone()),
            ("agent", self.agent.clone()),
            ("kind", self.kind.clone()),
            ("risk", self.risk.clone()),
            ("user", self.user.clone()),
        ]);
        let rows = pages.take(client, limit).await?;
        let has_more = pages.cursor.is_some();
        if output.json {
            return output.json(&pages.document(&rows));
        }
        let holds = rows
            .iter()
            .map(read)
            .collect::<anyhow::Result<Vec<HoldInfo>>>()?;
        // The first column shows names that can be typed; on a terminal also later.
        let names = if holds.is_empty() || output.is_terminal {
            HoldNames::default()
        } else {
            HoldNames::load(client).await?
        };
        output.table(&table(&holds, &names, None, output))?;
        if output.is_terminal {
            output.note(&self.footer(&holds, has_more));
        }
        Ok(Exit::Done)
    }

    fn footer(&self, holds: &[HoldInfo], has_more: bool) -> String {
        let is_open = self.status.as_deref().is_none_or(|status| status == "open");
        let Some(first) = holds.first() else {
            return if is_open {
                "Nothing waits. Follow with: statehold approvals watch".to_owned()
            } else {
                "None. See what waits with: statehold approvals list".to_owned()
            };
        };
        let name = exact_name(&first.session_id, &first.alias);
        let more = if has_more {
            "; there are more: --all"
        } else {
            ""
        };
        let count = holds.len();
        if !is_open {
            return format!(
                "{count} shown{more}. Look at one with: statehold approvals show {name}"
            );
        }
        let verb = suggested_command(first);
        format!("{count} open{more}. Decide with: statehold approvals {verb} {name}")
    }
}

/// The command to suggest for a hold.
pub(in crate::cli) fn suggested_command(hold: &HoldInfo) -> &'static str {
    let offers = |decision: &str| hold.allowed.iter().any(|allowed| allowed == decision);
    match hold.may_decide {
        Some(false) => "show",
        _ if hold.kind == "approval" && offers("approve") => "approve",
        _ if hold.kind == "reconcile" => "show",
        _ if offers("respond") => "respond",
        _ => "show",
    }
}

/// The rows of holds, as `list` and `watch` show them. `marked` is the hold that keys would decide.
pub(super) fn table(
    holds: &[HoldInfo],
    names: &HoldNames,
    marked: Option<&str>,
    output: &CliOutput,
) -> TextTable {
    let is_decided = !holds.is_empty() && holds.iter().all(|hold| !hold.is_open());
    let table = TextTable::new(if is_decided {
        &DECIDED_COLUMNS
    } else {
        &OPEN_COLUMNS
    });
    // The name of the hold has the session.
    let mut table = table.spare(&["SESSION", "AGENT", "ACTION"]);
    let mut titles: BTreeMap<&str, usize> = BTreeMap::new();
    for hold in holds {
        *titles.entry(&hold.title).or_default() += 1;
    }
    for hold in holds {
        let (name, session) = if output.is_terminal {
            let mark = if marked == Some(&hold.id) { "› " } else { "" };
            let name = format!("{mark}{}", exact_name(&hold.session_id, &hold.alias));
            (name, short(&hold.session_id))
        } else {
            // A pipe gets whole ids of sessions.
            let name = names.name(&hold.alias, &hold.session_id);
            (name, hold.session_id.clone())
        };
        let risk_tone = match hold.risk() {
            Some("high") => TextTone::Bad,
            Some("medium") => TextTone::Warning,
            _ => TextTone::Plain,
        };
        let expires = match (hold.expires(&output.times), &hold.decision) {
            (None, Some(decision)) if !hold.is_open() => {
                Some(format!("{} by {}", hold.status, decision.by))
            }
            (None, None) if !hold.is_open() => Some(hold.status.clone()),
            (expires, _) => expires,
        };
        let expires_tone = if hold.expires_soon(&output.times) {
            TextTone::Warning
        } else {
            TextTone::Plain
        };
        let action = hold
            .action
            .as_ref()
            .map(|action| excerpt(&action.call_text(), ACTION_CHARS_MAX));
        // People tell holds of one title apart by their actions, also where that column does not
        // fit.
        let is_shared = output.is_terminal && titles.get(&*hold.title) != Some(&1);
        let title = match &action {
            Some(action) if is_shared => action.clone(),
            _ => excerpt(&hold.title, TITLE_CHARS_MAX),
        };
        table.row(vec![
            TableCell::new(name).tone(TextTone::Strong),
            TableCell::shown(title),
            TableCell::optional(hold.risk()).tone(risk_tone),
            TableCell::shown(action.unwrap_or_else(|| cell(&hold.kind))),
            TableCell::new(&hold.agent),
            TableCell::optional(hold.user.as_ref()),
            TableCell::new(session),
            TableCell::new(output.times.show(&hold.created_at)),
            TableCell::optional(expires).tone(expires_tone),
        ]);
    }
    table
}

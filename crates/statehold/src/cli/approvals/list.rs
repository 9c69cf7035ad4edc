//! `statehold approvals list`.

use clap::Args;

use crate::cli::answers::{Limit, Pages, read};
use crate::cli::hold::Hold;
use crate::cli::output::{Cell, Output, Table, Tone};
use crate::cli::resolve::{HoldNames, short};
use crate::client::Client;
use crate::exit::Exit;

/// How much of an action is shown in a row.
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

#[derive(Debug, Args)]
pub(in crate::cli) struct List {
    /// Only what this agent asks.
    #[arg(long)]
    agent: Option<String>,
    /// Only holds of this kind.
    #[arg(long, value_parser = KINDS)]
    kind: Option<String>,
    /// Only actions of this risk.
    #[arg(long, value_parser = ["low", "medium", "high"])]
    risk: Option<String>,
    /// Only what is asked for this user.
    #[arg(long)]
    user: Option<String>,
    /// Open holds (the default), all decided ones, or those that ended like this.
    #[arg(long, value_parser = STATUSES)]
    status: Option<String>,
    #[command(flatten)]
    limit: Limit,
}

impl List {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let limit = self.limit.count();
        let mut pages = Pages::holds(vec![
            ("status", self.status.clone()),
            ("agent", self.agent.clone()),
            ("kind", self.kind.clone()),
            ("risk", self.risk.clone()),
            ("user", self.user.clone()),
        ]);
        let rows = pages.take(client, limit).await?;
        let has_more = pages.cursor.is_some();
        if output.json {
            output.json(&pages.document(&rows))?;
            return Ok(Exit::Done);
        }
        let holds = rows
            .iter()
            .map(read)
            .collect::<anyhow::Result<Vec<Hold>>>()?;
        // What the first column says can be typed, here and tomorrow.
        let names = if holds.is_empty() {
            HoldNames::default()
        } else {
            HoldNames::load(client).await?
        };
        output.table(&table(&holds, &names, output))?;
        if output.is_terminal {
            output.note(&self.footer(&holds, &names, has_more));
        }
        Ok(Exit::Done)
    }

    fn footer(&self, holds: &[Hold], names: &HoldNames, has_more: bool) -> String {
        let is_open = self.status.as_deref().is_none_or(|status| status == "open");
        let Some(first) = holds.first() else {
            return if is_open {
                "Nothing waits. Follow with: statehold approvals watch".to_owned()
            } else {
                "None. See what waits with: statehold approvals list".to_owned()
            };
        };
        let name = names.name(&first.alias, &first.session_id);
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
        let verb = verb(first);
        format!("{count} open{more}. Decide with: statehold approvals {verb} {name}")
    }
}

/// The first thing to try on a hold.
fn verb(hold: &Hold) -> &'static str {
    let offers = |decision: &str| hold.allowed.iter().any(|allowed| allowed == decision);
    match hold.may_decide {
        Some(false) => "show",
        _ if hold.kind == "approval" && offers("approve") => "approve",
        _ if hold.kind == "reconcile" => "show",
        _ if offers("respond") => "respond",
        _ => "show",
    }
}

/// The rows of holds, as `list` and `watch` show them.
pub(super) fn table(holds: &[Hold], names: &HoldNames, output: &Output) -> Table {
    let mut table = Table::new(&[
        "HOLD", "RISK", "ACTION", "AGENT", "FOR", "SESSION", "AGE", "EXPIRES",
    ]);
    for hold in holds {
        let name = names.name(&hold.alias, &hold.session_id);
        // A pipe gets names that stay true, and whole ids.
        let (name, session) = if output.is_terminal {
            (name, short(&hold.session_id))
        } else {
            (hold.alias.clone(), hold.session_id.clone())
        };
        let risk_tone = match hold.risk() {
            Some("high") => Tone::Bad,
            Some("medium") => Tone::Warning,
            _ => Tone::Plain,
        };
        let expires = match hold.expires(&output.times) {
            None if !hold.is_open() => Some(hold.status.clone()),
            expires => expires,
        };
        let expires_tone = if hold.expires_soon(&output.times) {
            Tone::Warning
        } else {
            Tone::Plain
        };
        table.row(vec![
            Cell::new(name).tone(Tone::Strong),
            Cell::optional(hold.risk()).tone(risk_tone),
            Cell::shown(hold.summary(ACTION_CHARS_MAX)),
            Cell::new(&hold.agent),
            Cell::optional(hold.user.as_ref()),
            Cell::new(session),
            Cell::new(output.times.show(&hold.created_at)),
            Cell::optional(expires).tone(expires_tone),
        ]);
    }
    table
}

//! `statehold sessions list`.

use clap::Args;
use serde_json::{Value, json};

use super::{Session, elements, read};
use crate::cli::output::{Cell, Output, Table, Tone};
use crate::client::{Client, with_query};
use crate::exit::{Exit, Failure};

/// The most rows that a server gives at once.
pub(super) const PAGE_MAX: usize = 200;

#[derive(Debug, Args)]
pub(in crate::cli) struct List {
    /// Only sessions of this app.
    #[arg(long)]
    app: Option<String>,
    /// Only sessions of this user.
    #[arg(long)]
    user: Option<String>,
    /// Only sessions that are running, paused, idle or closed.
    #[arg(long, value_parser = ["running", "paused", "idle", "closed"])]
    status: Option<String>,
    /// Only sessions with this label: `key` or `key:value`.
    #[arg(long)]
    label: Option<String>,
    /// Only sessions with this text in their name or labels.
    #[arg(long, value_name = "TEXT")]
    query: Option<String>,
    /// How many to print.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print all of them.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

impl List {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let limit = if self.all {
            usize::MAX
        } else {
            usize::try_from(self.limit)?
        };
        let mut pages = Pages::new(vec![
            ("app", self.app.clone()),
            ("user", self.user.clone()),
            ("status", self.status.clone()),
            ("label", self.label.clone()),
            ("q", self.query.clone()),
        ]);
        let mut sessions = Vec::new();
        while sessions.len() < limit
            && let Some(page) = pages.next(client, limit - sessions.len()).await?
        {
            sessions.extend(page);
        }
        if output.json {
            let mut answer = json!({ "sessions": sessions });
            if let Some(cursor) = pages.cursor {
                answer["next_cursor"] = cursor.into();
            }
            output.json(&answer)?;
            return Ok(Exit::Done);
        }
        output.table(&table(&sessions, output)?)?;
        if output.is_terminal {
            output.note(&footer(sessions.len(), pages.cursor.is_some()));
        }
        Ok(Exit::Done)
    }
}

fn table(sessions: &[Value], output: &Output) -> anyhow::Result<Table> {
    let mut table = Table::new(&[
        "SESSION", "STATUS", "APP", "USER", "NAME", "AGENT", "REVISION", "UPDATED",
    ]);
    for session in sessions {
        let session: Session = read(session)?;
        table.row(vec![
            Cell::new(&session.id),
            Cell::new(&session.status).tone(Tone::of_status(&session.status)),
            Cell::new(&session.app),
            Cell::new(&session.user),
            Cell::optional(session.name.as_ref()),
            Cell::new(&session.agent),
            Cell::new(session.revision.to_string()),
            Cell::new(output.times.show(&session.updated_at)),
        ]);
    }
    Ok(table)
}

fn footer(count: usize, has_more: bool) -> String {
    let more = if has_more {
        "; there are more: --all"
    } else {
        ""
    };
    match count {
        0 => "No sessions. Is this the right server, app and key? See: statehold status".to_owned(),
        count => format!("{count} shown{more}. Look at one with: statehold sessions show SESSION"),
    }
}

/// The pages of a list of sessions.
#[derive(Debug)]
pub(in crate::cli) struct Pages {
    filter: Vec<(&'static str, Option<String>)>,
    has_begun: bool,
    /// Where the rest begins, if there is a rest.
    pub(super) cursor: Option<String>,
}

impl Pages {
    pub(in crate::cli) fn new(filter: Vec<(&'static str, Option<String>)>) -> Self {
        Self {
            filter,
            has_begun: false,
            cursor: None,
        }
    }

    /// The next page, of at most `limit` rows; none after the last one. It may be empty and still
    /// not be the last.
    pub(in crate::cli) async fn next(
        &mut self,
        client: &Client,
        limit: usize,
    ) -> Result<Option<Vec<Value>>, Failure> {
        if self.has_begun && self.cursor.is_none() {
            return Ok(None);
        }
        self.has_begun = true;
        let mut parameters = self.filter.clone();
        parameters.push(("cursor", self.cursor.take()));
        parameters.push(("limit", Some(limit.min(PAGE_MAX).to_string())));
        let answer = client.get(&with_query("/v1/sessions", &parameters)).await?;
        self.cursor = answer.body["next_cursor"].as_str().map(str::to_owned);
        Ok(Some(elements(&answer.body, "sessions").to_vec()))
    }
}

//! `statehold sessions list`.

use clap::Args;
use serde_json::Value;

use crate::cli::answers::{LimitArgs, ListPages, text};
use crate::cli::output::{CliOutput, TableCell, TextTable};
use crate::client::Client;
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(in crate::cli) struct SessionsListArgs {
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
    /// Only the session with this name. Needs --app, and --user unless the key is bound to one.
    #[arg(long)]
    name: Option<String>,
    /// By creation, or by the last change; the newest first.
    #[arg(long, value_parser = ["created_at", "updated_at"])]
    order: Option<String>,
    #[command(flatten)]
    limit: LimitArgs,
}

impl SessionsListArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let limit = self.limit.count();
        let mut pages = ListPages::sessions(vec![
            ("app", self.app.clone()),
            ("user", self.user.clone()),
            ("status", self.status.clone()),
            ("label", self.label.clone()),
            ("q", self.query.clone()),
            ("name", self.name.clone()),
            ("order", self.order.clone()),
        ]);
        let sessions = pages.take(client, limit).await?;
        if output.json {
            return output.json(&pages.document(&sessions));
        }
        output.table(&table(&sessions, output))?;
        if output.is_terminal {
            output.note(&footer(sessions.len(), pages.cursor.is_some()));
        }
        Ok(Exit::Done)
    }
}

fn table(sessions: &[Value], output: &CliOutput) -> TextTable {
    let mut table = TextTable::new(&[
        "SESSION", "STATUS", "APP", "USER", "NAME", "AGENT", "REVISION", "UPDATED",
    ])
    .spare(&["REVISION", "APP", "AGENT"]);
    for session in sessions {
        table.row(vec![
            TableCell::id(&session["id"]),
            TableCell::status(text(session, "status")),
            TableCell::of(&session["app"]),
            TableCell::of(&session["user"]),
            TableCell::of(&session["name"]),
            TableCell::of(&session["agent"]),
            TableCell::new(session["revision"].to_string()),
            output.time(&session["updated_at"]),
        ]);
    }
    table
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

//! The outcome of a decision and its consequences: the request continues, and the tasks above it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::cli::answers::{elements, text};
use crate::cli::frame::Frame;
use crate::cli::hold::HoldInfo;
use crate::cli::output::{CliOutput, TextTone, wrapped};
use crate::cli::printable::cell;
use crate::cli::times::duration;
use crate::cli::tree::all_tasks;
use crate::client::Client;

/// How long to follow the request after a decision. A running worker has claimed it by then.
const FOLLOW_MAX: Duration = Duration::from_secs(5);

/// Prints the outcome of a decision and follows the request.
pub(super) async fn print_outcome(
    client: &Client,
    hold: &HoldInfo,
    decided: &Value,
    is_repeated: bool,
    no_wait: bool,
    output: &CliOutput,
) -> anyhow::Result<()> {
    let first = outcome_line(hold, decided, is_repeated);
    if no_wait || text(decided, "status") == "open" {
        return output.prose(&first);
    }
    let mut frame = output.is_terminal.then(Frame::new);
    let mut course = ResumeProgress::new(hold, decided);
    let deadline = Instant::now() + FOLLOW_MAX;
    loop {
        let has_more = course.refresh(client, hold).await;
        let line = format!("{first}{}", course.describe());
        let is_over = !has_more || Instant::now() >= deadline;
        match &mut frame {
            Some(frame) => frame.draw(&wrapped(&line, output.columns))?,
            None if is_over => output.line(&line)?,
            None => {}
        }
        if is_over {
            return Ok(());
        }
    }
}

fn outcome_line(hold: &HoldInfo, decided: &Value, is_repeated: bool) -> String {
    let status = text(decided, "status");
    let by = cell(text(decided, "decided_by"));
    let alias = cell(&hold.alias);
    let again = if is_repeated { " (as before)" } else { "" };
    if status == "open" {
        let (has, needs) = (&decided["approvals"], &decided["quorum"]);
        let sign = TextTone::Warning.paint("…");
        return format!("{sign} {has} of {needs} have approved {alias}{again}, the last as {by}");
    }
    let (sign, word) = match status {
        "approved" | "edited" | "answered" => (TextTone::Good.paint("✓"), status),
        "cancelled" => (TextTone::Warning.paint("✓"), "dismissed"),
        _ => (TextTone::Warning.paint("✓"), status),
    };
    format!("{sign} {} {alias} as {by}{again}", cell(word))
}

/// The observed progress of the request and of the tasks above it.
struct ResumeProgress {
    decided_at: String,
    /// Every status that the request was seen in, in order.
    statuses: Vec<String>,
    alias: String,
    finished_at: Option<String>,
    /// Tasks above that were resumed and tasks that are still paused, from the leaf up.
    resumed: Vec<String>,
    waiting: Vec<String>,
    has_begun: bool,
}

impl ResumeProgress {
    fn new(hold: &HoldInfo, decided: &Value) -> Self {
        let alias = hold.alias.split('.').next().unwrap_or_default();
        Self {
            decided_at: text(decided, "decided_at").to_owned(),
            statuses: vec![text(decided, "request_status").to_owned()],
            alias: alias.to_owned(),
            finished_at: None,
            resumed: Vec::new(),
            waiting: Vec::new(),
            has_begun: false,
        }
    }

    /// Fetches the state once; waits up to a second for a change unless this is the first call.
    /// Returns whether to continue. A key that may decide but not read requests stops here.
    async fn refresh(&mut self, client: &Client, hold: &HoldInfo) -> bool {
        let wait = if self.has_begun {
            "?wait=1&until=changed"
        } else {
            ""
        };
        self.has_begun = true;
        let path = format!("/v1/requests/{}{wait}", hold.request_id);
        let Ok(request) = client.get(&path).await else {
            return false;
        };
        let status = text(&request.body, "status");
        if self.statuses.last().is_none_or(|last| last != status) {
            self.statuses.push(status.to_owned());
        }
        self.finished_at = request.body["finished_at"].as_str().map(str::to_owned);
        let path = format!("/v1/sessions/{}/tree", hold.session_id);
        if let Ok(tree) = client.get(&path).await {
            (self.resumed, self.waiting) =
                split_tasks_above(elements(&tree.body, "tasks"), &hold.task_path);
        }
        !matches!(status, "completed" | "failed" | "cancelled" | "held")
    }

    fn describe(&self) -> String {
        let statuses: Vec<String> = self
            .statuses
            .iter()
            .filter(|status| !status.is_empty())
            .map(|status| cell(status))
            .collect();
        if statuses.is_empty() {
            return String::new();
        }
        let how_long = match self.duration_ms() {
            Some(ms) => format!(" ({})", duration(ms)),
            None if statuses.last().is_some_and(|last| last == "queued") => {
                " (for a worker)".to_owned()
            }
            None => String::new(),
        };
        let tasks = |aliases: &[String], word: &str| match aliases {
            [] => String::new(),
            aliases => format!(" · {} {word}", aliases.join(", ")),
        };
        format!(
            " · {} {}{how_long}{}{}",
            cell(&self.alias),
            statuses.join(" → "),
            tasks(&self.resumed, "resumed"),
            tasks(&self.waiting, "still paused")
        )
    }

    /// From the decision to the end of the request, by the clock of the server.
    fn duration_ms(&self) -> Option<u64> {
        let decided: Timestamp = self.decided_at.parse().ok()?;
        let finished: Timestamp = self.finished_at.as_ref()?.parse().ok()?;
        let ms = finished.as_millisecond() - decided.as_millisecond();
        u64::try_from(ms).ok()
    }
}

/// Splits the tasks of a path into resumed and paused ones, from the leaf up, by their aliases.
fn split_tasks_above(tasks: &[Value], path: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut resumed, mut waiting) = (Vec::new(), Vec::new());
    let is_above = |task: &&Value| path.iter().any(|id| id == text(task, "id"));
    for task in all_tasks(tasks).into_iter().rev().filter(is_above) {
        let alias = cell(text(task, "alias"));
        let named = match text(task, "status") {
            "paused" => &mut waiting,
            "cancelled" => continue,
            _ => &mut resumed,
        };
        // A task that several requests started is in the tree below each.
        if !named.contains(&alias) {
            named.push(alias);
        }
    }
    (resumed, waiting)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tasks_above_go_on_or_wait_for_something_else() {
        let leaf = json!({ "id": "tsk_4", "alias": "T4", "status": "running", "requests": [] });
        let other = json!({ "id": "tsk_5", "alias": "T5", "status": "paused", "requests": [] });
        let requests = json!([{ "tasks": [leaf] }, { "tasks": [leaf, other] }]);
        let tree =
            json!([{ "id": "tsk_1", "alias": "T1", "status": "running", "requests": requests }]);
        let path = ["tsk_1".to_owned(), "tsk_4".to_owned()];
        let tasks = tree.as_array().expect("a list");
        let (resumed, waiting) = split_tasks_above(tasks, &path);
        assert_eq!(resumed, ["T4", "T1"]);
        assert!(waiting.is_empty());
    }
}

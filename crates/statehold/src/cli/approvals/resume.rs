//! What a decision came to, and what follows from it: the request goes on, and the tasks above it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::cli::answers::{elements, text};
use crate::cli::frame::Frame;
use crate::cli::hold::Hold;
use crate::cli::output::{Output, Tone};
use crate::cli::printable::cell;
use crate::client::Client;

/// How long what follows is shown. A worker that is there has the request by then.
const FOLLOW_MAX: Duration = Duration::from_secs(5);

/// Says what a decision came to.
pub(super) async fn show(
    client: &Client,
    hold: &Hold,
    decided: &Value,
    is_repeated: bool,
    no_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let first = first_words(hold, decided, is_repeated);
    if no_wait || text(decided, "status") == "open" {
        return output.line(&first);
    }
    let mut frame = output.is_terminal.then(Frame::new);
    let mut course = Course::new(hold, decided);
    let deadline = Instant::now() + FOLLOW_MAX;
    loop {
        let has_more = course.look(client, hold).await;
        let line = format!("{first}{}", course.words());
        let is_over = !has_more || Instant::now() >= deadline;
        match &mut frame {
            Some(frame) => frame.draw(&[line])?,
            None if is_over => output.line(&line)?,
            None => {}
        }
        if is_over {
            return Ok(());
        }
    }
}

fn first_words(hold: &Hold, decided: &Value, is_repeated: bool) -> String {
    let status = text(decided, "status");
    let by = cell(text(decided, "decided_by"));
    let alias = cell(&hold.alias);
    let again = if is_repeated { " (as before)" } else { "" };
    if status == "open" {
        let (has, needs) = (&decided["approvals"], &decided["quorum"]);
        let sign = Tone::Warning.paint("…");
        return format!("{sign} {has} of {needs} have approved {alias}{again}, the last as {by}");
    }
    let (sign, word) = match status {
        "approved" | "edited" | "answered" => (Tone::Good.paint("✓"), status),
        "cancelled" => (Tone::Warning.paint("✓"), "dismissed"),
        _ => (Tone::Warning.paint("✓"), status),
    };
    format!("{sign} {} {alias} as {by}{again}", cell(word))
}

/// What was seen of the request and the tasks above it.
struct Course {
    decided_at: String,
    /// Every status that the request was seen in, in order.
    statuses: Vec<String>,
    alias: String,
    finished_at: Option<String>,
    /// Tasks above that go on, and those that still wait, from the leaf up.
    resumed: Vec<String>,
    waiting: Vec<String>,
    has_begun: bool,
}

impl Course {
    fn new(hold: &Hold, decided: &Value) -> Self {
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

    /// Looks once; waits up to a second for news unless this is the first look. Returns whether
    /// there is more to see. Who decides may not be allowed to look: then there is not.
    async fn look(&mut self, client: &Client, hold: &Hold) -> bool {
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
            (self.resumed, self.waiting) = above(elements(&tree.body, "tasks"), &hold.task_path);
        }
        !matches!(status, "completed" | "failed" | "cancelled" | "held")
    }

    fn words(&self) -> String {
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
            Some(ms) => format!(" ({ms} ms)"),
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
    fn duration_ms(&self) -> Option<i64> {
        let decided: Timestamp = self.decided_at.parse().ok()?;
        let finished: Timestamp = self.finished_at.as_ref()?.parse().ok()?;
        Some(finished.as_millisecond() - decided.as_millisecond())
    }
}

/// The tasks of a path that go on and those that are paused, from the leaf up, by their aliases.
fn above(tasks: &[Value], path: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut resumed, mut waiting) = (Vec::new(), Vec::new());
    collect(tasks, path, &mut |task| {
        let alias = cell(text(task, "alias"));
        if text(task, "status") == "paused" {
            waiting.push(alias);
        } else if text(task, "status") != "cancelled" {
            resumed.push(alias);
        }
    });
    resumed.reverse();
    waiting.reverse();
    (resumed, waiting)
}

fn collect(tasks: &[Value], path: &[String], take: &mut impl FnMut(&Value)) {
    for task in tasks {
        if path.iter().any(|id| id == text(task, "id")) {
            take(task);
        }
        for request in elements(task, "requests") {
            collect(elements(request, "tasks"), path, take);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tasks_above_go_on_or_wait_for_something_else() {
        let leaf = json!({ "id": "tsk_4", "alias": "T4", "status": "running", "requests": [] });
        let other = json!({ "id": "tsk_5", "alias": "T5", "status": "paused", "requests": [] });
        let tree = json!([{ "id": "tsk_1", "alias": "T1", "status": "running", "requests": [{ "tasks": [leaf, other] }] }]);
        let path = ["tsk_1".to_owned(), "tsk_4".to_owned()];
        let tasks = tree.as_array().expect("a list");
        let (resumed, waiting) = above(tasks, &path);
        assert_eq!(resumed, ["T4", "T1"]);
        assert!(waiting.is_empty());
    }
}

//! Draws the tree of a session: tasks, their requests, and their open holds.

use std::collections::BTreeMap;

use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use super::answers::{elements, read, text};
use super::hold::HoldInfo;
use super::output::{CliOutput, TextTone, padding, wrapped};
use super::printable::cell;
use super::times::TimeFormat;
use crate::client::Client;
use crate::exit::Failure;

/// How many open holds are fetched for their action.
const HOLDS_MAX: usize = 20;
/// How many live requests are fetched for their start time.
const REQUESTS_MAX: usize = 20;
/// The longest action shown.
const ACTION_CHARS_MAX: usize = 48;

/// The tree of a session, with details of its live requests and open holds.
#[derive(Debug, Default)]
pub(super) struct SessionTree {
    /// The response of the server.
    pub(super) answer: Value,
    holds: BTreeMap<String, HoldInfo>,
    /// When each live request began.
    began: BTreeMap<String, String>,
}

/// Which part of a tree to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TreeExtent {
    /// Live tasks and requests; everything if nothing is live.
    Live,
    Everything,
}

impl SessionTree {
    /// Loads the tree of a session, and the details of its live parts.
    ///
    /// # Errors
    ///
    /// If the session cannot be read.
    pub(super) async fn load(client: &Client, session: &str) -> Result<Self, Failure> {
        let answer = client.get(&format!("/v1/sessions/{session}/tree")).await?;
        let mut tree = Self {
            answer: answer.body,
            ..Self::default()
        };
        let requests = all_requests(elements(&tree.answer, "tasks"));
        let holds = requests
            .iter()
            .flat_map(|request| elements(request, "holds"));
        for hold in holds.filter(|hold| is_open(hold)).take(HOLDS_MAX) {
            let id = text(hold, "id");
            // It may be hidden from this key, or decided meanwhile: then its name must do.
            if let Ok(answer) = client.get(&format!("/v1/holds/{id}")).await
                && let Ok(hold) = read::<HoldInfo>(&answer.body)
            {
                tree.holds.insert(id.to_owned(), hold);
            }
        }
        for request in requests
            .iter()
            .filter(|request| is_working(request))
            .take(REQUESTS_MAX)
        {
            let id = text(request, "id");
            if let Ok(answer) = client.get(&format!("/v1/requests/{id}")).await
                && let Some(began) = answer.body["created_at"].as_str()
            {
                tree.began.insert(id.to_owned(), began.to_owned());
            }
        }
        Ok(tree)
    }

    /// The lines of the tree, or of the part below one task. Safe to print.
    pub(super) fn lines(
        &self,
        root: Option<&str>,
        extent: TreeExtent,
        output: &CliOutput,
    ) -> Vec<String> {
        self.lines_at(root, extent, &output.times, output.fit())
    }

    /// The lines at a time, fitted to a terminal of so many columns.
    pub(super) fn lines_at(
        &self,
        root: Option<&str>,
        extent: TreeExtent,
        times: &TimeFormat,
        columns: Option<usize>,
    ) -> Vec<String> {
        let tasks = elements(&self.answer, "tasks");
        let roots: Vec<&Value> = match root {
            Some(id) => {
                let mut tasks = all_tasks(tasks).into_iter();
                tasks
                    .find(|task| text(task, "id") == id)
                    .into_iter()
                    .collect()
            }
            None => tasks.iter().collect(),
        };
        let extent = if roots.iter().any(|task| is_live(task)) {
            extent
        } else {
            TreeExtent::Everything
        };
        let mut drawing = TreeDrawing {
            tree: self,
            times,
            extent,
            rows: Vec::new(),
        };
        let is_shown = |task: &&&Value| extent == TreeExtent::Everything || is_live(task);
        for task in roots.iter().filter(is_shown) {
            drawing.task(
                task,
                "",
                "",
                root.is_some_and(|_| task["parent_request_id"].is_string()),
            );
        }
        align(&drawing.rows, columns.unwrap_or(usize::MAX))
    }
}

/// One line of the tree.
struct TreeRow {
    name: String,
    status: String,
    age: String,
    more: String,
}

struct TreeDrawing<'a> {
    tree: &'a SessionTree,
    times: &'a TimeFormat,
    extent: TreeExtent,
    rows: Vec<TreeRow>,
}

impl TreeDrawing<'_> {
    /// `branch` is drawn before the task itself, `indent` before everything below it.
    fn task(&mut self, task: &Value, branch: &str, indent: &str, is_child: bool) {
        let status = text(task, "status");
        let open = open_holds(all_requests(std::slice::from_ref(task)));
        let since = open.iter().filter_map(|hold| self.created(hold)).min();
        let waits: Vec<String> = open.iter().map(|hold| cell(text(hold, "alias"))).collect();
        self.rows.push(TreeRow {
            name: format!(
                "{branch}{} {}",
                cell(text(task, "alias")),
                cell(text(task, "agent"))
            ),
            status: status.to_owned(),
            age: since
                .filter(|_| status == "paused")
                .map_or_else(String::new, |since| self.times.since(since)),
            more: if waits.is_empty() {
                String::new()
            } else {
                format!("waits for {}", waits.join(", "))
            },
        });
        let requests: Vec<&Value> = elements(task, "requests")
            .iter()
            .filter(|request| self.extent == TreeExtent::Everything || is_live_request(request))
            .collect();
        for (index, request) in requests.iter().enumerate() {
            let (branch, below) = branches(indent, index + 1 == requests.len());
            self.request(request, &branch, &below, is_child);
        }
    }

    fn request(&mut self, request: &Value, branch: &str, indent: &str, is_child: bool) {
        // Users chat with root tasks; agents invoke the tasks below.
        let verb = if is_child { "invoke" } else { "chat" };
        let status = text(request, "status");
        let holds = elements(request, "holds");
        let mut open: Vec<&Value> = holds.iter().filter(|hold| is_open(hold)).collect();
        // A single hold fits on the line of its request; several get lines of their own.
        let first = (open.len() == 1).then(|| open.remove(0));
        let age = match self.tree.began.get(text(request, "id")) {
            Some(began) if is_working(request) => self.times.since(began),
            _ => String::new(),
        };
        self.rows.push(TreeRow {
            name: format!("{branch}{} {verb}", cell(text(request, "alias"))),
            status: status.to_owned(),
            age,
            more: first.map_or_else(String::new, |hold| {
                let name = format!(
                    "{} {}",
                    cell(text(hold, "alias")),
                    cell(text(hold, "status"))
                );
                self.hold_words(hold, &format!(" {name}"))
            }),
        });
        let is_shown = |hold: &&Value| self.extent == TreeExtent::Everything && !is_open(hold);
        let decided = holds.iter().filter(is_shown);
        let own: Vec<&Value> = open.into_iter().chain(decided).collect();
        let tasks: Vec<&Value> = elements(request, "tasks")
            .iter()
            .filter(|task| self.extent == TreeExtent::Everything || is_live(task))
            .collect();
        let count = own.len() + tasks.len();
        for (index, hold) in own.iter().enumerate() {
            let (branch, _) = branches(indent, index + 1 == count);
            self.rows.push(TreeRow {
                name: format!("{branch}{}", cell(text(hold, "alias"))),
                status: text(hold, "status").to_owned(),
                age: String::new(),
                more: self.hold_words(hold, ""),
            });
        }
        for (index, task) in tasks.iter().enumerate() {
            let (branch, below) = branches(indent, own.len() + index + 1 == count);
            self.task(task, &branch, &below, true);
        }
    }

    /// `delete_user(user_id=7)   approval R8.h1 open, expires in 57 min`. `name` is empty where the
    /// alias stands at the start of the line.
    fn hold_words(&self, hold: &Value, name: &str) -> String {
        let known = self.tree.holds.get(text(hold, "id"));
        let what = match known {
            Some(known) => known.summary(ACTION_CHARS_MAX),
            None => cell(text(hold, "title")),
        };
        let expires = known.and_then(|known| known.expires_at.as_deref());
        let expires = match expires.or(hold["expires_at"].as_str()) {
            Some(at) if is_open(hold) => format!(", expires {}", self.times.show(at)),
            _ => String::new(),
        };
        let words = format!("{}{name}{expires}", cell(text(hold, "kind")));
        if what.is_empty() {
            words
        } else {
            format!("{what}   {words}")
        }
    }

    fn created(&self, hold: &Value) -> Option<&str> {
        let known = self.tree.holds.get(text(hold, "id"))?;
        Some(known.created_at.as_str()).filter(|at| !at.is_empty())
    }
}

/// The strokes before a child, and before everything below it.
fn branches(indent: &str, is_last: bool) -> (String, String) {
    if is_last {
        (format!("{indent}└─ "), format!("{indent}   "))
    } else {
        (format!("{indent}├─ "), format!("{indent}│  "))
    }
}

/// The rows in columns. The words of a row that is too long for the terminal come below it.
fn align(rows: &[TreeRow], columns: usize) -> Vec<String> {
    let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0) + 4;
    let state = |row: &TreeRow| match row.age.as_str() {
        "" => row.status.clone(),
        age => format!("{} {age}", row.status),
    };
    let names = width(&mut rows.iter().map(|row| row.name.width()));
    let states = width(&mut rows.iter().map(|row| state(row).width()));
    let mut lines = Vec::new();
    for row in rows {
        let state = cell(&state(row));
        let tone = TextTone::of_status(&row.status);
        let mut line = format!(
            "{}{}{}",
            row.name,
            padding(&row.name, names),
            tone.paint(&state)
        );
        let fits = names + states + row.more.width() <= columns;
        if fits && !row.more.is_empty() {
            line.push_str(&padding(&state, states));
            line.push_str(&row.more);
        }
        lines.push(line);
        if !fits {
            let indent = below(&row.name);
            let room = columns.saturating_sub(indent.width());
            let more = wrapped(&row.more, room).into_iter();
            lines.extend(more.map(|more| format!("{indent}{more}")));
        }
    }
    lines
}

/// The strokes below a row, and the blanks below its name.
fn below(name: &str) -> String {
    let strokes = name.chars().take_while(|c| "├└─│ ".contains(*c));
    let strokes = strokes.map(|c| if c == '├' || c == '│' { '│' } else { ' ' });
    strokes.collect::<String>() + "     "
}

/// Every task of a tree, at any depth, parents first.
pub(super) fn all_tasks(tasks: &[Value]) -> Vec<&Value> {
    let below = |request| all_tasks(elements(request, "tasks"));
    let with_below = |task| {
        let below = elements(task, "requests").iter().flat_map(below);
        std::iter::once(task).chain(below)
    };
    tasks.iter().flat_map(with_below).collect()
}

/// Every request of tasks, at any depth, parents first.
pub(super) fn all_requests(tasks: &[Value]) -> Vec<&Value> {
    let requests = tasks.iter().flat_map(|task| elements(task, "requests"));
    requests.flat_map(with_requests_below).collect()
}

/// A request and every request below it.
pub(super) fn with_requests_below(request: &Value) -> Vec<&Value> {
    let below = all_requests(elements(request, "tasks"));
    std::iter::once(request).chain(below).collect()
}

fn is_live(task: &Value) -> bool {
    elements(task, "requests").iter().any(is_live_request)
}

fn is_live_request(request: &Value) -> bool {
    let mut requests = with_requests_below(request).into_iter();
    !requests.all(is_final)
}

/// Whether a request has ended.
pub(super) fn is_final(request: &Value) -> bool {
    let status = text(request, "status");
    matches!(status, "completed" | "failed" | "cancelled")
}

/// Whether a request is running, or waits for a worker.
pub(super) fn is_working(request: &Value) -> bool {
    matches!(text(request, "status"), "running" | "queued")
}

fn is_open(hold: &Value) -> bool {
    hold["status"] == "open"
}

/// The open holds of requests.
pub(super) fn open_holds(requests: Vec<&Value>) -> Vec<&Value> {
    let holds = requests
        .into_iter()
        .flat_map(|request| elements(request, "holds"));
    holds.filter(|hold| is_open(hold)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::times::TimeStyle;

    fn times() -> TimeFormat {
        let now = "2026-08-06T12:00:00Z".parse().expect("a time");
        let style = TimeStyle::Relative;
        TimeFormat { style, now }
    }

    fn plain(lines: &[String]) -> Vec<String> {
        lines
            .iter()
            .map(|line| anstream::adapter::strip_str(line).to_string())
            .collect()
    }

    fn paused() -> SessionTree {
        let hold = json!({ "id": "hld_1", "alias": "R8.h1", "kind": "approval", "status": "open" });
        let r8 =
            json!({ "id": "req_8", "alias": "R8", "status": "held", "holds": [hold], "tasks": [] });
        let t4 = json!({ "id": "tsk_4", "alias": "T4", "agent": "ums-agent", "status": "paused", "parent_request_id": "req_7", "requests": [r8] });
        let r7 = json!({ "id": "req_7", "alias": "R7", "status": "waiting", "holds": [], "tasks": [t4] });
        let r1 = json!({ "id": "req_1", "alias": "R1", "status": "completed", "holds": [], "tasks": [] });
        let t1 = json!({ "id": "tsk_1", "alias": "T1", "agent": "coordinator", "status": "paused", "requests": [r7, r1] });
        let known = json!({
            "id": "hld_1", "alias": "R8.h1", "kind": "approval", "status": "open", "session_id": "s",
            "task_id": "tsk_4", "request_id": "req_8", "agent": "ums-agent", "title": "Delete user 7",
            "action": { "tool": "delete_user", "args": { "user_id": 7 } },
            "created_at": "2026-08-06T11:58:00Z", "expires_at": "2026-08-06T12:57:00Z"
        });
        SessionTree {
            answer: json!({ "tasks": [t1] }),
            holds: [(
                "hld_1".to_owned(),
                serde_json::from_value(known).expect("a hold"),
            )]
            .into(),
            began: BTreeMap::new(),
        }
    }

    #[test]
    fn a_pause_is_seen_on_everything_above_it() {
        assert_eq!(
            plain(&paused().lines_at(None, TreeExtent::Live, &times(), None)),
            [
                "T1 coordinator        paused 2 min    waits for R8.h1",
                "└─ R7 chat            waiting",
                "   └─ T4 ums-agent    paused 2 min    waits for R8.h1",
                "      └─ R8 invoke    held            delete_user(user_id=7)   approval R8.h1 open, \
                 expires in 57 min",
            ]
        );
    }

    #[test]
    fn a_part_of_a_tree_is_drawn_from_its_task_on() {
        let lines = plain(&paused().lines_at(Some("tsk_4"), TreeExtent::Live, &times(), None));
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].starts_with("T4 ums-agent    paused 2 min"),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("└─ R8 invoke"), "{lines:?}");
    }

    #[test]
    fn everything_shows_what_is_over_too() {
        let lines = plain(&paused().lines_at(None, TreeExtent::Everything, &times(), None));
        assert_eq!(lines[1], "├─ R7 chat            waiting");
        assert_eq!(
            lines.last().map(String::as_str),
            Some("└─ R1 chat            completed")
        );
    }
}

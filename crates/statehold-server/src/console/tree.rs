//! The tree of a session as steps of a nested list, and the names of its tasks for items.

use std::collections::BTreeMap;

use serde::Serialize;
use statehold_core::ids::TaskId;
use statehold_engine::api::tree::{TreeRequestView, TreeTaskView, TreeView};

use super::text::shown;

/// A step of the list: templates cannot call themselves.
pub(super) enum TreeStep {
    /// A task begins, and the list of its requests.
    Task(TaskLine),
    /// A request begins, and the list of its tasks.
    Request(RequestLine),
    /// The newest task or request ends.
    End,
}

pub(super) struct TaskLine {
    pub(super) id: String,
    pub(super) alias: String,
    pub(super) agent: String,
    pub(super) status: String,
}

pub(super) struct RequestLine {
    pub(super) alias: String,
    pub(super) id: String,
    pub(super) status: String,
    pub(super) holds: Vec<HoldLine>,
}

pub(super) struct HoldLine {
    pub(super) alias: String,
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) title: String,
    /// Who decided it.
    pub(super) by: Option<String>,
    pub(super) is_open: bool,
}

/// The word of an enumeration, as the API writes it.
pub(super) fn word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(_) | Err(_) => String::new(),
    }
}

/// All steps of a tree.
pub(super) fn steps(tree: &TreeView) -> Vec<TreeStep> {
    let mut steps = Vec::new();
    add_tasks(&tree.tasks, &mut steps);
    steps
}

fn add_tasks(tasks: &[TreeTaskView], steps: &mut Vec<TreeStep>) {
    for task in tasks {
        steps.push(TreeStep::Task(TaskLine {
            id: task.id.to_string(),
            alias: task.alias.clone(),
            agent: task.agent.to_string(),
            status: word(task.status),
        }));
        for request in &task.requests {
            steps.push(TreeStep::Request(request_line(request)));
            add_tasks(&request.tasks, steps);
            steps.push(TreeStep::End);
        }
        steps.push(TreeStep::End);
    }
}

fn request_line(request: &TreeRequestView) -> RequestLine {
    let holds = request.holds.iter().map(|hold| {
        let status = word(hold.status);
        HoldLine {
            alias: hold.alias.clone(),
            kind: word(hold.kind),
            is_open: status == "open",
            status,
            title: shown(&hold.title),
            by: hold.decided_by.as_deref().map(shown),
        }
    });
    RequestLine {
        alias: request.alias.clone(),
        id: request.id.to_string(),
        status: word(request.status),
        holds: holds.collect(),
    }
}

/// The alias and the agent of each task in a tree.
pub(super) fn names(tree: &TreeView) -> BTreeMap<TaskId, String> {
    let mut names = BTreeMap::new();
    add_names(&tree.tasks, &mut names);
    names
}

fn add_names(tasks: &[TreeTaskView], names: &mut BTreeMap<TaskId, String>) {
    for task in tasks {
        names.insert(task.id, format!("{} {}", task.alias, task.agent));
        for request in &task.requests {
            add_names(&request.tasks, names);
        }
    }
}

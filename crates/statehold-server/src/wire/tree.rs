//! The tree of a session on the wire.

use serde::Serialize;
use statehold_core::task::TaskStatus;
use statehold_engine::{Tree, TreeHold, TreeRequest, TreeTask};
use utoipa::ToSchema;

use super::hold::{HoldRef, title_of};
use super::schema::{
    NameText, RequestIdText, RequestStatusWord, SessionIdText, TaskIdText, TaskStatusWord,
};
use super::time;

/// The tree of a session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tree)]
pub(crate) struct TreeOut {
    #[schema(value_type = SessionIdText)]
    pub(crate) session_id: String,
    pub(crate) revision: u64,
    pub(crate) tasks: Vec<TreeTaskOut>,
    /// Earlier requests are found with `before` set to this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<u64>,
}

/// A task in the tree.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TreeTask)]
pub(crate) struct TreeTaskOut {
    #[schema(value_type = TaskIdText)]
    pub(crate) id: String,
    pub(crate) alias: String,
    #[schema(value_type = NameText)]
    pub(crate) agent: String,
    #[schema(value_type = TaskStatusWord)]
    pub(crate) status: TaskStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RequestIdText>)]
    pub(crate) parent_request_id: Option<String>,
    pub(crate) requests: Vec<TreeRequestOut>,
}

/// A request in the tree.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TreeRequest)]
pub(crate) struct TreeRequestOut {
    #[schema(value_type = RequestIdText)]
    pub(crate) id: String,
    pub(crate) alias: String,
    #[schema(value_type = RequestStatusWord)]
    pub(crate) status: &'static str,
    pub(crate) holds: Vec<HoldRef>,
    #[schema(no_recursion)]
    pub(crate) tasks: Vec<TreeTaskOut>,
}

impl TreeOut {
    pub(crate) fn of(session_id: String, tree: &Tree) -> Self {
        Self {
            session_id,
            revision: tree.revision,
            tasks: tree.tasks.iter().map(tree_task).collect(),
            before: tree.before,
        }
    }
}

fn tree_task(task: &TreeTask) -> TreeTaskOut {
    TreeTaskOut {
        id: task.id.to_string(),
        alias: format!("T{}", task.number),
        agent: task.agent.to_string(),
        status: task.status,
        parent_request_id: task.parent.map(|parent| parent.to_string()),
        requests: task.requests.iter().map(tree_request).collect(),
    }
}

fn tree_request(request: &TreeRequest) -> TreeRequestOut {
    let hold = |hold: &TreeHold| HoldRef {
        id: hold.id.to_string(),
        alias: format!("R{}.h{}", request.number, hold.number),
        kind: hold.kind,
        status: hold.status,
        title: title_of(hold.kind, hold.body.as_deref()),
        expires_at: hold.deadline.map(time),
    };
    TreeRequestOut {
        id: request.id.to_string(),
        alias: format!("R{}", request.number),
        status: request.status,
        holds: request.holds.iter().map(hold).collect(),
        tasks: request.tasks.iter().map(tree_task).collect(),
    }
}

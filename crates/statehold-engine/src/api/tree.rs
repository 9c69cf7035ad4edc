//! The tree of a session as callers see it.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::request::RequestStatus;
use statehold_core::task::TaskStatus;
use utoipa::ToSchema;

use super::hold::{HoldRef, title_of};
use crate::tree::{Tree, TreeHold, TreeRequest, TreeTask};

/// The tree of a session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Tree)]
pub struct TreeView {
    pub session_id: SessionId,
    pub revision: u64,
    pub tasks: Vec<TreeTaskView>,
    /// Earlier requests are found with `before` set to this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

/// A task in the tree.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = TreeTask)]
pub struct TreeTaskView {
    pub id: TaskId,
    pub alias: String,
    pub agent: Name,
    pub status: TaskStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_request_id: Option<RequestId>,
    pub requests: Vec<TreeRequestView>,
}

/// A request in the tree.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = TreeRequest)]
pub struct TreeRequestView {
    pub id: RequestId,
    pub alias: String,
    pub status: RequestStatus,
    pub holds: Vec<HoldRef>,
    #[schema(no_recursion)]
    pub tasks: Vec<TreeTaskView>,
}

impl TreeView {
    pub fn of(session_id: SessionId, tree: &Tree) -> Self {
        Self {
            session_id,
            revision: tree.revision,
            tasks: tree.tasks.iter().map(tree_task).collect(),
            before: tree.before,
        }
    }
}

fn tree_task(task: &TreeTask) -> TreeTaskView {
    TreeTaskView {
        id: task.id,
        alias: format!("T{}", task.number),
        agent: task.agent.clone(),
        status: task.status,
        parent_request_id: task.parent,
        requests: task.requests.iter().map(tree_request).collect(),
    }
}

fn tree_request(request: &TreeRequest) -> TreeRequestView {
    let hold = |hold: &TreeHold| HoldRef {
        id: hold.id,
        alias: format!("R{}.h{}", request.number, hold.number),
        kind: hold.kind,
        status: hold.status,
        title: title_of(hold.kind, hold.body.as_deref()),
        expires_at: hold.deadline.map(Into::into),
    };
    TreeRequestView {
        id: request.id,
        alias: format!("R{}", request.number),
        status: request.status,
        holds: request.holds.iter().map(hold).collect(),
        tasks: request.tasks.iter().map(tree_task).collect(),
    }
}

//! The fields of an answer that only clients of this server read.

use std::collections::BTreeSet;

use serde::Serialize;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_engine::HoldDetail;
use statehold_engine::api::hold::HoldView;
use statehold_engine::api::turn::{EarlierAnswer, TurnDebug};
use utoipa::ToSchema;

use crate::chat::{TurnIds, status_of};

/// Fields that only clients of this server read.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatStatehold)]
pub(crate) struct StateholdOut {
    /// `completed` or `paused`.
    pub(crate) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<TaskId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<RequestId>,
    /// The agents that were asked on the way.
    pub(crate) via: Vec<String>,
    /// The open holds of a paused turn.
    pub(crate) holds: Vec<HoldView>,
    /// Answers that came since to turns that were paused: the content begins with them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) earlier: Vec<EarlierAnswer>,
    /// The hidden items of the turn, with `x-statehold-debug: 1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) debug: Option<TurnDebug>,
    /// The expired session that the call named: this one began in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replaced: Option<SessionId>,
    /// Parts of the messages that did not reach an agent that does not trust its callers: `system`, `developer`,
    /// `tool`, `state`, `malformed`; and `agent_state`, if its own state is too long to be carried.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    pub(crate) left_out: BTreeSet<&'static str>,
}

impl StateholdOut {
    /// The state of a turn.
    pub(crate) fn of(ids: Option<TurnIds>, via: Vec<String>, holds: &[HoldDetail]) -> Self {
        Self {
            status: status_of(holds),
            session: ids.map(|ids| ids.session),
            task: ids.map(|ids| ids.task),
            request: ids.map(|ids| ids.request),
            via,
            holds: holds.iter().map(HoldView::of).collect(),
            earlier: Vec::new(),
            debug: None,
            replaced: None,
            left_out: BTreeSet::new(),
        }
    }
}

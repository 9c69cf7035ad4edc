//! Plain input of the use cases about requests.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::Deserialize;
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::name::Name;
use statehold_core::task::CloseOn;
use utoipa::ToSchema;

use crate::api::item::ItemInput;
use crate::api::json::Raw;
use crate::api::schema::Words;
use crate::api::state::StatePatchInput;

/// An invocation to start. With a lease and an output it is a whole turn.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RequestIn)]
pub struct StartInput {
    /// The agent; the session's own if none is named.
    #[serde(default)]
    #[schema(value_type = Option<Name>)]
    pub agent: Option<String>,
    /// What is asked: text, or content with files.
    #[schema(value_type = Words)]
    pub input: Raw,
    /// The task to go on with.
    #[serde(default)]
    pub task_id: Option<TaskId>,
    /// The request that asks, if an agent asks.
    #[serde(default)]
    pub parent_request_id: Option<RequestId>,
    /// The fence of that request.
    #[serde(default)]
    pub parent_fence: Option<u64>,
    /// Claim it in the same commit.
    #[serde(default)]
    pub lease: Option<LeaseInput>,
    /// With a lease: items to write at once.
    #[serde(default)]
    pub items: Vec<ItemInput>,
    /// With a lease: state to write at once.
    #[serde(default)]
    pub state: Option<StatePatchInput>,
    /// With a lease: the answer.
    #[serde(default)]
    #[schema(value_type = Option<Words>)]
    pub output: Option<Raw>,
    /// When a newly opened task closes by itself.
    #[serde(default)]
    pub close_on: Option<CloseOn>,
}

/// The right to write for a while.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseIn)]
pub struct LeaseInput {
    /// How long it lasts without a heartbeat.
    #[schema(minimum = 1, maximum = 86_400)]
    pub ttl_seconds: u64,
    /// Who works, for people.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub worker: Option<String>,
}

/// Items to add to a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ItemsIn)]
pub struct AppendInput {
    pub fence: u64,
    #[serde(default)]
    pub items: Vec<ItemInput>,
    #[serde(default)]
    pub state: Option<StatePatchInput>,
    /// The agent's private state.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub task_state: Option<Raw>,
}

/// The answer of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompleteIn)]
pub struct CompleteInput {
    pub fence: u64,
    /// What is answered: text, or content with files.
    #[schema(value_type = Words)]
    pub output: Raw,
    #[serde(default)]
    pub items: Vec<ItemInput>,
    #[serde(default)]
    pub state: Option<StatePatchInput>,
    /// The agent's private state.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub task_state: Option<Raw>,
    /// Close the task too.
    #[serde(default)]
    pub close_task: bool,
    /// Stop child requests that still run.
    #[serde(default)]
    pub cancel_children: bool,
}

/// The error of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FailIn)]
pub struct FailInput {
    pub fence: u64,
    /// What went wrong: text, or an object.
    #[schema(value_type = serde_json::Value)]
    pub error: Raw,
    /// Stop child requests that still run.
    #[serde(default)]
    pub cancel_children: bool,
}

/// A sign of life.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HeartbeatIn)]
pub struct HeartbeatInput {
    pub fence: u64,
}

/// A worker that leaves.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReleaseIn)]
pub struct ReleaseInput {
    pub fence: u64,
}

/// Nothing more to say.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NothingIn)]
pub struct EmptyInput {}

/// What a worker asks for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ClaimIn)]
pub struct ClaimInput {
    #[schema(value_type = Name)]
    pub agent: String,
    /// Who works, for people.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub worker: Option<String>,
    /// At most so many, 1 to 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 100)]
    pub max: Option<usize>,
    /// How long to wait for the first, at most 60.
    #[serde(default)]
    #[schema(maximum = 60)]
    pub wait_seconds: Option<u64>,
    /// How long the lease lasts without a heartbeat.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86_400)]
    pub lease_seconds: Option<u64>,
    /// Only this request.
    #[serde(default)]
    pub request_id: Option<RequestId>,
}

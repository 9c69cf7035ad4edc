//! Plain input of the use cases about requests.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::Deserialize;
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::limits::COMMAND_ITEMS_MAX;
use statehold_core::name::Name;
use statehold_core::task::CloseOn;
use utoipa::ToSchema;

use crate::api::item::ItemInput;
use crate::api::json::{Raw, list_at_most};
use crate::api::schema::Words;
use crate::api::state::StatePatchInput;

/// A request to start. With a lease and an output it is a whole turn.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RequestIn)]
pub struct StartInput {
    /// The agent; the session's default agent if left out.
    #[schema(value_type = Option<Name>)]
    pub agent: Option<String>,
    /// The message to the agent: text, or content with files.
    #[schema(value_type = Words)]
    pub input: Raw,
    /// The task to continue; a new task if left out.
    pub task_id: Option<TaskId>,
    /// The parent request, if an agent starts this one.
    pub parent_request_id: Option<RequestId>,
    /// The fence of the parent request.
    pub parent_fence: Option<u64>,
    /// Claim the request in the same commit.
    pub lease: Option<LeaseInput>,
    /// With a lease: items to write at once.
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * COMMAND_ITEMS_MAX }, _, _>"
    )]
    pub items: Vec<ItemInput>,
    /// With a lease: state to write at once.
    pub state: Option<StatePatchInput>,
    /// With a lease: the answer.
    #[schema(value_type = Option<Words>)]
    pub output: Option<Raw>,
    /// When a newly opened task closes by itself.
    pub close_on: Option<CloseOn>,
}

/// A lease: the exclusive right to write to a request for a limited time.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseIn)]
pub struct LeaseInput {
    /// Seconds until the lease lapses without a heartbeat.
    #[schema(minimum = 1, maximum = 86_400)]
    pub ttl_seconds: u64,
    /// A name of the worker, for people.
    #[schema(max_length = 256)]
    pub worker: Option<String>,
}

/// Items to add to a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ItemsIn)]
pub struct AppendInput {
    pub fence: u64,
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * COMMAND_ITEMS_MAX }, _, _>"
    )]
    pub items: Vec<ItemInput>,
    pub state: Option<StatePatchInput>,
    /// The agent's private state.
    #[schema(value_type = Option<serde_json::Value>)]
    pub task_state: Option<Raw>,
}

/// The answer of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompleteIn)]
pub struct CompleteInput {
    pub fence: u64,
    /// The answer: text, or content with files.
    #[schema(value_type = Words)]
    pub output: Raw,
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * COMMAND_ITEMS_MAX }, _, _>"
    )]
    pub items: Vec<ItemInput>,
    pub state: Option<StatePatchInput>,
    /// The agent's private state.
    #[schema(value_type = Option<serde_json::Value>)]
    pub task_state: Option<Raw>,
    /// Close the task too.
    #[serde(default)]
    pub close_task: bool,
    /// Cancel child requests that are still live.
    #[serde(default)]
    pub cancel_children: bool,
}

/// The error of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FailIn)]
pub struct FailInput {
    pub fence: u64,
    /// The error: text, or an object.
    #[schema(value_type = serde_json::Value)]
    pub error: Raw,
    /// Cancel child requests that are still live.
    #[serde(default)]
    pub cancel_children: bool,
}

/// A heartbeat, which extends the lease.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HeartbeatIn)]
pub struct HeartbeatInput {
    pub fence: u64,
}

/// The release of a lease.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReleaseIn)]
pub struct ReleaseInput {
    pub fence: u64,
}

/// An empty object.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NothingIn)]
pub struct EmptyInput {}

/// A claim of requests.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ClaimIn)]
pub struct ClaimInput {
    #[schema(value_type = Name)]
    pub agent: String,
    /// A name of the worker, for people.
    #[schema(max_length = 256)]
    pub worker: Option<String>,
    /// The largest number of requests to claim, 1 to 100.
    #[schema(minimum = 1, maximum = 100)]
    pub max: Option<usize>,
    /// Seconds to wait for the first request, at most 60.
    #[schema(maximum = 60)]
    pub wait_seconds: Option<u64>,
    /// Seconds until the lease lapses without a heartbeat.
    #[schema(minimum = 1, maximum = 86_400)]
    pub lease_seconds: Option<u64>,
    /// Only this request.
    pub request_id: Option<RequestId>,
}

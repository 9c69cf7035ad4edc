//! Tools: writing to conversations, deciding holds, and reading what a caller waits for. Each is one use case of the
//! native API with the same names; writes take an `idempotency_key`.

use std::str::FromStr;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock};
use rmcp::service::{RequestContext, RoleServer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_engine::api::annotation::AnnotationsView;
use statehold_engine::api::request::WaitUntil;
use statehold_engine::api::session::CreatedSession;
use statehold_engine::{Call, IdempotencyKey, RequestHolds, api};
use tokio::time::Instant;

use super::declared::TOOLS;
use super::errors::tool_error;
use super::person::{Person, Question};
use crate::http::call::CallContext;
use crate::http::problem::{Code, Problem};
use crate::native::{hold, state};

/// How long a tool waits for a request. Clients give up on a call after about a minute.
pub(super) const WAIT_SECONDS_MAX: u64 = 50;
/// The holds of a request that an answer has.
const HOLDS_MAX: usize = 50;

/// Calls a tool. None if there is no such tool.
pub(super) async fn call(
    context: &CallContext,
    request: &RequestContext<RoleServer>,
    params: CallToolRequestParams,
) -> Option<CallToolResponse> {
    let tool = TOOLS.iter().find(|tool| tool.name == params.name)?;
    let person = Person::new(context, request, &tool.name);
    let work = Box::pin(answer(context, &person, params));
    let done = context.while_valid(work).await;
    Some(done.unwrap_or_else(|problem| tool_error(&problem).into()))
}

async fn answer(
    context: &CallContext,
    person: &Person<'_>,
    params: CallToolRequestParams,
) -> Result<CallToolResponse, Problem> {
    let mut arguments = Arguments {
        tool: params.name.into_owned(),
        members: params.arguments.unwrap_or_default(),
    };
    let asks = ASKING.contains(&arguments.tool.as_str());
    let wait = if asks {
        arguments.wait()?
    } else {
        Duration::ZERO
    };
    let (request, may_ask) = match params.request_state.filter(|_| asks) {
        // The request was started by the call that this one repeats.
        Some(state) => {
            let answers = params.input_responses.unwrap_or_default();
            person.take_answer(&state, &answers).await?
        }
        None => match run(context, arguments).await? {
            Done::Value(value) => return Ok(result_of(context, value).into()),
            Done::Request(request) => (request, true),
        },
    };
    // A person who closed the form is not asked again by the same call.
    let wait = if may_ask { wait } else { Duration::ZERO };
    follow(context, person, (request, may_ask), wait).await
}

/// Waits for a request to end, and asks the person behind the client for the decisions that it waits for.
async fn follow(
    context: &CallContext,
    person: &Person<'_>,
    (request, mut may_ask): (RequestId, bool),
    wait: Duration,
) -> Result<CallToolResponse, Problem> {
    let _waiting = if wait.is_zero() {
        None
    } else {
        Some(context.app.shares.take_stream(&context.caller)?)
    };
    let (engine, caller) = (context.engine(), &context.caller);
    let mut deadline = Instant::now() + wait;
    let mut until = (WaitUntil::Final, Duration::ZERO);
    loop {
        let holds = RequestHolds {
            before: None,
            entries: HOLDS_MAX,
        };
        let read = api::request::read(engine, caller, (request, holds), until, context).await?;
        let is_final = read.view.status.is_final();
        let pending = read.view.pending.iter().flatten();
        if !is_final && may_ask {
            match person.ask(request, pending.map(|hold| hold.id)).await? {
                Question::Sent(required) => return Ok(required.into()),
                Question::Answered => deadline = Instant::now() + wait,
                Question::Unanswered => may_ask = false,
                Question::None => {}
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if is_final || left.is_zero() {
            return Ok(result_of(context, shown(&read.view)).into());
        }
        let after = Some(read.revision);
        until = (WaitUntil::Changed { after }, left);
    }
}

/// The tools that wait for a request, and may ask the person behind the client.
const ASKING: [&str; 2] = ["start_task", "get_request"];

/// Outcome of a tool.
enum Done {
    /// It has its result.
    Value(Value),
    /// It has found or started this request.
    Request(RequestId),
}

impl Done {
    fn shown<T: Serialize>(view: &T) -> Self {
        Self::Value(shown(view))
    }
}

fn result_of(context: &CallContext, value: Value) -> CallToolResult {
    let text = value.to_string();
    context.slot.shrink_answer(2 * text.len() as u64);
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(value);
    result
}

async fn run(context: &CallContext, mut arguments: Arguments) -> Result<Done, Problem> {
    let engine = context.engine();
    match arguments.tool.as_str() {
        "open_session" => {
            let (call, _) = arguments.call(context)?;
            let created = api::session::create_or_get(engine, &call, arguments.rest()?).await?;
            Ok(match created {
                CreatedSession::New(receipt) => Done::shown(&receipt.view),
                CreatedSession::Found(view) => Done::shown(&view),
            })
        }
        "append_message" => {
            let (call, _) = arguments.call(context)?;
            let session: SessionId = arguments.id("session_id")?;
            let input = arguments.rest()?;
            let written = api::message::append(engine, &call, session, input).await?;
            Ok(Done::shown(&written.view))
        }
        "annotate" => annotate(context, arguments).await,
        "start_task" => {
            let (call, _) = arguments.call(context)?;
            let session: SessionId = arguments.id("session_id")?;
            let input = arguments.rest()?;
            let started = api::request::start(engine, &call, session, input, None).await?;
            Ok(Done::Request(started.view.id))
        }
        "get_request" => {
            let id = arguments.id("request_id")?;
            arguments.rest::<NoMembers>()?;
            Ok(Done::Request(id))
        }
        "open_hold" => {
            let (call, _) = arguments.call(context)?;
            let request: RequestId = arguments.id("request_id")?;
            let opened = api::hold::open(engine, &call, request, arguments.rest()?).await?;
            Ok(Done::shown(&opened.view))
        }
        "decide_hold" => {
            let (call, key) = arguments.call(context)?;
            let hold: HoldId = arguments.id("hold_id")?;
            // A hold keeps its decision key, which outlives that of a call.
            let call = Call { key: None, ..call };
            let decision = arguments.rest()?;
            let decided = api::hold::decide(engine, &call, key.as_deref(), hold, decision, context);
            Ok(Done::shown(&decided.await?.view))
        }
        "list_holds" => Ok(Done::shown(&hold::page(context, arguments.rest()?).await?)),
        "get_state" => {
            let session: SessionId = arguments.id("session_id")?;
            Ok(Done::shown(
                &state::page(context, session, arguments.rest()?).await?,
            ))
        }
        _ => put_state(context, arguments).await,
    }
}

/// Annotates a message, or with no `seq` the whole conversation.
async fn annotate(context: &CallContext, mut arguments: Arguments) -> Result<Done, Problem> {
    let (call, _) = arguments.call(context)?;
    let session: SessionId = arguments.id("session_id")?;
    let engine = context.engine();
    let Some(seq) = arguments.members.remove("seq") else {
        if let Some(members) = arguments.members.remove("annotations") {
            arguments.members.insert("metadata".to_owned(), members);
        }
        let input = arguments.rest()?;
        let written = api::annotation::set_metadata(engine, &call, session, input).await?;
        return Ok(Done::shown(&AnnotationsView {
            seq: None,
            annotations: written.view.metadata,
            version: written.view.version.unwrap_or_default(),
            revision: written.view.revision,
        }));
    };
    let seq = seq.as_u64();
    let seq = seq.ok_or_else(|| Problem::invalid("`seq` is that of a message"))?;
    let input = arguments.rest()?;
    let written = api::annotation::annotate(engine, &call, session, seq, input).await?;
    Ok(Done::shown(&written.view))
}

async fn put_state(context: &CallContext, mut arguments: Arguments) -> Result<Done, Problem> {
    let (call, _) = arguments.call(context)?;
    let session: SessionId = arguments.id("session_id")?;
    let Some(Value::String(key)) = arguments.members.remove("key") else {
        return Err(Problem::invalid("`key` is the name of a value"));
    };
    let Some(value) = arguments.members.remove("value") else {
        return Err(Problem::invalid("`value` is missing"));
    };
    let mut patch = json!({"set": {key.as_str(): value}});
    if let Some(version) = arguments.members.remove("if_version") {
        patch["if_versions"] = json!({key.as_str(): version});
    }
    arguments.rest::<NoMembers>()?;
    let input = parsed(&patch)?;
    let written = api::state::patch(context.engine(), &call, session, input).await?;
    Ok(Done::shown(&written.view))
}

fn shown<T: Serialize>(view: &T) -> Value {
    serde_json::to_value(view).unwrap_or_default()
}

/// Refuses members that no code has taken.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoMembers {}

/// The arguments of a call. What a tool takes itself is removed; the rest is the input of the use case.
struct Arguments {
    tool: String,
    members: Map<String, Value>,
}

impl Arguments {
    /// The call behind the use case, and its idempotency key as the caller wrote it.
    fn call(&mut self, context: &CallContext) -> Result<(Call, Option<String>), Problem> {
        let key = match self.members.remove("idempotency_key") {
            None | Some(Value::Null) => None,
            Some(Value::String(key)) if is_key(&key) => Some(key),
            Some(_) => {
                let detail = "`idempotency_key` is 1 to 255 visible ASCII characters";
                return Err(Problem::invalid(detail));
            }
        };
        let body = serde_json::to_vec(&self.members).unwrap_or_default();
        let caller = context.caller.clone();
        let covered = [b"MCP".as_slice(), self.tool.as_bytes(), &body];
        let kept = key
            .as_deref()
            .map(|key| IdempotencyKey::new(&caller.tenant, caller.principal, key, &covered));
        let call = Call {
            caller,
            key: kept,
            if_revision: None,
        };
        Ok((call, key))
    }

    /// An id. One that names nothing gets the same answer as an unknown one.
    fn id<T: FromStr>(&mut self, name: &str) -> Result<T, Problem> {
        match self.members.remove(name) {
            Some(Value::String(text)) => text.parse().map_err(|_| Problem::not_found()),
            _ => Err(Problem::invalid(format!("`{name}` is an id"))),
        }
    }

    fn wait(&mut self) -> Result<Duration, Problem> {
        let seconds = match self.members.remove("wait_seconds") {
            None => Some(0),
            Some(value) => value
                .as_u64()
                .filter(|seconds| *seconds <= WAIT_SECONDS_MAX),
        };
        let seconds = seconds.ok_or_else(|| {
            Problem::invalid(format!("`wait_seconds` is 0 to {WAIT_SECONDS_MAX}"))
        })?;
        Ok(Duration::from_secs(seconds))
    }

    fn rest<T: DeserializeOwned>(&mut self) -> Result<T, Problem> {
        parsed(&std::mem::take(&mut self.members).into())
    }
}

fn is_key(key: &str) -> bool {
    (1..=255).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
}

fn parsed<T: DeserializeOwned>(value: &Value) -> Result<T, Problem> {
    // Through text: members that are kept as they are written need their text.
    let text = value.to_string();
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let problem = Problem::new(Code::InvalidBody, format!("`{path}`: {}", error.inner()));
        problem.with("path", path)
    })
}

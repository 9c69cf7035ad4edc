//! Agents that are tools on tool servers, such as the phases of a pipeline: each turn is one call of the tool.
//!
//! The tool gets the text of the message and the address of the conversation as arguments. It reads the conversation
//! as an MCP client of this server, with a token that comes in `_meta` and is recorded nowhere. The call is recorded
//! before it is made, so a turn that was interrupted calls its tool again, or asks about it, by the policy of the tool.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use statehold_core::item::CallOutcome;
use statehold_engine::bodies::Raw;

use super::shared_block;
use crate::chat::RawToolCall;
use crate::llm::{CallChecker, with_files};
use crate::mcp::{McpTool, ToolList, ToolServers};
use crate::message::{AgentMessage, raw};
use crate::model::RequestedCall;
use crate::runner::{AgentRun, CallReport, StepExtras, StepKind, Toolbox};
use crate::spec::{HistoryAccess, McpSpec};
use crate::turn::{Agent, TurnAnswer, TurnError};

/// The step that prepares the call.
const PREPARE_STEP: (StepKind, &str) = (StepKind::Prepare, "the call of the tool");
/// Delay before a server that cannot be reached is asked again. Doubles with each retry.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);

/// An agent that is a tool.
pub(crate) struct McpAgent {
    spec: Arc<McpSpec>,
    servers: Arc<ToolServers>,
}

impl McpAgent {
    pub(crate) fn new(spec: Arc<McpSpec>, servers: Arc<ToolServers>) -> Self {
        Self { spec, servers }
    }

    /// Checks the call against the tool as it is now, or replays the recorded call. With the complete arguments, if
    /// they were made in this run.
    async fn prepare(
        &self,
        run: &mut AgentRun,
        (number, address): (usize, Option<&str>),
        toolbox: &mut Toolbox,
    ) -> Result<(RequestedCall, Option<Vec<Raw>>), TurnError> {
        let mut complete_arguments = None;
        let message = with_files(&run.input);
        let identity = raw(&json!([
            number,
            self.spec.tool_server,
            self.spec.tool,
            &message
        ]));
        let text = if run.next_recorded_kind().is_some() {
            message
        } else {
            let shared = run.state_values(&run.spec.import).await?;
            let block = shared_block(&shared, &message).unwrap_or_default();
            format!("{block}{message}")
        };
        let (engine, agent) = (run.engine.clone(), run.spec.name.clone());
        let retries = run.spec.retries;
        let work = async {
            let listing = self.reach(toolbox, retries).await?;
            let mut tools = listing.tools.iter();
            let tool = tools.find(|tool| tool.original == self.spec.tool);
            let tool = tool.ok_or_else(|| self.no_such_tool())?;
            let call = RawToolCall {
                id: format!("call_{number}"),
                name: tool.name.clone(),
                arguments: Value::from(self.arguments(tool, &text, address)).to_string(),
            };
            let checker = CallChecker {
                engine: &engine,
                agent: &agent,
                tools: &listing.tools,
                refused: &BTreeSet::new(),
            };
            let (requested, arguments) = checker.check_all(vec![call]);
            let requested = requested.into_iter().next();
            let requested = requested.ok_or_else(super::not_prepared)?;
            if let Some(error) = requested.error {
                let message = format!(
                    "{error}. See `input_argument`, `history_argument` and `arguments` of the agent"
                );
                return Err(TurnError::failed("agent_error", message));
            }
            complete_arguments = Some(arguments);
            let extras = StepExtras {
                is_deferred: true,
                ..StepExtras::default()
            };
            Ok((requested, extras))
        };
        let requested = run.step(PREPARE_STEP, identity.get().as_bytes(), work);
        let requested: RequestedCall = requested.await?;
        Ok((requested, complete_arguments))
    }

    /// Lists the tools of the server. Nothing is called yet, so a server that cannot be reached is asked again.
    async fn reach(&self, toolbox: &mut Toolbox, retries: u32) -> Result<Arc<ToolList>, TurnError> {
        let mut delay = FIRST_RETRY_DELAY;
        for left in (0..=retries).rev() {
            let listing = toolbox.refresh_tools().await;
            let Some(error) = listing.missing.get(&self.spec.tool_server) else {
                return Ok(listing);
            };
            if left == 0 {
                return Err(TurnError::failed(error.code(), error.to_string()));
            }
            tokio::time::sleep(delay).await;
            delay = delay.saturating_mul(2);
        }
        Err(self.no_such_tool())
    }

    /// The arguments of the call: those of the declaration and, if the schema of the tool names them, the message and
    /// the address of the conversation.
    fn arguments(&self, tool: &McpTool, text: &str, address: Option<&str>) -> Map<String, Value> {
        let named = tool.input_schema.get("properties");
        let is_named = |name: &str| named.is_some_and(|named| named.get(name).is_some());
        let mut arguments = self.spec.arguments.clone();
        let input = (self.spec.input_argument.as_str(), Some(text));
        let history = (self.spec.history_argument.as_str(), address);
        for (name, value) in [input, history] {
            if let Some(value) = value.filter(|_| is_named(name)) {
                arguments.insert(name.to_owned(), Value::from(value));
            }
        }
        arguments
    }

    /// The address of the conversation for this turn.
    fn address(&self, run: &AgentRun) -> Option<String> {
        let mut query = Vec::new();
        match self.spec.history {
            HistoryAccess::Pinned => query.push(format!("rev={}", run.started_by)),
            HistoryAccess::Live => {}
            HistoryAccess::Inline | HistoryAccess::None => return None,
        }
        run.conversation_reader()?;
        query.extend(run.request.parent.map(|turn| format!("turn={turn}")));
        let session = run.request.ids.session;
        let mark = if query.is_empty() { "" } else { "?" };
        let query = query.join("&");
        Some(format!("conversation://{session}/history{mark}{query}"))
    }

    fn no_such_tool(&self) -> TurnError {
        let McpSpec {
            tool, tool_server, ..
        } = &*self.spec;
        let message = format!(
            "the tool server {tool_server} has no tool `{tool}`; check `tool` of the agent, or the server"
        );
        TurnError::failed("tool_unknown", message)
    }
}

#[async_trait]
impl Agent for McpAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        let address = self.address(run);
        let servers = (Arc::clone(&self.servers), self.spec.tool_server.clone());
        let conversation = (self.spec.history, address.clone());
        let mut toolbox = Toolbox::of_agent(servers, conversation);
        for number in 1.. {
            let place = (number, address.as_deref());
            let prepared = self.prepare(run, place, &mut toolbox).await?;
            let (requested, complete_arguments) = prepared;
            let is_replayed = run.has_recorded_result();
            let calls = [&requested];
            let reports = run.call_tools(&calls, complete_arguments, &mut toolbox);
            let report = reports.await?.into_iter().next();
            let report = report.ok_or_else(super::not_prepared)?;
            // The turn was asked again because the tool had reported an error: it is called again.
            if report.is_error && is_replayed && run.is_continued {
                continue;
            }
            return Ok(TurnAnswer::plain(answer_of(report)?));
        }
        Err(super::not_prepared())
    }
}

/// The answer in the result of the tool.
fn answer_of(report: CallReport) -> Result<AgentMessage, TurnError> {
    match report.outcome {
        None => return Err(TurnError::failed("arguments_lost", report.text)),
        Some(CallOutcome::Refused) => {
            return Err(TurnError::failed("agent_refused", report.text));
        }
        Some(CallOutcome::Ran | CallOutcome::Answered) => {}
    }
    let text = &report.text[report.note_bytes..];
    if report.is_error {
        let text = text.strip_prefix("Error: ").unwrap_or(text);
        return Err(TurnError::failed("agent_error", text));
    }
    // A link is a file of the answer, and not a text.
    let is_link = |line: &&str| {
        let part: Option<Value> = serde_json::from_str(line).ok();
        part.is_some_and(|part| part["type"] == "resource_link")
    };
    let lines = text.lines();
    let text = if report.links.is_empty() {
        text.to_owned()
    } else {
        let lines: Vec<&str> = lines.filter(|line| !is_link(line)).collect();
        lines.join("\n")
    };
    let has_nothing = ["", r#"{"result":null}"#].contains(&text.trim());
    let text = match (has_nothing, report.links.is_empty()) {
        (false, _) => text,
        (true, false) => String::new(),
        (true, true) => "The tool returned nothing.".to_owned(),
    };
    Ok(AgentMessage {
        attachments: report.links,
        ..AgentMessage::plain(&text)
    })
}

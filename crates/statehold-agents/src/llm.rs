//! The LLM agent: calls a model, executes the tools it requests, and calls it again with the results
//! until it answers.
//!
//! The system prompt is the first message of every model call and is stored nowhere: no step, item or
//! answer contains it, and the trace has only its digest. State values in it are read before each call.

mod call_check;
mod file_text;
pub(crate) mod model_messages;
mod prompt_echo;
mod prompt_template;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use statehold_core::digest::Digest;
use statehold_core::item::CallOutcome;
use statehold_core::name::Name;
use statehold_engine::bodies::Raw;

use crate::chat::CompletionRequest;
use crate::draft_writer::{DraftWriter, MESSAGE_SEPARATOR};
use crate::gateway::shared_block;
use crate::history::{PastExchanges, left_out_note};
use crate::mcp::{McpTool, ToolError, ToolServers};
use crate::message::{AgentMessage, raw};
use crate::model::{ModelClient, ModelReply, RequestedCall};
use crate::runner::{AgentRun, CallReport, StepExtras, StepKind, Toolbox};
use crate::spec::LlmSpec;
use crate::turn::{Agent, TraceNote, TurnAnswer, TurnError};
pub(crate) use call_check::CallChecker;
pub(crate) use model_messages::with_files;
pub(crate) use prompt_echo::EchoGuard;

use call_check::RefusedCalls;
use model_messages::{MediaBudget, ModelMessages};
use prompt_echo::WITHHELD;
use prompt_template::PromptTemplate;

/// Tool servers that could not be asked for their tools in a turn, with the reasons.
type LeftOutServers = BTreeMap<Name, String>;

/// A model with tools.
pub(crate) struct LlmAgent {
    spec: Arc<LlmSpec>,
    model: ModelClient,
    tools: Arc<ToolServers>,
    prompt: PromptTemplate,
}

impl LlmAgent {
    pub(crate) fn new(spec: Arc<LlmSpec>, model: ModelClient, tools: Arc<ToolServers>) -> Self {
        let prompt = PromptTemplate::new(&spec.prompt);
        Self {
            spec,
            model,
            tools,
            prompt,
        }
    }

    /// Calls the model, or replays the recorded reply. Returns the complete arguments of its tool calls
    /// too, if the model replied in this run.
    async fn call_model(
        &self,
        run: &mut AgentRun,
        conversation: &ModelMessages,
        toolbox: &mut Toolbox,
        refused: &RefusedCalls,
        (draft, left_out): (&mut DraftWriter, &mut LeftOutServers),
    ) -> Result<(ModelReply, Option<Vec<Raw>>), TurnError> {
        let (engine, agent) = (run.engine.clone(), run.spec.name.clone());
        let mut complete_arguments = None;
        let prompt = if run.next_recorded_kind().is_none() {
            Some(self.system_message(run).await?)
        } else {
            None
        };
        draft.begin_message();
        let work = async {
            let listing = toolbox.refresh_tools().await;
            let tools = &listing.tools;
            for (server, error) in &listing.missing {
                if tools.is_empty() {
                    return Err(tools_unavailable(error));
                }
                left_out.insert(server.clone(), error.to_string());
            }
            let mut messages = Vec::with_capacity(conversation.messages().len() + 1);
            messages.extend(prompt);
            messages.extend_from_slice(conversation.messages());
            let request = CompletionRequest {
                messages,
                extra: offered_tools(tools),
                stream: true,
                ..CompletionRequest::default()
            };
            let (reply, usage) = self
                .model
                .send(request, &mut |piece| draft.write(piece))
                .await?;
            let mut text = reply.content;
            if let Some(refusal) = reply.refusal.filter(|_| text.is_empty()) {
                draft.write(&refusal);
                text = refusal;
            }
            let withheld = draft.has_echo();
            if withheld {
                WITHHELD.clone_into(&mut text);
            }
            let checker = CallChecker {
                engine: &engine,
                agent: &agent,
                tools,
                refused,
            };
            let (tool_calls, arguments) = checker.check_all(reply.tool_calls);
            complete_arguments = Some(arguments);
            let model_reply = ModelReply {
                text,
                withheld,
                tool_calls,
                finish_reason: reply.finish_reason,
                tokens: usage.tokens,
            };
            let extras = StepExtras {
                usage: usage.to_json(self.model.name()),
                is_deferred: true,
                ..StepExtras::default()
            };
            Ok((model_reply, extras))
        };
        let step = (StepKind::Model, "the reply of the model");
        let model_reply: ModelReply = Box::pin(run.step(step, conversation.bytes(), work)).await?;
        if complete_arguments.is_none() && !model_reply.withheld {
            draft.write(&model_reply.text);
        }
        Ok((model_reply, complete_arguments))
    }

    /// The system message, first in every call, with the state values of now.
    async fn system_message(&self, run: &AgentRun) -> Result<Raw, TurnError> {
        let values = run.state_values(&self.prompt.keys()).await?;
        let prompt = self.prompt.render(&values)?;
        Ok(raw(&json!({"role": "system", "content": prompt})))
    }

    /// The guard of a turn against answers that repeat the prompt, with the state values of now.
    async fn echo_guard(&self, run: &AgentRun) -> Result<Option<EchoGuard>, TurnError> {
        let Some(words) = self.spec.prompt_echo_words else {
            return Ok(None);
        };
        let values = run.state_values(&self.prompt.keys()).await?;
        let prompt = self.prompt.render(&values)?;
        Ok(Some(EchoGuard::new(&prompt, words)))
    }

    /// Checks the budgets of the turn before a model call.
    fn require_budget(&self, agent: &Name, calls: u32, tokens: u64) -> Result<(), TurnError> {
        if calls >= self.spec.steps_max {
            let message = format!(
                "this turn has made its {calls} model calls without coming to an answer; raise `steps_max` \
                 of the agent `{agent}`, or ask for less at once"
            );
            return Err(TurnError::failed("budget_exhausted", message));
        }
        match self.spec.tokens_max {
            Some(most) if tokens >= most => {
                let message = format!(
                    "this turn has taken {tokens} tokens without coming to an answer, and may take {most}; \
                     raise `tokens_max` of the agent `{agent}`, or ask for less at once"
                );
                Err(TurnError::failed("budget_exhausted", message))
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Agent for LlmAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        let mut conversation = ModelMessages::default();
        let past = PastExchanges::read(&run.request).await?;
        let is_cut = past.is_cut;
        let shared = run.state_values(&run.spec.import).await?;
        let before = shared_block(&shared, &with_files(&run.input));
        // The files of the new message come before those of earlier ones.
        let mut media = MediaBudget::of_model(&self.model.input);
        let mut input = ModelMessages::default();
        input.push_input(&run.input, before.as_deref(), &mut media);
        let left_out = if past.exchanges.is_empty() {
            // A caller's history counts only if the agent knows nothing here.
            conversation.push_caller_history(run.input.data.as_ref(), &mut media)
        } else {
            conversation.push_past(&past, &mut media)
        };
        drop(past);
        conversation.append(input);
        let agent = run.spec.name.clone();
        let servers = (Arc::clone(&self.tools), self.spec.tool_servers.clone());
        let mut toolbox = Toolbox::new(servers, self.spec.state.clone());
        let mut draft = DraftWriter::of(run).guarded_by(self.echo_guard(run).await?);
        let mut withheld = false;
        let mut refused = RefusedCalls::new();
        let mut servers_left_out = LeftOutServers::new();
        let (mut calls, mut tokens) = (0, 0_u64);
        let mut texts: Vec<String> = Vec::new();
        loop {
            self.require_budget(&agent, calls, tokens)?;
            let called = self.call_model(
                run,
                &conversation,
                &mut toolbox,
                &refused,
                (&mut draft, &mut servers_left_out),
            );
            let (model_reply, complete_arguments) = Box::pin(called).await?;
            calls += 1;
            tokens = tokens.saturating_add(model_reply.tokens);
            withheld |= model_reply.withheld;
            if !model_reply.text.is_empty() {
                texts.push(model_reply.text.clone());
            }
            if model_reply.tool_calls.is_empty() {
                if withheld {
                    texts = vec![WITHHELD.to_owned()];
                } else {
                    draft.finish();
                }
                let mut answer = TurnAnswer::plain(join_texts(&texts, &model_reply)?);
                if let Some(words) = self.spec.prompt_echo_words.filter(|_| withheld) {
                    let note = TraceNote::new("prompt_echo", &json!({"words": words}));
                    answer.notes.push(note);
                }
                let digest = Digest::sha256(self.spec.prompt.as_bytes());
                let prompt = TraceNote::new("prompt", &json!({"digest": digest}));
                answer.notes.push(prompt);
                if !servers_left_out.is_empty() {
                    let note = TraceNote::new("tools_left_out", &servers_left_out);
                    answer.notes.push(note);
                }
                answer.notes.extend(left_out_note(left_out, is_cut));
                return Ok(answer);
            }
            let accepted = || {
                model_reply
                    .tool_calls
                    .iter()
                    .filter(|requested| requested.error.is_none())
            };
            let requested_calls: Vec<&RequestedCall> = accepted().collect();
            let reports = if requested_calls.is_empty() {
                Vec::new()
            } else {
                run.call_tools(&requested_calls, complete_arguments, &mut toolbox)
                    .await?
            };
            for (requested, report) in requested_calls.iter().zip(&reports) {
                if report.outcome == Some(CallOutcome::Refused) && !requested.hidden {
                    let (server, tool) = (requested.server.clone(), requested.original.clone());
                    refused.insert((server, tool, requested.arguments.clone()));
                }
            }
            conversation.push_reply(&model_reply, &result_texts(&model_reply, &reports));
            let media = reports.iter().flat_map(|report| &report.media);
            conversation.push_media(media.filter(|media| self.model.input.contains(&media.kind)));
        }
    }
}

/// Result texts in the order of the tool calls. None for a call that was rejected.
fn result_texts<'a>(model_reply: &ModelReply, reports: &'a [CallReport]) -> Vec<Option<&'a str>> {
    let mut reports = reports.iter();
    let placed = model_reply
        .tool_calls
        .iter()
        .map(|requested| match &requested.error {
            Some(_) => None,
            None => reports.next().map(|report| report.text.as_str()),
        });
    placed.collect()
}

/// Joins all texts of the turn into the answer.
fn join_texts(texts: &[String], last: &ModelReply) -> Result<AgentMessage, TurnError> {
    if texts.is_empty() {
        let why = last.finish_reason.as_deref().unwrap_or("no reason");
        let message = format!(
            "the model ended without any text (finish reason `{why}`); ask again, or in other words"
        );
        return Err(TurnError::failed("agent_malformed", message));
    }
    Ok(AgentMessage::plain(&texts.join(MESSAGE_SEPARATOR)))
}

/// The `tools` member of a model request.
fn offered_tools(tools: &[McpTool]) -> Map<String, Value> {
    let mut extra = Map::new();
    if tools.is_empty() {
        return extra;
    }
    let tools = tools.iter().map(|tool| {
        let mut function = Map::new();
        function.insert("name".to_owned(), json!(tool.name));
        if let Some(description) = &tool.description {
            function.insert("description".to_owned(), json!(description));
        }
        function.insert("parameters".to_owned(), (*tool.input_schema).clone());
        json!({"type": "function", "function": function})
    });
    extra.insert("tools".to_owned(), tools.collect());
    extra
}

fn tools_unavailable(error: &ToolError) -> TurnError {
    let message = format!("{error}; the agent cannot work without its tools, so try again later");
    TurnError::failed(error.code(), message)
}

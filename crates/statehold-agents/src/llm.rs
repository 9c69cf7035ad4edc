//! The agent that is a model with tools: it is asked, the tools it wants are called, and it is asked
//! again with what came of them, until it answers.
//!
//! The prompt is the first message of every call and stands nowhere else: it is in no step, no item and
//! no answer, only its digest is in the trace.

mod judge;
pub(crate) mod talk;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use statehold_core::digest::Digest;
use statehold_core::item::CallOutcome;
use statehold_core::name::Name;
use statehold_engine::kept::Raw;

use crate::gateway::shared_block;
use crate::history::left_out_note;
use crate::mcp::{Tool, ToolError, ToolServers};
use crate::model::{Model, Question, Said, Wish};
use crate::runner::{Beside, Run, StepDone, StepKind, Told, Toolbox};
use crate::spec::LlmSpec;
use crate::turn::{Agent, Answer, TurnError};
use crate::voice::{BREAK, Voice};
use crate::words::{Words, raw};
use judge::{Judge, Refused};
use talk::{Talk, with_files};

/// A model with tools.
pub(crate) struct Llm {
    spec: Arc<LlmSpec>,
    model: Model,
    tools: Arc<ToolServers>,
    /// The first message of every call.
    prompt: Raw,
}

/// What a model said, and the whole arguments of the calls it wants, if it said so just now.
struct Heard {
    said: Said,
    whole: Option<Vec<Raw>>,
}

impl Llm {
    pub(crate) fn new(spec: Arc<LlmSpec>, model: Model, tools: Arc<ToolServers>) -> Self {
        let prompt = raw(&json!({"role": "system", "content": spec.prompt}));
        Self {
            spec,
            model,
            tools,
            prompt,
        }
    }

    /// One model call, or what is recorded of it.
    async fn ask(
        &self,
        run: &mut Run,
        talk: &Talk,
        toolbox: &mut Toolbox,
        refused: &Refused,
        voice: &mut Voice,
    ) -> Result<Heard, TurnError> {
        let (engine, agent) = (run.engine.clone(), run.spec.name.clone());
        let mut whole = None;
        voice.begin();
        let work = async {
            let tools = toolbox.tools_now().await;
            let tools = tools.map_err(|error| no_tools(&error))?;
            let mut messages = Vec::with_capacity(talk.messages().len() + 1);
            messages.push(self.prompt.clone());
            messages.extend_from_slice(talk.messages());
            let question = Question {
                messages,
                extra: offered(&tools),
                stream: true,
            };
            let (reply, took) = self
                .model
                .ask(question, &mut |piece| voice.say(piece))
                .await?;
            let mut text = reply.content;
            if let Some(refusal) = reply.refusal.filter(|_| text.is_empty()) {
                voice.say(&refusal);
                text = refusal;
            }
            let judge = Judge {
                engine: &engine,
                agent: &agent,
                tools: &tools,
                refused,
            };
            let judged = judge.all(reply.tool_calls);
            let (wishes, arguments): (Vec<Wish>, Vec<Option<Raw>>) = judged
                .into_iter()
                .map(|judged| (judged.wish, judged.arguments))
                .unzip();
            whole = Some(arguments.into_iter().flatten().collect());
            let said = Said {
                text,
                tool_calls: wishes,
                finish_reason: reply.finish_reason,
                tokens: took.tokens,
            };
            let beside = Beside {
                waits: said.tool_calls.is_empty(),
                ..Beside::default()
            };
            let done = StepDone {
                result: raw(&said),
                usage: took.recorded(),
            };
            Ok((done, beside))
        };
        let said = run.step_beside(StepKind::Model, talk.bytes(), work).await?;
        let said: Said = serde_json::from_str(said.get())
            .map_err(|error| TurnError::step_malformed("what the model said", &error))?;
        if whole.is_none() {
            voice.say(&said.text);
        }
        Ok(Heard { said, whole })
    }

    /// Before a model call: whether there is anything left to spend.
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
impl Agent for Llm {
    async fn turn(&self, run: &mut Run) -> Result<Answer, TurnError> {
        let mut talk = Talk::default();
        let past = run.past().await?;
        let is_cut = past.is_cut;
        let left_out = if past.items.is_empty() {
            // Who has a history here cannot bring another along.
            talk.push_brought(run.input.data.as_ref())
        } else {
            talk.push_history(&past.items)
        };
        drop(past);
        let shared = run.shared(&run.spec.import).await?;
        let before = shared_block(&shared, &with_files(&run.input));
        talk.push_input(&run.input, before.as_deref());
        let agent = run.spec.name.clone();
        let mut toolbox = Toolbox::new(Arc::clone(&self.tools), self.spec.tool_servers.clone());
        let mut voice = Voice::of(run);
        let mut refused = Refused::new();
        let (mut calls, mut tokens) = (0, 0_u64);
        let mut texts: Vec<String> = Vec::new();
        loop {
            self.require_budget(&agent, calls, tokens)?;
            let heard = self
                .ask(run, &talk, &mut toolbox, &refused, &mut voice)
                .await?;
            let Heard { said, whole } = heard;
            calls += 1;
            tokens = tokens.saturating_add(said.tokens);
            if !said.text.is_empty() {
                texts.push(said.text.clone());
            }
            if said.tool_calls.is_empty() {
                let mut answer = Answer::plain(answer_of(&texts, &said)?);
                let digest = Digest::sha256(self.spec.prompt.as_bytes());
                answer
                    .notes
                    .push(("prompt", raw(&json!({"digest": digest}))));
                answer.notes.extend(left_out_note(left_out, is_cut));
                return Ok(answer);
            }
            let tried = || said.tool_calls.iter().filter(|wish| wish.error.is_none());
            let wishes: Vec<&Wish> = tried().collect();
            let came = if wishes.is_empty() {
                Vec::new()
            } else {
                run.call_tools(&wishes, whole, &mut toolbox).await?
            };
            for (wish, told) in wishes.iter().zip(&came) {
                if told.outcome == Some(CallOutcome::Refused) && !wish.hidden {
                    let (server, tool) = (wish.server.clone(), wish.original.clone());
                    refused.insert((server, tool, wish.arguments.clone()));
                }
            }
            talk.push_said(&said, &in_place(&said, &came));
        }
    }
}

/// What came of the calls that were tried, each in the place of its call.
fn in_place<'a>(said: &Said, came: &'a [Told]) -> Vec<Option<&'a str>> {
    let mut came = came.iter();
    let placed = said.tool_calls.iter().map(|wish| match &wish.error {
        Some(_) => None,
        None => came.next().map(|told| told.text.as_str()),
    });
    placed.collect()
}

/// The answer: everything that was said.
fn answer_of(texts: &[String], last: &Said) -> Result<Words, TurnError> {
    if texts.is_empty() {
        let why = last.finish_reason.as_deref().unwrap_or("no reason");
        let message = format!(
            "the model ended without a word (it gives `{why}`); ask again, or in other words"
        );
        return Err(TurnError::failed("agent_malformed", message));
    }
    Ok(Words::plain(&texts.join(BREAK)))
}

/// The tools as a model is offered them.
fn offered(tools: &[Tool]) -> Map<String, Value> {
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

fn no_tools(error: &ToolError) -> TurnError {
    let message = format!("{error}; the agent cannot work without its tools, so try again later");
    TurnError::failed(error.code(), message)
}

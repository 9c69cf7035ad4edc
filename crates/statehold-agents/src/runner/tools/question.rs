//! Questions of a tool, as holds of the request that calls it.
//!
//! A hold has the id of its call as its group. A call that is made again, after a restart or because it ended when it
//! asked, finds the holds that it opened before: the same question is put to people once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};
use statehold_core::hold::{HoldKind, HoldStatus};
use statehold_core::ids::ItemId;
use statehold_engine::bodies::{DecisionBody, HoldBody, parse};
use statehold_engine::{EngineError, HoldDetail, HoldSpec};

use super::PendingCall;
use crate::display_text::clean_text;
use crate::mcp::{AsksPeople, QuestionForm, ToolAnswer, ToolQuestion};
use crate::message::raw;
use crate::runner::journal::StepKind;
use crate::runner::run::{AgentRun, CommitPhase};
use crate::turn::{TraceNote, TurnError};

/// Most questions of one call.
const QUESTIONS_MAX: usize = 32;
const TITLE_BYTES_MAX: usize = 200;
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// Puts the questions of one call to people.
pub(super) struct CallQuestions<'a> {
    run: &'a AgentRun,
    call: ItemId,
    tool: &'a str,
    server: &'a str,
    /// Whether the call ends when it asks, and is made again when it is answered. A tool that would do its work twice
    /// waits for the answer.
    ends: bool,
    /// How often each question was asked in this attempt.
    asked: Mutex<BTreeMap<String, usize>>,
    /// Why people could not be asked.
    failure: Mutex<Option<TurnError>>,
}

/// A question as it is stored in a hold.
fn question_key(message: &str, form: &Value) -> String {
    json!([message, form]).to_string()
}

fn key_of(hold: &HoldDetail) -> String {
    let body: HoldBody = parse(hold.body.as_deref());
    let schema = body.response_schema.as_ref();
    let schema = schema.and_then(|schema| serde_json::from_str(schema.get()).ok());
    let form = match body.url {
        Some(url) => json!(url),
        None => schema.unwrap_or_default(),
    };
    question_key(&body.message.unwrap_or_default(), &form)
}

/// Whether a hold is a question of this call.
pub(super) fn is_of(hold: &HoldDetail, call: ItemId) -> bool {
    let body: HoldBody = parse(hold.body.as_deref());
    // Approvals of calls that were made together are a group, too.
    matches!(hold.hold.kind, HoldKind::Form | HoldKind::Link)
        && body.group_id == Some(call.to_string())
}

impl<'a> CallQuestions<'a> {
    pub(super) fn new(run: &'a AgentRun, one: &'a PendingCall<'_>) -> Self {
        Self {
            run,
            call: one.call.id,
            tool: &one.call.tool,
            server: &one.requested.server,
            ends: one.call.idempotent,
            asked: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// The error that ended the call, if people could not be asked.
    pub(super) fn take_failure(&self) -> Option<TurnError> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn spec(&self, question: &ToolQuestion) -> HoldSpec {
        let message = format!(
            "The tool `{}` of the server `{}` asks:\n\n{}",
            self.tool, self.server, question.message
        );
        let (kind, schema, url) = match &question.form {
            QuestionForm::Fields(schema) => (HoldKind::Form, Some(raw(schema)), None),
            QuestionForm::Link(url) => (HoldKind::Link, None, Some(url.clone())),
        };
        let title = format!("{} asks for an answer", self.tool);
        HoldSpec {
            kind,
            title: clean_text(&title.replace('\n', " "), TITLE_BYTES_MAX),
            message: Some(clean_text(&message, MESSAGE_BYTES_MAX)),
            action: None,
            response_schema: schema,
            url,
            reasons: None,
            group_id: Some(self.call.to_string()),
            allowed: BTreeSet::new(),
            quorum: None,
            expires_in_seconds: None,
            on_expiry: None,
            decide_by: None,
        }
    }

    /// How often this question was asked before, in this attempt. None if the tool asks too often.
    fn count(&self, key: &str) -> Option<usize> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.values().sum::<usize>() >= QUESTIONS_MAX {
            return None;
        }
        let count = asked.entry(key.to_owned()).or_default();
        *count += 1;
        Some(*count - 1)
    }

    async fn answer(&self, question: &ToolQuestion) -> Result<Option<ToolAnswer>, TurnError> {
        let spec = self.spec(question);
        let form = match &question.form {
            QuestionForm::Fields(schema) => schema.clone(),
            QuestionForm::Link(url) => json!(url),
        };
        let key = question_key(spec.message.as_deref().unwrap_or_default(), &form);
        let Some(nth) = self.count(&key).filter(|_| self.run.generation.asks_people) else {
            return Ok(Some(ToolAnswer::Cancel));
        };
        let mut spec = Some(spec);
        loop {
            let detail = self.run.request.read().await?;
            if detail.request.live().is_none() {
                return Err(TurnError::Gone);
            }
            let mut holds: Vec<&HoldDetail> = detail.holds.iter().collect();
            holds.retain(|hold| is_of(hold, self.call) && key_of(hold) == key);
            holds.sort_by_key(|hold| hold.hold.number);
            match (holds.get(nth), spec.take()) {
                (Some(hold), _) => {
                    if let Some(answer) = answer_in(hold) {
                        return Ok(Some(answer));
                    }
                    if self.ends {
                        return Ok(None);
                    }
                }
                (None, Some(spec)) => {
                    if let Some(refused) = self.open(spec).await? {
                        let note = json!({"call": self.call, "reason": refused});
                        let note = TraceNote::new("tool_question_refused", &note);
                        self.run.append_note(&note).await?;
                        return Ok(Some(ToolAnswer::Cancel));
                    }
                    continue;
                }
                (None, None) => {}
            }
            let (engine, session) = (&self.run.engine, detail.session.id);
            engine.changed_after(session, detail.revision).await?;
        }
    }

    /// Opens a hold. Returns the reason if the engine refuses it.
    async fn open(&self, spec: HoldSpec) -> Result<Option<String>, TurnError> {
        self.run.notify_hook(StepKind::Hold, CommitPhase::Before);
        let opened = self.run.request.open_hold(spec).await;
        match opened {
            Ok(()) => {
                self.run.notify_hook(StepKind::Hold, CommitPhase::After);
                Ok(None)
            }
            Err(
                error @ (EngineError::HoldMalformed { .. }
                | EngineError::InvalidField { .. }
                | EngineError::PolicyStricter { .. }),
            ) => Ok(Some(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }
}

#[async_trait]
impl AsksPeople for CallQuestions<'_> {
    async fn ask(&self, question: ToolQuestion) -> Option<ToolAnswer> {
        match self.answer(&question).await {
            Ok(answer) => answer,
            Err(error) => {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                *failure = Some(error);
                None
            }
        }
    }
}

/// The answer of a decided hold. None while it is open.
fn answer_in(hold: &HoldDetail) -> Option<ToolAnswer> {
    let closed = hold.closed.as_ref()?;
    let body: DecisionBody = parse(hold.decision_body.as_deref());
    let content = body.content.as_ref();
    let content = content.and_then(|content| serde_json::from_str(content.get()).ok());
    Some(match closed.decision.status {
        HoldStatus::Answered | HoldStatus::Approved | HoldStatus::Edited => {
            // Of a link, the consent counts: what was entered there is not for the tool to get this way.
            let is_form = hold.hold.kind == HoldKind::Form;
            ToolAnswer::Accept(content.filter(|_| is_form))
        }
        HoldStatus::Rejected => ToolAnswer::Decline,
        HoldStatus::Open | HoldStatus::Expired | HoldStatus::Cancelled => ToolAnswer::Cancel,
    })
}

//! Questions of a tool, as holds of the request that calls it.
//!
//! A hold has the id of its call as its group. A call that is made again, after a restart or because it ended when it
//! asked, finds the holds that it opened before: the same question is put to people once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};
use statehold_core::hold::{HoldKind, HoldStatus};
use statehold_core::ids::ItemId;
use statehold_engine::bodies::{DecisionBody, HoldBody, parse};
use statehold_engine::{EngineError, HoldDetail, HoldSpec};

use super::PendingCall;
use crate::display_text::clean_text;
use crate::mcp::{QuestionForm, QuestionSink, ToolAnswer, ToolQuestion};
use crate::message::raw;
use crate::runner::journal::StepKind;
use crate::runner::run::{AgentRun, CommitPhase};
use crate::tool_policy::ToolRules;
use crate::turn::{TraceNote, TurnError};

/// How long people have to answer: a tool may wait with its call open.
const EXPIRES_SECONDS: u64 = 24 * 60 * 60;
/// Most questions of one call, however often it is made again.
const QUESTIONS_MAX: usize = 32;
const TITLE_BYTES_MAX: usize = 200;
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// Puts the questions of one call to people.
pub(super) struct CallQuestions<'a> {
    run: &'a AgentRun,
    call: ItemId,
    tool: &'a str,
    server: &'a str,
    /// The name of the tool on its server.
    original: &'a str,
    /// Whether the call ends when it asks, and is made again when it is answered. A tool that would do its work twice
    /// waits for the answer.
    ends: bool,
    /// How often each question was asked in this attempt.
    asked: Mutex<BTreeMap<String, usize>>,
    /// Whether the call has asked, in this attempt or an earlier one.
    may_have_asked: AtomicBool,
    /// Why people could not be asked.
    failure: Mutex<Option<TurnError>>,
}

/// A question as it is stored in a hold.
fn question_key(title: &str, message: &str, form: &Value) -> String {
    json!([title, message, form]).to_string()
}

fn key_of(hold: &HoldDetail) -> String {
    let body: HoldBody = parse(hold.body.as_deref());
    let schema = body.response_schema.as_ref();
    let schema = schema.and_then(|schema| serde_json::from_str(schema.get()).ok());
    let form = match body.url {
        Some(url) => json!(url),
        None => schema.unwrap_or_default(),
    };
    question_key(&body.title, &body.message.unwrap_or_default(), &form)
}

/// Whether a hold is a question of this call.
pub(super) fn is_of(hold: &HoldDetail, call: ItemId) -> bool {
    let body: HoldBody = parse(hold.body.as_deref());
    // Approvals of calls that were made together are a group, too.
    hold.hold.kind != HoldKind::Approval && body.group_id == Some(call.to_string())
}

impl<'a> CallQuestions<'a> {
    pub(super) fn new(run: &'a AgentRun, one: &'a PendingCall<'_>) -> Self {
        Self {
            run,
            call: one.call.id,
            tool: &one.call.tool,
            server: &one.requested.server,
            original: &one.requested.original,
            ends: one.call.idempotent,
            asked: Mutex::default(),
            may_have_asked: AtomicBool::new(!one.is_new),
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
        // The words of the tool come first, and who says them after that.
        let words = clean_text(question.message.trim(), MESSAGE_BYTES_MAX);
        let by = format!(
            "The tool `{}` of the server `{}` asks.",
            self.tool, self.server
        );
        let title = match words.lines().next() {
            None => format!("{} asks for an answer", self.tool),
            Some(first) => clean_text(first, TITLE_BYTES_MAX),
        };
        let message = if words.is_empty() || words == title {
            by
        } else {
            format!("{words}\n\n{by}")
        };
        let (kind, schema, url) = match &question.form {
            // One field is a question: a plain chat message may answer it.
            QuestionForm::Fields(schema) => match only_field(schema) {
                Some((_, field)) => (HoldKind::Question, Some(raw(field)), None),
                None => (HoldKind::Form, Some(raw(schema)), None),
            },
            QuestionForm::Link(url) => (HoldKind::Link, None, Some(url.clone())),
        };
        let (policies, agent) = (self.run.engine.policies(), &self.run.spec.name);
        let policy = ToolRules::of(&policies, agent, self.server, self.original)
            .effective
            .policy;
        HoldSpec {
            kind,
            title,
            message: Some(message),
            action: None,
            response_schema: schema,
            url,
            reasons: None,
            group_id: Some(self.call.to_string()),
            allowed: BTreeSet::new(),
            quorum: None,
            expires_in_seconds: policy.expires_in_seconds.or(Some(EXPIRES_SECONDS)),
            on_expiry: policy.on_expiry,
            decide_by: policy.decide_by,
        }
    }

    /// How often this question was asked before, in this attempt.
    fn count(&self, key: &str) -> usize {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let count = asked.entry(key.to_owned()).or_default();
        *count += 1;
        *count - 1
    }

    /// Waits until people have decided all questions of the call: a tool may have its result before they do.
    pub(super) async fn settled(&self) -> Result<(), TurnError> {
        if !self.may_have_asked.load(Ordering::Relaxed) {
            return Ok(());
        }
        loop {
            let detail = self.run.request.read().await?;
            let mut open = detail.holds.iter().filter(|hold| hold.closed.is_none());
            if !open.any(|hold| is_of(hold, self.call)) {
                return Ok(());
            }
            let (engine, session) = (&self.run.engine, detail.session.id);
            engine.changed_after(session, detail.revision).await?;
        }
    }

    async fn answer(&self, question: &ToolQuestion) -> Result<Option<ToolAnswer>, TurnError> {
        let spec = self.spec(question);
        let (form, field) = match &question.form {
            QuestionForm::Fields(schema) => match only_field(schema) {
                Some((name, field)) => (field.clone(), Some(name)),
                None => (schema.clone(), None),
            },
            QuestionForm::Link(url) => (json!(url), None),
        };
        let message = spec.message.as_deref().unwrap_or_default();
        let key = question_key(&spec.title, message, &form);
        if !self.run.generation.asks_people {
            return Ok(Some(ToolAnswer::Cancel));
        }
        self.may_have_asked.store(true, Ordering::Relaxed);
        let nth = self.count(&key);
        // A link may differ each time, so a call that is made again would ask again: it waits.
        let ends = self.ends && matches!(question.form, QuestionForm::Fields(_));
        let mut spec = Some(spec);
        loop {
            let detail = self.run.request.read().await?;
            if detail.request.live().is_none() {
                return Err(TurnError::Gone);
            }
            let mut holds: Vec<&HoldDetail> = detail.holds.iter().collect();
            holds.retain(|hold| is_of(hold, self.call));
            let is_full = holds.len() >= QUESTIONS_MAX;
            holds.retain(|hold| key_of(hold) == key);
            holds.sort_by_key(|hold| hold.hold.number);
            match (holds.get(nth), spec.take()) {
                (Some(hold), _) => {
                    if let Some(answer) = answer_in(hold, field) {
                        return Ok(Some(answer));
                    }
                    if ends {
                        return Ok(None);
                    }
                }
                (None, Some(_)) if is_full => return Ok(Some(ToolAnswer::Cancel)),
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
impl QuestionSink for CallQuestions<'_> {
    fn begin(&self) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.clear();
    }

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

/// The only field of a form, and its schema.
fn only_field(schema: &Value) -> Option<(&str, &Value)> {
    let mut fields = schema.get("properties")?.as_object()?.iter();
    let (name, field) = fields.next()?;
    fields.next().is_none().then_some((name, field))
}

/// The answer of a decided hold. None while it is open. The answer to a question is the value of its field.
fn answer_in(hold: &HoldDetail, field: Option<&str>) -> Option<ToolAnswer> {
    let closed = hold.closed.as_ref()?;
    let body: DecisionBody = parse(hold.decision_body.as_deref());
    let content = body.content.as_ref();
    let content = content.and_then(|content| serde_json::from_str(content.get()).ok());
    Some(match closed.decision.status {
        HoldStatus::Answered | HoldStatus::Approved | HoldStatus::Edited => {
            // For a link, only the consent is sent: entered data go through the page.
            let content: Option<Value> = content.filter(|_| hold.hold.kind != HoldKind::Link);
            let wrapped = |value: Value| match field {
                Some(field) => json!({ field: value }),
                None => value,
            };
            ToolAnswer::Accept(content.map(wrapped))
        }
        HoldStatus::Rejected => ToolAnswer::Decline,
        HoldStatus::Open | HoldStatus::Expired | HoldStatus::Cancelled => ToolAnswer::Cancel,
    })
}

//! Questions that a tool puts to people while it is called: in its result, with `input_required`, or by a request of an
//! older server. Each is matched to the call that it belongs to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use rmcp::RoleClient;
use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests,
    InputResponses, RequestId, RequestParamsMeta,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::display_text::clean_text;
use crate::secrets::SecretRedactor;

/// Metadata of a question that came on the stream of a call: the id of that call.
const CALL_TAG: &str = "statehold/call";
/// Longest text in a form, in bytes.
const SCHEMA_TEXT_BYTES_MAX: usize = 2_048;
/// How long a question of a call that has ended stays without an answer.
const UNANSWERED_MAX: Duration = Duration::from_hours(1);
/// Most questions of one result.
const QUESTIONS_MAX: usize = 32;

/// A question of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolQuestion {
    pub(crate) message: String,
    pub(crate) form: QuestionForm,
}

/// The form of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum QuestionForm {
    /// Fields, by their JSON Schema.
    Fields(Value),
    /// A page to visit.
    Link(String),
}

/// The answer of a person to a tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ToolAnswer {
    Accept(Option<Value>),
    Decline,
    /// No answer: no person could be asked, or the deadline passed.
    Cancel,
}

impl ToolAnswer {
    fn result(self) -> ElicitResult {
        match self {
            Self::Accept(content) => {
                let mut result = ElicitResult::new(ElicitationAction::Accept);
                result.content = content;
                result
            }
            Self::Decline => ElicitResult::new(ElicitationAction::Decline),
            Self::Cancel => ElicitResult::new(ElicitationAction::Cancel),
        }
    }
}

/// Puts questions of a tool to people, during one call.
#[async_trait]
pub(crate) trait QuestionSink: Send + Sync {
    /// The call is sent from its beginning: a tool may ask again what it has asked before.
    fn begin(&self) {}

    /// Asks, and waits for the answer. None: the call ends here, and is made again when a person has answered.
    async fn ask(&self, question: ToolQuestion) -> Option<ToolAnswer>;
}

impl ToolQuestion {
    fn of(params: &ElicitRequestParams) -> Option<Self> {
        match params {
            ElicitRequestParams::FormElicitationParams {
                message,
                requested_schema,
                ..
            } => Some(Self {
                message: message.clone(),
                form: QuestionForm::Fields(serde_json::to_value(requested_schema).ok()?),
            }),
            ElicitRequestParams::UrlElicitationParams { message, url, .. } => Some(Self {
                message: message.clone(),
                form: QuestionForm::Link(url.clone()),
            }),
            _ => None,
        }
    }
}

/// Why a result with questions has no answers.
pub(super) enum NoAnswers {
    /// The call ends, and is made again when a person has answered.
    Later,
    /// It asks for something that people cannot answer.
    Unsupported(&'static str),
}

/// Takes secrets of the call out of the questions of its tool.
pub(super) struct RedactedQuestions<'a> {
    pub(super) people: &'a dyn QuestionSink,
    pub(super) secrets: &'a SecretRedactor,
}

#[async_trait]
impl QuestionSink for RedactedQuestions<'_> {
    fn begin(&self) {
        self.people.begin();
    }

    async fn ask(&self, question: ToolQuestion) -> Option<ToolAnswer> {
        let mut form = question.form;
        match &mut form {
            QuestionForm::Fields(schema) => {
                self.secrets.redact_value(schema);
                clean_texts(schema);
            }
            QuestionForm::Link(url) => *url = self.secrets.redact(std::mem::take(url)),
        }
        let message = self.secrets.redact(question.message);
        self.people.ask(ToolQuestion { message, form }).await
    }
}

/// Cleans the texts of a schema for people.
fn clean_texts(value: &mut Value) {
    match value {
        Value::String(text) => *text = clean_text(text, SCHEMA_TEXT_BYTES_MAX),
        Value::Array(values) => values.iter_mut().for_each(clean_texts),
        Value::Object(members) => members.values_mut().for_each(clean_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Puts the questions of a result to people, all at once.
pub(super) async fn answer_all(
    requests: Option<InputRequests>,
    people: &dyn QuestionSink,
) -> Result<InputResponses, NoAnswers> {
    let requests = requests.unwrap_or_default();
    if requests.len() > QUESTIONS_MAX {
        let why = "the tool asks more than 32 questions at once";
        return Err(NoAnswers::Unsupported(why));
    }
    let mut questions = Vec::new();
    for (key, request) in requests {
        let InputRequest::Elicitation(request) = request else {
            let why = "the tool asks for sampling or roots, which are not supported";
            return Err(NoAnswers::Unsupported(why));
        };
        let Some(question) = ToolQuestion::of(&request.params) else {
            let why = "the tool asks in a way that is not supported";
            return Err(NoAnswers::Unsupported(why));
        };
        questions.push((key, question));
    }
    let asked = questions
        .into_iter()
        .map(|(key, question)| async move { (key, people.ask(question).await) });
    let mut answers = InputResponses::new();
    for (key, answer) in join_all(asked).await {
        let result = answer.ok_or(NoAnswers::Later)?.result();
        answers.insert(key, serde_json::to_value(result).unwrap_or_default());
    }
    Ok(answers)
}

/// A question of an older server, and where its answer goes.
pub(super) struct PendingQuestion {
    pub(super) question: ToolQuestion,
    pub(super) answer: oneshot::Sender<ToolAnswer>,
}

/// The calls of a connection in flight, by the ids of their requests.
#[derive(Debug, Default)]
pub(super) struct CallsInFlight(Mutex<HashMap<RequestId, mpsc::Sender<PendingQuestion>>>);

impl CallsInFlight {
    /// Receives the questions of a call, until the guard is dropped.
    pub(super) fn enter(
        self: &Arc<Self>,
        call: RequestId,
    ) -> (CallGuard, mpsc::Receiver<PendingQuestion>) {
        let (sender, receiver) = mpsc::channel(1);
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.insert(call.clone(), sender);
        let guard = CallGuard {
            calls: Arc::clone(self),
            call,
        };
        (guard, receiver)
    }

    /// The call that a question belongs to: the one on whose stream it came, or the only one in flight.
    fn find(&self, tag: Option<&Value>) -> Option<mpsc::Sender<PendingQuestion>> {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tagged = tag.and_then(|tag| serde_json::from_value(tag.clone()).ok());
        match (tagged, calls.len()) {
            (Some(call), _) => calls.get(&call).cloned(),
            (None, 1) => calls.values().next().cloned(),
            (None, _) => None,
        }
    }

    /// Puts a question of an older server to people.
    pub(super) async fn ask(
        &self,
        params: &ElicitRequestParams,
        context: &RequestContext<RoleClient>,
    ) -> ElicitResult {
        let own = params.meta().and_then(|meta| meta.get(CALL_TAG));
        let tag = own.or_else(|| context.meta.get(CALL_TAG));
        let (Some(call), Some(question)) = (self.find(tag), ToolQuestion::of(params)) else {
            tracing::info!(
                "a question of a tool belongs to no call that is known; it gets `cancel`"
            );
            return ToolAnswer::Cancel.result();
        };
        let (answer, answered) = oneshot::channel();
        let sent = call.send(PendingQuestion { question, answer }).await;
        if sent.is_ok()
            && let Ok(answer) = answered.await
        {
            return answer.result();
        }
        // The call has ended without an answer. The tool must not take that for the answer of a person.
        drop(tokio::time::timeout(UNANSWERED_MAX, context.ct.cancelled()).await);
        ToolAnswer::Cancel.result()
    }
}

/// A call in flight.
pub(super) struct CallGuard {
    calls: Arc<CallsInFlight>,
    call: RequestId,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.remove(&self.call);
    }
}

/// Tags a question that came on the stream of a request with the id of that request.
pub(super) fn tag_question(message: String, request: &RequestId) -> String {
    if !message.contains("elicitation") {
        return message;
    }
    let Ok(mut tagged) = serde_json::from_str::<Value>(&message) else {
        return message;
    };
    if tagged["method"] != "elicitation/create" || !tagged["params"].is_object() {
        return message;
    }
    let meta = &mut tagged["params"]["_meta"];
    if !meta.is_object() {
        *meta = json!({});
    }
    meta[CALL_TAG] = json!(request);
    tagged.to_string()
}

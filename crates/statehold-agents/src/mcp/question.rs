//! Questions that a tool puts to people while it is called: in its result, with `input_required`, or by a request of an
//! older server. Each is matched to the call that it belongs to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rmcp::RoleClient;
use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests,
    InputResponses, RequestId, RequestParamsMeta,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

/// Metadata of a question that came on the stream of a call: the id of that call.
const CALL_TAG: &str = "statehold/call";
/// Most questions of one result.
const QUESTIONS_MAX: usize = 16;

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
    /// There is no answer: nobody could be asked, or nobody decided in time.
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
pub(crate) trait AsksPeople: Send + Sync {
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

/// Puts the questions of a result to people, in the order of their keys.
pub(super) async fn answer_all(
    requests: Option<InputRequests>,
    asks: &dyn AsksPeople,
) -> Result<InputResponses, NoAnswers> {
    let requests = requests.unwrap_or_default();
    if requests.len() > QUESTIONS_MAX {
        let why = "the tool asks more than 16 questions at once";
        return Err(NoAnswers::Unsupported(why));
    }
    let mut answers = InputResponses::new();
    for (key, request) in requests {
        let InputRequest::Elicitation(request) = request else {
            let why = "the tool asks for sampling or roots, which are not supported";
            return Err(NoAnswers::Unsupported(why));
        };
        let Some(question) = ToolQuestion::of(&request.params) else {
            let why = "the tool asks in a way that is not supported";
            return Err(NoAnswers::Unsupported(why));
        };
        let answer = asks.ask(question).await.ok_or(NoAnswers::Later)?;
        let result = serde_json::to_value(answer.result());
        answers.insert(key, result.unwrap_or_default());
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
        let answer = match (self.find(tag), ToolQuestion::of(params)) {
            (Some(call), Some(question)) => {
                let (answer, answered) = oneshot::channel();
                let pending = PendingQuestion { question, answer };
                match call.send(pending).await {
                    Ok(()) => answered.await.unwrap_or(ToolAnswer::Cancel),
                    Err(_) => ToolAnswer::Cancel,
                }
            }
            _ => ToolAnswer::Cancel,
        };
        answer.result()
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
    if !message.contains("\"elicitation/create\"") {
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

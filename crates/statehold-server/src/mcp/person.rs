//! Asking the person behind a client: a request that waits for a decision which the caller may take asks for it
//! through MCP, and continues with the answer.
//!
//! Clients of the newer era get `input_required` and repeat their call with the answer. Older clients are asked while
//! their call waits. A client that cannot ask gets the request with its holds, and may decide them by other means.

use std::time::Duration;

use rmcp::model::{
    ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
    InputRequest, InputRequests, InputRequiredResult, InputResponses, ProtocolVersion,
};
use rmcp::service::{RequestContext, RoleServer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::{HoldId, RequestId};
use statehold_core::time::Timestamp;
use statehold_engine::api::hold::{DecisionInput, HoldView};
use statehold_engine::{Call, api};

use crate::http::call::CallContext;
use crate::http::problem::{Code, Problem};

/// Purpose of the seal.
const PURPOSE: &str = "mcp request state";
/// How long an answer may take. The hold itself may stay open for longer.
const ANSWER_SECONDS: u64 = 24 * 60 * 60;
/// How long an older client may take to answer. Its call stays open meanwhile.
const LEGACY_WAIT: Duration = Duration::from_mins(10);

/// How a client asks its person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The call is answered with a question, and repeated with the answer.
    Repeat,
    /// The question is sent while the call waits.
    Meanwhile,
    /// The client cannot ask.
    None,
}

/// Outcome of a question.
pub(super) enum Question {
    /// There is none that the caller may answer, or the client cannot ask.
    None,
    /// The person was asked and has not answered. They are not asked again in the same call.
    Unanswered,
    /// The call is answered with it.
    Sent(InputRequiredResult),
    /// The person has answered; the request may continue.
    Answered,
}

/// The person behind a call.
pub(super) struct Person<'a> {
    context: &'a CallContext,
    request: &'a RequestContext<RoleServer>,
    tool: &'a str,
}

/// The question that a call was answered with, as it comes back.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    request: RequestId,
    hold: HoldId,
    /// The digest of the action that the person saw.
    digest: Option<String>,
    until: Timestamp,
}

impl<'a> Person<'a> {
    pub(super) fn new(
        context: &'a CallContext,
        request: &'a RequestContext<RoleServer>,
        tool: &'a str,
    ) -> Self {
        Self {
            context,
            request,
            tool,
        }
    }

    fn way(&self) -> Way {
        let declared = self.request.client_capabilities();
        let asks = declared.and_then(|declared| declared.elicitation);
        // Before there were modes, a client that could ask could show forms.
        let has_forms = asks.is_some_and(|asks| asks.form.is_some() || asks.url.is_none());
        let version = self.request.protocol_version();
        let is_modern = version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        match (has_forms, is_modern) {
            (false, _) => Way::None,
            (true, true) => Way::Repeat,
            (true, false) => Way::Meanwhile,
        }
    }

    /// Takes the decision that a repeated call brings, and names the request that waited for it. A call that brings
    /// no answer to the question that it names decides nothing, and is not asked again. With whether it decided.
    pub(super) async fn take_answer(
        &self,
        state: &str,
        answers: &InputResponses,
    ) -> Result<(RequestId, bool), Problem> {
        let asked = self.open(state)?;
        let mut has_decided = false;
        if let Some(answer) = answers.get(&asked.hold.to_string()) {
            let answer: ElicitResult = serde_json::from_value(answer.clone())
                .map_err(|error| Problem::invalid(format!("`inputResponses`: {error}")))?;
            has_decided = self.decide(&asked, answer).await?;
        }
        Ok((asked.request, has_decided))
    }

    /// Asks for the first open decision of a request that the caller may take.
    pub(super) async fn ask(
        &self,
        request: RequestId,
        holds: impl Iterator<Item = HoldId>,
    ) -> Result<Question, Problem> {
        let way = self.way();
        if way == Way::None {
            return Ok(Question::None);
        }
        let Some((hold, form)) = self.first_question(holds).await? else {
            return Ok(Question::None);
        };
        let digest = hold.action.as_ref().and_then(|action| action.digest);
        let asked = Asked {
            request,
            hold: hold.id,
            digest: digest.map(|digest| digest.to_string()),
            until: self.context.engine().now().plus_ms(ANSWER_SECONDS * 1_000),
        };
        if way == Way::Repeat {
            let key = hold.id.to_string();
            let question = InputRequest::Elicitation(ElicitRequest::new(form));
            let questions = InputRequests::from([(key, question)]);
            let state = self.seal(&asked);
            let required = InputRequiredResult::new(Some(questions), Some(state));
            return Ok(Question::Sent(required));
        }
        let peer = &self.request.peer;
        let answer = peer.create_elicitation_with_timeout(form, Some(LEGACY_WAIT));
        let Ok(answer) = self.context.while_valid(no_problem(answer)).await? else {
            // The client went away or gave no answer in time: the hold stays open.
            return Ok(Question::Unanswered);
        };
        let has_decided = self.decide(&asked, answer).await?;
        Ok(if has_decided {
            Question::Answered
        } else {
            Question::Unanswered
        })
    }

    /// The first of these holds that the caller may decide and a form can ask for.
    async fn first_question(
        &self,
        holds: impl Iterator<Item = HoldId>,
    ) -> Result<Option<(HoldView, ElicitRequestParams)>, Problem> {
        let (engine, caller) = (self.context.engine(), &self.context.caller);
        for hold in holds {
            let hold = match api::hold::read(engine, caller, hold, self.context).await {
                Ok(hold) => hold,
                Err(error) => {
                    let problem = Problem::from(error);
                    if problem.code == Code::NotFound.text() {
                        continue;
                    }
                    return Err(problem);
                }
            };
            if !hold.may_decide {
                continue;
            }
            if let Some(form) = form_of(&hold) {
                return Ok(Some((hold, form)));
            }
        }
        Ok(None)
    }

    /// Takes a decision, if the answer means one. The same answer again gets the same outcome; another answer to a
    /// decided hold is refused.
    async fn decide(&self, asked: &Asked, answer: ElicitResult) -> Result<bool, Problem> {
        let (engine, caller) = (self.context.engine(), &self.context.caller);
        let hold = api::hold::read(engine, caller, asked.hold, self.context).await?;
        let Some(decision) = decision_of(&hold, asked, answer)? else {
            return Ok(false);
        };
        let call = Call {
            caller: caller.clone(),
            key: None,
            if_revision: None,
        };
        api::hold::decide(engine, &call, None, asked.hold, decision, self.context).await?;
        Ok(true)
    }

    fn bound_to(&self) -> [String; 3] {
        let caller = &self.context.caller;
        [
            caller.tenant.to_string(),
            caller.principal.to_string(),
            self.tool.to_owned(),
        ]
    }

    fn seal(&self, asked: &Asked) -> String {
        let bound_to = self.bound_to();
        let content = serde_json::to_vec(asked).unwrap_or_default();
        let bound_to = bound_to.each_ref().map(String::as_str);
        self.context.app.sealer.seal(PURPOSE, &bound_to, &content)
    }

    fn open(&self, state: &str) -> Result<Asked, Problem> {
        let bound_to = self.bound_to();
        let bound_to = bound_to.each_ref().map(String::as_str);
        let content = self.context.app.sealer.open(PURPOSE, &bound_to, state).ok();
        let asked = content.and_then(|content| serde_json::from_slice(&content).ok());
        let now = self.context.engine().now();
        asked.filter(|asked: &Asked| now < asked.until).ok_or_else(|| {
            let detail = "`requestState` was given to another caller or for another tool, or has ended; call the \
                          tool again without it";
            Problem::invalid(detail)
        })
    }
}

/// An outcome that is no problem either way.
async fn no_problem<T>(work: impl Future<Output = T>) -> Result<T, Problem> {
    Ok(work.await)
}

/// The form for a hold. None if a form of MCP, which is flat, cannot ask for it.
fn form_of(hold: &HoldView) -> Option<ElicitRequestParams> {
    let schema = match hold.kind {
        HoldKind::Approval | HoldKind::Reconcile => {
            let offered = |kind| hold.allowed.contains(&kind);
            let words = [
                (DecisionKind::Approve, "approve"),
                (DecisionKind::Reject, "reject"),
            ];
            let words = words
                .iter()
                .filter(|(kind, _)| offered(*kind))
                .map(|(_, word)| *word);
            let words: Vec<&str> = words.collect();
            json!({
                "type": "object",
                "properties": {
                    "decision": {"type": "string", "title": "Decision", "enum": words},
                    "comment": {"type": "string", "title": "Comment"},
                },
                "required": ["decision"],
            })
        }
        HoldKind::Question | HoldKind::Form => {
            let asked = hold.response_schema.as_ref().map(|schema| schema.get());
            let asked: Option<Value> = asked.and_then(|text| serde_json::from_str(text).ok());
            match asked {
                None => answer_form(&json!({"type": "string", "title": "Answer"})),
                Some(asked) if asked["type"] == "object" => asked,
                Some(asked) => answer_form(&asked),
            }
        }
        HoldKind::Link | HoldKind::Credential => return None,
    };
    let requested_schema: ElicitationSchema = serde_json::from_value(schema).ok()?;
    Some(ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: words_of(hold),
        requested_schema,
    })
}

fn answer_form(answer: &Value) -> Value {
    json!({"type": "object", "properties": {"answer": answer}, "required": ["answer"]})
}

/// The text for the person: the question, who asks, and the action exactly as it would run.
fn words_of(hold: &HoldView) -> String {
    let mut words = format!(
        "{}\nAsked by the agent {} ({}).",
        hold.title, hold.agent, hold.alias
    );
    if let Some(message) = &hold.message {
        words = format!("{words}\n{message}");
    }
    if let Some(action) = &hold.action {
        words = format!(
            "{words}\nAction: {}\nArguments: {}",
            action.tool,
            action.args.get()
        );
    }
    words
}

/// The decision that an answer means. None if it means none: a person who closes a form has decided nothing.
fn decision_of(
    hold: &HoldView,
    asked: &Asked,
    answer: ElicitResult,
) -> Result<Option<DecisionInput>, Problem> {
    let is_approval = matches!(hold.kind, HoldKind::Approval | HoldKind::Reconcile);
    let mut content = match answer.content {
        Some(Value::Object(content)) => content,
        _ => Map::new(),
    };
    let mut decision = Map::new();
    match answer.action {
        ElicitationAction::Decline if !hold.allowed.contains(&DecisionKind::Reject) => {
            return Ok(None);
        }
        ElicitationAction::Decline => {
            decision.insert("decision".to_owned(), "reject".into());
        }
        ElicitationAction::Accept if is_approval => {
            let word = content.remove("decision").unwrap_or_default();
            if word == "approve" {
                decision.insert("digest".to_owned(), json!(asked.digest));
            }
            decision.insert("decision".to_owned(), word);
            if let Some(Value::String(comment)) = content.remove("comment")
                && !comment.is_empty()
            {
                decision.insert("comment".to_owned(), comment.into());
            }
        }
        ElicitationAction::Accept => {
            let is_object = hold.response_schema.as_ref().is_some_and(|schema| {
                let schema: Option<Value> = serde_json::from_str(schema.get()).ok();
                schema.is_some_and(|schema| schema["type"] == "object")
            });
            let said = if is_object {
                content.into()
            } else {
                content.remove("answer").unwrap_or_default()
            };
            decision.insert("decision".to_owned(), "respond".into());
            decision.insert("content".to_owned(), said);
        }
        // Cancelled, or a word that this server does not know.
        _ => return Ok(None),
    }
    decision.retain(|_, value| !value.is_null());
    let text = Value::Object(decision).to_string();
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| Problem::invalid(format!("the answer is no decision: {error}")))
}

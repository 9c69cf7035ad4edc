//! Which turn a chat call is about: one that it answers, one that it attaches to, one whose answer was
//! lost on the way, or a new one.
//!
//! All of this is found out and done while no other chat call of the session does the same, so that two
//! calls with the same words are one turn.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use statehold_core::command::{Command, Output, Rejection, StartRequest, StatePatch};
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_engine::kept::{HoldBody, parse};
use statehold_engine::{
    Call, Caller, Committed, Credential, Engine, EngineError, HoldDetail, HoldFilter, HoldOrder,
    Payloads, Reply, RequestDetail, Role, Roles, Schema,
};

use super::ask::{ChatDecisionIn, Words};
use super::heard::Search;
use crate::http::call::{App, CallContext};
use crate::http::problem::Problem;
use statehold_engine::api::hold::{DecisionInput, decide_shown};
use statehold_engine::api::json::{raw_text, to_body};

/// How many open holds of a session are read at a time.
const OPEN_STEP: usize = 200;

/// A turn, where it runs, and who reads it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) engine: Engine,
    /// Whoever called, as a client and nothing more: what they are shown is what clients see.
    pub(crate) reader: Caller,
    /// Whoever called.
    pub(crate) caller: Caller,
    pub(crate) session: SessionId,
    pub(crate) task: TaskId,
    pub(crate) request: RequestId,
    /// Whether the caller asked for holds with everything that they may see.
    pub(crate) tells_own_holds: bool,
}

/// What a call goes on with.
#[derive(Debug)]
pub(crate) struct TakenUp {
    pub(crate) place: Place,
    /// Whether this call has begun it.
    pub(crate) is_begun: bool,
    /// Whether it was made before.
    pub(crate) is_replay: bool,
    pub(crate) earlier: Vec<Earlier>,
}

/// The turn that a call is about.
struct Found {
    request: RequestId,
    /// Its task, if the call has just begun it.
    begun_in: Option<TaskId>,
    /// Whether the same call was made before.
    is_replay: bool,
}

impl Found {
    fn known(request: RequestId, is_replay: bool) -> Self {
        Self {
            request,
            begun_in: None,
            is_replay,
        }
    }
}

/// The answer of a turn that was told as paused, which came since.
#[derive(Debug, Clone)]
pub(crate) struct Earlier {
    pub(crate) request: RequestId,
    pub(crate) content: String,
}

/// What the call says.
pub(crate) struct Message<'a> {
    pub(crate) app: &'a App,
    pub(crate) asked: &'a CallContext,
    pub(crate) body: &'a [u8],
    pub(crate) session: SessionId,
    pub(crate) agent: &'a Name,
    pub(crate) task: Option<TaskId>,
    pub(crate) words: &'a Words,
    pub(crate) credential: Option<&'a Credential>,
    /// Whether the caller lets people decide elsewhere: it brings decisions, and its messages are none.
    pub(crate) decides_elsewhere: bool,
}

/// The caller as a client and nothing more; without any right, if they are none.
pub(crate) fn as_client(caller: &Caller) -> Caller {
    let names = caller.roles.names().iter().cloned();
    let client: BTreeSet<Name> = names
        .filter(|name| name.as_str() == Role::Client.name())
        .collect();
    Caller {
        roles: Roles::from(client),
        ..caller.clone()
    }
}

impl Message<'_> {
    /// Finds the turn that the call is about, or begins it.
    pub(crate) async fn take_up(&self, decisions: &[ChatDecisionIn]) -> Result<TakenUp, Problem> {
        let engine = &self.app.engine;
        let owner = engine.owner(self.session).await?;
        let mut payloads = engine.payloads_for(&owner.tenant, owner.user).await?;
        let input = self
            .words
            .to_input(None, self.credential.is_some(), &mut payloads);
        let start = self.start(input.clone());
        // What else is wrong is told only to those who may start something there.
        engine
            .require_reach(&self.asked.caller, self.session, &start)
            .await?;
        let reader = as_client(&self.asked.caller);
        let summary = engine.session(&reader, self.session).await?;
        let mut search = Search::new(self, reader, summary, input);
        let _alone = engine.lock_session(self.session).await;
        let found = if decisions.is_empty() {
            self.find_or_start(&mut search, &start, &payloads).await?
        } else {
            Found::known(self.decide(decisions).await?, false)
        };
        let (request, is_replay) = (found.request, found.is_replay);
        let is_begun = found.begun_in.is_some();
        self.app.told.begin(self.session, request);
        let task = match found.begun_in {
            Some(task) => task,
            None => engine.request(&search.reader, request).await?.task.id,
        };
        let earlier = search.earlier(request).await?;
        Ok(TakenUp {
            place: Place {
                engine: engine.clone(),
                reader: search.reader,
                caller: self.asked.caller.clone(),
                session: self.session,
                task,
                request,
                tells_own_holds: false,
            },
            is_begun,
            is_replay,
            earlier,
        })
    }

    /// Ends a turn that cannot be taken any more.
    pub(crate) async fn cancel(&self, request: RequestId) -> Result<(), Problem> {
        let (command, call) = (
            Command::CancelRequest { request },
            Call::by(self.asked.caller.clone()),
        );
        let (engine, reply): (_, Reply) = (&self.app.engine, Arc::new(|_| Vec::new()));
        let payloads = engine.no_payloads();
        let cancelled = engine.submit(self.session, &call, &command, &payloads, &reply);
        match cancelled.await {
            // It was taken and has ended, and that is as good.
            Ok(_) | Err(EngineError::Rejected(Rejection::RequestEnded { .. })) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The turn to go on with.
    async fn find_or_start(
        &self,
        search: &mut Search<'_>,
        start: &Command,
        payloads: &Payloads,
    ) -> Result<Found, Problem> {
        // A key says by itself which call is the same, whatever has come up since, while it is known.
        if self.asked.key_text().is_some() {
            if let Some(begun) = self.begun_by_key(start, payloads).await? {
                return Ok(Found::known(begun, true));
            }
            if let Some(answered) = search.answered_by_key().await? {
                return Ok(Found::known(answered, true));
            }
        }
        let question = if self.decides_elsewhere {
            None
        } else {
            self.only_question().await?
        };
        if let Some((question, root)) = question {
            let detail = self.app.engine.request(&search.reader, root).await?;
            if self.is_answer(search, &question, &detail).await? {
                self.respond(&question).await?;
                return Ok(Found::known(root, false));
            }
            if self.asked.key_text().is_none() {
                return Ok(Found::known(root, false));
            }
        }
        match search.repeated().await? {
            Some((request, is_replay)) => Ok(Found::known(request, is_replay)),
            None => self.begin(start, payloads).await,
        }
    }

    /// Whether the call answers a question, or only says again what the turn that asks has heard.
    async fn is_answer(
        &self,
        search: &mut Search<'_>,
        question: &HoldDetail,
        detail: &RequestDetail,
    ) -> Result<bool, Problem> {
        // A client that comes back repeats itself, also when it has been told of the question.
        if search.may_have_begun(detail) && !offers(question, &self.words.text) {
            return Ok(false);
        }
        // A call that is made again is no answer to a question that its client never saw.
        let is_seen = self.app.told.has_seen(question.hold.id);
        Ok(is_seen || !search.is_repeat(detail).await?)
    }

    fn start(&self, input: Output) -> Command {
        Command::StartRequest(StartRequest {
            agent: self.agent.clone(),
            task: self.task,
            parent: None,
            input: input.body,
            attachments: input.attachments,
            close_on: statehold_core::task::CloseOn::default(),
            lease_ttl_ms: None,
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        })
    }

    /// The call as the engine takes it, under the key that it came with.
    fn keyed_call(&self) -> Call {
        let session = self.session.to_string();
        Call {
            caller: self.asked.caller.clone(),
            key: self.asked.key_of("", &[session.as_bytes(), self.body]),
            if_revision: self.asked.if_revision,
        }
    }

    /// The turn that the same call has begun before.
    async fn begun_by_key(
        &self,
        start: &Command,
        payloads: &Payloads,
    ) -> Result<Option<RequestId>, Problem> {
        let call = Call {
            // No session is there yet: under a new key nothing is begun.
            if_revision: Some(u64::MAX),
            ..self.keyed_call()
        };
        let (engine, session) = (&self.app.engine, self.session);
        let reply: Reply = Arc::new(|_| Vec::new());
        let kept = engine.submit(session, &call, start, payloads, &reply).await;
        match kept {
            Ok(kept) => Ok(Some(Begun::read(&kept.body)?.0)),
            Err(EngineError::RevisionMismatch { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn begin(&self, start: &Command, payloads: &Payloads) -> Result<Found, Problem> {
        let call = self.keyed_call();
        let (request, task, is_replay) = start_on(
            &self.app.engine,
            self.session,
            &call,
            start,
            payloads,
            self.credential,
            // Noted before it is durable: a client that goes away meanwhile is owed the answer too.
            Some(self.app.clone()),
        )
        .await?;
        Ok(Found {
            request,
            begun_in: (!is_replay).then_some(task),
            is_replay,
        })
    }

    /// The only hold of the session that the caller could decide, if it is a question that this message
    /// can answer; with the turn that waits for it.
    async fn only_question(&self) -> Result<Option<(HoldDetail, RequestId)>, Problem> {
        if !self.app.engine.has_open_holds(self.session).await? {
            return Ok(None);
        }
        let open = HoldFilter {
            session: Some(self.session),
            order: HoldOrder::Oldest,
            ..HoldFilter::default()
        };
        let caller = &self.asked.caller;
        let (mut after, mut only) = (None, None);
        loop {
            let page = self.app.engine.holds(caller, &open, after, OPEN_STEP);
            let page = page.await?;
            for detail in page.entries {
                if detail.why_not.is_none() && only.replace(detail).is_some() {
                    return Ok(None);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let Some(only) = only else {
            return Ok(None);
        };
        let takes_words = only.hold.kind == HoldKind::Question
            && only.hold.allowed.contains(&DecisionKind::Respond)
            && self.words.files.is_empty();
        let root = only.lineage.first().filter(|root| {
            let is_task = self.task.is_none_or(|task| task == root.task);
            is_task && root.agent == *self.agent
        });
        let root = root.map(|root| root.request);
        match root {
            Some(root) if takes_words && takes_text(&only, &self.words.text).await => {
                Ok(Some((only, root)))
            }
            _ => Ok(None),
        }
    }

    async fn respond(&self, question: &HoldDetail) -> Result<(), Problem> {
        let answer = DecisionInput {
            decision: DecisionKind::Respond,
            digest: None,
            args: None,
            content: Some(raw_text(&self.words.text)),
            comment: None,
            reason: None,
        };
        let (call, key) = self.asked.decision();
        decide_shown(&self.app.engine, &call, key, question, answer).await?;
        Ok(())
    }

    /// Takes decisions that came with the call. The turn is that of the last.
    async fn decide(&self, decisions: &[ChatDecisionIn]) -> Result<RequestId, Problem> {
        let mut root = None;
        for decision in decisions {
            let (hold, wire, key) = decision.clone().split();
            let detail = self.app.engine.hold(&self.asked.caller, hold).await?;
            let first = detail.lineage.first().map(|step| step.request);
            if detail.session.id != self.session || first.is_none() {
                return Err(Problem::not_found());
            }
            let (call, _) = self.asked.decision();
            let key = key.as_deref();
            decide_shown(&self.app.engine, &call, key, &detail, wire).await?;
            root = first;
        }
        root.ok_or_else(Problem::not_found)
    }
}

/// What is kept under the key of a call that began a turn.
#[derive(Serialize, Deserialize)]
struct Begun {
    request: String,
    task: String,
}

impl Begun {
    fn read(body: &[u8]) -> Result<(RequestId, TaskId), Problem> {
        let begun: Option<Self> = serde_json::from_slice(body).ok();
        let ids =
            begun.and_then(|begun| Some((begun.request.parse().ok()?, begun.task.parse().ok()?)));
        // What was started under the key may have been deleted since, with its answer.
        ids.ok_or_else(Problem::not_found)
    }
}

/// Starts a request, or finds the one that was started under the same key. `app` is where it is noted
/// that somebody waits for it.
pub(crate) async fn start_on(
    engine: &Engine,
    session: SessionId,
    call: &Call,
    start: &Command,
    payloads: &Payloads,
    credential: Option<&Credential>,
    app: Option<App>,
) -> Result<(RequestId, TaskId, bool), Problem> {
    let reply: Reply = Arc::new(move |made: &Committed<'_>| {
        let begun = made.record.content.events.iter().find_map(|event| {
            let Event::RequestStarted { request, task, .. } = event else {
                return None;
            };
            if let Some(app) = &app {
                app.told.begin(session, *request);
            }
            Some(Begun {
                request: request.to_string(),
                task: task.to_string(),
            })
        });
        begun.map_or_else(Vec::new, |begun| to_body(&begun))
    });
    let made = engine
        .submit_with_credential(session, call, start, payloads, &reply, credential)
        .await?;
    let (request, task) = Begun::read(&made.body)?;
    Ok((request, task, made.replayed))
}

/// Whether a text is an answer of the form that was asked for.
async fn takes_text(question: &HoldDetail, text: &str) -> bool {
    let body: HoldBody = parse(question.body.as_deref());
    let Some(schema) = body.response_schema else {
        return true;
    };
    let text = Value::String(text.to_owned());
    // A large schema takes its time.
    let fits = tokio::task::spawn_blocking(move || {
        Schema::new(schema.get()).is_ok_and(|schema| schema.errors(&text).is_empty())
    });
    fits.await.unwrap_or(false)
}

/// Whether a text is one of the choices that a question lists.
fn offers(question: &HoldDetail, text: &str) -> bool {
    let body: HoldBody = parse(question.body.as_deref());
    let schema = body.response_schema.as_ref();
    let schema = schema.and_then(|schema| serde_json::from_str::<Value>(schema.get()).ok());
    schema.is_some_and(|schema| lists(&schema, text))
}

/// Whether a schema names a text as a value, by itself or in one of its alternatives.
fn lists(schema: &Value, text: &str) -> bool {
    let named = |schema: &Value| {
        let listed = schema["enum"].as_array().into_iter().flatten();
        listed.chain(schema.get("const")).any(|value| value == text)
    };
    let alternatives = ["oneOf", "anyOf"].into_iter();
    let mut alternatives =
        alternatives.flat_map(|word| schema[word].as_array().into_iter().flatten());
    named(schema) || alternatives.any(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_lists_its_choices_and_nothing_else() {
        let lists = |schema: &str| {
            let schema: Value = serde_json::from_str(schema).expect("JSON");
            lists(&schema, "yes")
        };
        assert!(lists(r#"{"enum": ["no", "yes"]}"#));
        assert!(lists(r#"{"const": "yes"}"#));
        assert!(lists(r#"{"oneOf": [{"const": "no"}, {"const": "yes"}]}"#));
        assert!(lists(r#"{"anyOf": [{"enum": ["yes"]}]}"#));
        assert!(!lists(r#"{"type": "string"}"#));
        assert!(!lists(r#"{"enum": ["no"], "title": "yes"}"#));
        assert!(!lists("true"));
    }
}

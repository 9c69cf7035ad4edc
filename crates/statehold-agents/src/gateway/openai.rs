//! Agents that speak chat completions. One that remembers nothing gets its own exchanges back with each
//! call; one that keeps a session, as another Statehold does, gets the new message only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use statehold_core::ids::{ItemId, SessionId};
use statehold_core::item::CallOutcome;
use statehold_engine::kept::{HoldBody, Raw, parse};

use super::exchange::{self, Restored};
use super::pause::{self, Delivery, Paused};
use super::remembered::{self, Locks, Remembered};
use super::said::{Its, Said};
use super::shared::{self, Told};
use super::state::StateRules;
use super::trail::{self, SessionTold};
use super::{Note, failed, is_lost, unprepared};
use crate::chat::{ChatCall, ChatClient, ChatEndpoint};
use crate::http::CallError;
use crate::runner::{Beside, Run, StepDone, StepKind};
use crate::spec::{Memory, OpenaiSpec};
use crate::turn::{Agent, Answer, TurnError};
use crate::words::{Words, raw};

/// The word for this gateway in what is remembered.
const GATEWAY: &str = "openai";
/// How often an agent may wait for people in one turn.
const PAUSES_MAX: usize = 64;
/// How long to wait before an agent that cannot be told a decision is told again.
const DELIVERY_RESTS_SECONDS: [u64; 5] = [1, 2, 5, 10, 30];
const DELIVERY_REST_SECONDS_MAX: u64 = 60;
/// How much of an answer is held back until it is clear that the agent does not wait: what it says about
/// waiting is for its own users, not for ours.
const HELD_BACK_BYTES: usize = 2 * 1024;

/// An agent that speaks chat completions.
pub(crate) struct Openai {
    spec: Arc<OpenaiSpec>,
    chat: ChatClient,
    locks: Arc<Locks>,
}

/// A call that is ready to be made.
struct Prepared {
    messages: Vec<Raw>,
    extra: Map<String, Value>,
    told: Option<Told>,
    notes: Vec<Note>,
}

/// What a caller without a session brings along: the history is theirs.
#[derive(Debug, Default, Deserialize)]
struct Brought {
    #[serde(default)]
    history: Vec<Raw>,
    #[serde(default)]
    passthrough: Map<String, Value>,
    /// The new message as it was sent, where it is more than the text of a user.
    #[serde(default)]
    last: Option<Raw>,
}

/// Decisions to be told with a call, and the calls here that stand for what was decided.
#[derive(Default)]
struct Decisions {
    deliveries: Vec<Delivery>,
    results: Vec<(ItemId, CallOutcome, Raw)>,
}

/// In whose memory a call happens.
enum Place<'a> {
    Ours,
    Nowhere,
    Its(&'a Its),
}

#[async_trait]
impl Agent for Openai {
    async fn turn(&self, run: &mut Run) -> Result<Answer, TurnError> {
        match self.spec.memory {
            Memory::Restore => self.restored(run).await,
            Memory::Track => self.tracked(run).await,
        }
    }
}

impl Openai {
    pub(crate) fn new(spec: Arc<OpenaiSpec>, chat: ChatClient, locks: Arc<Locks>) -> Self {
        Self { spec, chat, locks }
    }

    /// A turn of an agent that remembers nothing.
    async fn restored(&self, run: &mut Run) -> Result<Answer, TurnError> {
        let prepared = match run.next_recorded() {
            Some(_) => None,
            None => Some(prepare_restored(run).await?),
        };
        let said = self
            .call(run, prepared, &Place::Ours, Decisions::default())
            .await?;
        if said.pause()?.is_some() {
            return Err(untracked());
        }
        let tells_calls = has_tools(&run.input);
        said.into_answer(&run.spec, true, tells_calls).await
    }

    /// A turn of an agent that keeps a session. One at a time: turns that overlap would make two, or
    /// talk into each other.
    async fn tracked(&self, run: &mut Run) -> Result<Answer, TurnError> {
        // Before the line too: a turn that tells a decision may stand in it until the agent is back.
        if run.next_recorded().is_none() {
            require_free(run).await?;
        }
        run.conversation = Some(self.locks.hold(run).await);
        if Brought::of(&run.input).is_some() {
            return self.stateless(run).await;
        }
        if run.next_recorded().is_none() {
            require_free(run).await?;
        }
        let (mut its, mut decisions) = (Its::look_up(run).await?, Decisions::default());
        let mut is_made_anew = false;
        for pause in 0..PAUSES_MAX {
            let prepared = match run.next_recorded() {
                Some(_) => None,
                None => Some(prepare_new(run, is_made_anew).await?),
            };
            let deliveries = std::mem::take(&mut decisions);
            let said = self
                .call(run, prepared, &Place::Its(&its), deliveries)
                .await;
            let said = match said {
                // What it waited for cannot be told to anybody else.
                Err(error) if is_lost(&error) && pause == 0 && !is_made_anew => {
                    is_made_anew = true;
                    its.session = None;
                    let prepared = Some(prepare_new(run, true).await?);
                    let place = Place::Its(&its);
                    self.call(run, prepared, &place, Decisions::default())
                        .await?
                }
                said => said?,
            };
            let paused = said.pause()?;
            // What is decided is told where it was asked, whatever was said elsewhere meanwhile.
            if let Some(used) = &said.its {
                its = used.clone();
            }
            let Some(paused) = paused else {
                return said.into_answer(&run.spec, false, false).await;
            };
            decisions = ask_people(run, &paused).await?;
        }
        let message = format!(
            "the agent waited for people {PAUSES_MAX} times in one turn; ask for less at once, or look at \
             why it goes on asking"
        );
        Err(TurnError::failed("agent_pauses_too_often", message))
    }

    /// A turn for a caller who keeps the history: no session is made for it.
    async fn stateless(&self, run: &mut Run) -> Result<Answer, TurnError> {
        let prepared = match run.next_recorded() {
            Some(_) => None,
            None => Some(prepare_restored(run).await?),
        };
        let nowhere = Place::Nowhere;
        let said = self
            .call(run, prepared, &nowhere, Decisions::default())
            .await?;
        if said.pause()?.is_some() {
            return Err(untracked());
        }
        let tells_calls = has_tools(&run.input);
        said.into_answer(&run.spec, false, tells_calls).await
    }

    /// Calls the agent, once: what it said is recorded before anything follows.
    async fn call(
        &self,
        run: &mut Run,
        prepared: Option<Prepared>,
        place: &Place<'_>,
        decisions: Decisions,
    ) -> Result<Said, TurnError> {
        let made_from = made_from(&run.input, &decisions.deliveries);
        let endpoint = ChatEndpoint {
            base_url: self.spec.base_url.clone(),
            model: self.spec.model.clone(),
            credential: run.credential.clone().or(self.spec.credential.clone()),
            timeout: run.spec.timeout,
            retries: run.spec.retries,
        };
        let (here, number) = (run.place, run.steps_taken());
        let user = run.engine.owner(here.session).await?.user.to_string();
        let say = run.sayer();
        let work = async move {
            let prepared = prepared.ok_or_else(unprepared)?;
            let told = match place {
                Place::Ours => SessionTold::Ours,
                Place::Nowhere => SessionTold::Nothing,
                Place::Its(its) => SessionTold::Its(its.session.as_deref()),
            };
            let mut extra = prepared.extra;
            if let Place::Its(_) = place {
                extra.insert("user".to_owned(), Value::from(user.as_str()));
                // People decide here, so they must see here what they would see there.
                let mut asked = serde_json::json!({ "holds": "own" });
                if !decisions.deliveries.is_empty() {
                    asked["decisions"] = serde_json::json!(decisions.deliveries);
                }
                extra.insert("statehold".to_owned(), asked);
            }
            let mut call = ChatCall {
                messages: prepared.messages,
                extra,
                headers: trail::of_chat(here, told, &user, number),
                stream: true,
            };
            let held_back = match place {
                Place::Its(_) => HELD_BACK_BYTES,
                Place::Ours | Place::Nowhere => 0,
            };
            let mut teller = Teller::new(say, held_back);
            let mut hear = |piece: &str| teller.hear(piece);
            let mut reply = self.chat.chat(&endpoint, &call, &mut hear).await;
            let mut rests = DELIVERY_RESTS_SECONDS.into_iter();
            while let Err(error) = &reply
                && !decisions.deliveries.is_empty()
                && error.may_pass()
            {
                // A person has decided: an agent that is away is told when it is back, however long that
                // takes. One that is there and fails has a few tries.
                let rest = match rests.next() {
                    Some(rest) => rest,
                    None if error.is_absence() => DELIVERY_REST_SECONDS_MAX,
                    None => break,
                };
                tracing::warn!(request = %here.request, %error, "a decision waits for its agent");
                tokio::time::sleep(Duration::from_secs(rest)).await;
                // What was heard before must not be heard twice; the whole answer is recorded.
                reply = self.chat.chat(&endpoint, &call, &mut |_| ()).await;
            }
            if reply.as_ref().is_err_and(is_forbidden) && trail::drop_user(&mut call.headers) {
                reply = self.chat.chat(&endpoint, &call, &mut hear).await;
            }
            let reply = reply.map_err(|error| match place {
                Place::Its(its) => lost_or_failed(&error, its),
                Place::Ours => unknown_or_failed(&error),
                Place::Nowhere => failed(&error),
            })?;
            let usage = reply.usage.map(|usage| {
                raw(&serde_json::json!({
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "total_tokens": usage.total_tokens,
                }))
            });
            let mut said = Said::of(reply, prepared.told, prepared.notes);
            let paused = said.pause()?;
            if paused.is_none() {
                teller.end();
            }
            let mut private = None;
            if let Place::Its(its) = place {
                let known = its.answered_in(said.session(paused.as_ref()))?;
                private =
                    (known.generation != its.generation).then(|| known.remembered(here.session));
                said.its = Some(known);
            }
            let result = raw(&said);
            let beside = Beside {
                private,
                results: decisions.results,
                waits: paused.is_none(),
            };
            Ok((StepDone { result, usage }, beside))
        };
        let said = run
            .step_beside(StepKind::AgentCall, &made_from, work)
            .await?;
        serde_json::from_str(said.get())
            .map_err(|error| TurnError::step_malformed("what the agent said", &error))
    }
}

/// What a call is made from: what was asked, and what was decided since. Not what stands around it, which
/// may change while a turn waits.
fn made_from(input: &Words, deliveries: &[Delivery]) -> Vec<u8> {
    let parts = (&input.content, &input.attachments, deliveries);
    raw(&parts).get().as_bytes().to_vec()
}

async fn told(run: &Run) -> Result<Option<Told>, TurnError> {
    Ok(Told::of(&run.shared(&run.spec.import).await?))
}

/// Everything that the agent said and was asked in this task, and the new message.
async fn prepare_restored(run: &Run) -> Result<Prepared, TurnError> {
    let past = run.past().await?;
    let rules = StateRules::of(&run.spec);
    let restored = match rules {
        None => exchange::restore(&past, None),
        // Schemas and long states take their time.
        Some(rules) => {
            let work = move || exchange::restore(&past, Some(&rules));
            let restored = tokio::task::spawn_blocking(work).await;
            restored.map_err(|_| unprepared())?
        }
    };
    let Restored {
        mut messages,
        mut notes,
        ..
    } = restored;
    // In a task that has a history of its own, nobody brings another.
    let brought = Brought::of(&run.input).filter(|_| messages.is_empty());
    let brought = brought.unwrap_or_default();
    let bring = exchange::brought(brought.history);
    messages.extend(bring.messages);
    notes.extend(bring.notes);
    let told = if brought.last.is_none() {
        told(run).await?
    } else {
        None
    };
    let new = brought.last.map(shared::guarded);
    messages.push(new.unwrap_or_else(|| exchange::user_message(&run.input, told.as_ref())));
    notes.extend(told.as_ref().and_then(Told::note));
    Ok(Prepared {
        messages,
        extra: brought.passthrough,
        told,
        notes,
    })
}

/// The new message alone.
async fn prepare_new(run: &Run, is_made_anew: bool) -> Result<Prepared, TurnError> {
    let told = told(run).await?;
    let mut notes: Vec<Note> = told.as_ref().and_then(Told::note).into_iter().collect();
    if is_made_anew {
        let note = raw(&BTreeMap::from([("reason", "the agent lost its session")]));
        notes.push(("conversation_recreated", note));
    }
    Ok(Prepared {
        messages: vec![exchange::user_message(&run.input, told.as_ref())],
        extra: Map::new(),
        told,
        notes,
    })
}

/// Asks people what the agent asks them. If they have not all decided, nobody stays to wait.
async fn ask_people(run: &mut Run, paused: &Paused) -> Result<Decisions, TurnError> {
    let mut decisions = Decisions::default();
    let mut is_open = false;
    let asks = paused.asks()?;
    // All of it can be asked, or nothing is.
    for (_, ask) in &asks {
        run.require_askable(ask).await?;
    }
    for (hold, ask) in asks {
        match run.ask_person(ask).await? {
            Some(decided) => {
                decisions.deliveries.push(hold.delivery(&decided));
                decisions.results.extend(pause::outcome(&decided));
            }
            None => is_open = true,
        }
    }
    if is_open {
        return Err(run.leave().await);
    }
    Ok(decisions)
}

/// What is said in the session of an agent that waits for a person there would be the answer to its
/// question, and nobody meant it to be.
async fn require_free(run: &Run) -> Result<(), TurnError> {
    let (session, agent) = (run.place.session, &run.spec.name);
    let asking = run.engine.asking_requests_of(session, agent).await?;
    let Some(other) = asking.into_iter().find(|id| *id != run.place.request) else {
        return Ok(());
    };
    let pending = run.engine.pending_in(session).await?;
    let waits = pending.holds.iter().find(|hold| hold.hold.request == other);
    let what = match waits {
        Some(waits) => {
            let body: HoldBody = parse(waits.body.as_deref());
            let (title, id) = (body.title, waits.hold.id);
            format!("it waits for a decision about “{title}” ({id}); decide that, then ask again")
        }
        None => "it is being told what was decided; ask again in a moment".to_owned(),
    };
    let message = format!("the agent {agent} cannot be asked now: {what}");
    Err(TurnError::failed("agent_busy", message))
}

fn is_forbidden(error: &CallError) -> bool {
    let forbidden = StatusCode::FORBIDDEN;
    matches!(error, CallError::Status { status, .. } if *status == forbidden)
}

fn lost_or_failed(error: &CallError, its: &Its) -> TurnError {
    let is_gone = matches!(
        error,
        CallError::Status {
            status: StatusCode::NOT_FOUND | StatusCode::GONE,
            ..
        }
    );
    if is_gone && its.session.is_some() {
        failed(&CallError::NotFound)
    } else {
        failed(error)
    }
}

/// What became of a call that named our session. Whoever keeps sessions under that name has none of ours,
/// as another Statehold does, and says the same as one who does not know the model.
fn unknown_or_failed(error: &CallError) -> TurnError {
    let is_unknown = matches!(
        error,
        CallError::Status {
            status: StatusCode::NOT_FOUND,
            ..
        }
    );
    if !is_unknown {
        return failed(error);
    }
    let message = format!(
        "{error}; declare the agent with memory = \"track\" if it keeps sessions itself, as another \
         Statehold does; if not, check `base_url` and `model`"
    );
    TurnError::failed(error.code(), message)
}

/// Whether a caller brought tools: only then can they be told that one is to be called.
fn has_tools(input: &Words) -> bool {
    Brought::of(input).is_some_and(|brought| brought.passthrough.contains_key("tools"))
}

fn untracked() -> TurnError {
    let message = "the agent waits for a person, and nothing can be told to it later because it keeps no \
                   session for us; declare it with memory = \"track\", and call it with a session";
    TurnError::failed("agent_pause_untracked", message)
}

impl Brought {
    fn of(input: &Words) -> Option<Self> {
        let brought: Value = serde_json::from_str(input.data.as_ref()?.get()).ok()?;
        let is_brought = brought.get("history").is_some() || brought.get("passthrough").is_some();
        if !is_brought {
            return None;
        }
        serde_json::from_str(input.data.as_ref()?.get()).ok()
    }
}

impl Its {
    async fn look_up(run: &Run) -> Result<Self, TurnError> {
        let known = remembered::look_up(run, GATEWAY).await?;
        let Some(known) = known else {
            return Ok(Self::default());
        };
        let is_here = known.session == run.place.session;
        Ok(Self {
            generation: known.generation,
            session: known.conversation.filter(|_| is_here),
        })
    }

    /// What is known once the agent has answered in a session.
    fn answered_in(&self, session: Option<&str>) -> Result<Self, TurnError> {
        match (session, &self.session) {
            (Some(answered), Some(known)) if answered == known => Ok(self.clone()),
            (None, Some(_)) => Ok(self.clone()),
            (None, None) => {
                let message = "the agent names no session (header x-statehold-session), so nobody \
                               remembers what is said; declare it with memory = \"restore\"";
                Err(TurnError::failed("agent_names_no_session", message))
            }
            (Some(answered), _) => Ok(Self {
                session: Some(answered.to_owned()),
                generation: self.generation + 1,
            }),
        }
    }

    /// What the task remembers of it.
    fn remembered(&self, here: SessionId) -> Raw {
        let remembered = Remembered {
            gateway: GATEWAY.to_owned(),
            session: here,
            generation: self.generation,
            conversation: self.session.clone(),
            is_another: self.generation > 1,
        };
        remembered.raw()
    }
}

/// Passes an answer on while it is written, or a little later.
struct Teller<S> {
    say: S,
    held_back: Option<String>,
    bytes_max: usize,
}

impl<S: Fn(&str)> Teller<S> {
    fn new(say: S, bytes_max: usize) -> Self {
        Self {
            say,
            held_back: Some(String::new()),
            bytes_max,
        }
    }

    fn hear(&mut self, piece: &str) {
        let Some(held_back) = &mut self.held_back else {
            (self.say)(piece);
            return;
        };
        held_back.push_str(piece);
        if held_back.len() > self.bytes_max {
            self.end();
        }
    }

    /// It is an answer.
    fn end(&mut self) {
        if let Some(held_back) = self.held_back.take() {
            (self.say)(&held_back);
        }
    }
}

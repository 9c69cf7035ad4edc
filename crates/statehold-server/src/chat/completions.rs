//! A call to chat completions, as the surfaces that speak them share it: its messages, the session that they belong to, and
//! the turn that it begins there, in a new session, or without one.

mod caller_messages;
mod files;
mod legacy_state;
mod request;
mod session_choice;
mod statehold_out;

use std::collections::BTreeSet;

use axum::extract::Request;
use axum::response::Response;
use http::HeaderMap;
use serde::Serialize;
use serde_json::value::RawValue;
use statehold_agents::spec::{AgentBook, ChatSessions, StateFormat};
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_engine::EngineError;
use statehold_engine::api::json::{Raw, raw_bytes, to_body};
use statehold_engine::api::session::SessionInput;
use statehold_engine::api::turn::{
    CarriedMessage, CarriedPlace, Conversation, UserMessage, named_session, user_of_session,
};

use self::caller_messages::{CallerMessages, CallerRights};
pub(crate) use self::request::{ChatMessageIn, CompletionsIn};
use self::session_choice::SessionChoice;
pub(crate) use self::statehold_out::StateholdOut;
use super::{
    Carrier, ChatCall, ChatSurface, ChatTurn, Ending, TurnContext, TurnFormat, TurnHead,
    agent_needs_session, needs_trust, passes_tools, trusts_callers,
};
use crate::http::call::{App, text};
use crate::http::problem::{Code, Problem};

/// The answers of a surface that speaks chat completions.
pub(crate) trait CompletionFormat: TurnFormat {
    /// The whole answer.
    fn whole(self, ending: Ending) -> Vec<u8>;
}

/// A call to chat completions as it came.
pub(crate) struct CompletionsCall {
    pub(crate) call: ChatCall,
    pub(crate) chat: CompletionsIn,
    wanted: SessionChoice,
    /// Whether the answer carries a reference, if the call says so.
    wants_reference: Option<bool>,
    /// The member `dial` of the data of the input, for agents: only of clients of DIAL.
    pub(crate) dial: Option<Raw>,
    /// Whether the agent gets the legacy states of the call.
    pub(crate) takes_states: bool,
}

impl CompletionsCall {
    /// Authenticates the caller and reads the call. Also returns its headers.
    pub(crate) async fn read(
        app: &App,
        request: Request,
        surface: &'static ChatSurface,
    ) -> Result<(Self, HeaderMap), Problem> {
        let (mut call, chat, headers) =
            ChatCall::read::<CompletionsIn>(app, request, surface).await?;
        call.decides_elsewhere = chat.wants_own_holds();
        call.brings_tools = chat.has_tools();
        let call = Self {
            call,
            wanted: SessionChoice::of(&headers, &chat)?,
            wants_reference: wants_reference(&headers)?,
            chat,
            dial: None,
            takes_states: false,
        };
        Ok((call, headers))
    }

    /// Finds the turn of the agent and answers. `known` keeps the ids of the turn for a failure.
    pub(crate) async fn serve<F: CompletionFormat>(
        self,
        app: App,
        agent: &str,
        known: &mut TurnContext,
        format: impl FnOnce(&TurnHead) -> F,
    ) -> Result<Response, Problem> {
        if !matches!(self.wanted, SessionChoice::Session(_)) {
            self.call.require_client()?;
        }
        self.chat.require_possible()?;
        let (message, path) = self.chat.last_message()?;
        let is_stream = self.chat.stream == Some(true);
        let share = self.call.take_share(&app, is_stream)?;
        let turn = Box::pin(self.begin(&app, agent, (&message, &path), known)).await?;
        drop(message);
        // The messages are dropped: an answer may take long.
        let call = self.into_call();
        match share {
            Some(share) if is_stream => {
                let stream = call.stream(app, turn, share, known, format);
                Box::pin(stream).await
            }
            _ => {
                let whole = |head: &TurnHead, ending| format(head).whole(ending);
                let answer = call.answer(&app, turn, known, whole);
                Box::pin(answer).await
            }
        }
    }

    fn into_call(self) -> ChatCall {
        self.call
    }

    /// Finds or begins the turn that the call is about.
    async fn begin(
        &self,
        app: &App,
        called: &str,
        (message, path): (&ChatMessageIn, &str),
        known: &mut TurnContext,
    ) -> Result<ChatTurn, Problem> {
        let book = &app.options.agents.get();
        let (call, surface) = (&self.call, self.call.surface);
        let (session, agent) = match self.wanted {
            SessionChoice::Session(session) => {
                let named = named_session(&app.engine, &call.asked.caller, session).await?;
                let agent = call.declared(book, called, Some(&named.agent))?;
                (Some((session, named)), agent)
            }
            SessionChoice::New | SessionChoice::None | SessionChoice::Unspecified => {
                (None, call.declared(book, called, None)?)
            }
        };
        let spec = book.agent(&agent);
        let sessions = spec.map_or(ChatSessions::Auto, |spec| spec.sessions);
        let is_unspecified = self.wanted == SessionChoice::Unspecified;
        // A caller that runs tools keeps the conversation itself.
        let runs_tools = is_unspecified && self.chat.carries_tools();
        let mut carrier = {
            let refers = surface.refers || spec.is_some_and(|spec| spec.references);
            self.carrier(&agent, refers)
        };
        let (place, owner) = if is_unspecified && !runs_tools {
            self.carried_place(app, &carrier).await?
        } else {
            (CarriedPlace::Nothing, None)
        };
        let is_plain = spec.is_some_and(|spec| spec.state_format == StateFormat::Plain);
        carrier.is_plain = surface.refers && is_plain;
        let carries_reference = !matches!(place, CarriedPlace::Nothing);
        if is_unspecified && sessions == ChatSessions::Explicit && !carries_reference {
            return Err(agent_needs_session(&agent, surface));
        }
        let has_place = matches!(place, CarriedPlace::Reference { .. });
        let keeps_none = is_unspecified && sessions == ChatSessions::None && !has_place;
        if keeps_none || runs_tools || self.wanted == SessionChoice::None {
            return self
                .begin_stateless(app, carrier, (&agent, message), path)
                .await;
        }
        self.chat.require_plain()?;
        if message.role != "user" {
            return Err(not_user(path));
        }
        let message = UserMessage {
            data: self
                .dial
                .as_ref()
                .map(|dial| raw_bytes(&to_body(&DialData { dial }))),
            ..message.user_message(path)?
        };
        carrier.wants_reference |= carries_reference && self.wants_reference.is_none();
        let mut turn = if let Some((session, named)) = session {
            let decisions = self.chat.decisions().to_vec();
            let expired = named.expired_of.as_deref();
            let expired = expired.filter(|_| decisions.is_empty() && call.may_replace());
            if let Some(user) = expired {
                let place = CarriedPlace::Expired(session);
                let conversation = self.conversation(&agent, &message, place);
                let expired = (session, &named, user);
                let turn =
                    call.open_in_place_of(app, expired, conversation, (&agent, message), known);
                Box::pin(turn).await?
            } else {
                let turn = call.open_in_session(app, session, (&agent, message), decisions);
                Box::pin(turn).await?
            }
        } else if let Some(session) = self.decided_session(&place) {
            let decisions = self.chat.decisions().to_vec();
            let turn = call.open_in_session(app, session, (&agent, message), decisions);
            Box::pin(turn).await?
        } else if is_unspecified {
            let new = self.new_session(&agent, owner)?;
            let new = (new, self.conversation(&agent, &message, place));
            let turn = call.open_in_recalled_session(app, new, (&agent, message), known);
            Box::pin(turn).await?
        } else {
            let new = self.new_session(&agent, None)?;
            Box::pin(call.open_in_new_session(app, new, (&agent, message), known)).await?
        };
        turn.extras.carrier = Some(carrier);
        Ok(turn)
    }

    /// The session that a reference names, for a call with decisions: they are about holds of that session.
    fn decided_session(&self, place: &CarriedPlace) -> Option<SessionId> {
        match place {
            CarriedPlace::Reference { reference, .. } if !self.chat.decisions().is_empty() => {
                Some(reference.session)
            }
            _ => None,
        }
    }

    /// The carrier of the call.
    fn carrier(&self, agent: &Name, by_default: bool) -> Carrier {
        let user = self
            .chat
            .user
            .as_ref()
            .or(self.chat.safety_identifier.as_ref());
        let wants_reference = self.wants_reference.unwrap_or(by_default);
        Carrier::new(&self.call, user.map(String::as_str), agent, wants_reference)
    }

    /// The place that the reference of the newest answer names, with the app and the user of its session. A reference that names
    /// none does not break the conversation: its session is then looked for in other ways.
    async fn carried_place(
        &self,
        app: &App,
        carrier: &Carrier,
    ) -> Result<(CarriedPlace, Option<(Name, String)>), Problem> {
        let Some((text, is_last)) = self.chat.reference() else {
            return Ok((CarriedPlace::Nothing, None));
        };
        let place = carrier.place(app, &text, is_last);
        let CarriedPlace::Reference { reference, .. } = place else {
            return Ok((place, None));
        };
        let caller = &self.call.asked.caller;
        let named = match named_session(&app.engine, caller, reference.session).await {
            Err(EngineError::NotFound) => return Ok((CarriedPlace::Gone, None)),
            named => named?,
        };
        let is_over = named.is_closed || named.expired_of.is_some();
        let is_elsewhere = self
            .call
            .app_name
            .as_ref()
            .is_some_and(|app| *app != named.app);
        if is_over || is_elsewhere {
            return Ok((CarriedPlace::Gone, None));
        }
        let user = user_of_session(&app.engine, caller, &named).await?;
        Ok((place, Some((named.app, user))))
    }

    /// Begins a turn without a session.
    async fn begin_stateless(
        &self,
        app: &App,
        carrier: Carrier,
        (agent, message): (&Name, &ChatMessageIn),
        path: &str,
    ) -> Result<ChatTurn, Problem> {
        self.require_no_decisions("a call without a session")?;
        if self.chat.carries_tools() && !passes_tools(&app.options.agents.get(), agent) {
            self.chat.require_plain()?;
        }
        let mut left_out = BTreeSet::new();
        let whole = |book: &AgentBook| {
            let rights = self.caller_rights(book, agent, message, path)?;
            let is_plain = message.role == "user" && message.is_text();
            let (sent, states) = ((&self.chat, &self.call.body[..]), carrier.states(app));
            let mut conversation =
                CallerMessages::of(sent, is_plain, rights, states, &mut left_out);
            conversation.dial = self.dial.as_deref();
            Ok(UserMessage {
                data: Some(raw_bytes(&to_body(&conversation))),
                ..message.user_message(path)?
            })
        };
        let mut turn = self.call.open_stateless(app, agent, whole).await?;
        turn.extras.left_out = left_out;
        turn.extras.carrier = Some(carrier);
        Ok(turn)
    }

    /// How the agent gets the messages of the call. Refuses tools whose results would not reach the agent,
    /// and a last message that is not the user's.
    fn caller_rights(
        &self,
        book: &AgentBook,
        agent: &Name,
        message: &ChatMessageIn,
        path: &str,
    ) -> Result<CallerRights, Problem> {
        let rights = CallerRights {
            passes: passes_tools(book, agent),
            is_trusted: trusts_callers(book, agent),
            takes_states: self.takes_states,
        };
        let is_users = message.role == "user";
        if !rights.passes {
            self.chat.require_plain()?;
            if !is_users {
                return Err(not_user(path));
            }
        }
        if !rights.is_trusted {
            let of_tools = [
                (self.chat.has_tools(), "tools"),
                (self.chat.has_functions(), "functions"),
                (!is_users, path),
            ];
            if let Some((_, part)) = of_tools.into_iter().find(|(is_there, _)| *is_there) {
                return Err(needs_trust(agent, part));
            }
        }
        Ok(rights)
    }

    /// The conversation that the call carries.
    fn conversation(
        &self,
        agent: &Name,
        message: &UserMessage,
        place: CarriedPlace,
    ) -> Conversation {
        let (earlier, context) = self.chat.earlier(self.takes_states);
        Conversation {
            agent: agent.clone(),
            earlier,
            message: CarriedMessage::by_user(&message.text, &message.files),
            context,
            key: self.call.asked.key_of("", &[]).map(|key| key.key),
            arrived: self.call.arrived,
            place,
        }
    }

    /// The session that the call creates: of the app and the user of the session that a reference names, if there is one.
    fn new_session(
        &self,
        agent: &Name,
        referred: Option<(Name, String)>,
    ) -> Result<SessionInput, Problem> {
        self.require_no_decisions("a new session")?;
        let (call, chat) = (&self.call, &self.chat);
        let in_body = chat.user.as_ref().or(chat.safety_identifier.as_ref());
        let app_name = call.app_name.as_ref().map_or("default", Name::as_str);
        let named = in_body.map(String::as_str);
        Ok(match referred {
            Some((own_app, user)) => SessionInput {
                user: Some(user),
                ..call.new_session(own_app.as_str(), agent, None)
            },
            None => call.new_session(app_name, agent, named),
        })
    }

    /// Refuses decisions where no session exists yet.
    fn require_no_decisions(&self, what: &str) -> Result<(), Problem> {
        if self.chat.decisions().is_empty() {
            return Ok(());
        }
        let detail = format!("`statehold.decisions`: {what} has no holds; name the session");
        Err(Problem::invalid(detail).with("path", "statehold.decisions"))
    }
}

/// Whether the answer carries a reference: `x-statehold-reference` is 1 or 0.
fn wants_reference(headers: &HeaderMap) -> Result<Option<bool>, Problem> {
    match text(headers, "x-statehold-reference")? {
        None => Ok(None),
        Some("1") => Ok(Some(true)),
        Some("0") => Ok(Some(false)),
        Some(_) => {
            let detail = "`x-statehold-reference` is 1, for a reference with the answer, or 0";
            Err(Problem::new(Code::BadHeader, detail))
        }
    }
}

/// The data of an input in a session, from a client of DIAL.
#[derive(Serialize)]
struct DialData<'a> {
    dial: &'a RawValue,
}

/// The problem for a last message that is not of a user.
fn not_user(path: &str) -> Problem {
    let detail = format!("`{path}` is the last message; it must have the role `user`");
    Problem::invalid(detail).with("path", format!("{path}.role"))
}

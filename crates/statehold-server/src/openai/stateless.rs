//! Calls without a session: the caller sends the whole conversation, and an agent of this server answers in
//! a session in memory, which is deleted at the end of the call.

use std::collections::BTreeSet;
use std::sync::Arc;

use statehold_agents::scratch::ScratchEngine;
use statehold_agents::spec::{AgentBook, AgentKind};
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_engine::api::json::{raw_bytes, to_body};
use statehold_engine::api::session;
use statehold_engine::api::turn::{
    OpenTurn, TurnInput, UserMessage, start_alone, stateless_session,
};
use statehold_engine::{Call, Caller};

use super::ChatCall;
use super::ask::{CallerMessages, ChatMessageIn};
use super::session::unknown_agent;
use crate::http::call::App;
use crate::http::problem::{Code, Problem};

/// A session in memory, which is deleted when this is dropped.
pub(crate) struct ScratchSession {
    room: Arc<ScratchEngine>,
    caller: Caller,
    session: SessionId,
}

impl Drop for ScratchSession {
    fn drop(&mut self) {
        let (room, session) = (Arc::clone(&self.room), self.session);
        let call = Call::by(self.caller.clone());
        let forget = async move {
            if let Err(error) = session::delete(room.engine(), &call, session).await {
                tracing::debug!(%error, "a session in memory stays until the server stops");
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(forget));
        }
    }
}

impl ChatCall {
    /// Begins a turn without a session.
    pub(super) async fn begin_stateless(
        &self,
        app: &App,
        agent: &Name,
        message: &ChatMessageIn,
        path: &str,
    ) -> Result<(OpenTurn, ScratchSession), Problem> {
        self.require_no_session("a call without a session")?;
        let declared = app.options.agents.get();
        require_stateless(&declared, agent)?;
        let scratch = app.options.scratch.as_ref();
        let scratch = scratch.ok_or_else(|| agent_needs_session(agent))?;
        let room = scratch.enter().await.map_err(|error| {
            tracing::error!(%error, "no engine in memory can be started");
            Problem::new(
                Code::Internal,
                "the server cannot take calls without a session now",
            )
        })?;
        // The configuration may have been reloaded meanwhile: the declarations of the room count.
        let book = room.book().unwrap_or(&declared);
        require_stateless(book, agent)?;
        let spec = book.agent(agent);
        let passes = spec.is_some_and(|spec| matches!(spec.kind, AgentKind::Openai(_)));
        let is_user = message.role == "user";
        if !passes {
            self.chat.require_plain()?;
            if !is_user {
                return Err(not_user(path));
            }
        }
        let is_plain = is_user && message.is_text();
        let conversation = CallerMessages::of(&self.chat, &self.body, passes, is_plain);
        let message = UserMessage {
            data: Some(raw_bytes(&to_body(&conversation))),
            ..message.user_message(path)?
        };
        let engine = room.engine();
        let (caller, session) = stateless_session(engine, &self.asked.caller, agent).await?;
        let scratch = ScratchSession {
            room: Arc::clone(&room),
            caller: caller.clone(),
            session,
        };
        let input = TurnInput {
            call: Call::by(caller),
            key: None,
            session,
            agent: agent.clone(),
            task: None,
            message,
            credential: self.credential.clone(),
            decides_elsewhere: false,
        };
        let turn = start_alone(&app.engine, engine, &input).await?;
        Ok((turn, scratch))
    }
}

/// Requires that the agent is declared and can work without a session.
fn require_stateless(book: &AgentBook, agent: &Name) -> Result<(), Problem> {
    if book.agent(agent).is_none() {
        return Err(unknown_agent(book, agent.as_str(), None));
    }
    if works_in_sessions_only(book, agent) {
        return Err(agent_needs_session(agent));
    }
    Ok(())
}

fn agent_needs_session(agent: &Name) -> Problem {
    let detail = format!(
        "`{agent}` works in sessions; send the header `x-statehold-session: new`, or the id of a session"
    );
    Problem::new(Code::AgentNeedsSession, detail)
}

/// The problem for a last message that is not of a user.
pub(crate) fn not_user(path: &str) -> Problem {
    let detail = format!("`{path}` is the last message; it must have the role `user`");
    Problem::invalid(detail).with("path", format!("{path}.role"))
}

/// The problem for a pause in a call without a session.
pub(crate) fn needs_session() -> Problem {
    Problem::new(
        Code::ApprovalNeedsSession,
        "somebody must decide before the agent goes on, and without a session nothing waits for them; \
         send the same message with the header `x-statehold-session: new`",
    )
}

/// Whether an agent, or an agent that it routes to, needs a session: it works in another process, or its
/// service keeps the conversation and receives only new messages.
fn works_in_sessions_only(book: &AgentBook, agent: &Name) -> bool {
    let (mut open, mut seen) = (vec![agent], BTreeSet::new());
    while let Some(agent) = open.pop() {
        if !seen.insert(agent) {
            continue;
        }
        match book.agent(agent).map(|spec| &spec.kind) {
            None | Some(AgentKind::Worker | AgentKind::Conversations(_)) => return true,
            Some(AgentKind::Router(router)) => open.extend(&router.agents),
            Some(_) => {}
        }
    }
    false
}

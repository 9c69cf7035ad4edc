//! Calls that leave nothing: the caller sends the conversation, an agent of this server answers in a
//! session in memory, and the session goes with the call.

use std::collections::BTreeSet;
use std::sync::Arc;

use statehold_agents::scratch::ScratchEngine;
use statehold_agents::spec::{AgentBook, AgentKind};
use statehold_core::command::{Command, StartRequest, StatePatch};
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_engine::{Call, Caller, Credential, Engine, Reply};

use super::ask::{CallerMessages, ChatIn, ChatMessageIn};
use super::session::{NewSession, unknown_agent};
use super::turn::{Place, as_client, start_on};
use crate::http::call::{App, CallContext};
use crate::http::problem::{Code, Problem};
use statehold_engine::api::json::{raw_bytes, to_body};

/// Whose sessions these are: nobody's.
const NOBODY: &str = "stateless";

/// A session in memory, which goes when this does.
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
            let engine = room.engine();
            let payloads = engine.no_payloads();
            let reply: Reply = Arc::new(|_| Vec::new());
            // It stops whatever still runs there.
            let deleted = engine
                .submit(session, &call, &Command::DeleteSession, &payloads, &reply)
                .await;
            if let Err(error) = deleted {
                tracing::debug!(%error, "a session in memory stays until the server stops");
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(forget));
        }
    }
}

/// A call without a session.
pub(crate) struct Stateless<'a> {
    pub(crate) app: &'a App,
    pub(crate) asked: &'a CallContext,
    pub(crate) chat: &'a ChatIn,
    pub(crate) body: &'a [u8],
    pub(crate) agent: &'a Name,
    pub(crate) credential: Option<&'a Credential>,
}

impl Stateless<'_> {
    /// Begins the turn.
    pub(crate) async fn begin(
        &self,
        message: &ChatMessageIn,
        path: &str,
    ) -> Result<(Place, ScratchSession), Problem> {
        let declared = self.app.options.agents.get();
        self.require_no_session(&declared)?;
        let scratch = self.app.options.scratch.as_ref();
        let scratch = scratch.ok_or_else(|| self.needs_session())?;
        let room = scratch.enter().await.map_err(|error| {
            tracing::error!(%error, "no engine in memory can be started");
            Problem::new(
                Code::Internal,
                "the server cannot take calls without a session now",
            )
        })?;
        // It may have been declared otherwise, or not at all, since we looked: what counts in there counts.
        let book = room.book().unwrap_or(&declared);
        self.require_no_session(book)?;
        let spec = book.agent(self.agent);
        let passes = spec.is_some_and(|spec| matches!(spec.kind, AgentKind::Openai(_)));
        let is_user = message.role == "user";
        if !passes {
            self.chat.require_plain()?;
            if !is_user {
                return Err(not_user(path));
            }
        }
        let words = message.words(path)?;
        let is_plain = is_user && message.is_text();
        let data = CallerMessages::of(self.chat, self.body, passes, is_plain);
        let engine = room.engine();
        let caller = self.caller(engine).await?;
        let new = NewSession {
            app: NOBODY.parse().expect("a fixed name is a name"),
            user: NOBODY.to_owned(),
            agent: self.agent.clone(),
            key: None,
        };
        let session = new.create(engine, &caller).await?;
        let scratch = ScratchSession {
            room: Arc::clone(&room),
            caller: caller.clone(),
            session,
        };
        let owner = engine.owner(session).await?;
        let mut payloads = engine.payloads_for(&owner.tenant, owner.user).await?;
        let data = Some(raw_bytes(&to_body(&data)));
        let input = words.to_input(data, self.credential.is_some(), &mut payloads);
        let start = Command::StartRequest(StartRequest {
            agent: self.agent.clone(),
            task: None,
            parent: None,
            input: input.body,
            attachments: input.attachments,
            close_on: statehold_core::task::CloseOn::default(),
            lease_ttl_ms: None,
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        });
        let call = Call::by(caller.clone());
        let begun = start_on(
            engine,
            session,
            &call,
            &start,
            &payloads,
            self.credential,
            None,
        );
        let (request, task, _) = begun.await?;
        let place = Place {
            engine: engine.clone(),
            reader: as_client(&caller),
            caller,
            session,
            task,
            request,
            tells_own_holds: false,
        };
        Ok((place, scratch))
    }

    /// The agent is there, and can do without a session.
    fn require_no_session(&self, book: &AgentBook) -> Result<(), Problem> {
        if book.agent(self.agent).is_none() {
            return Err(unknown_agent(book, self.agent.as_str(), None));
        }
        if works_in_sessions_only(book, self.agent) {
            return Err(self.needs_session());
        }
        Ok(())
    }

    fn needs_session(&self) -> Problem {
        Problem::new(
            Code::AgentNeedsSession,
            format!(
                "`{}` works in sessions; send the header `x-statehold-session: new`, or the id of a \
                 session",
                self.agent
            ),
        )
    }

    /// Who calls there: nobody in particular, unless it is the developer, who sees inside.
    async fn caller(&self, engine: &Engine) -> Result<Caller, Problem> {
        let asked = &self.asked.caller;
        if asked.principal == Principal::Local {
            return Ok(asked.clone());
        }
        // A right that is missing here is missing there.
        if !asked.has(statehold_engine::Role::Client) {
            let needs = statehold_engine::Role::Client;
            return Err(statehold_engine::EngineError::Forbidden { needs }.into());
        }
        let user = engine.user_id(&asked.tenant, NOBODY).await?;
        Ok(Caller {
            principal: Principal::User(user),
            user: Some(user),
            agents: BTreeSet::new(),
            ..as_client(asked)
        })
    }
}

/// The last message of a call is what a user says.
pub(crate) fn not_user(path: &str) -> Problem {
    let detail = format!("`{path}` is the last message; it must have the role `user`");
    Problem::invalid(detail).with("path", format!("{path}.role"))
}

/// A pause in a call that leaves nothing.
pub(crate) fn needs_session() -> Problem {
    Problem::new(
        Code::ApprovalNeedsSession,
        "somebody must decide before the agent goes on, and without a session nothing waits for them; \
         send the same message with the header `x-statehold-session: new`",
    )
}

/// Whether an agent, or one that it asks, cannot do without a session: it works in another process, or it
/// keeps the conversation elsewhere, where it would stay, and hears only what is new.
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

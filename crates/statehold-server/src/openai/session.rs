//! Which session a chat call is about: the one it names, a new one, or none.

use std::sync::Arc;

use http::HeaderMap;
use statehold_agents::spec::{AgentBook, AgentSpec, ChatDefault};
use statehold_core::command::{Command, StatePatch};
use statehold_core::ids::{IdMint, SessionId, Shard};
use statehold_core::name::Name;
use statehold_core::session::Owner;
use statehold_engine::{Call, Caller, Committed, Engine, IdempotencyKey, Reply};

use super::ask::{ChatIn, ConversationIn};
use crate::http::call::{App, text};
use crate::http::problem::{Code, Problem};

/// How many agents an error names.
const NAMED_MAX: usize = 20;

/// What a call says about its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// This one.
    Session(SessionId),
    /// A new one.
    New,
    /// Nothing: the agent decides.
    Unsaid,
}

impl Wanted {
    pub(crate) fn of(headers: &HeaderMap, chat: &ChatIn) -> Result<Self, Problem> {
        let header = text(headers, "x-statehold-session")?;
        let body = chat.conversation.as_ref().map(ConversationIn::text);
        let named = match (header, body) {
            (Some(header), Some(body)) if header != body => {
                let detail = "`x-statehold-session` and `conversation` differ; send one of them";
                return Err(Problem::new(Code::BadHeader, detail).with("path", "conversation"));
            }
            (named, other) => named.or(other),
        };
        match named {
            None => Ok(Self::Unsaid),
            Some("new") => Ok(Self::New),
            // What cannot be an id is the id of nothing.
            Some(id) => id
                .parse()
                .map(Self::Session)
                .map_err(|_| Problem::not_found()),
        }
    }

    /// What it comes to for an agent. None is a call that leaves nothing.
    pub(crate) fn for_agent(self, spec: &AgentSpec) -> Option<Self> {
        match (self, spec.openai_default) {
            (Self::Unsaid, ChatDefault::Stateless) => None,
            (Self::Unsaid, ChatDefault::Stateful) => Some(Self::New),
            (named, _) => Some(named),
        }
    }
}

/// A model that is no agent.
pub(crate) fn unknown_agent(book: &AgentBook, model: &str, own: Option<&Name>) -> Problem {
    let declared = book.agents.keys().filter(|name| own != Some(*name));
    let mut known: Vec<&str> = own.into_iter().chain(declared).map(Name::as_str).collect();
    let more = known.len().saturating_sub(NAMED_MAX);
    known.truncate(NAMED_MAX);
    let model: String = model.chars().take(128).collect();
    let known = match (known.is_empty(), more) {
        (true, _) => "none is declared; name a session whose agent it is".to_owned(),
        (false, 0) => format!("use one of: {}", known.join(", ")),
        (false, more) => format!("use one of: {} and {more} more", known.join(", ")),
    };
    let detail = format!("there is no agent `{model}`; {known}");
    Problem::new(Code::AgentUnknown, detail).with("path", "model")
}

/// The user of a new session: of the key, named in a header, named in the body, or nobody in particular.
pub(crate) async fn user_of(
    app: &App,
    caller: &Caller,
    in_header: Option<&str>,
    chat: &ChatIn,
) -> Result<String, Problem> {
    if let Some(bound) = caller.user {
        return Ok(app.engine.user_name(&caller.tenant, bound).await?);
    }
    let in_body = chat.safety_identifier.as_deref();
    let in_body = chat.user.as_deref().or(in_body);
    let named = in_header.or(in_body).filter(|name| !name.is_empty());
    Ok(named.unwrap_or("anonymous").to_owned())
}

/// A session to make.
pub(crate) struct NewSession {
    pub(crate) app: Name,
    pub(crate) user: String,
    pub(crate) agent: Name,
    /// The key under which it is made once.
    pub(crate) key: Option<IdempotencyKey>,
}

impl NewSession {
    /// Makes it, or finds the one that was made under the same key.
    pub(crate) async fn create(
        self,
        engine: &Engine,
        caller: &Caller,
    ) -> Result<SessionId, Problem> {
        let tenant = caller.tenant.clone();
        let shard = Shard::of_owner(tenant.as_str(), self.app.as_str(), &self.user);
        let user = engine.user_id(&tenant, &self.user).await?;
        let command = Command::CreateSession {
            owner: Owner {
                agent: self.agent,
                app: self.app,
                user,
                tenant,
            },
            name: None,
            labels: None,
            state: StatePatch::default(),
            ttl: None,
        };
        let mut mint = IdMint::new(engine.now(), shard, entropy()?);
        let session = SessionId::from_uuid(mint.next_uuid());
        let call = Call {
            caller: caller.clone(),
            key: self.key,
            if_revision: None,
        };
        let reply: Reply =
            Arc::new(|made: &Committed<'_>| made.record.content.session.to_string().into_bytes());
        let payloads = engine.no_payloads();
        let made = engine
            .submit(session, &call, &command, &payloads, &reply)
            .await?;
        let named = std::str::from_utf8(&made.body).ok();
        // What was made under the key may have been deleted since, with its answer.
        named
            .and_then(|id| id.parse().ok())
            .ok_or_else(Problem::not_found)
    }
}

fn entropy() -> Result<u64, Problem> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|_| Problem::new(Code::Internal, "the system gives no random numbers"))?;
    Ok(u64::from_le_bytes(bytes))
}

//! Sessions of the older era of the protocol, which began with `initialize`.
//!
//! The id of a session is sealed, and has what the client said of itself. So a server that was started again takes a
//! session up where it was, without having stored anything, and an id is worth nothing to another caller.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{Stream, StreamExt};
use http::HeaderMap;
use rmcp::model::{
    ClientJsonRpcMessage, Implementation, InitializeRequestParams, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::WorkerTransport;
use rmcp::transport::streamable_http_server::StreamableHttpServerConfig;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, LocalSessionWorker,
};
use rmcp::transport::streamable_http_server::session::{
    RestoreOutcome, ServerSseMessage, SessionId, SessionManager, SessionState, SessionStore,
    SessionStoreError,
};
use statehold_engine::api::caller::KeyWatch;
use statehold_engine::{Caller, Lock, Share, Shares};

use super::subscription::{KnownResource, LegacySubscriptions, Subscriber};
use crate::http::call::{App, CallContext};
use crate::http::problem::{Code, Problem};
use crate::http::seal::CONTENT_BYTES_MAX;

/// How many sessions all clients may have open at once. One principal may have a fourth of them.
const SESSIONS_MAX: usize = 4_096;
/// How many ids of ended sessions are remembered, so that they stay ended.
const ENDED_MAX: usize = 10_000;
/// An idle session is forgotten after this time, and taken up again when its client comes back.
const IDLE_MAX: Duration = Duration::from_mins(5);
/// Purposes of the seals: ids of sessions, and ids of events.
const PURPOSE: &str = "mcp session";
const EVENT_PURPOSE: &str = "mcp events";

/// The sessions of all clients.
pub(crate) struct LegacySessions {
    open: LocalSessionManager,
    shares: Shares,
    /// The open sessions: the place that each takes, and its subscriptions.
    places: Lock<HashMap<SessionId, (Share, LegacySubscriptions)>>,
    ended: Lock<EndedIds>,
    /// Requests in progress: an answer finds its request by the id.
    in_flight: Lock<HashSet<(SessionId, RequestId)>>,
    /// Begins to wait for the end of the server, with the first session.
    closer: Once,
}

impl Default for LegacySessions {
    fn default() -> Self {
        let mut open = LocalSessionManager::default();
        open.session_config.keep_alive = Some(IDLE_MAX);
        Self {
            open,
            shares: Shares::new(SESSIONS_MAX),
            places: Lock::default(),
            ended: Lock::default(),
            in_flight: Lock::default(),
            closer: Once::new(),
        }
    }
}

impl LegacySessions {
    /// Closes all sessions when the server stops: their tasks would keep the store open.
    fn close_with(&self, app: &App) {
        self.closer.call_once(|| {
            let app = app.clone();
            tokio::spawn(async move {
                app.engine.stopping().await;
                let sessions = &app.mcp_sessions;
                let open: Vec<_> = sessions.places.lock().drain().collect();
                for (id, _) in open {
                    if let Err(error) = sessions.open.close_session(&id).await {
                        tracing::debug!(%error, "a session did not close cleanly");
                    }
                }
            });
        });
    }
}

/// The sessions as one caller may use them.
#[derive(Clone)]
pub(super) struct CallerSessions {
    app: App,
    caller: Caller,
    api_key: KeyWatch,
    initialize: Option<InitializeRequestParams>,
    /// The subscriptions of the session that this call begins or takes up.
    subscriptions: LegacySubscriptions,
    /// The place of the session that this call begins.
    reserved: Arc<Lock<Option<Share>>>,
}

impl CallerSessions {
    pub(super) fn new(
        context: &CallContext,
        initialize: Option<InitializeRequestParams>,
        subscriptions: LegacySubscriptions,
    ) -> Self {
        Self {
            app: context.app.clone(),
            caller: context.caller.clone(),
            api_key: context.api_key.clone(),
            initialize,
            subscriptions,
            reserved: Arc::default(),
        }
    }

    /// Lets rmcp take up sessions of an earlier process.
    pub(super) fn stored_in(
        &self,
        config: StreamableHttpServerConfig,
    ) -> StreamableHttpServerConfig {
        let mut config = config;
        config.session_store = Some(Arc::new(self.clone()));
        config
    }

    fn all(&self) -> &LegacySessions {
        &self.app.mcp_sessions
    }

    fn bound_to(&self) -> [String; 3] {
        let session = self.caller.only_session.map(|session| session.to_string());
        [
            self.caller.tenant.to_string(),
            self.caller.principal.to_string(),
            session.unwrap_or_default(),
        ]
    }

    /// The id of a new session. What a client said of itself is cut to what the server uses, if it is long.
    fn fresh_id(&self) -> SessionId {
        let mut params = self.initialize.clone().unwrap_or_default();
        let length = |params: &InitializeRequestParams| {
            serde_json::to_vec(params).map_or(usize::MAX, |json| json.len())
        };
        params.meta = None;
        if length(&params) > CONTENT_BYTES_MAX / 2 {
            params.client_info = Implementation::new("client", "0");
            params.capabilities.experimental = None;
            params.capabilities.extensions = None;
        }
        let content = serde_json::to_vec(&params).unwrap_or_default();
        let bound_to = self.bound_to();
        let bound_to = bound_to.each_ref().map(String::as_str);
        self.app.sealer.seal(PURPOSE, &bound_to, &content).into()
    }

    /// The description that the client of a session gave of itself. None if the id is not of this caller, or has ended.
    fn open_id(&self, id: &str) -> Option<InitializeRequestParams> {
        if self.all().ended.lock().known.contains(id) {
            return None;
        }
        let bound_to = self.bound_to();
        let bound_to = bound_to.each_ref().map(String::as_str);
        let content = self.app.sealer.open(PURPOSE, &bound_to, id).ok()?;
        serde_json::from_slice(&content).ok()
    }

    /// Whether the session that a call names is one of the caller's.
    pub(super) fn is_own(&self, headers: &HeaderMap) -> bool {
        let id = headers.get("mcp-session-id");
        let id = id.and_then(|id| id.to_str().ok());
        id.is_some_and(|id| self.open_id(id).is_some())
    }

    fn require_own(&self, id: &SessionId) -> Result<(), LocalSessionManagerError> {
        match self.open_id(id) {
            Some(_) => Ok(()),
            None => Err(LocalSessionManagerError::SessionNotFound(id.clone())),
        }
    }

    /// Enters a request of a session, until its answer is sent. Two with one id cannot be told apart.
    pub(super) fn enter(
        &self,
        headers: &HeaderMap,
        id: Option<RequestId>,
    ) -> Result<Option<InFlight>, Problem> {
        let session = headers.get("mcp-session-id");
        let session = session.and_then(|session| session.to_str().ok());
        let (Some(session), Some(id)) = (session, id) else {
            return Ok(None);
        };
        let key = (SessionId::from(session), id);
        if !self.all().in_flight.lock().insert(key.clone()) {
            let detail = "a request with this id is in progress in this session; use another id";
            return Err(Problem::invalid(detail));
        }
        let app = self.app.clone();
        Ok(Some(InFlight { app, key }))
    }

    /// Reserves a place for the session that this call begins.
    pub(super) fn reserve(&self) -> Result<(), Problem> {
        let share = self.all().shares.take(&self.caller, 1);
        let share = share.map_err(|_| {
            let detail =
                "too many MCP sessions are open for this key; end some, or wait five minutes";
            Problem::new(Code::TooMany, detail)
        })?;
        *self.reserved.lock() = Some(share);
        Ok(())
    }

    /// Takes a place for a session. The session is refused if the caller has too many.
    fn take_place(&self, id: &SessionId) -> Result<(), LocalSessionManagerError> {
        self.all().close_with(&self.app);
        let refused = || LocalSessionManagerError::SessionNotFound(id.clone());
        let reserved = self.reserved.lock().take();
        let share = if let Some(share) = reserved {
            share
        } else {
            let share = self.all().shares.take(&self.caller, 1);
            share.map_err(|_| refused())?
        };
        let place = (share, self.subscriptions.clone());
        let before = self.all().places.lock().insert(id.clone(), place);
        drop(before);
        Ok(())
    }

    fn subscriptions_of(&self, id: &SessionId) -> LegacySubscriptions {
        let places = self.all().places.lock();
        let found = places.get(id).map(|(_, subscriptions)| subscriptions);
        found.cloned().unwrap_or_default()
    }

    /// The values that the id of an event is bound to.
    fn event_bound_to(&self, id: &SessionId) -> [String; 4] {
        let [tenant, principal, session] = self.bound_to();
        [tenant, principal, session, id.to_string()]
    }

    /// The subscriptions of a session as text, as many as fit into the id of an event.
    fn sealed_known(&self, id: &SessionId, subscriptions: &LegacySubscriptions) -> String {
        let mut known = subscriptions.known();
        let mut content = serde_json::to_vec(&known).unwrap_or_default();
        while content.len() > CONTENT_BYTES_MAX {
            known.truncate(known.len() / 2);
            content = serde_json::to_vec(&known).unwrap_or_default();
        }
        let bound_to = self.event_bound_to(id);
        let bound_to = bound_to.each_ref().map(String::as_str);
        self.app.sealer.seal(EVENT_PURPOSE, &bound_to, &content)
    }

    fn opened_known(&self, id: &SessionId, sealed: &str) -> Vec<KnownResource> {
        let bound_to = self.event_bound_to(id);
        let bound_to = bound_to.each_ref().map(String::as_str);
        let content = self.app.sealer.open(EVENT_PURPOSE, &bound_to, sealed).ok();
        let known = content.and_then(|content| serde_json::from_slice(&content).ok());
        known.unwrap_or_default()
    }

    /// Puts the subscriptions into the ids of the events of a stream, so that a client that comes back with the last
    /// one brings them along. A change of the subscriptions is an event without data.
    fn with_known<S>(
        &self,
        id: &SessionId,
        stream: S,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static + use<S>
    where
        S: Stream<Item = ServerSseMessage> + Send + Sync + 'static,
    {
        enum Step {
            Message(ServerSseMessage),
            Changed,
            End,
        }
        let (sessions, id) = (self.clone(), id.clone());
        let subscriptions = self.subscriptions_of(&id);
        let changes = subscriptions.changes();
        let changes = futures_util::stream::unfold(changes, |mut changes| async move {
            changes.changed().await.ok()?;
            Some((Step::Changed, changes))
        });
        let end = futures_util::stream::once(std::future::ready(Step::End));
        let steps = futures_util::stream::select(stream.map(Step::Message).chain(end), changes);
        let mut last = "0".to_owned();
        steps
            .take_while(|step| std::future::ready(!matches!(step, Step::End)))
            .map(move |step| {
                let mut message = match step {
                    Step::Message(message) => message,
                    Step::Changed | Step::End => ServerSseMessage::default(),
                };
                match message.event_id.take() {
                    Some(event) => last = event,
                    // Without an id of its own, it is no place to come back to.
                    None if message.message.is_some() => return message,
                    None => {}
                }
                let known = sessions.sealed_known(&id, &subscriptions);
                message.event_id = Some(format!("{last}/{known}"));
                message
            })
    }
}

impl SessionManager for CallerSessions {
    type Error = LocalSessionManagerError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let id = self.fresh_id();
        match self.restore_session(id.clone()).await? {
            RestoreOutcome::Restored(transport) => Ok((id, transport)),
            _ => Err(LocalSessionManagerError::SessionNotFound(id)),
        }
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.all().open.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        if self.open_id(id).is_none() {
            return Ok(false);
        }
        self.all().open.has_session(id).await
    }

    /// Also called when a session has been idle for too long: then its client may come back.
    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        let place = self.all().places.lock().remove(id);
        drop(place);
        self.all().open.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.require_own(id)?;
        self.all().open.create_stream(id, message).await
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        self.require_own(id)?;
        self.all().open.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.require_own(id)?;
        let stream = self.all().open.create_standalone_stream(id).await?;
        Ok(self.with_known(id, stream))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.require_own(id)?;
        let (event, known) = match last_event_id.split_once('/') {
            Some((event, known)) => (event.to_owned(), self.opened_known(id, known)),
            None => (last_event_id, Vec::new()),
        };
        let stream = self.all().open.resume(id, event).await?;
        let subscriber = Subscriber {
            engine: self.app.engine.clone(),
            caller: self.caller.clone(),
            api_key: self.api_key.clone(),
        };
        let subscriptions = self.subscriptions_of(id);
        subscriptions.add_again(&subscriber, known).await;
        Ok(self.with_known(id, stream))
    }

    async fn restore_session(
        &self,
        id: SessionId,
    ) -> Result<RestoreOutcome<Self::Transport>, Self::Error> {
        self.take_place(&id)?;
        self.all().open.restore_session(id).await
    }
}

/// The id has everything: there is nothing to store.
#[async_trait]
impl SessionStore for CallerSessions {
    async fn load(&self, id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        Ok(self.open_id(id).map(SessionState::new))
    }

    async fn store(&self, _: &str, _: &SessionState) -> Result<(), SessionStoreError> {
        Ok(())
    }

    /// The client has ended the session.
    async fn delete(&self, id: &str) -> Result<(), SessionStoreError> {
        self.all().ended.lock().add(id);
        Ok(())
    }
}

/// A request in progress.
pub(super) struct InFlight {
    app: App,
    key: (SessionId, RequestId),
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut in_flight = self.app.mcp_sessions.in_flight.lock();
        in_flight.remove(&self.key);
    }
}

/// The ids of sessions that their clients have ended, the newest of them.
#[derive(Debug, Default)]
struct EndedIds {
    known: HashSet<SessionId>,
    in_order: VecDeque<SessionId>,
}

impl EndedIds {
    fn add(&mut self, id: &str) {
        let id: SessionId = id.into();
        if self.known.insert(id.clone()) {
            self.in_order.push_back(id);
        }
        if self.in_order.len() > ENDED_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

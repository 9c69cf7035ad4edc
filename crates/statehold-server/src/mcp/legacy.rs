//! Sessions of the older era of the protocol, which began with `initialize`.
//!
//! The id of a session is sealed, and has what the client said of itself. So a server that was started again takes a
//! session up where it was, without having stored anything, and an id is worth nothing to another caller.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;
use http::HeaderMap;
use rmcp::model::{
    ClientJsonRpcMessage, Implementation, InitializeRequestParams, ServerJsonRpcMessage,
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
use statehold_engine::{Caller, Lock, Share, Shares};
use tokio_util::sync::CancellationToken;

use crate::http::call::{App, CallContext};
use crate::http::seal::CONTENT_BYTES_MAX;

/// How many sessions all clients may have open at once. One principal may have a fourth of them.
const SESSIONS_MAX: usize = 4_096;
/// How many ids of ended sessions are remembered, so that they stay ended.
const ENDED_MAX: usize = 10_000;
/// An idle session is forgotten after this time, and taken up again when its client comes back.
const IDLE_MAX: Duration = Duration::from_mins(5);
/// What ids are sealed for.
const PURPOSE: &str = "mcp session";

/// The sessions of all clients.
pub(crate) struct LegacySessions {
    open: LocalSessionManager,
    shares: Shares,
    /// The places that open sessions take.
    places: Lock<HashMap<SessionId, Share>>,
    ended: Lock<EndedIds>,
    stop: CancellationToken,
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
            stop: CancellationToken::new(),
        }
    }
}

impl LegacySessions {
    /// A token that is cancelled when the server stops.
    pub(super) fn stopping(&self) -> CancellationToken {
        self.stop.child_token()
    }
}

/// The sessions as one caller may use them.
#[derive(Clone)]
pub(super) struct CallerSessions {
    app: App,
    caller: Caller,
    initialize: Option<InitializeRequestParams>,
}

impl CallerSessions {
    pub(super) fn new(context: &CallContext, initialize: Option<InitializeRequestParams>) -> Self {
        Self {
            app: context.app.clone(),
            caller: context.caller.clone(),
            initialize,
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

    /// What the client of a session said of itself. None if the id is not of this caller, or has ended.
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

    /// Takes a place for a session. The session is refused if the caller has too many.
    fn take_place(&self, id: &SessionId) -> Result<(), LocalSessionManagerError> {
        let refused = || LocalSessionManagerError::SessionNotFound(id.clone());
        let share = self
            .all()
            .shares
            .take(&self.caller, 1)
            .map_err(|_| refused())?;
        let before = self.all().places.lock().insert(id.clone(), share);
        drop(before);
        Ok(())
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
        self.all().open.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.require_own(id)?;
        self.all().open.resume(id, last_event_id).await
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

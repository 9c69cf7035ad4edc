//! One connection to a tool server: connecting, requests, and their failures.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use http::StatusCode;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig,
    ClientRequest, ElicitRequestParams, ElicitResult, ElicitationCapability, ErrorData,
    FormElicitationCapability, GetExtensions, Implementation, ListToolsRequest,
    PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ProtocolVersion,
    RequestMetaObject, ServerResult, SubscriptionFilter, UrlElicitationCapability,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, NotificationContext, PeerRequestOptions,
    RequestContext, RequestHandle, RunningService, ServiceError, serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransportConfig, StreamableHttpError,
};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Map, Value};
use statehold_engine::Lock;
use statehold_engine::measures::{CallOutcome, WarnLimit};
use tokio::time::Instant;

use super::McpTool;
use super::child::{self, ProgramLifecycle, SentFlag, StderrTail};
use super::http::{ANSWER_BYTES_MAX, McpHttpClient, PostError};
use super::listing::{TOOLS_MAX, accept_tool};
use super::question::{self, CallsInFlight, NoAnswers, QuestionSink};
use crate::exchange::OpenExchange;
use crate::http::redact_and_clip;
use crate::spec::{SecretHeader, ToolServerSpec, ToolTransport};
use crate::turn_watch::ServiceCall;

/// How long a tool list is cached.
const LISTING_AGE_MAX: Duration = Duration::from_secs(30);
/// Most pages of a tool list. Some servers send one tool per page.
const PAGES_MAX: usize = TOOLS_MAX;
/// Most concurrent calls to one server over HTTP.
const CALLS_MAX: usize = 256;
/// How long a call may take beyond its timeout while the server reports progress.
const PROGRESS_MAX: Duration = Duration::from_hours(1);
/// Most bytes of the state that a tool wants back with the answers of people.
const STATE_BYTES_MAX: usize = 64 * 1024;
/// How often a tool may ask people before it has its result.
const ROUNDS_MAX: usize = 33;
/// Timeout for sending a cancellation.
const CANCEL_MAX: Duration = Duration::from_secs(5);
/// Most attempts to reopen a notification stream. After that, lists expire by age only.
const STREAM_RETRIES_MAX: usize = 3;

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum McpFailure {
    /// The connection is broken. `sent`: the request may have arrived.
    Gone { sent: bool },
    /// The deadline passed. `sent`: the request may have arrived.
    Slow { sent: bool },
    /// The server answered with an error.
    ErrorReply(ErrorData),
    /// The call ended, and is made again when a person has answered a question of the tool.
    WaitsForPerson,
    /// The request was rejected, or its result cannot be used here.
    Refused { message: String, sent: bool },
    /// The request may have arrived, and the response is not an MCP answer.
    Unclear(String),
}

impl McpFailure {
    /// The same failure of a call that was sent before.
    fn after_a_call(self) -> Self {
        match self {
            Self::Gone { .. } => Self::Gone { sent: true },
            Self::Slow { .. } => Self::Slow { sent: true },
            Self::Refused { message, .. } => Self::Refused {
                message,
                sent: true,
            },
            other => other,
        }
    }

    /// How the call ended, for operators: without the texts of the server.
    pub(super) fn call_outcome(&self) -> CallOutcome {
        let reason = match self {
            Self::ErrorReply(_) => return CallOutcome::Refused,
            Self::WaitsForPerson => return CallOutcome::Ok,
            Self::Gone { .. } => "the connection was lost, or none could be made",
            Self::Slow { .. } => "no answer in time",
            Self::Refused { message, .. } | Self::Unclear(message) => message,
        };
        CallOutcome::Failed(Some(reason.to_owned()))
    }

    /// A call that the server answered with something that cannot be used here.
    fn refused(message: &str) -> Self {
        Self::Refused {
            message: message.to_owned(),
            sent: true,
        }
    }
}

/// When the server last reported progress of each request in flight. None if it has not.
type LastProgress = Mutex<HashMap<ProgressToken, Option<Instant>>>;

/// Handles notifications and questions of a server. This client offers no sampling and no roots.
#[derive(Debug, Default)]
struct ServerListener {
    /// Number of `tools/list_changed` notifications.
    changes: Arc<AtomicU64>,
    progress: Arc<LastProgress>,
    calls: Arc<CallsInFlight>,
}

impl ClientHandler for ServerListener {
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("statehold", env!("CARGO_PKG_VERSION"));
        let elicitation = ElicitationCapability::new()
            .with_form(FormElicitationCapability::new())
            .with_url(UrlElicitationCapability::new());
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(elicitation);
        ClientConfig::new(capabilities, us)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = progress.get_mut(&params.progress_token) {
            *last = Some(Instant::now());
        }
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(self.calls.ask(&params, &context).await)
    }
}

/// Limits the warnings that a server cannot be connected to.
pub(super) type ConnectWarnings = Lock<WarnLimit>;

type McpService = RunningService<RoleClient, ServerListener>;

/// Cached tool list of a server.
struct CachedTools {
    at: Instant,
    changes: u64,
    tools: Arc<Vec<McpTool>>,
}

pub(super) struct McpConnection {
    spec: Arc<ToolServerSpec>,
    service: McpService,
    /// Lifecycle of the program, if the server is one.
    lifecycle: Option<ProgramLifecycle>,
    is_retired: AtomicBool,
    changes: Arc<AtomicU64>,
    /// Locked while listing, so that concurrent turns list once. Calls do not take it.
    cache: tokio::sync::Mutex<Option<CachedTools>>,
}

impl McpConnection {
    /// Connects. The caller enforces the deadline.
    pub(super) async fn connect(
        spec: &Arc<ToolServerSpec>,
        (http, warnings): (&OnceLock<Option<McpHttpClient>>, &ConnectWarnings),
    ) -> Result<Self, McpFailure> {
        // Nearly all servers support the initialize handshake. If a server rejects it, use the newer
        // discovery.
        let mut service = open(spec, (http, warnings), ClientLifecycleMode::Initialize).await;
        let mut is_newer = false;
        if let Err(McpFailure::ErrorReply(_)) = service {
            let newer = ClientLifecycleMode::Discover {
                preferred_versions: vec![ProtocolVersion::LATEST],
            };
            service = open(spec, (http, warnings), newer).await;
            is_newer = true;
        }
        let (service, lifecycle) = service?;
        let changes = service.service().changes.clone();
        if is_newer {
            subscribe_to_changes(&service, changes.clone());
        }
        Ok(Self {
            spec: spec.clone(),
            service,
            lifecycle,
            is_retired: AtomicBool::new(false),
            changes,
            cache: tokio::sync::Mutex::default(),
        })
    }

    /// Whether the connection is known to be broken or is retired.
    pub(super) fn is_broken(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
            || self
                .lifecycle
                .as_ref()
                .is_some_and(ProgramLifecycle::is_ended)
            || self.service.is_transport_closed()
    }

    /// Accepts no new calls; running calls finish.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    /// Closes the connection, and ends its program with all child processes.
    pub(super) async fn close(mut self, max: Duration) {
        if let Err(error) = self.service.close_with_timeout(max).await {
            tracing::warn!(server = %self.spec.name, %error, "a tool server did not close cleanly");
        }
        let Some(lifecycle) = &self.lifecycle else {
            return;
        };
        if tokio::time::timeout(max, lifecycle.kill()).await.is_err() {
            tracing::warn!(server = %self.spec.name, "the program of a tool server does not exit");
        }
    }

    /// Calls a tool by its name on the server. A tool that needs the answers of people is called again with them.
    pub(super) async fn call(
        &self,
        (tool, arguments): (&str, &Map<String, Value>),
        meta: RequestMetaObject,
        mut deadline: Instant,
        people: &dyn QuestionSink,
    ) -> Result<CallToolResult, McpFailure> {
        people.begin();
        let mut params =
            CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments.clone());
        for round in 0..ROUNDS_MAX {
            let call = CallToolRequest::new(params.clone());
            let request = ClientRequest::CallToolRequest(call);
            // Without what people have answered, which may be a credential.
            let mut exchange = OpenExchange::tool(
                || format!("{} {tool}", self.spec.name),
                || serde_json::to_vec(arguments).unwrap_or_default(),
                self.spec.secrets(),
            );
            let mut watched = ServiceCall::to_tool_server(&self.spec.name);
            let sending = self.send_request(request, Some(meta.clone()), deadline, Some(people));
            let answer = sending.await;
            watched.end(&outcome_of(&answer));
            if let Some(exchange) = &mut exchange {
                note_answer(exchange, &answer);
            }
            drop(exchange);
            let answer = answer.map_err(|failure| match round {
                0 => failure,
                // The tool has run before it asked.
                _ => failure.after_a_call(),
            });
            let required = match answer? {
                ServerResult::CallToolResult(result) => return Ok(result),
                ServerResult::InputRequiredResult(required) => required,
                ServerResult::CreateTaskResult(_) => {
                    let what = "the tool answers asynchronously, which is not supported";
                    return Err(McpFailure::refused(what));
                }
                _ => {
                    let what = "the response is not a tool result";
                    return Err(McpFailure::Unclear(what.to_owned()));
                }
            };
            if required
                .request_state
                .as_ref()
                .is_some_and(|state| state.len() > STATE_BYTES_MAX)
            {
                let what = "the state that the tool wants back has more than 64 KiB";
                return Err(McpFailure::refused(what));
            }
            let answers = match question::answer_all(required.input_requests, people).await {
                Ok(answers) => answers,
                Err(NoAnswers::Later) => return Err(McpFailure::WaitsForPerson),
                Err(NoAnswers::Unsupported(why)) => return Err(McpFailure::refused(why)),
            };
            params.input_responses = Some(answers);
            params.request_state = required.request_state;
            deadline = Instant::now() + self.spec.timeout;
        }
        Err(McpFailure::refused("the tool asks again and again"))
    }

    /// Returns the cached tool list, or lists again after a change or when the cache has expired.
    pub(super) async fn tools(&self, deadline: Instant) -> Result<Arc<Vec<McpTool>>, McpFailure> {
        let cache = tokio::time::timeout_at(deadline, self.cache.lock()).await;
        let mut cache = cache.map_err(|_| McpFailure::Slow { sent: false })?;
        // Read the counter before listing: a change during listing must trigger another.
        let changes = self.changes.load(Ordering::Relaxed);
        if let Some(found) = &*cache
            && found.changes == changes
            && found.at.elapsed() < LISTING_AGE_MAX
        {
            return Ok(found.tools.clone());
        }
        let tools = Arc::new(self.fetch_tools(deadline, cache.is_none()).await?);
        *cache = Some(CachedTools {
            at: Instant::now(),
            changes,
            tools: tools.clone(),
        });
        Ok(tools)
    }

    #[cfg(test)]
    pub(super) async fn grow_older(&self, by: Duration) {
        if let Some(cache) = &mut *self.cache.lock().await {
            cache.at -= by;
        }
    }

    /// Whether the server still has a tool, by a fresh list. True if the list fails.
    pub(super) async fn still_has(&self, tool: &str, deadline: Instant) -> bool {
        self.changes.fetch_add(1, Ordering::Relaxed);
        match self.tools(deadline).await {
            Ok(tools) => tools.iter().any(|found| found.original == tool),
            Err(_) => true,
        }
    }

    /// Lists the tools. The library's own method has no page limit, and caches the list for a day.
    async fn fetch_tools(
        &self,
        deadline: Instant,
        is_first: bool,
    ) -> Result<Vec<McpTool>, McpFailure> {
        let mut tools = Vec::new();
        let mut left_out = 0_usize;
        let mut cursor = None;
        for _ in 0..PAGES_MAX {
            let params = PaginatedRequestParams::default().with_cursor(cursor);
            let request = ListToolsRequest::with_param(params);
            let request = ClientRequest::ListToolsRequest(request);
            let ServerResult::ListToolsResult(page) =
                self.send_request(request, None, deadline, None).await?
            else {
                return Err(McpFailure::Refused {
                    message: "its answer is not a list of tools".to_owned(),
                    sent: true,
                });
            };
            for tool in page.tools {
                match accept_tool(&self.spec, tool) {
                    Some(tool) if tools.len() < TOOLS_MAX => tools.push(tool),
                    _ => left_out += 1,
                }
            }
            cursor = page.next_cursor;
            if cursor.is_none() || tools.len() == TOOLS_MAX {
                break;
            }
        }
        let more = cursor.is_some();
        if is_first && (left_out > 0 || more) {
            tracing::warn!(
                server = %self.spec.name,
                left_out,
                more,
                "some tools of this server are not offered: a server may have {TOOLS_MAX}, a name 64 letters, a schema 64 KiB, and no tool may run only as a task"
            );
        }
        Ok(tools)
    }

    /// Sends a request and waits for its result. Requests run concurrently.
    async fn send_request(
        &self,
        mut request: ClientRequest,
        meta: Option<RequestMetaObject>,
        deadline: Instant,
        people: Option<&dyn QuestionSink>,
    ) -> Result<ServerResult, McpFailure> {
        let mut options = PeerRequestOptions::no_options();
        options.meta = meta;
        let sent = SentFlag::default();
        request.extensions_mut().insert(sent.clone());
        let sending = self.service.send_cancellable_request(request, options);
        let handle = match tokio::time::timeout_at(deadline, sending).await {
            Ok(Ok(handle)) => handle,
            Ok(Err(_)) => return Err(McpFailure::Gone { sent: false }),
            Err(_) => return Err(McpFailure::Slow { sent: false }),
        };
        // Only calls of tools may ask: no person stands behind other requests.
        let calls = &self.service.service().calls;
        let mut entered = people.map(|people| (calls.enter(handle.id.clone()), people));
        let progress = ProgressWatch::new(&self.service.service().progress, &handle);
        let mut pending = PendingAnswer(Some(handle));
        let handle = pending.0.as_mut().expect("it was put there just now");
        // Over HTTP, the library does not report whether a request was sent, so assume it was.
        let may_have_been_sent = || self.lifecycle.is_none() || sent.is_sent();
        let (mut deadline, mut last) = (deadline, deadline + PROGRESS_MAX);
        let answer = loop {
            let question = async {
                match &mut entered {
                    Some(((_, questions), people)) => (questions.recv().await, *people),
                    None => std::future::pending().await,
                }
            };
            let question = tokio::select! {
                biased;
                answer = &mut handle.rx => break answer.ok(),
                () = self.wait_for_end_of_output() => break None,
                (Some(question), people) = question => Some((question, people)),
                () = tokio::time::sleep_until(deadline) => None,
            };
            if let Some((pending, people)) = question {
                let begun = Instant::now();
                let answer = tokio::select! {
                    biased;
                    answer = &mut handle.rx => break answer.ok(),
                    () = self.wait_for_end_of_output() => break None,
                    answer = people.ask(pending.question) => answer,
                };
                let Some(answer) = answer else {
                    return Err(McpFailure::WaitsForPerson);
                };
                // The time of people is not the time of the tool.
                (deadline, last) = (deadline + begun.elapsed(), last + begun.elapsed());
                // If the server no longer waits, the answer of the call says so.
                drop(pending.answer.send(answer));
                continue;
            }
            let next = progress.last().map(|at| (at + self.spec.timeout).min(last));
            let Some(next) = next.filter(|next| *next > deadline) else {
                let sent = may_have_been_sent();
                return Err(McpFailure::Slow { sent });
            };
            deadline = next;
        };
        pending.0 = None;
        match answer {
            Some(Ok(result)) => Ok(result),
            Some(Err(error)) => Err(request_failure(error)),
            None => Err(McpFailure::Gone {
                sent: may_have_been_sent(),
            }),
        }
    }

    /// Waits until no further answer can arrive.
    async fn wait_for_end_of_output(&self) {
        match &self.lifecycle {
            Some(lifecycle) => lifecycle.wait_for_end_of_output().await,
            None => std::future::pending().await,
        }
    }
}

/// Watches the progress of one request, until it is dropped.
struct ProgressWatch<'a> {
    progress: &'a LastProgress,
    token: ProgressToken,
}

impl<'a> ProgressWatch<'a> {
    fn new(progress: &'a LastProgress, handle: &RequestHandle<RoleClient>) -> Self {
        let token = handle.progress_token.clone();
        let mut all = progress.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(token.clone(), None);
        drop(all);
        Self { progress, token }
    }

    fn last(&self) -> Option<Instant> {
        let all = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&self.token).copied().flatten()
    }
}

impl Drop for ProgressWatch<'_> {
    fn drop(&mut self) {
        let mut all = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.token);
    }
}

/// How a call ended, for operators.
fn outcome_of(answer: &Result<ServerResult, McpFailure>) -> CallOutcome {
    match answer {
        Ok(ServerResult::CallToolResult(result)) if result.is_error == Some(true) => {
            CallOutcome::Refused
        }
        Ok(_) => CallOutcome::Ok,
        Err(failure) => failure.call_outcome(),
    }
}

/// Notes the answer to a call in its exchange.
fn note_answer(exchange: &mut OpenExchange, answer: &Result<ServerResult, McpFailure>) {
    match answer {
        Ok(result) => exchange.receive(&serde_json::to_vec(result).unwrap_or_default()),
        Err(McpFailure::ErrorReply(error)) => {
            exchange.receive(&serde_json::to_vec(error).unwrap_or_default());
            exchange.fail(&"the server answered with an error");
        }
        Err(McpFailure::Gone { .. }) => exchange.fail(&"the connection was lost"),
        Err(McpFailure::Slow { .. }) => exchange.fail(&"no answer in time"),
        Err(McpFailure::WaitsForPerson) => exchange.fail(&"the tool asks a person"),
        Err(McpFailure::Refused { message, .. } | McpFailure::Unclear(message)) => {
            exchange.fail(message);
        }
    }
}

/// A pending request. Dropping it sends a cancellation to the server.
struct PendingAnswer(Option<RequestHandle<RoleClient>>);

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let Some(handle) = self.0.take() else {
            return;
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let cancel = handle.cancel(Some("the answer is no longer needed".to_owned()));
            runtime.spawn(async move { drop(tokio::time::timeout(CANCEL_MAX, cancel).await) });
        }
    }
}

/// Opens a connection with one of the two handshakes.
async fn open(
    spec: &Arc<ToolServerSpec>,
    (http, warnings): (&OnceLock<Option<McpHttpClient>>, &ConnectWarnings),
    handshake: ClientLifecycleMode,
) -> Result<(McpService, Option<ProgramLifecycle>), McpFailure> {
    let listener = ServerListener::default();
    match &spec.transport {
        ToolTransport::Http {
            url,
            credential,
            headers,
        } => {
            let client = http.get_or_init(McpHttpClient::new).clone();
            let client = client.ok_or(McpFailure::Gone { sent: false })?;
            let client = client.opening_within(spec.timeout);
            let mut retries = ExponentialBackoff::default();
            retries.max_times = Some(STREAM_RETRIES_MAX);
            let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                .max_concurrent_requests(CALLS_MAX)
                .max_sse_event_size(ANSWER_BYTES_MAX)
                // Treat a lost session like any broken connection: reconnect.
                .reinit_on_expired_session(false);
            config.retry_config = Arc::new(retries);
            if let Some(credential) = credential {
                config = config.auth_header(credential.expose());
            }
            config = config.custom_headers(headers.iter().map(SecretHeader::pair).collect());
            let transport = StreamableHttpClientTransport::with_client(client, config);
            let service = serve_client_with_lifecycle(listener, transport, handshake).await;
            let service =
                service.map_err(|error| connect_failure((spec, warnings), error, None))?;
            Ok((service, None))
        }
        ToolTransport::Command {
            program,
            arguments,
            environment,
            mark,
        } => {
            let variables = child::Variables {
                declared: environment,
                mark: mark.as_deref(),
            };
            let child = child::start(spec, program, arguments, &variables);
            let (child, lifecycle, said) = child.map_err(|error| {
                if let Some(failures) = warnings.lock().next(std::time::Instant::now()) {
                    tracing::warn!(server = %spec.name, failures, program, %error, "cannot start the program of a tool server");
                }
                McpFailure::Gone { sent: false }
            })?;
            let service = serve_client_with_lifecycle(listener, child, handshake).await;
            let service =
                service.map_err(|error| connect_failure((spec, warnings), error, Some(&said)))?;
            Ok((service, Some(lifecycle)))
        }
    }
}

/// Maps a failed handshake. No request was sent yet, so no tool has run.
fn connect_failure(
    (spec, warnings): (&ToolServerSpec, &ConnectWarnings),
    error: ClientInitializeError,
    said: Option<&StderrTail>,
) -> McpFailure {
    let words = redact_and_clip(&error.to_string(), spec.secrets());
    let failure = match error {
        // The caller tries the other handshake, and reports this error only if that fails too.
        ClientInitializeError::JsonRpcError(error) => return McpFailure::ErrorReply(error),
        ClientInitializeError::TransportError { error, .. } => {
            transport_failure(error.error.as_ref())
        }
        _ => McpFailure::Gone { sent: false },
    };
    if let Some(failures) = warnings.lock().next(std::time::Instant::now()) {
        let said = said.and_then(StderrTail::last_line);
        tracing::warn!(server = %spec.name, failures, error = words, said, "cannot connect to a tool server");
    }
    match failure {
        McpFailure::Refused { message, .. } | McpFailure::Unclear(message) => McpFailure::Refused {
            message,
            sent: false,
        },
        _ => McpFailure::Gone { sent: false },
    }
}

/// Maps the error of a request that was given to the library.
fn request_failure(error: ServiceError) -> McpFailure {
    match error {
        ServiceError::McpError(error) => McpFailure::ErrorReply(error),
        ServiceError::TransportSend(error) => transport_failure(error.error.as_ref()),
        ServiceError::UnexpectedResponse => {
            McpFailure::Unclear("the response does not match the request".to_owned())
        }
        _ => McpFailure::Gone { sent: true },
    }
}

/// Maps a transport error.
fn transport_failure(error: &(dyn Error + Send + Sync + 'static)) -> McpFailure {
    // A program that does not read closes its pipe. It cannot have processed an incomplete line.
    if error.is::<std::io::Error>() {
        return McpFailure::Gone { sent: false };
    }
    match error.downcast_ref::<StreamableHttpError<PostError>>() {
        Some(
            StreamableHttpError::SessionExpired
            | StreamableHttpError::Client(PostError::NotSent(_)),
        ) => McpFailure::Gone { sent: false },
        Some(StreamableHttpError::Client(PostError::Status(status))) => {
            let message = format!("the answer was {status}");
            match *status {
                StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::TOO_MANY_REQUESTS => McpFailure::Refused {
                    message,
                    sent: false,
                },
                // A proxy may have timed out while the tool was still running.
                _ => McpFailure::Unclear(message),
            }
        }
        Some(
            StreamableHttpError::UnexpectedContentType(_) | StreamableHttpError::Deserialize(_),
        ) => McpFailure::Unclear("the response is not valid MCP".to_owned()),
        _ => McpFailure::Gone { sent: true },
    }
}

/// Subscribes to tool list changes, which the newer protocol requires.
fn subscribe_to_changes(service: &McpService, changes: Arc<AtomicU64>) {
    let peer = service.peer().clone();
    tokio::spawn(async move {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        // Without a subscription, the cache expires by age.
        let Ok(mut changes_stream) = peer.listen(filter).await else {
            return;
        };
        while let Ok(Some(_)) = changes_stream.next().await {
            changes.fetch_add(1, Ordering::Relaxed);
        }
        // Changes after the stream has ended are unknown, so invalidate the cache.
        changes.fetch_add(1, Ordering::Relaxed);
    });
}

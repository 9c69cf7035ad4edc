//! One connection to a tool server: how it is made, what is asked on it, and what can become of that.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig,
    ClientRequest, ErrorData, GetExtensions, Implementation, ListToolsRequest,
    PaginatedRequestParams, ProtocolVersion, RequestMetaObject, ServerResult, SubscriptionFilter,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, NotificationContext, PeerRequestOptions,
    RequestHandle, RunningService, ServiceError, serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransportConfig, StreamableHttpError,
};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::Tool;
use super::child::{self, Life, Said, Sent};
use super::http::{ANSWER_BYTES_MAX, HttpClient, PostError};
use super::listing::{TOOLS_MAX, accepted};
use crate::http::clip;
use crate::spec::{ToolServerSpec, ToolTransport};

/// How long a list of tools is believed without asking again.
const LISTING_AGE_MAX: Duration = Duration::from_secs(30);
/// How many pages a list of tools may have: some servers send one tool per page, none needs more.
const PAGES_MAX: usize = TOOLS_MAX;
/// How many calls may be on their way to one server over HTTP.
const CALLS_MAX: usize = 256;
/// How long saying that an answer is no longer wanted may take.
const CANCEL_MAX: Duration = Duration::from_secs(5);
/// How often a stream of notifications is opened again. After that, lists are old after their age.
const STREAM_RETRIES_MAX: usize = 3;

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection does not work any more. `sent` if the question may have arrived.
    Gone { sent: bool },
    /// It took too long.
    Slow { sent: bool },
    /// The server answered with an error.
    Said(ErrorData),
    /// The question was not taken, or its answer is not one that can be used here.
    Refused { message: String, sent: bool },
    /// The question may have arrived, and what came back is no answer of an MCP server.
    Unclear(String),
}

/// What the library calls back when a server says something by itself. This side offers nothing: no
/// sampling, no roots, no questions to people.
#[derive(Debug, Default)]
struct Listener {
    /// Counts how often the tools were said to have changed.
    changes: Arc<AtomicU64>,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("statehold", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), us)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }
}

type Service = RunningService<RoleClient, Listener>;

/// What a server last said about its tools.
struct Listed {
    at: Instant,
    changes: u64,
    tools: Arc<Vec<Tool>>,
}

pub(super) struct Connection {
    spec: Arc<ToolServerSpec>,
    service: Service,
    /// Of the program behind it, if there is one.
    life: Option<Life>,
    /// Whether it was taken out of use.
    is_given_up: AtomicBool,
    changes: Arc<AtomicU64>,
    /// Locked while the tools are listed, so that they are listed once. Calls do not wait for it.
    listed: tokio::sync::Mutex<Option<Listed>>,
}

impl Connection {
    /// Connects. Whoever calls it limits the time.
    pub(super) async fn make(
        spec: &Arc<ToolServerSpec>,
        http: &OnceLock<Option<HttpClient>>,
    ) -> Result<Self, Failure> {
        // Nearly all servers know the handshake, and those that also know the newer way need it less
        // than the others do. Whoever refuses the handshake is asked in the newer way.
        let mut service = open(spec, http, ClientLifecycleMode::Initialize).await;
        let mut is_newer = false;
        if let Err(Failure::Said(_)) = service {
            let newer = ClientLifecycleMode::Discover {
                preferred_versions: vec![ProtocolVersion::LATEST],
            };
            service = open(spec, http, newer).await;
            is_newer = true;
        }
        let (service, life) = service?;
        let changes = service.service().changes.clone();
        if is_newer {
            hear_of_changes(&service, changes.clone());
        }
        Ok(Self {
            spec: spec.clone(),
            service,
            life,
            is_given_up: AtomicBool::new(false),
            changes,
            listed: tokio::sync::Mutex::default(),
        })
    }

    /// Whether it is known not to work any more.
    pub(super) fn is_broken(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
            || self.life.as_ref().is_some_and(Life::is_over)
            || self.service.is_transport_closed()
    }

    /// Has nobody use it any more who does not yet. Calls that are under way on it may end.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Ends it, and the program behind it with all that it started.
    pub(super) async fn close(mut self, max: Duration) {
        if let Err(error) = self.service.close_with_timeout(max).await {
            tracing::warn!(server = %self.spec.name, %error, "a tool server was left in disorder");
        }
        let Some(life) = &self.life else {
            return;
        };
        if tokio::time::timeout(max, life.kill()).await.is_err() {
            tracing::warn!(server = %self.spec.name, "the program of a tool server does not end");
        }
    }

    /// Calls a tool by the name that the server gave it.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        meta: RequestMetaObject,
        deadline: Instant,
    ) -> Result<CallToolResult, Failure> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments.clone());
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let refused = |message: &str| Failure::Refused {
            message: message.to_owned(),
            sent: true,
        };
        match self.ask(request, Some(meta), deadline).await? {
            ServerResult::CallToolResult(result) => Ok(result),
            ServerResult::InputRequiredResult(_) => Err(refused(
                "the tool asks for input in the middle of its work, which it cannot get here",
            )),
            ServerResult::CreateTaskResult(_) => Err(refused(
                "the tool answers later, and its answer is not waited for here",
            )),
            _ => Err(Failure::Unclear(
                "what came back is not the answer of a tool".to_owned(),
            )),
        }
    }

    /// The tools, listed anew if they were said to have changed or the last time is long ago.
    pub(super) async fn tools(&self, deadline: Instant) -> Result<Arc<Vec<Tool>>, Failure> {
        let listed = tokio::time::timeout_at(deadline, self.listed.lock()).await;
        let mut listed = listed.map_err(|_| Failure::Slow { sent: false })?;
        // Read before asking: a change in between is one for the next time.
        let changes = self.changes.load(Ordering::Relaxed);
        if let Some(found) = &*listed
            && found.changes == changes
            && found.at.elapsed() < LISTING_AGE_MAX
        {
            return Ok(found.tools.clone());
        }
        let tools = Arc::new(self.list(deadline, listed.is_none()).await?);
        *listed = Some(Listed {
            at: Instant::now(),
            changes,
            tools: tools.clone(),
        });
        Ok(tools)
    }

    #[cfg(test)]
    pub(super) async fn grow_older(&self, by: Duration) {
        if let Some(listed) = &mut *self.listed.lock().await {
            listed.at -= by;
        }
    }

    /// Whether the server, asked now, has a tool. If it does not say, it has.
    pub(super) async fn still_has(&self, tool: &str, deadline: Instant) -> bool {
        self.changes.fetch_add(1, Ordering::Relaxed);
        match self.tools(deadline).await {
            Ok(tools) => tools.iter().any(|found| found.original == tool),
            Err(_) => true,
        }
    }

    /// Lists the tools. The library would do it without an end, and keep what it was told for a day.
    async fn list(&self, deadline: Instant, is_first: bool) -> Result<Vec<Tool>, Failure> {
        let mut tools = Vec::new();
        let mut left_out = 0_usize;
        let mut cursor = None;
        for _ in 0..PAGES_MAX {
            let params = PaginatedRequestParams::default().with_cursor(cursor);
            let request = ListToolsRequest::with_param(params);
            let request = ClientRequest::ListToolsRequest(request);
            let ServerResult::ListToolsResult(page) = self.ask(request, None, deadline).await?
            else {
                return Err(Failure::Refused {
                    message: "its answer is not a list of tools".to_owned(),
                    sent: true,
                });
            };
            for tool in page.tools {
                match accepted(&self.spec, tool) {
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
                "some tools of this server are not offered: a server may have {TOOLS_MAX}, a name 64 letters, a schema 64 KiB"
            );
        }
        Ok(tools)
    }

    /// Asks something and waits for the answer, together with everybody else who does.
    async fn ask(
        &self,
        mut request: ClientRequest,
        meta: Option<RequestMetaObject>,
        deadline: Instant,
    ) -> Result<ServerResult, Failure> {
        let mut options = PeerRequestOptions::no_options();
        options.meta = meta;
        let sent = Sent::default();
        request.extensions_mut().insert(sent.clone());
        let sending = self.service.send_cancellable_request(request, options);
        let handle = match tokio::time::timeout_at(deadline, sending).await {
            Ok(Ok(handle)) => handle,
            Ok(Err(_)) => return Err(Failure::Gone { sent: false }),
            Err(_) => return Err(Failure::Slow { sent: false }),
        };
        let mut waiting = Waiting(Some(handle));
        let handle = waiting.0.as_mut().expect("it was put there just now");
        // Over HTTP, what was given to the library may have left.
        let may_have_left = || self.life.is_none() || sent.is_sent();
        let answer = tokio::select! {
            biased;
            answer = &mut handle.rx => answer.ok(),
            () = self.until_silent() => None,
            () = tokio::time::sleep_until(deadline) => {
                let sent = may_have_left();
                return Err(Failure::Slow { sent });
            }
        };
        waiting.0 = None;
        match answer {
            Some(Ok(result)) => Ok(result),
            Some(Err(error)) => Err(unanswered(error)),
            None => Err(Failure::Gone {
                sent: may_have_left(),
            }),
        }
    }

    /// Waits until it is clear that nothing will be answered any more.
    async fn until_silent(&self) {
        match &self.life {
            Some(life) => life.until_silent().await,
            None => std::future::pending().await,
        }
    }
}

/// Somebody waits for an answer. Whoever stops waiting says so to the server.
struct Waiting(Option<RequestHandle<RoleClient>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(handle) = self.0.take() else {
            return;
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let cancel = handle.cancel(Some("nobody waits for the answer any more".to_owned()));
            runtime.spawn(async move { drop(tokio::time::timeout(CANCEL_MAX, cancel).await) });
        }
    }
}

/// Opens a connection in one of the two ways that there are.
async fn open(
    spec: &Arc<ToolServerSpec>,
    http: &OnceLock<Option<HttpClient>>,
    way: ClientLifecycleMode,
) -> Result<(Service, Option<Life>), Failure> {
    let listener = Listener::default();
    match &spec.transport {
        ToolTransport::Http { url, credential } => {
            let client = http.get_or_init(HttpClient::new).clone();
            let client = client.ok_or(Failure::Gone { sent: false })?;
            let client = client.opening_within(spec.timeout);
            let mut retries = ExponentialBackoff::default();
            retries.max_times = Some(STREAM_RETRIES_MAX);
            let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                .max_concurrent_requests(CALLS_MAX)
                .max_sse_event_size(ANSWER_BYTES_MAX)
                // A lost session is a broken connection like any other, and is remade as such.
                .reinit_on_expired_session(false);
            config.retry_config = Arc::new(retries);
            if let Some(credential) = credential {
                config = config.auth_header(credential.expose());
            }
            let transport = StreamableHttpClientTransport::with_client(client, config);
            let service = serve_client_with_lifecycle(listener, transport, way).await;
            let service = service.map_err(|error| not_made(spec, error, None))?;
            Ok((service, None))
        }
        ToolTransport::Command {
            program,
            arguments,
            environment,
        } => {
            let child = child::start(spec, program, arguments, environment);
            let (child, life, said) = child.map_err(|error| {
                tracing::warn!(server = %spec.name, program, %error, "the program of a tool server does not start");
                Failure::Gone { sent: false }
            })?;
            let service = serve_client_with_lifecycle(listener, child, way).await;
            let service = service.map_err(|error| not_made(spec, error, Some(&said)))?;
            Ok((service, Some(life)))
        }
    }
}

/// Why there is no connection. Nothing was asked yet, so nothing was done.
fn not_made(spec: &ToolServerSpec, error: ClientInitializeError, said: Option<&Said>) -> Failure {
    let words = clip(&error.to_string(), spec.secrets());
    let failure = match error {
        // Its words are in what becomes of it, unless the other way works.
        ClientInitializeError::JsonRpcError(error) => return Failure::Said(error),
        ClientInitializeError::TransportError { error, .. } => not_sent(error.error.as_ref()),
        _ => Failure::Gone { sent: false },
    };
    let said = said.and_then(Said::last_line);
    tracing::warn!(server = %spec.name, error = words, said, "a tool server cannot be connected to");
    match failure {
        Failure::Refused { message, .. } | Failure::Unclear(message) => Failure::Refused {
            message,
            sent: false,
        },
        _ => Failure::Gone { sent: false },
    }
}

/// Why a question has no answer, once it was given to the library.
fn unanswered(error: ServiceError) -> Failure {
    match error {
        ServiceError::McpError(error) => Failure::Said(error),
        ServiceError::TransportSend(error) => not_sent(error.error.as_ref()),
        ServiceError::UnexpectedResponse => {
            Failure::Unclear("what came back is not an answer to what it was asked".to_owned())
        }
        _ => Failure::Gone { sent: true },
    }
}

/// What it means that a transport could not send.
fn not_sent(error: &(dyn Error + Send + Sync + 'static)) -> Failure {
    // A program that does not read ends the pipe. A line that was not written to its end is not read
    // by anybody.
    if error.is::<std::io::Error>() {
        return Failure::Gone { sent: false };
    }
    match error.downcast_ref::<StreamableHttpError<PostError>>() {
        Some(
            StreamableHttpError::SessionExpired
            | StreamableHttpError::Client(PostError::NotSent(_)),
        ) => Failure::Gone { sent: false },
        Some(StreamableHttpError::Client(PostError::Status(status))) => {
            let message = format!("the answer was {status}");
            match *status {
                StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::TOO_MANY_REQUESTS => Failure::Refused {
                    message,
                    sent: false,
                },
                // Somebody in between may have given up on a tool that is at work.
                _ => Failure::Unclear(message),
            }
        }
        Some(
            StreamableHttpError::UnexpectedContentType(_) | StreamableHttpError::Deserialize(_),
        ) => Failure::Unclear("what came back is nothing that MCP knows".to_owned()),
        _ => Failure::Gone { sent: true },
    }
}

/// In the newer way, a server says that its tools changed to whoever listens for it.
fn hear_of_changes(service: &Service, changes: Arc<AtomicU64>) {
    let peer = service.peer().clone();
    tokio::spawn(async move {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        // A server that cannot do it is asked again when its list is old.
        let Ok(mut heard) = peer.listen(filter).await else {
            return;
        };
        while let Ok(Some(_)) = heard.next().await {
            changes.fetch_add(1, Ordering::Relaxed);
        }
        // What was said while nobody listened is unknown.
        changes.fetch_add(1, Ordering::Relaxed);
    });
}

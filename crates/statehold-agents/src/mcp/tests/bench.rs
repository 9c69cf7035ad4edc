//! Test server, over HTTP in this process or as a separate process.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorCode, ErrorData,
    InitializeRequestParams, InitializeResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ServerCapabilities, ServerConfig, SubscriptionFilter, Tool,
    ToolAnnotations,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Map, Value, json};
use statehold_engine::Credential;
use tokio::net::TcpListener;
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;

use crate::spec::ToolTransport;

/// Time between two reports of progress.
pub(super) const STEP: Duration = Duration::from_millis(500);
/// Number of concurrent calls that `together` waits for.
pub(super) const TOGETHER: usize = 8;

/// A server whose tools are named after their behaviour.
#[derive(Clone)]
pub(super) struct Bench(Arc<State>);

pub(super) struct State {
    pub(super) tools: Mutex<Vec<Tool>>,
    /// Numbers of list requests and of calls.
    pub(super) listed: AtomicUsize,
    pub(super) called: AtomicUsize,
    /// Calls of `never` that were cancelled.
    pub(super) cancelled: AtomicUsize,
    /// Whether the server supports only discovery, without the initialize handshake.
    pub(super) is_newer: AtomicBool,
    /// Credential that callers must send.
    pub(super) credential: Mutex<Option<String>>,
    together: Barrier,
    changed: watch::Sender<()>,
}

impl Default for Bench {
    fn default() -> Self {
        let schema = |tool: &str| {
            let schema = json!({"type": "object", "title": tool});
            let Value::Object(schema) = schema else {
                return Map::new();
            };
            schema
        };
        let names = [
            "echo",
            "meta",
            "who",
            "together",
            "never",
            "large",
            "wrong",
            "structured",
            "picture",
            "broken",
            "pid",
            "leave",
        ];
        let tools = names.map(|name| Tool::new(name, "a tool", schema(name)));
        Self(Arc::new(State {
            tools: Mutex::new(tools.into()),
            listed: AtomicUsize::default(),
            called: AtomicUsize::default(),
            cancelled: AtomicUsize::default(),
            is_newer: AtomicBool::default(),
            credential: Mutex::default(),
            together: Barrier::new(TOGETHER),
            changed: watch::Sender::new(()),
        }))
    }
}

impl std::ops::Deref for Bench {
    type Target = State;
    fn deref(&self) -> &State {
        &self.0
    }
}

impl Bench {
    pub(super) fn change(&self, change: impl FnOnce(&mut Vec<Tool>)) {
        change(&mut self.tools.lock().expect("no test has failed in here"));
    }

    pub(super) fn say_that_tools_changed(&self) {
        self.changed.send_replace(());
    }

    pub(super) fn with_hints(&self, tool: &'static str, hints: ToolAnnotations) {
        self.change(|tools| {
            let found = tools.iter_mut().find(|found| found.name == tool);
            found.expect("the tool is there").annotations = Some(hints);
        });
    }
}

fn said(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

/// Credential that the caller sent.
fn shown(context: &RequestContext<RoleServer>) -> String {
    let parts = context.extensions.get::<http::request::Parts>();
    let shown = parts.and_then(|parts| parts.headers.get("authorization"));
    let shown = shown.map_or("nobody", |shown| shown.to_str().expect("text"));
    shown.to_owned()
}

impl ServerHandler for Bench {
    fn get_info(&self) -> ServerConfig {
        let can = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed();
        ServerConfig::new(can.build())
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if self.is_newer.load(Ordering::Relaxed) {
            let code = ErrorCode::METHOD_NOT_FOUND;
            return Err(ErrorData::new(code, "no handshake here", None));
        }
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let mut changed = self.changed.subscribe();
        tokio::spawn(async move {
            while changed.changed().await.is_ok() {
                if context.peer.notify_tool_list_changed().await.is_err() {
                    break;
                }
            }
        });
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changed = self.changed.subscribe();
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changed.changed() => {
                    if change.is_err() || context.sink().notify_tool_list_changed().await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        const PAGE: usize = 10;
        let start = request.and_then(|page| page.cursor);
        let start: usize = start.map_or(0, |at| at.parse().expect("a cursor of ours"));
        if start == 0 {
            self.listed.fetch_add(1, Ordering::Relaxed);
        }
        let tools = self.tools.lock().expect("no test has failed in here");
        let end = (start + PAGE).min(tools.len());
        let mut page = ListToolsResult::with_all_items(tools[start..end].to_vec());
        page.next_cursor = (end < tools.len()).then(|| end.to_string());
        Ok(page)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.called.fetch_add(1, Ordering::Relaxed);
        let names: BTreeSet<_> = {
            let tools = self.tools.lock().expect("no test has failed in here");
            tools.iter().map(|tool| tool.name.to_string()).collect()
        };
        if !names.contains(request.name.as_ref()) {
            return Err(ErrorData::invalid_params("tool not found", None));
        }
        let arguments = request.arguments.unwrap_or_default();
        let result = match request.name.as_ref() {
            "meta" => said(serde_json::to_string(&context.meta).expect("JSON")),
            "who" => said(shown(&context)),
            "together" => {
                self.together.wait().await;
                said("met")
            }
            "never" => {
                context.ct.cancelled().await;
                self.cancelled.fetch_add(1, Ordering::Relaxed);
                said("too late")
            }
            "large" => {
                let bytes = arguments["bytes"].as_u64().expect("a number");
                said("é".repeat(usize::try_from(bytes / 2).expect("it fits")))
            }
            "wrong" => CallToolResult::error(vec![ContentBlock::text("no such file")]),
            "structured" => CallToolResult::structured(json!({"sum": 3})),
            "picture" => CallToolResult::success(vec![
                ContentBlock::text("a dot"),
                ContentBlock::image("AAAA", "image/png"),
                ContentBlock::text("as asked"),
            ]),
            "broken" => {
                let words = format!("the disk is full for {}", shown(&context));
                return Err(ErrorData::internal_error(words, None));
            }
            "echo" if arguments.contains_key("steps") => {
                let token = context.meta.get_progress_token().expect("a token");
                for step in 0..arguments["steps"].as_u64().expect("a number") {
                    tokio::time::sleep(STEP).await;
                    #[expect(clippy::cast_precision_loss, reason = "there are a few steps")]
                    let progress = ProgressNotificationParam::new(token.clone(), step as f64);
                    drop(context.peer.notify_progress(progress).await);
                }
                said("at last")
            }
            "pid" => said(std::process::id().to_string()),
            "leave" => std::process::exit(3),
            _ => said(
                arguments
                    .get("text")
                    .map_or("", |text| text.as_str().expect("text")),
            ),
        };
        Ok(result.into())
    }
}

/// A bench server over HTTP. Dropping it stops the server.
pub(super) struct Served {
    address: SocketAddr,
    /// A runtime of its own, so that dropping it ends all its tasks.
    tasks: tokio::task::JoinHandle<()>,
}

impl Served {
    pub(super) async fn start(bench: &Bench) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), bench, true).await
    }

    /// A server that answers with JSON, without sessions and streams.
    pub(super) async fn start_plain(bench: &Bench) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), bench, false).await
    }

    pub(super) async fn start_at(address: SocketAddr, bench: &Bench, has_sessions: bool) -> Self {
        let listener = TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let factory = bench.clone();
        let mut config = StreamableHttpServerConfig::default();
        config.legacy_session_mode = has_sessions;
        config.json_response = !has_sessions;
        let service = StreamableHttpService::new(
            move || Ok(factory.clone()),
            Arc::new(LocalSessionManager::default()),
            config,
        );
        let bench = bench.clone();
        let tasks = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                let bench = bench.clone();
                connections.spawn(async move {
                    let answer = service_fn(|request: http::Request<_>| {
                        let wanted = bench.credential.lock().expect("no test has failed").clone();
                        let shown = request.headers().get("authorization").cloned();
                        let service = service.clone();
                        async move {
                            if wanted.is_some_and(|wanted| {
                                shown.is_none_or(|shown| shown != format!("Bearer {wanted}"))
                            }) {
                                let body = Full::default().map_err(|never| match never {});
                                let refusal = http::Response::builder()
                                    .status(401)
                                    .body(body.boxed_unsync());
                                return Ok(refusal.expect("a response"));
                            }
                            let answer = hyper::service::Service::call(&service, request).await?;
                            Ok::<_, std::convert::Infallible>(answer.map(BodyExt::boxed_unsync))
                        }
                    });
                    drop(
                        http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), answer)
                            .await,
                    );
                });
            }
        });
        Self { address, tasks }
    }

    pub(super) fn transport(&self) -> ToolTransport {
        at(self.address, None)
    }

    pub(super) fn transport_as(&self, credential: &str) -> ToolTransport {
        at(self.address, Credential::new(credential.to_owned()))
    }

    /// Stops the server and all of its connections.
    pub(super) async fn stop(self) -> SocketAddr {
        self.tasks.abort();
        let address = self.address;
        super::until("the port is closed", || async move {
            tokio::net::TcpStream::connect(address).await.is_err()
        })
        .await;
        address
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

pub(super) fn at(address: SocketAddr, credential: Option<Credential>) -> ToolTransport {
    ToolTransport::Http {
        url: format!("http://{address}/mcp"),
        credential,
        headers: Vec::new(),
    }
}

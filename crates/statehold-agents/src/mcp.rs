//! Tools on MCP servers. Only this module uses the MCP library.
//!
//! A server is connected on first use. All turns share the connection, and a broken one is replaced.
//! Tool lists and tool results are untrusted text: their size is limited here. The hint that a tool is
//! idempotent counts only for servers that the configuration trusts; the hint that it is destructive
//! counts for all.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use rmcp::model::{ErrorCode, RequestMetaObject};
use serde_json::{Map, Value};
use statehold_core::name::Name;
use statehold_engine::Credential;
use statehold_engine::measures::CallOutcome;
use tokio::time::Instant;

use crate::spec::{AgentBook, ToolServerSpec, ToolTransport};
use crate::turn_watch::ServiceCall;

mod child;
mod connection;
mod error;
mod http;
mod listing;
mod question;
mod reply;
#[cfg(test)]
mod tests;

use connection::{ConnectWarnings, McpConnection, McpFailure};
pub(crate) use error::{NoAnswer, ToolError};
use http::McpHttpClient;
pub(crate) use listing::model_safe_name;
pub(crate) use question::{QuestionForm, QuestionSink, ToolAnswer, ToolQuestion};
pub(crate) use reply::{ToolMedia, ToolReply, resource_links};

/// How long closing waits for the servers.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// First and longest delay before a program that failed to start is started again. The delay doubles.
const FIRST_START_DELAY: Duration = Duration::from_millis(100);
const START_DELAY_MAX: Duration = Duration::from_secs(5);

/// A tool as offered to a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct McpTool {
    /// Name of its server.
    pub(crate) server: Name,
    /// Name for models: 1 to 64 of `A-Z a-z 0-9 _ -`, unique in the listing.
    pub(crate) name: String,
    /// Name on its server.
    pub(crate) original: String,
    /// Description given by its server.
    pub(crate) description: Option<String>,
    /// Schema of its arguments.
    pub(crate) input_schema: Arc<Value>,
    /// Whether a trusted server says that a second call has no further effect.
    pub(crate) idempotent: bool,
    /// Whether a trusted server says that it only reads.
    pub(crate) only_reads: bool,
    /// The server's hint whether it is destructive.
    pub(crate) destructive: Option<bool>,
}

/// Metadata that a tool gets with a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallMeta {
    pub(crate) session: String,
    pub(crate) task: String,
    pub(crate) request: String,
    /// The request of the coordinator, if the caller is an agent below one.
    pub(crate) turn: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) conversation: Option<ConversationMeta>,
}

/// How a tool reads the conversation.
#[derive(Debug, Clone)]
pub(crate) enum ConversationMeta {
    /// As an MCP client of this server.
    Address {
        uri: String,
        mcp_url: String,
        token: Credential,
    },
    /// The messages themselves.
    Messages(Value),
}

impl CallMeta {
    /// The token, which is redacted if the tool repeats it.
    fn token(&self) -> Option<&str> {
        match &self.conversation {
            Some(ConversationMeta::Address { token, .. }) => Some(token.expose()),
            Some(ConversationMeta::Messages(_)) | None => None,
        }
    }

    fn of_call(&self, execution_key: &str) -> RequestMetaObject {
        let mut meta = RequestMetaObject::new();
        let mut put = |key: &str, value: &str| {
            meta.insert(key.to_owned(), Value::from(value));
        };
        put("statehold/execution_key", execution_key);
        put("statehold/session", &self.session);
        put("statehold/task", &self.task);
        put("statehold/request", &self.request);
        if let Some(turn) = &self.turn {
            put("statehold/turn", turn);
        }
        if let Some(traceparent) = &self.traceparent {
            put("traceparent", traceparent);
        }
        match &self.conversation {
            Some(ConversationMeta::Address {
                uri,
                mcp_url,
                token,
            }) => {
                put("statehold/conversation_uri", uri);
                put("statehold/mcp_url", mcp_url);
                put("statehold/read_token", token.expose());
            }
            Some(ConversationMeta::Messages(messages)) => {
                let key = "statehold/conversation_history".to_owned();
                meta.insert(key, messages.clone());
            }
            None => {}
        }
        meta
    }
}

/// The tools of some servers.
#[derive(Debug, Default)]
pub(crate) struct ToolList {
    /// The tools, under unique names.
    pub(crate) tools: Vec<McpTool>,
    /// The servers that could not be asked: their tools are left out.
    pub(crate) missing: BTreeMap<Name, ToolError>,
}

/// The declared tool servers, with the connections in use. Dropping the last copy of a server ends the
/// program that it started.
pub(crate) struct ToolServers {
    servers: BTreeMap<Name, Arc<DeclaredServer>>,
    http: OnceLock<Option<McpHttpClient>>,
}

struct DeclaredServer {
    spec: Arc<ToolServerSpec>,
    /// Locked while connecting, so that only one connection is made.
    slot: tokio::sync::Mutex<ConnectionSlot>,
    warnings: ConnectWarnings,
}

#[derive(Default)]
struct ConnectionSlot {
    connection: Option<Arc<McpConnection>>,
    /// Error of the last attempt to connect, if it failed recently.
    failed: Option<ConnectFailure>,
}

struct ConnectFailure {
    error: ToolError,
    delay: Duration,
    until: Instant,
}

/// A connection for one call, and whether this call made it.
struct ReachedConnection {
    connection: Arc<McpConnection>,
    is_new: bool,
}

impl ToolServers {
    /// The servers of a book. Servers whose declaration is the same as in `before` keep their connections.
    pub(crate) fn new(book: &AgentBook, before: Option<&Self>) -> Self {
        let servers = book.tool_servers.iter().map(|(name, spec)| {
            let known = before.and_then(|before| before.servers.get(name));
            let server = match known.filter(|known| known.spec == *spec) {
                Some(known) => Arc::clone(known),
                None => Arc::new(DeclaredServer {
                    spec: spec.clone(),
                    slot: tokio::sync::Mutex::default(),
                    warnings: ConnectWarnings::default(),
                }),
            };
            (name.clone(), server)
        });
        Self {
            servers: servers.collect(),
            http: OnceLock::new(),
        }
    }

    /// Lists the tools of some servers. Makes duplicate names unique.
    pub(crate) async fn tools(&self, servers: &[Name]) -> ToolList {
        // Wait for all servers, even if one fails: a program that starts slowly must not be killed
        // because another server is down.
        let listings = join_all(servers.iter().map(|name| self.list_server(name))).await;
        let mut missing = BTreeMap::new();
        let mut listed = Vec::new();
        for (name, listing) in servers.iter().zip(listings) {
            match listing {
                Ok(tools) => listed.push(tools),
                Err(error) => drop(missing.insert(name.clone(), error)),
            }
        }
        ToolList {
            tools: listing::offered_tools(&listed, self.servers.keys()),
            missing,
        }
    }

    /// Calls a tool. An error reported by the tool itself is a reply, not an error.
    pub(crate) async fn call(
        &self,
        tool: &McpTool,
        arguments: &Map<String, Value>,
        (execution_key, meta): (&str, &CallMeta),
        people: &dyn QuestionSink,
    ) -> Result<ToolReply, ToolError> {
        let server = self.server(&tool.server)?;
        let deadline = Instant::now() + server.spec.timeout;
        let redactor = server.spec.reply_redactor(meta.token());
        let people = question::RedactedQuestions {
            people,
            secrets: &redactor,
        };
        let mut may_reconnect = true;
        loop {
            let reached = server.connect(&self.http, deadline).await?;
            let sent = meta.of_call(execution_key);
            let answer = reached
                .connection
                .call((&tool.original, arguments), sent, deadline, &people)
                .await;
            match answer {
                Ok(result) => return Ok(ToolReply::of(result, &redactor)),
                // The connection was broken before the call was sent, so retry once on a new one.
                Err(McpFailure::Gone { sent: false }) if may_reconnect && !reached.is_new => {
                    server.retire_connection(&reached.connection);
                    may_reconnect = false;
                }
                Err(failure) => {
                    if let McpFailure::Gone { .. } = failure {
                        server.retire_connection(&reached.connection);
                    }
                    if is_about_the_tool(&failure)
                        && !reached.connection.still_has(&tool.original, deadline).await
                    {
                        let (server, tool) = (tool.server.clone(), tool.original.clone());
                        return Err(ToolError::no_such_tool(server, tool));
                    }
                    return Err(ToolError::of_call(&server.spec, failure, meta.token()));
                }
            }
        }
    }

    /// Closes the connections of all servers that no later declaration uses, and waits until their programs
    /// have ended.
    pub(crate) async fn close(self) {
        let connections = self
            .servers
            .into_values()
            .filter_map(Arc::into_inner)
            .filter_map(|server| server.slot.into_inner().connection)
            .filter_map(Arc::into_inner)
            .map(|connection| connection.close(CLOSE_MAX));
        join_all(connections).await;
    }

    fn server(&self, name: &Name) -> Result<&DeclaredServer, ToolError> {
        let server = self.servers.get(name).map(Arc::as_ref);
        server.ok_or_else(|| ToolError::undeclared_server(name.clone()))
    }

    async fn list_server(&self, name: &Name) -> Result<Arc<Vec<McpTool>>, ToolError> {
        let server = self.server(name)?;
        let deadline = Instant::now() + server.spec.timeout;
        let mut may_reconnect = true;
        loop {
            let reached = server.connect(&self.http, deadline).await?;
            let mut watched = ServiceCall::to_tool_server(name);
            let failure = match reached.connection.tools(deadline).await {
                Ok(tools) => {
                    // Nearly always from memory.
                    watched.forget();
                    return Ok(tools);
                }
                Err(failure) => failure,
            };
            watched.end(&failure.call_outcome());
            // A server that cannot list its tools gets a new connection.
            server.retire_connection(&reached.connection);
            let is_gone = matches!(failure, McpFailure::Gone { .. });
            if !is_gone || !may_reconnect || reached.is_new {
                return Err(ToolError::of(&server.spec, failure));
            }
            may_reconnect = false;
        }
    }
}

/// Whether a server may have answered like this because the tool no longer exists.
fn is_about_the_tool(failure: &McpFailure) -> bool {
    let McpFailure::ErrorReply(error) = failure else {
        return false;
    };
    matches!(
        error.code,
        ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND
    )
}

impl DeclaredServer {
    /// Returns a working connection, connecting if necessary.
    async fn connect(
        &self,
        http: &OnceLock<Option<McpHttpClient>>,
        deadline: Instant,
    ) -> Result<ReachedConnection, ToolError> {
        let connect = async {
            let mut slot = self.slot.lock().await;
            let connection = slot.connection.take();
            let connection = connection.filter(|found| !found.is_broken());
            if let Some(connection) = connection {
                slot.connection = Some(connection.clone());
                return Ok(ReachedConnection {
                    connection,
                    is_new: false,
                });
            }
            if let Some(failed) = &slot.failed
                && Instant::now() < failed.until
            {
                return Err(failed.error.clone());
            }
            let made = McpConnection::connect(&self.spec, (http, &self.warnings)).await;
            let made = made.map_err(|failure| self.record_failure(&mut slot, failure))?;
            let connection = Arc::new(made);
            *slot = ConnectionSlot {
                connection: Some(connection.clone()),
                failed: None,
            };
            Ok(ReachedConnection {
                connection,
                is_new: true,
            })
        };
        let mut watched = ServiceCall::to_tool_server(&self.spec.name);
        match tokio::time::timeout_at(deadline, connect).await {
            // The call itself is counted, not the way to it.
            Ok(Ok(reached)) => {
                watched.forget();
                Ok(reached)
            }
            Ok(Err(error)) => {
                watched.end(&CallOutcome::Failed(None));
                Err(error)
            }
            Err(_) => {
                let failure = McpFailure::Slow { sent: false };
                watched.end(&failure.call_outcome());
                Err(ToolError::of(&self.spec, failure))
            }
        }
    }

    /// Stores the error as a back-off if the next attempt would start a program.
    fn record_failure(&self, slot: &mut ConnectionSlot, failure: McpFailure) -> ToolError {
        let error = ToolError::of(&self.spec, failure).before_the_call();
        if let ToolTransport::Command { .. } = self.spec.transport {
            let last = slot.failed.as_ref();
            let delay = last.map_or(FIRST_START_DELAY, |last| {
                START_DELAY_MAX.min(last.delay * 2)
            });
            slot.failed = Some(ConnectFailure {
                error: error.clone(),
                delay,
                until: Instant::now() + delay,
            });
        }
        error
    }

    /// Takes a connection out of use, without waiting. Its running calls finish.
    fn retire_connection(&self, connection: &Arc<McpConnection>) {
        connection.retire();
        // If the slot is locked, the task that holds it will see that the connection is broken.
        if let Ok(mut slot) = self.slot.try_lock() {
            slot.connection
                .take_if(|found| Arc::ptr_eq(found, connection));
        }
    }
}

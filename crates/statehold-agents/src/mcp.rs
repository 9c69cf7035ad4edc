//! Tools on servers that speak MCP. Nothing outside of this module knows the library for it.
//!
//! A server is connected to on its first use. The connection is shared by everybody who uses it, and
//! is made anew once it is broken. What a server says about its tools, and what its tools answer, is
//! text from elsewhere: it is measured and cut here, and believed by nobody. That a tool may be called
//! again is believed only of servers that the configuration trusts; that it destroys something, of all.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use rmcp::model::{ErrorCode, RequestMetaObject};
use serde_json::{Map, Value};
use statehold_core::name::Name;
use tokio::time::Instant;

use crate::spec::{AgentBook, ToolServerSpec, ToolTransport};

mod child;
mod connection;
mod error;
mod http;
mod listing;
mod reply;
#[cfg(test)]
mod tests;

use connection::{Connection, Failure};
pub(crate) use error::{NoAnswer, ToolError};
use http::HttpClient;
pub(crate) use listing::sayable;
pub(crate) use reply::ToolReply;

/// How long the servers are waited for when all of them are left.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// How long a program that did not start is not started again, at first. It doubles, up to the most.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// One tool, as a model is shown it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    /// Where it is.
    pub(crate) server: Name,
    /// What models call it: 1 to 64 of `A-Z a-z 0-9 _ -`, and nothing else of this listing has it.
    pub(crate) name: String,
    /// What its server calls it.
    pub(crate) original: String,
    /// What its server says about it.
    pub(crate) description: Option<String>,
    /// What its arguments look like.
    pub(crate) input_schema: Arc<Value>,
    /// Whether its server says that a second call does no more than the first, and is believed.
    pub(crate) idempotent: bool,
    /// Whether its server says that it only looks, and is believed.
    pub(crate) only_reads: bool,
    /// Whether its server says that it destroys something, if it says anything.
    pub(crate) destructive: Option<bool>,
}

/// What a tool is told about the call, beside its arguments.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallMeta {
    pub(crate) session: String,
    pub(crate) task: String,
    pub(crate) request: String,
    pub(crate) traceparent: Option<String>,
}

impl CallMeta {
    fn of_call(&self, execution_key: &str) -> RequestMetaObject {
        let mut meta = RequestMetaObject::new();
        let mut put = |key: &str, value: &str| {
            meta.insert(key.to_owned(), Value::from(value));
        };
        put("statehold/execution_key", execution_key);
        put("statehold/session", &self.session);
        put("statehold/task", &self.task);
        put("statehold/request", &self.request);
        if let Some(traceparent) = &self.traceparent {
            put("traceparent", traceparent);
        }
        meta
    }
}

/// The tool servers that are declared, and the connections to those that were used. Without it, the
/// programs that it started end.
pub(crate) struct ToolServers {
    servers: BTreeMap<Name, Server>,
    http: OnceLock<Option<HttpClient>>,
}

struct Server {
    spec: Arc<ToolServerSpec>,
    /// Locked while a connection is made, so that nobody makes a second one.
    current: tokio::sync::Mutex<Current>,
}

#[derive(Default)]
struct Current {
    connection: Option<Arc<Connection>>,
    /// Why there is none, if making it came to nothing just now.
    failed: Option<Failed>,
}

struct Failed {
    error: ToolError,
    pause: Duration,
    until: Instant,
}

/// A connection for one call, and whether this call has made it.
struct Reached {
    connection: Arc<Connection>,
    is_new: bool,
}

impl ToolServers {
    pub(crate) fn new(book: &AgentBook) -> Self {
        let servers = book.tool_servers.iter().map(|(name, spec)| {
            let server = Server {
                spec: spec.clone(),
                current: tokio::sync::Mutex::default(),
            };
            (name.clone(), server)
        });
        Self {
            servers: servers.collect(),
            http: OnceLock::new(),
        }
    }

    /// The tools of some servers, as they are now. Names that two of them use are made different.
    pub(crate) async fn tools(&self, servers: &[Name]) -> Result<Vec<Tool>, ToolError> {
        // All of them to the end: a program that takes its time is not ended because another server is away.
        let listings = join_all(servers.iter().map(|name| self.listed(name))).await;
        let listings: Result<Vec<_>, _> = listings.into_iter().collect();
        Ok(listing::shown(&listings?, self.servers.keys()))
    }

    /// Calls a tool. What the tool says is a reply, also if it says that something is wrong.
    pub(crate) async fn call(
        &self,
        tool: &Tool,
        arguments: &Map<String, Value>,
        execution_key: &str,
        meta: &CallMeta,
    ) -> Result<ToolReply, ToolError> {
        let server = self.server(&tool.server)?;
        let deadline = Instant::now() + server.spec.timeout;
        let mut may_reconnect = true;
        loop {
            let reached = server.reach(&self.http, deadline).await?;
            let meta = meta.of_call(execution_key);
            let answer = reached
                .connection
                .call(&tool.original, arguments, meta, deadline)
                .await;
            match answer {
                Ok(result) => return Ok(ToolReply::of(result, &server.spec.secrets_of_replies())),
                // It was broken already: nothing has left yet, and the next one may be whole.
                Err(Failure::Gone { sent: false }) if may_reconnect && !reached.is_new => {
                    server.forget(&reached.connection);
                    may_reconnect = false;
                }
                Err(failure) => {
                    if let Failure::Gone { .. } = failure {
                        server.forget(&reached.connection);
                    }
                    if is_about_the_tool(&failure)
                        && !reached.connection.still_has(&tool.original, deadline).await
                    {
                        return Err(ToolError::NoSuchTool {
                            server: tool.server.clone(),
                            tool: tool.original.clone(),
                        });
                    }
                    return Err(ToolError::of(&server.spec, failure));
                }
            }
        }
    }

    /// Leaves all servers, and waits until the programs among them have ended.
    pub(crate) async fn close(self) {
        let connections = self
            .servers
            .into_values()
            .filter_map(|server| server.current.into_inner().connection)
            .filter_map(Arc::into_inner)
            .map(|connection| connection.close(CLOSE_MAX));
        join_all(connections).await;
    }

    fn server(&self, name: &Name) -> Result<&Server, ToolError> {
        self.servers.get(name).ok_or_else(|| ToolError::Refused {
            server: name.clone(),
            message: "no tool server of this name is declared".to_owned(),
            may_have_run: false,
        })
    }

    async fn listed(&self, name: &Name) -> Result<Arc<Vec<Tool>>, ToolError> {
        let server = self.server(name)?;
        let deadline = Instant::now() + server.spec.timeout;
        let mut may_reconnect = true;
        loop {
            let reached = server.reach(&self.http, deadline).await?;
            let failure = match reached.connection.tools(deadline).await {
                Ok(tools) => return Ok(tools),
                Err(failure) => failure,
            };
            // One that does not even say what it can do is not worth keeping.
            server.forget(&reached.connection);
            let is_gone = matches!(failure, Failure::Gone { .. });
            if !is_gone || !may_reconnect || reached.is_new {
                return Err(ToolError::of(&server.spec, failure));
            }
            may_reconnect = false;
        }
    }
}

/// Whether a tool that is gone would be answered like this.
fn is_about_the_tool(failure: &Failure) -> bool {
    let Failure::Said(error) = failure else {
        return false;
    };
    matches!(
        error.code,
        ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND
    )
}

impl Server {
    /// The connection, made now if there is none that works.
    async fn reach(
        &self,
        http: &OnceLock<Option<HttpClient>>,
        deadline: Instant,
    ) -> Result<Reached, ToolError> {
        let reach = async {
            let mut current = self.current.lock().await;
            let connection = current.connection.take();
            let connection = connection.filter(|found| !found.is_broken());
            if let Some(connection) = connection {
                current.connection = Some(connection.clone());
                return Ok(Reached {
                    connection,
                    is_new: false,
                });
            }
            if let Some(failed) = &current.failed
                && Instant::now() < failed.until
            {
                return Err(failed.error.clone());
            }
            let made = Connection::make(&self.spec, http).await;
            let made = made.map_err(|failure| self.not_made(&mut current, failure))?;
            let connection = Arc::new(made);
            *current = Current {
                connection: Some(connection.clone()),
                failed: None,
            };
            Ok(Reached {
                connection,
                is_new: true,
            })
        };
        let reached = tokio::time::timeout_at(deadline, reach).await;
        let slow = || Err(ToolError::of(&self.spec, Failure::Slow { sent: false }));
        reached.unwrap_or_else(|_| slow())
    }

    /// Remembers why there is no connection, if it takes a program to try again.
    fn not_made(&self, current: &mut Current, failure: Failure) -> ToolError {
        let error = ToolError::of(&self.spec, failure).before_the_call();
        if let ToolTransport::Command { .. } = self.spec.transport {
            let last = current.failed.as_ref();
            let pause = last.map_or(PAUSE_FIRST, |last| PAUSE_MAX.min(last.pause * 2));
            current.failed = Some(Failed {
                error: error.clone(),
                pause,
                until: Instant::now() + pause,
            });
        }
        error
    }

    /// Takes a connection out of use, without waiting for anybody. Calls that are under way on it may end.
    fn forget(&self, connection: &Arc<Connection>) {
        connection.give_up();
        // Whoever has it locked finds that out.
        if let Ok(mut current) = self.current.try_lock() {
            current
                .connection
                .take_if(|found| Arc::ptr_eq(found, connection));
        }
    }
}

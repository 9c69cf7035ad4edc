//! Real connections to a server with odd tools.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use statehold_core::name::Name;

use super::question::{QuestionForm, QuestionSink, ToolAnswer, ToolQuestion};
use super::{CallMeta, McpTool, ToolError, ToolList, ToolReply, ToolServers};
use crate::spec::{AgentBook, ToolServerSpec, ToolTransport};

mod bench;
mod calls;
mod connections;
mod lists;
#[cfg(target_os = "linux")]
mod program;
mod python;
mod texts;

const PATIENCE: Duration = Duration::from_mins(1);
/// Shorter than the cache lifetime, so that a change must arrive as a notification.
const UNTIL_MAX: Duration = Duration::from_secs(25);

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn servers_within(
    timeout: Duration,
    declared: impl IntoIterator<Item = (&'static str, ToolTransport)>,
) -> ToolServers {
    declared_servers(timeout, false, declared)
}

fn trusted_servers(
    declared: impl IntoIterator<Item = (&'static str, ToolTransport)>,
) -> ToolServers {
    declared_servers(PATIENCE, true, declared)
}

fn declared_servers(
    timeout: Duration,
    trust_hints: bool,
    declared: impl IntoIterator<Item = (&'static str, ToolTransport)>,
) -> ToolServers {
    let specs = declared.into_iter().map(|(server, transport)| {
        let spec = ToolServerSpec {
            name: name(server),
            trust_hints,
            transport,
            timeout,
        };
        (name(server), Arc::new(spec))
    });
    let book = AgentBook {
        tool_servers: specs.collect::<BTreeMap<_, _>>(),
        ..AgentBook::default()
    };
    ToolServers::new(&book, None)
}

impl ToolList {
    /// The tools, if every server could be asked.
    fn all(self) -> Result<Vec<McpTool>, ToolError> {
        match self.missing.into_values().next() {
            Some(error) => Err(error),
            None => Ok(self.tools),
        }
    }
}

fn servers(declared: impl IntoIterator<Item = (&'static str, ToolTransport)>) -> ToolServers {
    servers_within(PATIENCE, declared)
}

async fn tool(servers: &ToolServers, server: &str, tool: &str) -> McpTool {
    let tools = servers.tools(&[name(server)]).await.all().expect("tools");
    let found = tools.into_iter().find(|found| found.original == tool);
    found.expect("the tool is listed")
}

async fn call(
    servers: &ToolServers,
    tool: &McpTool,
    arguments: Value,
) -> Result<ToolReply, ToolError> {
    let nobody = Person(|_| ToolAnswer::Cancel);
    call_with(servers, tool, arguments, &nobody).await
}

async fn call_with(
    servers: &ToolServers,
    tool: &McpTool,
    arguments: Value,
    people: &dyn QuestionSink,
) -> Result<ToolReply, ToolError> {
    let Value::Object(arguments) = arguments else {
        panic!("arguments are an object");
    };
    let meta = CallMeta {
        session: "ses_1".to_owned(),
        task: "tsk_1".to_owned(),
        request: "req_1".to_owned(),
        turn: None,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        conversation: None,
    };
    servers
        .call(tool, &arguments, ("key_1", &meta), people)
        .await
}

/// A person who answers questions at once.
struct Person<F>(F);

#[async_trait::async_trait]
impl<F: Fn(ToolQuestion) -> ToolAnswer + Send + Sync> QuestionSink for Person<F> {
    async fn ask(&self, question: ToolQuestion) -> Option<ToolAnswer> {
        Some((self.0)(question))
    }
}

/// Polls until the condition holds.
async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(UNTIL_MAX, looking).await;
    found.unwrap_or_else(|_| panic!("{what}: not within {UNTIL_MAX:?}"));
}

fn text(reply: &ToolReply) -> &str {
    reply.content.as_str().expect("a text")
}

fn nothing() -> Value {
    json!({})
}

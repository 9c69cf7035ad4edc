//! Clients for calling agents, models and tools. All generations share one HTTP pool; each generation
//! has its own tool servers.

use std::sync::Arc;

use crate::chat::ChatClient;
use crate::http::HttpPool;
use crate::mcp::ToolServers;
use crate::spec::AgentBook;

/// Clients for calling agents, models and tools.
#[derive(Clone)]
pub(crate) struct AgentClients {
    /// The pool of connections.
    pub(crate) http: HttpPool,
    /// Chat completions.
    pub(crate) chat: ChatClient,
    /// Tools.
    pub(crate) tools: Arc<ToolServers>,
}

impl AgentClients {
    pub(super) fn new(http: &HttpPool, book: &AgentBook) -> Self {
        let http = http.clone();
        let chat = ChatClient::sharing(http.clone());
        let tools = Arc::new(ToolServers::new(book));
        Self { http, chat, tools }
    }
}

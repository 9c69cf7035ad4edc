//! What agents are called with. Shared by all; only the tool servers are those of one declaration.

use std::sync::Arc;

use crate::chat::ChatClient;
use crate::http::HttpClient;
use crate::mcp::ToolServers;
use crate::spec::AgentBook;

/// What agents are called with.
#[derive(Clone)]
pub(crate) struct Clients {
    /// The pool of connections.
    pub(crate) http: HttpClient,
    /// Chat completions.
    pub(crate) chat: ChatClient,
    /// Tools.
    pub(crate) tools: Arc<ToolServers>,
}

impl Clients {
    pub(super) fn new(http: &HttpClient, book: &AgentBook) -> Self {
        let http = http.clone();
        let chat = ChatClient::sharing(http.clone());
        let tools = Arc::new(ToolServers::new(book));
        Self { http, chat, tools }
    }
}

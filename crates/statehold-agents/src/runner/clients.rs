//! What agents are called with. Made once, shared by all.

use std::sync::Arc;

use crate::chat::ChatClient;
use crate::http::{ClientError, HttpClient};
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
    pub(super) fn new(book: &AgentBook) -> Result<Self, ClientError> {
        let http = HttpClient::new()?;
        let chat = ChatClient::sharing(http.clone());
        let tools = Arc::new(ToolServers::new(book));
        Ok(Self { http, chat, tools })
    }
}

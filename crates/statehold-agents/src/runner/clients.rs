//! What agents are called with. Made once, shared by all.

use crate::chat::ChatClient;
use crate::http::{ClientError, HttpClient};

/// What agents are called with.
#[derive(Clone)]
pub(crate) struct Clients {
    /// The pool of connections.
    pub(crate) http: HttpClient,
    /// Chat completions.
    pub(crate) chat: ChatClient,
}

impl Clients {
    pub(super) fn new() -> Result<Self, ClientError> {
        let http = HttpClient::new()?;
        let chat = ChatClient::sharing(http.clone());
        Ok(Self { http, chat })
    }
}

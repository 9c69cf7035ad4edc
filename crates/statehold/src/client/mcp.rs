//! Messages of MCP, passed on as they are.

use futures_util::StreamExt;
use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap};

use super::events::{Events, events_of};
use super::{Client, JSON, problem};
use crate::exit::Failure;

const EVENTS: &str = "text/event-stream";

/// The answer to a message.
pub(crate) struct McpAnswer {
    pub(crate) headers: HeaderMap,
    body: McpBody,
}

enum McpBody {
    /// One message, or none.
    Whole(Option<String>),
    /// Messages while they arrive.
    Events(Events),
}

impl Client {
    /// The same client with another token.
    ///
    /// # Errors
    ///
    /// If the token cannot be sent in a header.
    pub(crate) fn with_token(&self, token: &str) -> Result<Self, Failure> {
        Self::new(self.address.clone(), Some(token), self.timeout)
    }

    /// Sends a message of MCP, or opens the stream of a session without one. It waits for as long as the server does.
    ///
    /// # Errors
    ///
    /// If no server answers, or with a refusal that is no message of MCP.
    pub(crate) async fn mcp(
        &self,
        headers: HeaderMap,
        message: Option<String>,
    ) -> Result<McpAnswer, Failure> {
        let method = if message.is_some() {
            Method::POST
        } else {
            Method::GET
        };
        let mut request = self.request(method, "/mcp")?.headers(headers);
        request = match message {
            Some(message) => {
                let accepted = format!("{JSON}, {EVENTS}");
                request
                    .header(ACCEPT, accepted)
                    .header(CONTENT_TYPE, JSON)
                    .body(message)
            }
            None => request.header(ACCEPT, EVENTS),
        };
        let response = request.send().await;
        let mut response = response.map_err(|error| self.failed(&error))?;
        let headers = response.headers().clone();
        let kind = headers
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        if kind.starts_with(EVENTS) {
            let body = McpBody::Events(events_of(response));
            return Ok(McpAnswer { headers, body });
        }
        let status = response.status();
        let bytes = self.read(&mut response).await?;
        // A refusal may be a message, too.
        if !status.is_success() && !kind.starts_with(JSON) {
            return Err(problem::failure(&self.address, status, &bytes));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let whole = Some(text).filter(|text| !text.is_empty());
        let body = McpBody::Whole(whole);
        Ok(McpAnswer { headers, body })
    }
}

impl McpAnswer {
    /// The next message. None if there is no more.
    pub(crate) async fn next(&mut self) -> Option<String> {
        match &mut self.body {
            McpBody::Whole(message) => message.take(),
            McpBody::Events(events) => loop {
                let event = events.next().await?.ok()?;
                if let Some(data) = event.data.filter(|data| !data.is_empty()) {
                    return Some(data);
                }
            },
        }
    }
}

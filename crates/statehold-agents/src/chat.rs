//! Client for chat completions, with the extensions of DIAL.
//!
//! Messages and agent state stay raw JSON text, so that an agent gets its state back byte for byte.

mod envelope;
mod read;
mod reply;

use std::fmt;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use statehold_engine::Credential;

use crate::http::{EndpointError, HttpPool, RetryBudget, ServiceRequest};
use crate::spec::SecretHeader;

pub(crate) use read::read_answer;
pub(crate) use reply::{ChatReply, RawToolCall, is_usable_id, opaque_id};

/// Address and call settings of a chat completions endpoint.
#[derive(Clone)]
pub(crate) struct ChatEndpoint {
    /// Without the trailing `/chat/completions`. A query string is kept.
    pub(crate) base_url: String,
    /// Model name sent to the endpoint.
    pub(crate) model: String,
    /// Bearer credential, unless the call sets its own header.
    pub(crate) credential: Option<Credential>,
    /// Headers of every call. Those of one call come first.
    pub(crate) headers: Vec<SecretHeader>,
    /// Timeout of a call, all retries included.
    pub(crate) timeout: Duration,
    /// Number of retries before the first text of an answer.
    pub(crate) retries: u32,
}

impl fmt::Debug for ChatEndpoint {
    /// Omits the address, which may contain a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatEndpoint")
            .field("model", &self.model)
            .field("credential", &self.credential)
            .field("timeout", &self.timeout)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

/// A chat completions request.
#[derive(Debug, Default)]
pub(crate) struct CompletionRequest {
    /// The messages, sent unchanged.
    pub(crate) messages: Vec<Box<RawValue>>,
    /// Other members of the body: `tools`, `response_format`, `max_tokens` and so on.
    pub(crate) extra: Map<String, Value>,
    /// Headers of this call. They override those of the endpoint; secrets should be marked sensitive.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether to ask for a stream, with the token usage. Both response forms are accepted.
    pub(crate) stream: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct ChatClient {
    http: HttpPool,
}

impl ChatClient {
    /// A client with its own connection pool.
    #[cfg(test)]
    pub(crate) fn new() -> Result<Self, crate::http::HttpClientError> {
        HttpPool::new().map(Self::sharing)
    }

    /// A client that shares a connection pool.
    pub(crate) fn sharing(http: HttpPool) -> Self {
        Self { http }
    }

    /// Sends a request and passes each chunk of text to `on_text`. The chunks concatenated are the
    /// content.
    pub(crate) async fn chat(
        &self,
        endpoint: &ChatEndpoint,
        call: &CompletionRequest,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ChatReply, EndpointError> {
        let body = ChatBody {
            model: &endpoint.model,
            call,
        };
        let path = ["chat", "completions"];
        let own: Vec<_> = endpoint.headers.iter().map(SecretHeader::pair).collect();
        let request = ServiceRequest::new(&endpoint.base_url, &path, endpoint.credential.as_ref())?
            .with_headers(&own)
            .with_headers(&call.headers)
            .accepting_stream(call.stream)
            .with_json(&body);
        let mut attempts = RetryBudget::new(endpoint.timeout, endpoint.retries);
        let mut was_streamed = false;
        loop {
            let mut on_chunk = |text: &str| {
                was_streamed = true;
                on_text(text);
            };
            let outcome = match self.http.send(&request, attempts.deadline()).await {
                Ok(mut answer) => read_answer(&mut answer, &mut on_chunk).await,
                Err(error) => Err(error),
            };
            if let Some(outcome) = attempts.retry_or_return(outcome, was_streamed).await {
                return outcome;
            }
        }
    }
}

/// Body of a request. Serialized by hand, because serde's `flatten` would parse the raw text.
struct ChatBody<'a> {
    model: &'a str,
    call: &'a CompletionRequest,
}

impl Serialize for ChatBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const RESERVED: [&str; 4] = ["model", "messages", "stream", "stream_options"];
        let mut body = serializer.serialize_map(None)?;
        body.serialize_entry("model", self.model)?;
        body.serialize_entry("messages", &self.call.messages)?;
        body.serialize_entry("stream", &self.call.stream)?;
        if self.call.stream {
            let options = serde_json::json!({"include_usage": true});
            body.serialize_entry("stream_options", &options)?;
        }
        for (name, value) in &self.call.extra {
            if !RESERVED.contains(&name.as_str()) {
                body.serialize_entry(name, value)?;
            }
        }
        body.end()
    }
}

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;

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
    /// Without the path of the call. A query string is kept.
    pub(crate) base_url: String,
    /// The service that answers.
    pub(crate) target: ChatTarget,
    /// Bearer credential, unless the call sets its own header.
    pub(crate) credential: Option<Credential>,
    /// Headers of every call. Those of one call come first.
    pub(crate) headers: Vec<SecretHeader>,
    /// Timeout of a call, all retries included.
    pub(crate) timeout: Duration,
    /// Number of retries before the first text of an answer.
    pub(crate) retries: u32,
}

/// The model or the deployment that a call is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChatTarget {
    /// At `/chat/completions`, with the name of the model in the body.
    Model(String),
    /// At `/openai/deployments/NAME/chat/completions`.
    Deployment(String),
}

impl ChatTarget {
    fn path(&self) -> Vec<&str> {
        let call = ["chat", "completions"];
        match self {
            Self::Model(_) => call.to_vec(),
            Self::Deployment(name) => {
                let name = name.split('/');
                ["openai", "deployments"]
                    .into_iter()
                    .chain(name)
                    .chain(call)
                    .collect()
            }
        }
    }

    fn model(&self) -> Option<&str> {
        match self {
            Self::Model(name) => Some(name),
            Self::Deployment(_) => None,
        }
    }
}

impl fmt::Debug for ChatEndpoint {
    /// Omits the address, which may contain a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatEndpoint")
            .field("target", &self.target)
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

/// Receives the parts of an answer while it arrives.
pub(crate) trait ReplySink: Send {
    /// Takes the next piece of the text. The pieces concatenated are the content.
    fn write(&mut self, text: &str);

    /// Takes updates of the stages, a list in the form of DIAL. Returns whether they are of use: then the call is
    /// not made again.
    fn update_stages(&mut self, updates: &RawValue) -> bool;
}

/// A receiver of text alone.
pub(crate) struct TextSink<'a>(pub(crate) &'a mut (dyn FnMut(&str) + Send));

impl ReplySink for TextSink<'_> {
    fn write(&mut self, text: &str) {
        (self.0)(text);
    }

    fn update_stages(&mut self, _: &RawValue) -> bool {
        false
    }
}

/// Notes whether a part of an answer was passed on.
struct WatchedSink<'a> {
    sink: &'a mut dyn ReplySink,
    has_passed: bool,
}

impl ReplySink for WatchedSink<'_> {
    fn write(&mut self, text: &str) {
        self.has_passed = true;
        self.sink.write(text);
    }

    fn update_stages(&mut self, updates: &RawValue) -> bool {
        let is_used = self.sink.update_stages(updates);
        self.has_passed |= is_used;
        is_used
    }
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
        self.chat_into(endpoint, call, &mut TextSink(on_text)).await
    }

    /// Sends a request and passes the parts of the answer on as they arrive.
    pub(crate) async fn chat_into(
        &self,
        endpoint: &ChatEndpoint,
        call: &CompletionRequest,
        sink: &mut dyn ReplySink,
    ) -> Result<ChatReply, EndpointError> {
        let target = &endpoint.target;
        let body = ChatBody {
            model: target.model(),
            call,
        };
        let own: Vec<_> = endpoint.headers.iter().map(SecretHeader::pair).collect();
        let credential = endpoint.credential.as_ref();
        let request = ServiceRequest::new(&endpoint.base_url, &target.path(), credential)?
            .with_headers(&own)
            .with_headers(&call.headers)
            .accepting_stream(call.stream)
            .with_json(&body);
        let mut attempts = RetryBudget::new(endpoint.timeout, endpoint.retries);
        let mut sink = WatchedSink {
            sink,
            has_passed: false,
        };
        loop {
            let outcome = match self.http.send(&request, attempts.deadline()).await {
                Ok(mut answer) => read_answer(&mut answer, &mut sink).await,
                Err(error) => Err(error),
            };
            if let Some(outcome) = attempts.retry_or_return(outcome, sink.has_passed).await {
                return outcome;
            }
        }
    }
}

/// Body of a request. Serialized by hand, because serde's `flatten` would parse the raw text.
struct ChatBody<'a> {
    model: Option<&'a str>,
    call: &'a CompletionRequest,
}

impl Serialize for ChatBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const RESERVED: [&str; 4] = ["model", "messages", "stream", "stream_options"];
        let mut body = serializer.serialize_map(None)?;
        if let Some(model) = self.model {
            body.serialize_entry("model", model)?;
        }
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

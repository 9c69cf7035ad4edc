//! Chat completions, as a caller: the usual form with what DIAL adds to it.
//!
//! Messages go out and state comes back as raw text: neither is parsed into a tree here, so that what
//! an agent gave us comes back to it byte for byte.

mod envelope;
mod read;
mod reply;

use std::fmt;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use statehold_engine::Credential;

use crate::http::{Attempts, CallError, Deadline, HttpClient, Request};

pub(crate) use read::read_answer;
pub(crate) use reply::{ToolCallWish, Usage, is_usable_id, opaque_id};

/// Where chat completions are, and how they are called.
#[derive(Clone)]
pub(crate) struct ChatEndpoint {
    /// Up to and without `/chat/completions`. A query in it is kept.
    pub(crate) base_url: String,
    /// What is asked for there.
    pub(crate) model: String,
    /// What it is called with, unless the call brings a header of its own.
    pub(crate) credential: Option<Credential>,
    /// How long all of a call may take, with the times it is made again.
    pub(crate) timeout: Duration,
    /// How often a call that failed before its first word is made again.
    pub(crate) retries: u32,
}

impl fmt::Debug for ChatEndpoint {
    /// Without the address: somebody may have put a secret into it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatEndpoint")
            .field("model", &self.model)
            .field("credential", &self.credential)
            .field("timeout", &self.timeout)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

/// What is asked.
#[derive(Debug)]
pub(crate) struct ChatCall {
    /// The messages, sent as they are.
    pub(crate) messages: Vec<Box<RawValue>>,
    /// Other members of the body: `tools`, `response_format`, `max_tokens`, `stream_options` and so on.
    pub(crate) extra: Map<String, Value>,
    /// For this call only. They replace what the endpoint gives; secrets should be marked sensitive.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether the answer is wanted as it is written. Either form is read.
    pub(crate) stream: bool,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct ChatReply {
    /// The text. Empty if there is none.
    pub(crate) content: String,
    /// The tools that the model wants called, in order.
    pub(crate) tool_calls: Vec<ToolCallWish>,
    /// Why it ended, in the words of the service.
    pub(crate) finish_reason: Option<String>,
    /// `custom_content.state`, byte for byte. The last one that is not null.
    pub(crate) state: Option<Box<RawValue>>,
    /// `custom_content.shared_context`. The last one that is not null.
    pub(crate) shared_context: Option<Box<RawValue>>,
    /// `custom_content.attachments`, in order, as they came.
    pub(crate) attachments: Vec<Box<RawValue>>,
    /// What it took, if the service says so.
    pub(crate) usage: Option<Usage>,
    /// The member `statehold` of the answer or its message: how another Statehold says that it waits.
    pub(crate) paused: Option<Box<RawValue>>,
    /// The headers of the answer.
    pub(crate) headers: HeaderMap,
    /// What the model refused with.
    pub(crate) refusal: Option<String>,
}

/// Calls chat completions.
#[derive(Debug, Clone)]
pub(crate) struct ChatClient {
    http: HttpClient,
}

impl ChatClient {
    /// A client with a pool of its own.
    #[cfg(test)]
    pub(crate) fn new() -> Result<Self, crate::http::ClientError> {
        HttpClient::new().map(Self::sharing)
    }

    /// A client that shares its connections with others.
    pub(crate) fn sharing(http: HttpClient) -> Self {
        Self { http }
    }

    /// Asks, and gives each piece of the answer's text to `on_text` when it comes. All pieces together
    /// are the content.
    pub(crate) async fn chat(
        &self,
        endpoint: &ChatEndpoint,
        call: &ChatCall,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ChatReply, CallError> {
        let body = Body {
            model: &endpoint.model,
            call,
        };
        let body = serde_json::to_vec(&body).expect("text and values of JSON can be written");
        let path = ["chat", "completions"];
        let request = Request::new(&endpoint.base_url, &path, endpoint.credential.as_ref())?
            .with_headers(&call.headers)
            .accepting_stream(call.stream)
            .with_json(body);
        let mut attempts = Attempts::new(endpoint.timeout, endpoint.retries);
        let mut was_heard = false;
        loop {
            let mut hear = |text: &str| {
                was_heard = true;
                on_text(text);
            };
            let outcome = self.ask(&request, attempts.deadline(), &mut hear).await;
            if let Some(outcome) = attempts.settle(outcome, was_heard).await {
                return outcome;
            }
        }
    }

    async fn ask(
        &self,
        request: &Request,
        deadline: Deadline,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ChatReply, CallError> {
        let mut answer = self.http.send(request, deadline).await?;
        let reply = read_answer(&mut answer, on_text).await?;
        Ok(ChatReply {
            content: reply.content,
            tool_calls: reply.tool_calls,
            finish_reason: reply.finish_reason,
            state: reply.state,
            shared_context: reply.shared_context,
            attachments: reply.attachments,
            usage: reply.usage,
            paused: reply.statehold,
            headers: answer.headers().clone(),
            refusal: reply.refusal,
        })
    }
}

/// The body of a call. It is written by hand because a flattened member would lose raw text.
struct Body<'a> {
    model: &'a str,
    call: &'a ChatCall,
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const OURS: [&str; 3] = ["model", "messages", "stream"];
        let mut body = serializer.serialize_map(None)?;
        body.serialize_entry("model", self.model)?;
        body.serialize_entry("messages", &self.call.messages)?;
        body.serialize_entry("stream", &self.call.stream)?;
        for (name, value) in &self.call.extra {
            if !OURS.contains(&name.as_str()) {
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

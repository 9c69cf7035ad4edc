//! Services that keep conversations themselves: one is begun, and then only new messages are sent.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_engine::Credential;

use crate::chat::{is_usable_id, opaque_id, read_answer};
use crate::http::{Attempts, CallError, Deadline, HttpClient, Request};

/// A header of one call.
pub(crate) type Header = (HeaderName, HeaderValue);

/// Where conversations are kept, and how that is called.
#[derive(Clone)]
pub(crate) struct ConversationsEndpoint {
    /// Up to and without `/conversations`. A query in it is kept.
    pub(crate) base_url: String,
    /// What it is called with, unless `headers` have something of their own.
    pub(crate) credential: Option<Credential>,
    /// For every call. They replace what the endpoint gives; secrets should be marked sensitive.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// How long all of a call may take, with the times it is made again.
    pub(crate) timeout: Duration,
    /// How often a call that failed before its first word is made again.
    pub(crate) retries: u32,
}

impl fmt::Debug for ConversationsEndpoint {
    /// Without the address: somebody may have put a secret into it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConversationsEndpoint")
            .field("credential", &self.credential)
            .field("headers", &self.headers)
            .field("timeout", &self.timeout)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct ConversationReply {
    pub(crate) content: String,
    /// The conversation that goes on: the one that was asked, unless the service named another.
    pub(crate) conversation_id: String,
    /// `shared_context` of the answer, as it was written.
    pub(crate) shared_context: Option<Box<RawValue>>,
    /// The headers of the answer.
    pub(crate) headers: HeaderMap,
}

/// What a service's list says about a conversation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is there.
    There(String),
    /// It is not.
    NotThere,
    /// It is not at the beginning, and the list is longer than anything that is read.
    Unseen,
}

/// Calls one service that keeps conversations. Cheap to make: connections are the pool's.
#[derive(Debug, Clone)]
pub(crate) struct ConversationsClient {
    http: HttpClient,
    endpoint: ConversationsEndpoint,
}

impl ConversationsClient {
    pub(crate) fn new(http: HttpClient, endpoint: ConversationsEndpoint) -> Self {
        Self { http, endpoint }
    }

    /// Begins a conversation, and gives its id.
    pub(crate) async fn create(&self, title: &str, key: &Header) -> Result<String, CallError> {
        let request = self
            .request(&["conversations"])?
            .with_headers(std::slice::from_ref(key))
            .with_json(json(&Begin { title }));
        let body = self.whole(&request).await?;
        let created: Conversation = serde_json::from_slice(&body)
            .map_err(|_| CallError::Malformed("it is not a conversation"))?;
        created.id()
    }

    /// Looks for the newest conversation with this title. Of a list that is too long, the beginning is read.
    pub(crate) async fn find(&self, title: &str) -> Result<Found, CallError> {
        let request = self.request(&["conversations"])?;
        let (body, is_whole) = self.beginning(&request).await?;
        let all: Vec<Conversation> = if is_whole {
            serde_json::from_slice(&body).map_err(|_| NO_LIST)?
        } else {
            beginning_of(&body)?
        };
        // They are listed with the newest first, as far as they do not say otherwise themselves.
        let named = all.iter().filter(|one| one.title.as_deref() == Some(title));
        let newest = named.reduce(|newest, one| {
            if one.time() > newest.time() {
                one
            } else {
                newest
            }
        });
        match newest {
            Some(found) => found.id().map(Found::There),
            None if is_whole => Ok(Found::NotThere),
            None => Ok(Found::Unseen),
        }
    }

    /// Says something in a conversation. The pieces of the answer's text go to `on_text` as they come.
    ///
    /// What was said stays said, whatever became of the answer, so it is said again only if it surely
    /// never left: if no connection came about.
    pub(crate) async fn chat(
        &self,
        id: &str,
        text: &str,
        (stream, key): (bool, &Header),
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ConversationReply, CallError> {
        if !is_usable_id(id) {
            // No service has ever named such a one.
            return Err(CallError::NotFound);
        }
        let message = Message {
            role: "user",
            content: text,
        };
        let request = self
            .request(&["conversations", id, "chat"])?
            .with_headers(std::slice::from_ref(key))
            .accepting_stream(stream)
            .with_json(json(&Say { message, stream }));
        let mut attempts = self.attempts();
        loop {
            let outcome = self.say(&request, id, attempts.deadline(), on_text).await;
            let was_sent = !matches!(outcome, Err(CallError::Unreachable(_)));
            if let Some(outcome) = attempts.settle(outcome, was_sent).await {
                return outcome;
            }
        }
    }

    async fn say(
        &self,
        request: &Request,
        id: &str,
        deadline: Deadline,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ConversationReply, CallError> {
        let answer = self.http.send(request, deadline).await;
        let mut answer = answer.map_err(|error| match error {
            CallError::Status {
                status: StatusCode::NOT_FOUND | StatusCode::GONE,
                ..
            } => CallError::NotFound,
            error => error,
        })?;
        let reply = read_answer(&mut answer, on_text).await?;
        Ok(ConversationReply {
            content: reply.content,
            conversation_id: reply.conversation_id.unwrap_or_else(|| id.to_owned()),
            shared_context: reply.shared_context,
            headers: answer.headers().clone(),
        })
    }

    /// The whole body of an answer.
    async fn whole(&self, request: &Request) -> Result<Vec<u8>, CallError> {
        let mut attempts = self.attempts();
        loop {
            let outcome = match self.http.send(request, attempts.deadline()).await {
                Ok(mut answer) => answer.rest(Vec::new()).await,
                Err(error) => Err(error),
            };
            if let Some(outcome) = attempts.settle(outcome, false).await {
                return outcome;
            }
        }
    }

    /// As much of the body of an answer as is read, and whether that is all of it.
    async fn beginning(&self, request: &Request) -> Result<(Vec<u8>, bool), CallError> {
        let mut attempts = self.attempts();
        loop {
            let outcome = match self.http.send(request, attempts.deadline()).await {
                Ok(mut answer) => {
                    let mut read = Vec::new();
                    loop {
                        match answer.piece().await {
                            Ok(Some(piece)) => read.extend_from_slice(&piece),
                            Ok(None) => break Ok((read, true)),
                            Err(CallError::TooLarge(_)) => break Ok((read, false)),
                            Err(error) => break Err(error),
                        }
                    }
                }
                Err(error) => Err(error),
            };
            if let Some(outcome) = attempts.settle(outcome, false).await {
                return outcome;
            }
        }
    }

    fn request(&self, path: &[&str]) -> Result<Request, CallError> {
        let ConversationsEndpoint {
            base_url,
            credential,
            headers,
            ..
        } = &self.endpoint;
        let request = Request::new(base_url, path, credential.as_ref())?;
        Ok(request.with_headers(headers).accepting_stream(false))
    }

    fn attempts(&self) -> Attempts {
        Attempts::new(self.endpoint.timeout, self.endpoint.retries)
    }
}

const NO_LIST: CallError = CallError::Malformed("it is not a list of conversations");

/// The conversations at the beginning of a list, up to where it is cut.
fn beginning_of(list: &[u8]) -> Result<Vec<Conversation<'_>>, CallError> {
    let list = list.trim_ascii_start().strip_prefix(b"[");
    let mut rest = list.ok_or(NO_LIST)?;
    let mut all = Vec::new();
    loop {
        let mut next = serde_json::Deserializer::from_slice(rest).into_iter();
        let Some(Ok(one)) = next.next() else {
            return Ok(all);
        };
        all.push(one);
        rest = rest[next.byte_offset()..].trim_ascii_start();
        let Some(after) = rest.strip_prefix(b",") else {
            return Ok(all);
        };
        rest = after;
    }
}

fn json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("text can be written as JSON")
}

#[derive(Serialize)]
struct Begin<'a> {
    title: &'a str,
}

#[derive(Serialize)]
struct Say<'a> {
    message: Message<'a>,
    stream: bool,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

/// A conversation, as far as we look.
#[derive(Deserialize)]
struct Conversation<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    title: Option<String>,
    #[serde(borrow)]
    created_at: Option<&'a RawValue>,
    #[serde(borrow)]
    updated_at: Option<&'a RawValue>,
}

impl Conversation<'_> {
    fn id(&self) -> Result<String, CallError> {
        let id = self.id;
        opaque_id(id.ok_or(CallError::Malformed("a conversation in it has no id"))?)
    }

    /// When it was last used. Services write all their times in one form, which sorts as text; of a
    /// time that is no text, the order of the list tells more.
    fn time(&self) -> Option<String> {
        let time = self.updated_at.or(self.created_at)?;
        serde_json::from_str(time.get()).ok()
    }
}

#[cfg(test)]
mod tests;

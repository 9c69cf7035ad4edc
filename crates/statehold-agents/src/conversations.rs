//! Client for services that store conversations themselves: it creates one, then sends only new
//! messages.

use http::StatusCode;
use http::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::chat::{ChatReply, TextSink, is_usable_id, opaque_id, read_answer};
use crate::http::{CallDeadline, EndpointError, HttpPool, ServiceEndpoint, ServiceRequest};

pub(crate) type HeaderPair = (HeaderName, HeaderValue);

/// Result of searching a service's list for a conversation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConversationSearch {
    /// The conversation with this id has the title.
    Found(String),
    /// No conversation has the title.
    Missing,
    /// The list exceeds the size limit, and the part that was read has no such title.
    ListTruncated,
}

/// Client of one conversation service. Cheap to build: the pool owns the connections.
pub(crate) struct ConversationsClient {
    http: HttpPool,
    /// Its paths begin with `/conversations`.
    endpoint: ServiceEndpoint,
}

impl ConversationsClient {
    pub(crate) fn new(http: HttpPool, endpoint: ServiceEndpoint) -> Self {
        Self { http, endpoint }
    }

    /// Creates a conversation and returns its id.
    pub(crate) async fn create(
        &self,
        title: &str,
        key: &HeaderPair,
    ) -> Result<String, EndpointError> {
        let request = self
            .endpoint
            .request(&["conversations"])?
            .with_headers(std::slice::from_ref(key))
            .with_json(&json!({ "title": title }));
        let body = match self.read_beginning(&request).await? {
            (body, None) => body,
            (_, Some(error)) => return Err(error),
        };
        let created: ListedConversation = serde_json::from_slice(&body)
            .map_err(|_| EndpointError::Malformed("it is not a conversation"))?;
        created.id()
    }

    /// Finds the newest conversation with this title. If the list exceeds the size limit, searches only
    /// its beginning.
    pub(crate) async fn find(&self, title: &str) -> Result<ConversationSearch, EndpointError> {
        let request = self.endpoint.request(&["conversations"])?;
        let (body, rest) = self.read_beginning(&request).await?;
        let is_whole = rest.is_none();
        let all: Vec<ListedConversation> = if is_whole {
            serde_json::from_slice(&body).map_err(|_| NOT_A_LIST)?
        } else {
            parse_truncated_list(&body)?
        };
        // Services list the newest first, unless the time stamps say otherwise.
        let named = all.iter().filter(|one| one.title.as_deref() == Some(title));
        let newest = named.reduce(|newest, one| {
            if one.time() > newest.time() {
                one
            } else {
                newest
            }
        });
        match newest {
            Some(found) => found.id().map(ConversationSearch::Found),
            None if is_whole => Ok(ConversationSearch::Missing),
            None => Ok(ConversationSearch::ListTruncated),
        }
    }

    /// Sends a message to a conversation and passes each chunk of the answer to `on_text`. `decisions` are for a
    /// service that has paused.
    ///
    /// A message that may have arrived stays in the conversation, so the call is retried only if no
    /// connection was made.
    pub(crate) async fn chat(
        &self,
        id: &str,
        (text, decisions): (&str, Option<&Value>),
        (stream, key): (bool, &HeaderPair),
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ChatReply, EndpointError> {
        if !is_usable_id(id) {
            // No service has assigned such an id.
            return Err(EndpointError::NotFound);
        }
        let mut body = json!({ "message": { "role": "user", "content": text }, "stream": stream });
        if let Some(decisions) = decisions {
            body["statehold"] = json!({ "decisions": decisions });
        }
        let request = self
            .endpoint
            .request(&["conversations", id, "chat"])?
            .with_headers(std::slice::from_ref(key))
            .accepting_stream(stream)
            .with_json(&body);
        let mut retry_budget = self.endpoint.retry_budget();
        loop {
            let outcome = self
                .send_once(&request, id, retry_budget.deadline(), on_text)
                .await;
            let was_sent = !matches!(outcome, Err(EndpointError::Unreachable(_)));
            if let Some(outcome) = retry_budget.retry_or_return(outcome, was_sent).await {
                return outcome;
            }
        }
    }

    /// Sends one message. The reply names the conversation to continue: the one that was used, unless
    /// the service named another.
    async fn send_once(
        &self,
        request: &ServiceRequest,
        id: &str,
        deadline: CallDeadline,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<ChatReply, EndpointError> {
        let answer = self.http.send(request, deadline).await;
        let mut answer = answer.map_err(|error| match error {
            EndpointError::Status {
                status: StatusCode::NOT_FOUND | StatusCode::GONE,
                ..
            } => EndpointError::NotFound,
            error => error,
        })?;
        let mut reply = read_answer(&mut answer, &mut TextSink(on_text)).await?;
        reply.conversation_id.get_or_insert_with(|| id.to_owned());
        Ok(reply)
    }

    /// Reads a body up to the size limit. The error says why the rest is missing.
    async fn read_beginning(
        &self,
        request: &ServiceRequest,
    ) -> Result<(Vec<u8>, Option<EndpointError>), EndpointError> {
        let mut retry_budget = self.endpoint.retry_budget();
        loop {
            let outcome = match self.http.send(request, retry_budget.deadline()).await {
                Ok(mut answer) => {
                    let mut read = Vec::new();
                    loop {
                        match answer.next_chunk().await {
                            Ok(Some(chunk)) => read.extend_from_slice(&chunk),
                            Ok(None) => break Ok((read, None)),
                            Err(error @ EndpointError::TooLarge(_)) => {
                                break Ok((read, Some(error)));
                            }
                            Err(error) => break Err(error),
                        }
                    }
                }
                Err(error) => Err(error),
            };
            if let Some(outcome) = retry_budget.retry_or_return(outcome, false).await {
                return outcome;
            }
        }
    }
}

const NOT_A_LIST: EndpointError = EndpointError::Malformed("it is not a list of conversations");

/// Parses the complete conversations at the beginning of a truncated list.
fn parse_truncated_list(list: &[u8]) -> Result<Vec<ListedConversation<'_>>, EndpointError> {
    let list = list.trim_ascii_start().strip_prefix(b"[");
    let mut rest = list.ok_or(NOT_A_LIST)?;
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

/// The members of a conversation that are read.
#[derive(Deserialize)]
struct ListedConversation<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    title: Option<String>,
    #[serde(borrow)]
    created_at: Option<&'a RawValue>,
    #[serde(borrow)]
    updated_at: Option<&'a RawValue>,
}

impl ListedConversation<'_> {
    fn id(&self) -> Result<String, EndpointError> {
        let id = self.id;
        opaque_id(id.ok_or(EndpointError::Malformed("a conversation in it has no id"))?)
    }

    /// Time of last use, as text: services write their times in one sortable form. None for a time that
    /// is not a string; then the order of the list decides.
    fn time(&self) -> Option<String> {
        let time = self.updated_at.or(self.created_at)?;
        serde_json::from_str(time.get()).ok()
    }
}

#[cfg(test)]
mod tests;

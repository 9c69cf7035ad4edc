//! Client of the Conversational Analytics API: conversations, and `:chat`, whose answer is one JSON array.
//!
//! Messages stay raw JSON text, so that a service gets the messages of earlier turns back as they came.

mod answer;
mod elements;

use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::chat::is_usable_id;
use crate::http::{EndpointError, HttpPool, ServiceEndpoint, ServiceRequest};

pub(crate) use answer::{AnalyticsReply, is_final_text, system_text, user_message};

/// Client of one place of the API. Cheap to build: the pool owns the connections.
pub(crate) struct AnalyticsClient {
    pub(crate) http: HttpPool,
    /// Its paths begin with `/projects`.
    pub(crate) endpoint: ServiceEndpoint,
    /// Project and location: `projects/P/locations/L`.
    pub(crate) parent: String,
}

/// A conversation to be created.
#[derive(Debug)]
pub(crate) struct ConversationSeed {
    /// The id that the caller chose.
    pub(crate) id: String,
    /// A UUID by which the service knows a repeated call.
    pub(crate) request_id: String,
    /// The whole name of the data agent.
    pub(crate) data_agent: String,
    pub(crate) title: String,
}

/// A message to the service.
pub(crate) struct ChatMessage<'a, B> {
    pub(crate) body: &'a B,
    pub(crate) key: (HeaderName, HeaderValue),
    /// Whether the service stores the message, so that one that may have arrived is not sent again.
    pub(crate) is_stored: bool,
}

impl AnalyticsClient {
    /// Creates a conversation and returns its whole name, and whether it existed before: an earlier attempt with
    /// the same id created it.
    pub(crate) async fn create(
        &self,
        seed: &ConversationSeed,
    ) -> Result<(String, bool), EndpointError> {
        #[derive(Default, Deserialize)]
        struct Created {
            name: Option<String>,
        }
        let query = [
            ("conversationId", seed.id.as_str()),
            ("requestId", seed.request_id.as_str()),
        ];
        let body = json!({ "agents": [seed.data_agent], "title": seed.title });
        let request = self.request(&["conversations"], "")?;
        let request = request.with_query(&query).with_json(&body);
        let name = format!("{}/conversations/{}", self.parent, seed.id);
        match self.fetch(&request).await {
            Ok(body) => {
                // A service that chooses the id itself says so.
                let created: Created = serde_json::from_slice(&body).unwrap_or_default();
                let named = created.name.filter(|name| is_usable_id(name));
                Ok((named.unwrap_or(name), false))
            }
            // Another conflict has this status too, so look whether the conversation is there.
            Err(error) if has_status(&error, StatusCode::CONFLICT) => {
                let request = self.request(&["conversations", &seed.id], "")?;
                let found = self.fetch(&request).await;
                found.map(|_| (name, true)).map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a message, with or without its history, and passes each text of the answer to `on_text`.
    pub(crate) async fn chat<B: Serialize>(
        &self,
        message: &ChatMessage<'_, B>,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<AnalyticsReply, EndpointError> {
        let request = self
            .request(&[], ":chat")?
            .with_headers(std::slice::from_ref(&message.key))
            .with_json(message.body);
        let mut retry_budget = self.endpoint.retry_budget();
        let mut was_streamed = false;
        loop {
            let mut on_chunk = |text: &str| {
                was_streamed = true;
                on_text(text);
            };
            let outcome = match self.http.send(&request, retry_budget.deadline()).await {
                Ok(mut answer) => answer::read_answer(&mut answer, &mut on_chunk).await,
                Err(error) => Err(error),
            };
            let was_sent = !matches!(outcome, Err(EndpointError::Unreachable(_)));
            let is_final = was_streamed || message.is_stored && was_sent;
            if let Some(outcome) = retry_budget.retry_or_return(outcome, is_final).await {
                return outcome.map_err(|error| match error {
                    error if message.is_stored && is_gone(&error) => EndpointError::NotFound,
                    error => error,
                });
            }
        }
    }

    /// A request to a resource below the place, or with a verb to the last part of its path.
    fn request(&self, below: &[&str], verb: &str) -> Result<ServiceRequest, EndpointError> {
        let mut path: Vec<String> = self.parent.split('/').map(str::to_owned).collect();
        path.extend(below.iter().map(|&part| part.to_owned()));
        if let Some(last) = path.last_mut() {
            last.push_str(verb);
        }
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        self.endpoint.request(&path)
    }

    /// Reads a whole body. The calls that use it may be repeated.
    async fn fetch(&self, request: &ServiceRequest) -> Result<Vec<u8>, EndpointError> {
        let mut retry_budget = self.endpoint.retry_budget();
        loop {
            let outcome = match self.http.send(request, retry_budget.deadline()).await {
                Ok(mut answer) => answer.rest(Vec::new()).await,
                Err(error) => Err(error),
            };
            if let Some(outcome) = retry_budget.retry_or_return(outcome, false).await {
                return outcome;
            }
        }
    }
}

fn has_status(error: &EndpointError, expected: StatusCode) -> bool {
    matches!(error, EndpointError::Status { status, .. } if *status == expected)
}

fn is_gone(error: &EndpointError) -> bool {
    has_status(error, StatusCode::NOT_FOUND) || has_status(error, StatusCode::GONE)
}

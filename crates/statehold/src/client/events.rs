//! The server-sent events of one answer, with limits on their size and on silence.

use std::io;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;
use statehold_agents::outbound;
use statehold_agents::sse::{self, EventError, Sse};
use tokio::time::timeout;

use super::{Client, JSON};
use crate::exit::Failure;

/// A server sends a comment every 15 seconds at least; three missing ones mean a dead connection.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// The most bytes of one event.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// The event blocks of an open answer.
pub(super) type Events = BoxStream<'static, Result<Sse, EventError<io::Error>>>;

/// The events of one call.
pub(crate) struct EventStream {
    client: Client,
    events: Events,
}

impl Client {
    /// Posts, and reads the answer while it arrives.
    ///
    /// # Errors
    ///
    /// If no server answers, not in time, or with a refusal.
    pub(crate) async fn post_stream(
        &self,
        path: &str,
        body: &Value,
        headers: &[(&'static str, String)],
    ) -> Result<EventStream, Failure> {
        let mut request = self
            .request(Method::POST, path)?
            .header(CONTENT_TYPE, JSON)
            .body(body.to_string());
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        Ok(EventStream {
            client: self.clone(),
            events: self.open_events(request).await?,
        })
    }

    /// Opens a stream of events. The timeout of the client is for its head alone.
    pub(super) async fn open_events(&self, request: RequestBuilder) -> Result<Events, Failure> {
        let request = request.header(ACCEPT, "text/event-stream");
        let response = self.in_time(self.open(request)).await?;
        Ok(events_of(response))
    }
}

/// The events of an answer.
pub(super) fn events_of(response: Response) -> Events {
    // Comments are no events but signs of life, so silence is measured on the bytes.
    let chunks = stream::unfold(response, |mut response| async move {
        let chunk = match timeout(SILENCE_MAX, response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk?),
            Ok(Err(error)) => Err(io::Error::other(outbound::root_cause(&error))),
            Err(_) => Err(io::Error::other("the server is silent")),
        };
        Some((chunk, response))
    });
    sse::events(chunks, EVENT_BYTES_MAX).boxed()
}

impl EventStream {
    /// The data of the next event. None if the server ended the stream.
    ///
    /// # Errors
    ///
    /// If the connection breaks or stays silent, or the events cannot be read.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            let event = self.events.try_next().await;
            match event.map_err(|error| self.client.broken(&error.to_string()))? {
                Some(Sse {
                    data: Some(data), ..
                }) => return Ok(Some(data)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

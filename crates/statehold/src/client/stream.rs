//! An answer that comes in pieces: the events of one call.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, header};
use serde_json::Value;
use tokio::time::timeout;

use super::sse::Parser;
use super::{Client, problem};
use crate::exit::Failure;

/// A server sends a comment every 10 seconds; four missing ones mean that nobody is there.
const SILENCE_MAX: Duration = Duration::from_secs(45);

/// The events of one call.
#[derive(Debug)]
pub(crate) struct EventStream {
    client: Client,
    parser: Parser,
    body: Incoming,
}

impl Client {
    /// Posts, and reads the answer as it comes.
    ///
    /// # Errors
    ///
    /// If nobody answers, not in time, or with a refusal.
    pub(crate) async fn post_stream(
        &self,
        path: &str,
        body: &Value,
        headers: &[(&'static str, String)],
    ) -> Result<EventStream, Failure> {
        let mut request = self
            .request(Method::POST, path)
            .header(header::ACCEPT, "text/event-stream")
            .header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string())));
        let opened = timeout(self.timeout, async {
            let (head, body) = self.send(request).await?.into_parts();
            if head.status.is_success() {
                return Ok(body);
            }
            let bytes = self.read(body).await?;
            Err(problem::failure(&self.address, head.status, &bytes))
        });
        let body = opened.await.map_err(|_| self.too_slow())??;
        Ok(EventStream {
            client: self.clone(),
            parser: Parser::default(),
            body,
        })
    }
}

impl EventStream {
    /// The data of the next event. None if the server ended the stream.
    ///
    /// # Errors
    ///
    /// If the connection breaks, or nothing comes for long.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event.data));
            }
            let frame = match timeout(SILENCE_MAX, self.body.frame()).await {
                Err(_) => return Err(self.client.broken("the server is silent")),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(self.client.broken(&error.to_string())),
                Ok(Some(Ok(frame))) => frame,
            };
            if let Some(bytes) = frame.data_ref() {
                let pushed = self.parser.push(bytes);
                pushed.map_err(|_| self.client.broken("an event has no end"))?;
            }
        }
    }
}

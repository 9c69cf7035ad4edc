//! A reader of feeds that continues after a lost connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use statehold_fakes::{SseEvent, SseParser};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{collect, open, request};

/// More than twice the time after which a quiet feed sends a comment.
const QUIET_MAX: Duration = Duration::from_secs(40);

/// Reads one feed over a connection of its own.
#[derive(Debug)]
pub struct SseReader {
    body: Incoming,
    driver: JoinHandle<()>,
    parser: SseParser,
    ready: VecDeque<SseEvent>,
    last_event_id: Option<String>,
}

impl SseReader {
    /// Opens a feed, after the event `last_event_id` if one is given.
    ///
    /// # Errors
    ///
    /// If nobody listens, or the answer is not a feed.
    pub async fn connect(
        address: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        last_event_id: Option<&str>,
    ) -> Result<Self> {
        let mut headers = headers.to_vec();
        headers.push(("accept", "text/event-stream"));
        headers.extend(last_event_id.map(|id| ("last-event-id", id)));
        let mut reader = Self::open(address, (Method::GET, path), &headers, Bytes::new()).await?;
        reader.last_event_id = last_event_id.map(str::to_owned);
        Ok(reader)
    }

    /// Sends a call that is answered with a stream.
    ///
    /// # Errors
    ///
    /// If nobody listens, or the answer is not a stream.
    pub async fn post(
        address: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Self> {
        Self::open(address, (Method::POST, path), headers, body.into()).await
    }

    async fn open(
        address: SocketAddr,
        (method, path): (Method, &str),
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Self> {
        let (mut sender, driver) = open(address).await?;
        let request = request(address, method, path, headers, body)?;
        let response = timeout(QUIET_MAX, sender.send_request(request))
            .await
            .map_err(|_| anyhow!("the feed {path} did not begin"))??;
        let kind = response.headers().get("content-type");
        let is_feed = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if !response.status().is_success() || !is_feed {
            let answer = collect(response).await?;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(anyhow!("{path} answered {}: {text}", answer.status));
        }
        Ok(Self {
            body: response.into_body(),
            driver,
            parser: SseParser::default(),
            ready: VecDeque::new(),
            last_event_id: None,
        })
    }

    /// The next event, or nothing if the sender has ended the feed.
    ///
    /// # Errors
    ///
    /// If the connection was lost or stays quiet for too long. [`SseReader::last_event_id`] says where
    /// to go on.
    pub async fn next(&mut self) -> Result<Option<SseEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if !event.id.is_empty() {
                    self.last_event_id = Some(event.id.clone());
                }
                return Ok(Some(event));
            }
            let frame = timeout(QUIET_MAX, self.body.frame())
                .await
                .map_err(|_| anyhow!("the feed was quiet for {QUIET_MAX:?}"))?;
            let Some(frame) = frame else {
                return Ok(None);
            };
            let frame = frame.context("reading the feed")?;
            if let Some(bytes) = frame.data_ref() {
                self.ready.extend(self.parser.push(bytes));
            }
            ensure!(
                self.parser.unfinished_bytes() < 64 << 20,
                "a line of a feed that does not end"
            );
        }
    }

    /// The id of the last event that was handed out: what `Last-Event-ID` says after a reconnect.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }
}

impl Drop for SseReader {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

//! A feed that survives lost connections: it comes back and asks for what follows the last event.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, header};
use tokio::time::{sleep, timeout};

use super::sse::{Event, Parser};
use super::{Client, problem};
use crate::exit::{Exit, Failure};

/// A server sends a comment every 15 seconds; three missing ones mean that nobody is there.
const SILENCE_MAX: Duration = Duration::from_secs(45);
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// What happens on a feed.
#[derive(Debug)]
pub(crate) enum FeedStep {
    Event(Event),
    /// The connection was lost; the next step tries to come back.
    Lost {
        why: String,
    },
    /// The connection is there again.
    Back,
}

/// A feed of events.
#[derive(Debug)]
pub(crate) struct Feed {
    client: Client,
    path: String,
    last_id: Option<String>,
    parser: Parser,
    /// The open answer. None while the connection is lost.
    body: Option<Incoming>,
    tries: u32,
}

impl Feed {
    /// Opens a feed that begins after `after`, or with what happens next.
    ///
    /// # Errors
    ///
    /// If nobody answers, or with a refusal. Only what was open once is opened again.
    pub(crate) async fn open(
        client: &Client,
        path: &str,
        after: Option<String>,
    ) -> Result<Self, Failure> {
        let mut feed = Self {
            client: client.clone(),
            path: path.to_owned(),
            parser: Parser::after(after.clone()),
            last_id: after,
            body: None,
            tries: 0,
        };
        feed.connect().await?;
        Ok(feed)
    }

    /// Waits for the next step. Never ends by itself.
    ///
    /// # Errors
    ///
    /// If the server refuses to go on, for example because the session was deleted.
    pub(crate) async fn next(&mut self) -> Result<FeedStep, Failure> {
        loop {
            if let Some(event) = self.parser.next() {
                self.last_id.clone_from(&event.id);
                self.tries = 0;
                return Ok(FeedStep::Event(event));
            }
            if self.body.is_none() {
                self.pause().await;
                match self.connect().await {
                    Ok(()) => return Ok(FeedStep::Back),
                    Err(failure) if is_final(&failure) => return Err(failure),
                    Err(_) => continue,
                }
            }
            if let Some(why) = self.read().await? {
                self.body = None;
                return Ok(FeedStep::Lost { why });
            }
        }
    }

    /// Reads one piece. Returns why if there will be no more.
    async fn read(&mut self) -> Result<Option<String>, Failure> {
        let Some(body) = &mut self.body else {
            return Ok(None);
        };
        let frame = match timeout(SILENCE_MAX, body.frame()).await {
            Err(_) => return Ok(Some("the server is silent".to_owned())),
            Ok(None) => return Ok(Some("the server ended it".to_owned())),
            Ok(Some(Err(error))) => return Ok(Some(error.to_string())),
            Ok(Some(Ok(frame))) => frame,
        };
        if let Some(bytes) = frame.data_ref() {
            self.parser.push(bytes).map_err(|_| {
                Failure::new(Exit::Failed, "the server sent an event without an end")
            })?;
        }
        Ok(None)
    }

    async fn connect(&mut self) -> Result<(), Failure> {
        self.tries = self.tries.saturating_add(1);
        let mut request = self
            .client
            .request(Method::GET, &self.path)
            .header(header::ACCEPT, "text/event-stream");
        if let Some(id) = &self.last_id {
            request = request.header("last-event-id", id);
        }
        let client = &self.client;
        let opened = timeout(client.timeout, async {
            let response = client.send(request.body(Full::default())).await?;
            let (head, body) = response.into_parts();
            if head.status.is_success() {
                return Ok(body);
            }
            let bytes = client.read(body).await?;
            Err(problem::failure(&client.address, head.status, &bytes))
        });
        let body = opened.await.map_err(|_| client.too_slow())??;
        // What was cut in the middle is sent again: the new connection begins with whole lines.
        self.parser = Parser::after(self.last_id.clone());
        self.body = Some(body);
        Ok(())
    }

    /// Waits before coming back: twice as long after each try that failed.
    async fn pause(&self) {
        let first = self.parser.retry().unwrap_or(RETRY_MIN).min(RETRY_MAX);
        let doubled = first.saturating_mul(1 << self.tries.saturating_sub(1).min(10));
        sleep(doubled.min(RETRY_MAX)).await;
    }
}

/// Whether trying again cannot help: the server understood, and said no.
fn is_final(failure: &Failure) -> bool {
    let may_pass = [408, 429];
    failure
        .status
        .is_some_and(|status| (300..500).contains(&status) && !may_pass.contains(&status))
}

//! A feed that survives lost connections: it reconnects and asks for the events after the last one.

use std::fmt;
use std::time::Duration;

use futures_util::stream::TryStreamExt;
use http::Method;
use statehold_agents::sse::EventError;
use tokio::time::sleep;

use super::Client;
use super::events::Events;
use crate::exit::{Exit, Failure};

const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// One event of a feed.
#[derive(Debug)]
pub(crate) struct FeedMessage {
    /// `message` unless the server named another.
    pub(crate) kind: String,
    pub(crate) data: String,
}

/// A step of following a feed.
#[derive(Debug)]
pub(crate) enum FeedStep {
    Event(FeedMessage),
    /// The connection was lost; the next step tries to reconnect.
    Lost {
        why: String,
    },
    /// The connection is open again.
    Back,
}

/// A feed of events.
pub(crate) struct Feed {
    client: Client,
    path: String,
    last_id: Option<String>,
    /// The first pause before reconnecting, which the server may set.
    retry: Duration,
    /// None while the connection is lost.
    events: Option<Events>,
    tries: u32,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed")
            .field("path", &self.path)
            .field("last_id", &self.last_id)
            .finish_non_exhaustive()
    }
}

impl Feed {
    /// Opens a feed that begins after `after`, or with the next event.
    ///
    /// # Errors
    ///
    /// If no server answers, or with a refusal. A feed reconnects only after it was open once.
    pub(crate) async fn open(
        client: &Client,
        path: &str,
        after: Option<String>,
    ) -> Result<Self, Failure> {
        let mut feed = Self {
            client: client.clone(),
            path: path.to_owned(),
            last_id: after,
            retry: RETRY_MIN,
            events: None,
            tries: 0,
        };
        feed.connect().await?;
        Ok(feed)
    }

    /// Waits for the next step. Never ends by itself.
    ///
    /// # Errors
    ///
    /// If the server refuses the feed for good, for example because the session was deleted.
    pub(crate) async fn next(&mut self) -> Result<FeedStep, Failure> {
        loop {
            let Some(events) = &mut self.events else {
                self.pause().await;
                match self.connect().await {
                    Ok(()) => return Ok(FeedStep::Back),
                    Err(failure) if is_final(&failure) => return Err(failure),
                    Err(_) => continue,
                }
            };
            let event = match events.try_next().await {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(self.disconnect("the server ended it".to_owned())),
                Err(EventError::Body(error)) => return Ok(self.disconnect(error.to_string())),
                Err(error) => {
                    let message = format!("the feed of the server cannot be read: {error}");
                    return Err(Failure::new(Exit::Failed, message));
                }
            };
            if let Some(ms) = event.retry {
                self.retry = Duration::from_millis(ms);
            }
            if let Some(id) = event.id {
                self.last_id = Some(id).filter(|id| !id.is_empty());
            }
            if let Some(data) = event.data {
                self.tries = 0;
                let kind = event.event.filter(|kind| !kind.is_empty());
                let kind = kind.unwrap_or_else(|| "message".to_owned());
                return Ok(FeedStep::Event(FeedMessage { kind, data }));
            }
        }
    }

    fn disconnect(&mut self, why: String) -> FeedStep {
        self.events = None;
        FeedStep::Lost { why }
    }

    async fn connect(&mut self) -> Result<(), Failure> {
        self.tries = self.tries.saturating_add(1);
        let mut request = self.client.request(Method::GET, &self.path)?;
        if let Some(id) = &self.last_id {
            request = request.header("last-event-id", id);
        }
        self.events = Some(self.client.open_events(request).await?);
        Ok(())
    }

    /// Waits before reconnecting: twice as long after each failed try.
    async fn pause(&self) {
        let doubled = self
            .retry
            .min(RETRY_MAX)
            .saturating_mul(1 << self.tries.saturating_sub(1).min(10));
        sleep(doubled.min(RETRY_MAX)).await;
    }
}

/// Whether trying again cannot help, because the server answered with a refusal that stays.
fn is_final(failure: &Failure) -> bool {
    let may_pass = [408, 429];
    failure
        .status
        .is_some_and(|status| (300..500).contains(&status) && !may_pass.contains(&status))
}

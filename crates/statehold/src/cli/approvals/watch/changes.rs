//! Changes of holds, from the best source that the server has for this key: the feed of holds, the
//! feed of all sessions, or asking every second.
//!
//! Whatever the source, every hold that is open at the start or opened later is told once as
//! `opened`, and each one that was told is told once as `decided`. After a lost connection the list
//! is compared, so that nothing is missed.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::cli::answers::{Pages, elements, text};
use crate::cli::printable::cell;
use crate::client::{Client, Feed, FeedStep};
use crate::exit::{Exit, Failure};

/// How often is asked where there is no feed.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// One change.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// `opened`, `voted` or `decided`.
    pub(super) word: String,
    pub(super) hold: Value,
}

#[derive(Debug)]
pub(super) enum Step {
    Changed(Change),
    Lost(String),
    Back,
}

#[derive(Debug)]
enum Source {
    Holds(Feed),
    Sessions(Feed),
    Asking,
}

#[derive(Debug)]
pub(super) struct Changes {
    client: Client,
    source: Source,
    /// The open holds that were told, in the order of the server.
    open: Vec<Value>,
    ready: VecDeque<Change>,
    is_lost: bool,
    must_compare: bool,
}

impl Changes {
    /// Begins to follow.
    ///
    /// # Errors
    ///
    /// If nobody answers, or this key may not list holds.
    pub(super) async fn open(client: &Client) -> Result<Self, Failure> {
        // Following begins before looking, so that nothing is missed in between.
        let source = match Feed::open(client, "/v1/holds/events", None).await {
            Ok(feed) => Source::Holds(feed),
            Err(failure) if is_missing(&failure) => {
                match Feed::open(client, "/v1/events", None).await {
                    Ok(feed) => Source::Sessions(feed),
                    Err(failure) if is_missing(&failure) => Source::Asking,
                    Err(failure) => return Err(failure),
                }
            }
            Err(failure) => return Err(failure),
        };
        let mut changes = Self {
            client: client.clone(),
            source,
            open: Vec::new(),
            ready: VecDeque::new(),
            is_lost: false,
            must_compare: false,
        };
        changes.compare().await?;
        Ok(changes)
    }

    /// How it follows, if that is worth saying.
    pub(super) fn how(&self) -> &'static str {
        match self.source {
            Source::Holds(_) | Source::Sessions(_) => "",
            Source::Asking => ", asking every second",
        }
    }

    pub(super) fn open_holds(&self) -> &[Value] {
        &self.open
    }

    /// The next thing that happens.
    ///
    /// # Errors
    ///
    /// If the right to look is gone.
    pub(super) async fn next(&mut self) -> Result<Step, Failure> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(Step::Changed(change));
            }
            if self.must_compare {
                match self.compare().await {
                    Ok(()) => self.must_compare = false,
                    Err(failure) if may_pass(&failure) => sleep(ASK_EVERY).await,
                    Err(failure) => return Err(failure),
                }
                continue;
            }
            let step = match &mut self.source {
                Source::Holds(feed) | Source::Sessions(feed) => feed.next().await?,
                Source::Asking => {
                    sleep(ASK_EVERY).await;
                    match self.compare().await {
                        Ok(()) if self.is_lost => {
                            self.is_lost = false;
                            return Ok(Step::Back);
                        }
                        Ok(()) => {}
                        Err(failure) if may_pass(&failure) && !self.is_lost => {
                            self.is_lost = true;
                            return Ok(Step::Lost(cell(&failure.message)));
                        }
                        Err(failure) if may_pass(&failure) => {}
                        Err(failure) => return Err(failure),
                    }
                    continue;
                }
            };
            match step {
                FeedStep::Event(event) => self.take(&event.data),
                FeedStep::Lost { why } => return Ok(Step::Lost(cell(&why))),
                FeedStep::Back => {
                    self.must_compare = true;
                    return Ok(Step::Back);
                }
            }
        }
    }

    /// Takes one event of a feed. What is not about holds changes nothing.
    fn take(&mut self, data: &str) {
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            return;
        };
        match self.source {
            Source::Holds(_) => {
                let word = text(&event, "change").to_owned();
                if event["hold"].is_object() {
                    self.tell(&word, event["hold"].clone());
                    // The order is the server's to say.
                    self.must_compare = true;
                }
            }
            Source::Sessions(_) => {
                let mut kinds = elements(&event, "events")
                    .iter()
                    .map(|event| text(event, "type"));
                self.must_compare |= kinds.any(|kind| {
                    matches!(kind, "hold_opened" | "hold_decided" | "vote_recorded")
                        || kind.starts_with("session_")
                });
            }
            Source::Asking => {}
        }
    }

    /// Tells a change, unless it was told.
    fn tell(&mut self, word: &str, hold: Value) {
        let id = text(&hold, "id").to_owned();
        let at = self.open.iter().position(|open| open["id"] == id.as_str());
        let is_open = text(&hold, "status") == "open";
        match (word, at) {
            ("opened", Some(_)) => return,
            ("decided", None) => {
                // It came and went between two looks: both are told.
                let mut opened = hold.clone();
                opened["status"] = "open".into();
                if let Some(fields) = opened.as_object_mut() {
                    fields.remove("decision");
                }
                self.push("opened", opened);
            }
            (_, Some(at)) if is_open => self.open[at] = hold.clone(),
            (_, Some(at)) => drop(self.open.remove(at)),
            (_, None) if is_open => self.open.push(hold.clone()),
            (_, None) => {}
        }
        self.push(word, hold);
    }

    fn push(&mut self, word: &str, hold: Value) {
        let word = word.to_owned();
        self.ready.push_back(Change { word, hold });
    }

    /// Compares what is open with what was told.
    async fn compare(&mut self) -> Result<(), Failure> {
        let now = Pages::holds(Vec::new())
            .take(&self.client, usize::MAX)
            .await?;
        let ids: BTreeMap<String, Value> = now
            .iter()
            .map(|hold| (text(hold, "id").to_owned(), hold.clone()))
            .collect();
        let gone: Vec<Value> = self
            .open
            .iter()
            .filter(|hold| !ids.contains_key(text(hold, "id")))
            .cloned()
            .collect();
        // Everything is asked before anything is told: asking may fail in the middle.
        let mut decided = Vec::new();
        for hold in gone {
            let path = format!("/v1/holds/{}", text(&hold, "id"));
            match self.client.get(&path).await {
                Ok(answer) if text(&answer.body, "status") != "open" => decided.push(answer.body),
                // Opened again in a list that is behind: the next look tells.
                Ok(_) => {}
                // Its session was deleted.
                Err(failure) if failure.exit == Exit::NotFound => {
                    let mut hold = hold;
                    hold["status"] = "cancelled".into();
                    decided.push(hold);
                }
                Err(failure) => return Err(failure),
            }
        }
        for hold in decided {
            self.tell("decided", hold);
        }
        for hold in &now {
            let before = self.open.iter().find(|open| open["id"] == hold["id"]);
            match before.map(|before| before["votes"] != hold["votes"]) {
                None => self.tell("opened", hold.clone()),
                Some(true) => self.tell("voted", hold.clone()),
                Some(false) => {}
            }
        }
        self.open = now;
        Ok(())
    }
}

/// Whether the server has no such feed, or not for this key.
fn is_missing(failure: &Failure) -> bool {
    matches!(failure.status, Some(403..=405 | 400))
}

fn may_pass(failure: &Failure) -> bool {
    matches!(failure.exit, Exit::Unreachable | Exit::TimedOut)
        || matches!(failure.status, Some(429 | 503))
}

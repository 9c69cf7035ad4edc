//! Changes of holds, from the best source that the server has for this key: the feed of holds, the
//! feed of all sessions, or asking every second.
//!
//! Whatever the source, every hold that is open at the start or opened later is told once as
//! `opened`, and each one that was told is told once as `decided`. After a lost connection the list
//! is compared, so that nothing is missed.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::cli::answers::{Pages, elements, text};
use crate::cli::printable::cell;
use crate::client::{Client, Feed, FeedStep};
use crate::exit::{Exit, Failure};

/// How often is asked where there is no feed.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How many decided holds are remembered, so that none is told twice.
const DONE_MAX: usize = 1_000;

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
    /// The last holds that were told as decided.
    done: VecDeque<Value>,
    /// Holds that a feed named as opened, without saying what they are.
    named: Vec<String>,
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
            done: VecDeque::new(),
            named: Vec::new(),
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
                self.must_compare = false;
                match self.compare().await {
                    Ok(()) => {}
                    Err(failure) if may_pass(&failure) => {
                        self.must_compare = true;
                        sleep(ASK_EVERY).await;
                    }
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
                for event in elements(&event, "events") {
                    let kind = text(event, "type");
                    if kind == "hold_opened" {
                        self.named.push(text(event, "hold_id").to_owned());
                    }
                    self.must_compare |= matches!(
                        kind,
                        "hold_opened" | "hold_decided" | "vote_recorded" | "session_deleted"
                    );
                }
            }
            Source::Asking => {}
        }
    }

    /// Tells a change, unless it was told. A list may know of a change before its event comes.
    fn tell(&mut self, word: &str, hold: Value) {
        if self.done.contains(&hold["id"]) {
            return;
        }
        let at = self.open.iter().position(|open| open["id"] == hold["id"]);
        let Some(at) = at else {
            // It may have come and gone between two looks: both are told.
            let mut opened = hold.clone();
            opened["status"] = "open".into();
            if let Some(fields) = opened.as_object_mut() {
                fields.remove("decision");
            }
            self.open.push(opened.clone());
            self.push("opened", opened);
            if word != "opened" {
                self.tell(word, hold);
            }
            return;
        };
        match word {
            "opened" => {}
            "decided" => {
                self.open.remove(at);
                self.done.push_back(hold["id"].clone());
                if self.done.len() > DONE_MAX {
                    self.done.pop_front();
                }
                self.push(word, hold);
            }
            _ => {
                let is_told = !hold["votes"].is_null() && self.open[at]["votes"] == hold["votes"];
                self.open[at] = hold.clone();
                if !is_told {
                    self.push(word, hold);
                }
            }
        }
    }

    fn push(&mut self, word: &str, hold: Value) {
        let word = word.to_owned();
        self.ready.push_back(Change { word, hold });
    }

    /// Compares what is open with what was told.
    async fn compare(&mut self) -> Result<(), Failure> {
        let mut now = Pages::holds(Vec::new())
            .take(&self.client, usize::MAX)
            .await?;
        let is_listed = |id: &str| now.iter().any(|hold| text(hold, "id") == id);
        let told = self.open.iter().map(|hold| text(hold, "id").to_owned());
        let gone: Vec<String> = told
            .chain(self.named.iter().cloned())
            .filter(|id| !is_listed(id))
            .collect();
        // Everything is asked before anything is told: asking may fail in the middle.
        let mut decided = Vec::new();
        for id in gone {
            match self.client.get(&format!("/v1/holds/{id}")).await {
                Ok(answer) if text(&answer.body, "status") != "open" => decided.push(answer.body),
                // Opened after the list was read.
                Ok(answer) => now.push(answer.body),
                // Its session was deleted, or this key never saw it.
                Err(failure) if failure.exit == Exit::NotFound => {
                    let known = self.open.iter().find(|hold| text(hold, "id") == id);
                    decided.extend(known.map(|hold| {
                        let mut hold = hold.clone();
                        hold["status"] = "cancelled".into();
                        hold
                    }));
                }
                Err(failure) => return Err(failure),
            }
        }
        self.named.clear();
        for hold in decided {
            self.tell("decided", hold);
        }
        for hold in &now {
            let before = self.open.iter().find(|open| open["id"] == hold["id"]);
            let is_voted = before.is_some_and(|before| before["votes"] != hold["votes"]);
            self.tell(if is_voted { "voted" } else { "opened" }, hold.clone());
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changes() -> Changes {
        let address = "http://127.0.0.1:1".parse().expect("an address");
        Changes {
            client: Client::new(address, None, ASK_EVERY).expect("a client"),
            source: Source::Asking,
            open: Vec::new(),
            done: VecDeque::new(),
            named: Vec::new(),
            ready: VecDeque::new(),
            is_lost: false,
            must_compare: false,
        }
    }

    fn told(changes: &mut Changes) -> Vec<String> {
        let told = changes.ready.drain(..);
        told.map(|change| format!("{} {}", change.word, text(&change.hold, "status")))
            .collect()
    }

    #[test]
    fn each_change_is_told_once_whoever_knew_first() {
        let hold = |status: &str, votes: &[&str]| json!({ "id": "hld_1", "status": status, "votes": votes });
        let mut changes = changes();
        changes.tell("opened", hold("open", &[]));
        changes.tell("opened", hold("open", &[]));
        assert_eq!(told(&mut changes), ["opened open"]);
        changes.tell("voted", hold("open", &["a"]));
        changes.tell("voted", hold("open", &["a"]));
        assert_eq!(told(&mut changes), ["voted open"]);
        changes.tell("decided", hold("approved", &["a", "b"]));
        changes.tell("decided", hold("approved", &["a", "b"]));
        changes.tell("opened", hold("open", &[]));
        assert_eq!(told(&mut changes), ["decided approved"]);
        assert!(changes.open.is_empty());
    }

    #[test]
    fn what_came_and_went_between_two_looks_is_told_whole() {
        let mut changes = changes();
        let hold = json!({ "id": "hld_1", "status": "rejected", "decision": { "by": "local" } });
        changes.tell("decided", hold);
        assert!(changes.ready[0].hold["decision"].is_null());
        assert_eq!(told(&mut changes), ["opened open", "decided rejected"]);
    }
}

//! Changes of holds, from the best source that the server offers this key: the feed of holds, the
//! feed of all sessions, or polling every second.
//!
//! With every source, each hold that is open at the start or opened later is reported once as
//! `opened` and once as `decided`. After a lost connection the list is compared again, so no change
//! is missed.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::cli::answers::{ListPages, elements, text};
use crate::cli::printable::cell;
use crate::client::{Client, Feed, FeedStep};
use crate::exit::{Exit, Failure};

/// The polling interval where there is no feed.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How many decided holds are remembered, so that none is reported twice.
const DONE_MAX: usize = 1_000;

/// One change of a hold.
#[derive(Debug, Clone)]
pub(super) struct WatchedChange {
    /// `opened`, `voted` or `decided`.
    pub(super) word: String,
    pub(super) hold: Value,
}

#[derive(Debug)]
pub(super) enum WatchStep {
    Changed(WatchedChange),
    Lost(String),
    Back,
}

#[derive(Debug)]
enum ChangeSource {
    Holds(Feed),
    Sessions(Feed),
    Asking,
}

#[derive(Debug)]
pub(super) struct HoldChanges {
    client: Client,
    source: ChangeSource,
    /// The open holds that were reported, in the order of the server.
    open: Vec<Value>,
    /// The last holds that were reported as decided.
    done: VecDeque<Value>,
    /// Ids of holds that a feed reported as opened, without their content.
    named: Vec<String>,
    ready: VecDeque<WatchedChange>,
    is_lost: bool,
    must_compare: bool,
}

impl HoldChanges {
    /// Starts to follow.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or this key may not list holds.
    pub(super) async fn open(client: &Client) -> Result<Self, Failure> {
        // Subscribe before listing, so that no change falls in between.
        let source = match Feed::open(client, "/v1/holds/events", None).await {
            Ok(feed) => ChangeSource::Holds(feed),
            Err(failure) if is_missing(&failure) => {
                match Feed::open(client, "/v1/events", None).await {
                    Ok(feed) => ChangeSource::Sessions(feed),
                    Err(failure) if is_missing(&failure) => ChangeSource::Asking,
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
        changes.compare_with_list().await?;
        Ok(changes)
    }

    /// How changes arrive, if worth mentioning.
    pub(super) fn describe_source(&self) -> &'static str {
        match self.source {
            ChangeSource::Holds(_) | ChangeSource::Sessions(_) => "",
            ChangeSource::Asking => ", asking every second",
        }
    }

    pub(super) fn open_holds(&self) -> &[Value] {
        &self.open
    }

    /// Waits for the next step.
    ///
    /// # Errors
    ///
    /// If the key has lost the right to list holds.
    pub(super) async fn next(&mut self) -> Result<WatchStep, Failure> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(WatchStep::Changed(change));
            }
            if self.must_compare {
                self.must_compare = false;
                match self.compare_with_list().await {
                    Ok(()) => {}
                    Err(failure) if is_transient(&failure) => {
                        self.must_compare = true;
                        sleep(ASK_EVERY).await;
                    }
                    Err(failure) => return Err(failure),
                }
                continue;
            }
            let step = match &mut self.source {
                ChangeSource::Holds(feed) | ChangeSource::Sessions(feed) => feed.next().await?,
                ChangeSource::Asking => {
                    sleep(ASK_EVERY).await;
                    match self.compare_with_list().await {
                        Ok(()) if self.is_lost => {
                            self.is_lost = false;
                            return Ok(WatchStep::Back);
                        }
                        Ok(()) => {}
                        Err(failure) if is_transient(&failure) && !self.is_lost => {
                            self.is_lost = true;
                            return Ok(WatchStep::Lost(cell(&failure.message)));
                        }
                        Err(failure) if is_transient(&failure) => {}
                        Err(failure) => return Err(failure),
                    }
                    continue;
                }
            };
            match step {
                FeedStep::Event(event) => self.take(&event.data),
                FeedStep::Lost { why } => return Ok(WatchStep::Lost(cell(&why))),
                FeedStep::Back => {
                    self.must_compare = true;
                    return Ok(WatchStep::Back);
                }
            }
        }
    }

    /// Applies one event of a feed. Events about other things change nothing.
    fn take(&mut self, data: &str) {
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            return;
        };
        match self.source {
            ChangeSource::Holds(_) => {
                let word = text(&event, "change").to_owned();
                if event["hold"].is_object() {
                    self.report_change(&word, event["hold"].clone());
                    // Only the list has the server's order.
                    self.must_compare = true;
                }
            }
            ChangeSource::Sessions(_) => {
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
            ChangeSource::Asking => {}
        }
    }

    /// Reports a change once. The list may show a change before its event arrives.
    fn report_change(&mut self, word: &str, hold: Value) {
        if self.done.contains(&hold["id"]) {
            return;
        }
        let at = self.open.iter().position(|open| open["id"] == hold["id"]);
        let Some(at) = at else {
            // The hold opened and was decided between two polls: report both.
            let mut opened = hold.clone();
            opened["status"] = "open".into();
            if let Some(fields) = opened.as_object_mut() {
                fields.remove("decision");
            }
            self.open.push(opened.clone());
            self.push("opened", opened);
            if word != "opened" {
                self.report_change(word, hold);
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
        self.ready.push_back(WatchedChange { word, hold });
    }

    /// Compares the open holds on the server with the reported ones.
    async fn compare_with_list(&mut self) -> Result<(), Failure> {
        let mut now = ListPages::holds(Vec::new())
            .take(&self.client, usize::MAX)
            .await?;
        let is_listed = |id: &str| now.iter().any(|hold| text(hold, "id") == id);
        let told = self.open.iter().map(|hold| text(hold, "id").to_owned());
        let gone: Vec<String> = told
            .chain(self.named.iter().cloned())
            .filter(|id| !is_listed(id))
            .collect();
        // Fetch everything before reporting anything: a fetch may fail halfway.
        let mut decided = Vec::new();
        for id in gone {
            match self.client.get(&format!("/v1/holds/{id}")).await {
                Ok(answer) if text(&answer.body, "status") != "open" => decided.push(answer.body),
                // Opened after the list was read.
                Ok(answer) => now.push(answer.body),
                // The session was deleted, or this key may not see the hold.
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
            self.report_change("decided", hold);
        }
        for hold in &now {
            let before = self.open.iter().find(|open| open["id"] == hold["id"]);
            let is_voted = before.is_some_and(|before| before["votes"] != hold["votes"]);
            self.report_change(if is_voted { "voted" } else { "opened" }, hold.clone());
        }
        self.open = now;
        Ok(())
    }
}

/// Whether the server lacks this feed, or refuses it to this key.
fn is_missing(failure: &Failure) -> bool {
    matches!(failure.status, Some(403..=405 | 400))
}

fn is_transient(failure: &Failure) -> bool {
    matches!(failure.exit, Exit::Unreachable | Exit::TimedOut)
        || matches!(failure.status, Some(429 | 503))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changes() -> HoldChanges {
        let address = "http://127.0.0.1:1".parse().expect("an address");
        HoldChanges {
            client: Client::new(address, None, ASK_EVERY).expect("a client"),
            source: ChangeSource::Asking,
            open: Vec::new(),
            done: VecDeque::new(),
            named: Vec::new(),
            ready: VecDeque::new(),
            is_lost: false,
            must_compare: false,
        }
    }

    fn told(changes: &mut HoldChanges) -> Vec<String> {
        let told = changes.ready.drain(..);
        told.map(|change| format!("{} {}", change.word, text(&change.hold, "status")))
            .collect()
    }

    #[test]
    fn each_change_is_told_once_whoever_knew_first() {
        let hold = |status: &str, votes: &[&str]| json!({ "id": "hld_1", "status": status, "votes": votes });
        let mut changes = changes();
        changes.report_change("opened", hold("open", &[]));
        changes.report_change("opened", hold("open", &[]));
        assert_eq!(told(&mut changes), ["opened open"]);
        changes.report_change("voted", hold("open", &["a"]));
        changes.report_change("voted", hold("open", &["a"]));
        assert_eq!(told(&mut changes), ["voted open"]);
        changes.report_change("decided", hold("approved", &["a", "b"]));
        changes.report_change("decided", hold("approved", &["a", "b"]));
        changes.report_change("opened", hold("open", &[]));
        assert_eq!(told(&mut changes), ["decided approved"]);
        assert!(changes.open.is_empty());
    }

    #[test]
    fn what_came_and_went_between_two_looks_is_told_whole() {
        let mut changes = changes();
        let hold = json!({ "id": "hld_1", "status": "rejected", "decision": { "by": "local" } });
        changes.report_change("decided", hold);
        assert!(changes.ready[0].hold["decision"].is_null());
        assert_eq!(told(&mut changes), ["opened open", "decided rejected"]);
    }
}

//! Changes of holds, from the feed of holds.
//!
//! Each hold that is open at the start or opened later is reported once as `opened` and once as
//! `decided`. After a lost connection the list is compared again, so no change is missed.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::cli::answers::{ListPages, text};
use crate::cli::printable::cell;
use crate::client::{Client, Feed, FeedStep};
use crate::exit::{Exit, Failure};

/// The pause before the list is read again from a server that is gone or busy.
const RETRY: Duration = Duration::from_secs(1);

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
pub(super) struct HoldChanges {
    client: Client,
    feed: Feed,
    reported: ReportedHolds,
    must_compare: bool,
}

impl HoldChanges {
    /// Starts to follow.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or this key may not list holds.
    pub(super) async fn open(client: &Client) -> Result<Self, Failure> {
        let mut changes = Self {
            client: client.clone(),
            // Subscribe before listing, so that no change falls in between.
            feed: Feed::open(client, "/v1/holds/events", None).await?,
            reported: ReportedHolds::default(),
            must_compare: false,
        };
        changes.compare_with_list().await?;
        Ok(changes)
    }

    pub(super) fn open_holds(&self) -> &[Value] {
        &self.reported.open
    }

    /// Waits for the next step.
    ///
    /// # Errors
    ///
    /// If the key has lost the right to list holds.
    pub(super) async fn next(&mut self) -> Result<WatchStep, Failure> {
        loop {
            if let Some(change) = self.reported.ready.pop_front() {
                return Ok(WatchStep::Changed(change));
            }
            if self.must_compare {
                match self.compare_with_list().await {
                    Ok(()) => self.must_compare = false,
                    Err(failure) if failure.is_transient() => sleep(RETRY).await,
                    Err(failure) => return Err(failure),
                }
                continue;
            }
            match self.feed.next().await? {
                FeedStep::Event(event) => self.take(&event.data),
                FeedStep::Lost { why } => return Ok(WatchStep::Lost(cell(&why))),
                FeedStep::Back => {
                    self.must_compare = true;
                    return Ok(WatchStep::Back);
                }
            }
        }
    }

    /// Applies one event of the feed. Events about other things change nothing.
    fn take(&mut self, data: &str) {
        let Ok(mut event) = serde_json::from_str::<Value>(data) else {
            return;
        };
        if let Some(hold) = event.get_mut("hold").map(Value::take) {
            self.reported.report_change(text(&event, "change"), hold);
            // Only the list has the server's order.
            self.must_compare = true;
        }
    }

    /// Compares the open holds on the server with the reported ones.
    async fn compare_with_list(&mut self) -> Result<(), Failure> {
        let mut now = ListPages::holds(Vec::new())
            .take(&self.client, usize::MAX)
            .await?;
        let is_gone = |hold: &&Value| now.iter().all(|listed| listed["id"] != hold["id"]);
        let gone: Vec<Value> = self.reported.open.iter().filter(is_gone).cloned().collect();
        // Fetch everything before reporting anything: a fetch may fail halfway.
        let mut decided = Vec::new();
        for mut hold in gone {
            let path = format!("/v1/holds/{}", text(&hold, "id"));
            match self.client.get(&path).await {
                Ok(answer) if text(&answer.body, "status") != "open" => decided.push(answer.body),
                // Opened after the list was read.
                Ok(answer) => now.push(answer.body),
                // The session was deleted, or this key may not see the hold.
                Err(failure) if failure.exit == Exit::NotFound => {
                    hold["status"] = "cancelled".into();
                    decided.push(hold);
                }
                Err(failure) => return Err(failure),
            }
        }
        for hold in decided {
            self.reported.report_change("decided", hold);
        }
        for hold in &now {
            let mut open = self.reported.open.iter();
            let before = open.find(|open| open["id"] == hold["id"]);
            let is_voted = before.is_some_and(|before| before["votes"] != hold["votes"]);
            let word = if is_voted { "voted" } else { "opened" };
            self.reported.report_change(word, hold.clone());
        }
        self.reported.open = now;
        Ok(())
    }
}

/// The holds that were reported, and the changes still to report.
#[derive(Debug, Default)]
struct ReportedHolds {
    /// The open holds, in the order of the server.
    open: Vec<Value>,
    /// The ids of the last holds that were reported as decided.
    done: VecDeque<Value>,
    ready: VecDeque<WatchedChange>,
}

impl ReportedHolds {
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
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(changes: &mut ReportedHolds) -> Vec<String> {
        let told = changes.ready.drain(..);
        told.map(|change| format!("{} {}", change.word, text(&change.hold, "status")))
            .collect()
    }

    #[test]
    fn each_change_is_told_once_whoever_knew_first() {
        let hold = |status: &str, votes: &[&str]| json!({ "id": "hld_1", "status": status, "votes": votes });
        let mut changes = ReportedHolds::default();
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
        let mut changes = ReportedHolds::default();
        let hold = json!({ "id": "hld_1", "status": "rejected", "decision": { "by": "local" } });
        changes.report_change("decided", hold);
        assert!(changes.ready[0].hold["decision"].is_null());
        assert_eq!(told(&mut changes), ["opened open", "decided rejected"]);
    }
}

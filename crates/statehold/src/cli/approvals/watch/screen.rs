//! The screen of `watch`: the open holds, the tree of the most urgent session, and the last
//! decisions.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::super::list::table;
use super::changes::WatchedChange;
use crate::cli::answers::{read, text};
use crate::cli::frame::Frame;
use crate::cli::hold::HoldInfo;
use crate::cli::output::{CliOutput, TextTone};
use crate::cli::printable::cell;
use crate::cli::resolve::{HoldNames, short};
use crate::cli::tree::{SessionTree, TreeExtent};
use crate::client::Client;

/// How many decisions stay on the screen.
const DECIDED_SHOWN: usize = 5;
/// How long the tree of a decided hold stays, so that people see the tasks resume.
const TREE_STAYS_SECONDS: i64 = 10;

/// The timeout of the calls that load names and trees.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct WatchScreen {
    client: Client,
    frame: Frame,
    names: HoldNames,
    /// The last decisions, the newest first.
    decided: VecDeque<HoldInfo>,
    /// The session of the last decision, and when it was seen.
    recent: Option<(String, Timestamp)>,
    /// The connection error, if there is one.
    trouble: Option<String>,
    must_name: bool,
}

impl WatchScreen {
    pub(super) fn new(client: &Client) -> Self {
        Self {
            client: client.within(PATIENCE),
            frame: Frame::new(),
            names: HoldNames::default(),
            decided: VecDeque::new(),
            recent: None,
            trouble: None,
            must_name: true,
        }
    }

    pub(super) fn record_change(&mut self, change: &WatchedChange) {
        self.must_name = true;
        if change.word != "decided" {
            return;
        }
        if let Ok(hold) = read::<HoldInfo>(&change.hold) {
            self.recent = Some((hold.session_id.clone(), Timestamp::now()));
            self.decided.push_front(hold);
            self.decided.truncate(DECIDED_SHOWN);
        }
    }

    pub(super) fn set_connection_error(&mut self, why: Option<&str>) {
        self.trouble = why.map(|why| format!("connection lost ({why}), retrying…"));
    }

    pub(super) async fn draw(&mut self, open: &[Value], output: &CliOutput) -> anyhow::Result<()> {
        let holds = open
            .iter()
            .map(read)
            .collect::<anyhow::Result<Vec<HoldInfo>>>()?;
        // Names are loaded again only after holds opened or closed.
        if self.must_name
            && self.trouble.is_none()
            && let Ok(names) = HoldNames::load(&self.client).await
        {
            self.names = names;
            self.must_name = false;
        }
        let mut lines = vec![self.headline(holds.len(), output), String::new()];
        if holds.is_empty() {
            lines.push("Nothing waits for a person.".to_owned());
        } else {
            let table = table(&holds, &self.names, output).render(true, true);
            lines.extend(table.lines().map(str::to_owned));
        }
        lines.extend(self.tree(&holds, output).await);
        if !self.decided.is_empty() {
            lines.push(String::new());
            lines.push(TextTone::Strong.paint("decided"));
        }
        for hold in &self.decided {
            let tone = TextTone::of_status(&hold.status);
            lines.push(format!(
                "{}  {}   {}",
                cell(&self.names.name(&hold.alias, &hold.session_id)),
                tone.paint(&hold.outcome(&output.times)),
                hold.summary(60)
            ));
        }
        lines.push(String::new());
        lines.push(self.footer(&holds));
        self.frame.draw(&lines)
    }

    fn headline(&self, count: usize, output: &CliOutput) -> String {
        let state = match &self.trouble {
            Some(trouble) => TextTone::Bad.paint(trouble),
            None => TextTone::Good.paint("live"),
        };
        let time = output.times.now.strftime("%H:%M:%S UTC");
        let title = TextTone::Strong.paint(&format!("{count} open"));
        format!("{title} · {state} · {time}")
    }

    /// The tree of the session decided last, or of the most urgent hold.
    async fn tree(&self, holds: &[HoldInfo], output: &CliOutput) -> Vec<String> {
        if self.trouble.is_some() {
            return Vec::new();
        }
        let now = output.times.now.as_second();
        let recent = self.recent.as_ref();
        let recent = recent.filter(|(_, at)| now - at.as_second() < TREE_STAYS_SECONDS);
        let session = match (recent, holds.first()) {
            (Some((session, _)), _) => session,
            (None, Some(first)) => &first.session_id,
            (None, None) => return Vec::new(),
        };
        // A key that may decide holds but not read sessions gets no tree.
        let Ok(tree) = SessionTree::load(&self.client, session).await else {
            return Vec::new();
        };
        let heading = format!("session {}", cell(&short(text(&tree.answer, "session_id"))));
        let mut lines = vec![String::new(), TextTone::Strong.paint(&heading)];
        lines.extend(tree.lines(None, TreeExtent::Live, &output.times));
        lines
    }

    fn footer(&self, holds: &[HoldInfo]) -> String {
        match holds.first() {
            Some(first) => {
                let name = self.names.name(&first.alias, &first.session_id);
                format!("Look at one with: statehold approvals show {name}   (Ctrl-C ends)")
            }
            None => "(Ctrl-C ends)".to_owned(),
        }
    }
}

//! What `watch` draws: the open holds, the tree of the most urgent one's session, and what was
//! decided last.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::super::list::table;
use super::changes::Change;
use crate::cli::answers::{read, text};
use crate::cli::frame::Frame;
use crate::cli::hold::Hold;
use crate::cli::output::{Output, Tone};
use crate::cli::printable::cell;
use crate::cli::resolve::{HoldNames, short};
use crate::cli::tree::{Extent, Tree};
use crate::client::Client;

/// How many decisions stay on the screen.
const DECIDED_SHOWN: usize = 5;
/// How long the tree of a decision stays, so that one sees everything go on.
const TREE_STAYS_SECONDS: i64 = 10;

/// How long the screen waits for what it shows besides the holds.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Screen {
    client: Client,
    frame: Frame,
    names: HoldNames,
    /// The last decisions, the newest first.
    decided: VecDeque<Hold>,
    /// The session of the last decision, and when that was seen.
    recent: Option<(String, Timestamp)>,
    /// What is wrong with the connection.
    trouble: Option<String>,
    must_name: bool,
}

impl Screen {
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

    pub(super) fn happened(&mut self, change: &Change) {
        self.must_name = true;
        if change.word != "decided" {
            return;
        }
        if let Ok(hold) = read::<Hold>(&change.hold) {
            self.recent = Some((hold.session_id.clone(), Timestamp::now()));
            self.decided.push_front(hold);
            self.decided.truncate(DECIDED_SHOWN);
        }
    }

    pub(super) fn lost(&mut self, why: Option<&str>) {
        self.trouble = why.map(|why| format!("connection lost ({why}), retrying…"));
    }

    pub(super) async fn draw(&mut self, open: &[Value], output: &Output) -> anyhow::Result<()> {
        let holds = open
            .iter()
            .map(read)
            .collect::<anyhow::Result<Vec<Hold>>>()?;
        // Names are looked up again only when holds came or went.
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
            lines.push(Tone::Strong.paint("decided"));
        }
        for hold in &self.decided {
            let tone = Tone::of_status(&hold.status);
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

    fn headline(&self, count: usize, output: &Output) -> String {
        let state = match &self.trouble {
            Some(trouble) => Tone::Bad.paint(trouble),
            None => Tone::Good.paint("live"),
        };
        let time = output.times.now.strftime("%H:%M:%S UTC");
        let title = Tone::Strong.paint(&format!("{count} open"));
        format!("{title} · {state} · {time}")
    }

    /// The tree of what was decided a moment ago, or of the most urgent hold.
    async fn tree(&self, holds: &[Hold], output: &Output) -> Vec<String> {
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
        // Who decides may not be allowed to read sessions: then there is no tree.
        let Ok(tree) = Tree::load(&self.client, session).await else {
            return Vec::new();
        };
        let heading = format!("session {}", cell(&short(text(&tree.answer, "session_id"))));
        let mut lines = vec![String::new(), Tone::Strong.paint(&heading)];
        lines.extend(tree.lines(None, Extent::Live, &output.times));
        lines
    }

    fn footer(&self, holds: &[Hold]) -> String {
        match holds.first() {
            Some(first) => {
                let name = self.names.name(&first.alias, &first.session_id);
                format!("Look at one with: statehold approvals show {name}   (Ctrl-C ends)")
            }
            None => "(Ctrl-C ends)".to_owned(),
        }
    }
}

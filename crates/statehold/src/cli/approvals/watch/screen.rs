//! The screen of `watch`: the open holds, the tree of the most urgent session, and the last
//! decisions.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::super::list::table;
use super::changes::WatchedChange;
use super::keys::WatchKey;
use crate::cli::answers::{read, text};
use crate::cli::frame::{self, Frame};
use crate::cli::hints::typed;
use crate::cli::hold::{HoldInfo, explain_why_not};
use crate::cli::output::{CliOutput, TextTone};
use crate::cli::printable::{cell, excerpt};
use crate::cli::resolve::{HoldNames, exact_name, short};
use crate::cli::tree::{SessionTree, TreeExtent};
use crate::client::Client;
use crate::exit::Exit;

/// So many open holds are listed at once, however low the window is. A higher one has more.
const LISTED_MIN: usize = 3;
/// How many decisions stay on the screen.
const DECIDED_SHOWN: usize = 3;
/// How long the tree of a decided hold stays, so that people see the tasks resume.
const TREE_STAYS_SECONDS: i64 = 10;

/// The timeout of the calls that load names and trees.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct WatchScreen {
    client: Client,
    frame: Frame,
    /// The last decisions, the newest first.
    decided: VecDeque<HoldInfo>,
    /// The session of the last decision, and when it was seen.
    recent: Option<(String, Timestamp)>,
    /// The connection error, if there is one.
    trouble: Option<String>,
    /// Whether a person can decide with keys.
    has_keys: bool,
    /// The hold that keys would decide.
    selected: Option<String>,
    /// Whether this key may read trees: one that may not is refused once, and not every second.
    reads_trees: bool,
}

impl WatchScreen {
    pub(super) fn new(client: &Client, has_keys: bool) -> Self {
        Self {
            has_keys,
            selected: None,
            reads_trees: true,
            client: client.within(PATIENCE),
            frame: Frame::new(),
            decided: VecDeque::new(),
            recent: None,
            trouble: None,
        }
    }

    pub(super) fn record_change(&mut self, change: &WatchedChange) {
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
        self.selected = self.selected_in(&holds).map(|hold| hold.id.clone());
        let mut lines = Vec::new();
        if let Some(hold) = self.selected_in(&holds).filter(|_| self.has_keys) {
            lines.push(String::new());
            lines.extend(brief(hold, output));
            lines.push(keys_of(hold));
        }
        let tree_at = lines.len();
        let tree = self.tree(&holds, output).await;
        if !self.decided.is_empty() {
            lines.push(String::new());
            lines.push(TextTone::Strong.paint("decided"));
        }
        for hold in &self.decided {
            let tone = TextTone::of_status(&hold.status);
            lines.push(format!(
                "{}  {}   {}",
                cell(&exact_name(&hold.session_id, &hold.alias)),
                tone.paint(&hold.outcome(&output.times)),
                hold.summary(40)
            ));
        }
        lines.push(String::new());
        lines.push(self.footer(&holds));
        // The keys stay on the screen: the tree, and then the list, have what the other lines
        // leave. Four more are the headline, a blank one, the header of the list, and the line of
        // the cursor.
        let room = frame::rows().saturating_sub(lines.len() + 4);
        let listed_min = holds.len().min(LISTED_MIN + 1);
        let tree = shortened(tree, room.saturating_sub(listed_min));
        let room = room.saturating_sub(tree.len()).max(listed_min);
        drop(lines.splice(tree_at..tree_at, tree));
        let mut all = vec![self.headline(holds.len(), output), String::new()];
        if holds.is_empty() {
            all.push("Nothing waits for a person.".to_owned());
        } else {
            all.extend(self.list(&holds, room, output));
        }
        all.extend(lines);
        self.frame.draw(&all)
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
    async fn tree(&mut self, holds: &[HoldInfo], output: &CliOutput) -> Vec<String> {
        if self.trouble.is_some() || !self.reads_trees {
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
        let tree = match SessionTree::load(&self.client, session).await {
            Ok(tree) => tree,
            Err(failure) => {
                self.reads_trees = failure.exit != Exit::NotAllowed;
                return Vec::new();
            }
        };
        let heading = format!("session {}", cell(&short(text(&tree.answer, "session_id"))));
        let mut lines = vec![String::new(), TextTone::Strong.paint(&heading)];
        lines.extend(tree.lines(None, TreeExtent::Live, output));
        lines
    }

    fn footer(&self, holds: &[HoldInfo]) -> String {
        match self.selected_in(holds) {
            Some(_) if self.has_keys => "s or ↓ next   k or ↑ previous   q quit".to_owned(),
            Some(first) => {
                let name = cell(&exact_name(&first.session_id, &first.alias));
                typed(&format!(
                    "Look at one with: statehold approvals show {name}   (Ctrl-C ends)"
                ))
            }
            None if self.has_keys => "q quit".to_owned(),
            None => "(Ctrl-C ends)".to_owned(),
        }
    }

    /// The hold that keys would decide: the chosen one, or the most urgent one.
    fn selected_in<'a>(&self, holds: &'a [HoldInfo]) -> Option<&'a HoldInfo> {
        let chosen = holds
            .iter()
            .find(|hold| Some(&hold.id) == self.selected.as_ref());
        chosen.or(holds.first())
    }

    /// The rows around the selected hold, as many as there is room for. Long titles take several
    /// lines.
    fn list(&self, holds: &[HoldInfo], room: usize, output: &CliOutput) -> Vec<String> {
        let at = holds
            .iter()
            .position(|hold| Some(&hold.id) == self.selected.as_ref());
        let marked = self.selected.as_deref().filter(|_| self.has_keys);
        let mut count = room.min(holds.len());
        loop {
            let last = holds.len().saturating_sub(count);
            let begin = at.unwrap_or(0).saturating_sub(count / 2).min(last);
            let shown = &holds[begin..begin + count];
            let table = table(shown, &HoldNames::default(), marked, output);
            let table = table.render(Some(output.columns), true);
            let mut lines: Vec<String> = table.lines().map(str::to_owned).collect();
            let left_out = holds.len() - shown.len();
            // One line is the header, and one says how many are left out.
            let height = lines.len() + usize::from(left_out > 0);
            if count > 1 && height > room + 1 {
                count -= 1;
                continue;
            }
            if left_out > 0 {
                lines.push(format!("… {left_out} more"));
            }
            return lines;
        }
    }

    /// Takes a key. Returns the hold to decide, if it begins a decision that is offered.
    pub(super) fn take_key(&mut self, key: WatchKey, open: &[Value]) -> Option<String> {
        let holds: Vec<HoldInfo> = open.iter().filter_map(|hold| read(hold).ok()).collect();
        let hold = self.selected_in(&holds)?;
        let at = holds.iter().position(|one| one.id == hold.id)?;
        if let Some(decision) = key.decision() {
            return offers(hold, decision).then(|| hold.id.clone());
        }
        let to = match key {
            WatchKey::Previous => at + holds.len() - 1,
            _ => at + 1,
        };
        self.selected = Some(holds[to % holds.len()].id.clone());
        None
    }

    /// Draws below what was printed meanwhile.
    pub(super) fn begin_anew(&mut self) {
        self.frame = Frame::new();
    }
}

/// Whether the hold can be decided like this with this key of the server.
fn offers(hold: &HoldInfo, decision: &str) -> bool {
    let sees_action = hold.kind != "approval" || hold.action.is_some();
    hold.may_decide == Some(true)
        && sees_action
        && hold.allowed.iter().any(|allowed| allowed == decision)
}

/// The first lines of a tree, as many as there is room for; a note takes the place of the others.
fn shortened(mut tree: Vec<String>, room: usize) -> Vec<String> {
    if tree.len() > room {
        // A heading without anything below it says nothing.
        tree.truncate(if room > 3 { room - 1 } else { 0 });
        if !tree.is_empty() {
            tree.push("…".to_owned());
        }
    }
    tree
}

/// The selected hold in a few lines. The whole of it is shown before a decision.
fn brief(hold: &HoldInfo, output: &CliOutput) -> Vec<String> {
    let title = excerpt(&hold.title, output.columns);
    let mut lines = vec![TextTone::Strong.paint(&title)];
    if let Some(message) = &hold.message {
        lines.push(excerpt(message, output.columns));
    }
    if let Some(action) = &hold.action {
        lines.push(excerpt(&action.call_text(), output.columns));
        lines.push(format!("risk: {}", hold.risk_words()));
    }
    lines
}

/// The keys that decide a hold.
fn keys_of(hold: &HoldInfo) -> String {
    let keys = [
        ("approve", "a approve"),
        ("edit", "e edit"),
        ("reject", "r reject"),
        ("respond", "m answer"),
        ("dismiss", "i dismiss"),
    ];
    let offered = keys
        .into_iter()
        .filter(|(decision, _)| offers(hold, decision));
    let offered: Vec<&str> = offered.map(|(_, key)| key).collect();
    if !offered.is_empty() {
        return offered.join("   ");
    }
    let why = hold.why_not.as_deref();
    let why = why.map(|why| explain_why_not(why, hold.role.as_deref()));
    let why = why.unwrap_or_else(|| "this key may not decide it".to_owned());
    format!("You cannot decide this: {}", cell(&why))
}

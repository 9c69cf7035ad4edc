//! `statehold tasks tree`.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use tokio::time::timeout;

use crate::cli::answers::text;
use crate::cli::frame::Frame;
use crate::cli::output::Output;
use crate::cli::printable::cell;
use crate::cli::resolve::{self, Kind};
use crate::cli::tree::{Extent, Tree};
use crate::client::{Client, Feed, FeedStep};
use crate::exit::{Exit, Failure};

/// How often ages are counted on while nothing happens.
const TICK: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(in crate::cli) struct TreeOf {
    /// A task (T4, SESSION/T4, its id or a part of it), or a session for all of its tasks.
    #[arg(value_name = "TASK|SESSION")]
    of: String,
    /// Draw what has ended, too.
    #[arg(long)]
    all: bool,
    /// Draw it again whenever something happens.
    #[arg(long)]
    watch: bool,
}

impl TreeOf {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let found = resolve::thing(client, &self.of, &[Kind::Task, Kind::Session]).await?;
        let (session, root) = if found.kind == Kind::Task {
            let task = client
                .get(&format!("/v1/tasks/{}?limit=1", found.id))
                .await?;
            (text(&task.body, "session_id").to_owned(), Some(found.id))
        } else {
            (found.id, None)
        };
        let root = root.as_deref();
        if self.watch {
            return self.follow(client, &session, root, output).await;
        }
        let tree = Tree::load(client, &session).await?;
        if output.json {
            output.json(&tree.answer)?;
            return Ok(Exit::Done);
        }
        let lines = self.lines(&tree, root, output);
        if lines.is_empty() {
            output.note("There is nothing in it yet.");
        }
        for line in lines {
            output.line(&line)?;
        }
        Ok(Exit::Done)
    }

    fn lines(&self, tree: &Tree, root: Option<&str>, output: &Output) -> Vec<String> {
        let extent = if self.all {
            Extent::Everything
        } else {
            Extent::Live
        };
        tree.lines(root, extent, &output.times)
    }

    /// Draws the tree again after each record. Ends with the right to read the session.
    async fn follow(
        &self,
        client: &Client,
        session: &str,
        root: Option<&str>,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        // Following begins before looking, so that nothing is missed in between.
        let mut feed = Feed::open(client, &format!("/v1/sessions/{session}/events"), None).await?;
        let mut tree = Tree::load(client, session).await?;
        let mut frame = output.is_terminal.then(Frame::new);
        let mut output = output.clone();
        let mut last = Vec::new();
        let mut state = String::new();
        loop {
            let step = {
                // Not dropped at each tick: coming back to a server takes longer than that.
                let mut next = std::pin::pin!(feed.next());
                loop {
                    output.times.now = Timestamp::now();
                    let lines = self.lines(&tree, root, &output);
                    match &mut frame {
                        _ if output.json => {
                            let answer = tree.answer.to_string();
                            if last != [answer.clone()] {
                                output.line(&answer)?;
                                last = vec![answer];
                            }
                        }
                        Some(frame) => {
                            let foot = format!("\n{state}(Ctrl-C ends)");
                            let foot = foot.lines().map(str::to_owned);
                            let whole: Vec<String> = lines.into_iter().chain(foot).collect();
                            frame.draw(&whole)?;
                        }
                        None if lines != last => {
                            for line in &lines {
                                output.line(line)?;
                            }
                            output.line("")?;
                            last = lines;
                        }
                        None => {}
                    }
                    if let Ok(step) = timeout(TICK, &mut next).await {
                        break step?;
                    }
                }
            };
            match step {
                // Words of an answer change nothing in the tree.
                FeedStep::Event(event) if event.kind != "record" => continue,
                FeedStep::Event(_) => {}
                FeedStep::Lost { why } => {
                    state = format!("connection lost ({}), retrying… ", cell(&why));
                    if frame.is_none() {
                        output.note(state.trim_end());
                    }
                    continue;
                }
                FeedStep::Back => {
                    state.clear();
                    if frame.is_none() {
                        output.note("reconnected");
                    }
                }
            }
            match Tree::load(client, session).await {
                Ok(now) => tree = now,
                Err(failure) if may_pass(&failure) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }
}

fn may_pass(failure: &Failure) -> bool {
    matches!(failure.exit, Exit::Unreachable | Exit::TimedOut) || failure.status == Some(503)
}

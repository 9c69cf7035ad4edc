//! `statehold tasks tree`.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use tokio::time::timeout;

use crate::cli::answers::text;
use crate::cli::frame::Frame;
use crate::cli::output::CliOutput;
use crate::cli::printable::cell;
use crate::cli::resolve::{self, IdKind};
use crate::cli::tree::{SessionTree, TreeExtent};
use crate::client::{Client, Feed, FeedStep};
use crate::exit::Exit;

/// How often ages are redrawn while nothing changes.
const TICK: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(in crate::cli) struct TasksTreeArgs {
    /// A task (T4, SESSION/T4, its id or a part of it), or a session for all of its tasks.
    #[arg(value_name = "TASK|SESSION")]
    of: String,
    /// Draw ended requests too.
    #[arg(long)]
    all: bool,
    /// Redraw after every change.
    #[arg(long)]
    watch: bool,
}

impl TasksTreeArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let found = resolve::one_of(client, &self.of, &[IdKind::Task, IdKind::Session]).await?;
        let (session, root) = if found.kind == IdKind::Task {
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
        let tree = SessionTree::load(client, &session).await?;
        if output.json {
            return output.json(&tree.answer);
        }
        let lines = self.lines(&tree, root, output);
        if lines.is_empty() {
            output.note("There are no tasks yet.");
        }
        for line in lines {
            output.line(&line)?;
        }
        Ok(Exit::Done)
    }

    fn lines(&self, tree: &SessionTree, root: Option<&str>, output: &CliOutput) -> Vec<String> {
        let extent = if self.all {
            TreeExtent::Everything
        } else {
            TreeExtent::Live
        };
        tree.lines(root, extent, output)
    }

    /// Redraws the tree after each record, until the key may no longer read the session.
    async fn follow(
        &self,
        client: &Client,
        session: &str,
        root: Option<&str>,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        // Subscribe before loading, so that no change falls in between.
        let mut feed = Feed::open(client, &format!("/v1/sessions/{session}/events"), None).await?;
        let mut tree = SessionTree::load(client, session).await?;
        let mut frame = output.is_terminal.then(Frame::new);
        let mut output = output.clone();
        let mut last = Vec::new();
        let mut state = String::new();
        loop {
            let step = {
                // Keep the future across ticks: reconnecting takes longer than one tick.
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
                // The streamed words of an answer do not change the tree.
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
            match SessionTree::load(client, session).await {
                Ok(now) => tree = now,
                Err(failure) if failure.is_transient() => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }
}

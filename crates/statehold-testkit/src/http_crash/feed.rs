//! Followers of feeds: each reads one session from its first revision on, over any number of kills.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::load::address;
use super::log::{self, Entry};
use super::verify::FeedEvent;
use crate::http::SseReader;

const PAUSE: Duration = Duration::from_millis(5);

type Seen = Arc<Mutex<Vec<FeedEvent>>>;

/// All followers, on a thread of their own.
#[derive(Debug)]
pub(super) struct Followers {
    runtime: Runtime,
    data: PathBuf,
    seen: BTreeMap<String, Seen>,
}

impl Followers {
    pub(super) fn new(data: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        Ok(Self {
            runtime,
            data: data.to_owned(),
            seen: BTreeMap::new(),
        })
    }

    /// Follows every session that the logs say is to be followed.
    pub(super) fn find(&mut self, logs: &[PathBuf]) -> Result<()> {
        for path in logs.iter().filter(|path| path.is_file()) {
            for entry in log::read(path)? {
                if let Entry::Ack(ack) = entry
                    && ack.is_followed
                    && let Some(session) = ack.asked.session
                {
                    self.follow(session);
                }
            }
        }
        Ok(())
    }

    fn follow(&mut self, session: String) {
        if self.seen.contains_key(&session) {
            return;
        }
        let seen = Seen::default();
        let (data, path) = (self.data.clone(), format!("/v1/sessions/{session}/events"));
        self.seen.insert(session, Arc::clone(&seen));
        self.runtime.spawn(async move {
            let mut last = "0".to_owned();
            loop {
                // Lost connections are what this is about: go on after the last event.
                drop(read(&data, &path, &mut last, &seen).await);
                tokio::time::sleep(PAUSE).await;
            }
        });
    }

    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Waits until each follower has seen the revision of its session, and gives what it saw.
    pub(super) fn finish(
        self,
        revisions: &BTreeMap<String, u64>,
    ) -> Result<BTreeMap<String, Vec<FeedEvent>>> {
        let began = Instant::now();
        for (session, seen) in &self.seen {
            let due = revisions.get(session).copied().unwrap_or(0);
            loop {
                let (last, count) = {
                    let seen = lock(seen)?;
                    let last = seen.last().map_or(0, |event| event.revision);
                    (last, seen.len() as u64)
                };
                // After a gap there is nothing to wait for: the comparison will name it.
                if last >= due || last != count {
                    break;
                }
                if began.elapsed() > Duration::from_secs(20) {
                    bail!("the feed of {session} gave nothing after {last}, and {due} is there");
                }
                std::thread::park_timeout(PAUSE);
            }
        }
        self.runtime.shutdown_background();
        self.seen
            .into_iter()
            .map(|(session, seen)| Ok((session, lock(&seen)?.clone())))
            .collect()
    }
}

fn lock(seen: &Seen) -> Result<std::sync::MutexGuard<'_, Vec<FeedEvent>>> {
    seen.lock()
        .map_err(|_| anyhow::anyhow!("a follower panicked"))
}

async fn read(data: &Path, path: &str, last: &mut String, seen: &Seen) -> Result<()> {
    let address = address(data).context("no server")?;
    let mut feed = SseReader::connect(address, path, &[], Some(last)).await?;
    while let Some(event) = feed.next().await? {
        if event.event != "record" {
            continue;
        }
        let data: Value = serde_json::from_str(&event.data).unwrap_or(Value::Null);
        // A revision that cannot be read is one that is not due: the comparison will say so.
        let revision = event.id.parse().unwrap_or(0);
        let is_consistent = data["revision"].as_u64() == Some(revision);
        let command = if is_consistent {
            data["command"].as_str().unwrap_or_default().to_owned()
        } else {
            format!("not the revision of its data: {}", event.data)
        };
        lock(seen)?.push(FeedEvent { revision, command });
        event.id.clone_into(last);
    }
    Ok(())
}

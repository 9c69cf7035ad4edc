//! Pushing decisions: whoever registered an address hears of requests that can go on.
//!
//! There is no table of deliveries. Each agent with an address has a task that asks the engine which of
//! its requests a worker should hear of, and calls until it gets a 2xx or the request is gone from that
//! list: claimed, ended, or waiting again. After a restart the list is the same, so a message may come
//! twice, under the same id. What is in a message is written by whoever speaks the wire.

mod call;
mod guard;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE32_NOPAD;
use sha2::{Digest as _, Sha256};
use statehold_core::name::Name;
use statehold_engine::{ClaimedRequest, Engine, EngineError, Resumable, ResumeAddress};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use guard::{AddressError, Guard};

use call::{CallError, Client, Message};

/// Writes the body of a message: what a worker would get by claim.
pub type WriteBody = Arc<dyn Fn(&ClaimedRequest) -> Vec<u8> + Send + Sync>;

/// The first pause after a call that failed; it doubles.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const BACKOFF_MAX: Duration = Duration::from_mins(5);
/// How many calls are under way at once, for one agent and in all.
const AGENT_CALLS_MAX: usize = 4;
const CALLS_MAX: usize = 32;
/// How many requests of one agent are kept in mind. The oldest come first; the rest has its turn later.
const REQUESTS_MAX: usize = 1_000;
/// How long looking for work rests, at least and at most.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(30);

/// Pushes until the engine stops.
///
/// # Errors
///
/// If the roots of trust of this machine cannot be used.
pub async fn run(
    engine: Engine,
    guard: Guard,
    write_body: WriteBody,
    stop: CancellationToken,
) -> Result<(), rustls::Error> {
    let pusher = Arc::new(Pusher {
        client: Client::new(guard)?,
        engine,
        write_body,
        calls: Semaphore::new(CALLS_MAX),
    });
    let mut changes = pusher.engine.address_changes();
    let mut running: HashMap<(Name, Name), (ResumeAddress, tokio::task::AbortHandle)> =
        HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let addresses = pusher.engine.all_addresses();
        running.retain(|_, (address, task)| {
            let stays = addresses.contains(address);
            if !stays {
                task.abort();
            }
            stays
        });
        for address in addresses {
            let key = (address.tenant.clone(), address.agent.clone());
            running.entry(key).or_insert_with(|| {
                let task = Arc::clone(&pusher).push_to(address.clone());
                (address, tasks.spawn(task))
            });
        }
        tokio::select! {
            () = changes.next() => {}
            Some(_) = tasks.join_next() => running.retain(|_, (_, task)| !task.is_finished()),
            () = stop.cancelled() => return Ok(()),
        }
    }
}

struct Pusher {
    engine: Engine,
    client: Client,
    write_body: WriteBody,
    calls: Semaphore,
}

/// How far the delivery of one message is.
enum Progress {
    /// To be tried at this time, after so many failures.
    Due(Instant, u32),
    /// Under way, after so many failures.
    Calling(u32),
    /// The receiver has it.
    Delivered,
}

/// One message: the same request may have several in its life.
type Key = (
    statehold_core::ids::RequestId,
    u64,
    statehold_core::request::LiveStatus,
    u32,
);

fn key_of(resumable: &Resumable) -> Key {
    (
        resumable.request,
        resumable.fence,
        resumable.status,
        resumable.decisions,
    )
}

impl Pusher {
    /// Delivers to one address, until the task is ended.
    async fn push_to(self: Arc<Self>, address: ResumeAddress) {
        let mut known: HashMap<Key, (Resumable, Progress)> = HashMap::new();
        let mut calls: JoinSet<(Key, bool)> = JoinSet::new();
        let queue = self.engine.work_news(&address.tenant, &address.agent);
        loop {
            let begun = Instant::now();
            // Listening begins before looking, so that nothing is missed in between.
            let mut news = std::pin::pin!(queue.notified());
            news.as_mut().enable();
            if let Err(error) = self.look(&address, &mut known).await {
                tracing::warn!(%error, "cannot see what is to be pushed; looking again");
            }
            // Looking costs what there is to see: it never takes more than a part of the time.
            let rest = (begun.elapsed() * 10).clamp(REST_MIN, REST_MAX);
            let mut look_at = begun + REST_MAX;
            let mut has_news = false;
            loop {
                self.begin_calls(&address, &mut known, &mut calls);
                let due = next_due(&known, calls.len()).map_or(look_at, |due| due.min(look_at));
                tokio::select! {
                    Some(done) = calls.join_next() => note(&mut known, done.ok()),
                    () = &mut news, if !has_news => {
                        has_news = true;
                        look_at = begun + rest;
                    }
                    () = tokio::time::sleep_until(due) => {
                        if due == look_at {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Brings what is known in line with what there is.
    async fn look(
        &self,
        address: &ResumeAddress,
        known: &mut HashMap<Key, (Resumable, Progress)>,
    ) -> Result<(), EngineError> {
        let (tenant, agent) = (&address.tenant, &address.agent);
        // What was delivered and is not claimed yet takes nobody's place.
        let delivered = known.values();
        let delivered = delivered.filter(|(_, progress)| matches!(progress, Progress::Delivered));
        let limit = REQUESTS_MAX + delivered.count();
        let found = self.engine.resumable(tenant, agent, limit).await?;
        let mut next = HashMap::with_capacity(found.len());
        for resumable in found {
            let key = key_of(&resumable);
            let progress = match known.remove(&key) {
                Some((_, progress)) => progress,
                None => Progress::Due(Instant::now(), 0),
            };
            next.insert(key, (resumable, progress));
        }
        *known = next;
        Ok(())
    }

    fn begin_calls(
        self: &Arc<Self>,
        address: &ResumeAddress,
        known: &mut HashMap<Key, (Resumable, Progress)>,
        calls: &mut JoinSet<(Key, bool)>,
    ) {
        let now = Instant::now();
        for (key, (resumable, progress)) in known.iter_mut() {
            if calls.len() >= AGENT_CALLS_MAX {
                return;
            }
            let Progress::Due(at, failures) = progress else {
                continue;
            };
            if *at > now {
                continue;
            }
            *progress = Progress::Calling(*failures);
            let (pusher, key) = (Arc::clone(self), *key);
            let (address, resumable) = (address.clone(), resumable.clone());
            calls.spawn(async move { (key, pusher.deliver(&address, &resumable).await) });
        }
    }

    /// One call. True if nothing more is to be said about the request as it was.
    async fn deliver(&self, address: &ResumeAddress, resumable: &Resumable) -> bool {
        let Ok(_turn) = self.calls.acquire().await else {
            return false;
        };
        match self.try_deliver(address, resumable).await {
            Ok(()) => true,
            Err(error) => {
                // The address may carry a secret of its own, so it is not in the log.
                let request = resumable.request;
                tracing::info!(agent = %address.agent, %request, %error, "a push failed; trying again");
                false
            }
        }
    }

    async fn try_deliver(
        &self,
        address: &ResumeAddress,
        resumable: &Resumable,
    ) -> Result<(), PushError> {
        let work = self.engine.pushed_work(&address.tenant, resumable).await?;
        let Some(work) = work else {
            return Ok(());
        };
        let body = (self.write_body)(&work);
        let secret = self.engine.signing_secret(address)?;
        let seconds = self.engine.now().as_micros() / 1_000_000;
        let id = message_id(resumable);
        let message = Message {
            signature: secret.sign(&id, seconds, &body),
            timestamp: seconds.to_string(),
            id,
            body,
        };
        Ok(self.client.post(&address.url, message).await?)
    }
}

#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The same for every attempt at the same message, also after a restart.
fn message_id(resumable: &Resumable) -> String {
    let mut text = String::new();
    let (request, fence, status, decisions) = key_of(resumable);
    write!(text, "{request} {fence} {status:?} {decisions}").expect("writing to a string works");
    let digest = Sha256::digest(text.as_bytes());
    format!("msg_{}", BASE32_NOPAD.encode(&digest[..20]).to_lowercase())
}

fn note(known: &mut HashMap<Key, (Resumable, Progress)>, done: Option<(Key, bool)>) {
    let Some((key, is_delivered)) = done else {
        return;
    };
    if let Some((_, progress)) = known.get_mut(&key) {
        let failures = match progress {
            Progress::Calling(failures) => *failures,
            Progress::Due(..) | Progress::Delivered => 0,
        };
        *progress = if is_delivered {
            Progress::Delivered
        } else {
            Progress::Due(Instant::now() + backoff(failures), failures + 1)
        };
    }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_MAX.min(BACKOFF_MIN * 2_u32.saturating_pow(failures.min(16)))
}

/// When the next call is to be made, if there is room for one.
fn next_due(known: &HashMap<Key, (Resumable, Progress)>, calls: usize) -> Option<Instant> {
    if calls >= AGENT_CALLS_MAX {
        return None;
    }
    let due = known.values().filter_map(|(_, progress)| match progress {
        Progress::Due(at, _) => Some(*at),
        Progress::Calling(_) | Progress::Delivered => None,
    });
    due.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_a_second_to_five_minutes() {
        let seconds = (0..12).map(|failures| backoff(failures).as_secs());
        let expected = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300];
        assert!(seconds.eq(expected));
        assert_eq!(backoff(u32::MAX), BACKOFF_MAX);
    }
}

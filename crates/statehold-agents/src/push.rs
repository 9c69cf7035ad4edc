//! Pushes decisions to registered addresses: a worker hears of requests that can resume.
//!
//! There is no table of deliveries. Each agent with an address has a task that asks the engine which
//! requests a worker should hear of, and calls the address until it gets a 2xx or the request leaves
//! that list: claimed, ended, or waiting again. After a restart the list is the same, so a message may
//! arrive twice, under the same id. The caller of `run` writes the message bodies.

mod call;
mod guard;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE32_NOPAD;
use sha2::{Digest as _, Sha256};
use statehold_core::name::Name;
use statehold_engine::measures::{CallOutcome, Peer};
use statehold_engine::{ClaimedRequest, Engine, EngineError, Resumable, ResumeAddress};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use guard::{AddressError, Guard};

use call::{PushCallError, PushClient, PushMessage};

/// Writes the body of a message, with the same content as a claim.
pub type BodyWriter = Arc<dyn Fn(&ClaimedRequest) -> Vec<u8> + Send + Sync>;

/// First delay after a failed call. Doubles with each failure.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest delay.
const BACKOFF_MAX: Duration = Duration::from_mins(5);
/// Most calls in flight, per agent and in total.
const AGENT_CALLS_MAX: usize = 4;
const CALLS_MAX: usize = 32;
/// Most requests tracked per agent, oldest first. The others follow later.
const REQUESTS_MAX: usize = 1_000;
/// Shortest and longest delay between two queries for work.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(30);

/// Runs until `stop` is cancelled.
///
/// # Errors
///
/// If the root certificates of this machine cannot be used.
pub async fn run(
    engine: Engine,
    guard: Guard,
    write_body: BodyWriter,
    stop: CancellationToken,
) -> Result<(), rustls::Error> {
    let pusher = Arc::new(Pusher {
        client: PushClient::new(guard)?,
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
            _ = changes.changed() => {}
            Some(_) = tasks.join_next() => running.retain(|_, (_, task)| !task.is_finished()),
            () = stop.cancelled() => return Ok(()),
        }
    }
}

struct Pusher {
    engine: Engine,
    client: PushClient,
    write_body: BodyWriter,
    calls: Semaphore,
}

/// Delivery state of one message.
enum DeliveryProgress {
    /// To be sent at this time, after so many failures.
    Due(Instant, u32),
    /// In flight, after so many failures.
    Calling(u32),
    /// Acknowledged with a 2xx.
    Delivered,
}

/// Identity of a message. A request may have several in its life.
type MessageKey = (
    statehold_core::ids::RequestId,
    u64,
    statehold_core::request::LiveStatus,
    u32,
);

fn key_of(resumable: &Resumable) -> MessageKey {
    (
        resumable.request,
        resumable.fence,
        resumable.status,
        resumable.decisions,
    )
}

impl Pusher {
    /// Delivers to one address, until the task is aborted.
    async fn push_to(self: Arc<Self>, address: ResumeAddress) {
        let mut tracked: HashMap<MessageKey, (Resumable, DeliveryProgress)> = HashMap::new();
        let mut calls: JoinSet<(MessageKey, bool)> = JoinSet::new();
        let queue = self.engine.work_news(&address.tenant, &address.agent);
        loop {
            let begun = Instant::now();
            // Subscribe before the query, so that no notification is missed.
            let mut news = std::pin::pin!(queue.notified());
            news.as_mut().enable();
            if let Err(error) = self.sync_tracked(&address, &mut tracked).await {
                tracing::warn!(%error, "cannot list requests to push; retrying");
            }
            // Rest ten times as long as the query took, to bound its load.
            let rest = (begun.elapsed() * 10).clamp(REST_MIN, REST_MAX);
            let mut query_at = begun + REST_MAX;
            let mut has_news = false;
            loop {
                self.start_calls(&address, &mut tracked, &mut calls);
                let due = next_due(&tracked, calls.len()).map_or(query_at, |due| due.min(query_at));
                tokio::select! {
                    Some(done) = calls.join_next() => record_result(&mut tracked, done.ok()),
                    () = &mut news, if !has_news => {
                        has_news = true;
                        query_at = begun + rest;
                    }
                    () = tokio::time::sleep_until(due) => {
                        if due == query_at {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Synchronizes the tracked messages with the engine's list.
    async fn sync_tracked(
        &self,
        address: &ResumeAddress,
        tracked: &mut HashMap<MessageKey, (Resumable, DeliveryProgress)>,
    ) -> Result<(), EngineError> {
        let (tenant, agent) = (&address.tenant, &address.agent);
        // Delivered messages that are not claimed yet do not count against the limit.
        let delivered = tracked.values();
        let delivered =
            delivered.filter(|(_, progress)| matches!(progress, DeliveryProgress::Delivered));
        let limit = REQUESTS_MAX + delivered.count();
        let found = self.engine.resumable(tenant, agent, limit).await?;
        let mut next = HashMap::with_capacity(found.len());
        for resumable in found {
            let key = key_of(&resumable);
            let progress = match tracked.remove(&key) {
                Some((_, progress)) => progress,
                None => DeliveryProgress::Due(Instant::now(), 0),
            };
            next.insert(key, (resumable, progress));
        }
        *tracked = next;
        Ok(())
    }

    fn start_calls(
        self: &Arc<Self>,
        address: &ResumeAddress,
        tracked: &mut HashMap<MessageKey, (Resumable, DeliveryProgress)>,
        calls: &mut JoinSet<(MessageKey, bool)>,
    ) {
        let now = Instant::now();
        for (key, (resumable, progress)) in tracked.iter_mut() {
            if calls.len() >= AGENT_CALLS_MAX {
                return;
            }
            let DeliveryProgress::Due(at, failures) = progress else {
                continue;
            };
            if *at > now {
                continue;
            }
            *progress = DeliveryProgress::Calling(*failures);
            let (pusher, key) = (Arc::clone(self), *key);
            let (address, resumable) = (address.clone(), resumable.clone());
            calls.spawn(async move { (key, pusher.deliver(&address, &resumable).await) });
        }
    }

    /// Sends one message. True if it was acknowledged or is obsolete.
    async fn deliver(&self, address: &ResumeAddress, resumable: &Resumable) -> bool {
        let Ok(_turn) = self.calls.acquire().await else {
            return false;
        };
        match self.try_deliver(address, resumable).await {
            Ok(()) => true,
            Err(error) => {
                // The address may contain a secret, so do not log it.
                let request = resumable.request;
                tracing::debug!(agent = %address.agent, %request, %error, "a push failed; retrying");
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
        let message = PushMessage {
            signature: secret.sign(&id, seconds, &body),
            timestamp: seconds.to_string(),
            id,
            body,
        };
        let begun = Instant::now();
        let posted = self.client.post(&address.url, message).await;
        // The errors of a delivery have no address, which may contain a secret.
        let outcome = match &posted {
            Ok(()) => CallOutcome::Ok,
            Err(error) => CallOutcome::Failed(Some(error.to_string())),
        };
        let measures = self.engine.measures();
        measures.note_call((Peer::Push, &address.agent), &outcome, begun.elapsed());
        Ok(posted?)
    }
}

#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Call(#[from] PushCallError),
}

/// Message id: the same for every attempt, also after a restart.
fn message_id(resumable: &Resumable) -> String {
    let mut text = String::new();
    let (request, fence, status, decisions) = key_of(resumable);
    write!(text, "{request} {fence} {status:?} {decisions}").expect("writing to a string works");
    let digest = Sha256::digest(text.as_bytes());
    format!("msg_{}", BASE32_NOPAD.encode(&digest[..20]).to_lowercase())
}

fn record_result(
    tracked: &mut HashMap<MessageKey, (Resumable, DeliveryProgress)>,
    done: Option<(MessageKey, bool)>,
) {
    let Some((key, is_delivered)) = done else {
        return;
    };
    if let Some((_, progress)) = tracked.get_mut(&key) {
        let failures = match progress {
            DeliveryProgress::Calling(failures) => *failures,
            DeliveryProgress::Due(..) | DeliveryProgress::Delivered => 0,
        };
        *progress = if is_delivered {
            DeliveryProgress::Delivered
        } else {
            DeliveryProgress::Due(Instant::now() + backoff(failures), failures + 1)
        };
    }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_MAX.min(BACKOFF_MIN * 2_u32.saturating_pow(failures.min(16)))
}

/// Time of the next call. None if the limit of calls in flight is reached.
fn next_due(
    tracked: &HashMap<MessageKey, (Resumable, DeliveryProgress)>,
    calls: usize,
) -> Option<Instant> {
    if calls >= AGENT_CALLS_MAX {
        return None;
    }
    let due = tracked.values().filter_map(|(_, progress)| match progress {
        DeliveryProgress::Due(at, _) => Some(*at),
        DeliveryProgress::Calling(_) | DeliveryProgress::Delivered => None,
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

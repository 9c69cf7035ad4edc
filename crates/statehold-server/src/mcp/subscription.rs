//! Subscriptions: a client hears that a part of a conversation has changed, and reads it again.
//!
//! A watch holds numbers, not notifications: all changes since the last notification of a slow reader become one.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{RoleServer, SubscriptionContext};
use rmcp::{ErrorData, Peer};
use statehold_core::ids::{RequestId, SessionId};
use statehold_engine::api::caller::KeyWatch;
use statehold_engine::api::watch::{PartRevisions, SessionWatch};
use statehold_engine::{Caller, Engine, Lock, api};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::errors::call_error;
use super::uri::{BadUri, ConversationUri, HistoryQuery, Part, Range};
use crate::http::call::CallContext;
use crate::http::problem::{Code, Problem};

/// How many resources one client may subscribe to at once.
const SUBSCRIPTIONS_MAX: usize = 256;

/// How long a session that is taken up again may need for its handshake.
const INITIALIZED_MAX: Duration = Duration::from_secs(5);

/// The resources that a client of the newer era listens to, of those that it named and may read. They are watched
/// from before the acknowledgement on, so that no change after it is missed.
#[derive(Clone, Default)]
pub(super) struct Listened(Arc<Lock<Vec<Subscription>>>);

impl Listened {
    pub(super) async fn open(context: &CallContext, uris: &[String]) -> Self {
        let listened = Self::default();
        for uri in uris.iter().take(SUBSCRIPTIONS_MAX) {
            let opened = Subscription::open(context.engine(), &context.caller, uri).await;
            let opened = opened.ok();
            listened.0.lock().extend(opened);
        }
        listened
    }

    /// The part of a request for notifications that the server honours.
    pub(super) fn accepted(&self, requested: &SubscriptionFilter) -> SubscriptionFilter {
        let mut accepted = SubscriptionFilter::new();
        if requested.resource_subscriptions.is_some() {
            let open = self.0.lock();
            let uris = open.iter().map(|subscription| subscription.uri.clone());
            accepted.resource_subscriptions = Some(uris.collect());
        }
        accepted
    }

    /// Tells a client about changes until it goes, its key ends or the server stops.
    pub(super) async fn tell(
        &self,
        context: &CallContext,
        listener: SubscriptionContext,
    ) -> Result<(), ErrorData> {
        let share = context.app.shares.take_stream(&context.caller);
        let _share = share.map_err(|problem| call_error(&problem))?;
        let watched = std::mem::take(&mut *self.0.lock());
        let watches_some = !watched.is_empty();
        let mut next: FuturesUnordered<_> = watched.into_iter().map(Subscription::next).collect();
        let mut ended = pin!(context.api_key.revoked());
        loop {
            tokio::select! {
                () = listener.cancelled() => return Ok(()),
                () = &mut ended => return Ok(()),
                () = context.engine().stopping() => return Ok(()),
                Some(changed) = next.next() => {
                    let Some(changed) = changed else {
                        if next.is_empty() && watches_some {
                            // The client has lost the right to read each of them.
                            return Ok(());
                        }
                        continue;
                    };
                    if !context.api_key.is_valid() {
                        return Ok(());
                    }
                    let told = listener.sink().notify_resource_updated(changed.uri.clone());
                    if told.await.is_err() {
                        return Ok(());
                    }
                    next.push(changed.next());
                }
            }
        }
    }
}

/// Who subscribes, and for how long.
#[derive(Clone)]
pub(super) struct Subscriber {
    pub(super) engine: Engine,
    pub(super) caller: Caller,
    pub(super) api_key: KeyWatch,
}

impl Subscriber {
    pub(super) fn of(context: &CallContext) -> Self {
        Self {
            engine: context.engine().clone(),
            caller: context.caller.clone(),
            api_key: context.api_key.clone(),
        }
    }
}

/// A resource, and the revision of its session that the client knows of.
pub(super) type KnownResource = (String, u64);

/// The subscriptions of a legacy session, each followed by a task of its own that ends with it.
#[derive(Clone, Default)]
pub(super) struct LegacySubscriptions(Arc<LegacyState>);

#[derive(Default)]
struct LegacyState {
    followed: Lock<HashMap<String, Followed>>,
    /// Where notifications go, once the session is initialized.
    peer: watch::Sender<Option<Peer<RoleServer>>>,
    /// Counts the changes of the subscriptions.
    changes: watch::Sender<u64>,
}

struct Followed {
    _task: AbortOnDropHandle<()>,
    known: Arc<AtomicU64>,
}

impl LegacySubscriptions {
    /// Takes the peer of a session that begins or is taken up again.
    pub(super) fn connect(&self, peer: Peer<RoleServer>) {
        self.0.peer.send_replace(Some(peer));
    }

    /// Subscribes to a resource. A repeat begins anew. With `known`, the client is told at once if the session has
    /// changed since that revision.
    pub(super) async fn add(
        &self,
        subscriber: &Subscriber,
        uri: String,
        known: Option<u64>,
    ) -> Result<(), Problem> {
        let mut peers = self.0.peer.subscribe();
        let peer = tokio::time::timeout(INITIALIZED_MAX, peers.wait_for(Option::is_some)).await;
        let peer = peer.ok().and_then(Result::ok).and_then(|peer| peer.clone());
        let peer = peer.ok_or_else(|| Problem::invalid("the session is not initialized"))?;
        let (engine, caller) = (&subscriber.engine, &subscriber.caller);
        let mut open = Subscription::open(engine, caller, &uri).await?;
        let revision = api::session::revision(engine, caller, open.session).await?;
        let mut is_late = known.is_some_and(|known| known < revision);
        let seen = Arc::new(AtomicU64::new(revision));
        let (api_key, noted) = (subscriber.api_key.clone(), Arc::clone(&seen));
        let follow = async move {
            let mut ended = pin!(api_key.revoked());
            loop {
                if !is_late {
                    let changed = tokio::select! {
                        () = &mut ended => return,
                        changed = open.next() => changed,
                    };
                    let Some(changed) = changed else { return };
                    open = changed;
                }
                is_late = false;
                noted.fetch_max(open.told, Ordering::Relaxed);
                let updated = ResourceUpdatedNotificationParam::new(open.uri.clone());
                if !api_key.is_valid() || peer.notify_resource_updated(updated).await.is_err() {
                    return;
                }
            }
        };
        let mut followed = self.0.followed.lock();
        if followed.len() >= SUBSCRIPTIONS_MAX && !followed.contains_key(&uri) {
            let detail = format!("a client may have {SUBSCRIPTIONS_MAX} subscriptions; end one");
            return Err(Problem::new(Code::TooMany, detail));
        }
        let follow = Followed {
            _task: AbortOnDropHandle::new(tokio::spawn(follow)),
            known: seen,
        };
        let before = followed.insert(uri, follow);
        drop(followed);
        drop(before);
        self.0.changes.send_modify(|changes| *changes += 1);
        Ok(())
    }

    /// Subscribes again to what a client knew before the server was started again. What it may no longer read is left
    /// out.
    pub(super) async fn add_again(&self, subscriber: &Subscriber, resources: Vec<KnownResource>) {
        for (uri, known) in resources {
            let is_open = self.0.followed.lock().contains_key(&uri);
            if !is_open {
                // Left out, as for a new client.
                drop(self.add(subscriber, uri, Some(known)).await);
            }
        }
    }

    /// Ends a subscription.
    pub(super) fn remove(&self, uri: &str) {
        let ended = self.0.followed.lock().remove(uri);
        drop(ended);
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    /// The subscriptions, with the revisions that the client knows of.
    pub(super) fn known(&self) -> Vec<KnownResource> {
        let followed = self.0.followed.lock();
        let known = followed.iter();
        known
            .map(|(uri, followed)| (uri.clone(), followed.known.load(Ordering::Relaxed)))
            .collect()
    }

    /// Resolves each time a subscription begins or ends.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }
}

/// A resource that a client watches.
struct Subscription {
    uri: String,
    session: SessionId,
    part: Part,
    watch: SessionWatch,
    /// The turn whose phases' answers the caller's token reads.
    own_turn: Option<RequestId>,
    /// The revision of the last change of the part that the client was told.
    told: u64,
}

impl Subscription {
    async fn open(engine: &Engine, caller: &Caller, uri: &str) -> Result<Self, Problem> {
        let parsed = uri.parse().map_err(|BadUri| Problem::not_found())?;
        let (session, part) = match parsed {
            ConversationUri::Part(session, part) => (session, part),
            ConversationUri::Current => {
                let session = caller.only_session.ok_or_else(Problem::not_found)?;
                (session, Part::History(HistoryQuery::NEWEST))
            }
        };
        // A trace may be read by operators, and only they may hear of it.
        if part == Part::Trace && !caller.reads_all() {
            return Err(Problem::not_found());
        }
        let own_turn = caller.phase.and_then(|phase| phase.turn);
        if let Part::History(HistoryQuery {
            turn: Some(turn), ..
        }) = part
            && own_turn != Some(turn)
        {
            return Err(Problem::not_found());
        }
        let watch = api::watch::session(engine, caller, session).await?;
        let mut opened = Self {
            uri: uri.to_owned(),
            session,
            part,
            watch,
            own_turn,
            told: 0,
        };
        opened.told = opened.revision_in(opened.watch.known());
        Ok(opened)
    }

    /// Waits for the next change of the part. None if the caller may no longer read it.
    async fn next(mut self) -> Option<Self> {
        loop {
            let changed = match self.watch.changed().await {
                Ok(changed) => self.revision_in(changed),
                Err(_) => return None,
            };
            if changed > self.told {
                self.told = changed;
                return Some(self);
            }
        }
    }

    /// The revision at which the part changed last.
    fn revision_in(&self, changed: PartRevisions) -> u64 {
        match self.part {
            Part::History(query) => match (query.range, query.turn.or(self.own_turn)) {
                // A document of a fixed revision never changes.
                (Range::At { .. }, _) => 0,
                (_, None) => changed.messages,
                // An answer of a phase is read from the start of the next phase on.
                (_, Some(_)) => changed.messages.max(changed.tasks),
            },
            Part::State => changed.state,
            Part::Tasks | Part::Task(_) => changed.tasks,
            Part::Holds => changed.holds,
            Part::Trace => changed.any,
        }
    }
}

//! Subscriptions: a client hears that a part of a conversation has changed, and reads it again.
//!
//! A watch holds numbers, not notifications: whatever a slow reader has not been told yet becomes one notification.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{RoleServer, SubscriptionContext};
use rmcp::{ErrorData, Peer};
use statehold_core::ids::RequestId;
use statehold_engine::api::watch::{PartRevisions, SessionWatch};
use statehold_engine::{Lock, api};
use tokio_util::task::AbortOnDropHandle;

use super::errors::{call_error, resource_error};
use super::uri::{BadUri, ConversationUri, HistoryQuery, Part, Range};
use crate::http::call::CallContext;
use crate::http::problem::{Code, Problem};

/// How many resources one client may subscribe to at once.
const SUBSCRIPTIONS_MAX: usize = 256;

/// What a client of the newer era listens to: the resources that it may read, of those that it named. They are watched
/// from before the acknowledgement on, so that no change after it is missed.
#[derive(Clone, Default)]
pub(super) struct Listened(Arc<Lock<Vec<Subscription>>>);

impl Listened {
    pub(super) async fn open(context: &CallContext, uris: &[String]) -> Self {
        let listened = Self::default();
        for uri in uris.iter().take(SUBSCRIPTIONS_MAX) {
            let opened = Subscription::open(context, uri).await.ok();
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
        let mut next: FuturesUnordered<_> = watched.into_iter().map(Subscription::next).collect();
        let mut ended = pin!(context.api_key.revoked());
        loop {
            tokio::select! {
                () = listener.cancelled() => return Ok(()),
                () = &mut ended => return Ok(()),
                () = context.engine().stopping() => return Ok(()),
                Some(changed) = next.next() => {
                    let Some(changed) = changed else { continue };
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

/// The subscriptions of a legacy session, each followed by a task of its own that ends with it.
#[derive(Clone, Default)]
pub(super) struct LegacySubscriptions(Arc<Lock<HashMap<String, AbortOnDropHandle<()>>>>);

impl LegacySubscriptions {
    /// Subscribes to a resource. A repeat begins anew.
    pub(super) async fn add(
        &self,
        context: &CallContext,
        uri: String,
        peer: Peer<RoleServer>,
    ) -> Result<(), ErrorData> {
        let opened = Subscription::open(context, &uri).await;
        let mut open = opened.map_err(|problem| resource_error(&problem, &uri))?;
        let api_key = context.api_key.clone();
        let follow = async move {
            let mut ended = pin!(api_key.revoked());
            loop {
                let changed = tokio::select! {
                    () = &mut ended => return,
                    changed = open.next() => changed,
                };
                let Some(changed) = changed else { return };
                let updated = ResourceUpdatedNotificationParam::new(changed.uri.clone());
                if !api_key.is_valid() || peer.notify_resource_updated(updated).await.is_err() {
                    return;
                }
                open = changed;
            }
        };
        let mut followed = self.0.lock();
        if followed.len() >= SUBSCRIPTIONS_MAX && !followed.contains_key(&uri) {
            let detail = format!("a client may have {SUBSCRIPTIONS_MAX} subscriptions; end one");
            return Err(call_error(&Problem::new(Code::TooMany, detail)));
        }
        let follow = AbortOnDropHandle::new(tokio::spawn(follow));
        let before = followed.insert(uri, follow);
        drop(followed);
        drop(before);
        Ok(())
    }

    /// Ends a subscription.
    pub(super) fn remove(&self, uri: &str) {
        let ended = self.0.lock().remove(uri);
        drop(ended);
    }
}

/// A resource that a client watches.
struct Subscription {
    uri: String,
    part: Part,
    watch: SessionWatch,
    /// The turn whose phases' answers the caller's token reads.
    own_turn: Option<RequestId>,
    /// The revision of the last change of the part that the client was told.
    told: u64,
}

impl Subscription {
    async fn open(context: &CallContext, uri: &str) -> Result<Self, Problem> {
        let parsed = uri.parse().map_err(|BadUri| Problem::not_found())?;
        let (session, part) = match parsed {
            ConversationUri::Part(session, part) => (session, part),
            ConversationUri::Current => {
                let session = context.caller.only_session.ok_or_else(Problem::not_found)?;
                (session, Part::History(HistoryQuery::NEWEST))
            }
        };
        let caller = &context.caller;
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
        let watch = api::watch::session(context.engine(), caller, session).await?;
        let mut opened = Self {
            uri: uri.to_owned(),
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

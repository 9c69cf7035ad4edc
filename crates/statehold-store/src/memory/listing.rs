//! Lists over all sessions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use statehold_core::ids::{RequestId, SessionId, UserId};
use statehold_core::name::Name;
use statehold_core::request::{LiveRequest, LiveStatus};
use statehold_core::root::SignedHead;
use statehold_core::scope::StateKey;
use statehold_core::session::{Owner, STATE_KEEPER};
use statehold_core::time::Timestamp;

use super::{Session, Tables};
use crate::port::{
    AgentQueue, ChangedHead, Committed, Due, DueKind, DuePage, DuePlace, KeyRange, LiveWork,
    PageLimit, PageRoom, SessionOrder, SessionQuery, SessionSummary, SharedOwner, SharedValue,
    StatePage, StoreError, StoredRecord, WorkTotals,
};

impl Tables {
    /// An answer of one session, if it exists.
    pub(super) fn of<T>(&self, session: SessionId, query: impl FnOnce(&Session) -> T) -> Option<T> {
        self.sessions.get(&session).map(query)
    }

    pub(super) fn commits_after(&self, after: u64) -> impl Iterator<Item = Committed> {
        let skipped = usize::try_from(after).unwrap_or(usize::MAX);
        let later = self.committed.iter().zip(1..).skip(skipped);
        later.map(|(&(session, revision), place)| Committed {
            place,
            session,
            revision,
        })
    }

    /// The newest head of the session of a commit.
    pub(super) fn head_at(&self, commit: Committed) -> Option<ChangedHead> {
        let state = &self.sessions.get(&commit.session)?.state;
        Some(ChangedHead {
            place: commit.place,
            tenant: state.owner.as_ref()?.tenant.clone(),
            head: SignedHead {
                hash: state.head,
                revision: state.revision,
                session: commit.session,
            },
        })
    }

    pub(super) fn record_at(&self, session: SessionId, revision: u64) -> Option<StoredRecord> {
        self.sessions.get(&session)?.record_at(revision)
    }

    /// Single records of any sessions, in the requested order, as many as fit and one at least.
    pub(super) fn records_at(
        &self,
        places: &[(SessionId, u64)],
        bytes_max: u64,
    ) -> Vec<Option<StoredRecord>> {
        let mut left = bytes_max;
        let (mut found, places) = (Vec::new(), places.iter());
        for record in places.map(|(session, revision)| self.record_at(*session, *revision)) {
            let bytes = record.as_ref().map_or(0, StoredRecord::bytes);
            if bytes > left && !found.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes);
            found.push(record);
        }
        found
    }

    /// The tenants that have sessions or an audit stream.
    pub(super) fn tenant_names(&self) -> Vec<Name> {
        let owners = self.owned().map(|(_, owner)| &owner.tenant);
        let names: BTreeSet<&Name> = owners.chain(self.tenants.names()).collect();
        names.into_iter().cloned().collect()
    }

    pub(super) fn shared_of(&self, owner: &SharedOwner) -> BTreeMap<StateKey, SharedValue> {
        let keys = self.shared.get(owner).into_iter().flatten();
        let values = keys.filter_map(|(key, shared)| Some((key.clone(), shared.value.clone()?)));
        values.collect()
    }

    pub(super) fn list_sessions(&self, query: &SessionQuery) -> Vec<SessionSummary> {
        let is_asked = |found: &SessionSummary| {
            let of = &found.owner;
            let is_listed = !found.deleted && of.agent.as_str() != STATE_KEEPER;
            of.tenant == query.tenant
                && is_listed
                && query.app.as_ref().is_none_or(|app| *app == of.app)
                && query.user.is_none_or(|user| user == of.user)
                && query.after.is_none_or(|after| match query.order {
                    SessionOrder::Created => found.place < after.number,
                    SessionOrder::Updated => found.list_place() < after,
                })
        };
        let all = self.owned().map(|(kept, owner)| summary(kept, owner));
        let mut found: Vec<SessionSummary> = all.filter(is_asked).collect();
        match query.order {
            SessionOrder::Created => found.sort_by_key(|summary| Reverse(summary.place)),
            SessionOrder::Updated => found.sort_by_key(|summary| Reverse(summary.list_place())),
        }
        found.truncate(query.limit);
        found
    }

    pub(super) fn sessions_of_user(
        &self,
        (tenant, user): (&Name, UserId),
        is_listed: bool,
        after: u64,
        limit: usize,
    ) -> Vec<SessionSummary> {
        let all = self.owned().map(|(kept, owner)| summary(kept, owner));
        let theirs = all.filter(|found| {
            let of = &found.owner;
            (&of.tenant, of.user) == (tenant, user)
                && found.place > after
                && is_listed == (!found.deleted && of.agent.as_str() != STATE_KEEPER)
        });
        let mut found: Vec<SessionSummary> = theirs.collect();
        found.sort_by_key(|summary| summary.place);
        found.truncate(limit);
        found
    }

    pub(super) fn summary_of(&self, session: SessionId) -> Option<SessionSummary> {
        let kept = self.sessions.get(&session)?;
        Some(summary(kept, kept.state.owner.as_ref()?))
    }

    /// The oldest request is the one that was started first, regardless of later claims.
    pub(super) fn work_totals(&self, tenant: &Name, agents: usize) -> WorkTotals {
        let mut totals = WorkTotals::default();
        let mut queues: BTreeMap<Name, AgentQueue> = BTreeMap::new();
        for (kept, _) in self.owned().filter(|(_, owner)| owner.tenant == *tenant) {
            totals.open_holds += kept.state.holds.len() as u64;
            let holds = kept.state.holds.keys().copied();
            totals.oldest_hold = holds.chain(totals.oldest_hold).min();
            let live = kept.state.requests.values();
            for queued in live.filter(|live| live.status == LiveStatus::Queued) {
                let Some(task) = kept.state.tasks.get(&queued.task) else {
                    continue;
                };
                let agent = task.agent.clone();
                let queue = queues.entry(agent.clone()).or_insert(AgentQueue {
                    agent,
                    requests: 0,
                    oldest: None,
                });
                queue.requests += 1;
                queue.oldest = queue.oldest.into_iter().chain([queued.id]).min();
            }
        }
        totals.queues = queues.into_values().take(agents).collect();
        totals
    }

    pub(super) fn list_claimable(
        &self,
        tenant: &Name,
        agent: &Name,
        user: Option<UserId>,
        after: Option<RequestId>,
        limit: usize,
    ) -> Vec<(SessionId, RequestId)> {
        let mut found = Vec::new();
        for (kept, owner) in self.owned() {
            let is_asked = |live: &&LiveRequest| {
                let task = kept.state.tasks.get(&live.task);
                live.status == LiveStatus::Queued
                    && Some(live.id) > after
                    && owner.tenant == *tenant
                    && user.is_none_or(|user| user == owner.user)
                    && task.is_some_and(|task| task.agent == *agent)
            };
            let waiting = kept.state.requests.values().filter(is_asked);
            found.extend(waiting.map(|live| (kept.state.session, live.id)));
        }
        found.sort_by_key(|(_, request)| *request);
        found.truncate(limit);
        found
    }

    pub(super) fn list_live(
        &self,
        tenant: &Name,
        agent: &Name,
        after: Option<RequestId>,
        limit: usize,
    ) -> Vec<LiveWork> {
        let mut found = Vec::new();
        for (kept, owner) in self.owned() {
            let is_asked = |live: &&LiveRequest| {
                let task = kept.state.tasks.get(&live.task);
                owner.tenant == *tenant
                    && task.is_some_and(|task| task.agent == *agent)
                    && after.is_none_or(|after| live.id > after)
            };
            let live = kept.state.requests.values().filter(is_asked);
            found.extend(live.map(|live| LiveWork {
                session: kept.state.session,
                live: live.clone(),
            }));
        }
        found.sort_by_key(|work| work.live.id);
        found.truncate(limit);
        found
    }

    /// The deadlines that have passed at the time that `now` has for their session.
    pub(super) fn list_due(&self, now: impl Fn(SessionId) -> Option<Timestamp>) -> Vec<Due> {
        let mut found = Vec::new();
        for (kept, owner) in self.owned() {
            let session = kept.state.session;
            let Some(now) = now(session) else { continue };
            let mut push = |at, kind| {
                let (tenant, user) = (owner.tenant.clone(), owner.user);
                if at <= now {
                    found.push(Due {
                        session,
                        tenant,
                        user,
                        at,
                        kind,
                    });
                }
            };
            for live in kept.state.requests.values() {
                if let (LiveStatus::Running, Some(lease)) = (live.status, live.lease) {
                    push(lease.until, DueKind::Lease(live.id));
                }
            }
            if let Some(at) = kept.state.expires_at {
                push(at, DueKind::Session);
            }
            if let Some(at) = kept.state.hidden_expires_at {
                push(at, DueKind::Hidden);
            }
            for hold in kept.state.holds.values() {
                if let Some(deadline) = hold.deadline {
                    push(deadline, DueKind::Hold(hold.id));
                }
            }
        }
        found
    }

    pub(super) fn due_page(
        &self,
        now: Timestamp,
        after: Option<DuePlace>,
        limit: usize,
    ) -> DuePage {
        let due = self.list_due(|_| Some(now)).into_iter();
        let rows = due.map(|due| {
            let id = match due.kind {
                DueKind::Lease(id) => *id.as_uuid(),
                DueKind::Hold(id) => *id.as_uuid(),
                DueKind::Session | DueKind::Hidden => *due.session.as_uuid(),
            };
            let place = DuePlace {
                at: due.at,
                rank: due.kind.rank(),
                row: id.as_u128(),
            };
            (place, Some(due))
        });
        let rows = rows.filter(|(place, _)| Some(*place) > after);
        DuePage::of(rows.collect(), limit, true)
    }

    pub(super) fn list_ahead(&self, now: Timestamp, limit: usize) -> Vec<(SessionId, Timestamp)> {
        let states = self.owned().map(|(kept, _)| &kept.state);
        states
            .filter(|state| state.last_at > now && !state.deleted)
            .map(|state| (state.session, state.last_at))
            .take(limit)
            .collect()
    }

    pub(super) fn owned(&self) -> impl Iterator<Item = (&Session, &Owner)> {
        let sessions = self.sessions.values();
        sessions.filter_map(|kept| Some((kept, kept.state.owner.as_ref()?)))
    }
}

fn summary(kept: &Session, owner: &Owner) -> SessionSummary {
    SessionSummary {
        place: kept.place,
        id: kept.state.session,
        owner: owner.clone(),
        name: kept.name.clone(),
        labels: kept.labels.clone(),
        status: kept.state.status(),
        deleted: kept.state.deleted,
        ttl: kept.state.ttl,
        hidden_ttl_ms: kept.state.hidden_ttl_ms,
        hidden_expires_at: kept.state.hidden_expires_at,
        expires_at: kept.state.expires_at,
        revision: kept.state.revision,
        created_at: kept.created_at,
        updated_at: kept.state.last_at,
        forked_from: kept.origin,
    }
}

/// A page of the keys after one. `length` tells the length of a value.
pub(super) fn page_of_keys<V>(
    values: BTreeMap<StateKey, V>,
    range: &KeyRange,
    limit: PageLimit,
    length: impl Fn(&V) -> usize,
) -> Result<StatePage<V>, StoreError> {
    let mut room = PageRoom::new(limit);
    let mut page = StatePage::default();
    let (begin, end) = range.bounds();
    let is_named = |key: &StateKey| range.keys().is_none_or(|keys| keys.contains(key));
    let is_inside = |key: &StateKey| begin <= key.as_str() && key.as_str() < end && is_named(key);
    let mut values: Vec<_> = values
        .into_iter()
        .filter(|(key, _)| is_inside(key))
        .collect();
    if range.is_reverse() {
        values.reverse();
    }
    for (key, value) in values {
        let bytes = key.as_str().len() + length(&value);
        if !room.take(bytes as u64)? {
            page.has_more = true;
            break;
        }
        page.values.insert(key, value);
    }
    Ok(page)
}

//! Holds with the text that people read. A page of holds takes as many store queries as one hold.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use statehold_core::digest::{BodyRef, Digest};
use statehold_core::hold::{Hold, HoldKind, WhyNot};
use statehold_core::ids::{RequestId, SessionId, UserId};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::projection::ClosedHold;
use statehold_core::time::Timestamp;
use statehold_store::{CallResult, HoldSummary, LineageStep, SessionSummary, StoredRecord};
use utoipa::ToSchema;

use super::Reach;
use crate::bodies::payload;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::sealed::OpenedArgs;
use crate::people::{sees_names, user_of};
use crate::read::OWN_PAGE_BYTES_MAX;

/// An open or decided hold with the text that people read.
#[derive(Debug, Clone)]
pub struct HoldDetail {
    /// Its session.
    pub session: SessionSummary,
    /// The name of the session's user.
    pub user: String,
    /// The hold.
    pub hold: Hold,
    /// The decision, if it is decided.
    pub closed: Option<ClosedHold>,
    /// The agent that opened it.
    pub agent: Name,
    /// The requests from the root down to the one with the hold, with their tasks.
    pub lineage: Vec<LineageStep>,
    /// Title, message and action, as opened.
    pub body: Option<Vec<u8>>,
    /// The comment, reason and content of the decision.
    pub decision_body: Option<Vec<u8>>,
    /// When it was opened.
    pub opened_at: Option<Timestamp>,
    /// The hash of the record that opened it.
    pub opened_hash: Option<Digest>,
    /// The name of the person who decided it, or the id of the key.
    pub decided_by: Option<String>,
    /// The names of the people who have approved it so far, or the ids of their keys.
    pub voters: Vec<String>,
    /// When it was decided.
    pub decided_at: Option<Timestamp>,
    /// The hash of the record that decided it.
    pub decided_hash: Option<Digest>,
    /// The result of the action's call.
    pub result: Option<CallResult>,
    /// Its group.
    pub group: Option<HoldGroup>,
    /// Why the caller may not decide it, including missing roles. None if the caller may.
    pub why_not: Option<WhyNot>,
    /// Whether the caller may see the action: as a person who may decide it, or with a role that reads
    /// traces.
    pub sees_action: bool,
    /// Whether the caller may see names of people.
    pub sees_names: bool,
    /// The full arguments of the action, for the worker with the lease.
    pub opened: Option<OpenedArgs>,
}

/// Holds of one request that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HoldGroup {
    /// The worker's id of the group.
    pub id: String,
    /// Number of holds in the group that the caller may see.
    pub holds: usize,
    /// Number of these holds that are decided.
    pub decided: usize,
}

/// The only field of a hold's body that this module reads.
#[derive(Deserialize)]
struct GroupWord {
    group_id: Option<String>,
}

fn group_of(body: Option<&[u8]>) -> Option<String> {
    serde_json::from_slice::<GroupWord>(body?).ok()?.group_id
}

/// A payload of a record: session, revision, and its name if the record has it.
pub(crate) type WantedPayload = (SessionId, u64, Option<BodyRef>);

/// The payload of a hold, in the record that opened it.
fn opening(row: &HoldSummary) -> WantedPayload {
    (row.session.id, row.hold.opened_at, row.hold.body)
}

/// The users of sessions, and the people who decided or approved, behind some holds.
fn people_in(rows: &[HoldSummary]) -> BTreeSet<UserId> {
    let mut people = BTreeSet::new();
    for row in rows {
        people.insert(row.session.owner.user);
        let decider = row.decision.map(|(decision, _)| decision.by);
        let voters = row.hold.votes.keys().copied();
        people.extend(
            decider
                .into_iter()
                .chain(voters)
                .filter_map(|by| user_of(&by)),
        );
    }
    people
}

impl Engine {
    /// Details of holds, in the same order. The caller must have checked that they may be seen.
    /// Boxed, so that the crates that call it do not compile it again.
    pub(crate) fn hold_details<'a>(
        &'a self,
        caller: &'a Caller,
        rows: Vec<HoldSummary>,
    ) -> BoxFuture<'a, Result<Vec<HoldDetail>, EngineError>> {
        Box::pin(async move {
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            let store = &self.inner().store;
            let decided = rows.iter().filter_map(|row| {
                let (decision, at) = row.decision?;
                Some((row.session.id, at, decision.body))
            });
            let wanted = rows.iter().map(opening).chain(decided);
            let records = self.records_of(wanted.collect()).await?;
            let asking: BTreeSet<RequestId> = rows.iter().map(|row| row.hold.request).collect();
            let asking: Vec<RequestId> = asking.into_iter().collect();
            let lineages = store.lineages(asking.clone()).await?;
            let lineages: BTreeMap<_, _> = asking.into_iter().zip(lineages).collect();
            let names = self.user_names(people_in(&rows)).await?;
            let name_of = |principal: &Principal| {
                let name = user_of(principal).and_then(|user| names.get(&user).cloned());
                name.unwrap_or(principal.to_string())
            };
            let body_of = |row: &HoldSummary| {
                let record = records.get(&(row.session.id, row.hold.opened_at));
                payload(record, row.hold.body)
            };
            let grouped: BTreeSet<RequestId> = rows
                .iter()
                .filter(|row| group_of(body_of(row)).is_some())
                .map(|row| row.hold.request)
                .collect();
            let groups = self.groups(caller, grouped).await?;
            let mut lost = BTreeMap::new();
            for row in rows
                .iter()
                .filter(|row| row.hold.kind == HoldKind::Reconcile)
            {
                let body = self.reconcile_body(row.session.id, &row.hold).await?;
                lost.insert(row.hold.id, body);
            }
            let details = rows.into_iter().map(|row| {
                let session = row.session.id;
                let opened = records.get(&(session, row.hold.opened_at));
                let decided = row.decision.and_then(|(_, by)| records.get(&(session, by)));
                let Reach { why_not, .. } = Reach::of(caller, &row);
                let body = lost.remove(&row.hold.id);
                let body = body.or_else(|| payload(opened, row.hold.body).map(<[u8]>::to_vec));
                let group = group_of(body.as_deref());
                let group = group.and_then(|id| groups.get(&(row.hold.request, id)).cloned());
                let user = row.session.owner.user;
                let made = row.decision.and_then(|(decision, _)| decision.body);
                HoldDetail {
                    decided_by: row.decision.map(|(decision, _)| name_of(&decision.by)),
                    voters: row.hold.votes.keys().map(name_of).collect(),
                    user: names.get(&user).cloned().unwrap_or(user.to_string()),
                    agent: row.agent,
                    lineage: lineages.get(&row.hold.request).cloned().unwrap_or_default(),
                    body,
                    decision_body: payload(decided, made).map(<[u8]>::to_vec),
                    opened_at: opened.map(|stored| stored.record.content.at),
                    opened_hash: opened.map(|stored| stored.record.hash),
                    decided_at: decided.map(|stored| stored.record.content.at),
                    decided_hash: decided.map(|stored| stored.record.hash),
                    opened: None,
                    result: row.result,
                    group,
                    sees_action: why_not.is_none(),
                    sees_names: sees_names(caller, why_not.is_none()),
                    why_not,
                    closed: row.decision.map(|(decision, decided_by)| ClosedHold {
                        hold: row.hold.clone(),
                        decision,
                        decided_by,
                    }),
                    hold: row.hold,
                    session: row.session,
                }
            });
            Ok(details.collect())
        })
    }

    /// Keeps the holds that are in a group.
    pub(super) async fn in_group(
        &self,
        group: &str,
        mut rows: Vec<HoldSummary>,
    ) -> Result<Vec<HoldSummary>, EngineError> {
        let groups = self.groups_of(&rows).await?;
        rows.retain(|row| {
            groups
                .get(&opening(row))
                .is_some_and(|known| known == group)
        });
        Ok(rows)
    }

    /// The ids of the groups of some holds. Only these stay in memory.
    async fn groups_of(
        &self,
        rows: &[HoldSummary],
    ) -> Result<BTreeMap<WantedPayload, String>, EngineError> {
        let wanted = rows.iter().map(opening).collect();
        let groups = self
            .read_payloads(wanted, |body| group_of(Some(body)))
            .await?;
        let known = groups.into_iter();
        Ok(known
            .filter_map(|(place, group)| Some((place, group?)))
            .collect())
    }

    /// The groups of some requests, counting only holds that the caller may see.
    async fn groups(
        &self,
        caller: &Caller,
        requests: BTreeSet<RequestId>,
    ) -> Result<BTreeMap<(RequestId, String), HoldGroup>, EngineError> {
        let mut groups: BTreeMap<(RequestId, String), HoldGroup> = BTreeMap::new();
        if requests.is_empty() {
            return Ok(groups);
        }
        let held = self.inner().store.held_by(requests.into_iter().collect());
        let mut held = held.await?;
        held.retain(|row| Reach::of(caller, row).sees);
        let known = self.groups_of(&held).await?;
        for row in held {
            let Some(id) = known.get(&opening(&row)) else {
                continue;
            };
            let group = groups
                .entry((row.hold.request, id.clone()))
                .or_insert(HoldGroup {
                    id: id.clone(),
                    holds: 0,
                    decided: 0,
                });
            group.holds += 1;
            group.decided += usize::from(row.decision.is_some());
        }
        Ok(groups)
    }

    /// Reads something short of each payload, a page of records at a time.
    pub(crate) async fn read_payloads<T>(
        &self,
        wanted: BTreeSet<WantedPayload>,
        read: impl Fn(&[u8]) -> T,
    ) -> Result<BTreeMap<WantedPayload, T>, EngineError> {
        let mut found = BTreeMap::new();
        let mut names: BTreeMap<(SessionId, u64), Vec<Option<BodyRef>>> = BTreeMap::new();
        for (session, at, name) in wanted {
            names.entry((session, at)).or_default().push(name);
        }
        let mut places: Vec<(SessionId, u64)> = names.keys().copied().collect();
        while !places.is_empty() {
            let store = &self.inner().store;
            let records = store.records_at(places.clone(), OWN_PAGE_BYTES_MAX).await?;
            for (place, record) in places.drain(..records.len()).zip(records) {
                for name in names.get(&place).into_iter().flatten() {
                    if let Some(body) = payload(record.as_ref(), *name) {
                        found.insert((place.0, place.1, *name), read(body));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Reads records, each with no payload but the wanted ones, in as few queries as their bytes allow.
    pub(crate) async fn records_of(
        &self,
        wanted: BTreeSet<WantedPayload>,
    ) -> Result<BTreeMap<(SessionId, u64), StoredRecord>, EngineError> {
        let places: BTreeSet<_> = wanted
            .iter()
            .map(|(session, at, _)| (*session, *at))
            .collect();
        let mut places: Vec<(SessionId, u64)> = places.into_iter().collect();
        let mut found = BTreeMap::new();
        while !places.is_empty() {
            let store = &self.inner().store;
            let records = store.records_at(places.clone(), OWN_PAGE_BYTES_MAX).await?;
            let read = places.drain(..records.len()).zip(records);
            for ((session, at), record) in read {
                let Some(mut record) = record else {
                    continue;
                };
                let names = record.record.bodies();
                for (name, body) in names.iter().zip(&mut record.bodies) {
                    if !wanted.contains(&(session, at, Some(*name))) {
                        *body = None;
                    }
                }
                found.insert((session, at), record);
            }
        }
        Ok(found)
    }
}

//! Queries about holds: one hold, a page, counts, and the caller's rights to each.

pub(crate) mod by_key;
mod changes;
mod detail;
mod pending;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use statehold_core::hold::{DecideBy, Hold, HoldKind, HoldStatus, Risk, WhyNot};
use statehold_core::ids::{HoldId, RequestId, SessionId, UserId};
use statehold_core::name::Name;
use statehold_core::principal::{APPROVER, Principal};
use statehold_core::tenant::TenantEvent;
use statehold_store::{HoldOrder, HoldPlace, HoldQuery, HoldSummary, PageLimit};

pub(crate) use changes::HoldNews;
pub use changes::HoldPosition;
pub use detail::{HoldDetail, HoldGroup};
pub use pending::{Pending, PendingHold};
pub(crate) use pending::{lineage, oldest};

use crate::answer_memory::{AnswerMemory, UnmeteredMemory, take_unless_small};
use crate::api::hold::HoldCountsView;
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::read::{OWN_PAGE_BYTES_MAX, Page, SCAN_MAX, SCAN_STEP};

/// How many open holds one count reads.
const COUNT_MAX: usize = 10_000;
/// How many open holds one query of a count reads.
const COUNT_STEP: usize = 1_000;
/// A hold whose deadline is within this time expires soon.
const SOON_MS: u64 = 10 * 60 * 1_000;

/// Filter of a list of holds.
#[derive(Debug, Clone, Default)]
pub struct HoldFilter {
    /// Decided holds instead of open ones.
    pub decided: bool,
    /// With this status.
    pub status: Option<HoldStatus>,
    /// Opened by this agent.
    pub agent: Option<Name>,
    /// Of this kind.
    pub kind: Option<HoldKind>,
    /// With this risk, if the caller may know it.
    pub risk: Option<Risk>,
    /// In sessions of this user.
    pub user: Option<UserId>,
    /// In this session.
    pub session: Option<SessionId>,
    /// In this group.
    pub group: Option<String>,
    /// In this order.
    pub order: HoldOrder,
}

/// The caller's rights to one hold.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    /// Whether the caller may see it. If not, it is reported as not found.
    pub(crate) sees: bool,
    /// Why the caller may not decide it, including missing roles. None if the caller may.
    pub(crate) why_not: Option<WhyNot>,
}

impl Reach {
    pub(crate) fn of(caller: &Caller, row: &HoldSummary) -> Self {
        let owner = &row.session.owner;
        let missing_role = missing_role(caller, &row.hold, owner.user);
        let has_role = missing_role.is_none();
        let why_not = match caller.actor().right_to_decide(&row.hold, owner.user) {
            Ok(_) => missing_role.map(WhyNot::NeedsRole),
            Err(why) => Some(why),
        };
        // An approver is told why another person has to decide.
        let is_involved = matches!(
            why_not,
            Some(WhyNot::OwnSession | WhyNot::OwnHold | WhyNot::OwnRequest)
        );
        let sees = owner.tenant == caller.tenant
            && !row.session.deleted
            && (why_not.is_none()
                || has_role && is_involved
                || caller.reads_all()
                || caller.acts_for(owner.user)
                // A worker bound to a user works only in that user's sessions.
                || caller.is_open_to(owner.user) && caller.works_for(&row.agent));
        Self { sees, why_not }
    }

    fn decides(&self) -> bool {
        self.why_not.is_none()
    }
}

/// The role that the caller lacks to use its right to decide.
fn missing_role(caller: &Caller, hold: &Hold, owner: UserId) -> Option<Name> {
    let has = match &hold.decide_by {
        _ if caller.principal == Principal::Local => true,
        DecideBy::Role(role) => caller.roles.names().contains(role),
        DecideBy::Other => caller.has(Role::Approver),
        DecideBy::User => caller.acts_for(owner) || caller.has(Role::Approver),
    };
    let role = match &hold.decide_by {
        DecideBy::Role(role) => role.clone(),
        DecideBy::Other => APPROVER.parse().expect("approver is a name"),
        DecideBy::User => Role::Client.name().parse().expect("client is a name"),
    };
    (!has).then_some(role)
}

/// The first holds of a page, as many as their payloads allow, and the position of the next page.
///
/// # Errors
///
/// [`EngineError::PageTooSmall`] if the first one does not fit.
fn fitting_page(
    mut rows: Vec<HoldSummary>,
    next: Option<HoldPlace>,
    bytes_max: u64,
) -> Result<(Vec<HoldSummary>, Option<HoldPlace>), EngineError> {
    let mut left = bytes_max;
    let fitting = rows.iter().take_while(|row| {
        let room = left.checked_sub(payload_bytes(row));
        left = room.unwrap_or(0);
        room.is_some()
    });
    let fitting = fitting.count();
    match rows.first() {
        Some(first) if fitting == 0 => {
            let bytes = payload_bytes(first);
            return Err(EngineError::PageTooSmall { bytes });
        }
        _ if fitting == rows.len() => return Ok((rows, next)),
        _ => {}
    }
    rows.truncate(fitting);
    let next = rows.last().map(|row| row.place);
    Ok((rows, next))
}

/// The first holds, as many as their payloads allow and one at least, and the bytes of their payloads.
pub(crate) fn fitting_holds(mut rows: Vec<HoldSummary>) -> (Vec<HoldSummary>, u64) {
    let (mut fitting, mut bytes) = (0, 0);
    for row in &rows {
        let with_it = bytes + payload_bytes(row);
        if fitting > 0 && with_it > OWN_PAGE_BYTES_MAX {
            break;
        }
        (fitting, bytes) = (fitting + 1, with_it);
    }
    rows.truncate(fitting);
    (rows, bytes)
}

/// The bytes of the payloads of a hold and its decision.
pub(crate) fn payload_bytes(row: &HoldSummary) -> u64 {
    let decided = row.decision.and_then(|(decision, _)| decision.body);
    let bodies = [row.hold.body, decided].into_iter().flatten();
    bodies.map(|body| u64::from(body.bytes)).sum()
}

/// The only user whose holds the caller may see, if there is only one.
fn only_user(caller: &Caller) -> Option<UserId> {
    let sees_others = caller.has(Role::Approver) || caller.roles.has_own() || caller.reads_all();
    caller.user.filter(|_| !sees_others)
}

impl Engine {
    /// One hold.
    ///
    /// # Errors
    ///
    /// If the caller may not see it.
    pub async fn hold(&self, caller: &Caller, id: HoldId) -> Result<HoldDetail, EngineError> {
        self.hold_in(&UnmeteredMemory, caller, id).await
    }

    /// One hold, in the memory for an answer.
    pub(crate) async fn hold_in(
        &self,
        memory: &dyn AnswerMemory,
        caller: &Caller,
        id: HoldId,
    ) -> Result<HoldDetail, EngineError> {
        let rows = self.visible_holds(caller, vec![id]).await?;
        take_unless_small(memory, rows.iter().map(payload_bytes).sum()).await?;
        let details = self.hold_details(caller, rows).await?;
        let mut detail = details.into_iter().next().ok_or(EngineError::NotFound)?;
        // An operator without the right to decide may see the action, but the audit stream records it.
        if !detail.sees_action && caller.reads_all() {
            let session = detail.session.id;
            self.audit(caller, TenantEvent::TraceRead { session })
                .await?;
            detail.sees_action = true;
        }
        Ok(detail)
    }

    /// Some holds that the caller may see, in the same order.
    pub(crate) async fn visible_holds(
        &self,
        caller: &Caller,
        ids: Vec<HoldId>,
    ) -> Result<Vec<HoldSummary>, EngineError> {
        let mut rows = self.hold_rows(ids).await?;
        rows.retain(|row| Reach::of(caller, row).sees);
        Ok(rows)
    }

    /// Some holds, in the same order. Checks no rights.
    pub(crate) async fn hold_rows(
        &self,
        ids: Vec<HoldId>,
    ) -> Result<Vec<HoldSummary>, EngineError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.inner().store.holds(ids.clone()).await?;
        let rows = rows.into_iter().map(|row| (row.hold.id, row));
        let mut rows: BTreeMap<HoldId, HoldSummary> = rows.collect();
        Ok(ids.iter().filter_map(|id| rows.remove(id)).collect())
    }

    /// All holds ever opened by a request that the caller may see.
    pub(crate) async fn held_by(
        &self,
        caller: &Caller,
        request: RequestId,
    ) -> Result<Vec<HoldSummary>, EngineError> {
        let mut rows = self.inner().store.held_by(vec![request]).await?;
        rows.retain(|row| Reach::of(caller, row).sees);
        Ok(rows)
    }

    /// A page of holds that the caller may see. It reads a bounded number of holds, so a short page need
    /// not be the last.
    ///
    /// # Errors
    ///
    /// If the store fails. [`EngineError::PageTooSmall`] if the next hold does not fit.
    pub async fn holds(
        &self,
        caller: &Caller,
        filter: &HoldFilter,
        after: Option<HoldPlace>,
        limit: PageLimit,
    ) -> Result<Page<HoldDetail, HoldPlace>, EngineError> {
        let Some(mut query) = hold_query(caller, filter) else {
            return Ok(Page::empty());
        };
        (query.after, query.limit) = (after, SCAN_STEP);
        let store = &self.inner().store;
        let mut rows: Vec<HoldSummary> = Vec::new();
        let mut seen = 0;
        let next = loop {
            let (store, asked) = (Arc::clone(store), query.clone());
            let is_decided = filter.decided;
            let step = async move {
                if is_decided {
                    store.decided_holds(asked).await
                } else {
                    store.open_holds(asked).await
                }
            };
            let step = self.list_step(caller, step).await?;
            let is_last = step.len() < SCAN_STEP;
            seen += step.len();
            query.after = step.last().map_or(query.after, |row| Some(row.place));
            let mut fitting = step;
            fitting.retain(|row| filter.fits(caller, row));
            if let Some(group) = &filter.group {
                fitting = sound(fitting, |rows| Box::pin(self.in_group(group, rows))).await?;
            }
            let missing = limit.entries - rows.len();
            let is_full = fitting.len() >= missing;
            rows.extend(fitting.into_iter().take(missing));
            if is_full {
                break rows.last().map(|row| row.place);
            }
            if is_last {
                break None;
            }
            if seen >= SCAN_MAX {
                break query.after;
            }
        };
        let (rows, next) = fitting_page(rows, next, limit.bytes)?;
        let entries = sound(rows, |rows| self.hold_details(caller, rows)).await?;
        Ok(Page { entries, next })
    }

    /// Counts of the open holds that the caller may see.
    pub(crate) async fn hold_counts(&self, caller: &Caller) -> Result<HoldCountsView, EngineError> {
        let mut counts = HoldCountsView::default();
        let Some(mut query) = hold_query(caller, &HoldFilter::default()) else {
            return Ok(counts);
        };
        query.limit = COUNT_STEP;
        let soon = self.now().plus_ms(SOON_MS);
        let mut seen = 0;
        loop {
            let (store, asked) = (Arc::clone(&self.inner().store), query.clone());
            let rows = async move { store.open_holds(asked).await };
            let rows = self.list_step(caller, rows).await?;
            seen += rows.len();
            query.after = rows.last().map_or(query.after, |row| Some(row.place));
            for row in &rows {
                let reach = Reach::of(caller, row);
                if !reach.sees {
                    continue;
                }
                counts.add(row.hold.kind, known_risk(caller, row, &reach));
                counts.mine += usize::from(reach.decides());
                counts.expiring_soon += usize::from(row.hold.is_due(soon));
            }
            if rows.len() < COUNT_STEP {
                return Ok(counts);
            }
            if seen >= COUNT_MAX {
                counts.capped = true;
                return Ok(counts);
            }
        }
    }
}

/// Reads something about each entry of a page. If data of one is damaged, it is left out.
async fn sound<'a, T: Clone, U>(
    page: Vec<T>,
    read: impl Fn(Vec<T>) -> BoxFuture<'a, Result<Vec<U>, EngineError>>,
) -> Result<Vec<U>, EngineError> {
    match read(page.clone()).await {
        Err(EngineError::Damaged(_)) => {}
        read => return read,
    }
    let mut found = Vec::new();
    for entry in page {
        match read(vec![entry]).await {
            Err(EngineError::Damaged(_)) => {}
            read => found.extend(read?),
        }
    }
    Ok(found)
}

/// The store query. None if no hold can match.
fn hold_query(caller: &Caller, filter: &HoldFilter) -> Option<HoldQuery> {
    let narrowed = only_user(caller);
    let user = match (filter.user, narrowed) {
        (Some(asked), Some(only)) if asked != only => return None,
        (asked, only) => asked.or(only),
    };
    // The order would reveal risks to callers that may not know them.
    let knows_risks = caller.has(Role::Approver) || caller.roles.has_own() || caller.reads_all();
    let order = match filter.order {
        HoldOrder::Urgency if !knows_risks => HoldOrder::Oldest,
        order => order,
    };
    Some(HoldQuery {
        tenant: caller.tenant.clone(),
        user,
        session: filter.session,
        order,
        after: None,
        limit: 0,
    })
}

/// The risk of a hold, if the caller may decide it or read traces.
fn known_risk(caller: &Caller, row: &HoldSummary, reach: &Reach) -> Option<Risk> {
    let knows = reach.decides() || caller.reads_all();
    row.hold.risk.filter(|_| knows)
}

impl HoldFilter {
    fn fits(&self, caller: &Caller, row: &HoldSummary) -> bool {
        let is_asked = self.kind.is_none_or(|kind| kind == row.hold.kind)
            && self.agent.as_ref().is_none_or(|agent| *agent == row.agent)
            && self.status.is_none_or(|status| {
                let made = row.decision.map(|(decision, _)| decision.status);
                made.unwrap_or(HoldStatus::Open) == status
            });
        if !is_asked {
            return false;
        }
        let reach = Reach::of(caller, row);
        let risk = self.risk;
        reach.sees && risk.is_none_or(|risk| known_risk(caller, row, &reach) == Some(risk))
    }
}

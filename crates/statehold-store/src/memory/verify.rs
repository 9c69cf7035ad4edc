//! Verifies a copy of one tenant's data: chains, payloads, folds, the audit stream and its roots.
//!
//! Memory cannot be tampered with like a disk. The check verifies the code itself, because the
//! suite compares every other adapter with this one.

use std::sync::Arc;

use statehold_core::apply::apply;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::invariant::Facts;
use statehold_core::name::Name;
use statehold_core::session::SessionState;
use statehold_core::tenant::{TenantHead, TenantRecord};

use super::{Entry, Tables};
use crate::check::{
    Anchors, CheckReport, Problem, ProblemKind, Signer, StreamCheck, check_payloads, check_record,
};
use crate::keys::KnownKeys;
use crate::port::StoredRecord;

/// The data of one tenant at one moment. The records are shared, not copied.
pub(super) struct TenantSnapshot {
    sessions: Vec<(SessionId, Vec<Arc<Entry>>, SessionState)>,
    stream: Vec<TenantRecord>,
}

impl TenantSnapshot {
    pub(super) fn take(tables: &Tables, tenant: &Name) -> Self {
        let sessions = tables.sessions.iter().filter(|(_, session)| {
            let owner = session.state.owner.as_ref();
            owner.is_some_and(|owner| owner.tenant == *tenant)
        });
        Self {
            sessions: sessions
                .map(|(id, session)| (*id, session.log.clone(), session.state.clone()))
                .collect(),
            stream: tables.tenants.stream(tenant),
        }
    }

    pub(super) async fn check(
        self,
        tenant: &Name,
        expected: Option<TenantHead>,
        keys: &dyn KnownKeys,
    ) -> CheckReport {
        let mut report = CheckReport::default();
        let mut anchors = Anchors::default();
        let mut stream = StreamCheck::new(tenant.clone(), Signer::of(Some(keys)), expected);
        let mut entries = self.stream.iter();
        if entries.all(|entry| stream.follow(entry, &mut anchors, &mut report)) {
            stream.finish(&mut report);
        }
        report.head = stream.head();
        for (session, log, state) in self.sessions {
            check_session(session, &log, &state, keys, &mut anchors, &mut report);
            report.sessions += 1;
            give_way().await;
        }
        anchors.report_missing(&mut report);
        report
    }
}

/// Lets others have the thread once.
async fn give_way() {
    let mut has_waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

fn check_session(
    session: SessionId,
    log: &[Arc<Entry>],
    kept: &SessionState,
    keys: &dyn KnownKeys,
    anchors: &mut Anchors,
    report: &mut CheckReport,
) {
    let anchor = anchors.take(session);
    let shortened = anchor.and_then(|anchor| anchor.compare_length(session, kept.revision));
    report.add_all(shortened);
    let mut facts = Facts::default();
    let mut folded: Option<SessionState> = None;
    let mut before = Digest::ZERO;
    for entry in log {
        let stored = StoredRecord {
            record: entry.record.clone(),
            bodies: entry.bodies.clone(),
        };
        let content = &entry.record.content;
        if content.prev_hash != before
            || Digest::sha256(entry.record.as_bytes()) != entry.record.hash
        {
            let place = format!("record {} of session {session}", content.seq);
            let what = "its hash is not the one that the chain continues from";
            let problem = Problem::new(ProblemKind::Record, place, what).in_session(session);
            return report.add(problem.at(content.seq));
        }
        before = entry.record.hash;
        let state = folded.get_or_insert_with(|| SessionState::new(content.session));
        check_record(&stored, state, &mut facts, report);
        let sealed = vec![false; stored.bodies.len()];
        check_payloads(&stored, &sealed, state, Some(keys), report);
        let replaced = anchor.and_then(|anchor| anchor.compare(session, &stored.record));
        report.add_all(replaced);
        apply(state, &entry.record);
        // Records before a fork belong to the origin, and are counted there.
        if content.session == session {
            report.records += 1;
        }
    }
    if folded.as_ref() != Some(kept) {
        let place = format!("session {session}");
        let problem = Problem::projection(place, "is not what its log says");
        report.add(problem.in_session(session));
    }
}

//! The audit streams, and the keys that they speak of.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use statehold_core::ids::KeyId;
use statehold_core::name::Name;
use statehold_core::tenant::{TenantEvent, TenantHead};

use super::super::tenant;
use super::{CheckReport, Problem};
use crate::port::StoreError;

const PAGE: usize = 1_000;

/// Verifies every stream, and that there are exactly the keys that they made and took back.
pub(super) fn check(conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
    let mut keys: BTreeMap<KeyId, (TenantEvent, bool)> = BTreeMap::new();
    for text in tenant::tenants(conn)? {
        let place = format!("the audit stream of {text}");
        let Ok(name) = text.parse::<Name>() else {
            report.problems.push(wrong(place, "belongs to no tenant"));
            continue;
        };
        let mut head = TenantHead::default();
        loop {
            let page = tenant::records(conn, &name, head.seq, PAGE)?;
            if page.is_empty() {
                break;
            }
            for record in page {
                let content = &record.content;
                let follows = content.seq == head.seq + 1
                    && content.prev_hash == head.hash
                    && content.at >= head.at
                    && content.tenant == name;
                if !follows {
                    let place = format!("entry {} of {place}", content.seq);
                    report
                        .problems
                        .push(wrong(place, "does not follow the one before"));
                    return Ok(());
                }
                match &content.event {
                    made @ TenantEvent::KeyCreated { key, .. } => {
                        keys.insert(*key, (made.clone(), false));
                    }
                    TenantEvent::KeyRevoked { key } => {
                        if let Some(entry) = keys.get_mut(key) {
                            entry.1 = true;
                        }
                    }
                    TenantEvent::TraceRead { .. } => {}
                }
                head = record.head();
            }
        }
    }
    let mut found = BTreeSet::new();
    for kept in tenant::api_keys(conn, None)? {
        found.insert(kept.id);
        let said = TenantEvent::KeyCreated {
            agents: kept.agents.clone(),
            expires_at: kept.expires_at,
            key: kept.id,
            roles: kept.roles.clone(),
            user: kept.user,
        };
        if keys.get(&kept.id) != Some(&(said, kept.revoked_at.is_some())) {
            let place = format!("the key {}", kept.id);
            report
                .problems
                .push(wrong(place, "is not what the audit stream says"));
        }
    }
    for key in keys.keys().filter(|key| !found.contains(key)) {
        report
            .problems
            .push(wrong(format!("the key {key}"), "is missing"));
    }
    Ok(())
}

fn wrong(place: String, what: &str) -> Problem {
    Problem {
        place,
        what: what.to_owned(),
    }
}

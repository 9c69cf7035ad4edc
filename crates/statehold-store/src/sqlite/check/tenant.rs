//! The audit streams, and the keys that they speak of.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use statehold_core::digest::Digest;
use statehold_core::ids::KeyId;
use statehold_core::name::Name;
use statehold_core::tenant::{TenantEvent, TenantHead};

use super::super::{read, tenant};
use super::{CheckReport, Problem};
use crate::port::{ApiKey, StoreError};

const PAGE: usize = 1_000;

/// What the streams say about the keys: who has it, how it was made, whether it was taken back.
type Said = BTreeMap<KeyId, (Name, TenantEvent, bool)>;

/// The addresses that the streams say are set, by tenant and agent.
type Pushed = BTreeMap<(Name, Name), Digest>;

/// Verifies every stream, and that there are exactly the keys that they made and took back.
pub(super) fn check(conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
    let mut said = Said::new();
    let mut pushed = Pushed::new();
    for text in tenant::tenants(conn)? {
        let place = format!("the audit stream of {text}");
        let Ok(name) = text.parse::<Name>() else {
            report.problems.push(wrong(place, "belongs to no tenant"));
            continue;
        };
        if let Some(seq) = follow(conn, &name, &mut said, &mut pushed)? {
            let place = format!("entry {seq} of {place}");
            let what = "does not follow the one before";
            report.problems.push(wrong(place, what));
            // What this stream says about keys is not worth comparing.
            return Ok(());
        }
    }
    compare_addresses(conn, &pushed, report)?;
    compare_keys(conn, &said, report)
}

/// Reads one stream from its beginning; returns the first entry that does not follow.
fn follow(
    conn: &Connection,
    name: &Name,
    said: &mut Said,
    pushed: &mut Pushed,
) -> Result<Option<u64>, StoreError> {
    let mut head = TenantHead::default();
    loop {
        let page = tenant::records(conn, name, head.seq, PAGE)?;
        if page.is_empty() {
            return Ok(None);
        }
        for record in page {
            let content = &record.content;
            let follows = content.seq == head.seq + 1
                && content.prev_hash == head.hash
                && content.at >= head.at
                && content.tenant == *name;
            if !follows {
                return Ok(Some(content.seq));
            }
            match &content.event {
                made @ TenantEvent::KeyCreated { key, .. } => {
                    said.insert(*key, (name.clone(), made.clone(), false));
                }
                TenantEvent::KeyRevoked { key } => {
                    if let Some(made) = said.get_mut(key) {
                        made.2 = true;
                    }
                }
                TenantEvent::ResumeAddressSet { address, agent } => {
                    pushed.insert((name.clone(), agent.clone()), *address);
                }
                TenantEvent::ResumeAddressRemoved { agent } => {
                    pushed.remove(&(name.clone(), agent.clone()));
                }
                TenantEvent::TraceRead { .. } => {}
            }
            head = record.head();
        }
    }
}

fn compare_addresses(
    conn: &Connection,
    pushed: &Pushed,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut found = BTreeSet::new();
    for (tenant, agent, kept) in tenant::filed_addresses(conn)? {
        let place = format!("the address of {agent}");
        let key = (kept.tenant.clone(), kept.agent.clone());
        if tenant != kept.tenant.as_str() || agent != kept.agent.as_str() {
            let what = "is filed under another tenant or agent";
            report.problems.push(wrong(place, what));
        } else if pushed.get(&key) != Some(&kept.commitment()) {
            let what = "is not what the audit stream says";
            report.problems.push(wrong(place, what));
        }
        found.insert(key);
    }
    for (_, agent) in pushed.keys().filter(|key| !found.contains(key)) {
        let place = format!("the address of {agent}");
        report.problems.push(wrong(place, "is missing"));
    }
    Ok(())
}

fn compare_keys(
    conn: &Connection,
    said: &Said,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    type Row = (Vec<u8>, String, Vec<u8>, Vec<u8>);
    let sql = "SELECT id, tenant, secret, body FROM api_key";
    let rows: Vec<Row> = read::all(conn, sql, [], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    let mut found = BTreeSet::new();
    for (id, owner, secret, body) in rows {
        let kept = tenant::parse_key(&body)?;
        let is_filed = id == kept.id.as_uuid().as_bytes()
            && owner == kept.tenant.as_str()
            && secret == kept.secret.as_bytes();
        if !is_filed {
            let place = format!("the key {}", kept.id);
            report
                .problems
                .push(wrong(place, "is filed under another id, tenant or digest"));
        }
        found.insert(kept.id);
        if said.get(&kept.id) != Some(&as_said(&kept)) {
            let place = format!("the key {}", kept.id);
            report
                .problems
                .push(wrong(place, "is not what the audit stream says"));
        }
    }
    for key in said.keys().filter(|key| !found.contains(key)) {
        report
            .problems
            .push(wrong(format!("the key {key}"), "is missing"));
    }
    Ok(())
}

/// What the stream must say about a key. Its digest and what people call it are not in the stream.
fn as_said(kept: &ApiKey) -> (Name, TenantEvent, bool) {
    let made = TenantEvent::KeyCreated {
        agents: kept.agents.clone(),
        expires_at: kept.expires_at,
        key: kept.id,
        roles: kept.roles.clone(),
        user: kept.user,
    };
    (kept.tenant.clone(), made, kept.revoked_at.is_some())
}

fn wrong(place: String, what: &str) -> Problem {
    Problem {
        place,
        what: what.to_owned(),
    }
}

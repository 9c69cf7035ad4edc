//! The audit streams, and the keys that they speak of.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Row};
use statehold_core::digest::Digest;
use statehold_core::ids::{KeyId, UserId};
use statehold_core::name::Name;
use statehold_core::tenant::TenantEvent;

use super::super::sql::id_bytes;
use super::super::{read, tenant};
use super::Extent;
use crate::check::{Anchors, CheckReport, Problem, ProblemKind, Signer, StreamCheck};
use crate::keys::KnownKeys;
use crate::port::{ApiKey, StoreError};

const PAGE: usize = 1_000;

/// The API keys according to the streams: tenant, creation event, whether revoked.
type Said = BTreeMap<KeyId, (Name, TenantEvent, bool)>;

/// The addresses that the streams say are set, by tenant and agent.
type Pushed = BTreeMap<(Name, Name), Digest>;

/// Verifies the streams, and that there are exactly the keys and addresses that they made and took
/// back. Collects what their roots say about sessions.
pub(super) fn check(
    conn: &Connection,
    keys: Option<&dyn KnownKeys>,
    extent: Extent<'_>,
    anchors: &mut Anchors,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut said = ExpectedKeys::default();
    let tenants = match extent.tenant {
        Some(tenant) => vec![tenant.to_string()],
        None => tenant::tenants(conn)?,
    };
    for text in tenants {
        let Ok(name) = text.parse::<Name>() else {
            let place = format!("the audit stream of {text}");
            let what = "belongs to no tenant";
            report.add(Problem::new(ProblemKind::Entry, place, what));
            continue;
        };
        let mut stream = StreamCheck::new(name.clone(), Signer::of(keys), extent.expected);
        let is_whole = follow(conn, &name, &mut stream, &mut said, anchors, report)?;
        report.head = stream.head();
        if !is_whole {
            // The keys and addresses of a broken stream are not worth comparing.
            return Ok(());
        }
        stream.finish(report);
    }
    let compared = compare_addresses(conn, extent.tenant, &said.addresses, report);
    report.go_on(compared)?;
    require_forgotten(conn, &said.erased_users, report)?;
    compare_keys(conn, extent.tenant, &said.keys, report)
}

/// The names of erased users must be gone.
fn require_forgotten(
    conn: &Connection,
    erased: &BTreeSet<(Name, UserId)>,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    for (tenant, user) in erased {
        let sql = "SELECT 1 FROM user WHERE id = ?1 AND tenant = ?2";
        let key = (id_bytes(user.as_uuid()), tenant.as_str());
        let kept: Option<i64> = read::first(conn, sql, key, |row| row.get(0))?;
        if kept.is_some() {
            let what = "was erased, but the name is there";
            report.add(Problem::new(
                ProblemKind::Entry,
                format!("the user {user}"),
                what,
            ));
        }
    }
    Ok(())
}

/// The API keys and resume addresses according to the streams.
#[derive(Default)]
struct ExpectedKeys {
    keys: Said,
    addresses: Pushed,
    erased_users: BTreeSet<(Name, UserId)>,
}

/// Reads one stream from its beginning; says whether it is whole.
fn follow(
    conn: &Connection,
    name: &Name,
    stream: &mut StreamCheck,
    said: &mut ExpectedKeys,
    anchors: &mut Anchors,
    report: &mut CheckReport,
) -> Result<bool, StoreError> {
    let mut page_size = PAGE;
    loop {
        let page = match tenant::records(conn, name, stream.head().seq, page_size) {
            // One of them cannot be read: find out which.
            Err(StoreError::Corrupt { .. }) if page_size > 1 => {
                page_size = 1;
                continue;
            }
            Err(StoreError::Corrupt { source, .. }) => {
                let entry = stream.head().seq + 1;
                let what = source.to_string();
                report.add(stream.problem(ProblemKind::Entry, entry, &what));
                return Ok(false);
            }
            other => other?,
        };
        if page.is_empty() {
            return Ok(true);
        }
        for record in page {
            if !stream.follow(&record, anchors, report) {
                return Ok(false);
            }
            match &record.content.event {
                made @ TenantEvent::KeyCreated { key, .. } => {
                    said.keys.insert(*key, (name.clone(), made.clone(), false));
                }
                TenantEvent::KeyRevoked { key } => {
                    if let Some(made) = said.keys.get_mut(key) {
                        made.2 = true;
                    }
                }
                TenantEvent::ResumeAddressSet { address, agent } => {
                    let owner = (name.clone(), agent.clone());
                    said.addresses.insert(owner, *address);
                }
                TenantEvent::ResumeAddressRemoved { agent } => {
                    said.addresses.remove(&(name.clone(), agent.clone()));
                }
                TenantEvent::UserErased { user, .. } => {
                    said.erased_users.insert((name.clone(), *user));
                }
                TenantEvent::HeadsSigned { .. }
                | TenantEvent::BackupMade { .. }
                | TenantEvent::KeyRingRotated { .. }
                | TenantEvent::TraceRead { .. } => {}
            }
        }
    }
}

fn compare_addresses(
    conn: &Connection,
    only: Option<&Name>,
    pushed: &Pushed,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let wrong = |agent: &str, what: &str| {
        Problem::new(ProblemKind::Entry, format!("the address of {agent}"), what)
    };
    let mut found = BTreeSet::new();
    for (tenant, agent, kept) in tenant::filed_addresses(conn)? {
        if only.is_some_and(|only| only.as_str() != tenant) {
            continue;
        }
        let key = (kept.tenant.clone(), kept.agent.clone());
        if tenant != kept.tenant.as_str() || agent != kept.agent.as_str() {
            report.add(wrong(&agent, "is filed under another tenant or agent"));
        } else if pushed.get(&key) != Some(&kept.commitment()) {
            report.add(wrong(&agent, "is not what the audit stream says"));
        }
        found.insert(key);
    }
    for (_, agent) in pushed.keys().filter(|key| !found.contains(key)) {
        report.add(wrong(agent.as_str(), "is missing"));
    }
    Ok(())
}

fn compare_keys(
    conn: &Connection,
    tenant: Option<&Name>,
    said: &Said,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let sql = "SELECT id, tenant, secret, body, rowid FROM api_key WHERE ?1 IS NULL OR tenant = ?1";
    let rows = read::all(conn, sql, [tenant.map(Name::as_str)], |row| {
        Ok((key_columns(row).ok(), row.get::<_, i64>(4)?))
    })?;
    let mut found = BTreeSet::new();
    for (columns, row) in rows {
        let key = columns.and_then(|columns| Some((tenant::parse_key(&columns.3).ok()?, columns)));
        let Some((kept, (id, owner, secret, _))) = key else {
            let place = format!("row {row} of the table `api_key`");
            let what = "has no key that can be read";
            report.add(Problem::new(ProblemKind::Entry, place, what));
            continue;
        };
        let is_filed = id == kept.id.as_uuid().as_bytes()
            && owner == kept.tenant.as_str()
            && secret == kept.secret.as_bytes();
        if !is_filed {
            report.add(wrong(
                kept.id,
                "is filed under another id, tenant or digest",
            ));
        }
        found.insert(kept.id);
        if said.get(&kept.id) != Some(&as_said(&kept)) {
            report.add(wrong(kept.id, "is not what the audit stream says"));
        }
    }
    for key in said.keys().filter(|key| !found.contains(key)) {
        report.add(wrong(*key, "is missing"));
    }
    Ok(())
}

/// The id, the tenant, the secret and the body of a key.
type KeyColumns = (Vec<u8>, String, Vec<u8>, Vec<u8>);

fn key_columns(row: &Row<'_>) -> rusqlite::Result<KeyColumns> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

/// The expected entry of the stream for a key. The stream has neither its digest nor its name.
fn as_said(kept: &ApiKey) -> (Name, TenantEvent, bool) {
    let made = TenantEvent::KeyCreated {
        agents: kept.agents.clone(),
        expires_at: kept.expires_at,
        key: kept.id,
        owner: kept.owner,
        roles: kept.roles.clone(),
        user: kept.user,
    };
    (kept.tenant.clone(), made, kept.revoked_at.is_some())
}

fn wrong(key: KeyId, what: &str) -> Problem {
    Problem::new(ProblemKind::Entry, format!("the key {key}"), what)
}

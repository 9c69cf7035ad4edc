//! Beside sessions: users behind pseudonyms, keys, and the audit stream of a tenant.

use rusqlite::{Connection, Row, params};
use statehold_core::digest::Digest;
use statehold_core::ids::{KeyId, UserId};
use statehold_core::name::Name;
use statehold_core::session::Owner;
use statehold_core::tenant::{TenantHead, TenantRecord};

use super::log::Uuid16;
use super::read::{all, first};
use super::sealing::{open_text, user_lookup};
use super::snapshot::{KeyedConnection, Snapshot};
use super::sql::{corrupt_or_unavailable, damaged, id_bytes, to_sql};
use super::sums::row_sum;
use crate::codec;
use crate::commit::FoundText;
use crate::port::{AddressChange, ApiKey, ResumeAddress, StoreError, TenantChange, TenantCommit};

pub(super) fn user(
    conn: &KeyedConnection<'_>,
    tenant: &Name,
    name: &str,
) -> Result<Option<UserId>, StoreError> {
    user_found(conn, tenant, &user_lookup(conn.keys, tenant, name))
}

fn user_found(
    conn: &Connection,
    tenant: &Name,
    lookup: &[u8],
) -> Result<Option<UserId>, StoreError> {
    let sql = "SELECT id FROM user WHERE tenant = ?1 AND lookup = ?2";
    let id = first(conn, sql, (tenant.as_str(), lookup), |row| {
        row.get::<_, Uuid16>(0)
    })?;
    Ok(id.map(|id| UserId::from_uuid(id.0)))
}

/// The name of a user. None if there is no such user, or the key is gone.
pub(super) fn user_name(
    conn: &KeyedConnection<'_>,
    user: UserId,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT name FROM user WHERE id = ?1";
    let column: Option<Vec<u8>> = first(conn, sql, [id_bytes(user.as_uuid())], |row| row.get(0))?;
    open_text(column.as_deref(), conn.keys, "the table `user`")
}

pub(super) fn intern_user(
    conn: &Connection,
    tenant: &Name,
    name: &FoundText,
    fresh: UserId,
) -> Result<UserId, StoreError> {
    if let Some(known) = user_found(conn, tenant, &name.lookup)? {
        return Ok(known);
    }
    let id = id_bytes(fresh.as_uuid());
    let FoundText { lookup, column } = name;
    let (tenant, lookup, column) = (tenant.as_str(), &lookup[..], &column[..]);
    let sum = row_sum(&[id.into(), tenant.into(), lookup.into(), column.into()]);
    conn.prepare_cached("INSERT INTO user VALUES(?1, ?2, ?3, ?4, ?5)")
        .and_then(|mut statement| statement.execute((id, tenant, lookup, column, sum)))
        .map_err(corrupt_or_unavailable("the table `user`"))?;
    Ok(fresh)
}

/// Stores the user of a session that the same transaction creates.
pub(super) fn keep_user(
    conn: &Connection,
    owner: &Owner,
    name: &FoundText,
) -> Result<(), StoreError> {
    let known = intern_user(conn, &owner.tenant, name, owner.user)?;
    if known == owner.user {
        Ok(())
    } else {
        Err(StoreError::UserTaken { known })
    }
}

/// Appends one entry and changes the row that goes with it, in one transaction.
pub(super) fn commit(conn: &mut Connection, commit: &TenantCommit) -> Result<(), StoreError> {
    let content = &commit.record.content;
    let head = head(conn, &content.tenant)?;
    if content.seq != head.seq + 1 || content.prev_hash != head.hash {
        return Err(StoreError::TenantConflict { found: head.seq });
    }
    let place = corrupt_or_unavailable("the audit stream");
    let transaction = conn.transaction().map_err(&place)?;
    let row = params![
        content.tenant.as_str(),
        to_sql(content.seq),
        codec::pack(commit.record.as_bytes())
    ];
    transaction
        .execute("INSERT INTO tenant_log VALUES(?1, ?2, ?3)", row)
        .map_err(&place)?;
    match &commit.change {
        Some(TenantChange::Key(key)) => {
            let body = serde_json::to_vec(key).expect("our own types always serialize to JSON");
            let (id, secret) = (id_bytes(key.id.as_uuid()), key.secret.as_bytes().as_slice());
            let tenant = key.tenant.as_str();
            let sum = row_sum(&[id.into(), tenant.into(), secret.into(), body[..].into()]);
            let sql = "INSERT OR REPLACE INTO api_key VALUES(?1, ?2, ?3, ?4, ?5)";
            let row = params![id, tenant, secret, body, sum];
            transaction.execute(sql, row).map_err(&place)?;
        }
        Some(TenantChange::Address(AddressChange::Set(address))) => {
            let body = serde_json::to_vec(address).expect("our own types always serialize to JSON");
            let (tenant, agent) = (address.tenant.as_str(), address.agent.as_str());
            let sum = row_sum(&[tenant.into(), agent.into(), body[..].into()]);
            let row = params![tenant, agent, body, sum];
            let sql = "INSERT OR REPLACE INTO resume_address VALUES(?1, ?2, ?3, ?4)";
            transaction.execute(sql, row).map_err(&place)?;
        }
        Some(TenantChange::Address(AddressChange::Removed(agent))) => {
            let row = params![content.tenant.as_str(), agent.as_str()];
            let sql = "DELETE FROM resume_address WHERE tenant = ?1 AND agent = ?2";
            transaction.execute(sql, row).map_err(&place)?;
        }
        Some(TenantChange::UserForgotten(user)) => {
            let row = params![id_bytes(user.as_uuid()), content.tenant.as_str()];
            let sql = "DELETE FROM user WHERE id = ?1 AND tenant = ?2";
            transaction.execute(sql, row).map_err(&place)?;
        }
        None => {}
    }
    transaction.commit().map_err(&place)
}

/// Every address with the tenant and the agent that it is filed under.
pub(super) fn filed_addresses(
    conn: &Connection,
) -> Result<Vec<(String, String, ResumeAddress)>, StoreError> {
    let rows = address_rows(conn)?.into_iter();
    let parsed = rows.map(|(tenant, agent, body)| Ok((tenant, agent, parse_address(&body)?)));
    parsed.collect()
}

fn address_rows(conn: &Connection) -> Result<Vec<(String, String, Vec<u8>)>, StoreError> {
    let sql = "SELECT tenant, agent, body FROM resume_address ORDER BY tenant, agent";
    all(conn, sql, [], |row| {
        Ok((row.get(0)?, row.get(1)?, bytes(row, 2)?))
    })
}

fn parse_address(body: &[u8]) -> Result<ResumeAddress, StoreError> {
    serde_json::from_slice(body).map_err(|error| damaged("the table `resume_address`", error))
}

/// The bytes of a column; none if it has another type, which is damage that parsing finds.
fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    let value = row.get_ref(column)?;
    Ok(value.as_blob().unwrap_or_default().to_vec())
}

pub(super) fn addresses(from: &Snapshot<'_>) -> Result<Vec<ResumeAddress>, StoreError> {
    let mut found = Vec::new();
    for (_, _, body) in address_rows(from)? {
        found.extend(from.sound(parse_address(&body))?);
    }
    Ok(found)
}

pub(super) fn head(conn: &Connection, tenant: &Name) -> Result<TenantHead, StoreError> {
    let sql = "SELECT record FROM tenant_log WHERE tenant = ?1 ORDER BY seq DESC LIMIT 1";
    let last: Option<Vec<u8>> = first(conn, sql, [tenant.as_str()], |row| row.get(0))?;
    Ok(match last {
        Some(packed) => parse(&packed)?.head(),
        None => TenantHead::default(),
    })
}

pub(super) fn records(
    conn: &Connection,
    tenant: &Name,
    after: u64,
    limit: usize,
) -> Result<Vec<TenantRecord>, StoreError> {
    let sql = "SELECT record FROM tenant_log WHERE tenant = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3";
    let key = (tenant.as_str(), to_sql(after), to_sql(limit as u64));
    let packed: Vec<Vec<u8>> = all(conn, sql, key, |row| row.get(0))?;
    packed.iter().map(|packed| parse(packed)).collect()
}

fn parse(packed: &[u8]) -> Result<TenantRecord, StoreError> {
    let place = "the audit stream";
    let bytes = codec::unpack(packed).map_err(|error| damaged(place, error))?;
    TenantRecord::from_bytes(&bytes).map_err(|error| damaged(place, error))
}

/// The key with this digest. A damaged key opens nothing.
pub(super) fn api_key(from: &Snapshot<'_>, secret: Digest) -> Result<Option<ApiKey>, StoreError> {
    let sql = "SELECT id, body FROM api_key WHERE secret = ?1";
    let row = first(from, sql, [secret.as_bytes().as_slice()], key_row)?;
    let key = row.map(|row| from.sound(row.parse())).transpose()?;
    Ok(key.flatten())
}

/// Keys after one, without those that are damaged. Only a page at the end is shorter than the limit.
pub(super) fn api_keys(
    from: &Snapshot<'_>,
    tenant: &Name,
    after: Option<KeyId>,
    limit: usize,
) -> Result<Vec<ApiKey>, StoreError> {
    let sql = "SELECT id, body FROM api_key WHERE tenant = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
    let mut place = after.map_or_else(Vec::new, |key| key.as_uuid().as_bytes().to_vec());
    let mut found = Vec::new();
    while found.len() < limit {
        let room = limit - found.len();
        let key = (tenant.as_str(), &place, to_sql(room as u64));
        let rows = all(from, sql, key, key_row)?;
        let is_last = rows.len() < room;
        for row in rows {
            found.extend(from.sound(row.parse())?);
            place = row.id;
        }
        if is_last {
            break;
        }
    }
    Ok(found)
}

/// A key by its id. A damaged one is as if it were missing.
pub(super) fn api_key_of(
    from: &Snapshot<'_>,
    tenant: &Name,
    key: KeyId,
) -> Result<Option<ApiKey>, StoreError> {
    let sql = "SELECT id, body FROM api_key WHERE id = ?1 AND tenant = ?2";
    let key = (key.as_uuid().as_bytes().as_slice(), tenant.as_str());
    let row = first(from, sql, key, key_row)?;
    let key = row.map(|row| from.sound(row.parse())).transpose()?;
    Ok(key.flatten())
}

pub(super) fn api_key_count(conn: &Connection, tenant: &Name) -> Result<usize, StoreError> {
    let sql = "SELECT count(*) FROM api_key WHERE tenant = ?1";
    let count: Option<i64> = first(conn, sql, [tenant.as_str()], |row| row.get(0))?;
    Ok(count.and_then(|count| count.try_into().ok()).unwrap_or(0))
}

/// Whether there is a key that is not revoked. A damaged one counts: keys are in use here.
pub(super) fn has_api_keys(from: &Snapshot<'_>) -> Result<bool, StoreError> {
    let rows = all(from, "SELECT id, body FROM api_key", [], key_row)?;
    for row in rows {
        let key = from.sound(row.parse())?;
        if key.is_none_or(|key| key.revoked_at.is_none()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A row of the table `api_key`.
struct KeyRow {
    id: Vec<u8>,
    body: Vec<u8>,
}

fn key_row(row: &Row<'_>) -> rusqlite::Result<KeyRow> {
    let (id, body) = (bytes(row, 0)?, bytes(row, 1)?);
    Ok(KeyRow { id, body })
}

impl KeyRow {
    fn parse(&self) -> Result<ApiKey, StoreError> {
        let place = || match uuid::Uuid::from_slice(&self.id) {
            Ok(id) => format!("the key {}", KeyId::from_uuid(id)),
            Err(_) => "the table `api_key`".to_owned(),
        };
        serde_json::from_slice(&self.body).map_err(|error| damaged(place(), error))
    }
}

pub(super) fn parse_key(body: &[u8]) -> Result<ApiKey, StoreError> {
    serde_json::from_slice(body).map_err(|error| damaged("the table `api_key`", error))
}

/// The tenants that have an audit stream.
pub(super) fn tenants(conn: &Connection) -> Result<Vec<String>, StoreError> {
    all(conn, "SELECT DISTINCT tenant FROM tenant_log", [], |row| {
        row.get(0)
    })
}

/// The tenants that have sessions or an audit stream. Each is one step along an index.
pub(super) fn names(from: &Snapshot<'_>) -> Result<Vec<Name>, StoreError> {
    let sql = "WITH RECURSIVE
               owner(found) AS (SELECT min(tenant) FROM session UNION ALL
                 SELECT (SELECT min(session.tenant) FROM session
                         WHERE session.tenant > owner.found) FROM owner
                 WHERE owner.found IS NOT NULL),
               stream(found) AS (SELECT min(tenant) FROM tenant_log UNION ALL
                 SELECT (SELECT min(tenant_log.tenant) FROM tenant_log
                         WHERE tenant_log.tenant > stream.found) FROM stream
                 WHERE stream.found IS NOT NULL)
               SELECT found FROM owner WHERE found IS NOT NULL
               UNION SELECT found FROM stream WHERE found IS NOT NULL ORDER BY found";
    let names = all(from, sql, [], |row| {
        let name = row.get_ref(0)?.as_str();
        Ok(name.unwrap_or_default().to_owned())
    })?;
    let mut found = Vec::new();
    for name in names {
        let parsed = name.parse::<Name>();
        let damage = |error| damaged(format!("the tenant {name:?}"), error);
        found.extend(from.sound(parsed.map_err(damage))?);
    }
    Ok(found)
}

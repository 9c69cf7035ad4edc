//! A snapshot of the file. Lists that are read from it leave damaged rows out.

use std::ops::{ControlFlow, Deref};

use rusqlite::{Connection, Params, Row};
use statehold_core::ids::SessionId;

use super::log::Uuid16;
use super::read::place_of;
use super::sql::{corrupt_or_unavailable, damaged};
use crate::port::{BoxError, DamageLog, StoreError};
use crate::seal::SealKeys;

/// A connection, and the keys that open the payloads which it reads.
#[derive(Clone, Copy)]
pub(super) struct KeyedConnection<'a> {
    pub(super) conn: &'a Connection,
    pub(super) keys: &'a dyn SealKeys,
}

impl Deref for KeyedConnection<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.conn
    }
}

/// One snapshot of the file, and where damage in it is noted.
pub(super) struct Snapshot<'a> {
    pub(super) conn: KeyedConnection<'a>,
    pub(super) damage: &'a DamageLog,
}

impl<'a> Deref for Snapshot<'a> {
    type Target = KeyedConnection<'a>;

    fn deref(&self) -> &KeyedConnection<'a> {
        &self.conn
    }
}

/// The damage of a row of a list. Its first column is the id of the session.
pub(super) fn row_damage(sql: &str, row: &Row<'_>, error: BoxError) -> StoreError {
    let damage = damaged(format!("a row of {}", place_of(sql)), error);
    match row.get::<_, Uuid16>(0) {
        Ok(session) => damage.in_session(SessionId::from_uuid(session.0)),
        Err(_) => damage,
    }
}

impl Snapshot<'_> {
    /// At most `limit` rows of a list; a statement needs no limit of its own. The first column is the id of the
    /// session. A damaged row is noted and left out, and the list goes on behind it.
    pub(super) fn list<T>(
        &self,
        sql: &str,
        params: impl Params,
        limit: usize,
        mut read: impl FnMut(&Row<'_>) -> Result<T, BoxError>,
    ) -> Result<Vec<T>, StoreError> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        self.visit(sql, params, |row| {
            found.push(read(row)?);
            Ok(if found.len() < limit {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        Ok(found)
    }

    /// Gives the rows of a list to `read`, until that has enough. The first column is the id of the session. A
    /// damaged row is noted and left out.
    pub(super) fn visit(
        &self,
        sql: &str,
        params: impl Params,
        mut read: impl FnMut(&Row<'_>) -> Result<ControlFlow<()>, BoxError>,
    ) -> Result<(), StoreError> {
        let failed = |error| corrupt_or_unavailable(&place_of(sql))(error);
        let mut statement = self.conn.prepare_cached(sql).map_err(&failed)?;
        let mut rows = statement.query(params).map_err(&failed)?;
        while let Some(row) = rows.next().map_err(&failed)? {
            let entry = read(row).map_err(|error| row_damage(sql, row, error));
            if let Some(ControlFlow::Break(())) = self.sound(entry)? {
                break;
            }
        }
        Ok(())
    }

    /// The entry of a list. None if it is damaged, which is noted.
    pub(super) fn sound<T>(&self, entry: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
        match entry {
            Err(error @ StoreError::Corrupt { .. }) => {
                self.damage.note(&error);
                Ok(None)
            }
            entry => entry.map(Some),
        }
    }
}

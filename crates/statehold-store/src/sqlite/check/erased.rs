//! Payloads that are missing without a recorded erasure, and payloads that remain despite one.

use rusqlite::Connection;
use statehold_core::ids::SessionId;
use statehold_core::record::{ErasedPayloads, Event};
use statehold_core::session::SessionState;

use super::super::log::{self, SessionRow};
use super::super::{erase, read};
use super::RowCounts;
use crate::check::{CheckReport, Problem, bad_payload};
use crate::port::{StoreError, StoredRecord};

/// The missing and remaining payloads of one session.
#[derive(Default)]
pub(super) struct ErasureCheck {
    /// Some record of its own that lacks a payload which is not hidden, and one that lacks any.
    visible_gone: Option<u64>,
    any_gone: Option<u64>,
    /// Some record of its origin that lacks a payload which is not hidden.
    shared_gone: Option<u64>,
    /// The last record of its own that has a hidden payload, and the last that has any.
    hidden_left: u64,
    any_left: u64,
    /// The erasure that its records state.
    removed: Option<ErasedPayloads>,
}

impl ErasureCheck {
    /// Notes a record. `sealed` says which payloads are there, under a key that is gone.
    pub(super) fn note(&mut self, session: SessionId, stored: &StoredRecord, sealed: &[bool]) {
        let content = &stored.record.content;
        let events = content.events.iter();
        let hidden = events.flat_map(|event| event.erased(ErasedPayloads::Hidden));
        let is_own = content.session == session;
        let bodies = stored.bodies.iter().zip(sealed);
        for ((body, is_sealed), is_hidden) in bodies.zip(hidden) {
            match (body.is_some() || *is_sealed, is_own) {
                (true, true) => {
                    self.any_left = content.seq;
                    if is_hidden {
                        self.hidden_left = content.seq;
                    }
                }
                (false, true) => {
                    self.any_gone.get_or_insert(content.seq);
                    if !is_hidden {
                        self.visible_gone.get_or_insert(content.seq);
                    }
                }
                (false, false) if !is_hidden => {
                    self.shared_gone.get_or_insert(content.seq);
                }
                (_, false) => {}
            }
        }
        for event in content.events.iter().filter(|_| is_own) {
            if let Event::PayloadsErased { payloads } = event {
                self.removed = self.removed.max(Some(*payloads));
            }
        }
    }

    /// Reports payloads that are missing or remain against the records, and counts pending
    /// erasures.
    pub(super) fn report(
        &self,
        conn: &Connection,
        row: &SessionRow,
        folded: &SessionState,
        report: &mut CheckReport,
        rows: &mut RowCounts,
    ) -> Result<(), StoreError> {
        let mut wrong = |seq: u64, what: &str| report.add(bad_payload(row.id, seq, what));
        let (gone, left) = match self.removed {
            None => (self.any_gone, 0),
            Some(ErasedPayloads::Hidden) => (self.visible_gone, self.hidden_left),
            Some(ErasedPayloads::All) => (None, self.any_left),
        };
        if let Some(seq) = gone {
            wrong(seq, "is gone, and no record says that it was removed");
        }
        if let Some(seq) = self.shared_gone.filter(|_| !folded.deleted) {
            wrong(seq, "is gone, although this session still shares it");
        }
        let sql = "SELECT payloads, log FROM erasure WHERE session = ?1";
        let pending: Option<(String, i64)> =
            read::first(conn, sql, [row.pk], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut until = erase::shared_until(conn, row.pk)?;
        if let Some((payloads, at)) = pending {
            rows.add("erasure", 1);
            let at = log::row(conn, at)?;
            until = until.max(at.seq);
            if at.session != row.pk {
                let place = format!("the row of session {} in `erasure`", row.id);
                let what = "goes on in another session";
                report.add(Problem::projection(place, what).in_session(row.id));
            }
            if self.removed.map(erase::name_of) != Some(payloads.as_str()) {
                let place = format!("the row of session {} in `erasure`", row.id);
                let what = "removes payloads that no record says are removed";
                report.add(Problem::projection(place, what).in_session(row.id));
            }
        }
        if left > until {
            let what = "was removed, but is still there";
            report.add(bad_payload(row.id, left, what));
        }
        Ok(())
    }
}

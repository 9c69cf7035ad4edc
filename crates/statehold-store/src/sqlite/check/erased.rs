//! Payloads that are missing without a recorded erasure, and payloads that remain despite one.

use rusqlite::Connection;
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
    /// Some record of its own, and one of its origin, that lacks a payload which is not hidden.
    visible_gone: Option<u64>,
    shared_gone: Option<u64>,
    /// The same for a hidden payload that no removal has taken from the session.
    hidden_gone: Option<u64>,
    shared_hidden_gone: Option<u64>,
    /// The rows of its own that have a hidden payload although a removal took it, each with the number of its record.
    hidden_left: Vec<(i64, u64)>,
    /// The last record of its own that has a payload which is not hidden.
    visible_left: u64,
    /// The erasure that its records state.
    removed: Option<ErasedPayloads>,
}

impl ErasureCheck {
    /// Notes a record and its row. `sealed` says which payloads are there, under a key that is gone.
    pub(super) fn note(
        &mut self,
        session: &SessionRow,
        row: i64,
        stored: &StoredRecord,
        sealed: &[bool],
    ) {
        let content = &stored.record.content;
        let hidden = stored.record.erased(ErasedPayloads::Hidden);
        let is_own = content.session == session.id;
        let is_taken = row <= session.erased_log;
        let mut is_left = false;
        let bodies = stored.bodies.iter().zip(sealed);
        for ((body, is_sealed), is_hidden) in bodies.zip(hidden) {
            if body.is_some() || *is_sealed {
                match (is_own, is_hidden) {
                    (true, true) => is_left |= is_taken,
                    (true, false) => self.visible_left = content.seq,
                    (false, _) => {}
                }
                continue;
            }
            let gone = match (is_own, is_hidden) {
                (_, true) if is_taken => continue,
                (true, true) => &mut self.hidden_gone,
                (true, false) => &mut self.visible_gone,
                (false, true) => &mut self.shared_hidden_gone,
                (false, false) => &mut self.shared_gone,
            };
            gone.get_or_insert(content.seq);
        }
        self.hidden_left
            .extend(is_left.then_some((row, content.seq)));
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
        let is_all = self.removed == Some(ErasedPayloads::All);
        let gone = self.visible_gone.or(self.hidden_gone);
        if let Some(seq) = gone.filter(|_| !is_all) {
            wrong(seq, "is gone, and no record says that it was removed");
        }
        let shared = self.shared_gone.or(self.shared_hidden_gone);
        if let Some(seq) = shared.filter(|_| !folded.deleted) {
            wrong(seq, "is gone, although this session still shares it");
        }
        let sql = "SELECT payloads, log, floor FROM erasure WHERE session = ?1";
        let pending: Option<(String, i64, i64)> = read::first(conn, sql, [row.pk], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        let mut until = 0;
        if let Some((payloads, at, floor)) = pending {
            rows.add("erasure", 1);
            if floor != 0 && !is_erasure(conn, row, floor) {
                let place = format!("the row of session {} in `erasure`", row.id);
                let what = "ends at a record that removed nothing";
                report.add(Problem::projection(place, what).in_session(row.id));
            }
            let at = log::row(conn, at)?;
            until = at.seq;
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
        if let Some(left) = self.left_behind(conn, row, until)? {
            let what = "was removed, but is still there";
            report.add(bad_payload(row.id, left, what));
        }
        Ok(())
    }

    /// The newest record after `until` that has a payload which was removed, and which no other session needs.
    fn left_behind(
        &self,
        conn: &Connection,
        session: &SessionRow,
        until: u64,
    ) -> Result<Option<u64>, StoreError> {
        if self.removed == Some(ErasedPayloads::All)
            && self.visible_left > until.max(erase::shared_until(conn, session.pk)?)
        {
            return Ok(Some(self.visible_left));
        }
        let mut needed_after = i64::MAX;
        let left = self.hidden_left.iter().rev();
        for (row, seq) in left.take_while(|(_, seq)| *seq > until) {
            if *row > needed_after {
                continue;
            }
            match erase::needed_after(conn, session.pk, (*row, *seq))? {
                Some(after) => needed_after = after,
                None => return Ok(Some(*seq)),
            }
        }
        Ok(None)
    }
}

/// Whether a log row is a record of this session that removed payloads.
fn is_erasure(conn: &Connection, session: &SessionRow, row: i64) -> bool {
    let found = log::row(conn, row).ok();
    let found = found.filter(|found| found.session == session.pk);
    let record = found.and_then(|found| found.record().ok());
    let mut events = record
        .iter()
        .flat_map(|record| record.content.events.iter());
    events.any(|event| matches!(event, Event::PayloadsErased { .. }))
}

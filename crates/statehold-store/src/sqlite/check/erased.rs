//! Payloads that are missing without a recorded erasure, and payloads that remain despite one.

use std::ops::RangeInclusive;

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
        let mut pending_seqs = 0..=0;
        if let Some((payloads, at, floor)) = pending {
            rows.add("erasure", 1);
            let floor = match floor {
                0 => None,
                floor => Some(log::row(conn, floor)?),
            };
            let at = log::row(conn, at)?;
            let last = floor.as_ref().map_or(0, |floor| floor.seq);
            pending_seqs = last + 1..=at.seq;
            if at.session != row.pk || floor.is_some_and(|floor| floor.session != row.pk) {
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
        if let Some(left) = self.left_behind(conn, row, &pending_seqs)? {
            let what = "was removed, but is still there";
            report.add(bad_payload(row.id, left, what));
        }
        Ok(())
    }

    /// The newest record that has a payload which was removed, is not going to be, and which no other session needs.
    fn left_behind(
        &self,
        conn: &Connection,
        session: &SessionRow,
        pending: &RangeInclusive<u64>,
    ) -> Result<Option<u64>, StoreError> {
        let forks = erase::Forks::read(conn, session.pk)?;
        if self.removed == Some(ErasedPayloads::All)
            && !pending.contains(&self.visible_left)
            && self.visible_left > forks.shared_until()
        {
            return Ok(Some(self.visible_left));
        }
        let left = self.hidden_left.iter().rev();
        let mut left = left.filter(|(_, seq)| !pending.contains(seq));
        let is_free = |(row, seq): &&(i64, u64)| forks.needed_after(*row, *seq).is_none();
        Ok(left.find(is_free).map(|(_, seq)| *seq))
    }
}

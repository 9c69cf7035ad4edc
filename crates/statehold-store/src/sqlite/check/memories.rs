//! Memories against the log: the links of exchanges, and where each memory of a session begins.

use std::collections::BTreeMap;

use rusqlite::Connection;
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::memory::Memory;
use statehold_core::projection::{Changes, EndedExchange};
use statehold_core::record::{Event, Record};
use statehold_core::request::RequestOutcome;
use statehold_core::session::SessionState;

use super::super::log::{ExchangeLink, SessionRow, pack_exchanges};
use super::super::memory::{self, ExchangePlace};
use crate::check::{CheckReport, Problem};
use crate::port::StoreError;

/// The memories that the rows of a chain so far lead to.
#[derive(Default)]
pub(super) struct Memories {
    /// The newest row that added to each task.
    grown: BTreeMap<TaskId, i64>,
    /// The row in which each request last wrote private state.
    states: BTreeMap<RequestId, i64>,
    /// Where each exchange ended, by the record that ended it and the request.
    ended: BTreeMap<(u64, RequestId), ExchangePlace>,
}

impl Memories {
    /// Learns the next record of a chain, and compares the exchanges that its row says it ended.
    pub(super) fn learn(
        &mut self,
        (row, found): (i64, &[u8]),
        record: &Record,
        changes: &Changes,
        report: &mut CheckReport,
    ) {
        for event in &record.content.events {
            match event {
                Event::ItemsAppended { task, .. } | Event::TaskRenamed { to: task, .. } => {
                    self.grown.insert(*task, row);
                }
                Event::TaskStatePut { request, .. } => {
                    self.states.insert(*request, row);
                }
                _ => {}
            }
        }
        let ended = changes.exchanges.iter();
        let links: Vec<_> = ended
            .map(|ended| self.link(row, record.content.seq, ended))
            .collect();
        if pack_exchanges(&links) != found {
            let what = "has exchanges that the log does not call for";
            report.add(Problem::projection(format!("log row {row}"), what).at(record.content.seq));
        }
    }

    fn link(&mut self, row: i64, seq: u64, ended: &EndedExchange) -> ExchangeLink {
        // A link names its own row by 0.
        let named = |at: i64| if at == row { 0 } else { at };
        let place = |known: Memory| self.ended.get(&(known.record, known.request)).copied();
        let before = ended.before.and_then(place);
        let own = self.states.get(&ended.request).copied();
        let own = own.filter(|_| ended.outcome == RequestOutcome::Completed);
        let inherited = before
            .map(|before| before.state)
            .filter(|state| *state != 0);
        let state = own.or(inherited);
        let place = ExchangePlace {
            log: row,
            state: state.unwrap_or(0),
        };
        self.ended.insert((seq, ended.request), place);
        ExchangeLink {
            request: ended.request,
            task: ended.task,
            started_by: ended.started_by,
            grown: named(self.grown.get(&ended.task).copied().unwrap_or(0)),
            number: Memory::count(ended.before) + 1,
            prev: before.map_or(0, |before| named(before.log)),
            before: ended.before.map(|known| known.request),
            state: state.map(named),
            wrote_state: own.is_some(),
            outcome: ended.outcome,
        }
    }

    /// Compares where the memories of the session begin. What they are is compared with the fold.
    pub(super) fn compare(
        &self,
        conn: &Connection,
        session: &SessionRow,
        folded: &SessionState,
        report: &mut CheckReport,
    ) -> Result<(), StoreError> {
        let places = memory::places(conn, session.pk)?;
        for (path, known) in folded.memories.iter() {
            let called_for = self.ended.get(&(known.record, known.request));
            if places.get(path.as_str()) != called_for {
                let what = "does not begin where the log says";
                report.add(Problem::projection(format!("the memory of {path}"), what));
            }
        }
        Ok(())
    }
}

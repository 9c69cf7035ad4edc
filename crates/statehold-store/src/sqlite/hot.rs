//! Pages that the tail answers, on the thread of the caller. None sends the read to the file.

use std::sync::Arc;

use statehold_core::digest::BodyRef;
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::item::PlacedItem;
use statehold_core::memory::{AgentPath, Memory};
use statehold_core::time::Timestamp;
use statehold_core::view::View;

use super::history::{ItemPage, Placing, place_items, total_bytes};
use super::log::{LogRow, OldestRows};
use super::memory::{self, MemoryRows};
use super::tail::Hot;
use crate::commit::WrittenItems;
use crate::port::{
    ItemQuery, MemoryPage, MemoryQuery, PageLimit, StoreError, StoredItem, StoredRecord,
    record_bytes,
};

/// The payloads of a page that is answered from memory, unpacked: a thread of the caller's runtime does it.
const HOT_PAGE_BYTES_MAX: u64 = 1024 * 1024;

/// A page of the newest items from memory, and the start of the next page. None if the tail has too few rows.
pub(super) fn items(hot: &Hot, query: ItemQuery) -> Option<(Vec<StoredItem>, Option<u64>)> {
    let is_asked = |item: &PlacedItem| query.task.is_none_or(|wanted| item.task == wanted);
    let page = page(hot, query.limit, is_asked, ItemPage::is_used_up)?;
    let next = page.last_seq().filter(|_| page.is_used_up());
    Some((page.found, next))
}

/// The first page of the transcript from memory. None if the tail has too few rows.
pub(super) fn transcript(hot: &Hot, limit: PageLimit) -> Option<(Vec<StoredItem>, Option<u64>)> {
    let is_asked = |item: &PlacedItem| View::Client.shows(item);
    let page = page(hot, limit, is_asked, |page| page.has_more)?;
    let next = page.last_seq().filter(|_| page.has_more);
    Some((page.found, next))
}

fn page(
    hot: &Hot,
    limit: PageLimit,
    is_asked: impl Fn(&PlacedItem) -> bool,
    is_over: impl Fn(&ItemPage) -> bool,
) -> Option<ItemPage> {
    let mut rows = HotRows {
        hot,
        left: HOT_PAGE_BYTES_MAX,
    };
    let mut page = ItemPage::new(limit);
    for row in hot.newest_first() {
        let written = rows.written(row).ok()?;
        // The tail has no rows that a rewind took back or a fork inherited.
        let added = page.add(written, &Placing::default(), &is_asked, |first, named| {
            rows.bodies(row, first, named)
        });
        added.ok()?;
        if is_over(&page) || row.prev == 0 {
            return Some(page);
        }
    }
    None
}

/// Something is not in the tail, or too long to be unpacked here.
struct NotHot;

impl From<StoreError> for NotHot {
    fn from(_: StoreError) -> Self {
        Self
    }
}

/// A page of a memory from memory. None if the tail has too few rows.
pub(super) fn memory(hot: &Hot, query: &MemoryQuery) -> Option<MemoryPage> {
    let mut rows = HotRows {
        hot,
        left: HOT_PAGE_BYTES_MAX,
    };
    memory::page_of(&mut rows, query).ok()
}

/// The rows of a session in the tail.
struct HotRows<'a> {
    hot: &'a Hot,
    /// How many bytes may still be unpacked.
    left: u64,
}

impl HotRows<'_> {
    fn take(&mut self, bytes: u64) -> Result<(), NotHot> {
        self.left = self.left.checked_sub(bytes).ok_or(NotHot)?;
        Ok(())
    }

    fn written<'r>(&mut self, row: &'r LogRow) -> Result<&'r WrittenItems, NotHot> {
        if row.items.get().is_none() {
            self.take(row.record_bytes())?;
        }
        row.known_items().ok_or(NotHot)
    }

    fn bodies(
        &mut self,
        row: &LogRow,
        first: usize,
        named: &[BodyRef],
    ) -> Result<Vec<Option<Vec<u8>>>, NotHot> {
        self.take(total_bytes(named))?;
        self.hot.bodies(row, first, named).ok_or(NotHot)
    }
}

impl MemoryRows for HotRows<'_> {
    type Error = NotHot;

    fn newest(&self, _path: &AgentPath, memory: &Memory) -> Result<Arc<LogRow>, NotHot> {
        let mut rows = self.hot.newest_first();
        let found = rows.find(|row| row.seq == memory.record);
        found.cloned().ok_or(NotHot)
    }

    fn row(&self, id: i64) -> Result<Arc<LogRow>, NotHot> {
        self.hot.row(id).cloned().ok_or(NotHot)
    }

    fn committed_at(&mut self, row: &LogRow) -> Result<Timestamp, NotHot> {
        Ok(self.written(row)?.at)
    }

    fn items(
        &mut self,
        row: &LogRow,
        is_asked: &dyn Fn(&PlacedItem) -> bool,
    ) -> Result<Vec<StoredItem>, NotHot> {
        let written = self.written(row)?;
        place_items(written, &Placing::default(), is_asked, |first, named| {
            self.bodies(row, first, named)
        })
    }

    fn task(&self, task: TaskId) -> TaskId {
        task
    }

    fn state_by(&mut self, task: TaskId, by: RequestId) -> Result<Option<Vec<u8>>, NotHot> {
        for row in self.hot.newest_first() {
            if !row.is_own() {
                break;
            }
            match row.wrote_state(task) {
                Some(request) if request == by => return self.state_in(row.id),
                Some(_) => return Ok(None),
                None if row.has_started(by) => return Ok(None),
                None => {}
            }
        }
        Err(NotHot)
    }

    fn state_in(&mut self, row: i64) -> Result<Option<Vec<u8>>, NotHot> {
        let row = self.hot.row(row).ok_or(NotHot)?;
        self.take(row.record_bytes())?;
        let record = row.record()?;
        let (place, name) = memory::private_state(row, &record)?;
        self.take(u64::from(name.bytes))?;
        let bodies = self.hot.bodies(row, place, &[name]).ok_or(NotHot)?;
        Ok(bodies.into_iter().next().flatten())
    }
}

/// A page of the records after a revision from memory, verified against each other. None if the tail has too
/// few rows, or not the hash of the newest.
pub(super) fn records(hot: &Hot, after: u64, limit: PageLimit) -> Option<Vec<StoredRecord>> {
    let last = after.saturating_add(limit.entries as u64);
    let oldest = hot.newest_first().last()?;
    if oldest.seq > after.saturating_add(1) {
        return None;
    }
    let mut expected = None;
    let mut left = HOT_PAGE_BYTES_MAX;
    let mut page = OldestRows::new(limit.bytes);
    for row in hot.newest_first() {
        if row.seq <= after {
            break;
        }
        if row.seq > last.saturating_add(1) {
            continue;
        }
        left = left.checked_sub(row.record_bytes())?;
        let record = row.record().ok()?;
        if row.own_hash().or(expected)? != record.hash {
            return None;
        }
        expected = Some(record.content.prev_hash);
        if row.seq <= last {
            let bytes = record_bytes(&record);
            page.push((row, record), bytes);
        }
    }
    let rows = page.finish().ok()?.into_iter();
    let stored = rows.map(|(row, record)| {
        let named = record.bodies();
        left = left.checked_sub(total_bytes(&named))?;
        let bodies = hot.bodies(row, 0, &named)?;
        Some(StoredRecord { record, bodies })
    });
    stored.collect()
}

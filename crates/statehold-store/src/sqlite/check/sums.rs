//! Rows that no log can make again, against their checksums.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use super::super::sql::corrupt_or_unavailable;
use super::super::sums::{SUM_BYTES, row_sum};
use crate::check::{CheckReport, Problem};
use crate::port::StoreError;

/// A table whose rows have checksums, and the columns that they cover.
struct SummedTable {
    name: &'static str,
    columns: &'static [&'static str],
    /// A column with a checksum of its own, behind that of the others. It is erased alone.
    erasable: Option<&'static str>,
}

const TABLES: [SummedTable; 5] = [
    SummedTable {
        name: "meta",
        columns: &["key", "value"],
        erasable: None,
    },
    SummedTable {
        name: "user",
        columns: &["id", "tenant", "lookup", "name"],
        erasable: None,
    },
    SummedTable {
        name: "api_key",
        columns: &["id", "tenant", "secret", "body"],
        erasable: None,
    },
    SummedTable {
        name: "resume_address",
        columns: &["tenant", "agent", "body"],
        erasable: None,
    },
    SummedTable {
        name: "answer",
        columns: &["key", "fingerprint", "session", "revision", "expires_at"],
        erasable: Some("body"),
    },
];

/// Names every row that is not what its checksum says.
pub(super) fn check(conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
    for table in TABLES {
        table.check(conn, report)?;
    }
    Ok(())
}

impl SummedTable {
    fn check(&self, conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
        let columns = self.columns.iter().chain(&self.erasable);
        let columns = columns.copied().collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT rowid, sum, {columns} FROM {}", self.name);
        let failed = corrupt_or_unavailable(self.name);
        let mut statement = conn.prepare(&sql).map_err(&failed)?;
        let mut rows = statement.query([]).map_err(&failed)?;
        while let Some(row) = rows.next().map_err(&failed)? {
            if !self.is_sound(row).map_err(&failed)? {
                let id: i64 = row.get(0).map_err(&failed)?;
                let place = format!("row {id} of the table `{}`", self.name);
                report.add(Problem::projection(place, "is not what its checksum says"));
            }
        }
        Ok(())
    }

    fn is_sound(&self, row: &Row<'_>) -> rusqlite::Result<bool> {
        let ValueRef::Blob(sum) = row.get_ref(1)? else {
            return Ok(false);
        };
        let (first, count) = (2, self.columns.len());
        let columns = (first..first + count).map(|at| row.get_ref(at));
        let columns: Vec<_> = columns.collect::<rusqlite::Result<_>>()?;
        let Some((own, rest)) = sum.split_at_checked(SUM_BYTES) else {
            return Ok(false);
        };
        let is_erased_soundly = match self.erasable {
            None => rest.is_empty(),
            Some(_) => match row.get_ref(first + count)? {
                ValueRef::Blob([]) => rest.len() == SUM_BYTES,
                value => rest == row_sum(&[value]),
            },
        };
        Ok(is_erased_soundly && own == row_sum(&columns))
    }
}

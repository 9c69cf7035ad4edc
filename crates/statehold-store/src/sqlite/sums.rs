//! Checksums of rows that no log can make again: `meta`, `user`, `api_key`, `resume_address` and `answer`.
//!
//! They find damage, not tampering: a checksum has no key.

use rusqlite::types::ValueRef;
use statehold_core::digest::Digest;

use crate::commit::Answer;

/// The length of a checksum.
pub(super) const SUM_BYTES: usize = 8;

/// The checksum of columns, in order. The same bytes in another column or of another type have another one.
pub(super) fn row_sum(columns: &[ValueRef<'_>]) -> Vec<u8> {
    let mut text = Vec::new();
    for column in columns {
        let number;
        let (kind, bytes) = match column {
            ValueRef::Null => (b'n', [].as_slice()),
            ValueRef::Integer(value) => {
                number = value.to_be_bytes();
                (b'i', number.as_slice())
            }
            ValueRef::Real(value) => {
                number = value.to_be_bytes();
                (b'r', number.as_slice())
            }
            ValueRef::Text(bytes) => (b't', *bytes),
            ValueRef::Blob(bytes) => (b'b', *bytes),
        };
        text.push(kind);
        text.extend((bytes.len() as u64).to_be_bytes());
        text.extend(bytes);
    }
    Digest::sha256(&text).as_bytes()[..SUM_BYTES].to_vec()
}

/// The checksum of a kept answer. Its body has one of its own behind it, because the body is erased alone.
pub(super) fn answer_sum(answer: &Answer) -> Vec<u8> {
    let row = row_sum(&[
        ValueRef::Blob(answer.key.as_bytes()),
        ValueRef::Blob(answer.fingerprint.as_bytes()),
        ValueRef::Blob(answer.session.as_uuid().as_bytes()),
        ValueRef::Integer(super::sql::to_sql(answer.revision)),
        ValueRef::Integer(answer.expires_at.as_micros()),
    ]);
    [row, row_sum(&[ValueRef::Blob(&answer.body)])].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_in_other_columns_or_of_another_type_have_another_checksum() {
        let (a, b) = (ValueRef::Text(b"a"), ValueRef::Text(b"b"));
        let sums = [
            row_sum(&[a, b]),
            row_sum(&[b, a]),
            row_sum(&[ValueRef::Text(b"ab")]),
            row_sum(&[ValueRef::Blob(b"a"), b]),
            row_sum(&[a, b, ValueRef::Null]),
            row_sum(&[ValueRef::Integer(1)]),
            row_sum(&[ValueRef::Real(1.0)]),
        ];
        let distinct: std::collections::BTreeSet<_> = sums.iter().collect();
        assert_eq!(distinct.len(), sums.len());
    }
}

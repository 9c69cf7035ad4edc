//! Small things that every SQL function here needs.

use rusqlite::ErrorCode;
use statehold_core::digest::Digest;
use uuid::Uuid;

use crate::port::StoreError;

/// Maps a SQLite error to a store error.
pub(super) fn corrupt_or_unavailable(place: &str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |error| {
        // A value of an unexpected type means damage or tampering.
        let is_odd_value = matches!(
            error,
            rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::QueryReturnedNoRows
                | rusqlite::Error::Utf8Error(..)
        );
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => damaged(place, error),
            _ if is_odd_value => damaged(place, error),
            _ => StoreError::Unavailable(Box::new(error)),
        }
    }
}

/// Damage that we found ourselves.
pub(super) fn damaged(
    place: impl Into<String>,
    source: impl Into<crate::port::BoxError>,
) -> StoreError {
    StoreError::Corrupt {
        session: None,
        place: place.into(),
        source: source.into(),
    }
}

/// Numbers in the file are signed; ours are not, and stay far below the sign.
pub(super) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The other way round. A negative number is damage and shows up as a conflict or a missing row.
pub(super) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The bytes of an id.
pub(super) fn id_bytes(id: &Uuid) -> &[u8] {
    id.as_bytes()
}

/// A digest from its bytes.
pub(super) fn digest(bytes: &[u8]) -> Option<Digest> {
    <[u8; 32]>::try_from(bytes).ok().map(Digest::from_bytes)
}

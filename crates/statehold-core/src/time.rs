//! Points in time, in microseconds. The core never reads a clock: callers pass the time in.

use serde::{Deserialize, Serialize};

/// Microseconds since 1970-01-01 UTC. Stays below 2^53 until the year 2255, so JSON keeps it exact.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This time plus a number of milliseconds, at most the last representable time.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        let micros = ms.saturating_mul(1000);
        let micros = if micros > i64::MAX as u64 {
            i64::MAX
        } else {
            micros.cast_signed()
        };
        Self(self.0.saturating_add(micros))
    }
}

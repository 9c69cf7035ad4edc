//! How long operations took, counted in buckets, for operators.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in seconds. One more bucket takes what is longer.
pub const BUCKET_SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

/// Counts durations. Threads may observe at the same time; none waits.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; BUCKET_SECONDS.len() + 1],
    micros: AtomicU64,
}

impl Durations {
    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKET_SECONDS.iter().position(|bound| seconds <= *bound);
        let bucket = bucket.unwrap_or(BUCKET_SECONDS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn counts(&self) -> DurationCounts {
        DurationCounts {
            buckets: std::array::from_fn(|n| self.buckets[n].load(Ordering::Relaxed)),
            total: Duration::from_micros(self.micros.load(Ordering::Relaxed)),
        }
    }
}

/// Durations by bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurationCounts {
    /// How many were in each bucket alone; the last one is for all that are longer than every bound.
    pub buckets: [u64; BUCKET_SECONDS.len() + 1],
    /// Their sum.
    pub total: Duration,
}

impl DurationCounts {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// These and others together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            buckets: std::array::from_fn(|n| self.buckets[n] + other.buckets[n]),
            total: self.total + other.total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_that_holds_it() {
        let durations = Durations::default();
        for micros in [0, 500, 501, 59_999_999, 61_000_000] {
            durations.observe(Duration::from_micros(micros));
        }
        let counts = durations.counts();
        assert_eq!(counts.count(), 5);
        assert_eq!(counts.buckets[..2], [2, 1]);
        assert_eq!(counts.buckets[13..], [1, 1]);
        assert_eq!(counts.total, Duration::from_millis(121_001));
        assert_eq!(counts.plus(&counts).count(), 10);
    }
}

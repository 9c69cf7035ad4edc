//! Formats times for people.

use jiff::Timestamp;

/// How to print times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeStyle {
    /// Time elapsed, or time left.
    Relative,
    /// Date and time in UTC.
    Utc,
    /// RFC 3339, as the server sent it.
    Iso,
}

/// A style, and the current time.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeFormat {
    pub(super) style: TimeStyle,
    pub(super) now: Timestamp,
}

impl TimeFormat {
    /// The same style at the current time, for programs that run long.
    pub(super) fn at_present(self) -> Self {
        Self {
            now: Timestamp::now(),
            ..self
        }
    }

    /// Formats a time from the server. Text that is not a time stays unchanged.
    pub(super) fn show(&self, text: &str) -> String {
        let Ok(time) = text.parse::<Timestamp>() else {
            return text.to_owned();
        };
        match self.style {
            TimeStyle::Iso => text.to_owned(),
            TimeStyle::Utc => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            TimeStyle::Relative => self.relative(time),
        }
    }

    /// When an event happened, as the end of a sentence.
    pub(super) fn ago(&self, text: &str) -> String {
        match (self.style, text.parse::<Timestamp>()) {
            (TimeStyle::Relative, Ok(time)) if time <= self.now => {
                format!("{} ago", self.relative(time))
            }
            // Clocks differ: an event of this moment on the server may lie in the local future.
            (TimeStyle::Relative, Ok(_)) => "just now".to_owned(),
            _ => format!("at {}", self.show(text)),
        }
    }

    /// Since when a status holds, as the end of a sentence.
    pub(super) fn since(&self, text: &str) -> String {
        match self.style {
            TimeStyle::Relative => self.show(text),
            TimeStyle::Utc | TimeStyle::Iso => format!("since {}", self.show(text)),
        }
    }

    /// Seconds left until a time; negative if it has passed.
    pub(super) fn seconds_until(&self, text: &str) -> Option<i64> {
        let time: Timestamp = text.parse().ok()?;
        Some(time.as_second() - self.now.as_second())
    }

    fn relative(&self, time: Timestamp) -> String {
        let seconds = self.now.as_second() - time.as_second();
        let amount = match seconds.unsigned_abs() {
            seconds @ 0..8_640_000 => amount(seconds),
            _ => return time.strftime("%Y-%m-%d").to_string(),
        };
        if seconds < 0 {
            format!("in {amount}")
        } else {
            amount
        }
    }
}

/// An amount of time in its largest unit: `26 s`, `4 min`, `2 h`, `5 d`.
fn amount(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// How long something took: `340 ms`, `1.2 s`, `26 s`, `4 min`.
pub(super) fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => amount(ms / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(style: TimeStyle, text: &str, shown: &str) {
        let now = "2026-08-06T12:00:00Z".parse().expect("a time");
        assert_eq!(TimeFormat { style, now }.show(text), shown);
    }

    #[test]
    fn a_time_is_shown_relative_to_now_or_exactly() {
        let time = "2026-08-06T11:57:30.123456Z";
        check(TimeStyle::Relative, time, "2 min");
        check(TimeStyle::Utc, time, "2026-08-06 11:57:30");
        check(TimeStyle::Iso, time, time);
    }

    #[test]
    fn a_sentence_says_ago_or_the_exact_time() {
        let now = "2026-08-06T12:00:00Z".parse().expect("a time");
        let relative = TimeFormat {
            style: TimeStyle::Relative,
            now,
        };
        let exact = TimeFormat {
            style: TimeStyle::Iso,
            now,
        };
        assert_eq!(relative.ago("2026-08-06T11:59:46Z"), "14 s ago");
        assert_eq!(relative.ago("2026-08-06T12:00:01Z"), "just now");
        assert_eq!(exact.ago("2026-08-06T11:59:46Z"), "at 2026-08-06T11:59:46Z");
        assert_eq!(relative.since("2026-08-06T11:58:00Z"), "2 min");
        assert_eq!(
            exact.since("2026-08-06T11:58:00Z"),
            "since 2026-08-06T11:58:00Z"
        );
        assert_eq!(relative.seconds_until("2026-08-06T12:00:30Z"), Some(30));
    }

    #[test]
    fn a_duration_has_one_unit() {
        for (ms, shown) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_260, "1.2 s"),
            (26_000, "26 s"),
            (240_000, "4 min"),
            (7_200_000, "2 h"),
        ] {
            assert_eq!(duration(ms), shown);
        }
    }

    #[test]
    fn the_unit_grows_with_the_distance() {
        for (text, shown) in [
            ("2026-08-06T12:00:00Z", "0 s"),
            ("2026-08-06T12:00:41Z", "in 41 s"),
            ("2026-08-06T12:57:00Z", "in 57 min"),
            ("2026-08-06T07:00:00Z", "5 h"),
            ("2026-08-01T12:00:00Z", "5 d"),
            ("2025-01-01T12:00:00Z", "2025-01-01"),
            ("yesterday", "yesterday"),
        ] {
            check(TimeStyle::Relative, text, shown);
        }
    }
}

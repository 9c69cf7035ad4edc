//! Numbers about this process, from `/proc`. What is not there is left out.

use std::fs;

/// Clock ticks of `/proc` per second. Fixed on Linux: it is not the tick of the kernel.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Default)]
pub(super) struct ProcessNumbers {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) files_max: Option<u64>,
    pub(super) threads: Option<u64>,
    /// In seconds since 1970.
    pub(super) started_at: Option<f64>,
}

impl ProcessNumbers {
    pub(super) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd").ok();
        // Behind the name of the program, which may contain anything.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let seconds = |field: usize| {
            let ticks: f64 = fields.get(field)?.parse().ok()?;
            Some(ticks / TICKS_PER_SECOND)
        };
        let kib = |key: &str| {
            let kib: u64 = value_of(&status, key)?.parse().ok()?;
            kib.checked_mul(1024)
        };
        let booted_at = value_of(&machine, "btime").and_then(|text| text.parse::<f64>().ok());
        Self {
            cpu_seconds: seconds(11)
                .zip(seconds(12))
                .map(|(user, system)| user + system),
            resident_bytes: kib("VmRSS:"),
            virtual_bytes: kib("VmSize:"),
            // Without the one that this reads with.
            open_files: files.map(|files| (files.count() as u64).saturating_sub(1)),
            files_max: value_of(&limits, "Max open files").and_then(|text| text.parse().ok()),
            threads: value_of(&status, "Threads:").and_then(|text| text.parse().ok()),
            started_at: booted_at
                .zip(seconds(19))
                .map(|(booted, after)| booted + after),
        }
    }
}

/// The first word behind a key at the beginning of a line.
fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_own_numbers() {
        let numbers = ProcessNumbers::read();
        let sizes = numbers.resident_bytes.zip(numbers.virtual_bytes);
        let (resident, all) = sizes.expect("sizes");
        assert!(resident > 1 << 20 && resident < all, "{numbers:?}");
        let (open, max) = numbers.open_files.zip(numbers.files_max).expect("files");
        assert!(open > 2 && open < max, "{numbers:?}");
        assert!(numbers.cpu_seconds.is_some(), "{numbers:?}");
        assert!(numbers.threads > Some(0), "{numbers:?}");
        assert!(numbers.started_at > Some(1.5e9), "{numbers:?}");
    }
}

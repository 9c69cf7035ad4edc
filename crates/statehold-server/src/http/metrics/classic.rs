//! The classic text format of Prometheus, made from `OpenMetrics` text of our own.

use std::fmt::Write as _;

/// Rewrites what differs: the metadata of counters and infos names their samples, units are left out, and there is no
/// mark at the end.
pub(super) fn of_open_metrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = Some(rest);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (family, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            let help = help.take().and_then(|help: &str| help.split_once(' '));
            let help = help.map_or("", |(_, help)| help);
            writeln!(out, "# HELP {family}{suffix} {help}").expect("writing to a string works");
            writeln!(out, "# TYPE {family}{suffix} {kind}").expect("writing to a string works");
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_names_the_samples() {
        let text = "# HELP a_calls Calls.\n# TYPE a_calls counter\na_calls_total{x=\"1\"} 2\n\
                    # HELP a_build Version.\n# TYPE a_build info\na_build_info{version=\"1\"} 1\n\
                    # HELP a_open Open.\n# TYPE a_open gauge\n# UNIT a_open bytes\na_open 3\n# EOF\n";
        let expected = "# HELP a_calls_total Calls.\n# TYPE a_calls_total counter\n\
                        a_calls_total{x=\"1\"} 2\n\
                        # HELP a_build_info Version.\n# TYPE a_build_info gauge\n\
                        a_build_info{version=\"1\"} 1\n\
                        # HELP a_open Open.\n# TYPE a_open gauge\na_open 3\n";
        assert_eq!(of_open_metrics(text), expected);
    }
}

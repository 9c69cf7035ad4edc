//! The log of a server: its lines on standard error, and the levels that it has.

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};
use crate::exit::Failure;

pub(super) fn start_log(log: &LogConfig) -> anyhow::Result<()> {
    let filter = log_filter(log)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // After the terminal is closed there is nowhere to report log errors.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let started = match log.format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("the log cannot be started: {error}"))
}

/// Requires that every directive names a level. A bare word that is none would be taken for the
/// name of a module, whose messages are then the only ones in the log.
fn require_levels(directives: &str) -> Result<(), Failure> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let mut words = directives.split(',').map(str::trim);
    let wrong = words.find(|word| !is_level(word) && !word.contains(['=', '[']));
    let Some(wrong) = wrong else {
        return Ok(());
    };
    let distance = |level: &&&str| strsim::damerau_levenshtein(&wrong.to_lowercase(), level);
    let near = LEVELS.iter().min_by_key(distance);
    let near = near.filter(|level| distance(level) <= 2);
    let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    let message = format!("`log.level` has {wrong:?}, which is not a level");
    Err(Failure::usage(message).hint(format!(
        "{near}use error, warn, info, debug or trace; a module gets its own with: info,MODULE=debug"
    )))
}

/// The log filter.
pub(in crate::cli) fn log_filter(log: &LogConfig) -> anyhow::Result<EnvFilter> {
    let mut level = log.level.clone();
    if !level.contains("rmcp") {
        // rmcp logs text of tool servers at every connection.
        level.push_str(",rmcp=off");
    }
    require_levels(&log.level)?;
    EnvFilter::try_new(level).with_context(|| {
        let message = format!(
            "`log.level` is {:?}, which is not a level or filter",
            log.level
        );
        Failure::usage(message).hint("use error, warn, info, debug or trace")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused_and_does_not_silence_the_log() {
        let filter = |level: &str| {
            log_filter(&LogConfig {
                level: level.to_owned(),
                ..LogConfig::default()
            })
        };
        for level in [
            "warn",
            "INFO",
            "off",
            "info,statehold_engine=debug",
            "[span]=info",
        ] {
            assert!(filter(level).is_ok(), "{level}");
        }
        for (level, near) in [
            ("wran", Some("`warn`")),
            ("info,deubg", Some("`debug`")),
            ("statehold", None),
            ("", None),
            ("info=loud", None),
        ] {
            let error = filter(level).expect_err(level);
            let hint = error.downcast_ref::<Failure>().expect("a failure");
            let hint = hint.hint.clone().unwrap_or_default();
            assert!(
                hint.contains(near.unwrap_or("use error, warn")),
                "{level}: {hint}"
            );
        }
    }
}

//! The flags of every command.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anstream::ColorChoice;
use clap::{Args, ValueEnum};

use super::hints::quoted;
use super::output::{CliOutput, terminal_columns};
use super::printable::cell;
use super::times::{TimeFormat, TimeStyle};
use crate::client::{Client, ServerAddress};
use crate::config::secret;
use crate::exit::Failure;

/// The server to call if the user names none.
pub(super) const DEFAULT_URL: &str = "http://127.0.0.1:7717";

/// The timeout of one call if the user sets none.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

const URL_HELP: &str = "The server to call [env: STATEHOLD_URL] [default: http://127.0.0.1:7717]";
const TOKEN_HELP: &str =
    "The API key [env: STATEHOLD_TOKEN]; other users of this machine can see this flag";
const TOKEN_FILE_HELP: &str =
    "A file with the API key, closed to others [env: STATEHOLD_TOKEN_FILE]";
const COLOR_HELP: &str = "When to use colour [env: NO_COLOR, CLICOLOR_FORCE]";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct GlobalArgs {
    #[arg(long, global = true, value_name = "URL", help = URL_HELP)]
    pub(super) url: Option<String>,
    #[arg(long, global = true, value_name = "TOKEN", help = TOKEN_HELP)]
    pub(super) token: Option<String>,
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "token", help = TOKEN_FILE_HELP)]
    pub(super) token_file: Option<PathBuf>,
    /// Print one JSON document; errors are JSON too.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print results and errors only.
    #[arg(short, long, global = true)]
    quiet: bool,
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help = COLOR_HELP)]
    color: ColorMode,
    /// Print times as RFC 3339.
    #[arg(long, global = true, conflicts_with = "utc")]
    iso: bool,
    /// Print times as date and time in UTC.
    #[arg(long, global = true)]
    utc: bool,
    /// Print tables without the header line.
    #[arg(long, global = true)]
    no_headers: bool,
    /// How long to wait for an answer, for example 500ms or 2m [default: 30s]
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_duration)]
    pub(super) timeout: Option<Duration>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ColorMode {
    Auto,
    Always,
    Never,
}

impl GlobalArgs {
    /// How to print results. Also sets the colour mode of the whole process.
    pub(super) fn output(&self) -> CliOutput {
        match self.color {
            ColorMode::Auto => ColorChoice::Auto,
            ColorMode::Always => ColorChoice::Always,
            ColorMode::Never => ColorChoice::Never,
        }
        .write_global();
        let is_terminal = std::io::stdout().is_terminal();
        let style = if self.utc {
            TimeStyle::Utc
        } else if self.iso || !is_terminal {
            // Relative times such as "2 min" lose their meaning in a file.
            TimeStyle::Iso
        } else {
            TimeStyle::Relative
        };
        CliOutput {
            is_terminal,
            json: self.json,
            quiet: self.quiet,
            headers: !self.no_headers,
            times: TimeFormat {
                style,
                now: jiff::Timestamp::now(),
            },
            columns: terminal_columns(),
        }
    }

    /// The server named by the flag or the environment.
    pub(super) fn named_url(&self) -> Option<String> {
        self.url.clone().or_else(|| variable("STATEHOLD_URL"))
    }

    /// The options of the command line that name the server and the key, as hints repeat them, each with a space
    /// behind it. A key is never repeated.
    pub(super) fn server_options(&self) -> String {
        let file = self.token_file.as_ref().map(|file| file.to_string_lossy());
        let named = [
            ("--url", self.url.as_deref()),
            ("--token-file", file.as_deref()),
        ];
        let mut options = String::new();
        for (name, value) in named {
            if let Some(value) = value {
                let option = format!("{name} {} ", quoted(&cell(value)));
                options.push_str(&option);
            }
        }
        options
    }

    pub(super) fn token(&self, output: &CliOutput) -> anyhow::Result<Option<String>> {
        if let Some(token) = &self.token {
            output.note("warning: others on this machine can see --token; use STATEHOLD_TOKEN or --token-file");
            return Ok(Some(token.clone()));
        }
        if self.token_file.is_some() {
            return secret("token", None, self.token_file.as_deref());
        }
        let file = variable("STATEHOLD_TOKEN_FILE").map(PathBuf::from);
        secret(
            "STATEHOLD_TOKEN",
            variable("STATEHOLD_TOKEN"),
            file.as_deref(),
        )
    }

    /// A client of the server named by the user, or of the default server.
    pub(super) fn client(&self, output: &CliOutput) -> anyhow::Result<Client> {
        let url = self.named_url();
        self.client_of(url.as_deref().unwrap_or(DEFAULT_URL), output)
    }

    /// A client of this server, with the same key and timeout.
    pub(super) fn client_of(&self, url: &str, output: &CliOutput) -> anyhow::Result<Client> {
        let address: ServerAddress = url.parse()?;
        let token = self.token(output)?;
        let timeout = self.timeout.unwrap_or(DEFAULT_TIMEOUT);
        Ok(Client::new(address, token.as_deref(), timeout)?)
    }
}

/// An environment variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Parses `30s`, `500ms`, `2m`, `1h`, `7d`, or plain seconds.
pub(super) fn parse_duration(text: &str) -> Result<Duration, Failure> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (count, unit) = text.split_at(digits.unwrap_or(text.len()));
    let ms = match unit {
        "ms" => Some(1),
        "" | "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    };
    let count: Option<u64> = count.parse().ok();
    let whole = ms.zip(count).and_then(|(ms, count)| count.checked_mul(ms));
    match whole {
        Some(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err(Failure::usage("a time looks like 30s, 500ms, 2m, 1h or 7d")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        for (text, ms) in [
            ("30s", 30_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
            ("5", 5_000),
        ] {
            assert_eq!(
                parse_duration(text).expect("a time"),
                Duration::from_millis(ms)
            );
        }
        for text in ["", "s", "0s", "-1s", "1.5s", "1 s", "99999999999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}

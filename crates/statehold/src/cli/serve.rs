//! `statehold serve` and `statehold dev`: flags and configuration of a server.
//!
//! This module merges the flags into the configuration; the result is a [`ServePlan`]. Problems of
//! the machine (a port in use, missing keys for an address beyond loopback) appear when the plan
//! runs.

#[cfg(debug_assertions)]
mod die_at;
mod log;
mod reload;
mod run;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

pub(super) use log::log_filter;
pub(super) use run::push_guard;
pub(crate) use run::run;

use super::CONFIG_HELP;
use crate::config::{Config, ConfigEnvironment, ConfigLayers, SourcedValue, layers};
use crate::exit::Failure;

/// The memory of `dev` for the newest records of sessions.
const DEV_TAIL_BYTES_MAX: i64 = 16 * 1024 * 1024;

/// The source shown for the defaults of `dev`.
const DEV: &str = "statehold dev";

/// Start a server for real use.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
    /// The address and port to listen on.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// Start a local server for development: loopback only, no key needed.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct DevArgs {
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
    /// The port on loopback; 0 takes any that is free.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep data in memory only: it is lost when the server stops.
    #[arg(long, conflicts_with_all = ["data", "reset"])]
    memory: bool,
    /// Do not open a browser.
    #[arg(long)]
    no_open: bool,
    /// Start without demo agents and demo sessions.
    #[arg(long)]
    no_demo: bool,
    /// Delete the data in the data directory first.
    #[arg(long)]
    reset: bool,
    /// Let callers move the server's clock with POST /v1/dev/clock, to test timeouts and expiry.
    #[arg(long)]
    clock_control: bool,
    /// Start with the clock this many seconds ahead, or behind if negative.
    #[arg(
        long,
        value_name = "N",
        requires = "clock_control",
        allow_negative_numbers = true
    )]
    clock_offset_seconds: Option<i64>,
}

/// Everything needed to start a server.
#[derive(Debug, PartialEq)]
pub(crate) struct ServePlan {
    pub(crate) config: Config,
    /// Each value and its source, for the start-up log.
    pub(crate) explained: Vec<SourcedValue>,
    pub(crate) storage: PlannedStorage,
    /// Whether to open a browser.
    pub(crate) opens_console: bool,
    /// Whether the demo agents run in this process.
    pub(crate) has_demo: bool,
    /// How far ahead the clock starts, if callers may move it.
    pub(crate) clock_offset_seconds: Option<i64>,
}

/// The storage of a planned server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PlannedStorage {
    /// In the directory `config.store.data`, emptied first if `reset` is set.
    Disk { reset: bool },
    /// In memory.
    Memory,
}

impl ServePlan {
    /// Whether other machines could connect: then the server must require keys.
    pub(crate) fn listens_beyond_loopback(&self) -> bool {
        !self.config.server.listen.ip().is_loopback()
    }
}

impl ServeArgs {
    /// Merges the flags into the configuration.
    ///
    /// # Errors
    ///
    /// If the configuration has an unknown key or an invalid value.
    pub(crate) fn plan(&self, environment: &ConfigEnvironment) -> anyhow::Result<ServePlan> {
        let mut layers = layers(environment, self.config.as_deref())?;
        let listen = self.listen.map(|listen| listen.to_string());
        layers.set_flag("server.listen", "--listen", listen)?;
        set_data(&mut layers, self.data.as_ref())?;
        let (config, explained) = layers.finish()?;
        Ok(ServePlan {
            config,
            explained,
            storage: PlannedStorage::Disk { reset: false },
            opens_console: false,
            has_demo: false,
            clock_offset_seconds: None,
        })
    }
}

impl DevArgs {
    /// Merges the flags into the configuration. A development server is for this machine: it
    /// requires no key unless configured to, and listens on loopback only.
    ///
    /// # Errors
    ///
    /// If the configuration has an unknown key or an invalid value, or an address beyond loopback.
    pub(crate) fn plan(&self, environment: &ConfigEnvironment) -> anyhow::Result<ServePlan> {
        let mut layers = layers(environment, self.config.as_deref())?;
        layers.set_if_default("auth.required", false, DEV)?;
        layers.set_if_default("store.tail_bytes_max", DEV_TAIL_BYTES_MAX, DEV)?;
        let listen = self
            .port
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string());
        layers.set_flag("server.listen", "--port", listen)?;
        set_data(&mut layers, self.data.as_ref())?;
        let (config, explained) = layers.finish()?;
        let plan = ServePlan {
            config,
            explained,
            storage: if self.memory {
                PlannedStorage::Memory
            } else {
                PlannedStorage::Disk { reset: self.reset }
            },
            opens_console: !self.no_open,
            has_demo: !self.no_demo,
            clock_offset_seconds: self
                .clock_control
                .then(|| self.clock_offset_seconds.unwrap_or(0)),
        };
        if plan.listens_beyond_loopback() {
            let listen = plan.config.server.listen;
            let message = format!("a development server listens on loopback only, not on {listen}");
            return Err(Failure::usage(message)
                .hint("start a server for others with: statehold serve")
                .into());
        }
        Ok(plan)
    }
}

fn set_data(layers: &mut ConfigLayers, data: Option<&PathBuf>) -> anyhow::Result<()> {
    let text = data
        .map(|data| {
            let text = data.to_str();
            text.ok_or_else(|| Failure::usage("the name of the data directory is not UTF-8"))
        })
        .transpose()?;
    layers.set_flag("store.data", "--data", text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::config::ValueSource;

    #[derive(Debug, Parser)]
    enum TestProgram {
        Serve(ServeArgs),
        Dev(DevArgs),
    }

    fn plan(args: &[&str], variables: &[(&str, &str)]) -> anyhow::Result<ServePlan> {
        let directory = tempfile::tempdir()?;
        let environment = ConfigEnvironment {
            directory: directory.path().to_owned(),
            variables: variables
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
        };
        match TestProgram::try_parse_from([&["statehold"], args].concat())? {
            TestProgram::Serve(serve) => serve.plan(&environment),
            TestProgram::Dev(dev) => dev.plan(&environment),
        }
    }

    #[test]
    fn serve_without_flags_is_the_configuration() {
        let plan = plan(&["serve"], &[]).expect("a plan");
        assert_eq!(plan.config, Config::default());
        assert_eq!(plan.storage, PlannedStorage::Disk { reset: false });
        assert!(!plan.opens_console && !plan.has_demo);
        assert!(!plan.listens_beyond_loopback());
    }

    #[test]
    fn flags_go_over_the_environment() {
        let variables = [
            ("STATEHOLD__SERVER__LISTEN", "127.0.0.1:1"),
            ("STATEHOLD__STORE__DATA", "/a"),
            ("STATEHOLD__STORE__READERS", "3"),
        ];
        let args = ["serve", "--listen", "0.0.0.0:80", "--data", "/b"];
        let plan = plan(&args, &variables).expect("a plan");
        assert_eq!(plan.config.server.listen.to_string(), "0.0.0.0:80");
        assert_eq!(plan.config.store.data, Path::new("/b"));
        assert_eq!(plan.config.store.readers.get(), 3);
        assert!(plan.listens_beyond_loopback());
        let source = plan
            .explained
            .iter()
            .find(|value| value.key == "store.data");
        assert_eq!(
            source.map(|value| &value.source),
            Some(&ValueSource::Flag("--data"))
        );
    }

    #[test]
    fn the_file_that_is_named_is_read_and_flags_lie_over_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("my.toml");
        std::fs::write(&file, "[server]\nlisten = \"127.0.0.1:9\"\n").expect("a file");
        let file = file.to_str().expect("a plain path");
        let port = |args: &[&str]| {
            let plan = plan(args, &[]).expect("a plan");
            plan.config.server.listen.port()
        };
        assert_eq!(port(&["serve", "--config", file]), 9);
        let flag = ["serve", "--config", file, "--listen", "127.0.0.1:10"];
        assert_eq!(port(&flag), 10);
        assert_eq!(port(&["dev", "--config", file]), 9);
        assert_eq!(port(&["dev", "--config", file, "--port", "10"]), 10);
    }

    #[test]
    fn dev_asks_for_no_key_unless_it_is_told_to() {
        let required = |variables: &[(&str, &str)]| {
            let plan = plan(&["dev"], variables).expect("a plan");
            plan.config.auth.required
        };
        assert!(!required(&[]));
        assert!(required(&[("STATEHOLD__AUTH__REQUIRED", "true")]));
    }

    #[test]
    fn dev_keeps_less_of_its_sessions_in_memory_unless_it_is_told_to() {
        let kept = |args: &[&str], variables: &[(&str, &str)]| {
            let plan = plan(args, variables).expect("a plan");
            plan.config.store.tail_bytes_max
        };
        assert_eq!(kept(&["serve"], &[]), 64 << 20);
        assert_eq!(kept(&["dev"], &[]), 16 << 20);
        let none = [("STATEHOLD__STORE__TAIL_BYTES_MAX", "0")];
        assert_eq!(kept(&["dev"], &none), 0);
    }

    #[test]
    fn dev_listens_on_loopback_only() {
        let any = plan(&["dev", "--port", "0"], &[]).expect("a plan");
        assert_eq!(any.config.server.listen.to_string(), "127.0.0.1:0");
        let beyond = [("STATEHOLD__SERVER__LISTEN", "0.0.0.0:7717")];
        let refused = plan(&["dev"], &beyond).expect_err("beyond loopback");
        assert!(refused.to_string().contains("0.0.0.0:7717"));
    }

    #[test]
    fn dev_keeps_data_opens_a_browser_and_plays_the_demo_unless_told_otherwise() {
        let kept = plan(&["dev"], &[]).expect("a plan");
        assert_eq!(kept.storage, PlannedStorage::Disk { reset: false });
        assert!(kept.opens_console && kept.has_demo);
        let reset = plan(&["dev", "--reset", "--no-open", "--no-demo"], &[]).expect("a plan");
        assert_eq!(reset.storage, PlannedStorage::Disk { reset: true });
        assert!(!reset.opens_console && !reset.has_demo);
        let memory = plan(&["dev", "--memory"], &[]).expect("a plan");
        assert_eq!(memory.storage, PlannedStorage::Memory);
    }

    #[test]
    fn only_dev_moves_its_clock_and_only_if_it_is_told_to() {
        let offset = |args: &[&str]| {
            let plan = plan(args, &[]).expect("a plan");
            plan.clock_offset_seconds
        };
        assert_eq!(offset(&["serve"]), None);
        assert_eq!(offset(&["dev"]), None);
        assert_eq!(offset(&["dev", "--clock-control"]), Some(0));
        let behind = ["dev", "--clock-control", "--clock-offset-seconds", "-3600"];
        assert_eq!(offset(&behind), Some(-3_600));
        assert!(plan(&["dev", "--clock-offset-seconds", "1"], &[]).is_err());
        assert!(plan(&["serve", "--clock-control"], &[]).is_err());
    }

    #[test]
    fn memory_goes_with_no_data_directory() {
        assert!(plan(&["dev", "--memory", "--data", "x"], &[]).is_err());
        assert!(plan(&["dev", "--memory", "--reset"], &[]).is_err());
    }
}

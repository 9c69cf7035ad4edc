//! The real server as a child process on loopback: started, found, stopped or killed.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// What `statehold.run` in the data directory of a running server says.
#[derive(Debug, Clone, Deserialize)]
pub struct RunFile {
    /// The process.
    pub pid: u32,
    /// Where it listens.
    pub url: String,
    /// Since when, as the server writes times.
    pub started_at: serde_json::Value,
}

/// The real program, built now so that it is never an old one, beside another program of ours. It is built as
/// the tests of the whole workspace build it, so that after them nothing is left to do.
///
/// # Panics
///
/// If it does not build.
pub fn built_program(beside: &Path) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("programs");
    // What cargo tells a test about its package makes scripts of other packages run again, and with them
    // half of the program is built anew each time.
    let told = std::env::vars_os().map(|(name, _)| name);
    for name in told.filter(|name| is_of_package(&name.to_string_lossy())) {
        cargo.env_remove(name);
    }
    let built = cargo.status().expect("cargo runs");
    assert!(built.success(), "the program must build");
    beside.with_file_name("statehold")
}

fn is_of_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_EXE_"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}

/// The seed of a test with chance: the one it is told in `STATEHOLD_SEED`, or another each time.
pub fn told_seed() -> u64 {
    let told = std::env::var("STATEHOLD_SEED").ok();
    let told = told.and_then(|text| text.parse().ok());
    let seed = told.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}; the same again with STATEHOLD_SEED={seed}");
    seed
}

impl RunFile {
    /// The name of the file in the data directory.
    pub const NAME: &'static str = "statehold.run";

    /// Reads the file of a data directory, if it is there and complete.
    pub fn read(data: &Path) -> Option<Self> {
        let bytes = std::fs::read(data.join(Self::NAME)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// The address in the URL.
    pub fn address(&self) -> Option<SocketAddr> {
        let rest = self.url.strip_prefix("http://")?;
        let rest = rest.split('/').next()?;
        rest.replace("localhost", "127.0.0.1").parse().ok()
    }
}

/// A server on loopback. Dropping it kills it.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
    /// Where in the log its own words begin.
    log_from: usize,
    ready_after: Duration,
}

impl ServerProcess {
    /// How long a start may take. Recovery after a kill is part of it.
    const START_MAX: Duration = Duration::from_secs(20);
    const END_MAX: Duration = Duration::from_secs(20);

    /// Starts `program` on `data` as a development server on a free port and waits until it is ready.
    /// What it prints is appended to the file `log`.
    ///
    /// # Errors
    ///
    /// If it ends, or is not ready in time; with the end of its log.
    pub fn start(program: &Path, data: &Path, log: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"]);
        command.arg(data);
        Self::start_command(command, data, log)
    }

    /// The same with a clock that can be moved, so many seconds ahead at first.
    ///
    /// # Errors
    ///
    /// As [`ServerProcess::start`].
    pub fn start_with_clock(
        program: &Path,
        data: &Path,
        log: &Path,
        offset_seconds: i64,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["dev", "--port", "0", "--no-open", "--no-demo"]);
        command.arg("--clock-control");
        command.arg(format!("--clock-offset-seconds={offset_seconds}"));
        command.arg("--data").arg(data);
        Self::start_command(command, data, log)
    }

    /// Starts any command that serves `data` and writes its run file there.
    ///
    /// # Errors
    ///
    /// As [`ServerProcess::start`].
    pub fn start_command(command: Command, data: &Path, log: &Path) -> Result<Self> {
        Self::start_until(command, log, |server| {
            // A run file of another process was left behind by a kill.
            let run = RunFile::read(data).filter(|run| run.pid == server.pid());
            run.and_then(|run| run.address())
        })
    }

    /// Starts any command, and waits until it is found and ready.
    pub(super) fn start_until(
        mut command: Command,
        log: &Path,
        find: impl Fn(&Self) -> Option<SocketAddr>,
    ) -> Result<Self> {
        let output = OpenOptions::new().create(true).append(true).open(log)?;
        let log_from = usize::try_from(output.metadata()?.len())?;
        command.stdin(Stdio::null()).stderr(output.try_clone()?);
        command.stdout(output);
        let began = Instant::now();
        let child = command.spawn().context("starting the server")?;
        let mut server = Self {
            child,
            address: ([127, 0, 0, 1], 0).into(),
            log: log.to_owned(),
            log_from,
            ready_after: Duration::ZERO,
        };
        while began.elapsed() < Self::START_MAX {
            if let Some(status) = server.child.try_wait()? {
                bail!(
                    "the server ended with {status} and said: {}",
                    server.last_words()
                );
            }
            if let Some(address) = find(&server).filter(|address| is_ready(*address)) {
                server.address = address;
                server.ready_after = began.elapsed();
                return Ok(server);
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        bail!(
            "the server was not ready within {:?} and said: {}",
            Self::START_MAX,
            server.last_words()
        )
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The time from its start to its first answer.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    ///
    /// If it had ended by itself before.
    pub fn kill(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "the server ended by itself with {status} and said: {}",
                self.last_words()
            );
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    ///
    /// If it does not end in time.
    pub fn ended(mut self) -> Result<ExitStatus> {
        let began = Instant::now();
        while began.elapsed() < Self::END_MAX {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        bail!(
            "the server did not end within {:?} and said: {}",
            Self::END_MAX,
            self.last_words()
        )
    }

    /// Asks it to stop with SIGTERM and waits until it has.
    ///
    /// # Errors
    ///
    /// If it does not stop in time.
    pub fn stop(self) -> Result<ExitStatus> {
        signal(self.child.id(), "TERM")?;
        self.ended()
    }

    /// User and system time that it has used so far.
    ///
    /// # Errors
    ///
    /// If the kernel does not say.
    pub fn cpu(&self) -> Result<Duration> {
        cpu(self.pid())
    }

    /// Bytes of memory that it has in use.
    ///
    /// # Errors
    ///
    /// If the kernel does not say.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// The most bytes of memory that it ever had in use.
    ///
    /// # Errors
    ///
    /// If the kernel does not say.
    pub fn resident_bytes_most(&self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, what: &str) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(what));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB"));
        let kilobytes = kilobytes.with_context(|| format!("no {what}"))?;
        Ok(kilobytes.trim().parse::<u64>()? * 1024)
    }

    /// What it printed, and not a process before it.
    pub fn said(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let own = text.get(self.log_from..).unwrap_or_default();
        String::from_utf8_lossy(own).into_owned()
    }

    /// The end of it.
    pub fn last_words(&self) -> String {
        let said = self.said();
        let from = said.floor_char_boundary(said.len().saturating_sub(2_000));
        said[from..].to_owned()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended already, and nobody is left to hear of an error.
        self.child.kill().unwrap_or_default();
        drop(self.child.wait());
    }
}

fn cpu(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after_name) = stat.rsplit_once(')').context("no name in stat")?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("no times in stat")?;
    // The kernel counts in hundredths of a second on every machine that Linux supports by default.
    Ok(Duration::from_millis((user + system) * 10))
}

/// Sends a signal by its name: `TERM`, `STOP`, `CONT`. The shell does it, because a signal is a call that
/// Rust counts as unsafe.
///
/// # Errors
///
/// If there is no such process.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    let status = Command::new("sh")
        .args(["-c", "kill -\"$1\" \"$0\"", &pid.to_string(), name])
        .status()?;
    ensure!(status.success(), "process {pid} cannot be signalled");
    Ok(())
}

/// Whether `/readyz` answers 200, asked without a runtime.
fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let request =
            format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(&status == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}

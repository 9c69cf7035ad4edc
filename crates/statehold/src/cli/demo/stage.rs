//! The stage of the tour: a temporary directory, a server in it, and the commands of the tour.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::answers::{elements, text};
use crate::cli::block_on;
use crate::cli::times::{TimeFormat, TimeStyle};
use crate::cli::tree::{SessionTree, TreeExtent};
use crate::client::Client;
use crate::exit::Exit;

/// The timeout of every step of the tour.
const PATIENCE: Duration = Duration::from_secs(30);
/// The polling interval.
const LOOK: Duration = Duration::from_millis(50);

/// Sleeps. A channel that stays silent stands in for `thread::sleep`, which the lints forbid.
pub(super) fn sleep_for(time: Duration) {
    let (_keep, never) = channel::<()>();
    if never.recv_timeout(time).is_ok() {
        unreachable!("the sender is never used");
    }
}

/// A data directory and a port for the server of the tour.
pub(super) struct TourStage {
    data: TempDir,
    port: u16,
    running: RunningProcesses,
}

/// The ids of all processes that the tour started and that still run.
type RunningProcesses = Arc<Mutex<BTreeSet<u32>>>;

/// A child process. Dropping it kills it.
struct TourProcess {
    child: Child,
    running: RunningProcesses,
}

impl TourProcess {
    fn spawn(command: &mut Command, running: &RunningProcesses) -> anyhow::Result<Self> {
        let child = command
            .spawn()
            .context("this program cannot be started again")?;
        lock_processes(running).insert(child.id());
        Ok(Self {
            child,
            running: Arc::clone(running),
        })
    }

    fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait()?;
        // The operating system may reuse the id.
        lock_processes(&self.running).remove(&self.child.id());
        Ok(status)
    }
}

impl Drop for TourProcess {
    fn drop(&mut self) {
        // Never leave a process running, also after an error.
        drop(self.child.kill());
        drop(self.wait());
    }
}

fn lock_processes(running: &RunningProcesses) -> MutexGuard<'_, BTreeSet<u32>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pid(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

/// Kills all processes when the user or the system stops the tour.
fn stop_on_signal(running: RunningProcesses, data: PathBuf) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        let asked = runtime.block_on(async {
            let mut terminated = signal(SignalKind::terminate())?;
            tokio::select! {
                _ = terminated.recv() => Ok(()),
                pressed = tokio::signal::ctrl_c() => pressed,
            }
        });
        if asked.is_ok() {
            let left = std::mem::take(&mut *lock_processes(&running));
            let ended = left.into_iter().filter_map(pid);
            // A process that cannot be killed has already ended.
            let ended = ended.filter(|process| kill_process(*process, Signal::KILL).is_ok());
            tracing::debug!(processes = ended.count(), "the tour was stopped");
            drop(std::fs::remove_dir_all(data));
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
    });
    Ok(())
}

/// A server of the tour. Dropping it kills it.
pub(super) struct TourServer {
    process: TourProcess,
    lines: Vec<String>,
    /// Drains standard error after the start too, so that the server never blocks on a full pipe.
    told: OutputReader,
}

/// A running command. Threads drain its outputs.
pub(super) struct RunningCommand {
    process: TourProcess,
    out: OutputReader,
    err: OutputReader,
}

/// Drains one output of a process.
struct OutputReader {
    lines: Receiver<String>,
    heard: String,
}

impl OutputReader {
    fn of(said: impl Read + Send + 'static) -> Self {
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            lines,
            heard: String::new(),
        }
    }

    /// The next line; an error at the end of the output or at the deadline.
    fn next(&mut self, deadline: Instant) -> Result<String, RecvTimeoutError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = self.lines.recv_timeout(left)?;
        self.heard.push_str(&line);
        self.heard.push('\n');
        Ok(line)
    }

    /// Everything up to the end of the output.
    fn all(mut self, deadline: Instant) -> String {
        while self.next(deadline).is_ok() {}
        self.heard
    }
}

/// A finished command.
pub(super) struct CommandResult {
    pub(super) code: i32,
    pub(super) out: String,
    pub(super) err: String,
}

impl TourStage {
    pub(super) fn new() -> anyhow::Result<Self> {
        // A port that is free now. The server must come back at the same port.
        let free = std::net::TcpListener::bind("127.0.0.1:0")?;
        let port = free.local_addr()?.port();
        let (data, running) = (tempfile::tempdir()?, RunningProcesses::default());
        stop_on_signal(Arc::clone(&running), data.path().to_owned())?;
        Ok(Self {
            data,
            port,
            running,
        })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// This program as a command, without `STATEHOLD_` variables that point to another server.
    fn program(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("STATEHOLD_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(self.data.path())
            .env("STATEHOLD_URL", self.url())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Starts a server and waits until it is ready.
    pub(super) fn start_server(&self) -> anyhow::Result<TourServer> {
        let port = self.port.to_string();
        let mut command = self.program()?;
        command
            .args(["dev", "--no-open", "--port", &port, "--data"])
            .arg(self.data.path().join("statehold-data"));
        let mut process = TourProcess::spawn(&mut command, &self.running)?;
        let said = process.child.stderr.take().context("its words are piped")?;
        let mut server = TourServer {
            process,
            lines: Vec::new(),
            told: OutputReader::of(said),
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match server.told.next(deadline) {
                Ok(line) => {
                    let is_ready = line.contains("Ready in");
                    server.lines.push(line);
                    if is_ready {
                        return Ok(server);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("the server is not ready in time"),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the server ended at once:\n{}", server.lines.join("\n"))
                }
            }
        }
    }

    /// Starts a command.
    pub(super) fn begin(&self, arguments: &[&str]) -> anyhow::Result<RunningCommand> {
        let mut process = TourProcess::spawn(self.program()?.args(arguments), &self.running)?;
        let (out, err) = (process.child.stdout.take(), process.child.stderr.take());
        Ok(RunningCommand {
            out: OutputReader::of(out.context("piped")?),
            err: OutputReader::of(err.context("piped")?),
            process,
        })
    }

    /// Runs a command to its end.
    pub(super) fn run(&self, arguments: &[&str]) -> anyhow::Result<CommandResult> {
        self.begin(arguments)?.end()
    }

    /// Draws the tree of a session as on a terminal.
    pub(super) fn draw_tree(&self, session: &str) -> anyhow::Result<Vec<String>> {
        let client = Client::new(self.url().parse()?, None, PATIENCE)?;
        let tree = block_on(SessionTree::load(&client, session))??;
        let times = TimeFormat {
            style: TimeStyle::Relative,
            now: jiff::Timestamp::now(),
        };
        Ok(tree.lines_at(None, TreeExtent::Everything, &times, None))
    }

    pub(super) fn tree(&self, session: &str) -> anyhow::Result<Value> {
        self.run(&["--json", "tasks", "tree", session, "--all"])?
            .json()
    }

    /// Waits for an open hold of a session.
    pub(super) fn open_hold(&self, session: &str) -> anyhow::Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let listed = self.run(&["--json", "approvals", "list"])?.json()?;
            let mut holds = elements(&listed, "holds").iter();
            if let Some(hold) = holds.find(|hold| text(hold, "session_id") == session) {
                return Ok(hold.clone());
            }
            ensure!(
                Instant::now() < deadline,
                "nothing waits for a person: {listed}"
            );
            sleep_for(LOOK);
        }
    }

    /// How often the demo has deleted a user, as a session sees it.
    pub(super) fn delete_runs(&self, session: &str) -> anyhow::Result<u64> {
        let key = "app:demo.delete_runs";
        let state = self.run(&["--json", "state", "get", key, "--session", session])?;
        if state.code == i32::from(Exit::NotFound.code()) {
            return Ok(0);
        }
        Ok(state.json()?["value"].as_u64().unwrap_or_default())
    }

    pub(super) fn revision(&self, session: &str) -> anyhow::Result<u64> {
        let shown = self.run(&["--json", "sessions", "show", session])?.json()?;
        shown["session"]["revision"]
            .as_u64()
            .context("a session has a revision")
    }
}

impl TourServer {
    /// The lines printed before the server was ready.
    pub(super) fn greeting(&self) -> Vec<String> {
        self.lines.clone()
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Kills the server with SIGKILL.
    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.process.child.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Asks the server to stop, and waits for its end.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let process = pid(self.pid()).context("a process has a number")?;
        kill_process(process, Signal::TERM)?;
        self.process.wait()?;
        Ok(())
    }
}

impl RunningCommand {
    /// Waits until the command prints a line with this text on standard error.
    pub(super) fn wait_for_line(&mut self, text: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.err.next(deadline) {
                Ok(line) if line.contains(text) => return Ok(()),
                Ok(_) => {}
                Err(_) => bail!("it never said {text:?}:\n{}", self.err.heard),
            }
        }
    }

    /// Waits until the command has ended.
    pub(super) fn end(mut self) -> anyhow::Result<CommandResult> {
        let deadline = Instant::now() + PATIENCE;
        let out =
            std::mem::replace(&mut self.out, OutputReader::of(std::io::empty())).all(deadline);
        let err =
            std::mem::replace(&mut self.err, OutputReader::of(std::io::empty())).all(deadline);
        // Past the deadline, kill the process.
        if Instant::now() >= deadline {
            self.process.child.kill()?;
        }
        let status = self.process.wait()?;
        Ok(CommandResult {
            code: status.code().unwrap_or(-1),
            out,
            err,
        })
    }
}

impl CommandResult {
    pub(super) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.out)
            .with_context(|| format!("it ended with {}:\n{}{}", self.code, self.out, self.err))
    }
}

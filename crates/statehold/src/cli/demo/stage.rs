//! Where the tour is played: a temporary directory, a server in it, and the commands that are typed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::answers::{elements, text};
use crate::exit::Exit;

/// How long anything may take before the tour gives up.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often something that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Waits a little.
pub(super) fn rest(time: Duration) {
    // Nobody sends anything: only the time passes.
    let (_keep, never) = channel::<()>();
    drop(never.recv_timeout(time));
}

/// A directory, an address, and this program.
pub(super) struct Stage {
    data: TempDir,
    port: u16,
}

/// A server of the tour. Ends with it.
pub(super) struct Server {
    child: Child,
    lines: Vec<String>,
    /// What it says after it is ready is read, so that it never waits for a reader.
    _rest: Receiver<String>,
}

/// A command that runs.
pub(super) struct Running(Option<Child>);

/// A command that has ended.
pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) out: String,
    pub(super) err: String,
}

impl Stage {
    pub(super) fn new() -> anyhow::Result<Self> {
        // A port that is free now. The server must come back at the same one.
        let free = std::net::TcpListener::bind("127.0.0.1:0")?;
        let port = free.local_addr()?.port();
        Ok(Self {
            data: tempfile::tempdir()?,
            port,
        })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// This program, cut off from whatever the surroundings say about another server.
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

    /// Starts a server, and waits until it is ready.
    pub(super) fn serve(&self) -> anyhow::Result<Server> {
        let port = self.port.to_string();
        let mut child = self
            .program()?
            .args(["dev", "--no-open", "--port", &port, "--data"])
            .arg(self.data.path().join("statehold-data"))
            .spawn()
            .context("this program cannot be started again")?;
        let said = child.stderr.take().context("its words are piped")?;
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let mut server = Server {
            child,
            lines: Vec::new(),
            _rest: channel().1,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match told.recv_timeout(left) {
                Ok(line) => {
                    let is_ready = line.contains("Ready in");
                    server.lines.push(line);
                    if is_ready {
                        server._rest = told;
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

    /// Begins a command.
    pub(super) fn begin(&self, arguments: &[&str]) -> anyhow::Result<Running> {
        let child = self.program()?.args(arguments).spawn()?;
        Ok(Running(Some(child)))
    }

    /// Runs a command to its end.
    pub(super) fn run(&self, arguments: &[&str]) -> anyhow::Result<Ended> {
        self.begin(arguments)?.end()
    }

    pub(super) fn tree(&self, session: &str) -> anyhow::Result<Value> {
        self.run(&["--json", "tasks", "tree", session, "--all"])?
            .json()
    }

    /// The hold that is open in a session, as soon as there is one.
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
            rest(LOOK);
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

impl Server {
    /// What it said until it was ready.
    pub(super) fn greeting(&self) -> Vec<String> {
        self.lines.clone()
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it without a word: SIGKILL.
    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok();
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("a process has a number")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whatever went wrong before, nothing is left running.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Running {
    /// Waits until it has ended.
    pub(super) fn end(mut self) -> anyhow::Result<Ended> {
        let mut child = self.0.take().context("it has not ended")?;
        let deadline = Instant::now() + PATIENCE;
        // What it says fits into its pipes.
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                child.kill()?;
                break child.wait()?;
            }
            rest(Duration::from_millis(5));
        };
        let (mut out, mut err) = (String::new(), String::new());
        child
            .stdout
            .take()
            .context("piped")?
            .read_to_string(&mut out)?;
        child
            .stderr
            .take()
            .context("piped")?
            .read_to_string(&mut err)?;
        Ok(Ended {
            code: status.code().unwrap_or(-1),
            out,
            err,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Ended {
    pub(super) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.out)
            .with_context(|| format!("it ended with {}:\n{}{}", self.code, self.out, self.err))
    }
}

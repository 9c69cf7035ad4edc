//! Where the tour is played: a temporary directory, a server in it, and the commands that are typed.

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
use crate::cli::times::{TimeStyle, Times};
use crate::cli::tree::{Extent, Tree};
use crate::client::Client;
use crate::exit::Exit;

/// How long anything may take before the tour gives up.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often something that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Waits a little.
pub(super) fn rest(time: Duration) {
    // Nobody sends anything: only the time passes.
    let (_keep, never) = channel::<()>();
    if never.recv_timeout(time).is_ok() {
        unreachable!("nobody sends");
    }
}

/// A directory, an address, and this program.
pub(super) struct Stage {
    data: TempDir,
    port: u16,
    running: Processes,
}

/// Everything that the tour started and that has not ended, by process number.
type Processes = Arc<Mutex<BTreeSet<u32>>>;

/// A process of the tour. It ends with this, and with the tour.
struct Process {
    child: Child,
    running: Processes,
}

impl Process {
    fn spawn(command: &mut Command, running: &Processes) -> anyhow::Result<Self> {
        let child = command
            .spawn()
            .context("this program cannot be started again")?;
        locked(running).insert(child.id());
        Ok(Self {
            child,
            running: Arc::clone(running),
        })
    }

    fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait()?;
        // Its number may soon be somebody else's.
        locked(&self.running).remove(&self.child.id());
        Ok(status)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whatever went wrong before, nothing is left running.
        drop(self.child.kill());
        drop(self.wait());
    }
}

fn locked(running: &Processes) -> MutexGuard<'_, BTreeSet<u32>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pid(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

/// Ends everything when the tour is asked to end before its time.
fn end_with_the_tour(running: Processes, data: PathBuf) -> anyhow::Result<()> {
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
            let left = std::mem::take(&mut *locked(&running));
            let ended = left.into_iter().filter_map(pid);
            // Those that cannot be killed have ended by themselves.
            let ended = ended.filter(|process| kill_process(*process, Signal::KILL).is_ok());
            tracing::debug!(processes = ended.count(), "the tour was stopped");
            drop(std::fs::remove_dir_all(data));
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
    });
    Ok(())
}

/// A server of the tour. Ends with it.
pub(super) struct Server {
    process: Process,
    lines: Vec<String>,
    /// What it says after it is ready is read too, so that it never waits for a reader.
    told: Told,
}

/// A command that runs. What it says is read while it says it.
pub(super) struct Running {
    process: Process,
    out: Told,
    err: Told,
}

/// What a process says on one of its outputs.
struct Told {
    lines: Receiver<String>,
    heard: String,
}

impl Told {
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

    /// The next line, unless nothing more comes or it takes too long.
    fn next(&mut self, deadline: Instant) -> Result<String, RecvTimeoutError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = self.lines.recv_timeout(left)?;
        self.heard.push_str(&line);
        self.heard.push('\n');
        Ok(line)
    }

    /// Everything, to the end.
    fn all(mut self, deadline: Instant) -> String {
        while self.next(deadline).is_ok() {}
        self.heard
    }
}

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
        let (data, running) = (tempfile::tempdir()?, Processes::default());
        end_with_the_tour(Arc::clone(&running), data.path().to_owned())?;
        Ok(Self {
            data,
            port,
            running,
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
        let mut command = self.program()?;
        command
            .args(["dev", "--no-open", "--port", &port, "--data"])
            .arg(self.data.path().join("statehold-data"));
        let mut process = Process::spawn(&mut command, &self.running)?;
        let said = process.child.stderr.take().context("its words are piped")?;
        let mut server = Server {
            process,
            lines: Vec::new(),
            told: Told::of(said),
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

    /// Begins a command.
    pub(super) fn begin(&self, arguments: &[&str]) -> anyhow::Result<Running> {
        let mut process = Process::spawn(self.program()?.args(arguments), &self.running)?;
        let (out, err) = (process.child.stdout.take(), process.child.stderr.take());
        Ok(Running {
            out: Told::of(out.context("piped")?),
            err: Told::of(err.context("piped")?),
            process,
        })
    }

    /// Runs a command to its end.
    pub(super) fn run(&self, arguments: &[&str]) -> anyhow::Result<Ended> {
        self.begin(arguments)?.end()
    }

    /// The tree of a session as it would be drawn on a terminal.
    pub(super) fn drawn(&self, session: &str) -> anyhow::Result<Vec<String>> {
        let client = Client::new(self.url().parse()?, None, PATIENCE)?;
        let tree = block_on(Tree::load(&client, session))??;
        let times = Times {
            style: TimeStyle::Relative,
            now: jiff::Timestamp::now(),
        };
        Ok(tree.lines(None, Extent::Everything, &times))
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
        self.process.child.id()
    }

    /// Ends it without a word: SIGKILL.
    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.process.child.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let process = pid(self.pid()).context("a process has a number")?;
        kill_process(process, Signal::TERM)?;
        self.process.wait()?;
        Ok(())
    }
}

impl Running {
    /// Waits until it says something on standard error that contains a text.
    pub(super) fn until_says(&mut self, text: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.err.next(deadline) {
                Ok(line) if line.contains(text) => return Ok(()),
                Ok(_) => {}
                Err(_) => bail!("it never said {text:?}:\n{}", self.err.heard),
            }
        }
    }

    /// Waits until it has ended.
    pub(super) fn end(mut self) -> anyhow::Result<Ended> {
        let deadline = Instant::now() + PATIENCE;
        let out = std::mem::replace(&mut self.out, Told::of(std::io::empty())).all(deadline);
        let err = std::mem::replace(&mut self.err, Told::of(std::io::empty())).all(deadline);
        // Both outputs are over, or it takes too long: then it ends here.
        if Instant::now() >= deadline {
            self.process.child.kill()?;
        }
        let status = self.process.wait()?;
        Ok(Ended {
            code: status.code().unwrap_or(-1),
            out,
            err,
        })
    }
}

impl Ended {
    pub(super) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.out)
            .with_context(|| format!("it ended with {}:\n{}{}", self.code, self.out, self.err))
    }
}

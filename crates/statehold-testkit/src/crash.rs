//! The crash harness: a process that writes is killed, and what it acknowledged is looked for.
//!
//! The writer runs in a process of its own and says on its standard output what the store has
//! acknowledged. This process keeps that list, kills the writer or lets its power fail, opens the
//! data again and compares: nothing acknowledged may be missing, nothing may be half there.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use statehold_core::command::Command as CoreCommand;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::principal::Actor;
use statehold_core::scope::Scope;
use statehold_model::fixtures;
use statehold_store::keys::{KeyFile, KeyOwner, PayloadKeys as _};
use statehold_store::sqlite::{FILE_NAME, SqliteOptions, SqliteStore};
use statehold_store::{KeyRange, PageLimit, SharedOwner, Store};

use crate::workload::{Client, ClientKeys, Random, session_id};

/// Sessions of one data directory, each written by a task of its own.
const SESSIONS: u64 = 8;
/// The first of the sessions that are deleted when they are this long, one after the other.
const FIRST_SHORT: u64 = 100;
const SHORT_RECORDS: u64 = 12;
/// The exit code of a store whose disk does not confirm.
const STOPPED: i32 = 74;
/// The exit code of the power-loss shim.
const POWER_LOST: i32 = 86;

/// Set to make the writer not wait for its disk, to see that the harness notices.
pub const NO_SYNC: &str = "STATEHOLD_CRASH_NO_SYNC";

/// How the writer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// SIGKILL after so many milliseconds.
    Kill(u64),
    /// The power fails at the n-th write or sync; the seed says which unsynced writes survive.
    PowerLoss(u64, u64),
    /// The n-th sync fails.
    SyncFailure(u64),
}

/// What a run of the harness saw.
#[derive(Debug, Default, Clone, Copy)]
pub struct CrashReport {
    /// Times the writer ended.
    pub cycles: usize,
    /// Commits that were acknowledged and found.
    pub acknowledged: usize,
    /// Commits that were found without an acknowledgement: durable, but the answer was lost.
    pub unacknowledged: usize,
    /// Records verified, over all cycles.
    pub records: usize,
    /// Payloads that were removed, at the last look.
    pub erased: usize,
}

/// Writes to a data directory until somebody ends it, and says what was acknowledged.
///
/// # Errors
///
/// If the data cannot be opened or a thread meets anything but the end.
pub fn write_until_killed(directory: &Path, seed: u64, run: u64) -> Result<()> {
    let keys = KeyFile::open(directory)?;
    let client_keys = ClientKeys {
        user: keys.get_or_create(&KeyOwner::User(fixtures::owner().user))?,
        tenant: keys.get_or_create(&KeyOwner::Tenant(fixtures::owner().tenant))?,
    };
    let sync = std::env::var_os(NO_SYNC).is_none();
    let options = SqliteOptions {
        sync,
        ..SqliteOptions::default()
    };
    let store = Arc::new(SqliteStore::open(directory, options)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    let mut writers = Vec::new();
    for n in 0..SESSIONS {
        let (store, keys) = (Arc::clone(&store), client_keys.clone());
        writers.push(runtime.spawn(async move {
            let session = session_id(run, n);
            let mut client = match store.load(session).await? {
                Some(state) => Client::resume(state, keys, seed ^ n),
                None => Client::new(session, keys, seed ^ n),
            };
            loop {
                let (command, actor) = next_command(&mut client);
                let (revision, hash) = client.send(&*store, &command, actor).await?;
                let counts = matches!(command, CoreCommand::PutState { .. });
                acknowledge(session, revision, hash, counts)?;
            }
            #[expect(
                unreachable_code,
                reason = "tells the compiler the type of the endless loop"
            )]
            Ok::<(), anyhow::Error>(())
        }));
    }
    let short = write_short_sessions(store, client_keys, seed, run);
    writers.push(runtime.spawn(short));
    for writer in writers {
        runtime.block_on(writer)??;
    }
    Ok(())
}

/// Says that a commit was acknowledged. One write per line, so that a kill cuts between lines or
/// inside the last one.
fn acknowledge(session: SessionId, revision: u64, hash: Digest, counts: bool) -> Result<()> {
    let line = format!("{session} {revision} {hash} {}\n", u8::from(counts));
    Ok(std::io::stdout().lock().write_all(line.as_bytes())?)
}

/// Sessions that are deleted soon, with the removal of their payloads in between.
async fn write_short_sessions(
    store: Arc<SqliteStore>,
    keys: ClientKeys,
    seed: u64,
    run: u64,
) -> Result<()> {
    for n in FIRST_SHORT.. {
        let session = session_id(run, n);
        let mut client = match store.load(session).await? {
            Some(state) => Client::resume(state, keys.clone(), seed ^ n),
            None => Client::new(session, keys.clone(), seed ^ n),
        };
        while !client.state.deleted {
            let (command, actor) = match client.state.revision {
                0 => (client.create(), fixtures::client()),
                1..SHORT_RECORDS => (client.turn(), fixtures::worker(1)),
                _ => (CoreCommand::DeleteSession, fixtures::client()),
            };
            let (revision, hash) = client.send(&*store, &command, actor).await?;
            acknowledge(session, revision, hash, false)?;
            store.erase_some(PageLimit::entries(1)).await?;
        }
    }
    Ok(())
}

fn next_command(client: &mut Client) -> (CoreCommand, Actor) {
    if client.state.owner.is_none() {
        return (client.create(), fixtures::client());
    }
    match client.random.below(10) {
        0..5 => (client.turn(), fixtures::worker(1)),
        5 => (client.count(), fixtures::client()),
        _ => client.pause_step(),
    }
}

/// A data directory with what its writers acknowledged, over many crashes.
#[derive(Debug)]
pub struct Harness {
    program: PathBuf,
    directory: tempfile::TempDir,
    acknowledged: BTreeMap<(SessionId, u64), Digest>,
    counted: u64,
    run: u64,
    report: CrashReport,
    /// Whether the writer is told not to wait for its disk.
    pub no_sync: bool,
}

impl Harness {
    /// A new data directory. `program` is run as `program writer DIRECTORY SEED RUN`.
    ///
    /// # Errors
    ///
    /// If there is no room for a directory.
    pub fn new(program: &Path, run: u64) -> Result<Self> {
        Ok(Self {
            program: program.to_owned(),
            directory: tempfile::tempdir()?,
            acknowledged: BTreeMap::new(),
            counted: 0,
            run,
            report: CrashReport::default(),
            no_sync: false,
        })
    }

    /// Lets a writer run and end, then looks for everything it acknowledged.
    ///
    /// # Errors
    ///
    /// If anything acknowledged is missing, anything is half there, or the writer ended otherwise.
    pub fn cycle(&mut self, ending: Ending, seed: u64, shim: Option<&Path>) -> Result<()> {
        let mut command = Command::new(&self.program);
        command
            .arg("writer")
            .arg(self.directory.path())
            .arg(seed.to_string());
        command
            .arg(self.run.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if self.no_sync {
            command.env(NO_SYNC, "1");
        }
        if let Some(shim) = shim {
            command
                .env("LD_PRELOAD", shim)
                .env("POWER_LOSS_DIR", self.directory.path());
        }
        match ending {
            Ending::Kill(_) => {}
            Ending::PowerLoss(at, seed) => {
                command.env("POWER_LOSS_AT", at.to_string());
                command.env("POWER_LOSS_SEED", seed.to_string());
            }
            Ending::SyncFailure(at) => {
                command.env("FSYNC_FAIL_AT", at.to_string());
            }
        }
        let mut child = command.spawn().context("starting the writer")?;
        self.watch(&mut child, ending)?;
        self.compare()
            .with_context(|| format!("after {ending:?} with seed {seed}"))
    }

    /// Follows the acknowledgements until the writer has ended.
    fn watch(&mut self, child: &mut Child, ending: Ending) -> Result<()> {
        let output = child.stdout.take().context("the writer has no output")?;
        let lines = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            let mut acknowledged = Vec::new();
            for line in BufReader::new(output).split(b'\n') {
                let Ok(line) = line else { break };
                seen.fetch_add(1, Ordering::Relaxed);
                acknowledged.push(String::from_utf8_lossy(&line).into_owned());
            }
            acknowledged
        });
        let status = end(child, ending, &lines)?;
        let lines = reader
            .join()
            .map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        let mut complaint = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut complaint)?;
        }
        require_ending(ending, status, &complaint)?;
        for line in lines {
            // The kill may have cut the last line; what it would have said is not acknowledged to us.
            if let Some((session, revision, hash, counts)) = parse(&line) {
                self.acknowledged.insert((session, revision), hash);
                self.counted += counts;
            }
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<()> {
        let directory = self.directory.path();
        let file = directory.join(FILE_NAME);
        // The index of the log is shared memory, not data: after a power loss it is gone.
        if let Err(error) = std::fs::remove_file(file.with_extension("db-shm"))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error.into());
        }
        if !file.is_file() {
            ensure!(self.acknowledged.is_empty(), "the data file is gone");
            return Ok(());
        }
        let store = SqliteStore::open(directory, SqliteOptions::default())?;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        if self.report.cycles % 2 == 1 {
            // Every other time, removing goes on from wherever it was cut.
            while runtime.block_on(store.erase_some(PageLimit::entries(5)))? {}
        }
        let found = runtime.block_on(find_all(&store))?;
        if self.report.cycles % 2 == 1 {
            ensure!(
                found.left == 0,
                "deleted sessions have {} payloads",
                found.left
            );
        }
        for ((session, revision), hash) in &self.acknowledged {
            match found.records.get(&(*session, *revision)) {
                Some(stored) if stored == hash => {}
                Some(_) => bail!("revision {revision} of {session} is another record now"),
                None => bail!("revision {revision} of {session} was acknowledged and is gone"),
            }
        }
        ensure!(
            found.count >= self.counted,
            "the shared counter is {} after {} acknowledged additions",
            found.count,
            self.counted
        );
        drop(store);
        let checked = SqliteStore::check(directory, &mut |_, _| {})?;
        ensure!(
            checked.problems.is_empty(),
            "check found {:?}",
            checked.problems
        );
        self.report.cycles += 1;
        self.report.acknowledged = self.acknowledged.len();
        self.report.unacknowledged = found.records.len() - self.acknowledged.len();
        self.report.records += checked.records;
        self.report.erased = checked.erased;
        // From now on all of it is known to be there.
        self.acknowledged = found.records;
        self.counted = found.count;
        Ok(())
    }

    /// What was seen so far.
    pub fn report(&self) -> CrashReport {
        self.report
    }
}

struct Found {
    records: BTreeMap<(SessionId, u64), Digest>,
    count: u64,
    /// Payloads of deleted sessions that are still there.
    left: usize,
}

/// All records of all sessions that the feed tells of.
async fn find_all(store: &SqliteStore) -> Result<Found> {
    let mut sessions: BTreeMap<SessionId, u64> = BTreeMap::new();
    let mut after = 0;
    loop {
        let page = store.committed(after, 1_000).await?;
        let Some(last) = page.last() else { break };
        after = last.place;
        for commit in page {
            let revision = sessions.entry(commit.session).or_default();
            ensure!(
                commit.revision == *revision + 1,
                "the feed has revision {} of {} after {revision}",
                commit.revision,
                commit.session
            );
            *revision = commit.revision;
        }
    }
    let (mut records, mut left) = (BTreeMap::new(), 0);
    for session in sessions.into_keys() {
        let state = store.load(session).await?;
        let is_deleted = state.is_some_and(|state| state.deleted);
        let mut after = 0;
        loop {
            let page = store
                .records(session, after, PageLimit::entries(500))
                .await?;
            for stored in &page {
                after = stored.record.content.seq;
                records.insert((session, after), stored.record.hash);
                if is_deleted {
                    left += stored.bodies.iter().flatten().count();
                }
            }
            if page.len() < 500 {
                break;
            }
        }
    }
    let owner = SharedOwner::of(&fixtures::owner(), Scope::App);
    let shared = store
        .shared(owner, KeyRange::default(), PageLimit::entries(1))
        .await?;
    let count = shared
        .values
        .values()
        .next()
        .and_then(|value| std::str::from_utf8(&value.value).ok());
    let count = count.and_then(|count| count.parse().ok()).unwrap_or(0);
    Ok(Found {
        records,
        count,
        left,
    })
}

/// Ends the writer, or waits until it has ended by itself.
fn end(child: &mut Child, ending: Ending, lines: &AtomicU64) -> Result<ExitStatus> {
    let pause = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    let mut began_at = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if lines.load(Ordering::Relaxed) > 0 && began_at.is_none() {
            began_at = Some(waited);
        }
        if let (Ending::Kill(after_ms), Some(began)) = (ending, began_at)
            && waited >= began + Duration::from_millis(after_ms)
        {
            child.kill()?;
            return Ok(child.wait()?);
        }
        if waited > Duration::from_mins(5) {
            child.kill()?;
            bail!("the writer did not end within five minutes");
        }
        std::thread::park_timeout(pause);
        waited += pause;
    }
}

fn require_ending(ending: Ending, status: ExitStatus, complaint: &str) -> Result<()> {
    use std::os::unix::process::ExitStatusExt;
    let is_expected = match ending {
        Ending::Kill(_) => status.signal() == Some(9),
        Ending::PowerLoss(..) => status.code() == Some(POWER_LOST),
        Ending::SyncFailure(_) => {
            status.code() == Some(STOPPED) && complaint.contains("did not confirm")
        }
    };
    ensure!(
        is_expected,
        "the writer ended with {status} and said: {complaint}"
    );
    Ok(())
}

fn parse(line: &str) -> Option<(SessionId, u64, Digest, u64)> {
    let mut words = line.split(' ');
    let session = words.next()?.parse().ok()?;
    let revision = words.next()?.parse().ok()?;
    let hash = words.next()?.parse().ok()?;
    let counts = words.next()?.parse().ok()?;
    Some((session, revision, hash, counts))
}

/// Compiles the power-loss shim into `directory`.
///
/// # Errors
///
/// If there is no C compiler, which every machine that builds this project has.
pub fn build_shim(directory: &Path) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("shim/power_loss.c");
    let library = directory.join("libpower_loss.so");
    let status = Command::new("cc")
        .args([
            "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o",
        ])
        .args([&library, &source])
        .args(["-ldl", "-lpthread"])
        .status()
        .context("running cc")?;
    ensure!(status.success(), "cc failed with {status}");
    Ok(library)
}

/// How many crashes of each kind to go through.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// SIGKILL at random moments.
    pub kills: usize,
    /// Power losses at random writes.
    pub power_losses: usize,
    /// Failing syncs.
    pub sync_failures: usize,
}

/// Goes through a plan. The same seed takes the same decisions.
///
/// # Errors
///
/// The first thing that was lost, with the seed that shows it again.
pub fn run(
    program: &Path,
    plan: Plan,
    seed: u64,
    mut progress: impl FnMut(&str),
) -> Result<CrashReport> {
    let shims = tempfile::tempdir()?;
    let shim = build_shim(shims.path())?;
    let mut random = Random::new(seed);
    let mut total = CrashReport::default();
    let mut endings = Vec::new();
    endings.extend((0..plan.kills).map(|_| Ending::Kill(20 + random.below(180))));
    endings.extend((0..plan.power_losses).map(|n| {
        // Every third time nothing unsynced survives; otherwise a random part of it does.
        let survives = if n % 3 == 0 { 0 } else { random.next_u64() | 1 };
        Ending::PowerLoss(1 + random.below(1_500), survives)
    }));
    endings.extend((0..plan.sync_failures).map(|_| Ending::SyncFailure(5 + random.below(60))));
    // A fresh directory now and then, so that first commits are hit too.
    for (index, group) in endings.chunks(10).enumerate() {
        let mut harness = Harness::new(program, seed.wrapping_add(index as u64))?;
        for ending in group {
            let shim = (!matches!(ending, Ending::Kill(_))).then_some(shim.as_path());
            harness.cycle(*ending, random.next_u64(), shim)?;
        }
        let report = harness.report();
        total.cycles += report.cycles;
        total.acknowledged += report.acknowledged;
        total.unacknowledged += report.unacknowledged;
        total.records += report.records;
        total.erased += report.erased;
        progress(&format!(
            "{:>5} crashes, {:>8} records verified",
            total.cycles, total.records
        ));
    }
    Ok(total)
}

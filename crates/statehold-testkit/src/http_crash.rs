//! The crash harness of the server: it is killed again and again while client processes call it and
//! feeds are followed; then everything that was acknowledged is looked for over the API.
//!
//! The clients outlive the server. Each writes down what it was told before it goes on, so that what
//! counts as acknowledged is what a client has seen, and nothing else.

mod feed;
mod gather;
pub mod load;
pub mod log;
mod progress;
pub mod verify;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use self::feed::Followers;
use self::load::LoadOptions;
use self::log::Entry;
use self::progress::Progress;
use self::verify::{Covered, Found, FoundSession};
use crate::http::ServerProcess;
use crate::workload::Random;

/// How long clients may take to get on, or to end.
const MOST: Duration = Duration::from_mins(1);

/// After so many kills everything is compared, the clients begin with new sessions, and the harness forgets
/// all but the revisions of the old ones: its memory does not grow with the number of kills.
const KILLS_PER_ROUND: usize = 100;

/// Bytes of the clients' logs, about a hundred calls: fewer would be a kill of an idle server.
const TOLD_BETWEEN_KILLS: u64 = 64 << 10;

/// What a run does.
#[derive(Debug, Clone)]
pub struct HttpCrashOptions {
    /// The binary `statehold`.
    pub program: PathBuf,
    /// The binary `http_client` of this crate.
    pub client: PathBuf,
    /// How often the server is killed.
    pub cycles: usize,
    /// The same seed takes the same decisions.
    pub seed: u64,
    /// Client processes.
    pub clients: u64,
    /// Lanes of each client, each with a connection of its own.
    pub lanes: u64,
    /// How many calls with an old key are made again at the end.
    pub replays: usize,
    /// Where everything is kept. A run in the same directory goes on behind the last whole round of an earlier one.
    pub keep: Option<PathBuf>,
}

impl HttpCrashOptions {
    /// Three clients of four lanes.
    pub fn new(program: &Path, client: &Path, cycles: usize, seed: u64) -> Self {
        Self {
            program: program.to_owned(),
            client: client.to_owned(),
            cycles,
            seed,
            clients: 3,
            lanes: 4,
            replays: 500,
            keep: None,
        }
    }
}

/// How the error begins if the run itself went well and what the server told does not hold.
pub const BROKEN_WORD: &str = "the server did not keep its word";

/// What a run covered.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub struct HttpCrashReport {
    /// How often the server was killed.
    pub cycles: usize,
    /// What was compared.
    pub covered: Covered,
    /// Feeds that were followed.
    pub feeds: usize,
    /// Calls with an old key that got their old answer.
    pub replayed: usize,
}

/// Kills a server under load and looks for everything that it acknowledged. Prints how far it is.
///
/// # Errors
///
/// The first thing that was lost, twice or half, or a process that did not do as it should. The data
/// directory and the logs are kept then; the error says where.
pub fn run(options: &HttpCrashOptions) -> Result<HttpCrashReport> {
    println!(
        "{} kills, {} clients of {} lanes, seed {}",
        options.cycles, options.clients, options.lanes, options.seed
    );
    if let Some(directory) = &options.keep {
        std::fs::create_dir_all(directory)?;
        return run_in(options, directory);
    }
    let directory = tempfile::tempdir()?;
    let result = run_in(options, directory.path());
    if result.is_err() {
        let kept = directory.keep();
        return result.with_context(|| {
            format!(
                "seed {}; everything is kept in {}",
                options.seed,
                kept.display()
            )
        });
    }
    result
}

fn run_in(options: &HttpCrashOptions, directory: &Path) -> Result<HttpCrashReport> {
    let data = directory.join("data");
    let start = || ServerProcess::start(&options.program, &data, &directory.join("server.log"));
    let mut server = start()?;
    let mut progress = Progress::load(directory, options.seed, &data)?;
    while progress.report.cycles < options.cycles {
        let cycles = KILLS_PER_ROUND.min(options.cycles - progress.report.cycles);
        let round = progress.begin_round(directory)?;
        let mut random = Random::new(options.seed.wrapping_add(round));
        let mut clients = Clients::start(options, round, directory, &data)?;
        let mut followers = Followers::new(&data)?;
        let feeds = usize::try_from(options.clients * options.lanes)?;
        for _ in 0..cycles {
            clients.work(Duration::from_millis(20 + random.below(180)))?;
            progress.report.cycles += 1;
            let cycle = progress.report.cycles;
            server.kill().with_context(|| format!("in cycle {cycle}"))?;
            clients.require_alive()?;
            if followers.len() < feeds {
                followers.find(&clients.logs)?;
            }
            server = start().with_context(|| format!("start after kill {cycle}"))?;
            if cycle % 10 == 0 || cycle == options.cycles {
                println!("{cycle:>5} kills");
            }
        }
        let entries = clients.finish()?;
        followers.find(&clients.logs)?;
        let compared = compare(
            options,
            &data,
            &entries,
            followers,
            (&mut progress.seen, &mut random),
        );
        progress.report.add(&compared.context(BROKEN_WORD)?);
        clients.remove_logs()?;
        progress.save(directory)?;
    }
    let Progress { report, seen, .. } = progress;
    // Later kills have changed nothing in the sessions of earlier rounds.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let unchanged = runtime.block_on(gather::require_unchanged(&data, &seen));
    unchanged.context(BROKEN_WORD)?;
    println!("{report}");
    let status = server.stop()?;
    ensure!(status.success(), "the server stopped with {status}");
    check(&options.program, &data)?;
    Ok(report)
}

/// Sessions and counter of finished rounds, as the harness saw them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SeenRounds {
    /// The revision of each session; none if it was deleted.
    sessions: BTreeMap<String, Option<u64>>,
    /// The counter that all sessions share.
    count: u64,
}

/// Compares everything that the clients of a round were told.
fn compare(
    options: &HttpCrashOptions,
    data: &Path,
    entries: &[Entry],
    followers: Followers,
    (seen, random): (&mut SeenRounds, &mut Random),
) -> Result<HttpCrashReport> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut found = runtime.block_on(gather::gather(data, entries))?;
    found.count_before = seen.count;
    let feeds = followers.len();
    add_feeds(followers, &mut found)?;
    let covered = verify::verify(entries, &found)?;
    let replayed = runtime.block_on(gather::replay(data, entries, options.replays, random))?;
    let revision = |session: &FoundSession| (!session.is_gone).then_some(session.revision);
    let sessions = found.sessions.iter();
    let sessions = sessions.map(|(id, session)| (id.clone(), revision(session)));
    let round = SeenRounds {
        sessions: sessions.collect(),
        count: found.count,
    };
    runtime.block_on(gather::require_unchanged(data, &round))?;
    seen.sessions.extend(round.sessions);
    seen.count = round.count;
    Ok(HttpCrashReport {
        cycles: 0,
        covered,
        feeds,
        replayed,
    })
}

impl HttpCrashReport {
    fn add(&mut self, round: &Self) {
        self.covered.add(&round.covered);
        self.feeds += round.feeds;
        self.replayed += round.replayed;
    }
}

impl std::fmt::Display for HttpCrashReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let covered = &self.covered;
        write!(
            f,
            "{} kills: {} calls acknowledged ({} repeated after a lost connection), {} answers lost ({} \
             of them carried out), {} refused by a busy server; {} sessions, {} of them deleted; {} \
             records, {} marks, {} events of {} feeds, {} old keys: all as it was told",
            self.cycles,
            covered.acknowledged,
            covered.repeated,
            covered.lost,
            covered.lost_but_done,
            covered.refused,
            covered.sessions,
            covered.deleted,
            covered.records,
            covered.marks,
            covered.feed_events,
            self.feeds,
            self.replayed,
        )
    }
}

fn add_feeds(followers: Followers, found: &mut Found) -> Result<()> {
    let revisions: BTreeMap<String, u64> = found
        .sessions
        .iter()
        .map(|(id, session)| (id.clone(), session.revision))
        .collect();
    for (id, feed) in followers.finish(&revisions)? {
        let session = found.sessions.get_mut(&id);
        let session = session.with_context(|| format!("nobody read {id}"))?;
        session.feed = Some(feed);
    }
    Ok(())
}

/// `statehold check` has nothing to say against the data.
fn check(program: &Path, data: &Path) -> Result<()> {
    let output = Command::new(program)
        .args(["check", "--data"])
        .arg(data)
        .output()?;
    ensure!(
        output.status.success(),
        "check ended with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The client processes. Each stops when its standard input ends.
#[derive(Debug)]
struct Clients {
    running: Vec<Child>,
    logs: Vec<PathBuf>,
}

impl Clients {
    /// Starts the clients of a round. Their numbers differ from those of all other rounds.
    fn start(
        options: &HttpCrashOptions,
        round: u64,
        directory: &Path,
        data: &Path,
    ) -> Result<Self> {
        let mut clients = Self {
            running: Vec::new(),
            logs: Vec::new(),
        };
        for client in round * options.clients..(round + 1) * options.clients {
            let log = directory.join(format!("client-{client}.log"));
            let load = LoadOptions {
                data: data.to_owned(),
                log: log.clone(),
                seed: options.seed,
                client,
                lanes: options.lanes,
            };
            let child = Command::new(&options.client)
                .args(load.to_args())
                .stdin(Stdio::piped())
                .spawn()
                .context("starting a client")?;
            clients.running.push(child);
            clients.logs.push(log);
        }
        Ok(clients)
    }

    /// Lets them work for a while, and on a slow machine until something was told.
    fn work(&mut self, pause: Duration) -> Result<()> {
        let told_before = self.told()?;
        let began = Instant::now();
        while began.elapsed() < pause || self.told()? < told_before + TOLD_BETWEEN_KILLS {
            self.require_alive()?;
            ensure!(began.elapsed() < MOST, "the clients do not get on");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Bytes that the clients have written down.
    fn told(&self) -> Result<u64> {
        let logs = self.logs.iter().filter(|path| path.is_file());
        logs.map(|path| Ok(std::fs::metadata(path)?.len())).sum()
    }

    fn require_alive(&mut self) -> Result<()> {
        for child in &mut self.running {
            if let Some(status) = child.try_wait()? {
                bail!("a client ended with {status}");
            }
        }
        Ok(())
    }

    fn remove_logs(&self) -> Result<()> {
        self.logs
            .iter()
            .try_for_each(|log| Ok(std::fs::remove_file(log)?))
    }

    /// Lets the clients finish what they are at, and reads their logs.
    fn finish(&mut self) -> Result<Vec<Entry>> {
        for child in &mut self.running {
            drop(child.stdin.take());
        }
        for child in &mut self.running {
            let status = wait(child, MOST)?;
            ensure!(status.success(), "a client ended with {status}");
        }
        let mut entries = Vec::new();
        for path in &self.logs {
            let told = log::read(path)?;
            ensure!(
                told.last() == Some(&Entry::Done),
                "{} is not complete",
                path.display()
            );
            entries.extend(told);
        }
        Ok(entries)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for child in &mut self.running {
            // Ended already, if all went well.
            child.kill().unwrap_or_default();
            drop(child.wait());
        }
    }
}

fn wait(child: &mut Child, most: Duration) -> Result<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < most {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    bail!("a client did not end within {most:?}")
}

#[cfg(test)]
mod tests;

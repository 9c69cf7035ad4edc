//! The server over HTTP as a ratio to the least that a durable turn over HTTP can cost, both measured
//! in the same run: `bench_server [--quick] [--json FILE] [--program STATEHOLD] [--skeleton-only] [--appends-only]`.
//!
//! Both servers run as processes of their own and get the same bytes from the same load generator in
//! this process. `bench_server skeleton DIRECTORY` is the ceiling by itself.

#![expect(
    clippy::cast_precision_loss,
    reason = "counts far below 2^52, printed as rates"
)]

mod drive;
mod skeleton;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use statehold_testkit::http::ServerProcess;

use self::drive::{Rate, median, runtime};

const CONNECTIONS: [u64; 3] = [1, 64, 256];
const OPEN_SESSIONS: u64 = 10_000;
const STARTS: usize = 5;
/// Turns of the session that is read, among others of the same length.
const READ_TURNS: usize = 1_000;
const READ_SESSIONS: u64 = 16;
const READ_ITEMS: u32 = 50;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [command, data] = args.as_slice()
        && command == "skeleton"
    {
        return skeleton::serve(Path::new(data));
    }
    let options = Options::from_args(&args)?;
    let bench = Bench {
        turns: drive::turns(),
        options,
    };
    let result = bench.run()?;
    if let Some(file) = &bench.options.json {
        std::fs::write(file, format!("{result:#}\n"))?;
    } else {
        println!("{result}");
    }
    Ok(())
}

struct Options {
    rounds: usize,
    duration: Duration,
    json: Option<PathBuf>,
    appends_only: bool,
    /// The server, unless only the skeleton is measured.
    program: Option<PathBuf>,
}

impl Options {
    fn from_args(args: &[String]) -> Result<Self> {
        let has = |flag: &str| args.iter().any(|arg| arg == flag);
        let value = |flag: &str| {
            let at = args.iter().position(|arg| arg == flag)?;
            args.get(at + 1).map(PathBuf::from)
        };
        let (rounds, seconds) = if has("--quick") { (1, 1) } else { (3, 4) };
        let mut program = None;
        if !has("--skeleton-only") {
            // Built by the same profile, it lies beside this program.
            let beside = std::env::current_exe()?.with_file_name("statehold");
            let path = value("--program").unwrap_or(beside);
            ensure!(path.is_file(), "there is no {}", path.display());
            program = Some(path);
        }
        Ok(Self {
            rounds,
            duration: Duration::from_secs(seconds),
            json: value("--json"),
            appends_only: has("--appends-only"),
            program,
        })
    }
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Skeleton,
    Statehold,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Skeleton => "skeleton",
            Self::Statehold => "statehold",
        }
    }
}

struct Bench {
    options: Options,
    turns: Arc<Vec<String>>,
}

impl Bench {
    fn run(&self) -> Result<Value> {
        let bytes = self.turns.iter().map(String::len).sum::<usize>() / self.turns.len();
        println!(
            "{} interleaved rounds of {:?}; turns of {bytes} bytes, durable before the answer",
            self.options.rounds, self.options.duration
        );
        let appends = self.appends()?;
        if self.options.appends_only {
            return Ok(
                json!({ "bench": "server", "rounds": self.options.rounds, "appends": appends }),
            );
        }
        let reads = self.reads()?;
        let starts = match &self.options.program {
            Some(program) => starts(program)?,
            None => Value::Null,
        };
        Ok(json!({
            "bench": "server", "rounds": self.options.rounds, "turn_bytes": bytes,
            "appends": appends, "reads": reads, "starts": starts,
        }))
    }

    fn targets(&self) -> &'static [Target] {
        match self.options.program {
            Some(_) => &[Target::Skeleton, Target::Statehold],
            None => &[Target::Skeleton],
        }
    }

    fn start(&self, target: Target, directory: &Path) -> Result<ServerProcess> {
        let (data, log) = (directory.join("data"), directory.join("server.log"));
        match (target, &self.options.program) {
            (Target::Statehold, Some(program)) => ServerProcess::start(program, &data, &log),
            (Target::Statehold | Target::Skeleton, _) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("skeleton").arg(&data);
                ServerProcess::start_command(command, &data, &log)
            }
        }
    }

    fn appends(&self) -> Result<Vec<Value>> {
        let mut lines = Vec::new();
        let mut table = Vec::new();
        for connections in CONNECTIONS {
            let mut rates: [Vec<Rate>; 2] = [Vec::new(), Vec::new()];
            for round in 1..=self.options.rounds {
                for (at, target) in self.targets().iter().enumerate() {
                    let directory = tempfile::tempdir()?;
                    let server = self.start(*target, directory.path())?;
                    let duration = self.options.duration;
                    let rate = drive::measure(&server, connections, duration, &self.turns)
                        .with_context(|| format!("the server said: {}", server.last_words()))?;
                    println!(
                        "  {connections:>3} connections, round {round}, {:>9}: {:>6.0} turns/s",
                        target.name(),
                        rate.per_second
                    );
                    rates[at].push(rate);
                }
            }
            let [raw, ours] = rates.map(|rates| middle(&rates));
            let raw = raw.context("the skeleton is always measured")?;
            table.push((connections, raw, ours));
            lines.push(append_line(connections, raw, ours));
        }
        print_appends(&table);
        Ok(lines)
    }

    /// The last items of a long session: over HTTP from both, and by the raw query.
    fn reads(&self) -> Result<Value> {
        println!("reading the last {READ_ITEMS} items of a session of {READ_TURNS} turns");
        let pause = self.options.duration / 2;
        let paths = ["", "&view=trace"].map(|view| format!("limit={READ_ITEMS}{view}"));
        let mut prepared = Vec::new();
        for target in self.targets() {
            let directory = tempfile::tempdir()?;
            let server = self.start(*target, directory.path())?;
            let fill = drive::fill(server.address(), READ_SESSIONS, READ_TURNS, &self.turns);
            let session = runtime()?.block_on(fill)?;
            prepared.push((*target, directory, server, session));
        }
        let mut times: [Vec<f64>; 5] = Default::default();
        for _ in 0..self.options.rounds {
            for (target, directory, server, session) in &prepared {
                let read = |query: &str| {
                    let path = format!("/v1/sessions/{session}/messages?{query}");
                    runtime()?.block_on(drive::read(server.address(), &path, "", pause))
                };
                match target {
                    Target::Skeleton => {
                        let data = directory.path().join("data");
                        times[0].push(raw_read(&data, session.parse()?, pause)?);
                        times[1].push(read(&paths[0])?.0);
                    }
                    Target::Statehold => {
                        times[2].push(read(&paths[0])?.0);
                        times[3].push(read(&paths[1])?.0);
                        let worker = drive::as_worker(server.address(), session);
                        let (path, header) = runtime()?.block_on(worker)?;
                        let path = format!("{path}?{}", paths[0]);
                        let read = drive::read(server.address(), &path, &header, pause);
                        times[4].push(runtime()?.block_on(read)?.0);
                    }
                }
            }
        }
        let [raw, skeleton, client, trace, agent] = times.map(|times| median(&times));
        println!(
            "{:>28}  {:>8}  {:>9}  {:>10}",
            "", "µs", "to raw", "to skeleton"
        );
        let mut lines = vec![("raw query", raw), ("skeleton, HTTP", skeleton)];
        if self.options.program.is_some() {
            lines.extend([
                ("statehold, agent view", agent),
                ("statehold, client view", client),
                ("statehold, trace view", trace),
            ]);
        }
        for (name, time) in &lines {
            let (to_raw, to_skeleton) = (time / raw, time / skeleton);
            println!("{name:>28}  {time:>8.0}  {to_raw:>9.2}  {to_skeleton:>10.2}");
        }
        let lines = lines.iter().map(|(name, time)| {
            json!({ "read": name, "us": time.round(), "to_raw": rounded(time / raw),
                    "to_skeleton": rounded(time / skeleton) })
        });
        Ok(Value::Array(lines.collect()))
    }
}

/// The run with the median rate.
fn middle(rates: &[Rate]) -> Option<Rate> {
    let mut rates = rates.to_vec();
    rates.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    rates.get(rates.len() / 2).copied()
}

fn append_line(connections: u64, raw: Rate, ours: Option<Rate>) -> Value {
    let side = |rate: Rate| {
        json!({ "turns_per_second": rate.per_second.round(), "cpu_us_per_turn": rate.cpu_us.round(),
                "p50_us": rate.p50_us, "p99_us": rate.p99_us })
    };
    json!({
        "connections": connections,
        "skeleton": side(raw),
        "statehold": ours.map(side),
        "ratio": ours.map(|ours| rounded(ours.per_second / raw.per_second)),
    })
}

fn print_appends(table: &[(u64, Rate, Option<Rate>)]) {
    println!(
        "{:>11}  {:>10}  {:>11}  {:>5}  {:>18}  {:>19}  {:>14}",
        "connections",
        "skeleton/s",
        "statehold/s",
        "ratio",
        "skeleton CPU µs/turn",
        "statehold CPU µs/turn",
        "p50 / p99 ms"
    );
    for (connections, raw, ours) in table {
        let shown = ours.unwrap_or(*raw);
        let times = format!("{:.2} / {:.2}", shown.p50_us / 1e3, shown.p99_us / 1e3);
        let [ours_per_second, ratio, cpu] = match ours {
            Some(ours) => [
                format!("{:.0}", ours.per_second),
                format!("{:.2}", ours.per_second / raw.per_second),
                format!("{:.0}", ours.cpu_us),
            ],
            None => ["-", "-", "-"].map(str::to_owned),
        };
        println!(
            "{connections:>11}  {:>10.0}  {ours_per_second:>11}  {ratio:>5}  {:>20.0}  {cpu:>21}  \
             {times:>14}",
            raw.per_second, raw.cpu_us
        );
    }
}

/// The query of the layout, without HTTP, in this process.
fn raw_read(data: &Path, session: i64, duration: Duration) -> Result<f64> {
    let conn = skeleton::reader(data)?;
    for _ in 0..20 {
        skeleton::last_items(&conn, session, READ_ITEMS)?;
    }
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < duration {
        let one = Instant::now();
        let body = skeleton::last_items(&conn, session, READ_ITEMS)?;
        times.push(u32::try_from(one.elapsed().as_micros())?);
        ensure!(body.len() > 1_000, "the session has no items");
    }
    times.sort_unstable();
    Ok(drive::percentile(&times, 50))
}

/// Start to first answer, and memory with many open sessions.
fn starts(program: &Path) -> Result<Value> {
    println!("starts and memory, {OPEN_SESSIONS} sessions");
    let mut empty = Vec::new();
    for _ in 0..STARTS {
        let directory = tempfile::tempdir()?;
        let server = start_in(program, directory.path())?;
        empty.push(server.ready_after().as_secs_f64() * 1e3);
        server.stop()?;
    }
    let directory = tempfile::tempdir()?;
    let server = start_in(program, directory.path())?;
    let before = server.resident_bytes()?;
    let began = Instant::now();
    let create = drive::create_many(server.address(), OPEN_SESSIONS, 64);
    let created = runtime()?.block_on(create)?;
    ensure!(
        created.len() as u64 == OPEN_SESSIONS,
        "sessions are missing"
    );
    let seconds = began.elapsed().as_secs_f64();
    let after = server.resident_bytes()?;
    server.stop()?;
    let mut full = Vec::new();
    let mut restarted = 0;
    for _ in 0..STARTS {
        let server = start_in(program, directory.path())?;
        full.push(server.ready_after().as_secs_f64() * 1e3);
        restarted = server.resident_bytes()?;
        server.stop()?;
    }
    let (empty, full) = (median(&empty), median(&full));
    let megabytes = |bytes: u64| rounded(bytes as f64 / 1e6);
    let [before, after, restarted] = [before, after, restarted].map(megabytes);
    let per_second = (OPEN_SESSIONS as f64 / seconds).round();
    println!(
        "start to first answer: {empty:.1} ms empty, {full:.1} ms with the sessions\n\
         memory: {before} MB at rest, {after} MB after {OPEN_SESSIONS} sessions were made \
         ({per_second} per second), {restarted} MB after a restart"
    );
    Ok(json!({
        "start_ms_empty": rounded(empty), "start_ms_full": rounded(full),
        "rss_mb_at_rest": before, "rss_mb_after": after, "rss_mb_restarted": restarted,
        "sessions": OPEN_SESSIONS, "sessions_per_second": per_second,
    }))
}

fn start_in(program: &Path, directory: &Path) -> Result<ServerProcess> {
    ServerProcess::start(
        program,
        &directory.join("data"),
        &directory.join("server.log"),
    )
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

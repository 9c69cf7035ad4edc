//! What a turn through a coordinator costs beside its agent, against a plain reverse proxy in the same
//! run; and what it costs to prepare a long history for a call, against reading it:
//! `bench_chat [--quick] [--json FILE] [--program STATEHOLD] [--connections N]
//! [--turns-only | --history-only | --recall | --dial]`. With `--recall` it measures nothing but the cost of finding
//! the session of a client that carries only messages, among 100,000 sessions; with `--dial` nothing but the cost of
//! a chunk that an application of DIAL streams.
//!
//! The agent, the proxy and the server are processes of their own and get the same calls from the same
//! load generator in this process. `bench_chat agent DIRECTORY` and `bench_chat proxy DIRECTORY ADDRESS`
//! are the first two, and `bench_chat dial-agent DIRECTORY` is an application of DIAL.

#![expect(
    clippy::cast_precision_loss,
    reason = "counts far below 2^52, printed as rates"
)]

mod agent;
mod commits;
mod dial;
mod drive;
mod history;
mod listener;
mod proxy;
mod recall;
mod serve;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use statehold_testkit::http::ServerProcess;

use self::drive::{Form, Lanes, Pool, Rate, Written, median, runtime};

const CONNECTIONS: [u64; 3] = [1, 16, 64];
/// More turns than one second sees: how many sessions wait for it.
const TURNS_PER_SECOND_MAX: f64 = 3_000.0;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["agent", data] => return agent::run(Path::new(data)),
        ["dial-agent", data] => return dial::run_agent(Path::new(data)),
        ["proxy", data, address] => return proxy::run(Path::new(data), address),
        _ => {}
    }
    let has = |flag: &str| words.contains(&flag);
    let value = |flag: &str| {
        let at = words.iter().position(|word| *word == flag)?;
        words.get(at + 1).map(PathBuf::from)
    };
    let is_quick = has("--quick");
    let (rounds, milliseconds) = if is_quick { (1, 300) } else { (3, 2_000) };
    let mut result = json!({ "bench": "chat", "rounds": rounds });
    // Built by the same profile, it lies beside this program.
    let beside = std::env::current_exe()?.with_file_name("statehold");
    let program = value("--program").unwrap_or(beside);
    let (is_recall, is_dial) = (has("--recall"), has("--dial"));
    if is_dial {
        result["dial"] = dial::run(&program, rounds, Duration::from_millis(milliseconds))?;
    } else if is_recall {
        result["recall"] = recall::run(&program, is_quick)?;
    } else if !has("--history-only") {
        ensure!(program.is_file(), "there is no {}", program.display());
        let only = value("--connections");
        let only = only.as_deref().and_then(Path::to_str).map(str::parse);
        let bench = Bench {
            program,
            connections: match only.transpose().context("--connections takes a number")? {
                Some(only) => vec![only],
                None => CONNECTIONS.to_vec(),
            },
            rounds,
            duration: Duration::from_millis(milliseconds),
        };
        result["turns"] = bench.run()?;
    }
    if !is_recall && !is_dial && !has("--turns-only") {
        result["history"] = history::run(if is_quick { 5 } else { 25 })?;
    }
    match value("--json") {
        Some(file) => std::fs::write(file, format!("{result:#}\n"))?,
        None => println!("{result}"),
    }
    Ok(())
}

struct Bench {
    program: PathBuf,
    connections: Vec<u64>,
    rounds: usize,
    duration: Duration,
}

/// The three that are called.
struct Servers {
    agent: ServerProcess,
    proxy: ServerProcess,
    statehold: ServerProcess,
    /// Sessions of the last.
    pool: Arc<Pool>,
    _directory: tempfile::TempDir,
}

impl Servers {
    fn start(program: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        let own = |command: &str, more: &[String]| {
            let mut process = Command::new(std::env::current_exe()?);
            process.arg(command).arg(path(command)).args(more);
            let log = path(&format!("{command}.log"));
            ServerProcess::start_command(process, &path(command), &log)
        };
        let agent = own("agent", &[])?;
        let proxy = own("proxy", &[agent.address().to_string()])?;
        std::fs::write(path("statehold.toml"), configuration(&agent))?;
        let mut process = Command::new(program);
        process.args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"]);
        process.arg(path("data"));
        process.env("STATEHOLD_CONFIG", path("statehold.toml"));
        let log = path("statehold.log");
        let statehold = ServerProcess::start_command(process, &path("data"), &log)?;
        Ok(Self {
            agent,
            proxy,
            statehold,
            pool: Arc::default(),
            _directory: directory,
        })
    }
}

/// A router by rules before an agent that remembers nothing.
fn configuration(agent: &ServerProcess) -> String {
    format!(
        "[agents.coordinator]\nkind = \"router\"\nagents = [\"agent\"]\nroute_by = \"rules\"\n\
         rules = [{{ pattern = '^no such words$', agent = \"agent\" }}]\notherwise = \"agent\"\n\
         [agents.agent]\nkind = \"openai\"\nbase_url = \"http://{}/v1\"\nmodel = \"agent\"\n",
        agent.address()
    )
}

/// What was seen of one form of calls over so many connections.
#[derive(Debug, Clone, Copy)]
struct Line {
    connections: u64,
    form: Form,
    agent: Rate,
    proxy: Rate,
    statehold: Rate,
    /// The median wait for a commit by as many writers, without anything around it.
    commit_us: f64,
}

impl Line {
    /// What stands between caller and agent adds so much to the median turn.
    fn added_us(&self, rate: &Rate) -> f64 {
        rate.p50_us - self.agent.p50_us
    }
}

impl Bench {
    fn run(&self) -> Result<Value> {
        println!(
            "{} interleaved rounds of {:?}; {} B asked, {} B answered at once, in {} pieces if \
             streamed; sessions of {} turns",
            self.rounds,
            self.duration,
            drive::ASKED_BYTES,
            agent::ANSWER_BYTES,
            agent::PIECES,
            drive::SESSION_TURNS,
        );
        let mut lines = Vec::new();
        let mut written = Written::default();
        for &connections in &self.connections {
            let servers = Servers::start(&self.program)?;
            let counted = drive::written_per_turn(servers.statehold.address());
            written = runtime()?.block_on(counted)?;
            lines.extend(self.lines(connections, &servers)?);
            let late = servers.pool.made_late.load(Ordering::Relaxed);
            if late > 0 {
                println!("  {late} sessions were made while the clock ran");
            }
            let status = servers.statehold.stop()?;
            ensure!(status.success(), "the server stopped with {status}");
        }
        print_lines(&lines, written);
        let commits = written.commits;
        Ok(json!({
            "records_per_turn": written.records,
            "commits_per_turn": commits,
            "lines": lines.iter().map(|line| line_json(line, commits)).collect::<Vec<_>>(),
        }))
    }

    fn lines(&self, connections: u64, servers: &Servers) -> Result<Vec<Line>> {
        let mut rates: [[Vec<Rate>; 3]; 2] = Default::default();
        let mut commits: [Vec<f64>; 2] = Default::default();
        let seconds = self.duration.as_secs_f64();
        let wanted = TURNS_PER_SECOND_MAX * seconds / drive::SESSION_TURNS as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some hundreds"
        )]
        let wanted = wanted as usize + 2 * usize::try_from(connections)?;
        for round in 1..=self.rounds {
            let both = rates.iter_mut().zip(&mut commits);
            for (form, (rates, commits)) in Form::ALL.into_iter().zip(both) {
                let targets = [
                    ("agent", &servers.agent, None),
                    ("proxy", &servers.proxy, None),
                    ("statehold", &servers.statehold, Some(&servers.pool)),
                ];
                // A disk that others use is slow for moments: commits alone are timed around the turns
                // that they are compared with.
                let alone = || commits::measure(connections, self.duration / 4);
                for ((name, server, pool), rates) in targets.into_iter().zip(rates) {
                    if let Some(pool) = pool {
                        runtime()?.block_on(pool.fill(server.address(), wanted))?;
                        commits.push(alone()?);
                    }
                    let lanes = Lanes {
                        address: server.address(),
                        pool: pool.cloned(),
                        connections,
                        form,
                    };
                    let rate = drive::measure(server, &lanes, self.duration)
                        .with_context(|| format!("{name} said: {}", server.last_words()))?;
                    println!(
                        "  {connections:>2} connections, round {round}, {:>8}, {name:>9}: {:>6.0} turns/s",
                        form.name(),
                        rate.per_second
                    );
                    rates.push(rate);
                }
                commits.push(alone()?);
            }
        }
        let both = rates.into_iter().zip(commits);
        let lines = Form::ALL
            .into_iter()
            .zip(both)
            .map(|(form, (rates, commits))| {
                let [agent, proxy, statehold] = rates.map(|rates| middle(&rates));
                Line {
                    connections,
                    form,
                    agent,
                    proxy,
                    statehold,
                    commit_us: median(&commits),
                }
            });
        Ok(lines.collect())
    }
}

/// The median of each figure.
fn middle(rates: &[Rate]) -> Rate {
    let of = |figure: fn(&Rate) -> f64| median(&rates.iter().map(figure).collect::<Vec<_>>());
    Rate {
        per_second: of(|rate| rate.per_second),
        cpu_us: of(|rate| rate.cpu_us),
        p50_us: of(|rate| rate.p50_us),
        p99_us: of(|rate| rate.p99_us),
        first_word_us: of(|rate| rate.first_word_us),
    }
}

fn print_lines(lines: &[Line], Written { records, commits }: Written) {
    println!(
        "\n{:>11}  {:>8}  {:>9}  {:>7}  {:>7}  {:>10}  {:>8}  {:>6}  {:>8}",
        "connections",
        "form",
        "",
        "p50 ms",
        "p99 ms",
        "first word",
        "turns/s",
        "CPU µs",
        "to proxy"
    );
    for line in lines {
        for (name, rate) in [
            ("agent", &line.agent),
            ("proxy", &line.proxy),
            ("statehold", &line.statehold),
        ] {
            println!(
                "{:>11}  {:>8}  {name:>9}  {:>7.2}  {:>7.2}  {:>10.2}  {:>8.0}  {:>6.0}  {:>8.2}",
                line.connections,
                line.form.name(),
                rate.p50_us / 1e3,
                rate.p99_us / 1e3,
                rate.first_word_us / 1e3,
                rate.per_second,
                rate.cpu_us,
                rate.p50_us / line.proxy.p50_us,
            );
        }
    }
    println!(
        "\nadded to the agent's own time, at the median; a turn is {records:.1} records in {commits:.1} \
         durable commits, one after another\n{:>11}  {:>8}  {:>8}  {:>12}  {:>21}  {:>8}  {:>8}",
        "connections", "form", "proxy ms", "statehold ms", "commits alone ms", "of it", "ratio"
    );
    for line in lines {
        let (proxy, ours) = (line.added_us(&line.proxy), line.added_us(&line.statehold));
        let alone = commits * line.commit_us;
        let shown = format!(
            "{commits:.1} x {:.2} = {:.2}",
            line.commit_us / 1e3,
            alone / 1e3
        );
        let share = match share(line, commits) {
            Some(share) => format!("{:.0}%", 100.0 * share),
            None => "noise".to_owned(),
        };
        println!(
            "{:>11}  {:>8}  {:>8.2}  {:>12.2}  {shown:>21}  {share:>8}  {:>8.1}",
            line.connections,
            line.form.name(),
            proxy / 1e3,
            ours / 1e3,
            ours / proxy,
        );
    }
    println!(
        "  commits alone: as many commits of 1 KB by as many writers, grouped, with nothing around \
         them, timed just before\n  and after the turns; `noise` where they took longer than the turns \
         that contain them, because others use the disk\n  in the figures of statehold: HTTP on both sides, the session's rights, routing by \
         rules, up to {} earlier\n  exchanges given back to the agent, each step durable before the \
         agent is asked, the whole conversation kept\n  not in them: models, tools, TLS, the making of sessions, \
         the agent's own time (taken off in the last table)\n  the load generator, the agent and the \
         server share the processors of this machine",
        drive::SESSION_TURNS - 1,
    );
}

/// How much of what is added are the commits. None where they took longer alone than in the turns: then
/// the disk was not the same for both.
fn share(line: &Line, commits: f64) -> Option<f64> {
    let share = commits * line.commit_us / line.added_us(&line.statehold);
    (0.0..=1.0).contains(&share).then_some(share)
}

fn line_json(line: &Line, commits: f64) -> Value {
    let side = |rate: &Rate| {
        json!({ "turns_per_second": rate.per_second.round(), "cpu_us_per_turn": rate.cpu_us.round(),
                "p50_us": rate.p50_us, "p99_us": rate.p99_us, "first_word_us": rate.first_word_us })
    };
    let (proxy, ours) = (line.added_us(&line.proxy), line.added_us(&line.statehold));
    json!({
        "connections": line.connections, "form": line.form.name(),
        "agent": side(&line.agent), "proxy": side(&line.proxy), "statehold": side(&line.statehold),
        "added_by_proxy_us": proxy.round(), "added_by_statehold_us": ours.round(),
        "commit_alone_us": line.commit_us.round(), "commits_alone_us": (commits * line.commit_us).round(),
        "commits_share": share(line, commits).map(rounded),
        "p50_to_proxy": rounded(line.statehold.p50_us / line.proxy.p50_us),
        "rate_to_proxy": rounded(line.statehold.per_second / line.proxy.per_second),
    })
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

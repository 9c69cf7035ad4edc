//! Finding the session of a client that carries nothing but messages, among many sessions, against calls with
//! the same messages that name it; and the bytes that the store keeps to find it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;
use serde_json::{Value, json};
use statehold_testkit::http::ServerProcess;
use statehold_testkit::workload::Random;

use super::drive::{ASKED_BYTES, Form, Heard, Rate, Wire, percentile, runtime};
use super::{Servers, agent, middle, rounded};

/// How many connections make the sessions.
const FILL_CONNECTIONS: usize = 64;
/// How many sessions are made between two lines of progress.
const PROGRESS: usize = 20_000;
/// How many connections call, and how many calls they make in a round.
const LOADS: [(usize, usize); 2] = [(1, 500), (16, 4_000)];
/// The most that finding a session may cost, as a multiple of naming it.
const RATIO_MAX: f64 = 1.3;

/// How a call says which session it continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By a header.
    Named,
    /// By its messages alone.
    Found,
}

impl Way {
    const ALL: [Self; 2] = [Self::Named, Self::Found];

    fn name(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Found => "found",
        }
    }
}

/// The sessions that were made, each of one turn, and the order in which they are continued.
struct Sessions {
    address: SocketAddr,
    ids: Vec<String>,
    order: Vec<usize>,
    /// How many of them have been continued.
    used: AtomicUsize,
}

/// Measures, and gives the figures.
pub(crate) fn run(program: &Path, is_quick: bool) -> Result<Value> {
    let (count, rounds, part) = if is_quick {
        (2_000, 1, 10)
    } else {
        (100_000, 5, 1)
    };
    let servers = Servers::start(program)?;
    let server = &servers.statehold;
    println!("{count} sessions of one turn, then {rounds} interleaved rounds of second turns");
    let sessions = runtime()?.block_on(fill(server.address(), count))?;
    let sessions = Arc::new(sessions);
    let mut lines = Vec::new();
    for (connections, calls) in LOADS {
        let mut rates: [Vec<Rate>; 2] = Default::default();
        for _ in 0..rounds {
            for (way, rates) in Way::ALL.into_iter().zip(&mut rates) {
                rates.push(measure(server, &sessions, way, connections, calls / part)?);
            }
        }
        lines.push((connections, rates.map(|rates| middle(&rates))));
    }
    let Servers {
        statehold,
        _directory: directory,
        ..
    } = servers;
    let status = statehold.stop()?;
    ensure!(status.success(), "the server stopped with {status}");
    let file = directory.path().join("data").join("statehold.db");
    let (rows, bytes) = stored(&file)?;
    Ok(report(count, &lines, bytes as f64 / rows as f64))
}

/// The first message of a session.
fn first_message(session: usize) -> String {
    Random::new(session as u64).text(ASKED_BYTES)
}

/// Makes sessions of one turn, by calls that name none.
async fn fill(address: SocketAddr, count: usize) -> Result<Sessions> {
    let next = Arc::new(AtomicUsize::new(0));
    let lanes: Vec<_> = (0..FILL_CONNECTIONS)
        .map(|_| {
            let next = Arc::clone(&next);
            tokio::spawn(async move {
                let mut wire = Wire::connect(address).await?;
                let mut made = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return Ok::<_, anyhow::Error>(made);
                    }
                    if n > 0 && n.is_multiple_of(PROGRESS) {
                        println!("  {n} sessions");
                    }
                    let call = call_bytes(address, &json!([user(&first_message(n))]), None);
                    wire.call(&call, Form::Whole).await?;
                    made.push((n, wire.session()?));
                }
            })
        })
        .collect();
    let mut ids = vec![String::new(); count];
    for lane in lanes {
        for (n, id) in lane.await?? {
            ids[n] = id;
        }
    }
    // Which session a call continues says nothing about its age.
    let mut random = Random::new(1);
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        let other = usize::try_from(random.below(at as u64 + 1))?;
        order.swap(at, other);
    }
    Ok(Sessions {
        address,
        ids,
        order,
        used: AtomicUsize::new(0),
    })
}

/// Continues so many sessions, each for the first time.
fn measure(
    server: &ServerProcess,
    sessions: &Arc<Sessions>,
    way: Way,
    connections: usize,
    calls: usize,
) -> Result<Rate> {
    let end = sessions.used.load(Ordering::Relaxed) + calls;
    ensure!(end <= sessions.ids.len(), "too few sessions");
    let (began, cpu) = (Instant::now(), server.cpu()?);
    let heard = runtime()?.block_on(async {
        let lanes: Vec<_> = (0..connections)
            .map(|_| tokio::spawn(continue_sessions(Arc::clone(sessions), way, end)))
            .collect();
        let mut heard = Vec::new();
        for lane in lanes {
            heard.extend(lane.await??);
        }
        Ok::<_, anyhow::Error>(heard)
    })?;
    sessions.used.store(end, Ordering::Relaxed);
    let (elapsed, cpu) = (began.elapsed(), server.cpu()?.saturating_sub(cpu));
    let sorted = |time: fn(&Heard) -> u32| {
        let mut times: Vec<u32> = heard.iter().map(time).collect();
        times.sort_unstable();
        times
    };
    let (all, first_words) = (sorted(|one| one.all), sorted(|one| one.first_word));
    Ok(Rate {
        per_second: calls as f64 / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / calls as f64,
        p50_us: percentile(&all, 50),
        p99_us: percentile(&all, 99),
        first_word_us: percentile(&first_words, 50),
    })
}

/// Continues sessions over one connection until `end` of them have been, and gives the times of its calls.
async fn continue_sessions(sessions: Arc<Sessions>, way: Way, end: usize) -> Result<Vec<Heard>> {
    let mut wire = Wire::connect(sessions.address).await?;
    let answer = json!({ "role": "assistant", "content": agent::text() });
    let mut heard = Vec::new();
    loop {
        let at = sessions.used.fetch_add(1, Ordering::Relaxed);
        if at >= end {
            return Ok(heard);
        }
        let session = sessions.order[at];
        let id = &sessions.ids[session];
        let second = format!("and {}", Random::new(at as u64).text(ASKED_BYTES));
        let messages = json!([user(&first_message(session)), answer, user(&second)]);
        let name = (way == Way::Named).then_some(id.as_str());
        let call = call_bytes(sessions.address, &messages, name);
        heard.push(wire.call(&call, Form::Whole).await?);
        let continued = wire.session()?;
        ensure!(continued == *id, "{continued} was found for {id}");
    }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// The bytes of a call. Both ways have the same body.
fn call_bytes(address: SocketAddr, messages: &Value, session: Option<&str>) -> Vec<u8> {
    let body = json!({ "model": "coordinator", "messages": messages }).to_string();
    let session = session.map(|id| format!("x-statehold-session: {id}\r\n"));
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         {}content-length: {}\r\n\r\n{body}",
        session.unwrap_or_default(),
        body.len()
    )
    .into_bytes()
}

/// The rows by which sessions are found, and the bytes of their table and its index: the pages that would be free
/// without them.
fn stored(file: &Path) -> Result<(i64, i64)> {
    let mut conn = Connection::open(file)?;
    let number = |conn: &Connection, sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let rows = number(&conn, "SELECT count(*) FROM chat_request").context("no index")?;
    let page = number(&conn, "PRAGMA page_size")?;
    let undone = conn.transaction()?;
    let free = number(&undone, "PRAGMA freelist_count")?;
    undone.execute_batch("DROP TABLE chat_request")?;
    let freed = number(&undone, "PRAGMA freelist_count")? - free;
    undone.rollback()?;
    Ok((rows, freed * page))
}

fn report(count: usize, lines: &[(usize, [Rate; 2])], bytes_per_turn: f64) -> Value {
    println!(
        "\n{:>11}  {:>7}  {:>7}  {:>7}  {:>6}  {:>8}",
        "connections", "session", "p50 ms", "p99 ms", "CPU µs", "to named"
    );
    let mut figures = Vec::new();
    for (connections, rates) in lines {
        for (way, rate) in Way::ALL.into_iter().zip(rates) {
            let ratio = rounded(rate.p50_us / rates[0].p50_us);
            println!(
                "{connections:>11}  {:>7}  {:>7.2}  {:>7.2}  {:>6.0}  {ratio:>8.2}",
                way.name(),
                rate.p50_us / 1e3,
                rate.p99_us / 1e3,
                rate.cpu_us,
            );
            figures.push(json!({
                "connections": connections, "session": way.name(), "p50_us": rate.p50_us,
                "p99_us": rate.p99_us, "cpu_us": rate.cpu_us.round(), "p50_to_named": ratio,
            }));
        }
    }
    println!(
        "  the bar for found is {RATIO_MAX} at the median; {bytes_per_turn:.0} bytes per turn are kept to find its \
         session, up to 256 turns\n  of a session, and 74 bytes of its record are the digest of the message"
    );
    json!({ "sessions": count, "lines": figures, "bytes_per_turn": bytes_per_turn.round() })
}

//! Thousands of connections that say nothing, also where the system allows few files.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use statehold_server::accept::AcceptOptions;
use tokio::net::TcpStream;

use crate::rest::new_session;
use crate::rig::{Rig, Setup, Who, until};

const IDLE: usize = 3_000;
/// Set for the process that serves with few files.
const FEW_FILES: &str = "STATEHOLD_TEST_FEW_FILES";

fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, wanted).expect("the limit may be raised to its maximum");
}

async fn connect_idle(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut idle = Vec::with_capacity(count);
    for _ in 0..count {
        idle.push(TcpStream::connect(address).await.expect("a connection"));
    }
    idle
}

#[tokio::test]
async fn thousands_of_idle_connections_keep_nobody_out_and_are_cut() {
    raise_file_limit();
    let setup = Setup {
        accept: AcceptOptions {
            head_read_timeout: Duration::from_secs(20),
            ..AcceptOptions::default()
        },
        ..Setup::default()
    };
    let rig = Rig::with(setup).await;
    let ann = rig.client("ann").await;
    let idle = connect_idle(rig.address, IDLE).await;
    until("all are accepted", || async {
        (rig.connections.load(Ordering::Relaxed) >= IDLE).then_some(())
    })
    .await;
    new_session(&ann).await;
    ann.get("/v1/sessions").await.ok(200);
    until("all are cut", || async {
        (rig.connections.load(Ordering::Relaxed) == 0).then_some(())
    })
    .await;
    drop(idle);
}

/// Not a test of its own: the server of the next one, in a process with few files.
#[tokio::test]
async fn a_process_with_few_files_serves_until_its_input_ends() {
    if std::env::var_os(FEW_FILES).is_none() {
        return;
    }
    let few = Rlimit {
        current: Some(1_024),
        maximum: Some(1_024),
    };
    setrlimit(Resource::Nofile, few).expect("a limit may be lowered");
    let setup = Setup {
        accept: AcceptOptions {
            // What the program chooses for such a limit.
            connections_max: 1_024 - 128,
            head_read_timeout: Duration::from_mins(1),
            ..AcceptOptions::default()
        },
        ..Setup::default()
    };
    let rig = Rig::on_disk_with(setup).await;
    let backend = rig.key(&["client"]).await;
    println!("\nserving {} {}", rig.address, backend.key.expect("a key"));
    let wait =
        tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new()));
    drop(wait.await.expect("no panic"));
}

#[tokio::test]
async fn a_server_with_few_files_goes_on_writing_and_serves_new_callers_in_place_of_idle_ones() {
    raise_file_limit();
    let program = std::env::current_exe().expect("this program has a path");
    let mut server = Command::new(program)
        .args(["--exact", "--nocapture"])
        .arg("input::files::a_process_with_few_files_serves_until_its_input_ends")
        .env(FEW_FILES, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("this program runs");
    let output = server.stdout.take().expect("a pipe");
    // Kept open until the end: the server has more to say.
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let line = lines
        .find(|line| line.starts_with("serving "))
        .expect("the server says where it is");
    let mut words = line.split(' ').skip(1);
    let address: SocketAddr = words
        .next()
        .and_then(|w| w.parse().ok())
        .expect("an address");
    let backend = Who {
        address,
        key: words.next().map(str::to_owned),
        id: String::new(),
    };
    let idle = connect_idle(address, 1_500).await;
    // New users and their keys need files on disk.
    for user in 0..20 {
        let body = json!({"app": "demo", "user": format!("u{user}")});
        backend.post("/v1/sessions", &body).await.ok(201);
        backend.get("/healthz").await.ok(200);
    }
    drop(idle);
    let mut input = server.stdin.take().expect("a pipe");
    writeln!(input).expect("the server listens");
    drop(input);
    let rest: Vec<String> = lines.collect();
    assert!(server.wait().expect("it ends").success(), "{rest:?}");
}

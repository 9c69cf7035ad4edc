//! Two hostile clients and eight good ones on a server with 4 GB of address space: it does not end, and every good
//! turn is right. Nothing here depends on time.

use std::process::Command;
use std::time::Duration;

use statehold_testkit::hostile::{
    GOOD, GoodClient, HOSTILE, HostileClients, HostileQuota, limited, make_key,
};
use statehold_testkit::http::ServerProcess;

use super::statehold;

/// How many turns each good client runs, at least; they go on until the hostile clients have done their part.
const TURNS: usize = 8;
const PART: HostileQuota = HostileQuota {
    unions: 4,
    sessions: 1_000,
    unread: 40,
    idle: 700,
    lists: 400,
};

#[test]
fn hostile_clients_cost_good_ones_no_turn() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir_all(&data).expect("a directory");
    let mut command = Command::new(statehold());
    command.args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"]);
    command.arg(&data);
    let log = directory.path().join("log");
    let server = ServerProcess::start_command(limited(&command), &data, &log);
    let server = server.expect("it starts");
    let address = server.address();
    let key = |user: String| make_key(address, &user).expect("a key");
    let hostile: Vec<String> = (0..HOSTILE).map(|n| key(format!("eve-{n}"))).collect();
    let good: Vec<String> = (0..GOOD).map(|n| key(format!("ann-{n}"))).collect();
    let hostile = HostileClients::start(address, &hostile, PART);
    let goes_on = || !hostile.counts().is_done(&PART, HOSTILE);
    let (delayed, cut) = std::thread::scope(|scope| {
        let running: Vec<_> = good
            .iter()
            .map(|key| {
                scope.spawn(|| {
                    let mut client = GoodClient::start(address, key).expect("a session");
                    let mut turns = 0;
                    while turns < TURNS || goes_on() {
                        client.turn().expect("a whole turn");
                        turns += 1;
                        std::thread::park_timeout(Duration::from_millis(50));
                    }
                    (client.delayed, client.cut)
                })
            })
            .collect();
        let ended = running.into_iter().map(|one| one.join().expect("no panic"));
        ended.fold((0, 0), |(delayed, cut), one| (delayed + one.0, cut + one.1))
    });
    println!(
        "{:?}; good clients: {delayed} answers to try again, {cut} connections cut",
        hostile.counts()
    );
    drop(hostile);
    // The shares are per key, so nothing of theirs was used up by others.
    assert_eq!(delayed, 0, "429 or 503 for good clients");
    let ended = server.stop().expect("it runs to the end");
    assert!(ended.success(), "{ended}");
}

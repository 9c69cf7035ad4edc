//! Output and exit codes of the command line.

#[path = "cli/agents.rs"]
mod agents;
#[path = "cli/approvals.rs"]
mod approvals;
#[path = "cli/audit.rs"]
mod audit;
#[path = "cli/chat.rs"]
mod chat;
#[path = "cli/debug_log.rs"]
mod debug_log;
#[path = "cli/live.rs"]
mod live;
#[path = "cli/names.rs"]
mod names;
#[path = "cli/remote.rs"]
mod remote;
#[path = "cli/screens.rs"]
mod screens;
#[path = "cli/scripted.rs"]
mod scripted;
#[path = "cli/state.rs"]
mod state;
#[path = "cli/tasks.rs"]
mod tasks;
#[path = "cli/watch.rs"]
mod watch;

use std::path::Path;
use std::process::Command;

/// Runs the program and returns its exit code and everything it said.
fn run(args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_statehold"))
        .args(args)
        .output();
    let output = output.expect("the program starts");
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().expect("it ends by itself");
    (code, String::from_utf8(said).expect("it speaks UTF-8"))
}

#[track_caller]
fn check(args: &[&str], code: i32, says: &[&str]) {
    let (found, said) = run(args);
    assert_eq!(found, code, "{args:?} said: {said}");
    for words in says {
        assert!(
            said.contains(words),
            "{args:?} does not say {words:?} but: {said}"
        );
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn wrong_calls_say_what_to_do() {
    check(&["check"], 2, &["--data"]);
    check(
        &["check", "--data", "no such place"],
        1,
        &["there is no data in", "--data"],
    );
    check(
        &["check", "--data", "x", "--print-chain", "ses_1"],
        2,
        &["32 lower-case hexadecimal"],
    );
    check(
        &["backup", "--data", "no such place", "x"],
        1,
        &["there is no data in", "--data"],
    );
}

#[test]
fn damage_ends_with_code_ten_and_a_place() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = text(directory.path());
    let options = statehold_store::sqlite::SqliteOptions::default();
    let store = statehold_store::sqlite::SqliteStore::open(directory.path(), options);
    drop(store.expect("a new store opens"));
    check(
        &["check", "--data", data],
        0,
        &["0 sessions", "✓ everything is what the log says"],
    );
    let copy = directory.path().join("copy.db");
    check(
        &["backup", "--data", data, text(&copy)],
        0,
        &["copy.db", "key-ring", "user-keys"],
    );
    check(
        &["backup", "--data", data, text(&copy)],
        1,
        &["exists already"],
    );
    let file = directory.path().join(statehold_store::sqlite::FILE_NAME);
    let bytes = std::fs::read(&file).expect("one tidy file");
    // The second page holds the first table, so overwriting it is damage.
    let damaged = [&bytes[..4096], &[0xff; 4096][..], &bytes[8192..]].concat();
    std::fs::write(&file, damaged).expect("the file is overwritten");
    check(&["check", "--data", data], 10, &["✗"]);
}

#[test]
fn only_the_owner_can_read_data_and_backups() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let options = statehold_store::sqlite::SqliteOptions::default();
    let store = statehold_store::sqlite::SqliteStore::open(directory.path(), options);
    let store = store.expect("a new store opens");
    let mut names = vec!["statehold.db", "statehold.db-wal", "statehold.db-shm"];
    names.retain(|name| directory.path().join(name).exists());
    assert_eq!(names.len(), 3, "the store is open");
    let mode = |name: &str| {
        let found = std::fs::metadata(directory.path().join(name)).expect("the file is there");
        found.permissions().mode() & 0o777
    };
    assert_eq!(
        names.iter().map(|name| mode(name)).collect::<Vec<_>>(),
        [0o600; 3]
    );
    drop(store);
    let copy = directory.path().join("copy.db");
    check(
        &["backup", "--data", text(directory.path()), text(&copy)],
        0,
        &["copy.db"],
    );
    assert_eq!(mode("copy.db"), 0o600);
}

#[test]
fn a_damaged_backup_is_not_restored_and_ends_with_code_ten_and_a_place() {
    let directory = tempfile::tempdir().expect("a directory");
    let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
    let options = statehold_store::sqlite::SqliteOptions::default();
    drop(statehold_store::sqlite::SqliteStore::open(&from, options).expect("a new store opens"));
    let copy = directory.path().join("copy.db");
    check(&["backup", "--data", text(&from), text(&copy)], 0, &[]);
    let mut bytes = std::fs::read(&copy).expect("reads");
    // The kind of the second page: a leaf of a table becomes a page of no kind.
    bytes[4096] ^= 1;
    std::fs::write(&copy, bytes).expect("writes");
    let restore = ["restore", text(&copy), "--data", text(&to)];
    let told = ["the backup is damaged", "because:", "use another backup"];
    check(&restore, 10, &told);
    assert!(!to.exists(), "a data directory was left behind");
}

#[test]
fn a_backup_is_restored_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
    let options = statehold_store::sqlite::SqliteOptions::default();
    drop(statehold_store::sqlite::SqliteStore::open(&from, options).expect("a new store opens"));
    let copy = directory.path().join("copy.db");
    check(&["backup", "--data", text(&from), text(&copy)], 0, &[]);
    let restore = ["restore", text(&copy), "--data", text(&to)];
    check(
        &restore,
        0,
        &["key-ring", "user-keys", "statehold check --data"],
    );
    check(
        &["check", "--data", text(&to)],
        0,
        &["0 sessions", "✓ everything is what the log says"],
    );
    check(&restore, 1, &["the backup was not restored"]);
    check(
        &["restore", "no such file", "--data", text(&to)],
        3,
        &["there is no backup"],
    );
}

#[test]
fn a_user_is_erased_and_the_key_ring_rotated_without_a_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = text(directory.path());
    let users = ["users", "erase", "bob", "--data", data];
    check(&users, 2, &["needs a confirmation", "--yes"]);
    check(
        &["keys", "list", "--data", data],
        1,
        &["there is no data in"],
    );
    let token = [
        "token", "create", "--role", "client", "--user", "bob", "--data", data,
    ];
    check(&token, 0, &["shk_"]);
    let kept = || std::fs::read_to_string(directory.path().join("user-keys")).expect("reads");
    assert!(kept().contains("usr_"));
    let confirmed = [&users[..], &["--yes"]].concat();
    let told = [
        "✓ erased bob (usr_",
        "0 sessions deleted, 1 key revoked",
        "user-keys",
    ];
    check(&confirmed, 0, &told);
    assert!(!kept().contains("usr_"));
    check(&confirmed, 3, &["there is no user bob"]);
    check(&["keys", "list", "--data", data], 0, &["seals and opens"]);
    let before = kept();
    check(
        &["keys", "rotate", "--data", data],
        0,
        &["opens", "seals and opens", "key-ring"],
    );
    assert_ne!(kept(), before, "the keys are wrapped again");
    check(
        &["check", "--data", data],
        0,
        &["✓ everything is what the log says"],
    );
}

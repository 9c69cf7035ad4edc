//! Values of apps, users and sessions.

use super::live::Live;

#[test]
fn values_of_apps_and_sessions_are_read_and_written() {
    let live = Live::start();
    live.check(&["state", "get", "app:x"], 3, &["state list"]);
    live.check(&["state", "set", "app:x", "{\"a\":1}"], 0, &[]);
    let got = live.check(&["state", "get", "app:x"], 0, &[]);
    assert_eq!(got.out, "{\"a\":1}\n");
    live.check(
        &["state", "set", "user:y", "plain words", "--user", "ann"],
        0,
        &[],
    );
    live.check(
        &["state", "list", "--user", "ann"],
        0,
        &["user:y", "plain words"],
    );
    live.check(&["state", "get", "user:y"], 2, &["--user"]);
    live.check(&["state", "get", "z"], 2, &["--session"]);
    live.check(&["state", "delete", "app:x"], 0, &[]);
    live.check(&["state", "get", "app:x"], 3, &[]);
}

//! Commands that call a server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::scripted::{Answer, CERTIFICATE, Scripted, events, json, redirect};

const SESSION: &str = "ses_0198a000000070008000000000000001";
const OTHER: &str = "ses_0198a000000070008000000000000002";

/// How a run of the program ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs the program in an empty directory, with only these environment variables.
pub(super) fn run(args: &[&str], variables: &[(&str, &str)]) -> Ended {
    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_statehold"))
        .args(args)
        .env_clear()
        .envs(variables.iter().copied())
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    Ended {
        code: output.status.code().expect("it ends by itself"),
        out: String::from_utf8(output.stdout).expect("it speaks UTF-8"),
        err: String::from_utf8(output.stderr).expect("it speaks UTF-8"),
    }
}

/// Runs the program against a server that answers with a script.
fn ask(args: &[&str], script: Vec<Answer>) -> (Ended, Scripted) {
    let server = Scripted::start(script);
    let ended = run(args, &[("STATEHOLD_URL", &server.url)]);
    (ended, server)
}

fn session(id: &str, name: &str) -> String {
    let name = serde_json::Value::from(name);
    format!(
        r#"{{"id":"{id}","app":"demo","user":"bob","name":{name},"agent":"coordinator","status":"paused","revision":7,"labels":{{"team":"blue"}},"created_at":"2026-08-06T11:00:00.000000Z","updated_at":"2026-08-06T12:00:00.000000Z"}}"#
    )
}

fn page(sessions: &[String], cursor: Option<&str>) -> Answer {
    let cursor = cursor.map_or_else(String::new, |cursor| {
        format!(r#","next_cursor":"{cursor}""#)
    });
    json(
        200,
        &format!(r#"{{"sessions":[{}]{cursor}}}"#, sessions.join(",")),
    )
}

#[test]
fn a_list_for_a_pipe_has_tabs_and_exact_times() {
    let script = vec![page(
        &[session(SESSION, "weekly \u{1b}[31mreport\n2")],
        None,
    )];
    let (ended, server) = ask(
        &["sessions", "list", "--app", "demo", "--query", "a b&c"],
        script,
    );
    assert_eq!(
        ended.out,
        format!(
            "SESSION\tSTATUS\tAPP\tUSER\tNAME\tAGENT\tREVISION\tUPDATED\n\
             {SESSION}\tpaused\tdemo\tbob\tweekly \\u{{1b}}[31mreport\\n2\tcoordinator\t7\t\
             2026-08-06T12:00:00.000000Z\n"
        )
    );
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert_eq!(
        server.lines(),
        ["GET /v1/sessions?app=demo&q=a%20b%26c&limit=50"]
    );
}

#[test]
fn a_list_goes_on_until_it_has_enough_even_after_an_empty_page() {
    let script = || {
        vec![
            page(&[session(SESSION, "a")], Some("c1")),
            page(&[], Some("c2")),
            page(&[session(OTHER, "b")], Some("c3")),
        ]
    };
    let (ended, server) = ask(
        &["sessions", "list", "--limit", "2", "--no-headers"],
        script(),
    );
    assert_eq!(ended.out.lines().count(), 2);
    assert_eq!(
        server.lines(),
        [
            "GET /v1/sessions?limit=2",
            "GET /v1/sessions?cursor=c1&limit=1",
            "GET /v1/sessions?cursor=c2&limit=1"
        ]
    );
    let (ended, _) = ask(&["sessions", "list", "--limit", "2", "--json"], script());
    let answer: serde_json::Value = serde_json::from_str(&ended.out).expect("one document");
    assert_eq!(answer["next_cursor"], "c3");
    assert_eq!(answer["sessions"].as_array().map(Vec::len), Some(2));
}

#[test]
fn nobody_answering_says_how_to_start_a_server() {
    let server = Scripted::start(Vec::new());
    // The script is over before it begins: the port is closed, or is just being closed.
    let args = ["sessions", "list", "--url", server.url.as_str()];
    let ended = run(&args, &[]);
    assert_eq!(ended.code, 6, "{ended:?}");
    let ended = run(&["sessions", "list", "--url", "http://127.0.0.1:1"], &[]);
    assert_eq!(
        ended.err,
        "error: no Statehold server answers at http://127.0.0.1:1\n  start one with: statehold dev        \
         or point elsewhere: --url / STATEHOLD_URL\n"
    );
    assert_eq!((ended.code, ended.out.as_str()), (6, ""));
}

#[test]
fn a_key_that_is_not_taken_is_not_asked_for_again() {
    let refusal = r#"{"status":401,"detail":"send a valid key","code":"unauthenticated"}"#;
    let server = Scripted::start(vec![json(401, refusal); 2]);
    let url = ("STATEHOLD_URL", server.url.as_str());
    let with_key = run(&["sessions", "list"], &[url, ("STATEHOLD_TOKEN", "shk_x")]);
    assert_eq!(with_key.code, 4, "{with_key:?}");
    assert!(
        with_key.err.contains("unknown, revoked or expired"),
        "{with_key:?}"
    );
    let without = run(&["sessions", "list"], &[url]);
    assert!(without.err.contains("pass a key"), "{without:?}");
}

#[test]
fn the_name_of_a_request_leads_to_its_hold() {
    let ended = run(&["approvals", "approve", "ab12cd/R4"], &[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.err.contains("ab12cd/R4.h1"), "{ended:?}");
}

#[test]
fn refusals_have_their_codes_and_errors_in_json_are_json() {
    let problem = |code: &str| format!(r#"{{"status":0,"detail":"said {code}","code":"{code}"}}"#);
    for (status, code, exit) in [
        (401, "unauthenticated", 4),
        (403, "forbidden", 4),
        (404, "not_found", 3),
        (409, "hold_decided", 5),
        (410, "hold_expired", 5),
        (412, "revision_mismatch", 5),
        (422, "bad_request", 1),
        (503, "stopping", 1),
    ] {
        let (ended, _) = ask(
            &["sessions", "show", SESSION, "--json"],
            vec![json(status, &problem(code))],
        );
        assert_eq!(ended.code, exit, "{status}: {ended:?}");
        let error: serde_json::Value = serde_json::from_str(&ended.err).expect("JSON");
        assert_eq!(error["error"]["code"], exit);
        assert_eq!(error["error"]["kind"], code.to_ascii_uppercase());
        assert_eq!(error["error"]["message"], format!("said {code}"));
    }
}

#[test]
fn wrong_calls_in_json_are_json_too() {
    let ended = run(&["sessions", "--json", "lost"], &[]);
    let error: serde_json::Value = serde_json::from_str(&ended.err).expect("JSON");
    assert_eq!(error["error"]["kind"], "USAGE");
    assert_eq!(ended.code, 2);
    let ended = run(&["status", "--url", "a.example:7717"], &[]);
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains("http:// or https://"), "{}", ended.err);
}

#[test]
fn an_https_server_is_called_if_its_certificate_is_trusted() {
    let directory = tempfile::tempdir().expect("a directory");
    let ask = |args: &[&str], roots: &str, script: Vec<Answer>| {
        let file = directory.path().join("roots.pem");
        std::fs::write(&file, roots).expect("a file");
        let server = Scripted::start_tls(script);
        let variables = [
            ("STATEHOLD_URL", server.url.as_str()),
            ("STATEHOLD_TOKEN", "shk_secret"),
            ("SSL_CERT_FILE", file.to_str().expect("a plain path")),
        ];
        (run(args, &variables), server)
    };
    let list = ["sessions", "list", "--no-headers"];
    let script = || vec![page(&[session(SESSION, "a")], None)];
    let (ended, server) = ask(&list, CERTIFICATE, script());
    assert!(ended.out.starts_with(SESSION), "{ended:?}");
    let headers = &server.calls()[0].headers;
    assert!(
        headers.contains("authorization: bearer shk_secret\n"),
        "{headers}"
    );

    let script_of_feed = vec![
        json(200, &session(SESSION, "a")),
        events(": awake\n\nid: 1\nevent: record\ndata: {\"revision\":1}\n\n"),
    ];
    let tail = [
        "sessions", "tail", SESSION, "--after", "0", "--count", "1", "--jsonl",
    ];
    let (ended, _) = ask(&tail, CERTIFICATE, script_of_feed);
    assert_eq!(
        (ended.out.as_str(), ended.code),
        ("{\"revision\":1}\n", 0),
        "{ended:?}"
    );

    let (ended, server) = ask(&list, "", script());
    assert_eq!(ended.code, 6, "{ended:?}");
    for words in ["no trusted TLS connection to https://127", "SSL_CERT_FILE"] {
        assert!(ended.err.contains(words), "{ended:?}");
    }
    assert!(server.calls().is_empty(), "the token is not sent");
}

#[test]
fn a_plain_http_server_behind_an_https_address_is_told_as_that() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a call");
            let mut hello = [0; 1];
            stream
                .read_exact(&mut hello)
                .expect("the client speaks first");
            let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).expect("the client reads");
        }
    });
    let ended = run(&["status", "--url", &url], &[]);
    assert_eq!(ended.code, 6, "{ended:?}");
    for words in [&format!("the server at {url} speaks plain HTTP"), "http://"] {
        assert!(ended.err.contains(words), "{ended:?}");
    }
    assert!(!ended.err.contains("certificate"), "{ended:?}");
}

#[test]
fn proxies_of_the_environment_are_not_used_and_redirects_not_followed() {
    let elsewhere = Scripted::start(vec![page(&[], None); 2]);
    let server = Scripted::start(vec![
        page(&[session(SESSION, "a")], None),
        redirect(&elsewhere.url),
    ]);
    let list = || {
        let variables = [
            ("STATEHOLD_URL", server.url.as_str()),
            ("http_proxy", elsewhere.url.as_str()),
            ("HTTP_PROXY", elsewhere.url.as_str()),
            ("ALL_PROXY", elsewhere.url.as_str()),
        ];
        run(&["sessions", "list", "--no-headers"], &variables)
    };
    let ended = list();
    assert!(ended.out.starts_with(SESSION), "{ended:?}");
    let ended = list();
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(
        ended.err.contains("redirects are not followed"),
        "{ended:?}"
    );
    assert!(elsewhere.calls().is_empty());
}

#[test]
fn a_key_is_sent_as_a_bearer_and_a_visible_one_is_warned_of() {
    let script = || vec![json(200, r#"{"keys":[]}"#)];
    let server = Scripted::start(script());
    let variables = [
        ("STATEHOLD_URL", server.url.as_str()),
        ("STATEHOLD_TOKEN", "shk_a"),
    ];
    let ended = run(&["token", "list"], &variables);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert!(
        server.calls()[0]
            .headers
            .contains("authorization: bearer shk_a\n")
    );
    let (ended, server) = ask(&["token", "list", "--token", "shk_b"], script());
    assert!(ended.err.contains("others on this machine can see --token"));
    assert!(
        server.calls()[0]
            .headers
            .contains("authorization: bearer shk_b\n")
    );
}

#[test]
fn keys_of_a_directory_without_data_are_refused_and_nothing_is_created() {
    let directory = tempfile::tempdir().expect("a directory");
    let missing = directory.path().join("typo");
    let data = missing.to_str().expect("a path");
    for command in [&["token", "list"][..], &["token", "revoke", "key_1"]] {
        let ended = run(&[command, &["--data", data]].concat(), &[]);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.err.contains("there is no data in"), "{ended:?}");
        assert!(!missing.exists());
    }
    let create = ["token", "create", "--role", "worker", "--agent", "bad name"];
    let ended = run(&[&create[..], &["--data", data]].concat(), &[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.err.contains("bad name"), "{ended:?}");
    assert!(!missing.exists());
}

#[test]
fn a_beginning_of_an_id_is_enough_if_it_is_the_only_one() {
    let both = || page(&[session(SESSION, "a"), session(OTHER, "b")], None);
    let (ended, _) = ask(&["sessions", "show", "0198a"], vec![both()]);
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains(SESSION) && ended.err.contains(OTHER));
    let (ended, _) = ask(&["sessions", "show", "ses_0199"], vec![both()]);
    assert_eq!(ended.code, 3);
    let (ended, server) = ask(&["sessions", "delete", "-y", OTHER], vec![json(204, "")]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(server.lines(), [format!("DELETE /v1/sessions/{OTHER}")]);
    let one = page(&[session(SESSION, "a")], None);
    let (ended, server) = ask(
        &["sessions", "delete", "-y", "0198A"],
        vec![one, json(204, "")],
    );
    assert_eq!(ended.out, format!("✓ deleted {SESSION}\n"));
    assert_eq!(server.lines()[1], format!("DELETE /v1/sessions/{SESSION}"));
}

#[test]
fn nothing_is_deleted_when_nobody_can_be_asked() {
    let (ended, server) = ask(&["sessions", "delete", SESSION], Vec::new());
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains("--yes"), "{}", ended.err);
    assert!(server.lines().is_empty());
}

fn show_script() -> Vec<Answer> {
    let tree = r#"{"session_id":"s","revision":7,"tasks":[{"id":"tsk_1","requests":[{"id":"req_1","holds":[{"id":"hld_1","alias":"R1.h1","kind":"approval","status":"open"},{"id":"hld_2","alias":"R1.h2","kind":"approval","status":"approved"}],"tasks":[]}]}]}"#;
    let hold = r#"{"id":"hld_1","alias":"R1.h1","kind":"approval","status":"open","title":"Delete user 7"}"#;
    let messages = r#"{"revision":7,"messages":[{"id":"itm_1","seq":1,"role":"user","content":"Delete\nuser 7","agent":"coordinator","created_at":"2026-08-06T12:00:00Z"},{"id":"itm_2","seq":2,"kind":"tool_call","visibility":"hidden","name":"delete_user","arguments":{"id":7},"agent":"ums","created_at":"2026-08-06T12:00:01Z"}]}"#;
    vec![
        json(200, &session(SESSION, "a")),
        json(200, tree),
        json(200, hold),
        json(200, messages),
    ]
}

#[test]
fn a_session_is_shown_with_what_waits_and_what_was_said() {
    let (ended, server) = ask(
        &["sessions", "show", SESSION, "--show-hidden"],
        show_script(),
    );
    assert_eq!(ended.code, 0, "{ended:?}");
    for line in [
        "status\tpaused",
        "labels\tteam:blue",
        "hold\tR1.h1\tapproval\tDelete user 7\thld_1",
        "message\t1\t2026-08-06T12:00:00Z\tvisible\tuser\tDelete\\nuser 7",
        "message\t2\t2026-08-06T12:00:01Z\thidden\tums (tool_call)\tdelete_user({\"id\":7})",
    ] {
        assert!(
            ended.out.lines().any(|found| found == line),
            "no {line:?} in {}",
            ended.out
        );
    }
    assert_eq!(
        server.lines().last().map(String::as_str),
        Some(format!("GET /v1/sessions/{SESSION}/messages?view=trace&limit=50").as_str())
    );
    let (ended, _) = ask(&["sessions", "show", SESSION, "--json"], show_script());
    let answer: serde_json::Value = serde_json::from_str(&ended.out).expect("one document");
    assert_eq!(answer["holds"][0]["title"], "Delete user 7");
    assert_eq!(answer["messages"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_tail_comes_back_after_the_last_record_it_saw_and_ends_when_the_session_does() {
    let record = |revision: u64| {
        format!(
            "id: {revision}\nevent: record\ndata: {{\"session_id\":\"s\",\"revision\":{revision},\"at\":\"2026-08-06T12:00:00Z\",\"command\":\"append\",\"events\":[{{\"type\":\"items_appended\",\"items\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}]}}\n\n"
        )
    };
    // A delta is not a record and does not advance the revision.
    let delta = "event: delta\ndata: {\"request_id\":\"r\",\"task_id\":\"t\",\"agent\":\"a\",\"offset\":0,\"text\":\"hm\"}\n\n";
    // The second record is cut in the middle, and sent again.
    let cut = delta.to_owned() + &record(8) + delta + &record(9)[..60];
    let script = vec![
        json(200, &session(SESSION, "a")),
        events(&cut),
        json(503, "{}"),
        events(&(": awake\n\n".to_owned() + &record(9))),
        json(404, r#"{"detail":"no such session","code":"not_found"}"#),
    ];
    let (ended, server) = ask(&["sessions", "tail", SESSION], script);
    assert_eq!(
        ended.out,
        "8\t2026-08-06T12:00:00Z\tappend\titems_appended user: \"hi\"\n\
         9\t2026-08-06T12:00:00Z\tappend\titems_appended user: \"hi\"\n"
    );
    assert_eq!(ended.code, 3, "{ended:?}");
    assert!(ended.err.contains("connection lost") && ended.err.contains("reconnected"));
    let asked_after: Vec<bool> = [7, 8, 8, 9]
        .iter()
        .zip(&server.calls()[1..])
        .map(|(id, call)| call.headers.contains(&format!("last-event-id: {id}\n")))
        .collect();
    assert_eq!(asked_after, [true; 4]);
}

#[test]
fn a_tree_that_is_watched_is_not_read_again_for_every_word() {
    let word = "event: delta\ndata: {\"offset\":0,\"text\":\"hm\"}\n\n";
    let script = vec![
        events(&word.repeat(3)),
        json(200, r#"{"session_id":"s","revision":7,"tasks":[]}"#),
        json(404, r#"{"detail":"no such session","code":"not_found"}"#),
    ];
    let (ended, server) = ask(&["tasks", "tree", SESSION, "--watch", "--json"], script);
    assert_eq!(ended.code, 3, "{ended:?}");
    let path = format!("GET /v1/sessions/{SESSION}");
    let calls = ["events", "tree", "events"].map(|what| format!("{path}/{what}"));
    assert_eq!(server.lines(), calls);
}

#[test]
fn a_tail_can_be_counted_and_be_json() {
    let script = vec![
        json(200, &session(SESSION, "a")),
        events(
            "event: delta\ndata: {\"text\":\"hm\"}\n\nid: 1\nevent: record\ndata: {\"revision\":1}\n\nid: 2\nevent: record\ndata: {\"revision\":2}\n\n",
        ),
    ];
    let args = [
        "sessions", "tail", SESSION, "--after", "0", "--count", "1", "--jsonl", "-q",
    ];
    let (ended, server) = ask(&args, script);
    assert_eq!(ended.out, "{\"revision\":1}\n");
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert!(server.calls()[1].headers.contains("last-event-id: 0\n"));
}

#[test]
fn a_new_key_is_all_that_goes_to_standard_output() {
    let made = r#"{"id":"key_1","roles":["client","approver"],"created_at":"2026-08-06T12:00:00Z","key":"shk_secret"}"#;
    let args = [
        "token",
        "create",
        "--role",
        "client,approver",
        "--user",
        "bob",
        "--expires",
        "90d",
    ];
    let (ended, server) = ask(&args, vec![json(201, made)]);
    assert_eq!(ended.out, "shk_secret\n");
    assert!(ended.err.contains("key_1 may act as client, approver"));
    let call = &server.calls()[0];
    assert_eq!(call.line, "POST /v1/keys");
    assert_eq!(
        call.body,
        r#"{"roles":["client","approver"],"user":"bob","expires_in_seconds":7776000}"#
    );
}

#[test]
fn a_key_can_have_a_role_that_only_policies_name_and_the_hint_names_the_key() {
    let made = r#"{"id":"key_1","roles":["treasurer"],"created_at":"2026-08-06T12:00:00Z","key":"shk_secret"}"#;
    let args = ["token", "create", "--role", "treasurer"];
    let (ended, server) = ask(&args, vec![json(201, made)]);
    assert_eq!(server.calls()[0].body, r#"{"roles":["treasurer"]}"#);
    for said in ["role:treasurer", "statehold token revoke key_1"] {
        assert!(ended.err.contains(said), "{}", ended.err);
    }
}

#[test]
fn keys_are_listed_and_revoked_by_their_id() {
    let keys = r#"{"keys":[{"id":"key_1","name":"ci","roles":["worker"],"owner":"carol","agents":["math"],"created_at":"2026-08-06T12:00:00Z"}]}"#;
    let (ended, _) = ask(&["token", "list", "--no-headers"], vec![json(200, keys)]);
    assert_eq!(
        ended.out,
        "key_1\tci\tworker\t-\tcarol\tmath\t2026-08-06T12:00:00Z\t-\t-\n"
    );
    let (ended, server) = ask(&["token", "revoke", "key_1/x"], vec![json(204, "")]);
    assert_eq!(ended.out, "✓ revoked key_1/x\n");
    assert_eq!(server.lines(), ["DELETE /v1/keys/key_1%2Fx"]);
    let (ended, server) = ask(&["token", "revoke", "shk_secret"], Vec::new());
    assert_eq!(ended.code, 2);
    assert!(
        server.lines().is_empty(),
        "a secret does not go into a path"
    );
}

#[test]
fn a_status_is_for_people_shells_and_programs() {
    let script = || {
        vec![
            json(200, r#"{"status":"ok","version":"9.9.9"}"#),
            json(200, "{}"),
        ]
    };
    let (ended, server) = ask(&["status"], script());
    assert_eq!(
        ended.out,
        format!("url\t{}\nstatus\tready\nversion\t9.9.9\n", server.url)
    );
    assert_eq!(server.lines(), ["GET /healthz", "GET /readyz"]);
    let (ended, server) = ask(&["status", "-o", "env"], script());
    assert_eq!(
        ended.out,
        format!("export STATEHOLD_URL='{}'\n", server.url)
    );
    let (ended, _) = ask(&["status", "-o", "json"], script());
    let answer: serde_json::Value = serde_json::from_str(&ended.out).expect("one document");
    assert_eq!(answer["ready"], true);
    let unready = vec![
        json(200, "{}"),
        json(503, r#"{"detail":"the store does not answer"}"#),
    ];
    let (ended, _) = ask(&["status"], unready);
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("the store does not answer"));
}

#[test]
fn a_process_id_is_told_only_while_the_server_has_its_data_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().to_str().expect("a plain path");
    let pid = std::process::id();
    let run_file = format!(
        r#"{{"pid":{pid},"url":"http://127.0.0.1:1","started_at":"2026-08-06T12:00:00Z"}}"#
    );
    std::fs::write(directory.path().join("statehold.run"), run_file).expect("written");
    let args = ["status", "-o", "pid", "--data", data];
    // This test lives, but it does not serve that directory: a script must not kill it.
    let ended = run(&args, &[]);
    assert_eq!((ended.code, ended.out.as_str()), (6, ""));
    let options = statehold_store::sqlite::SqliteOptions::default();
    let store = statehold_store::sqlite::SqliteStore::open(directory.path(), options);
    let store = store.expect("a new store opens");
    let ended = run(&args, &[]);
    assert_eq!((ended.code, ended.out), (0, format!("{pid}\n")));
    drop(store);
}

#[test]
fn a_slow_server_is_not_waited_for_for_ever() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let ended = run(&["status", "--url", &url, "--timeout", "100ms"], &[]);
    assert_eq!(ended.code, 7);
    assert!(
        ended.err.contains("did not answer within 0.1 s"),
        "{}",
        ended.err
    );
}

#[test]
fn something_that_is_not_a_server_of_ours_is_said_to_be_that() {
    let (ended, _) = ask(&["sessions", "list"], vec![events("<html>hello</html>")]);
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("not JSON") && ended.err.contains("--url"));
}

#[test]
fn the_configuration_says_where_each_value_comes_from() {
    let variables = [("STATEHOLD__STORE__DATA", "/srv/state")];
    let ended = run(&["config", "show"], &variables);
    let has = |line: &str| ended.out.lines().any(|found| found == line);
    assert!(has("KEY\tVALUE\tSOURCE"));
    assert!(has("server.listen\t127.0.0.1:7717\tdefault"));
    assert!(has(
        "store.data\t/srv/state\tenvironment STATEHOLD__STORE__DATA"
    ));
    let shown = ended.out.lines().count() - 1;
    assert!(shown >= 14, "{}", ended.out);
    let ended = run(&["config", "show", "--json"], &variables);
    let answer: serde_json::Value = serde_json::from_str(&ended.out).expect("one document");
    assert_eq!(answer["values"].as_array().map(Vec::len), Some(shown));
    let ended = run(&["config", "show"], &[("STATEHOLD__STORE__DATE", "x")]);
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains("did you mean `store.data`?"));
}

#[test]
fn the_doctor_says_what_is_wrong_and_ends_with_ten_if_something_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().to_str().expect("a plain path");
    let listen = |address: &'static str| ("STATEHOLD__SERVER__LISTEN", address);
    let args = ["doctor", "--data", data];
    let healthy = run(&args, &[listen("127.0.0.1:0")]);
    assert_eq!(healthy.code, 0, "{healthy:?}");
    assert!(healthy.out.contains("✓ lock"), "{}", healthy.out);
    assert!(
        healthy.out.lines().all(|line| !line.trim().is_empty()),
        "{}",
        healthy.out
    );
    let open = [listen("0.0.0.0:0"), ("STATEHOLD__AUTH__REQUIRED", "false")];
    let ended = run(&args, &open);
    assert_eq!(ended.code, 10);
    assert!(ended.out.contains("✗ reach"), "{}", ended.out);
    let ended = run(&["doctor", "--data", data, "--json"], &open);
    let answer: serde_json::Value = serde_json::from_str(&ended.out).expect("one document");
    assert_eq!((ended.code, &answer["problems"]), (10, &1.into()));
    let (ended, _) = ask(&args, vec![json(200, r#"{"version":"0.0.1"}"#)]);
    assert!(ended.out.contains("has version 0.0.1"), "{}", ended.out);
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ended = run(&["completions", shell], &[]);
        assert_eq!(ended.code, 0);
        assert!(ended.out.contains("sessions"), "{shell}");
    }
}

//! Agents declared in the configuration, and reports of configuration mistakes.

use std::io::{BufRead, BufReader, IsTerminal};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use statehold_testkit::http::signal;

use super::live::Live;
use super::remote::run;

const DECLARED: [(&str, &str); 4] = [
    (
        "STATEHOLD__AGENTS__BOSS",
        "{ kind = \"router\", agents = [\"gpa\"], otherwise = \"gpa\", sessions = \"auto\" }",
    ),
    (
        "STATEHOLD__AGENTS__GPA",
        "{ kind = \"openai\", base_url = \"http://127.0.0.1:1/v1\", model = \"x\", \
         description = \"Knows much.\", credential_env = \"GPA_TOKEN\" }",
    ),
    (
        "STATEHOLD__AGENTS__GPA__TOOLS__PAY",
        "{ approval_if = { required = [\"amount\"] } }",
    ),
    ("GPA_TOKEN", "a-secret"),
];

#[test]
fn agents_are_listed_and_shown_as_they_are_declared() {
    let live = Live::start_with(&DECLARED);
    let listed = live.run(&["agents", "list"]);
    assert_eq!(
        listed.out,
        "AGENT\tKIND\tCHAT\tCHOOSES FROM\tDESCRIPTION\n\
         boss\trouter\tauto\tgpa\t-\n\
         gpa\topenai\tnone\t-\tKnows much.\n"
    );
    let shown = live.check(
        &["agents", "show", "gpa"],
        0,
        &["kind\topenai\n", "pay: some calls need an approval"],
    );
    assert!(!shown.out.contains("127.0.0.1") && !shown.out.contains("a-secret"));
    let json = live.run(&["agents", "show", "boss", "--json"]);
    let boss: serde_json::Value = serde_json::from_str(&json.out).expect("one document");
    assert_eq!(boss["agents"], serde_json::json!(["gpa"]));
    let json = live.run(&["agents", "list", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&json.out).expect("one document");
    assert_eq!(all["agents"].as_array().map(Vec::len), Some(2));
    live.check(&["agents", "show", "nobody"], 3, &[]);
    live.check(&["agents", "show", "a b"], 2, &["a name is"]);
}

#[test]
fn what_a_tool_server_gets_of_the_environment_is_shown_by_name_only() {
    let declared = [
        (
            "STATEHOLD__TOOL_SERVERS__NOTES",
            "{ command = [\"notes\"], env = [\"NOTES_TOKEN\"] }",
        ),
        (
            "STATEHOLD__MODELS__MAIN",
            "{ base_url = \"http://127.0.0.1:1/v1\", model = \"x\" }",
        ),
        (
            "STATEHOLD__AGENTS__CLERK",
            "{ kind = \"llm\", model = \"main\", prompt = \"Write.\", tool_servers = [\"notes\"] }",
        ),
        ("NOTES_TOKEN", "a-secret-note"),
    ];
    for json in [&[][..], &["--json"]] {
        let ended = run(&[&["config", "show"], json].concat(), &declared);
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.out.contains("NOTES_TOKEN"), "{}", ended.out);
        assert!(!ended.out.contains("a-secret-note"), "{}", ended.out);
    }
    let live = Live::start_with(&declared);
    for shown in [
        &["agents", "show", "clerk", "--json"][..],
        &["agents", "list", "--json"],
    ] {
        let shown = live.check(shown, 0, &["clerk"]);
        assert!(!shown.out.contains("a-secret-note"), "{}", shown.out);
    }
    let ended = run(&["config", "validate"], &declared[..3]);
    let says = "`tool_servers.notes.env` names NOTES_TOKEN, which is not set";
    assert!(ended.out.contains(says), "{ended:?}");
}

#[test]
fn mistakes_are_found_before_a_server_starts() {
    let fine = run(&["config", "validate"], &DECLARED);
    assert_eq!(fine.code, 0, "{fine:?}");
    assert_eq!(
        fine.out,
        "✓ no mistakes; 2 agents, 0 models, 0 tool servers\n"
    );
    let wrong = &DECLARED[..3];
    let ended = run(&["config", "validate"], wrong);
    assert_eq!(ended.code, 2, "{ended:?}");
    let says = "✗ `agents.gpa.credential_env` names GPA_TOKEN, which is not set";
    assert!(ended.out.starts_with(says), "{}", ended.out);
    let ended = run(&["config", "validate", "--json"], wrong);
    let answer: serde_json::Value = serde_json::from_str(&ended.out).expect("one document");
    assert_eq!(answer["valid"], false);
    assert_eq!(answer["mistakes"][0]["key"], "agents.gpa.credential_env");
    for start in [
        &["serve", "--data", "x"][..],
        &["dev", "--memory", "--no-open", "--port", "0"],
    ] {
        let ended = run(start, wrong);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(
            ended.err.contains("GPA_TOKEN, which is not set"),
            "{ended:?}"
        );
    }
}

#[test]
fn agents_are_read_again_from_the_file_and_mistakes_change_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("my.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("a file");
    let gpa =
        "[agents.gpa]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"x\"\n";
    write(gpa);
    let config = file.to_str().expect("a plain path");
    let live = Live::start_as(&["--no-demo", "--config", config], &[]);
    live.check(&["agents", "reload"], 0, &["nothing changed\n"]);
    write(&format!(
        "{gpa}[agents.gpa.tools.pay]\napproval = \"always\"\n"
    ));
    live.check(&["agents", "reload"], 0, &["changed: agents.gpa\n"]);
    // Removing a policy from the file does not lift the approval.
    write(gpa);
    let says = ["needs a restart: agents.gpa.tools.pay\n"];
    live.check(&["agents", "reload"], 0, &says);
    write(&format!(
        "{gpa}[agents.gpa.tools.pay]\napproval = \"never\"\n"
    ));
    let said = live.check(&["agents", "reload"], 0, &[]);
    assert_eq!(said.out, "changed: agents.gpa\n");
    write(&format!(
        "{gpa}description = \"Knows.\"\n[agents.boss]\nkind = \"router\"\nagents = [\"gpa\"]\n\
         otherwise = \"gpa\"\n[limits]\nbody_bytes_max = 1000\n"
    ));
    let said = live.check(&["agents", "reload"], 0, &[]);
    assert_eq!(
        said.out,
        "added: agents.boss\nchanged: agents.gpa\n\
         needs a restart: agents.gpa.tools.pay, limits.body_bytes_max\n"
    );
    live.check(&["agents", "list"], 0, &["boss\trouter", "Knows."]);
    // Everything that is wrong is said, and nothing is changed.
    write("[agents.boss]\nkind = \"router\"\nagents = [\"nobody\"]\n[agents.x]\nkind = \"llm\"\n");
    let wrong = live.check(
        &["agents", "reload"],
        1,
        &[
            "nothing was changed",
            "which is not a declared agent",
            "`agents.x.prompt` is missing",
        ],
    );
    assert_eq!(wrong.out, "");
    live.check(&["agents", "list"], 0, &["boss\trouter", "Knows."]);
    let json = live.run(&["agents", "reload", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&json.err).expect("one document");
    assert_eq!(error["error"]["kind"], "BAD_CONFIGURATION");
    assert!(
        error["error"]["details"]["mistakes"]
            .as_array()
            .is_some_and(|all| all.len() > 2)
    );
    write("no TOML at all");
    live.check(&["agents", "reload"], 1, &["is not TOML", "line 1"]);
    write("");
    let json = live.run(&["agents", "reload", "--json"]);
    let done: serde_json::Value = serde_json::from_str(&json.out).expect("one document");
    let expected = serde_json::json!({
        "added": [], "changed": [], "removed": ["agents.boss", "agents.gpa"], "needs_restart": [],
    });
    assert_eq!(done, expected);
    std::fs::remove_file(&file).expect("it was there");
    live.check(&["agents", "reload"], 1, &["my.toml"]);
}

#[test]
fn a_file_that_was_found_and_is_gone_is_a_mistake() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("statehold.toml");
    std::fs::write(&file, "[agents.gpa]\n").expect("a file");
    let mut server = Command::new(env!("CARGO_BIN_EXE_statehold"))
        .args([
            "dev",
            "--port",
            "0",
            "--no-open",
            "--no-demo",
            "--data",
            "data",
        ])
        .current_dir(directory.path())
        .env_remove("STATEHOLD_CONFIG")
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let run = directory.path().join("data").join("statehold.run");
    while !run.is_file() {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let told: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&run).expect("a file")).expect("JSON");
    let url = told["url"].as_str().expect("an address");
    let statehold = |args: &[&str]| {
        let mut call = Command::new(env!("CARGO_BIN_EXE_statehold"));
        call.args(["--url", url]).args(args);
        call.output().expect("it runs")
    };
    std::fs::remove_file(&file).expect("it was there");
    let refused = statehold(&["agents", "reload"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let listed = statehold(&["agents", "list"]);
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    assert!(
        !refused.status.success() && said.contains("statehold.toml"),
        "{said}"
    );
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("gpa"), "{listed}");
}

#[test]
fn what_the_demo_plays_it_plays_until_the_next_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("my.toml");
    std::fs::write(&file, "").expect("a file");
    let config = file.to_str().expect("a plain path");
    let live = Live::start_as(&["--config", config], &[]);
    let declared = "[agents.math-agent]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"x\"\n";
    std::fs::write(&file, declared).expect("a file");
    let says = ["needs a restart: agents.math-agent"];
    live.check(&["agents", "reload"], 0, &says);
    live.check(&["agents", "show", "math-agent"], 0, &["kind\tworker"]);
    live.check(&["chat", "math-agent", "-m", "What is 2+2?"], 0, &["4"]);
}

#[test]
fn a_server_whose_terminal_is_closed_stops_as_programs_do() {
    // Our side stays ours: it is closed when we close it.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).expect("a terminal");
    grantpt(&ours).expect("it is ours");
    unlockpt(&ours).expect("it can be opened");
    let name = ptsname(&ours, Vec::new()).expect("it has a name");
    let name = name.to_str().expect("a plain name");
    let input = std::fs::File::open(name).expect("its other side");
    let closed = input.try_clone().expect("the same");
    let mut server = Command::new(env!("CARGO_BIN_EXE_statehold"))
        .args(["dev", "--port", "0", "--no-open", "--no-demo", "--memory"])
        .env_clear()
        .stdin(input)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let said = server.stderr.take().expect("it is piped");
    let mut lines = BufReader::new(said).lines().map_while(Result::ok);
    let mut until = |words: &str| lines.any(|line| line.contains(words));
    assert!(until("Ready in"));
    signal(server.id(), "HUP").expect("it is sent");
    assert!(until("read again"), "the terminal is there");
    drop(ours);
    // Programs that other tests are about to start have it for a moment, too.
    while closed.is_terminal() {
        std::thread::yield_now();
    }
    signal(server.id(), "HUP").expect("it is sent");
    assert!(until("Stopping"), "the terminal is gone");
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
}

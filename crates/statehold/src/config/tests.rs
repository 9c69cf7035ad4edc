use std::os::unix::fs::PermissionsExt;

use statehold_engine::Lifetimes;

use super::*;
use crate::exit::{Exit, explain};

/// A directory with an optional `statehold.toml`, and variables.
fn environment(
    file: Option<&str>,
    variables: &[(&str, &str)],
) -> (tempfile::TempDir, ConfigEnvironment) {
    let directory = tempfile::tempdir().expect("a directory");
    if let Some(text) = file {
        std::fs::write(directory.path().join(FILE_NAME), text).expect("a file");
    }
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect();
    let environment = ConfigEnvironment {
        directory: directory.path().to_owned(),
        variables,
    };
    (directory, environment)
}

fn load(file: Option<&str>, variables: &[(&str, &str)]) -> anyhow::Result<Config> {
    let (_directory, environment) = environment(file, variables);
    Ok(layers(&environment, None)?.finish()?.0)
}

#[track_caller]
pub(in crate::config) fn refused(file: Option<&str>, variables: &[(&str, &str)], says: &[&str]) {
    let error = load(file, variables).expect_err("it is refused");
    let (said, exit) = explain(&error, false);
    let said = said.expect("errors are said");
    assert_eq!(exit, Exit::Usage, "{said}");
    for words in says {
        assert!(
            said.contains(words),
            "it does not say {words:?} but: {said}"
        );
    }
}

#[test]
fn nothing_set_means_the_defaults() {
    assert_eq!(load(None, &[]).expect("defaults"), Config::default());
}

#[test]
fn each_layer_goes_over_the_one_before_and_is_remembered() {
    let file =
        "[server]\nlisten = \"127.0.0.1:1\"\nshutdown_seconds = 1\n[log]\nlevel = \"warn\"\n";
    let variables = [
        ("STATEHOLD__SERVER__LISTEN", "127.0.0.1:2"),
        ("STATEHOLD__SERVER__SHUTDOWN_SECONDS", "2"),
    ];
    let (_directory, environment) = environment(Some(file), &variables);
    let mut layers = layers(&environment, None).expect("known keys");
    layers
        .set_flag("server.listen", "--listen", Some("127.0.0.1:3"))
        .expect("a known key");
    let (config, explained) = layers.finish().expect("fit values");
    assert_eq!(config.server.listen.port(), 3);
    assert_eq!(config.server.shutdown_seconds, 2);
    assert_eq!(config.log.level, "warn");
    let source = |key: &str| {
        let found = explained.iter().find(|value| value.key == key);
        found.expect("every key is explained").source.clone()
    };
    assert_eq!(source("server.listen"), ValueSource::Flag("--listen"));
    assert_eq!(
        source("server.shutdown_seconds"),
        ValueSource::Environment("STATEHOLD__SERVER__SHUTDOWN_SECONDS".to_owned())
    );
    assert!(matches!(source("log.level"), ValueSource::File(_)));
    assert_eq!(source("limits.body_bytes_max"), ValueSource::Default);
}

#[test]
fn settings_without_a_default_can_be_set_and_unset() {
    let file = "[server]\nurl = \"https://state.test\"\n[ums]\npath = \"/\"\nagent = \"desk\"\n";
    let config = load(Some(file), &[]).expect("known keys");
    assert_eq!(
        config.server.url.expect("an address").text(),
        "https://state.test"
    );
    let options = config.ums.options();
    assert_eq!(options.root.to_string(), "/");
    assert_eq!(options.agent, "desk".parse().ok());
    let variables = [
        ("STATEHOLD__SERVER__URL", ""),
        ("STATEHOLD__UMS__PATH", "/talks"),
        ("STATEHOLD__UMS__AGENT", ""),
    ];
    let config = load(Some(file), &variables).expect("known keys");
    assert_eq!(config.server.url, None);
    let options = config.ums.options();
    assert_eq!(
        (options.root.to_string().as_str(), options.agent),
        ("/talks", None)
    );
    refused(
        Some("[ums]\npath = \"/v1/ums\"\n"),
        &[],
        &["ums.path", "belong to another API"],
    );
    refused(Some("[ums]\nagent = \"a b\"\n"), &[], &["ums.agent"]);
}

#[test]
fn a_file_may_be_named_and_must_then_be_there() {
    let (directory, mut environment) = environment(Some("[log]\nlevel = \"warn\"\n"), &[]);
    let named = directory.path().join("other.toml");
    std::fs::write(&named, "[log]\nlevel = \"error\"\n").expect("a file");
    let level = |environment: &ConfigEnvironment, flag: Option<&Path>| {
        let config = layers(environment, flag)?.finish()?.0;
        Ok::<_, anyhow::Error>(config.log.level)
    };
    assert_eq!(level(&environment, None).expect("the one here"), "warn");
    assert_eq!(
        level(&environment, Some(&named)).expect("the flag"),
        "error"
    );
    environment
        .variables
        .push((FILE_VARIABLE.into(), named.clone().into()));
    assert_eq!(level(&environment, None).expect("the variable"), "error");
    std::fs::remove_file(&named).expect("it is removed");
    let error = level(&environment, None).expect_err("it is gone");
    assert_eq!(explain(&error, false).1, Exit::Usage);
}

#[test]
fn an_unknown_key_is_named_with_its_source_and_the_nearest_one() {
    refused(
        Some("[server]\nlisen = \"127.0.0.1:1\"\n"),
        &[],
        &[
            "`server.lisen`",
            "file ",
            "statehold.toml",
            "did you mean `server.listen`",
        ],
    );
    refused(
        None,
        &[("STATEHOLD__STORE__DATE", "x")],
        &["`store.date`", "STATEHOLD__STORE__DATE", "`store.data`"],
    );
    refused(
        None,
        &[("STATEHOLD__SERVER", "x")],
        &["`server`", "is a section"],
    );
    refused(
        Some("[server.listen]\nport = 1\n"),
        &[],
        &["`server.listen.port`", "`server.listen`"],
    );
}

#[test]
fn a_value_that_does_not_fit_is_named_with_its_source() {
    refused(
        None,
        &[("STATEHOLD__SERVER__CONNECTIONS_MAX", "0")],
        &[
            "`server.connections_max` cannot be 0",
            "STATEHOLD__SERVER__CONNECTIONS_MAX",
            "a whole number above 0",
        ],
    );
    refused(
        Some("[server]\nlisten = \"localhost:7717\"\n"),
        &[],
        &[
            "`server.listen`",
            "an IP address and a port",
            "127.0.0.1:7717",
        ],
    );
    refused(
        Some("[agents.a]\nkind = \"opnai\"\n"),
        &[],
        &["`agents.a.kind`", "did you mean `openai`?"],
    );
    refused(
        Some("[server]\nlisten = \"here\"\n"),
        &[],
        &["`server.listen` cannot be \"here\"", "statehold.toml"],
    );
    refused(
        Some("[log]\nformat = \"xml\"\n"),
        &[],
        &["`log.format`", "xml", "`text`", "`json`"],
    );
    refused(
        Some("[log\n"),
        &[],
        &["statehold.toml is not TOML", "line 1"],
    );
}

#[test]
fn the_environment_is_toml_where_possible_and_text_where_text_is_wanted() {
    let variables = [
        ("STATEHOLD__STORE__DATA", "2024"),
        ("STATEHOLD__STORE__READERS", "4"),
        ("STATEHOLD__AUTH__REQUIRED", "false"),
        ("STATEHOLD__LOG__LEVEL", "\"debug\""),
        ("STATEHOLD_URL", "not a setting"),
    ];
    let config = load(None, &variables).expect("fit values");
    assert_eq!(config.store.data, Path::new("2024"));
    assert_eq!(config.store.readers.get(), 4);
    assert!(!config.auth.required);
    assert_eq!(config.log.level, "debug");
}

#[test]
fn a_default_of_a_command_gives_way_to_every_choice() {
    let (_directory, environment) = environment(None, &[("STATEHOLD__AUTH__REQUIRED", "true")]);
    let mut layers = layers(&environment, None).expect("known keys");
    let dev = "statehold dev";
    layers
        .set_if_default("auth.required", false, dev)
        .expect("a known key");
    layers
        .set_if_default("log.level", "warn", dev)
        .expect("a known key");
    let (config, _) = layers.finish().expect("fit values");
    assert!(config.auth.required);
    assert_eq!(config.log.level, "warn");
}

#[test]
fn a_secret_comes_as_a_value_or_from_a_closed_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    std::fs::write(&path, "shk_1\n").expect("a file");
    let mode = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    let from_file = || secret("token", None, Some(&path));
    mode(0o600);
    assert_eq!(from_file().expect("closed").as_deref(), Some("shk_1"));
    mode(0o440);
    assert_eq!(from_file().expect("for a group").as_deref(), Some("shk_1"));
    for open in [0o644, 0o602, 0o620] {
        mode(open);
        let error = from_file().expect_err("open to others");
        let (said, _) = explain(&error, false);
        assert!(said.expect("said").contains("chmod 600"));
    }
    mode(0o600);
    let both = secret("token", Some("x".to_owned()), Some(&path));
    assert!(both.expect_err("one too many").to_string().contains("both"));
    let value = secret("token", Some("x".to_owned()), None).expect("a value");
    assert_eq!(value.as_deref(), Some("x"));
    std::fs::write(&path, "\n").expect("a file");
    assert!(from_file().is_err(), "an empty secret is none");
    assert_eq!(secret("token", None, None).expect("none"), None);
}

#[test]
fn agents_and_their_tools_have_policies() {
    let file = r#"
        [agents.ums-agent]
        decide_by = "other"
        credential_env = "UMS_TOKEN"
        [agents.ums-agent.tools.delete_user]
        approval = "always"
        decide_by = "role:treasurer"
        effect = "destructive"
        risk = "high"
        idempotent = false
        quorum = 2
        expires_in_seconds = 3600
        on_expiry = "reject"
        on_no_answer = "tell"
        comment_required = true
        redact = ["/email", "/cards/*/number"]
        redact_rules = ["secret", "email", "card"]
        [agents."a.b".tools."c.d"]
        risk = "low"
    "#;
    let (_directory, environment) =
        environment(Some(file), &[("STATEHOLD__AGENTS__X__QUORUM", "3")]);
    let layers = layers(&environment, None).expect("known keys");
    let (config, explained) = layers.finish().expect("fit values");
    let policies = policies(&config);
    let of = |agent: &str, tool: &str| policies.of(&agent.parse().expect("a name"), tool).policy;
    let delete = of("ums-agent", "delete_user");
    assert_eq!(delete.quorum, Some(2));
    assert_eq!(delete.expires_in_seconds, Some(3600));
    assert_eq!(
        delete.on_no_answer,
        Some(statehold_engine::policy::OnNoAnswer::Tell)
    );
    assert_eq!(delete.redact.map(|paths| paths.len()), Some(2));
    assert_eq!(of("ums-agent", "other").quorum, None);
    assert!(of("ums-agent", "other").decide_by.is_some());
    assert!(of("a.b", "c.d").risk.is_some());
    assert_eq!(of("x", "any").quorum, Some(3));
    let source = |key: &str| {
        let found = explained.iter().find(|value| value.key == key);
        found.map(|found| found.source.clone())
    };
    let key = "agents.ums-agent.tools.delete_user.approval";
    assert!(matches!(source(key), Some(ValueSource::File(_))));
    assert!(source("agents.\"a.b\".tools.\"c.d\".risk").is_some());
    let variable = "STATEHOLD__AGENTS__X__QUORUM".to_owned();
    assert_eq!(
        source("agents.x.quorum"),
        Some(ValueSource::Environment(variable))
    );
}

#[test]
fn a_policy_with_something_unknown_is_refused() {
    let tool = |line: &str| format!("[agents.a.tools.t]\n{line}\n");
    for (line, says) in [
        (
            "aproval = \"always\"",
            ["`agents.a.tools.t.aproval`", "`agents.a.tools.t.approval`"],
        ),
        (
            "credential_env = \"X\"",
            ["`agents.a.tools.t.credential_env`", "see all with"],
        ),
        (
            "approval = \"often\"",
            ["`agents.a.tools.t.approval`", "often"],
        ),
        (
            "decide_by = \"boss\"",
            ["`agents.a.tools.t.decide_by`", "role:NAME"],
        ),
        ("quorum = 33", ["`agents.a.tools.t.quorum`", "1 to 32"]),
        (
            "expires_in_seconds = 0",
            [
                "`agents.a.tools.t.expires_in_seconds`",
                "a whole number above 0",
            ],
        ),
        (
            "redact = [\"email\"]",
            ["`agents.a.tools.t.redact`", "JSON Pointer"],
        ),
        (
            "redact_rules = [\"iban\"]",
            ["`agents.a.tools.t.redact_rules`", "iban"],
        ),
    ] {
        refused(Some(&tool(line)), &[], &says);
    }
    refused(
        Some("[agents.a]\nopenai_default = \"stateful\"\n"),
        &[],
        &[
            "`agents.a.openai_default`",
            "`agents.a.sessions`",
            "\"auto\"",
        ],
    );
    refused(
        Some("[agents.a]\ntoolz = 1\n"),
        &[],
        &["`agents.a.toolz`", "see all with"],
    );
    refused(
        Some("[agents.\"a b\"]\nrisk = \"low\"\n"),
        &[],
        &["`a b`", "not a name"],
    );
}

#[test]
fn the_file_says_what_is_redacted_and_for_whom() {
    let file = r#"
        [redaction]
        patterns = [{ name = "ticket", pattern = "TCK-[0-9]{8}" }]
        [agents.vault]
        redact_secrets = false
    "#;
    let (_directory, place) = environment(Some(file), &[("STATEHOLD__REDACTION__MODE", "off")]);
    let (config, _) = layers(&place, None)
        .expect("known keys")
        .finish()
        .expect("fit values");
    let redaction = policies(&config).redaction;
    assert!(redaction.is_off && redaction.redactor.has_patterns());
    let vault = "vault".parse().expect("a name");
    assert_eq!(redaction.agents.get(&vault), Some(&false));
    assert!(config.agents[&vault].is_policies_only());
    let default = policies(&Config::default()).redaction;
    assert!(!default.is_off && !default.redactor.has_patterns());
}

#[test]
fn the_file_says_how_long_sessions_and_their_hidden_items_live() {
    const DAY_MS: u64 = 86_400_000;
    let file = r"
        [chat]
        hidden_ttl_days = 7
        [apps.shop]
        session_ttl_days = 365
        [agents.support]
        hidden_ttl_days = 1
    ";
    let variables = [("STATEHOLD__APPS__SHOP__HIDDEN_TTL_DAYS", "0")];
    let (_directory, place) = environment(Some(file), &variables);
    let (config, _) = layers(&place, None)
        .expect("known keys")
        .finish()
        .expect("fit values");
    let lifetimes = policies(&config).lifetimes;
    let of = |session_ms, hidden_ms| Lifetimes {
        session_ms,
        hidden_ms,
    };
    assert_eq!(lifetimes.chats, of(Some(30 * DAY_MS), Some(7 * DAY_MS)));
    let shop = [(
        "shop".parse().expect("a name"),
        of(Some(365 * DAY_MS), Some(0)),
    )];
    assert_eq!(lifetimes.apps, shop.into());
    let support = "support".parse().expect("a name");
    assert!(config.agents[&support].is_policies_only());
    assert_eq!(lifetimes.agents, [(support, of(None, Some(DAY_MS)))].into());
    for (file, says) in [
        ("[apps.shop]\nsession_ttl_days = 4000\n", "0 to 3660"),
        ("[apps.shop]\nttl_days = 4\n", "apps.shop.hidden_ttl_days"),
        ("[apps.\"a b\"]\nsession_ttl_days = 4\n", "a b"),
    ] {
        refused(Some(file), &[], &["apps.", says]);
    }
}

#[test]
fn a_pattern_that_cannot_be_used_is_refused() {
    let patterns = |list: &str| format!("[redaction]\npatterns = [{list}]\n");
    let many = r#"{ name = "a", pattern = "x" },"#;
    let many: String = (0..33)
        .map(|n| many.replace("\"a\"", &format!("\"a{n}\"")))
        .collect();
    for (list, says) in [
        (
            r#"{ name = "a", pattern = "(" }"#,
            ["`a`", "not a regular expression"],
        ),
        (r#"{ name = "a", pattern = "x*" }"#, ["`a`", "empty text"]),
        (
            r#"{ name = "a", pattern = "(?:[a-z]{100}){1000}" }"#,
            ["`a`", "256 KiB"],
        ),
        (
            r#"{ name = "jwt", pattern = "x" }"#,
            ["`jwt`", "another rule"],
        ),
        (
            r#"{ name = "a", pattern = "x" }, { name = "a", pattern = "y" }"#,
            ["`a`", "another rule"],
        ),
        (&many, ["redaction.patterns", "at most 32"]),
    ] {
        refused(Some(&patterns(list)), &[], &says);
    }
    refused(
        Some("[redaction]\nmode = \"maybe\"\n"),
        &[],
        &["redaction.mode", "maybe"],
    );
}

#[test]
fn every_mistake_is_found_at_once() {
    let file = "[server]\nlisten = 7\nlisen = 1\nshutdown_seconds = \"soon\"\n[log]\nformat = \"loud\"\n\
                [models.m]\nbase_url = 3\nmodel = \"x\"\n[agents.b]\nkind = \"llm\"\nmodel = \"nope\"\nprompt = \"Be terse.\"\n[agents.a]\nkind = \"llmm\"\nsteps_max = 0\nzzz = 1\n";
    let (_directory, environment) = environment(Some(file), &[("STATEHOLD__AUTH__REQUIRED", "2")]);
    let checked = layers(&environment, None).expect("a file").check();
    let mut keys: Vec<&str> = checked
        .mistakes
        .iter()
        .map(|one| one.key.as_str())
        .collect();
    keys.sort_unstable();
    let expected = [
        "agents.a.kind",
        "agents.a.steps_max",
        "agents.a.zzz",
        "auth.required",
        "log.format",
        "models.m.base_url",
        "server.lisen",
        "server.listen",
        "server.shutdown_seconds",
    ];
    assert_eq!(keys, expected);
    // The rest is as if the wrong settings were not there, and what only follows from them is not told.
    assert_eq!(
        checked.config.server.listen,
        Config::default().server.listen
    );
    let others = declare_agents(&checked.config, &checked.explained, &environment);
    let found = checked.mistakes.len();
    let all = others
        .expect_err("a model is not declared")
        .after(checked.mistakes);
    let more: Vec<&str> = all.0[found..].iter().map(|one| one.key.as_str()).collect();
    assert_eq!(more, ["agents.b.model"]);
}

#[test]
fn a_name_is_suggested_only_if_it_is_near() {
    for (key, near) in [
        ("server.lisen", Some("server.listen")),
        ("server.listne", Some("server.listen")),
        ("models.m.base", Some("models.m.base_url")),
        ("server.colour", None),
        ("sever.listen", Some("server.listen")),
        ("nonsense", None),
    ] {
        let (section, setting) = key.rsplit_once('.').unwrap_or(("", key));
        let file = match section {
            "" => format!("{setting} = 1\n"),
            section => format!("[{section}]\n{setting} = 1\n"),
        };
        let (_directory, environment) = environment(Some(&file), &[]);
        let checked = layers(&environment, None).expect("a file").check();
        let hint = &checked.mistakes[0].hint;
        match near {
            Some(near) => assert!(
                hint.contains(&format!("did you mean `{near}`?")),
                "{key}: {hint}"
            ),
            None => assert!(!hint.contains("did you mean"), "{key}: {hint}"),
        }
    }
}

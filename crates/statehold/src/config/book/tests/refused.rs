//! Mistakes in configurations, and their messages.

use super::*;
use crate::config::tests::refused;
use crate::exit::explain;

/// One mistake, about this key, that says these words.
#[track_caller]
fn mistaken(place: &TestPlace, key: &str, says: &[&str]) {
    let mistakes = place.declare_agents().expect_err("a mistake");
    let [mistake] = &mistakes[..] else {
        panic!("one mistake, not {mistakes:?}");
    };
    assert_eq!(mistake.key, key, "{mistake:?}");
    assert!(mistake.message.contains(key) && !mistake.hint.is_empty());
    let said = format!("{}\n{}", mistake.message, mistake.hint);
    for words in says {
        assert!(
            said.contains(words),
            "it does not say {words:?} but: {said}"
        );
    }
}

#[test]
fn the_name_of_a_tool_server_has_no_mark_between_server_and_tool() {
    mistaken(
        &TestPlace::new("[tool_servers.my__files]\nurl = \"http://h\"\n", &[]),
        "tool_servers.my__files",
        &["`__` in its name", "single underscores"],
    );
}

#[test]
fn what_a_kind_needs_must_be_there() {
    let agent = |lines: &str| TestPlace::new(&format!("[agents.a]\n{lines}\n[agents.b]\n"), &[]);
    let llm = |lines: &str| {
        let model = "[models.main]\nbase_url = \"http://h\"\nmodel = \"x\"\n";
        TestPlace::new(
            &format!("{model}[agents.a]\nkind = \"llm\"\n{lines}\n"),
            &[],
        )
    };
    let openai = "kind = \"openai\"\n";
    mistaken(
        &agent(&format!("{openai}model = \"x\"")),
        "agents.a.base_url",
        &["is missing", "without /chat/completions"],
    );
    mistaken(
        &agent(&format!("{openai}base_url = \"http://h/v1\"")),
        "agents.a.model",
        &["is missing", "its name at the service"],
    );
    let dial = "kind = \"dial\"\nbase_url = \"http://h/core\"\n";
    mistaken(
        &agent(dial),
        "agents.a.deployment",
        &["is missing", "name of the application"],
    );
    mistaken(
        &agent(&format!("{dial}deployment = \"gpa\"\nmemory = \"track\"")),
        "agents.a.memory",
        &["applications of DIAL store nothing", "kind = \"openai\""],
    );
    mistaken(
        &agent(
            "kind = \"dial\"\ndeployment = \"a/b\"\nbase_url = \"http://h/openai/deployments/\"",
        ),
        "agents.a.base_url",
        &["ends with /openai/deployments", "leave"],
    );
    mistaken(
        &agent("kind = \"conversations\""),
        "agents.a.base_url",
        &["is missing", "without /conversations"],
    );
    mistaken(
        &llm("model = \"main\""),
        "agents.a.prompt",
        &["is missing", "prompt_file"],
    );
    mistaken(
        &llm("prompt = \"x\""),
        "agents.a.model",
        &["is missing", "one of: main"],
    );
    mistaken(
        &agent("kind = \"router\"\nroute_by = \"rules\"\notherwise = \"b\""),
        "agents.a.agents",
        &["is missing"],
    );
    mistaken(
        &agent("kind = \"router\"\nagents = [\"b\"]"),
        "agents.a.rules",
        &["is missing", "otherwise", "route_by = \"model\""],
    );
    mistaken(
        &agent("kind = \"router\"\nagents = [\"b\"]\nroute_by = \"model\""),
        "agents.a.model",
        &["is missing", "[models.main]"],
    );
    mistaken(
        &agent("kind = \"router\"\nagents = [\"b\"]\notherwise = \"b\"\nanswer_by = \"model\""),
        "agents.a.model",
        &["is missing"],
    );
    for (file, key) in [
        ("[models.m]\nmodel = \"x\"\n", "models.m.base_url"),
        ("[models.m]\nbase_url = \"http://h\"\n", "models.m.model"),
        ("[tool_servers.t]\n", "tool_servers.t.url"),
    ] {
        mistaken(&TestPlace::new(file, &[]), key, &["is missing"]);
    }
    let both = "[tool_servers.t]\nurl = \"http://h/\"\ncommand = [\"x\"]\n";
    mistaken(
        &TestPlace::new(both, &[]),
        "tool_servers.t.command",
        &["together with `url`"],
    );
    let ends = "[models.m]\nmodel = \"x\"\nbase_url = \"http://h/v1/chat/completions\"\n";
    mistaken(
        &TestPlace::new(ends, &[]),
        "models.m.base_url",
        &["leave /chat/completions out"],
    );
}

#[test]
fn an_agent_that_is_a_tool_names_a_declared_server_and_its_arguments_once() {
    let declared = |lines: &str| {
        format!("[tool_servers.web]\nurl = \"http://h/mcp\"\n[agents.a]\nkind = \"mcp\"\n{lines}\n")
    };
    let named = "tool_server = \"web\"\ntool = \"fetch\"\n";
    for (lines, key, says) in [
        ("tool = \"fetch\"", "agents.a.tool_server", "is missing"),
        ("tool_server = \"web\"", "agents.a.tool", "is missing"),
        (
            "tool_server = \"wib\"\ntool = \"fetch\"",
            "agents.a.tool_server",
            "one of: web",
        ),
        (
            &format!("{named}history_argument = \"input\""),
            "agents.a.history_argument",
            "agents.a.input_argument",
        ),
        (
            &format!("{named}arguments = {{ input = 1 }}"),
            "agents.a.arguments",
            "the server fills in",
        ),
        (
            &format!("{named}tools = {{}}\nmodel = \"x\""),
            "agents.a.model",
            "is not for agents of kind mcp",
        ),
    ] {
        mistaken(&TestPlace::new(&declared(lines), &[]), key, &[says]);
    }
}

#[test]
fn the_settings_of_an_analytics_agent_fit_its_context() {
    let agent = |lines: &str| {
        let file = format!(
            "[agents.a]\nkind = \"analytics\"\nbase_url = \"https://h/v1\"\n\
             parent = \"projects/p/locations/l\"\n{lines}\n"
        );
        TestPlace::new(&file, &[])
    };
    mistaken(
        &TestPlace::new(
            "[agents.a]\nkind = \"analytics\"\nbase_url = \"https://h/v1\"\ndata_agent = \"d\"\n",
            &[],
        ),
        "agents.a.parent",
        &["is missing", "projects/PROJECT/locations/LOCATION"],
    );
    mistaken(
        &TestPlace::new(
            "[agents.a]\nkind = \"analytics\"\nparent = \"projects/p/locations/l\"\ndata_agent = \"d\"\n",
            &[],
        ),
        "agents.a.base_url",
        &["is missing", "without /projects"],
    );
    mistaken(
        &TestPlace::new(
            "[agents.a]\nkind = \"analytics\"\nbase_url = \"https://h/v1/projects/p/locations/l\"\n\
             parent = \"projects/p/locations/l\"\ndata_agent = \"d\"\n",
            &[],
        ),
        "agents.a.base_url",
        &["come from `parent`"],
    );
    for context in ["", "context = \"conversation\"\n"] {
        mistaken(
            &agent(context),
            "agents.a.data_agent",
            &["is missing", "its whole name"],
        );
        mistaken(
            &agent(&format!(
                "{context}data_agent = \"d\"\ninstructions = \"x\""
            )),
            "agents.a.instructions",
            &["is not for context", "leave it out"],
        );
        mistaken(
            &agent(&format!(
                "{context}data_agent = \"d\"\ndata_sources = {{ bq = {{}} }}"
            )),
            "agents.a.data_sources",
            &["is not for context", "client_managed"],
        );
    }
    for context in ["inline", "client_managed"] {
        let context = format!("context = \"{context}\"\n");
        mistaken(
            &agent(&context),
            "agents.a.data_sources",
            &["is missing", "tableReferences"],
        );
        mistaken(
            &agent(&format!(
                "{context}data_sources = {{ bq = {{}} }}\ndata_agent = \"d\""
            )),
            "agents.a.data_agent",
            &["is not for context", "context = \"agent\""],
        );
    }
    mistaken(
        &agent("data_agent = \"d\"\ndata_key = \"k\"\noutput_key = \"k\""),
        "agents.a.data_key",
        &["is the same as `agents.a.output_key`"],
    );
    mistaken(
        &agent("data_agent = \"d\"\nexport = [\"k\"]"),
        "agents.a.export",
        &["is not for agents of kind analytics"],
    );
    let lines = |lines: &str| format!("[agents.a]\nkind = \"analytics\"\n{lines}\n");
    for (bad, says) in [
        ("context = \"stateless\"", "conversation"),
        ("parent = \"p\"", "projects/PROJECT/locations/LOCATION"),
        ("data_agent = \"a b\"", "dataAgents/ID"),
        ("thinking = \"slow\"", "fast"),
        ("data_key = \"app:k\"", "a key of the app"),
        (
            "data_sources = { looker = { accessToken = \"zz\" } }",
            "credential_env",
        ),
    ] {
        refused(Some(&lines(bad)), &[], &["agents.a.", says]);
    }
}

#[test]
fn whatever_is_named_is_declared() {
    let router = |lines: &str| {
        let file = format!("[agents.a]\nkind = \"router\"\n{lines}\n[agents.b]\n[agents.c]\n");
        TestPlace::new(&file, &[])
    };
    mistaken(
        &router("agents = [\"b\", \"x\"]\notherwise = \"b\""),
        "agents.a.agents",
        &["`x`", "not a declared agent", "[agents.x]", "b, c"],
    );
    mistaken(
        &router("agents = [\"b\", \"b\"]\notherwise = \"b\""),
        "agents.a.agents",
        &["`b` twice"],
    );
    mistaken(
        &router("agents = [\"b\"]\nrules = [{ pattern = \"x\", agent = \"x\" }]"),
        "agents.a.rules",
        &["`x`", "not a declared agent", "statehold.toml"],
    );
    mistaken(
        &router("agents = [\"b\"]\notherwise = \"c\""),
        "agents.a.otherwise",
        &["`c`", "not among `agents.a.agents`"],
    );
    mistaken(
        &router("agents = [\"b\"]\notherwise = \"b\"\nmodel = \"x\""),
        "agents.a.model",
        &["`x`", "not a declared model", "[models.x]"],
    );
    let llm = "[models.m]\nbase_url = \"http://h\"\nmodel = \"x\"\n\
               [agents.a]\nkind = \"llm\"\nmodel = \"m\"\nprompt = \"x\"\ntool_servers = [\"t\"]\n";
    mistaken(
        &TestPlace::new(llm, &[]),
        "agents.a.tool_servers",
        &["`t`", "not a declared tool server", "[tool_servers.t]"],
    );
    let own = TestPlace::new("[agents.\"statehold.x\"]\n", &[]);
    mistaken(&own, "agents.\"statehold.x\"", &["only the server itself"]);
}

/// The hint of the only mistake.
#[track_caller]
fn hint(file: &str) -> String {
    let mistakes = TestPlace::new(file, &[])
        .declare_agents()
        .expect_err("a mistake");
    let [mistake] = &mistakes[..] else {
        panic!("one mistake, not {mistakes:?}");
    };
    mistake.hint.clone()
}

#[test]
fn a_router_is_never_told_to_choose_itself() {
    let router = |lines: &str, others: &str| {
        hint(&format!("[agents.a]\nkind = \"router\"\n{lines}\n{others}"))
    };
    let (b, c) = ("[agents.b]\n", "[agents.b]\n[agents.c]\n");
    let declare = "declare another agent, for example with [agents.helper], and name it: \
                   agents = [\"helper\"]";
    for (lines, others, told) in [
        (
            "agents = [\"x\"]\notherwise = \"x\"",
            b,
            "declare the agent with [agents.x], or use one of: b",
        ),
        (
            "agents = [\"x\"]\notherwise = \"x\"",
            "",
            "declare the agent with [agents.x]",
        ),
        (
            "agents = [\"b\"]\notherwise = \"x\"",
            c,
            "declare the agent with [agents.x], or use one of: b, c",
        ),
        (
            "agents = [\"b\"]\notherwise = \"a\"",
            b,
            "name one of `agents.a.agents`",
        ),
        (
            "otherwise = \"b\"",
            c,
            "name those that it may choose: agents = [\"…\"], of: b, c",
        ),
        ("otherwise = \"b\"", "", declare),
        (
            "agents = [\"a\"]\notherwise = \"a\"",
            "",
            &format!("take it out; {declare}"),
        ),
    ] {
        assert_eq!(router(lines, others), told, "{lines}");
    }
}

#[test]
fn a_router_does_not_lead_back_to_itself() {
    let router = |name: &str, agent: &str| {
        format!(
            "[agents.{name}]\nkind = \"router\"\nagents = [\"{agent}\", \"w\"]\notherwise = \"{agent}\"\n"
        )
    };
    let alone = format!("{}[agents.w]\n", router("a", "a"));
    mistaken(&TestPlace::new(&alone, &[]), "agents.a.agents", &["a → a"]);
    let [b, c, d] = [("b", "c"), ("c", "d"), ("d", "b")].map(|(from, to)| router(from, to));
    let three = format!("{b}{c}{d}{}[agents.w]\n", router("outside", "b"));
    mistaken(
        &TestPlace::new(&three, &[]),
        "agents.b.agents",
        &["b → c → d → b"],
    );
    let plain = format!(
        "{}{}{}[agents.w]\n[agents.x]\n",
        router("a", "b"),
        router("b", "x"),
        router("c", "b")
    );
    assert_eq!(book(&plain).agents.len(), 5);
}

#[test]
fn an_agent_does_not_export_the_key_of_its_answer() {
    let openai = "[agents.a]\nkind = \"openai\"\nbase_url = \"http://h/v1\"\nmodel = \"x\"\n";
    let file = format!("{openai}export = [\"user:a\"]\noutput_key = \"user:a\"\n");
    mistaken(
        &TestPlace::new(&file, &[]),
        "agents.a.output_key",
        &["among `agents.a.export`"],
    );
}

#[test]
fn names_of_the_server_itself_are_not_for_tool_servers() {
    mistaken(
        &TestPlace::new(
            "[tool_servers.\"statehold.state\"]\nurl = \"http://h\"\n",
            &[],
        ),
        "tool_servers.\"statehold.state\"",
        &["only the server itself uses"],
    );
}

#[test]
fn phases_name_declared_agents_and_each_other() {
    let line = |lines: &str| {
        let file = format!("[agents.a]\nkind = \"pipeline\"\n{lines}\n[agents.b]\n[agents.c]\n");
        TestPlace::new(&file, &[])
    };
    let phases = "agents.a.phases";
    mistaken(&line(""), phases, &["is missing", "in order"]);
    mistaken(&line("phases = []"), phases, &["is missing"]);
    mistaken(
        &line("phases = [{ agent = \"x\" }]"),
        phases,
        &["`x`, which is not a declared agent", "[agents.x]"],
    );
    mistaken(
        &line("phases = [{ agent = \"b\" }, { agent = \"b\" }]"),
        phases,
        &["two phases named `b`", "another name"],
    );
    mistaken(
        &line("phases = [{ agent = \"b\", sees = [\"x\"] }]"),
        phases,
        &["see `x`, which is not a phase", "some of: b"],
    );
    let back = "loop_back = [{ pattern = \"x\", to = \"c\" }]";
    mistaken(
        &line(&format!(
            "phases = [{{ agent = \"b\", {back} }}, {{ agent = \"c\" }}]"
        )),
        phases,
        &["go back to `c`, which is no phase before it", "one of: b"],
    );
    mistaken(
        &line("phases = [{ agent = \"b\" }]\nanswer_from = \"c\""),
        "agents.a.answer_from",
        &["`c`, which is not a phase", "one of: b"],
    );
    mistaken(
        &line("phases = [{ agent = \"a\" }]"),
        phases,
        &["a → a", "`loop_back`"],
    );
    let many = (0..65).map(|n| format!("{{ agent = \"b\", name = \"p{n}\" }}"));
    let long = many.collect::<Vec<_>>().join(",");
    mistaken(
        &line(&format!("phases = [{long}]")),
        phases,
        &["has 65 phases"],
    );
    let circle = "[agents.a]\nkind = \"pipeline\"\nphases = [{ agent = \"b\" }]\n\
                  [agents.b]\nkind = \"router\"\nagents = [\"a\"]\notherwise = \"a\"\n";
    mistaken(&TestPlace::new(circle, &[]), phases, &["a → b → a"]);
}

#[test]
fn a_setting_of_another_kind_is_refused_with_the_kinds_that_have_it() {
    let agent = |lines: &str| TestPlace::new(&format!("[agents.a]\n{lines}\n"), &[("KEY", "x")]);
    mistaken(
        &agent("prompt = \"x\""),
        "agents.a.prompt",
        &[
            "not for agents of kind worker",
            "only for: llm",
            "say which kind",
        ],
    );
    mistaken(
        &agent("kind = \"conversations\"\nbase_url = \"http://h\"\nmemory = \"track\""),
        "agents.a.memory",
        &[
            "not for agents of kind conversations",
            "only for: openai",
            "statehold.toml",
        ],
    );
    mistaken(
        &agent("timeout_seconds = 5"),
        "agents.a.timeout_seconds",
        &["only for: openai, dial, conversations"],
    );
    let command = "[tool_servers.t]\ncommand = [\"x\"]\ncredential_env = \"KEY\"\n";
    mistaken(
        &TestPlace::new(command, &[("KEY", "x")]),
        "tool_servers.t.credential_env",
        &["servers with a url", "env = [\"NAME\"]"],
    );
    let url = "[tool_servers.t]\nurl = \"http://h/\"\nenv = [\"KEY\"]\n";
    mistaken(
        &TestPlace::new(url, &[("KEY", "x")]),
        "tool_servers.t.env",
        &["servers with a command", "credential_env"],
    );
}

#[test]
fn secrets_come_from_variables_that_hold_something() {
    let file = "[agents.a]\ncredential_env = \"A_TOKEN\"\n";
    let long = "x".repeat(8_193);
    for (variables, says) in [
        (&[][..], "not set"),
        (&[("A_TOKEN", "")], "empty"),
        (&[("A_TOKEN", "a\nb")], "no header"),
        (&[("A_TOKEN", long.as_str())], "8192"),
    ] {
        let place = TestPlace::new(file, variables);
        mistaken(&place, "agents.a.credential_env", &["A_TOKEN", says]);
    }
    let model = "[models.m]\nbase_url = \"http://h\"\nmodel = \"x\"\ncredential_env = \"K\"\n";
    mistaken(
        &TestPlace::new(model, &[]),
        "models.m.credential_env",
        &["K", "not set"],
    );
    let program = "[tool_servers.m]\ncommand = [\"x\"]\nenv = [\"A\", \"B\"]\n";
    mistaken(
        &TestPlace::new(program, &[("A", "two\nlines")]),
        "tool_servers.m.env",
        &["B", "not set", "leave its name out"],
    );
    let server = "[tool_servers.m]\nurl = \"http://h\"\ncredential_env = \"K\"\n";
    mistaken(
        &TestPlace::new(server, &[]),
        "tool_servers.m.credential_env",
        &["K"],
    );
}

#[test]
fn files_are_found_beside_the_configuration() {
    let llm = "[models.m]\nbase_url = \"http://h\"\nmodel = \"x\"\n\
               [agents.a]\nkind = \"llm\"\nmodel = \"m\"\nprompt_file = \"a.txt\"\n";
    let place = TestPlace::new(llm, &[]);
    mistaken(
        &place,
        "agents.a.prompt_file",
        &["a.txt", "cannot be read", "relative"],
    );
    let place = place.with("a.txt", " \n");
    mistaken(&place, "agents.a.prompt_file", &["which is empty"]);
    let place = place.with("a.txt", "Be terse.\n");
    let declared = place.declare_agents().expect("it is there");
    assert!(
        matches!(&declared.book.agents[&name("a")].kind, AgentKind::Llm(llm) if llm.prompt == "Be terse.\n")
    );
    let both = TestPlace::new(&format!("{llm}prompt = \"x\"\n"), &[]);
    mistaken(&both, "agents.a.prompt_file", &["together with `prompt`"]);

    let openai = "[agents.a]\nkind = \"openai\"\nbase_url = \"http://h\"\nmodel = \"x\"\n\
                  state_schema_file = \"s.json\"\n";
    let place = TestPlace::new(openai, &[]);
    mistaken(
        &place,
        "agents.a.state_schema_file",
        &["s.json", "cannot be read"],
    );
    for (text, says) in [
        ("{", "not JSON"),
        ("{\"type\": \"text\"}", "not a JSON Schema"),
        ("{\"$ref\": \"other.json\"}", "not a JSON Schema"),
    ] {
        let place = TestPlace::new(openai, &[]).with("s.json", text);
        mistaken(&place, "agents.a.state_schema_file", &[says]);
    }
    let place = place.with("s.json", "{\"type\": \"object\"}");
    let declared = place.declare_agents().expect("a schema");
    assert!(declared.book.agents[&name("a")].state_schema.is_some());
    let both = TestPlace::new(&format!("{openai}state_schema = {{}}\n"), &[]);
    mistaken(
        &both,
        "agents.a.state_schema_file",
        &["together with `state_schema`"],
    );
}

#[test]
fn all_mistakes_are_found_at_once_and_the_first_is_said_at_the_start() {
    let place = TestPlace::new(
        "[models.m]\n[agents.a]\nkind = \"openai\"\nprompt = \"x\"\n",
        &[],
    );
    let mistakes = place.declare_agents().expect_err("mistakes");
    let keys: Vec<&str> = mistakes.iter().map(|mistake| &*mistake.key).collect();
    let expected = [
        "models.m.base_url",
        "models.m.model",
        "agents.a.prompt",
        "agents.a.base_url",
        "agents.a.model",
    ];
    assert_eq!(keys, expected);
    let failure = ConfigMistakes(mistakes).into_failure();
    let (said, _) = explain(&failure.into(), false);
    let said = said.expect("said");
    assert!(said.contains("`models.m.base_url` is missing"), "{said}");
    assert!(said.contains("and 4 more") && said.contains("statehold config validate"));
}

#[test]
fn a_value_that_cannot_be_is_refused_before_anything_else() {
    for (file, says) in [
        (
            "[agents.a]\nkind = \"robot\"\n",
            ["`agents.a.kind`", "robot"],
        ),
        (
            "[agents.a]\nimport = [\"User:x\"]\n",
            ["`agents.a.import`", "not a scope"],
        ),
        (
            "[agents.a]\nexport = [\"app:x\"]\n",
            ["`agents.a.export`", "agents only read"],
        ),
        (
            "[agents.a]\noutput_key = \"app:x\"\n",
            ["`agents.a.output_key`", "agents only read"],
        ),
        (
            "[agents.a]\nstate_write = [\"app\"]\n",
            ["`agents.a.state_write`", "agents only read"],
        ),
        (
            "[agents.a]\nexport = [\"what:x\"]\n",
            ["`agents.a.export`", "not a scope"],
        ),
        (
            "[agents.a]\nrules = [{ pattern = \"(\", agent = \"b\" }]\n",
            ["`agents.a.rules`", "not a regular expression"],
        ),
        (
            "[agents.a]\nrules = [{ patern = \"x\", agent = \"b\" }]\n",
            ["`agents.a.rules`", "patern"],
        ),
        (
            "[agents.a]\nstate_schema = { type = \"text\" }\n",
            ["`agents.a.state_schema`", "not a JSON Schema"],
        ),
        (
            "[agents.a.tools.t]\napproval_if = { \"$ref\" = \"http://x/y\" }\n",
            ["`agents.a.tools.t.approval_if`", "not a JSON Schema"],
        ),
        (
            "[agents.a]\ntimeout_seconds = 0\n",
            ["`agents.a.timeout_seconds`", "1 to 3600"],
        ),
        (
            "[agents.a]\nretries = 11\n",
            ["`agents.a.retries`", "0 to 10"],
        ),
        (
            "[agents.a]\nsteps_max = 257\n",
            ["`agents.a.steps_max`", "1 to 256"],
        ),
        (
            "[agents.a]\nprompt = \" \"\n",
            ["`agents.a.prompt`", "must not be empty"],
        ),
        (
            "[models.m]\nbase_url = \"h:1\"\n",
            ["`models.m.base_url`", "not a URL"],
        ),
        (
            "[models.m]\ntimeout_seconds = 3601\n",
            ["`models.m.timeout_seconds`", "1 to 3600"],
        ),
        (
            "[models.m]\nbase = \"x\"\n",
            ["`models.m.base`", "did you mean `models.m.base_url`"],
        ),
        ("[models.\"a b\"]\n", ["`a b`", "not a name"]),
        (
            "[tool_servers.t]\ncommand = \"npx notes\"\n",
            ["`tool_servers.t.command`", "expected a sequence"],
        ),
        (
            "[tool_servers.t]\ncommand = []\n",
            ["`tool_servers.t.command`", "must begin with a program"],
        ),
        (
            "[models.m.headers]\nHost = { env = \"A\" }\n",
            ["`models.m.headers`", "no header"],
        ),
        (
            "[models.m]\nheaders = { api-key = \"sk-secret\" }\n",
            ["`models.m.headers`", "expected"],
        ),
        (
            "[tool_servers.t]\nurl = \"http://h/?key=1\"\n",
            ["`tool_servers.t.url`", "query"],
        ),
    ] {
        refused(Some(file), &[], &says);
    }
}

#[test]
fn neither_secrets_nor_prompts_are_said_or_shown() {
    for file in [
        "[models.m]\ncredential_env = \"sk-SECRET\"\n",
        "[agents.a]\nbase_url = \"http://me:SECRET@h/\"\n",
        "[models.m]\nbase_url = \"http://h/?key=SECRET\"\n",
        "[tool_servers.t]\nurl = \"http://h/#SECRET\"\n",
        "[tool_servers.t]\nenv = [\"TOKEN=SECRET\"]\n",
        "[tool_servers.t]\nenv = \"SECRET\"\n",
        "[tool_servers.t]\ncommand = \"npx notes --token SECRET\"\n",
        "[agents.a]\nprompt = [\"SECRET\"]\n",
        "[agents.a]\ncredential = \"SECRET\"\n",
    ] {
        let place = TestPlace::new(file, &[]);
        let finished = layers(&place.environment, None).and_then(ConfigLayers::finish);
        let (said, _) = explain(&finished.expect_err(file), false);
        let said = said.expect("said");
        assert!(!said.contains("SECRET"), "{said}");
    }
    let place = TestPlace::new(WHOLE, &VARIABLES);
    let (_, explained) = place.finished();
    let shown = |key: &str| {
        let found = explained.iter().find(|value| value.key == key);
        found.expect("it is explained").text()
    };
    let prompt = shown("agents.assistant.prompt");
    assert!(prompt.starts_with("(14 bytes, sha256 "), "{prompt}");
    assert!(shown("agents.coordinator.rules").contains("(9 bytes, sha256 "));
    assert_eq!(shown("agents.gpa.credential_env"), "GPA_TOKEN");
    assert!(shown("tool_servers.local.env").contains("LOCAL_TOKEN"));
    assert_eq!(shown("agents.math"), "{}");
    let all: Vec<String> = explained
        .iter()
        .map(|value| value.to_json().to_string())
        .collect();
    for hidden in ["terse", "well", "Say whom", "secret\"", "sk-main"] {
        assert!(all.iter().all(|value| !value.contains(hidden)), "{hidden}");
    }
}

#[test]
fn a_worker_calls_declared_agents_only() {
    let calls = |lines: &str| format!("[agents.a]\n{lines}\n[agents.b]\n");
    mistaken(
        &TestPlace::new(&calls("calls = [\"b\", \"pay\"]"), &[]),
        "agents.a.calls",
        &["`pay`, which is not a declared agent", "a, b"],
    );
    let file = calls("calls = [\"b\"]") + "[agents.c.tools.t]\napproval = \"always\"\n";
    let config = TestPlace::new(&file, &[]).finished().0;
    let policies = crate::config::policies(&config);
    let callable = |agent: &str| {
        let calls = policies.calls.get(&agent.parse().expect("a name"))?;
        Some(calls.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(callable("a"), Some(vec!["b".to_owned()]));
    assert_eq!(callable("b"), Some(Vec::new()));
    assert_eq!(callable("c"), None, "policies alone declare no agent");
}

#[test]
fn a_rule_of_state_keys_names_keys_and_fits() {
    mistaken(
        &TestPlace::new("[state.\"temp:x\"]\nmerge = \"add\"\n", &[]),
        "state.\"temp:x\".merge",
        &["keys that are stored", "replaces the value"],
    );
    for (file, says) in [
        (
            "[state.\"User:*\"]\nmerge = \"add\"\n",
            "names no state keys",
        ),
        ("[state.x]\nmerge = \"most\"\n", "state.x.merge"),
        (
            "[state.x]\nschema = { type = \"txt\" }\n",
            "not a JSON Schema",
        ),
        ("[state.x]\nmerges = \"add\"\n", "state.x.merge"),
    ] {
        refused(Some(file), &[], &[says]);
    }
}

#[test]
fn rules_of_state_keys_come_from_the_file_and_the_environment() {
    let file =
        "[state.\"user:*\"]\nschema = { type = \"string\" }\n[state.visits]\nmerge = \"add\"\n";
    let variables = [("STATEHOLD__STATE__VISITS__SCHEMA", "{ type = \"integer\" }")];
    let place = TestPlace::new(file, &variables);
    place.declare_agents().expect("no mistakes");
    let rules = crate::config::policies(&place.finished().0).state;
    let errors = |key: &str, value: &str| {
        let key = key.parse().expect("a key");
        rules.errors(&key, value.as_bytes()).len()
    };
    assert_eq!(errors("user:x", "1"), 1);
    assert_eq!(errors("user:x", "\"a\""), 0);
    assert_eq!(errors("visits", "\"a\""), 1);
    assert_eq!(errors("other", "1"), 0);
}

//! Specifications built from valid configurations.

mod refused;

use std::collections::BTreeSet;

use statehold_agents::spec::{
    CallerTrust, ChatMemory, ChatSessions, DataContext, FinalAnswer, HistoryAccess,
    PhaseErrorPolicy, PhaseInput, Routing, SeenAnswers, ThinkingMode,
};
use statehold_server::ReloadMistake;

use super::*;
use crate::config::kinds::SETTINGS;
use crate::config::models::MODEL_SETTINGS;
use crate::config::tool_servers::TOOL_SERVER_SETTINGS;
use crate::config::{ConfigLayers, layers};

/// Everything that can be declared, once.
const WHOLE: &str = r#"
    [models.main]
    base_url = "http://127.0.0.1:9000/v1/"
    model = "gpt-4o"
    credential_env = "OPENAI_API_KEY"
    [tool_servers.files]
    url = "http://127.0.0.1:9001/mcp"
    credential_env = "FILES_TOKEN"
    timeout_seconds = 5
    trust_hints = true
    [tool_servers.local]
    command = ["python3", "server.py"]
    env = ["LOCAL_TOKEN"]
    [agents.coordinator]
    kind = "router"
    description = "Chooses."
    agents = ["gpa", "ums", "math"]
    route_by = "model"
    model = "main"
    rules = [{ pattern = "(?i)user", agent = "ums", instructions = "Say whom." }]
    otherwise = "gpa"
    answer_by = "agent"
    routing_prompt = "Choose well."
    answer_prompt = "Answer well."
    sessions = "auto"
    [agents.gpa]
    kind = "openai"
    base_url = "http://127.0.0.1:5000/v1"
    model = "general-purpose-agent"
    memory = "track"
    import = ["last_mentioned_location"]
    export = ["last_mentioned_location"]
    state_schema = { type = "object" }
    keep_pairs = 5
    timeout_seconds = 7
    retries = 0
    credential_env = "GPA_TOKEN"
    [agents.ums]
    kind = "conversations"
    base_url = "http://127.0.0.1:8042"
    [agents.assistant]
    kind = "llm"
    model = "main"
    prompt = "You are terse."
    tool_servers = ["files", "local"]
    tokens_max = 100000
    [agents.assistant.tools.file_extraction]
    approval_if = { properties = { path = { pattern = "^/etc" } }, required = ["path"] }
    [agents.math]
"#;

const VARIABLES: [(&str, &str); 4] = [
    ("LOCAL_TOKEN", "local-secret"),
    ("OPENAI_API_KEY", "sk-main"),
    ("FILES_TOKEN", "files-secret"),
    ("GPA_TOKEN", "gpa-secret"),
];

/// A directory with a configuration in it.
struct TestPlace {
    directory: tempfile::TempDir,
    environment: ConfigEnvironment,
}

impl TestPlace {
    fn new(file: &str, variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("statehold.toml"), file).expect("a file");
        let variables = variables.iter();
        let environment = ConfigEnvironment {
            directory: directory.path().to_owned(),
            variables: variables
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
        };
        Self {
            directory,
            environment,
        }
    }

    fn with(self, name: &str, text: &str) -> Self {
        std::fs::write(self.directory.path().join(name), text).expect("a file");
        self
    }

    fn finished(&self) -> (Config, Vec<SourcedValue>) {
        let layers = layers(&self.environment, None).expect("known keys");
        ConfigLayers::finish(layers).expect("fit values")
    }

    fn declare_agents(&self) -> Result<DeclaredAgents, Vec<ReloadMistake>> {
        let (config, explained) = self.finished();
        declare_agents(&config, &explained, &self.environment).map_err(|mistakes| mistakes.0)
    }
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn book(file: &str) -> AgentBook {
    let place = TestPlace::new(file, &VARIABLES);
    place.declare_agents().expect("no mistakes").book
}

#[test]
fn services_can_need_other_headers_and_a_query() {
    let file = r#"
[models.azure]
base_url = "http://h/openai/deployments/d/?api-version=2024-10-21"
model = "d"
headers = { api-key = { env = "OPENAI_API_KEY" } }

[tool_servers.t]
url = "http://h/mcp"
[tool_servers.t.headers]
X-Api-Key = { env = "OPENAI_API_KEY" }

[agents.far]
kind = "openai"
base_url = "http://h/v1"
model = "m"
headers = { api-key = { env = "OPENAI_API_KEY" } }

[agents.app]
kind = "dial"
base_url = "http://h/?api-version=1"
deployment = "applications/b/gpa"
"#;
    let book = book(file);
    let azure = &book.models[&name("azure")];
    assert_eq!(
        azure.base_url,
        "http://h/openai/deployments/d?api-version=2024-10-21"
    );
    assert_eq!(azure.headers[0].name, "api-key");
    let shown = format!("{azure:?} {:?}", book.tool_servers);
    assert!(!shown.contains("sk-main"), "{shown}");
    let ToolTransport::Http { headers, .. } = &book.tool_servers[&name("t")].transport else {
        panic!("it has a URL");
    };
    assert_eq!(headers[0].name, "x-api-key");
    let AgentKind::Openai(far) = &book.agent(&name("far")).expect("declared").kind else {
        panic!("it is a service");
    };
    assert_eq!(far.headers.len(), 1);
    let AgentKind::Dial(app) = &book.agent(&name("app")).expect("declared").kind else {
        panic!("it is an application");
    };
    assert_eq!(app.base_url, "http://h?api-version=1");
    assert_eq!(app.deployment, "applications/b/gpa");

    let unset = file.replace("OPENAI_API_KEY", "NOT_SET");
    let place = TestPlace::new(&unset, &VARIABLES);
    let mistakes = place.declare_agents().expect_err("mistakes");
    let keys: Vec<&str> = mistakes
        .iter()
        .map(|mistake| mistake.key.as_str())
        .collect();
    assert_eq!(
        keys,
        [
            "models.azure.headers",
            "tool_servers.t.headers",
            "agents.far.headers"
        ]
    );
}

#[test]
fn an_agent_may_be_a_tool() {
    let declared = |lines: &str| {
        let file = format!(
            "[tool_servers.web]\nurl = \"http://h/mcp\"\n[agents.fetcher]\nkind = \"mcp\"\n\
             tool_server = \"web\"\ntool = \"fetch\"\n{lines}\n"
        );
        Arc::clone(book(&file).agent(&name("fetcher")).expect("declared"))
    };
    let plain = declared("");
    let AgentKind::Mcp(spec) = &plain.kind else {
        panic!("{:?}", plain.kind);
    };
    assert_eq!(spec.history, HistoryAccess::Pinned);
    assert_eq!(spec.input_argument, "input");
    assert_eq!(spec.history_argument, "conversation_history_uri");
    assert!(plain.kind.needs_session());
    // The default, written or not, is the same declaration.
    let written = "history = \"pinned\"\ninput_argument = \"input\"";
    assert_eq!(plain.digest, declared(written).digest);
    let other =
        declared("history = \"none\"\narguments = { depth = 3, names = [\"a\"] }\nretries = 1");
    assert_ne!(plain.digest, other.digest);
    let AgentKind::Mcp(spec) = &other.kind else {
        panic!("{:?}", other.kind);
    };
    let arguments = serde_json::to_string(&spec.arguments).expect("JSON");
    assert_eq!(arguments, r#"{"depth":3,"names":["a"]}"#);
    assert!(!other.kind.needs_session() && other.retries == 1);
}

#[test]
fn an_agent_trusts_no_caller_and_gives_no_references_unless_it_says_so() {
    let declared = |lines: &str| {
        let file = format!(
            "[agents.gpa]\nkind = \"openai\"\nbase_url = \"https://h/v1\"\nmodel = \"m\"\n{lines}\n"
        );
        let book = book(&file);
        Arc::clone(book.agent(&name("gpa")).expect("declared"))
    };
    let plain = declared("");
    assert_eq!(plain.caller_history, CallerTrust::Untrusted);
    assert!(!plain.references);
    let written = declared("caller_history = \"untrusted\"\nreferences = false");
    assert_eq!(written.digest, plain.digest);
    let other = declared("caller_history = \"trusted\"\nreferences = true");
    assert_eq!(other.caller_history, CallerTrust::Trusted);
    assert!(other.references && other.digest != plain.digest);
}

#[test]
fn an_analytics_agent_has_one_of_four_contexts() {
    let declared = |lines: &str| {
        let file = format!(
            "[agents.data]\nkind = \"analytics\"\nbase_url = \"https://h/v1\"\n\
             parent = \"projects/p/locations/l\"\n{lines}\n"
        );
        let book = book(&file);
        let agent = Arc::clone(book.agent(&name("data")).expect("declared"));
        assert_eq!(agent.sessions, ChatSessions::Auto);
        agent
    };
    let analytics = |agent: &AgentSpec| match &agent.kind {
        AgentKind::Analytics(spec) => Arc::clone(spec),
        other => panic!("{other:?}"),
    };
    let agent = declared(
        "data_agent = \"sales\"\nthinking = \"fast\"\ndata_key = \"temp:data\"\n\
         credential_env = \"GPA_TOKEN\"\ntimeout_seconds = 7",
    );
    assert_eq!(agent.timeout, Duration::from_secs(7));
    assert!(!agent.kind.needs_session());
    // The default, written or not, is the same declaration.
    let plain = declared("data_agent = \"sales\"");
    let written = declared("data_agent = \"sales\"\ncontext = \"agent\"");
    assert_eq!(plain.digest, written.digest);
    assert_ne!(plain.digest, agent.digest);
    let spec = analytics(&agent);
    assert_eq!(spec.base_url, "https://h/v1");
    assert_eq!(spec.parent, "projects/p/locations/l");
    assert_eq!(spec.thinking, Some(ThinkingMode::Fast));
    assert_eq!(spec.data_key, Some("temp:data".parse().expect("a key")));
    assert!(spec.credential.is_some() && !format!("{spec:?}").contains("gpa-secret"));
    let whole = "projects/p/locations/l/dataAgents/sales";
    assert!(
        matches!(&spec.context, DataContext::Agent { data_agent } if data_agent == whole),
        "{spec:?}"
    );
    let agent = declared(&format!(
        "context = \"conversation\"\ndata_agent = \"{whole}\""
    ));
    assert!(agent.kind.needs_session());
    let spec = analytics(&agent);
    assert!(
        matches!(&spec.context, DataContext::Conversation { data_agent } if data_agent == whole),
        "{spec:?}"
    );
    let inline = "instructions = \"In euros.\"\n[agents.data.data_sources.bq]\n\
                  tableReferences = [{ projectId = \"p\", since = 2026-01-01 }]";
    let sources = json!({"bq": {"tableReferences": [{"projectId": "p", "since": "2026-01-01"}]}});
    for word in ["inline", "client_managed"] {
        let spec = analytics(&declared(&format!("context = \"{word}\"\n{inline}")));
        let data = match &spec.context {
            DataContext::Inline(data) if word == "inline" => data,
            DataContext::ClientManaged(data) if word == "client_managed" => data,
            other => panic!("{other:?}"),
        };
        assert_eq!(data.instructions.as_deref(), Some("In euros."));
        assert_eq!(data.data_sources, sources);
    }
}

#[test]
fn everything_that_is_declared_is_in_the_book() {
    let declared = TestPlace::new(WHOLE, &VARIABLES)
        .declare_agents()
        .expect("it fits");
    let book = &declared.book;
    let agent = |text: &str| Arc::clone(book.agent(&name(text)).expect("declared"));
    let main = &book.models[&name("main")];
    assert_eq!(main.base_url, "http://127.0.0.1:9000/v1");
    assert_eq!((main.model.as_str(), main.retries), ("gpt-4o", 2));
    assert_eq!(main.timeout, Duration::from_mins(1));
    assert_eq!(
        main.credential.as_ref().map(Credential::expose),
        Some("sk-main")
    );
    let files = &book.tool_servers[&name("files")];
    assert_eq!(files.timeout, Duration::from_secs(5));
    assert!(files.trust_hints);
    assert!(
        matches!(&files.transport, ToolTransport::Http { url, credential: Some(_), .. } if url.ends_with("/mcp"))
    );
    let local = &book.tool_servers[&name("local")];
    assert!(!local.trust_hints, "nobody is believed by default");
    assert!(
        matches!(&local.transport, ToolTransport::Command { program, arguments, .. } if program == "python3" && arguments == &["server.py"])
    );
    assert!(
        matches!(&local.transport, ToolTransport::Command { environment, .. }
            if matches!(&environment[..], [(name, value)] if name == "LOCAL_TOKEN" && value.expose() == "local-secret"))
    );
    assert!(!format!("{local:?}").contains("local-secret"));

    let coordinator = agent("coordinator");
    assert_eq!(coordinator.sessions, ChatSessions::Auto);
    assert_eq!(coordinator.description.as_deref(), Some("Chooses."));
    let AgentKind::Router(router) = &coordinator.kind else {
        panic!("{:?}", coordinator.kind);
    };
    assert_eq!(router.agents, ["gpa", "ums", "math"].map(name));
    assert!(
        matches!(&router.routing, Routing::Model { model, prompt: Some(_) } if *model == name("main"))
    );
    assert!(matches!(router.answer, FinalAnswer::Pass));

    let gpa = agent("gpa");
    assert_eq!((gpa.timeout, gpa.retries), (Duration::from_secs(7), 0));
    assert_eq!(gpa.keep_pairs, Some(5));
    assert_eq!((gpa.import.len(), gpa.export.len()), (1, 1));
    let schema = gpa.state_schema.as_ref().expect("a schema");
    assert!(!schema.errors(&serde_json::json!([])).is_empty());
    let AgentKind::Openai(openai) = &gpa.kind else {
        panic!("{:?}", gpa.kind);
    };
    assert_eq!(openai.memory, ChatMemory::Track);
    assert!(openai.credential.is_some());
    let own: Vec<&Name> = declared.credentials.keys().collect();
    assert_eq!(own, [&name("gpa")]);

    let ums = agent("ums");
    assert_eq!((ums.timeout, ums.retries), (Duration::from_mins(1), 2));
    assert_eq!((ums.kind.word(), ums.keep_pairs), ("conversations", None));
    let assistant = agent("assistant");
    let AgentKind::Llm(llm) = &assistant.kind else {
        panic!("{:?}", assistant.kind);
    };
    assert_eq!((llm.steps_max, llm.tokens_max), (16, Some(100_000)));
    assert_eq!(llm.prompt, "You are terse.");
    assert!(matches!(agent("math").kind, AgentKind::Worker));
}

#[test]
fn rules_choose_unless_something_else_is_said() {
    let book = book(
        "[agents.c]\nkind = \"router\"\nagents = [\"a\"]\n\
         rules = [{ pattern = \"(?i)weather\", agent = \"a\", instructions = \"x\" }]\n[agents.a]\n",
    );
    let AgentKind::Router(router) = &book.agents[&name("c")].kind else {
        panic!("a router");
    };
    let Routing::Rules { rules, otherwise } = &router.routing else {
        panic!("rules");
    };
    assert!(rules[0].pattern.is_match("The WEATHER?"));
    assert_eq!(rules[0].instructions.as_deref(), Some("x"));
    assert_eq!(*otherwise, None);
}

#[test]
fn a_pipeline_has_its_phases_in_order_with_their_settings() {
    let book = book(
        r#"
        [agents.line]
        kind = "pipeline"
        loops_max = 5
        on_loop_limit = "fail"
        answer_from = "write"
        [[agents.line.phases]]
        agent = "a"
        [[agents.line.phases]]
        name = "write"
        agent = "b"
        input = "answer"
        sees = ["a"]
        instructions = "Be terse."
        retries = 2
        on_error = "skip"
        loop_back = [{ pattern = "(?i)again", to = "a" }]
        [[agents.line.phases]]
        name = "check"
        agent = "a"
        sees = "last"
        [agents.a]
        [agents.b]
        "#,
    );
    let line = &book.agents[&name("line")];
    let AgentKind::Pipeline(pipeline) = &line.kind else {
        panic!("{:?}", line.kind);
    };
    let [first, write, check] = &pipeline.phases[..] else {
        panic!("{pipeline:?}");
    };
    assert_eq!((&first.name, &first.agent), (&name("a"), &name("a")));
    assert_eq!((first.retries, &first.sees), (0, &SeenAnswers::All));
    assert_eq!((&write.name, &write.agent), (&name("write"), &name("b")));
    assert_eq!(write.input, PhaseInput::Answer);
    assert_eq!(write.sees, SeenAnswers::Named(vec![name("a")]));
    assert_eq!(write.instructions.as_deref(), Some("Be terse."));
    assert_eq!((write.retries, write.on_error), (2, PhaseErrorPolicy::Skip));
    assert!(write.loop_back[0].pattern.is_match("AGAIN"));
    assert_eq!(check.sees, SeenAnswers::Last);
    assert_eq!(
        (pipeline.loops_max, &pipeline.answer_from),
        (5, &Some(name("write")))
    );
    assert_eq!(line.sessions, ChatSessions::Auto);
    let agents = line.kind.coordinated_agents();
    assert_eq!(agents, Some(vec![&name("a"), &name("b")]));
}

#[test]
fn keys_of_every_scope_go_to_agents_and_all_but_those_of_the_app_come_back() {
    let book = book(
        r#"
        [models.main]
        base_url = "http://h/v1"
        model = "x"
        [agents.a]
        kind = "llm"
        model = "main"
        prompt = "Answer in {user:language}."
        import = ["app:flag", "user:language", "topic", "temp:rows"]
        output_key = "temp:parsed"
        state_read = ["app", "user", "session", "temp"]
        state_write = ["session", "temp"]
        [agents.b]
        kind = "openai"
        base_url = "http://h/v1"
        model = "x"
        export = ["user:language", "topic", "temp:rows"]
        "#,
    );
    let (a, b) = (&book.agents[&name("a")], &book.agents[&name("b")]);
    assert_eq!((a.import.len(), b.export.len()), (4, 3));
    let output = a.output_key.as_ref().map(ToString::to_string);
    assert_eq!(output.as_deref(), Some("temp:parsed"));
    let AgentKind::Llm(llm) = &a.kind else {
        panic!("{:?}", a.kind);
    };
    assert_eq!((llm.state.read.len(), llm.state.write.len()), (4, 2));
}

#[test]
fn an_agent_without_a_kind_is_a_worker_with_the_digest_of_one() {
    for file in [
        "[agents.a]\n",
        "[agents.a]\nkind = \"worker\"\n",
        "[agents.a]\nrisk = \"low\"\nsessions = \"auto\"\n",
        "[agents.a.tools.t]\napproval = \"always\"\n",
    ] {
        let book = book(file);
        let agent = &book.agents[&name("a")];
        assert!(matches!(agent.kind, AgentKind::Worker), "{file}");
        assert_eq!(agent.digest, AgentSpec::worker(name("a")).digest, "{file}");
    }
}

#[test]
fn the_digest_changes_with_what_is_declared_and_with_nothing_else() {
    let digest = |file: &str, secret: &str| {
        let place = TestPlace::new(file, &[("KEY", secret)]).with("p.txt", "Be terse.");
        let declared = place.declare_agents().expect("no mistakes");
        declared.book.agents[&name("a")].digest
    };
    let file = |model: &str, agent: &str| {
        format!(
            "[models.m]\nbase_url = \"http://h/v1\"\ncredential_env = \"KEY\"\nmodel = \"{model}\"\n\
             [models.other]\nbase_url = \"http://h/v1\"\nmodel = \"{model}\"\n\
             [agents.a]\nkind = \"llm\"\n{agent}\n"
        )
    };
    let base = digest(&file("x", "model = \"m\"\nprompt = \"Be terse.\""), "s1");
    for same in [
        "model = \"m\"\nprompt_file = \"p.txt\"",
        "model = \"m\"\nprompt = \"Be terse.\"\nsteps_max = 16",
        "model = \"m\"\nprompt = \"Be terse.\"\n[agents.a.tools.t]\nrisk = \"low\"",
    ] {
        assert_eq!(digest(&file("x", same), "s2"), base, "{same}");
    }
    for other in [
        "model = \"m\"\nprompt = \"Be brief.\"",
        "model = \"other\"\nprompt = \"Be terse.\"",
        "model = \"m\"\nprompt = \"Be terse.\"\nsteps_max = 17",
        "model = \"m\"\nprompt = \"Be terse.\"\ndescription = \"x\"",
    ] {
        assert_ne!(digest(&file("x", other), "s1"), base, "{other}");
    }
    let other_model = file("y", "model = \"m\"\nprompt = \"Be terse.\"");
    assert_ne!(digest(&other_model, "s1"), base);
}

#[test]
fn the_environment_declares_agents_too() {
    let variables = [
        (
            "STATEHOLD__MODELS__M",
            "{ base_url = \"http://h\", model = \"x\" }",
        ),
        ("STATEHOLD__AGENTS__A__KIND", "llm"),
        ("STATEHOLD__AGENTS__A__MODEL", "m"),
        ("STATEHOLD__AGENTS__A__PROMPT", "42"),
        ("STATEHOLD__AGENTS__A__STEPS_MAX", "3"),
        (
            "STATEHOLD__AGENTS__A__APPROVAL_IF",
            "{ required = [\"path\"] }",
        ),
        ("STATEHOLD__AGENTS__B", "{}"),
    ];
    let place = TestPlace::new("", &variables);
    let book = place.declare_agents().expect("it fits").book;
    assert!(
        matches!(&book.agents[&name("a")].kind, AgentKind::Llm(llm) if llm.prompt == "42" && llm.steps_max == 3)
    );
    assert!(book.agents.contains_key(&name("b")));
    let policies = super::super::policies(&place.finished().0);
    let policy = policies.of(&name("a"), "any");
    assert!(policy.needs_approval(&serde_json::json!({ "path": 1 })));
    assert!(!policy.needs_approval(&serde_json::json!({})));
}

#[test]
fn a_date_in_a_schema_is_the_text_it_was_written_as() {
    let file = "[agents.a]\napproval_if = { properties = { on = { const = 2026-01-01 } } }\n\
                [agents.a.tools.t]\napproval_if = { properties = { on = { const = 2026-01-02 } } }\n";
    let policies = super::super::policies(&TestPlace::new(file, &[]).finished().0);
    for (tool, day) in [("other", "2026-01-01"), ("t", "2026-01-02")] {
        let policy = policies.of(&name("a"), tool);
        assert!(
            policy.needs_approval(&serde_json::json!({ "on": day })),
            "{tool}"
        );
        assert!(!policy.needs_approval(&serde_json::json!({ "on": "2026-01-03" })));
    }
}

#[test]
fn a_condition_in_the_file_is_one_of_the_policy() {
    let place = TestPlace::new(WHOLE, &VARIABLES);
    let policies = super::super::policies(&place.finished().0);
    let policy = policies.of(&name("assistant"), "file_extraction");
    assert!(policy.needs_approval(&serde_json::json!({ "path": "/etc/passwd" })));
    assert!(!policy.needs_approval(&serde_json::json!({ "path": "notes" })));
}

#[test]
fn the_lists_of_settings_are_whole() {
    let every = r#"
        [agents.a]
        agents = []
        answer_by = "model"
        answer_prompt = "x"
        approval = "always"
        approval_if = {}
        base_url = "http://h"
        calls = []
        close_on = "reply"
        comment_required = true
        credential_env = "X"
        decide_by = "other"
        description = "x"
        effect = "read"
        expires_in_seconds = 1
        export = []
        idempotent = true
        import = []
        keep_pairs = 0
        kind = "llm"
        memory = "track"
        model = "x"
        on_expiry = "fail"
        on_no_answer = "tell"
        otherwise = "b"
        prompt = "x"
        prompt_file = "x"
        quorum = 2
        redact = []
        redact_rules = []
        retries = 0
        risk = "low"
        route_by = "model"
        routing_prompt = "x"
        rules = []
        sessions = "auto"
        state_schema = {}
        state_schema_file = "x"
        steps_max = 1
        timeout_seconds = 1
        tokens_max = 1
        tool_servers = []
        [models.m]
        base_url = "http://h"
        credential_env = "X"
        model = "x"
        retries = 0
        timeout_seconds = 1
        [tool_servers.t]
        command = ["x"]
        credential_env = "X"
        env = ["X"]
        timeout_seconds = 1
        trust_hints = true
        url = "http://h"
    "#;
    let (config, _) = TestPlace::new(every, &[]).finished();
    let written = json!({
        "agents": config.agents, "models": config.models, "tool_servers": config.tool_servers,
    });
    let settings = |section: &str, name: &str| {
        let table = written[section][name].as_object().expect("a table");
        let settings = table.keys().filter(|setting| *setting != "tools");
        settings.cloned().collect::<BTreeSet<String>>()
    };
    let listed = |settings: &[&str]| settings.iter().map(|text| (*text).to_owned()).collect();
    let mut of_agents: BTreeSet<String> = listed(&super::super::agents::TOOL_SETTINGS);
    of_agents.extend(SETTINGS.iter().map(|(setting, _)| (*setting).to_owned()));
    assert_eq!(settings("agents", "a"), of_agents);
    assert_eq!(settings("models", "m"), listed(&MODEL_SETTINGS));
    assert_eq!(settings("tool_servers", "t"), listed(&TOOL_SERVER_SETTINGS));
}

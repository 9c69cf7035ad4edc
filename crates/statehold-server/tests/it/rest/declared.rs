//! Which agents there are.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, CallerTrust, ChatSessions, FinalAnswer, LlmSpec, OpenaiSpec,
    RouterSpec, Routing, StageDetail, StateAccess,
};
use statehold_core::name::Name;
use statehold_engine::policy::{AgentPolicy, Approval, ArgsCondition, Policies, ToolPolicy};
use statehold_engine::{Credential, Swap};
use statehold_server::{
    Reload, ReloadError, ReloadFuture, ReloadMistake, ReloadReport, ServerOptions,
};

use crate::rig::{Rig, Setup};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn of_kind(text: &str, kind: AgentKind) -> Arc<AgentSpec> {
    Arc::new(AgentSpec {
        kind,
        description: Some(format!("What {text} does.")),
        ..AgentSpec::worker(name(text))
    })
}

fn book() -> AgentBook {
    let router = RouterSpec {
        agents: vec![name("gpa"), name("assistant")],
        routing: Routing::Rules {
            rules: Vec::new(),
            otherwise: Some(name("gpa")),
        },
        answer: FinalAnswer::Pass,
    };
    let coordinator = AgentSpec {
        kind: AgentKind::Router(Arc::new(router)),
        sessions: ChatSessions::Auto,
        caller_history: CallerTrust::default(),
        references: false,
        stages: StageDetail::default(),
        ..AgentSpec::worker(name("coordinator"))
    };
    let gpa = AgentKind::Openai(Arc::new(OpenaiSpec {
        base_url: "http://hidden.example/v1".to_owned(),
        model: "hidden-model".to_owned(),
        credential: Credential::new("hidden-credential".to_owned()),
        headers: Vec::new(),
        memory: statehold_agents::spec::ChatMemory::Restore,
    }));
    let assistant = AgentKind::Llm(Arc::new(LlmSpec {
        model: name("main"),
        prompt: "A hidden prompt.".to_owned(),
        tool_servers: Vec::new(),
        steps_max: 16,
        tokens_max: None,
        prompt_echo_words: None,
        state: StateAccess::default(),
    }));
    let agents = [
        Arc::new(coordinator),
        of_kind("gpa", gpa),
        of_kind("assistant", assistant),
        Arc::new(AgentSpec::worker(name("helper"))),
    ];
    let agents = agents.into_iter();
    AgentBook {
        agents: agents.map(|spec| (spec.name.clone(), spec)).collect(),
        ..AgentBook::default()
    }
}

fn policies() -> Policies {
    let large = json!({"properties": {"amount": {"minimum": 100}}, "required": ["amount"]});
    let tool = |approval, condition: Option<&Value>| ToolPolicy {
        approval,
        approval_if: condition.map(|schema| ArgsCondition::new(schema.clone()).expect("a schema")),
        ..ToolPolicy::default()
    };
    let assistant = AgentPolicy {
        every_tool: tool(Some(Approval::Never), None),
        tools: [
            (name("delete"), tool(Some(Approval::Always), None)),
            (name("look"), tool(None, None)),
            (name("pay"), tool(None, Some(&large))),
        ]
        .into(),
    };
    let only_policy = AgentPolicy {
        tools: [(name("look"), tool(None, None))].into(),
        ..AgentPolicy::default()
    };
    Policies {
        agents: [(name("assistant"), assistant), (name("ums"), only_policy)].into(),
        ..Policies::default()
    }
}

async fn rig() -> Rig {
    Rig::with(Setup {
        server: ServerOptions {
            agents: Arc::new(book()).into(),
            ..ServerOptions::default()
        },
        policies: Arc::new(policies()),
        ..Setup::default()
    })
    .await
}

#[tokio::test]
async fn every_caller_learns_which_agents_there_are_and_nobody_what_they_are_told() {
    let rig = rig().await;
    for roles in [&["client"], &["worker"], &["approver"], &["operator"]] {
        let answer = rig.key(roles).await.get("/v1/agents").await;
        assert!(!answer.text().contains("hidden"), "{}", answer.text());
        let listed = answer.ok(200);
        let agents = listed["agents"].as_array().expect("a list").iter();
        let found: Vec<(&str, &str)> = agents
            .map(|agent| {
                let text = |field: &str| agent[field].as_str().expect("a text");
                (text("name"), text("kind"))
            })
            .collect();
        let expected = [
            ("assistant", "llm"),
            ("coordinator", "router"),
            ("gpa", "openai"),
            ("helper", "worker"),
            ("ums", "worker"),
        ];
        assert_eq!(found, expected);
    }
    rig.nobody()
        .get("/v1/agents")
        .await
        .refused(401, "unauthenticated");
}

#[tokio::test]
async fn an_agent_says_what_it_is_and_what_its_tools_need() {
    let rig = rig().await;
    let ann = rig.key(&["approver"]).await;
    let digest = |text: &str| AgentSpec::worker(name(text)).digest.to_string();
    let coordinator = ann.get("/v1/agents/coordinator").await.ok(200);
    let expected = json!({
        "name": "coordinator", "kind": "router", "agents": ["gpa", "assistant"],
        "sessions": "auto", "digest": digest("coordinator"),
    });
    assert_eq!(coordinator, expected);
    let assistant = ann.get("/v1/agents/assistant").await.ok(200);
    let expected = json!([
        {"name": "*", "approval": "never"},
        {"name": "delete", "approval": "always"},
        {"name": "look", "approval": "never"},
        {"name": "pay", "approval": "conditional"},
    ]);
    assert_eq!(assistant["tools"], expected);
    assert_eq!(assistant["description"], "What assistant does.");
    assert!(assistant.get("has_resume_address").is_none());
    let ums = ann.get("/v1/agents/ums").await.ok(200);
    let expected = json!({
        "name": "ums", "kind": "worker", "sessions": "auto", "digest": digest("ums"),
        "tools": [{"name": "look", "approval": "worker"}], "has_resume_address": false,
    });
    assert_eq!(ums, expected);
    ann.get("/v1/agents/nobody").await.refused(404, "not_found");

    let helper = rig.worker(&["helper"]).await;
    let url = json!({"url": "https://hidden.example/resume"}).to_string();
    let place = "/v1/agents/helper/resume_address";
    helper.send("PUT", place, &[], url).await.ok(200);
    let answer = ann.get("/v1/agents/helper").await;
    assert!(!answer.text().contains("hidden"));
    assert_eq!(answer.ok(200)["has_resume_address"], true);
}

#[tokio::test]
async fn tools_and_their_policies_are_for_those_who_decide_or_look_after_the_server() {
    let rig = rig().await;
    let ums = rig.worker(&["ums"]).await;
    for who in [rig.client("ann").await, ums, rig.key(&["worker"]).await] {
        for path in ["/v1/agents", "/v1/agents/assistant", "/v1/agents/ums"] {
            let shown = who.get(path).await;
            shown.ok(200);
            for word in ["tools", "delete", "look", "pay", "conditional"] {
                assert!(!shown.text().contains(word), "{word} in {}", shown.text());
            }
        }
    }
    for roles in [&["approver"], &["operator"], &["admin"]] {
        let who = rig.key(roles).await;
        let shown = who.get("/v1/agents/assistant").await.ok(200);
        assert_eq!(shown["tools"].as_array().map(Vec::len), Some(4), "{shown}");
        let listed = who.get("/v1/agents").await.ok(200);
        let all = listed["agents"].as_array().expect("a list");
        assert!(
            all.iter().any(|agent| agent["tools"] == shown["tools"]),
            "{listed}"
        );
    }
}

/// Reads a book that has one agent, and then one that has a mistake.
#[derive(Debug)]
struct Played {
    agents: Swap<AgentBook>,
}

impl Reload for Played {
    fn reload(&self) -> ReloadFuture<'_> {
        Box::pin(async {
            if self.agents.get().agents.is_empty() {
                let mistake = |key: &str| ReloadMistake {
                    key: key.to_owned(),
                    message: format!("`{key}` is missing"),
                    hint: "add it".to_owned(),
                };
                return Err(ReloadError::Mistakes(vec![mistake("a.b"), mistake("c.d")]));
            }
            self.agents.set(AgentBook::default());
            Ok(ReloadReport {
                removed: vec!["agents.reload".to_owned()],
                needs_restart: vec!["server.listen".to_owned()],
                ..ReloadReport::default()
            })
        })
    }
}

#[tokio::test]
async fn an_admin_has_the_configuration_read_again_and_hears_what_is_different_or_wrong() {
    let reload = Arc::new(AgentSpec::worker(name("reload")));
    let agents = Swap::new(AgentBook {
        agents: [(name("reload"), reload)].into(),
        ..AgentBook::default()
    });
    let rig = Rig::with(Setup {
        server: ServerOptions {
            agents: agents.clone(),
            reload: Some(Arc::new(Played { agents })),
            ..ServerOptions::default()
        },
        ..Setup::default()
    })
    .await;
    let path = "/v1/config/reload";
    for roles in [&["client"], &["worker"], &["approver"], &["operator"]] {
        let refused = rig.key(roles).await.post(path, &json!({})).await;
        refused.refused(403, "forbidden");
    }
    let admin = rig.key(&["admin"]).await;
    // An agent of that name can be looked at all the same.
    let named = admin.get("/v1/agents/reload").await.ok(200);
    assert_eq!(named["name"], "reload");
    let models = admin.get("/openai/v1/models").await.ok(200);
    assert_eq!(models["data"][0]["id"], "reload");
    let done = admin.post(path, &json!({})).await.ok(200);
    let expected = json!({
        "added": [], "changed": [], "removed": ["agents.reload"], "needs_restart": ["server.listen"],
    });
    assert_eq!(done, expected);
    let gone = admin.get("/v1/agents/reload").await;
    gone.refused(404, "not_found");
    let models = admin.get("/openai/v1/models").await.ok(200);
    assert_eq!(models["data"], json!([]));
    let problem = admin.post(path, &json!({})).await;
    let problem = problem.refused(422, "bad_configuration");
    let mistake =
        |key: &str| json!({"key": key, "message": format!("`{key}` is missing"), "hint": "add it"});
    assert_eq!(problem["mistakes"], json!([mistake("a.b"), mistake("c.d")]));
    let unknown = admin.post(path, &json!({"force": true})).await;
    unknown.refused(422, "invalid_body");
}

#[tokio::test]
async fn a_server_that_has_nothing_to_read_says_so() {
    let rig = rig().await;
    let admin = rig.key(&["admin"]).await;
    let refused = admin.post("/v1/config/reload", &json!({})).await;
    refused.refused(409, "not_reloadable");
}

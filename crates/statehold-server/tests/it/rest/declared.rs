//! Which agents there are.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, ChatDefault, FinalAnswer, LlmSpec, OpenaiSpec, RouterSpec,
    Routing,
};
use statehold_core::name::Name;
use statehold_engine::Credential;
use statehold_engine::policy::{AgentPolicy, Approval, ArgsCondition, Policies, ToolPolicy};
use statehold_server::ServerOptions;

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
        openai_default: ChatDefault::Stateful,
        ..AgentSpec::worker(name("coordinator"))
    };
    let gpa = AgentKind::Openai(Arc::new(OpenaiSpec {
        base_url: "http://hidden.example/v1".to_owned(),
        model: "hidden-model".to_owned(),
        credential: Credential::new("hidden-credential".to_owned()),
        memory: statehold_agents::spec::Memory::Restore,
    }));
    let assistant = AgentKind::Llm(Arc::new(LlmSpec {
        model: name("main"),
        prompt: "A hidden prompt.".to_owned(),
        tool_servers: Vec::new(),
        steps_max: 16,
        tokens_max: None,
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
    }
}

async fn rig() -> Rig {
    Rig::with(Setup {
        server: ServerOptions {
            agents: Arc::new(book()),
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
    let ann = rig.client("ann").await;
    let digest = |text: &str| AgentSpec::worker(name(text)).digest.to_string();
    let coordinator = ann.get("/v1/agents/coordinator").await.ok(200);
    let expected = json!({
        "name": "coordinator", "kind": "router", "agents": ["gpa", "assistant"],
        "openai_default": "stateful", "digest": digest("coordinator"),
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
        "name": "ums", "kind": "worker", "openai_default": "stateless", "digest": digest("ums"),
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

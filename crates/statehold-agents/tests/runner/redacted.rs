//! Secrets in the turns of hosted agents: whole in the memory of the turn, redacted in what is stored.

use serde_json::json;
use statehold_core::hold::DecisionKind;
use statehold_engine::RedactionRules;
use statehold_engine::policy::{AgentPolicy, Approval, Policies, ToolPolicy};
use statehold_fakes::chat::{ScriptedModel, calls, text};
use statehold_fakes::tools::{ToolCall, ToolServer, tool};

use crate::approvals::{decide, paused};
use crate::llm::{AtWork, Declared, assistant_book, completed};
use crate::rig::{Outcome, Rig, name, router};

const SHOWN: &str = "[redacted:github-token]";

fn secret() -> String {
    format!("gh{}_{}", "p", "aB3dE6gH9".repeat(4))
}

async fn tools(result: fn(&ToolCall) -> String) -> ToolServer {
    ToolServer::start(vec![tool("deploy")], result).await
}

#[tokio::test]
async fn a_tool_gets_the_secret_and_the_store_gets_none() -> Outcome {
    let tools = tools(|_| format!("logged in with {}", secret())).await;
    let secret = secret();
    let asks = calls(&[(
        "c",
        "deploy",
        json!({"header": secret, "password": "hunter2"}),
    )]);
    let model = ScriptedModel::start([asks, text(&format!("Done with {secret}."))]).await;
    let work = AtWork::start(&model, Declared::with_tools(&tools), Policies::default()).await;
    let request = work.ask(&format!("Deploy with {secret}")).await;
    let mut draft = work.rig.engine.follow_draft(request);
    completed(&work.rig.ended(request).await);
    let mut shown = String::new();
    while let Some(piece) = draft.take() {
        shown.push_str(&piece.text);
    }
    assert!(!shown.contains(&secret[4..]), "{shown}");
    let called = json!({"header": secret, "password": "hunter2"});
    assert_eq!(tools.called()[0].args, called);
    // The model reads what the tool said, and the user as the store has it.
    let asked = json!(model.asked()[1]["messages"]).to_string();
    assert!(
        asked.contains(&format!("logged in with {secret}")),
        "{asked}"
    );
    assert!(asked.contains(&format!("Deploy with {SHOWN}")), "{asked}");
    let stored = work.everything().await;
    assert!(
        !stored.contains(&secret) && !stored.contains("hunter2"),
        "{stored}"
    );
    assert!(
        stored.contains(SHOWN) && stored.contains("github-token"),
        "{stored}"
    );
    let transcript = work.rig.transcript(work.session).await;
    let answer = format!("Done with {SHOWN}.");
    assert!(
        transcript.last().is_some_and(|said| said.contains(&answer)),
        "{transcript:?}"
    );
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn an_approved_call_runs_with_its_secret() -> Outcome {
    let secret = secret();
    let tools = tools(|_| "deployed".to_owned()).await;
    let asks = calls(&[("c", "deploy", json!({"header": secret}))]);
    let model = ScriptedModel::start([asks, text("Done.")]).await;
    let every_tool = ToolPolicy {
        approval: Some(Approval::Always),
        ..ToolPolicy::default()
    };
    let policy = AgentPolicy {
        every_tool,
        ..AgentPolicy::default()
    };
    let policies = Policies {
        agents: [(name("assistant"), policy)].into(),
        ..Policies::default()
    };
    let work = AtWork::start(&model, Declared::with_tools(&tools), policies).await;
    let request = work.ask("Deploy").await;
    let holds = paused(&work.rig, request, 1).await;
    assert!(!work.everything().await.contains(&secret));
    decide(&work.rig, &holds[0], DecisionKind::Approve, json!({})).await;
    completed(&work.rig.ended(request).await);
    assert_eq!(tools.called()[0].args, json!({"header": secret}));
    assert!(!work.everything().await.contains(&secret));
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_below_another_is_redacted_by_its_own_rules() -> Outcome {
    let secret = secret();
    let model = ScriptedModel::start([text(&format!("It is {secret}."))]).await;
    let redaction = RedactionRules {
        is_off: true,
        agents: [(name("assistant"), true)].into(),
        ..RedactionRules::default()
    };
    let policies = Policies {
        redaction,
        ..Policies::default()
    };
    let mut book = assistant_book(&model, &Declared::plain());
    let coordinator = router("coordinator", &[(".*", "assistant")], &["assistant"]);
    book.agents.insert(name("coordinator"), coordinator);
    let rig = Rig::with(book, policies).await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    let asked = format!("Use {secret}");
    let request = rig.ask(session, "coordinator", &asked).await;
    completed(&rig.ended(request).await);
    // The coordinator keeps secrets, the agent below it gets and says none.
    let told = json!(model.asked()[0]["messages"]).to_string();
    let transcript = rig.transcript(session).await;
    assert_eq!(transcript, [asked, format!("It is {SHOWN}.")]);
    assert!(told.contains(&format!("Use {SHOWN}")), "{told}");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

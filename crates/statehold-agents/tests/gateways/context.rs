//! Shared context: one agent's values reach another only if both declare them.

use std::sync::Arc;

use serde_json::json;
use statehold_agents::spec::ChatMemory;
use statehold_fakes::FakeService;
use statehold_fakes::chat::streamed_with;
use statehold_fakes::conversations::Conversations;

use crate::rig::{Outcome, Rig, router};
use crate::world::{chat, conversations};

/// Asks one agent for the weather in Paris, then another agent for the place. Returns the second
/// agent's request.
async fn paris(imports: bool, exports: bool) -> (Rig, String) {
    let weather = FakeService::start(|_| {
        let custom =
            r#"{"shared_context":{"last_mentioned_location":"Paris","secret":"x"},"state":{}}"#;
        streamed_with("Sunny in Paris", custom)
    })
    .await;
    let service = Arc::new(Conversations::default());
    let users = Arc::clone(&service);
    let ums = FakeService::start(move |seen| {
        users.respond(seen, |said| {
            let last = said.last().expect("something was said");
            let knows = last.contains(r#""last_mentioned_location":"Paris""#);
            format!("knows Paris: {knows}")
        })
    })
    .await;
    let key = "last_mentioned_location".parse().expect("a key");
    let mut gpa = chat("gpa", &weather, ChatMemory::Restore);
    let mut user_agent = conversations("ums", &ums);
    if exports {
        gpa.export = vec![key];
    }
    if imports {
        user_agent.import = vec!["last_mentioned_location".parse().expect("a key")];
    }
    let rules = [("(?i)user", "ums"), (".", "gpa")];
    let rig = Rig::new(vec![
        router("coordinator", &rules, &["ums", "gpa"]),
        Arc::new(gpa),
        Arc::new(user_agent),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("coordinator").await;
    rig.turn(session, "coordinator", "What's the weather in Paris?")
        .await;
    let value = rig.value(session, "last_mentioned_location").await;
    assert_eq!(value, exports.then(|| json!("Paris")));
    assert_eq!(rig.value(session, "secret").await, None);
    let answer = rig.turn(session, "coordinator", "List users near me").await;
    runner.stop().await;
    (rig, answer)
}

#[tokio::test]
async fn an_agent_that_imports_knows_what_another_exported() -> Outcome {
    for (imports, exports, answer) in [
        (true, true, "knows Paris: true"),
        (false, true, "knows Paris: false"),
        (true, false, "knows Paris: false"),
    ] {
        let (rig, said) = paris(imports, exports).await;
        assert_eq!(said, answer, "import {imports}, export {exports}");
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn what_a_message_was_told_stands_before_it_again_later() -> Outcome {
    let server = FakeService::start(|seen| {
        // Each answer reports another place.
        let place = format!("place {}", seen.messages().len());
        let custom = json!({"state": {"shared_context": {"place": place}, "own": 1}});
        streamed_with("ok", &custom.to_string())
    })
    .await;
    let mut spec = chat("gpa", &server, ChatMemory::Restore);
    spec.import = vec!["place".parse().expect("a key")];
    spec.export = vec!["place".parse().expect("a key")];
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    for said in ["one", "two", "three"] {
        rig.turn(session, "gpa", said).await;
    }
    let last = server.seen()[2].json();
    let messages = last["messages"].as_array().expect("messages");
    let block =
        |place: &str| format!("[shared context]\n{{\"place\":\"{place}\"}}\n[/shared context]\n\n");
    assert_eq!(messages[0]["content"], "one");
    assert_eq!(messages[0].get("custom_content"), None);
    assert_eq!(messages[2]["content"], format!("{}two", block("place 1")));
    assert_eq!(messages[4]["content"], format!("{}three", block("place 3")));
    let told = &messages[4]["custom_content"]["state"];
    assert_eq!(*told, json!({"shared_context": {"place": "place 3"}}));
    // The agent's own state is unchanged.
    let own = &messages[1]["custom_content"]["state"];
    assert_eq!(
        *own,
        json!({"shared_context": {"place": "place 1"}, "own": 1})
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

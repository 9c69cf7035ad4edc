//! An agent of the kind `analytics` that calls another Statehold, in each context of the API.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::runner::Runner;
use statehold_agents::spec::{
    AgentBook, AgentKind, AnalyticsSpec, ChatMemory, ChatSessions, DataContext, InlineData,
    OpenaiSpec, ThinkingMode,
};
use statehold_engine::Credential;
use statehold_fakes::FakeService;
use statehold_fakes::chat::streamed;

use super::upstream::host;
use super::{COMPLETIONS, agent, content, name, refused, words};
use crate::rig::{Rig, Who, text};

const PLACE: &str = "projects/acme/locations/global";

/// Two servers: ours with the agent `data`, and theirs, which answers with the number of the user's messages.
struct ServerPair {
    ours: (Rig, Runner),
    theirs: (Rig, Runner),
    /// A key of theirs.
    key: Who,
    ann: Who,
    service: FakeService,
}

impl ServerPair {
    async fn start(context: DataContext) -> Self {
        let service = FakeService::start(|seen| {
            let messages = seen.messages();
            let asked = messages.iter().filter(|(role, _)| role == "user");
            streamed(&format!("answer {}", asked.count()))
        })
        .await;
        let expert = AgentKind::Openai(Arc::new(OpenaiSpec {
            base_url: service.url("/v1"),
            model: "expert".to_owned(),
            credential: None,
            headers: Vec::new(),
            memory: ChatMemory::Restore,
        }));
        let theirs = AgentBook {
            agents: [agent("expert", expert, ChatSessions::Auto)].into(),
            ..AgentBook::default()
        };
        let theirs = host(theirs, vec![name("expert")]).await;
        let key = theirs.0.client("us").await;
        let data = AgentKind::Analytics(Arc::new(AnalyticsSpec {
            base_url: format!("http://{}/v1", theirs.0.address),
            parent: PLACE.to_owned(),
            context,
            // The server sends pieces of the draft as progress then.
            thinking: Some(ThinkingMode::Thinking),
            data_key: None,
            credential: key.key.clone().and_then(Credential::new),
            headers: Vec::new(),
        }));
        let ours = AgentBook {
            agents: [agent("data", data, ChatSessions::Auto)].into(),
            ..AgentBook::default()
        };
        let ours = host(ours, Vec::new()).await;
        let ann = ours.0.client("ann").await;
        Self {
            ours,
            theirs,
            key,
            ann,
            service,
        }
    }

    async fn say(&self, said: &str, session: &str) -> (String, String) {
        let headers = [("x-statehold-session", session)];
        let body = words("data", said).to_string();
        let answer = self.ann.send("POST", COMPLETIONS, &headers, body).await;
        let session = answer.header("x-statehold-session").unwrap_or_default();
        (content(&answer), session.to_owned())
    }

    /// The sessions that the other server has.
    async fn their_sessions(&self) -> Vec<Value> {
        let path = "/v1/sessions?app=acme.global";
        let page = self.key.get(path).await.ok(200);
        page["sessions"].as_array().expect("a list").clone()
    }

    /// Role and text of each message in the last call of the service.
    fn last_call(&self) -> Vec<(String, String)> {
        self.service.seen().last().expect("a call").messages()
    }

    async fn end(self) {
        for (rig, runner) in [self.ours, self.theirs] {
            runner.stop().await;
            rig.engine.shut_down().await;
        }
    }
}

fn data_agent() -> String {
    format!("{PLACE}/dataAgents/expert")
}

fn said(role: &str, text: &str) -> (String, String) {
    (role.to_owned(), text.to_owned())
}

#[tokio::test]
async fn a_conversation_with_another_statehold_is_one_session_there() {
    let data_agent = data_agent();
    let servers = ServerPair::start(DataContext::Conversation { data_agent }).await;
    let (first, session) = servers.say("how many?", "new").await;
    assert_eq!(first, "answer 1");
    assert_eq!(servers.say("sure?", &session).await.0, "answer 2");
    let expected = [
        said("user", "how many?"),
        said("assistant", "answer 1"),
        said("user", "sure?"),
    ];
    assert_eq!(servers.last_call(), expected);
    let there = servers.their_sessions().await;
    assert_eq!(there.len(), 1);
    assert!(
        text(&there[0], "name").starts_with("statehold-"),
        "{there:?}"
    );
    // Turns at once share it too.
    let (one, two) = tokio::join!(
        servers.say("again?", &session),
        servers.say("really?", &session)
    );
    let mut answers = [one.0, two.0];
    answers.sort();
    assert_eq!(answers, ["answer 3", "answer 4"]);
    // A conversation that was deleted there is created again once.
    let path = format!("/v1/{PLACE}/conversations/{}", text(&there[0], "name"));
    servers.key.delete(&path).await.ok(200);
    let (answer, _) = servers.say("and now?", &session).await;
    assert!(
        answer.ends_with("earlier messages.\n\nanswer 1"),
        "{answer}"
    );
    assert_eq!(servers.their_sessions().await.len(), 1);
    // Without a session, the conversation would be kept there and forgotten here.
    let headers = [("x-statehold-session", "none")];
    let body = words("data", "hello").to_string();
    let answer = servers.ann.send("POST", COMPLETIONS, &headers, body).await;
    refused(&answer, 422, "agent_needs_session");
    servers.end().await;
}

#[tokio::test]
async fn the_other_contexts_leave_nothing_at_another_statehold_and_bring_the_history() {
    let inline = InlineData {
        instructions: Some("Say it in euros.".to_owned()),
        data_sources: json!({"bq": {"tableReferences": [{"tableId": "sales"}]}}),
    };
    let contexts = [
        DataContext::Agent {
            data_agent: data_agent(),
        },
        DataContext::Inline(inline.clone()),
        DataContext::ClientManaged(inline),
    ];
    for context in contexts {
        let case = format!("{context:?}");
        let has_instructions = !matches!(context, DataContext::Agent { .. });
        let servers = ServerPair::start(context).await;
        let (first, session) = servers.say("how many?", "new").await;
        assert_eq!(first, "answer 1", "{case}");
        assert_eq!(servers.say("sure?", &session).await.0, "answer 2", "{case}");
        let mut call = servers.last_call();
        if has_instructions {
            let (role, instructions) = call.remove(0);
            assert_eq!(role, "system", "{case}");
            assert!(instructions.starts_with("Say it in euros."), "{case}");
            assert!(instructions.contains("sales"), "{case}: {instructions}");
        }
        let expected = [
            said("user", "how many?"),
            said("assistant", "answer 1"),
            said("user", "sure?"),
        ];
        assert_eq!(call, expected, "{case}");
        assert!(servers.their_sessions().await.is_empty(), "{case}");
        // A caller that keeps the history itself gets an answer from it.
        let mut body = words("data", "one");
        let messages = body["messages"].as_array_mut().expect("messages");
        messages.push(json!({"role": "assistant", "content": "1"}));
        messages.push(json!({"role": "user", "content": "two"}));
        let headers = [("x-statehold-session", "none")];
        let body = body.to_string();
        let answer = servers.ann.send("POST", COMPLETIONS, &headers, body).await;
        assert_eq!(content(&answer), "answer 2", "{case}");
        servers.end().await;
    }
}

#[tokio::test]
async fn an_error_of_another_statehold_fails_the_turn() {
    let data_agent = format!("{PLACE}/dataAgents/unknown");
    let servers = ServerPair::start(DataContext::Agent { data_agent }).await;
    let body = words("data", "hello").to_string();
    let answer = servers.ann.send("POST", COMPLETIONS, &[], body).await;
    refused(&answer, 502, "agent_error");
    servers.end().await;
}

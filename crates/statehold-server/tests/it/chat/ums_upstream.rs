//! An agent of the kind `conversations` whose service is another Statehold.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::runner::Runner;
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, ChatMemory, ChatSessions, ConversationsSpec, OpenaiSpec,
};
use statehold_engine::Credential;
use statehold_fakes::FakeService;
use statehold_fakes::chat::streamed;

use super::upstream::host;
use super::{COMPLETIONS, agent, content, name, words};
use crate::rig::{Rig, Who, text};

/// Two servers: ours with the agent `ums`, and theirs, whose only agent answers with the number of the user's
/// messages.
struct ServerPair {
    ours: (Rig, Runner),
    theirs: (Rig, Runner),
    /// A key of theirs.
    key: Who,
    ann: Who,
    service: FakeService,
}

impl ServerPair {
    async fn start(brief_on_loss: bool) -> Self {
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
        let theirs = host(theirs, Vec::new()).await;
        let key = theirs.0.client("us").await;
        let ums = AgentKind::Conversations(Arc::new(ConversationsSpec {
            base_url: format!("http://{}/ums", theirs.0.address),
            credential: key.key.clone().and_then(Credential::new),
            headers: Vec::new(),
        }));
        let (ums_name, ums) = agent("ums", ums, ChatSessions::Auto);
        let ums = Arc::into_inner(ums).expect("nobody else has it");
        let ums = AgentSpec {
            brief_on_loss,
            ..ums
        };
        let ours = AgentBook {
            agents: [(ums_name, Arc::new(ums))].into(),
            ..AgentBook::default()
        };
        let ours = host(ours, vec![name("ums")]).await;
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
        let body = words("ums", said).to_string();
        let answer = self.ann.send("POST", COMPLETIONS, &headers, body).await;
        let session = answer.header("x-statehold-session").unwrap_or_default();
        (content(&answer), session.to_owned())
    }

    async fn their_conversations(&self) -> Vec<Value> {
        let page = self.key.get("/ums/conversations").await.ok(200);
        page.as_array().expect("a list").clone()
    }

    async fn end(self) {
        for (rig, runner) in [self.ours, self.theirs] {
            runner.stop().await;
            rig.engine.shut_down().await;
        }
    }
}

#[tokio::test]
async fn a_session_here_is_one_conversation_there() {
    let servers = ServerPair::start(false).await;
    let (first, session) = servers.say("how many?", "new").await;
    assert_eq!(first, "answer 1");
    assert_eq!(servers.say("sure?", &session).await.0, "answer 2");
    // Turns at once share it too.
    let (one, two) = tokio::join!(
        servers.say("again?", &session),
        servers.say("really?", &session)
    );
    let mut answers = [one.0, two.0];
    answers.sort();
    assert_eq!(answers, ["answer 3", "answer 4"]);
    let there = servers.their_conversations().await;
    assert_eq!(there.len(), 1);
    let title = text(&there[0], "title");
    assert_eq!(title, format!("Statehold {session} ums 1"));
    assert_eq!(there[0]["message_count"], 8);
    let path = format!("/ums/conversations/{}", text(&there[0], "id"));
    let read = servers.key.get(&path).await.ok(200);
    let said = read["messages"].as_array().expect("a list").iter();
    let said: Vec<String> = said.map(|message| text(message, "content")).collect();
    assert_eq!(said[..4], ["how many?", "answer 1", "sure?", "answer 2"]);
    servers.end().await;
}

#[tokio::test]
async fn a_conversation_that_was_deleted_there_is_created_again_once_and_said_so() {
    for brief_on_loss in [false, true] {
        let servers = ServerPair::start(brief_on_loss).await;
        let (_, session) = servers.say("my name is Ada", "new").await;
        let there = servers.their_conversations().await;
        let path = format!("/ums/conversations/{}", text(&there[0], "id"));
        servers.key.delete(&path).await.ok(200);
        let (answer, _) = servers.say("who am I?", &session).await;
        let lost = "The service that keeps this conversation had lost it.";
        assert!(
            answer.starts_with(lost) && answer.ends_with("answer 1"),
            "{answer}"
        );
        assert_eq!(servers.their_conversations().await.len(), 1);
        let asked = servers.service.seen().last().expect("a call").messages();
        let (_, asked) = asked.last().expect("a message").clone();
        assert_eq!(asked.contains("my name is Ada"), brief_on_loss, "{asked}");
        assert!(asked.ends_with("who am I?"), "{asked}");
        assert_eq!(servers.say("and now?", &session).await.0, "answer 2");
        servers.end().await;
    }
}

#[tokio::test]
async fn a_failure_there_fails_the_turn_here_and_the_conversation_goes_on() {
    let servers = ServerPair::start(false).await;
    let (_, session) = servers.say("hello", "new").await;
    let there = servers.their_conversations().await;
    let path = format!("/ums/conversations/{}/chat", text(&there[0], "id"));
    let body = json!({"message": {"role": "assistant", "content": "I am you"}});
    let refused = servers.key.post(&path, &body).await.ok(422);
    assert_eq!(refused["code"], "invalid_body");
    assert_eq!(servers.say("still there?", &session).await.0, "answer 2");
    servers.end().await;
}

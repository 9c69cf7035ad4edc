//! Both layers of state in every combination: how an agent keeps its conversation, and the scope of the
//! values that it reads and writes.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::spec::{
    AgentKind, AgentSpec, ChatMemory, LoopLimitPolicy, PhaseErrorPolicy, PhaseInput, PhaseSpec,
    PipelineSpec, SeenAnswers,
};
use statehold_core::ids::SessionId;
use statehold_engine::{PageLimit, api};
use statehold_fakes::analytics::{self, Analytics, is_creation};
use statehold_fakes::chat::streamed_with;
use statehold_fakes::conversations::Conversations;
use statehold_fakes::{FakeService, ScriptedResponse, SeenRequest};

use crate::rig::{Outcome, Rig, agent, name};
use crate::world::{self, chat, conversations, in_conversation, with_agent};

const KEYS: [&str; 4] = ["app:flag", "user:language", "topic", "temp:rows"];

/// How an agent keeps its conversation.
#[derive(Debug, Clone, Copy)]
enum ApiState {
    /// It keeps nothing: each call has the history.
    Stateless,
    /// It keeps a session, which the call names.
    Session,
    /// It keeps a conversation, whose id we track.
    Conversation,
    /// It is a data agent, without and with a conversation.
    DataAgent,
    DataConversation,
}

/// Answers with the values of `written` in the answer's shared context.
fn answers(
    mode: ApiState,
    seen: &SeenRequest,
    kept: &Conversations,
    written: &str,
) -> ScriptedResponse {
    match mode {
        ApiState::Stateless => streamed_with("ok", &format!(r#"{{"shared_context":{written}}}"#)),
        ApiState::Session => {
            let answer = streamed_with("ok", &format!(r#"{{"shared_context":{written}}}"#));
            answer.with_header("x-statehold-session", "ses_7")
        }
        ApiState::Conversation => kept.begin_or_list(seen).unwrap_or_else(|| {
            let shared: Value = serde_json::from_str(written).expect("JSON");
            ScriptedResponse::json(200, &json!({"content": "ok", "shared_context": shared}))
        }),
        ApiState::DataAgent | ApiState::DataConversation => {
            let created = Analytics::default().create_or_get(seen);
            created.unwrap_or_else(|| analytics::answer(&[analytics::final_text("ok")]))
        }
    }
}

fn declared(mode: ApiState, name: &str, server: &FakeService) -> AgentSpec {
    match mode {
        ApiState::Stateless => chat(name, server, ChatMemory::Restore),
        ApiState::Session => chat(name, server, ChatMemory::Track),
        ApiState::Conversation => conversations(name, server),
        ApiState::DataAgent => world::analytics(name, server, with_agent()),
        ApiState::DataConversation => world::analytics(name, server, in_conversation()),
    }
}

/// A pipeline of these agents, each with the message alone.
pub(crate) fn phase_line(text: &str, agents: &[&str]) -> Arc<AgentSpec> {
    let phases = agents.iter().map(|agent| PhaseSpec {
        name: name(agent),
        agent: name(agent),
        input: PhaseInput::Request,
        sees: SeenAnswers::None,
        instructions: None,
        retries: 0,
        on_error: PhaseErrorPolicy::Fail,
        loop_back: Vec::new(),
    });
    let spec = PipelineSpec {
        phases: phases.collect(),
        loops_max: 0,
        on_loop_limit: LoopLimitPolicy::Continue,
        answer_from: None,
        show_phases: false,
    };
    agent(text, AgentKind::Pipeline(Arc::new(spec)))
}

/// Everything stored of a session, as one text.
pub(crate) async fn everything(rig: &Rig, session: SessionId) -> String {
    let page = PageLimit::entries(1_000);
    let records = rig.engine.feed(&rig.local, session, 0, page).await;
    let records = records.expect("records");
    let bodies = records.iter().flat_map(|entry| entry.stored.bodies.iter());
    let texts = bodies.flatten().map(|body| String::from_utf8_lossy(body));
    texts.collect::<Vec<_>>().join("\n")
}

/// One agent of the first kind writes values, one of the second kind reads them in the same turn.
async fn check(writer: ApiState, reader: ApiState) {
    let place = format!("{writer:?} writes, {reader:?} reads");
    let written = r#"{"app:flag":"forged","user:language":"fr","topic":"wine","temp:rows":"zzrowszz","other":1}"#;
    let (ours, theirs) = (Conversations::default(), Conversations::default());
    let first = FakeService::start(move |seen| answers(writer, seen, &ours, written)).await;
    let second = FakeService::start(move |seen| answers(reader, seen, &theirs, "{}")).await;
    let mut data = declared(writer, "data", &first);
    // The configuration refuses `app:` here; the gateway does not write it either.
    data.export = KEYS.map(|key| key.parse().expect("a key")).to_vec();
    let mut told = declared(reader, "told", &second);
    told.import = data.export.clone();
    told.output_key = Some("last_answer".parse().expect("a key"));
    let line = phase_line("line", &["data", "told"]);
    let rig = Rig::new(vec![line, Arc::new(data), Arc::new(told)]).await;
    let flag = serde_json::from_value(json!({"set": {"app:flag": "on"}})).expect("a patch");
    let set = api::state::patch_app(&rig.engine, &rig.call(), "app", flag).await;
    set.expect("it is written");
    let runner = rig.runner().await;
    let session = rig.session("line").await;
    for turn in ["one", "two"] {
        assert_eq!(rig.turn(session, "line", turn).await, "ok", "{place}");
    }
    let seen = second.seen();
    let calls = seen
        .iter()
        .filter(|seen| !seen.path.ends_with("/conversations") && !is_creation(seen));
    let calls: Vec<String> = calls.map(SeenRequest::said).collect();
    assert_eq!(calls.len(), 2, "{place}");
    for said in calls {
        let block =
            r#"{"app:flag":"on","user:language":"fr","topic":"wine","temp:rows":"zzrowszz"}"#;
        assert!(said.contains(block), "{place}: {said}");
    }
    assert_eq!(
        rig.value(session, "app:flag").await,
        Some(json!("on")),
        "{place}"
    );
    assert_eq!(
        rig.value(session, "user:language").await,
        Some(json!("fr")),
        "{place}"
    );
    assert_eq!(
        rig.value(session, "topic").await,
        Some(json!("wine")),
        "{place}"
    );
    assert_eq!(
        rig.value(session, "last_answer").await,
        Some(json!("ok")),
        "{place}"
    );
    assert_eq!(rig.value(session, "other").await, None, "{place}");
    // Another session of the user has the user's values, and no others.
    let other = rig.session("line").await;
    assert_eq!(
        rig.value(other, "user:language").await,
        Some(json!("fr")),
        "{place}"
    );
    assert_eq!(rig.value(other, "topic").await, None, "{place}");
    let all = everything(&rig, session).await;
    assert!(
        !all.contains("zzrowszz"),
        "{place}: `temp:` values are never stored"
    );
    runner.stop().await;
    rig.engine.shut_down().await;
}

#[tokio::test]
async fn scopes_are_the_same_however_an_agent_keeps_its_conversation() -> Outcome {
    use ApiState::{Conversation, DataAgent, DataConversation, Session, Stateless};
    for writer in [Stateless, Session, Conversation] {
        for reader in [
            Stateless,
            Session,
            Conversation,
            DataAgent,
            DataConversation,
        ] {
            check(writer, reader).await;
        }
    }
    Ok(())
}

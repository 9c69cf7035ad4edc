//! Calls that DIAL Core makes with a key of its own for each: Core says whose they are.

use std::sync::Arc;

use serde_json::json;
use statehold_agents::dial_core::DialCore;
use statehold_agents::spec::{
    AgentBook, AgentKind, ChatMemory, ChatSessions, DialSpec, FinalAnswer, OpenaiSpec, RouterSpec,
    Routing,
};
use statehold_core::name::Name;
use statehold_engine::Credential;
use statehold_fakes::chat::streamed;
use statehold_fakes::{FakeService, ScriptedResponse};
use statehold_server::ServerOptions;

use super::{HELPER, finished, message, said, send};
use crate::chat::upstream::host_with;
use crate::chat::{agent, setup};
use crate::rest::{act, claim};
use crate::rig::{Rig, Who};

/// The token of a user. Its signature has the beginning of a key of this server somewhere.
const TOKEN_OF_EVE: &str = "Bearer eyJhbGciOi.eyJzdWIiOi.AAshk_AA";

/// A Core that knows two users.
async fn core() -> FakeService {
    FakeService::start(|seen| {
        assert_eq!(seen.path, "/v1/bucket");
        let user = match seen.header("api-key").or(seen.header("authorization")) {
            Some("request-of-bob") => "bob1",
            Some("request-of-eve" | TOKEN_OF_EVE) => "eve1",
            Some("broken") => return ScriptedResponse::json(500, &json!({})),
            _ => return ScriptedResponse::json(401, &json!({})),
        };
        let appdata = format!("{user}/appdata/helper");
        ScriptedResponse::json(200, &json!({"bucket": "app1", "appdata": appdata}))
    })
    .await
}

/// A server behind a Core, and the key under which it makes the calls of Core's users.
async fn behind(core: &FakeService) -> (Rig, Who) {
    let rig = Rig::on_disk_with(setup()).await;
    let backend = rig.key(&["client"]).await;
    let secret = backend.key.clone().and_then(Credential::new);
    let mut setup = setup();
    let core = DialCore::new(core.url(""), secret.expect("a key"));
    setup.server.dial_core = Some(core.expect("a client"));
    let rig = rig.restart_with(setup).await;
    let address = rig.address;
    (rig, Who { address, ..backend })
}

#[tokio::test]
async fn dial_core_says_whose_call_it_is_and_no_worker_gets_its_key() {
    let core = core().await;
    let (rig, backend) = behind(&core).await;
    let (nobody, helper) = (rig.nobody(), rig.worker(&["helper"]).await);
    let mut sessions = Vec::new();
    for (key, user) in [
        ("request-of-bob", "dial:bob1"),
        ("request-of-eve", "dial:eve1"),
    ] {
        let headers = [
            ("Api-Key", key),
            ("Authorization", "Bearer eyJ.of.somebody"),
            // Core's word counts.
            ("x-statehold-user", "dial:bob1"),
        ];
        let call = send(&nobody, HELPER, &said("hi"), &headers);
        let request = claim(&helper, "helper").await;
        assert!(request.get("credential").is_none(), "{request}");
        assert!(request.get("credential_lost").is_none(), "{request}");
        act(&helper, &request, "complete", json!({"output": "hello"}))
            .await
            .ok(200);
        let answer = finished(call).await;
        let session = answer.header("x-statehold-session").expect("a session");
        let path = format!("/v1/sessions/{session}");
        assert_eq!(backend.get(&path).await.ok(200)["user"], user);
        sessions.push(session.to_owned());
    }
    // The same words of two users are two conversations.
    assert_ne!(sessions[0], sessions[1]);
    let log = crate::rig::log();
    assert!(!log.contains("request-of-bob") && !log.contains("eyJ.of.somebody"));
}

#[tokio::test]
async fn a_token_that_contains_the_beginning_of_a_key_of_ours_is_cores() {
    let core = core().await;
    let (rig, backend) = behind(&core).await;
    let (nobody, helper) = (rig.nobody(), rig.worker(&["helper"]).await);
    let headers = [("Authorization", TOKEN_OF_EVE)];
    let call = send(&nobody, HELPER, &said("hi"), &headers);
    let request = claim(&helper, "helper").await;
    act(&helper, &request, "complete", json!({"output": "hello"}))
        .await
        .ok(200);
    let answer = finished(call).await;
    let session = answer.header("x-statehold-session").expect("a session");
    let path = format!("/v1/sessions/{session}");
    assert_eq!(backend.get(&path).await.ok(200)["user"], "dial:eve1");
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A development server takes any key for none, and passes it on as Core's.
#[tokio::test]
async fn the_key_of_a_call_goes_to_applications_of_dial_and_to_no_other_service() {
    let services = [
        FakeService::start(|_| streamed("hi")).await,
        FakeService::start(|_| streamed("hi")).await,
    ];
    let other = AgentKind::Openai(Arc::new(OpenaiSpec {
        base_url: services[0].url("/v1"),
        model: "m".to_owned(),
        credential: None,
        headers: Vec::new(),
        memory: ChatMemory::Restore,
    }));
    let application = AgentKind::Dial(Arc::new(DialSpec {
        base_url: services[1].url(""),
        deployment: "app".to_owned(),
        credential: None,
        headers: Vec::new(),
    }));
    let desk = |to: &str| {
        AgentKind::Router(Arc::new(RouterSpec {
            agents: vec![name(to)],
            routing: Routing::Rules {
                rules: Vec::new(),
                otherwise: Some(name(to)),
            },
            answer: FinalAnswer::Pass,
        }))
    };
    let book = AgentBook {
        agents: [
            agent("other", other, ChatSessions::Auto),
            agent("application", application, ChatSessions::Auto),
            agent("desk-0", desk("other"), ChatSessions::Auto),
            agent("desk-1", desk("application"), ChatSessions::Auto),
        ]
        .into(),
        ..AgentBook::default()
    };
    let options = ServerOptions {
        keys_required: false,
        ..ServerOptions::default()
    };
    let (rig, runner) = host_with(book, options).await;
    let headers = [
        ("api-key", "request-of-bob"),
        ("authorization", "Bearer eyJ.of.bob"),
    ];
    for (n, service) in services.iter().enumerate() {
        let path = format!("/openai/deployments/desk-{n}/chat/completions");
        let body = said("hi").to_string();
        let answer = rig.nobody().send("POST", &path, &headers, body).await;
        assert_eq!(message(&answer)["content"], "hi");
        let seen = service.seen();
        let call = seen.last().expect("a call");
        let is_dial = n == 1;
        let got = (call.header("api-key"), call.header("authorization"));
        let expected = is_dial.then_some(("request-of-bob", "Bearer eyJ.of.bob"));
        assert_eq!(got, expected.unzip());
    }
    runner.stop().await;
    rig.engine.shut_down().await;
}

#[tokio::test]
async fn a_key_that_core_does_not_know_is_none_and_a_core_that_fails_is_no_condition_of_ours() {
    let core = core().await;
    let (rig, _) = behind(&core).await;
    let nobody = rig.nobody();
    for (key, status, code) in [
        ("request-of-nobody", 401, "unauthenticated"),
        ("broken", 500, "internal"),
    ] {
        let answer = finished(send(&nobody, HELPER, &said("hi"), &[("Api-Key", key)])).await;
        assert_eq!(answer.ok(status)["error"]["code"], code);
    }
    // Such a key is for the surface of DIAL alone.
    let headers = [("Api-Key", "request-of-bob")];
    let answer = nobody.send("GET", "/v1/sessions", &headers, "").await;
    answer.ok(401);
}

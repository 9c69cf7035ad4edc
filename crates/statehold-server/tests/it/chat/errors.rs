//! What is refused, in the words of this surface, and the list of models.

use serde_json::{Value, json};

use super::{COMPLETIONS, ChatStream, Event, Scene, finished, refused, setup, words};
use crate::rest::act;
use crate::rig::{Rig, text};

const USER: &str = r#"[{"role": "user", "content": "x"}]"#;

/// Fields of a call, and how it is refused: with which code, about which field.
const WRONG: &[(&str, u16, &str, &str)] = &[
    (r#""messages": USER"#, 422, "invalid_body", ""),
    (r#""model": "helper""#, 422, "invalid_body", ""),
    (
        r#""model": "helper", "messages": []"#,
        422,
        "invalid_body",
        "messages",
    ),
    (
        r#""model": "helper", "messages": [7]"#,
        422,
        "invalid_body",
        "messages[0]",
    ),
    (
        r#""model": "helper", "messages": [{"role": "assistant", "content": "x"}]"#,
        422,
        "invalid_body",
        "messages[0].role",
    ),
    (
        r#""model": "helper", "messages": [{"role": "user", "content": [{"type": "input_audio"}]}]"#,
        422,
        "invalid_body",
        "messages[0].content",
    ),
    (
        r#""model": "gpt-4o", "messages": USER"#,
        404,
        "agent_unknown",
        "model",
    ),
    (
        r#""model": "a/b c", "messages": USER"#,
        404,
        "agent_unknown",
        "model",
    ),
    (
        r#""model": "helper", "messages": USER, "n": 2"#,
        422,
        "parameter_not_supported",
        "n",
    ),
    (
        r#""model": "helper", "messages": USER, "logprobs": true"#,
        422,
        "parameter_not_supported",
        "logprobs",
    ),
    (
        r#""model": "helper", "messages": USER, "modalities": ["text", "audio"]"#,
        422,
        "parameter_not_supported",
        "modalities",
    ),
    (
        r#""model": "helper", "messages": USER, "response_format": {"type": "json_object"}"#,
        422,
        "parameter_not_supported",
        "response_format",
    ),
    (
        r#""model": "helper", "messages": USER, "tools": [{"type": "function"}]"#,
        422,
        "tools_not_supported",
        "tools",
    ),
    (
        r#""model": "helper", "messages": USER, "conversation": "ses_x""#,
        400,
        "bad_header",
        "conversation",
    ),
    (
        r#""model": "helper", "messages": USER, "statehold": {"decision": []}"#,
        422,
        "invalid_body",
        "",
    ),
];

#[tokio::test]
async fn what_is_wrong_with_a_call_is_named() {
    let scene = Scene::new().await;
    for (fields, status, code, param) in WRONG {
        let body = format!("{{{}}}", fields.replace("USER", USER));
        let headers = [("x-statehold-session", scene.session.as_str())];
        let answer = scene.ann.send("POST", COMPLETIONS, &headers, body).await;
        let error = refused(&answer, *status, code);
        assert_eq!(error["type"], "invalid_request_error", "{fields}");
        if !param.is_empty() {
            assert_eq!(error["param"], *param, "{fields}");
        }
    }
    assert_eq!(scene.turns().await, 0);
}

#[tokio::test]
async fn every_refusal_on_these_paths_has_their_form() {
    let scene = Scene::new().await;
    let long = words("helper", "x")
        .to_string()
        .replace("\"x\"", "\"x\", \"content\": \"y\"");
    for (body, status, code) in [
        ("{", 400, "bad_json"),
        (long.as_str(), 400, "bad_json"),
        ("[]", 422, "invalid_body"),
    ] {
        let answer = scene
            .ann
            .send("POST", COMPLETIONS, &[], body.to_owned())
            .await;
        refused(&answer, status, code);
    }
    for (headers, code) in [
        (
            [("x-statehold-session", "new"), ("x-statehold-app", "a b")],
            "bad_header",
        ),
        (
            [
                ("x-statehold-session", "new"),
                ("x-statehold-task", scene.session.as_str()),
            ],
            "not_found",
        ),
    ] {
        let body = words("helper", "x").to_string();
        let answer = scene.ann.send("POST", COMPLETIONS, &headers, body).await;
        let status = if code == "not_found" { 404 } else { 400 };
        refused(&answer, status, code);
    }
    for (method, path, status, code) in [
        ("GET", COMPLETIONS, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/openai/v1/files", 404, "not_found"),
    ] {
        refused(&scene.ann.send(method, path, &[], "").await, status, code);
    }
    // Null is as good as nothing, and what is unknown is left alone.
    let mut odd = words("quiet", "x");
    for name in [
        "n",
        "tools",
        "response_format",
        "stream",
        "user",
        "audio",
        "statehold",
        "conversation",
    ] {
        odd[name] = Value::Null;
    }
    odd["temperature"] = json!(0.7);
    odd["something_new"] = json!({"a": 1});
    let answer = scene.ann.post(COMPLETIONS, &odd).await;
    refused(&answer, 422, "agent_needs_session");
    assert_eq!(scene.turns().await, 0);
}

#[tokio::test]
async fn every_declared_agent_is_a_model() {
    let rig = Rig::with(setup()).await;
    let ann = rig.client("ann").await;
    for base in ["/v1", "/openai/v1"] {
        let list = ann.get(&format!("{base}/models")).await.ok(200);
        assert_eq!(list["object"], "list");
        let data = list["data"].as_array().expect("a list");
        let names: Vec<String> = data.iter().map(|model| text(model, "id")).collect();
        assert_eq!(
            names,
            [
                "archive", "boss", "desk", "guarded", "helper", "office", "quiet", "service",
                "strict", "team"
            ]
        );
        let one = ann.get(&format!("{base}/models/helper")).await.ok(200);
        assert_eq!(one["id"], "helper");
        assert_eq!(one["object"], "model");
        assert_eq!(one["owned_by"], "statehold");
        assert!(one["created"].as_i64().is_some_and(|at| at > 1_700_000_000));
        let missing = ann.get(&format!("{base}/models/nobody")).await;
        let error = refused(&missing, 404, "agent_unknown");
        assert!(text(&error, "message").contains("helper"));
    }
    refused(
        &rig.nobody().get("/v1/models").await,
        401,
        "unauthenticated",
    );
}

#[tokio::test]
async fn an_error_in_a_session_that_the_client_does_not_know_says_which_it_is() {
    let scene = Scene::new().await;
    let say = |headers: &[(&'static str, &'static str)]| {
        let (ann, headers) = (scene.ann.clone(), headers.to_vec());
        let body = words("helper", "hello").to_string();
        tokio::spawn(async move { ann.send("POST", COMPLETIONS, &headers, body).await })
    };
    let helper = &scene.helper;
    let fail = |request: Value| async move {
        let error = json!({"error": "no"});
        act(helper, &request, "fail", error).await.ok(200);
        text(&request, "session_id")
    };
    // Also in a stream. A call that is found again by its messages needs no hint.
    let call = say(&[]);
    let session = fail(scene.claim().await).await;
    let answer = finished(call).await;
    let error = refused(&answer, 500, "request_failed");
    assert!(!text(&error, "message").contains("x-statehold-session"));
    assert_eq!(answer.header("x-statehold-session"), Some(session.as_str()));
    let call = say(&[("x-statehold-session", "new")]);
    let session = fail(scene.claim().await).await;
    let answer = finished(call).await;
    let error = refused(&answer, 500, "request_failed");
    let hint = format!("`x-statehold-session: {session}`");
    assert!(text(&error, "message").contains(&hint), "{error}");
    assert_eq!(answer.header("x-statehold-session"), Some(session.as_str()));
    let mut body = words("helper", "hello");
    body["stream"] = true.into();
    let mut stream = ChatStream::open(&scene.ann, &body, &[("x-statehold-session", "new")]).await;
    let session = fail(scene.claim().await).await;
    stream.chunk().await;
    let end = stream.chunk().await;
    assert!(end.to_string().contains(&session), "{end}");
    assert_eq!(stream.next().await, Event::End);

    let unnamed = say(&[("x-statehold-session", "new")]);
    let first = scene.claim().await;
    let keyed = say(&[("x-statehold-session", "new"), ("idempotency-key", "k")]);
    let second = scene.claim().await;
    scene.rig.engine.begin_stop();
    for (call, request, has_key) in [(unnamed, first, false), (keyed, second, true)] {
        let answer = finished(call).await;
        let error = refused(&answer, 503, "stopping");
        for name in ["session", "request"] {
            let id = match name {
                "session" => text(&request, "session_id"),
                _ => text(&request, "id"),
            };
            let header = format!("x-statehold-{name}");
            assert_eq!(answer.header(&header), Some(id.as_str()));
        }
        // With its key the call is the same call, and may be made again.
        let message = text(&error, "message");
        assert_eq!(message.contains("x-statehold-session"), !has_key);
        let retry = answer.header("x-should-retry");
        assert_eq!(retry, (!has_key).then_some("false"));
    }
}

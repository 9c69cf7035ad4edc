//! Errors before the first byte and after it.

use bytes::Bytes;
use serde_json::json;

use super::{HELPER, Scene, finished, said, setup};
use crate::rest::act;
use crate::rig::{Rig, Setup};

#[tokio::test]
async fn a_call_without_a_key_gets_the_bytes_of_dials_sdk() {
    let rig = Rig::with(setup()).await;
    let nobody = rig.nobody();
    let answer = nobody
        .send("POST", HELPER, &[], said("hi").to_string())
        .await;
    assert_eq!(answer.status, 400);
    let expected = r#"{"error":{"message":"Api-Key header is required","type":"invalid_request_error","code":"400"}}"#;
    assert_eq!(answer.body, Bytes::from_static(expected.as_bytes()));
    let wrong = [("Api-Key", "shk_wrong")];
    let answer = nobody
        .send("POST", HELPER, &wrong, said("hi").to_string())
        .await;
    assert_eq!(answer.ok(401)["error"]["code"], "unauthenticated");
}

#[tokio::test]
async fn a_key_beside_the_token_of_its_user_counts_alone() {
    let scene = Scene::new().await;
    let nobody = scene.rig.nobody();
    let key = scene.ann.key.clone().expect("a key");
    let headers = [
        ("api-key", key.as_str()),
        ("authorization", "Bearer eyJ.x.y"),
    ];
    let body = said("hi");
    let call = nobody.send("POST", HELPER, &headers, body.to_string());
    let work = async {
        let request = scene.claim().await;
        scene.complete(&request, "hello").await;
    };
    let (answer, ()) = tokio::join!(call, work);
    answer.ok(200);
}

#[tokio::test]
async fn a_failed_turn_has_a_status_before_the_first_byte() {
    let scene = Scene::new().await;
    for (code, status) in [
        ("agent_error", 500),
        ("agent_timeout", 502),
        ("agent_rate_limited", 429),
        ("boom", 500),
    ] {
        let call = scene.send(&said(code), &[]);
        let request = scene.claim().await;
        let error = json!({"error": {"code": code, "message": "SECRET-WHY"}});
        act(&scene.helper, &request, "fail", error).await.ok(200);
        let answer = finished(call).await;
        let error = answer.ok(status)["error"].clone();
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert!(error["type"].is_string() && error["display_message"].is_string());
        assert!(!error.to_string().contains("SECRET-WHY"), "{error}");
    }
}

#[tokio::test]
async fn the_limits_of_a_caller_are_no_condition_of_the_deployment() {
    let mut setup: Setup = setup();
    setup.server.streams_max = 1;
    let scene = Scene::begin(Rig::with(setup).await).await;
    let mut streams = Vec::new();
    let body = || {
        let mut body = said("hi");
        body["stream"] = true.into();
        body.to_string()
    };
    loop {
        let sent = scene.ann.begin("POST", HELPER, &[], body().into()).await;
        let response = sent.expect("an answer begins");
        if response.status() != 200 {
            assert_eq!(response.status(), 400);
            break;
        }
        streams.push(response);
        assert!(streams.len() < 8, "there is a limit");
    }
}

#[tokio::test]
async fn a_call_that_makes_no_sense_is_the_fault_of_its_caller() {
    let scene = Scene::new().await;
    for (body, status) in [
        (json!({}), 422),
        (json!({"messages": []}), 422),
        (
            json!({"n": 2, "messages": [{"role": "user", "content": "x"}]}),
            422,
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "x"}]}),
            422,
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "video"}]}]}),
            422,
        ),
    ] {
        let answer = finished(scene.send(&body, &[])).await;
        let error = answer.ok(status)["error"].clone();
        assert_eq!(error["type"], "invalid_request_error", "{body}");
    }
}

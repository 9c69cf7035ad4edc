//! Calls: headers, fields, files, and the deployments themselves.

use serde_json::{Value, json};

use super::{HELPER, Scene, finished, message, said, send};

#[tokio::test]
async fn the_dispatcher_takes_the_name_of_the_deployment_from_a_header() {
    let scene = Scene::new().await;
    let dispatcher = "/openai/v1/chat/completions";
    let headers: [&[(&str, &str)]; 2] = [&[("X-DIAL-DEPLOYMENT-ID", "helper")], &[]];
    for headers in headers {
        let mut body = said("hi");
        if headers.is_empty() {
            // Without a deployment it is OpenAI's API.
            body["model"] = "helper".into();
        }
        let call = send(&scene.ann, dispatcher, &body, headers);
        let request = scene.claim().await;
        scene.complete(&request, "hello").await;
        let answer = finished(call).await;
        let has_state = message(&answer)["custom_content"]["state"].is_object();
        assert_eq!(has_state, !headers.is_empty());
    }
    // Core asks whether its caller may use the deployment of the path: no header names another one.
    let others = [
        ("X-DIAL-DEPLOYMENT-ID", "boss"),
        ("X-DIAL-OVERRIDE-NAME", "boss"),
    ];
    let call = scene.send(&said("hi"), &others);
    scene.complete(&scene.claim().await, "hello").await;
    finished(call).await.ok(200);
    let nobody = [("X-DIAL-DEPLOYMENT-ID", "nobody")];
    let call = send(&scene.ann, dispatcher, &said("hi"), &nobody);
    let error = finished(call).await.ok(404)["error"].clone();
    assert_eq!(error["code"], "DeploymentNotFound");
}

#[tokio::test]
async fn fields_that_are_not_known_are_taken() {
    let scene = Scene::new().await;
    let body = json!({
        "model": null, "zzz": 1, "max_prompt_tokens": "infinity", "temperature": 0.5,
        "custom_fields": {"configuration": {"a": 1}, "cache_breakpoint": null},
        "messages": [
            {"role": "system", "content": "SECRET-ORDER"},
            {"role": "user", "content": "hi", "custom_fields": {"x": 1}, "zzz": 2,
             "custom_content": {"form_value": {}, "configuration_value": {}, "zzz": 3}},
        ],
    });
    let call = scene.send(
        &body,
        &[
            ("X-CONVERSATION-ID", "conversations%2Fx"),
            ("X-JOB-TITLE", "Clerk"),
        ],
    );
    let request = scene.claim().await;
    // Nothing of it is an order to an agent that does not trust its callers.
    let told = request.to_string();
    for hidden in ["SECRET-ORDER", "zzz", "configuration"] {
        assert!(!told.contains(hidden), "{told}");
    }
    scene.complete(&request, "hello").await;
    finished(call).await.ok(200);
}

#[tokio::test]
async fn files_of_users_and_agents_come_through_in_the_form_of_dial() {
    let scene = Scene::new().await;
    let mut body = said("look");
    body["messages"][0]["custom_content"] = json!({"attachments": [
        {"index": 0, "type": "text/csv", "title": "t", "url": "files/a.csv", "data": null},
        {"type": "text/markdown", "title": "m", "data": "# m", "reference_url": "https://x.test/m"},
    ]});
    let call = scene.send(&body, &[]);
    let request = scene.claim().await;
    let files = json!([
        {"type": "text/csv", "title": "t", "url": "files/a.csv"},
        {"type": "text/markdown", "title": "m", "reference_url": "https://x.test/m", "data": "# m"},
    ]);
    let session = crate::rig::text(&request, "session_id");
    let path = format!("/v1/sessions/{session}/messages");
    let page = scene.ann.get(&path).await.ok(200);
    assert_eq!(page["messages"][0]["attachments"], files, "{page}");
    let output = json!({"content": "seen", "attachments": files});
    crate::rest::act(
        &scene.helper,
        &request,
        "complete",
        json!({ "output": output }),
    )
    .await
    .ok(200);
    let answer = message(&finished(call).await);
    assert_eq!(answer["custom_content"]["attachments"], files);
}

#[tokio::test]
async fn the_deployments_are_the_declared_agents() {
    let scene = Scene::new().await;
    let list = scene.ann.get("/openai/deployments").await.ok(200);
    let names: Vec<&str> = list["data"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["id"].as_str())
        .collect();
    assert!(
        names.contains(&"helper") && names.contains(&"team"),
        "{names:?}"
    );
    let one = scene.ann.get("/openai/deployments/helper").await.ok(200);
    assert_eq!(
        (&one["object"], &one["model"]),
        (&json!("deployment"), &json!("helper"))
    );
    assert_eq!(one["features"]["tokenize"], false);
    let settings = scene
        .ann
        .get("/openai/deployments/helper/configuration")
        .await;
    assert_eq!(settings.ok(200)["type"], "object");
    let rating = json!({"responseId": "x", "rate": true});
    let rated = scene
        .ann
        .post("/openai/deployments/helper/rate", &rating)
        .await;
    rated.ok(200);
    for path in ["", "/configuration"] {
        let path = format!("/openai/deployments/nobody{path}");
        let error = scene.ann.get(&path).await.ok(404)["error"].clone();
        assert_eq!(error["code"], "DeploymentNotFound");
    }
}

#[tokio::test]
async fn what_is_not_served_is_not_found_in_the_words_of_dial() {
    let scene = Scene::new().await;
    for path in ["tokenize", "truncate_prompt", "embeddings"] {
        let path = format!("/openai/deployments/helper/{path}");
        let answer = scene.ann.post(&path, &json!({"inputs": []})).await;
        assert_eq!(answer.ok(404)["error"]["type"], "invalid_request_error");
    }
    let other = scene.ann.get(HELPER).await.ok(405);
    assert_eq!(other["error"]["code"], "method_not_allowed");
}

#[tokio::test]
async fn the_id_of_a_conversation_goes_on_to_agents_and_is_bounded() {
    let scene = Scene::new().await;
    let call = scene.send(&said("hi"), &[("X-CONVERSATION-ID", "conversations%2Fa")]);
    let request = scene.claim().await;
    scene.complete(&request, "hello").await;
    let answer = finished(call).await;
    let session = answer.header("x-statehold-session").expect("a session");
    let operator = scene.rig.key(&["operator"]).await;
    let path = format!("/v1/sessions/{session}/messages?view=trace");
    let trace = operator.get(&path).await.ok(200);
    let dial: &Value = &trace["messages"][0]["data"]["dial"];
    assert_eq!(dial["conversation_id"], "conversations%2Fa", "{trace}");
    let long = "x".repeat(5_000);
    let refused = finished(scene.send(&said("hi"), &[("X-CONVERSATION-ID", &long)])).await;
    assert_eq!(refused.ok(400)["error"]["code"], "bad_header");
}

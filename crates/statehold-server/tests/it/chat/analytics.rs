//! The Conversational Analytics API, as its clients speak it.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::stateless::Stage;
use super::{Scene, finished};
use crate::rest::{act, claim};
use crate::rig::{Answer, Who, text};

const PLACE: &str = "projects/acme/locations/global";

fn path(rest: &str) -> String {
    format!("/v1/{PLACE}{rest}")
}

fn agent(id: &str) -> String {
    format!("{PLACE}/dataAgents/{id}")
}

fn said(text: &str) -> Value {
    json!([{"userMessage": {"text": text}}])
}

fn chat(who: &Who, body: &Value) -> JoinHandle<Answer> {
    let (who, body) = (who.clone(), body.to_string());
    tokio::spawn(async move { who.send("POST", &path(":chat"), &[], body).await })
}

/// An error in Google's envelope.
#[track_caller]
fn error(answer: &Answer, status: u16, word: &str, reason: &str) -> Value {
    let body = answer.ok(status);
    let error = body["error"].clone();
    assert_eq!(
        (&error["code"], &error["status"]),
        (&json!(status), &json!(word)),
        "{body}"
    );
    assert_eq!(error["details"][0]["reason"], reason, "{body}");
    error
}

/// The texts of an answer: an array of system messages.
#[track_caller]
fn texts(answer: &Answer) -> Vec<String> {
    let body = answer.ok(200);
    let messages = body.as_array().expect("an array");
    let texts = messages.iter().map(|message| {
        let parts = message["systemMessage"]["text"]["parts"].as_array();
        let parts = parts.expect("a text").iter();
        parts.filter_map(Value::as_str).collect::<String>()
    });
    texts.collect()
}

async fn conversation(who: &Who, id: &str) -> Value {
    let body = json!({"agents": [agent("helper")], "title": "Sales", "labels": {"team": "a"}});
    let path = path(&format!("/conversations?conversationId={id}"));
    who.post(&path, &body).await.ok(200)
}

fn within(id: &str) -> Value {
    json!({
        "conversation": format!("{PLACE}/conversations/{id}"),
        "dataAgentContext": {"dataAgent": agent("helper"), "contextVersion": 2},
    })
}

#[tokio::test]
async fn a_conversation_of_the_analytics_api_is_a_session_with_its_name() {
    let scene = Scene::new().await;
    let made = conversation(&scene.ann, "first").await;
    assert_eq!(made["name"], format!("{PLACE}/conversations/first"));
    assert_eq!(made["agents"], json!([agent("helper")]));
    assert_eq!(
        (&made["title"], &made["labels"]),
        (&json!("Sales"), &json!({"team": "a"}))
    );
    let sessions = scene.ann.get("/v1/sessions?app=acme.global").await.ok(200);
    assert_eq!(sessions["sessions"][0]["name"], "first");

    for said_now in ["one", "two"] {
        let body = json!({"messages": said(said_now), "conversationReference": within("first"), "clientIdEnum": "X"});
        let call = chat(&scene.ann, &body);
        let work = scene.claim().await;
        assert_eq!(work["input"], said_now);
        scene.complete(&work, &format!("{said_now}!")).await;
        assert_eq!(texts(&finished(call).await), [format!("{said_now}!")]);
    }
    let (mut listed, mut token) = (Vec::new(), String::new());
    loop {
        let page = path(&format!(
            "/conversations/first/messages?pageSize=3&pageToken={token}"
        ));
        let page = scene.ann.get(&page).await.ok(200);
        listed.extend(page["messages"].as_array().expect("a list").clone());
        let Some(next) = page["nextPageToken"].as_str() else {
            break;
        };
        next.clone_into(&mut token);
    }
    let texts: Vec<&str> = listed
        .iter()
        .filter_map(|one| {
            let (user, system) = (
                &one["message"]["userMessage"],
                &one["message"]["systemMessage"],
            );
            user["text"]
                .as_str()
                .or_else(|| system["text"]["parts"][0].as_str())
        })
        .collect();
    assert_eq!(texts, ["one", "one!", "two", "two!"]);

    // A key of another role is told so before its call is looked at.
    let bad = path("/conversations?conversationId=Not-An-Id");
    let refused = scene.helper.post(&bad, &json!({})).await;
    error(&refused, 403, "PERMISSION_DENIED", "FORBIDDEN");
    let refused = scene.ann.post(&bad, &json!({})).await;
    error(&refused, 400, "INVALID_ARGUMENT", "BAD_QUERY");

    // Other users do not find it, and deleting it frees its name.
    let bob = scene.rig.client("bob").await;
    let first = path("/conversations/first");
    error(&bob.get(&first).await, 404, "NOT_FOUND", "NOT_FOUND");
    let body = json!({"messages": said("x"), "conversationReference": within("first")});
    error(
        &finished(chat(&bob, &body)).await,
        404,
        "NOT_FOUND",
        "NOT_FOUND",
    );
    scene
        .ann
        .send("DELETE", &first, &[], String::new())
        .await
        .ok(200);
    error(&scene.ann.get(&first).await, 404, "NOT_FOUND", "NOT_FOUND");
    conversation(&scene.ann, "first").await;
}

#[tokio::test]
async fn two_contexts_of_the_analytics_api_are_refused_before_any_effect() {
    let scene = Scene::new().await;
    conversation(&scene.ann, "first").await;
    let all = json!({
        "conversationReference": within("first"),
        "dataAgentContext": {"dataAgent": agent("service")},
        "inlineContext": {},
        "clientManagedResourceContext": {"inlineContext": {}},
    });
    let names: Vec<&String> = all.as_object().expect("an object").keys().collect();
    for (at, one) in names.iter().enumerate() {
        for other in &names[at + 1..] {
            let mut body = json!({"messages": said("x")});
            body[one.as_str()] = all[one.as_str()].clone();
            body[other.as_str()] = all[other.as_str()].clone();
            let refused = finished(chat(&scene.ann, &body)).await;
            let told = error(&refused, 400, "INVALID_ARGUMENT", "ONE_CONTEXT");
            let message = text(&told, "message");
            assert!(
                message.contains("'context_provider' is already set"),
                "{message}"
            );
        }
    }
    let none = json!({"messages": said("x")});
    let refused = finished(chat(&scene.ann, &none)).await;
    error(&refused, 400, "INVALID_ARGUMENT", "ONE_CONTEXT");
    let listed = scene.ann.get(&path("/conversations/first/messages")).await;
    assert_eq!(listed.ok(200)["messages"], json!([]));
}

#[tokio::test]
async fn an_answer_of_the_analytics_api_is_an_array_that_line_readers_know() {
    let scene = Scene::new().await;
    conversation(&scene.ann, "first").await;
    let body = json!({"messages": said("x"), "conversationReference": within("first"), "thinkingMode": "THINKING"});
    let call = chat(&scene.ann, &body);
    let work = scene.claim().await;
    scene.complete(&work, "so it is").await;
    let answer = finished(call).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let raw = answer.text();
    let lines: Vec<&str> = raw.lines().collect();
    assert_eq!((lines[0], lines[lines.len() - 1]), ("[{", "}]"), "{raw}");
    assert!(!raw.ends_with('\n'), "{raw}");
}

#[tokio::test]
async fn a_pause_is_a_system_message_and_the_next_chat_of_the_conversation_goes_on() {
    let scene = Scene::new().await;
    conversation(&scene.ann, "first").await;
    let body =
        |text: &str| json!({"messages": said(text), "conversationReference": within("first")});
    let call = chat(&scene.ann, &body("weather"));
    let work = scene.claim().await;
    let question = json!({"kind": "question", "title": "Which Springfield?"});
    let hold = scene.ask(&work, question).await;
    let words = texts(&finished(call).await).concat();
    assert!(
        words.contains("Which Springfield?") && words.contains(&text(&hold, "id")),
        "{words}"
    );
    act(&scene.helper, &work, "release", json!({}))
        .await
        .ok(200);
    let call = chat(&scene.ann, &body("Ohio"));
    let work = claim(&scene.helper, "helper").await;
    scene.complete(&work, "Sunny.").await;
    assert_eq!(texts(&finished(call).await), ["Sunny."]);
}

/// Calls with the saved agent, with its context, and with a conversation that the caller keeps.
async fn each_context_reaches_the_answerer(stage: &Stage, context: &Value) {
    for context in [
        json!({"dataAgentContext": {"dataAgent": agent("sales")}}),
        json!({"inlineContext": context}),
        json!({"clientManagedResourceContext": {"inlineContext": context, "conversationId": "mine"}}),
    ] {
        let mut body = context;
        body["messages"] = json!([
            {"userMessage": {"text": "hello"}},
            {"systemMessage": {"text": {"parts": ["hm"], "textType": 2}}},
            {"systemMessage": {"text": {"parts": ["hi"], "textType": "FINAL_RESPONSE"}}},
            {"userMessage": {"text": "more"}},
        ]);
        let call = chat(&stage.ann, &body);
        let work = stage.claim("service").await;
        let data = stage.input(&work).await.data.expect("data");
        let data: Value = serde_json::from_str(data.get()).expect("JSON");
        let history = data["history"].as_array().expect("a list");
        assert_eq!(history[0]["role"], "system");
        assert!(text(&history[0], "content").starts_with("Say it twice."));
        let rest =
            json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]);
        assert_eq!(json!(history[1..]), rest);
        stage
            .complete(&work, &json!({"content": "more more"}))
            .await;
        assert_eq!(texts(&finished(call).await), ["more more"]);
    }
}

#[tokio::test]
async fn a_saved_data_agent_is_its_users_own_and_an_answerer_runs_it() {
    let stage = Stage::new().await;
    let context = json!({"systemInstruction": "Say it twice.", "datasourceReferences": {"bq": {"tableReferences": []}}});
    let body = json!({"displayName": "Sales", "dataAnalyticsAgent": {"publishedContext": context}});
    let request = "3fa85f64-5717-4562-b3fc-2c963f66afa6";
    let create = path(&format!(
        "/dataAgents?dataAgentId=sales&requestId={request}"
    ));
    let made = stage.ann.post(&create, &body).await.ok(200);
    assert_eq!(made["done"], true, "{made}");
    assert_eq!(made["response"]["name"], agent("sales"));
    let operation = format!("/v1/{}", text(&made, "name"));
    assert_eq!(
        stage.ann.get(&operation).await.ok(200)["response"],
        made["response"]
    );

    // The same request again is the same agent; another one finds the id taken, and so does a declared one.
    assert_eq!(
        stage.ann.post(&create, &body).await.ok(200)["response"],
        made["response"]
    );
    let other = json!({"displayName": "Other"});
    error(
        &stage.ann.post(&create, &other).await,
        400,
        "INVALID_ARGUMENT",
        "KEY_REUSED",
    );
    for id in ["sales", "service"] {
        let create = path(&format!("/dataAgents:createSync?dataAgentId={id}"));
        error(
            &stage.ann.post(&create, &body).await,
            409,
            "ALREADY_EXISTS",
            "NAME_TAKEN",
        );
    }
    let bob = stage.rig.client("bob").await;
    error(
        &bob.get(&path("/dataAgents/sales")).await,
        404,
        "NOT_FOUND",
        "NOT_FOUND",
    );

    each_context_reaches_the_answerer(&stage, &context).await;

    // A stateless call cannot pause: no later call could continue it.
    let body = json!({"messages": said("x"), "dataAgentContext": {"dataAgent": agent("service")}});
    let call = chat(&stage.ann, &body);
    let work = stage.claim("service").await;
    stage.ask(&work).await;
    let refused = finished(call).await;
    let told = error(
        &refused,
        400,
        "FAILED_PRECONDITION",
        "APPROVAL_NEEDS_SESSION",
    );
    assert!(
        text(&told, "message").contains("conversationReference"),
        "{told}"
    );

    let sales = path("/dataAgents/sales");
    let mask = format!("{sales}:updateSync?updateMask=displayName");
    let changed = json!({"displayName": "Sells", "description": "not in the mask"});
    let patched = stage
        .ann
        .send("PATCH", &mask, &[], changed.to_string())
        .await
        .ok(200);
    assert_eq!(patched["displayName"], "Sells");
    assert!(patched.get("description").is_none(), "{patched}");
    stage
        .ann
        .send("DELETE", &sales, &[], String::new())
        .await
        .ok(200);
    error(&stage.ann.get(&sales).await, 404, "NOT_FOUND", "NOT_FOUND");
    let service = path("/dataAgents/service");
    error(
        &stage.ann.send("DELETE", &service, &[], String::new()).await,
        400,
        "INVALID_ARGUMENT",
        "INVALID_BODY",
    );
}

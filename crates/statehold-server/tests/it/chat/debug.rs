//! `x-statehold-debug`: what a turn did behind its answer, for callers who may read traces.

use serde_json::{Value, json};

use super::{COMPLETIONS, ChatStream, Scene, words};
use crate::rest::act;
use crate::rest::records::check_chain;
use crate::rig::{Answer, Rig, Who, text};

const DEBUG: (&str, &str) = ("x-statehold-debug", "1");

/// Plays a turn with a tool call behind its answer.
async fn work(scene: &Scene, secret: &str) {
    let claimed = scene.claim().await;
    let items = json!({"items": [
        {"kind": "tool_call", "name": "look", "call_id": "c", "arguments": {"at": secret}},
        {"kind": "tool_result", "call_id": "c", "result": format!("{secret} found")},
    ]});
    act(&scene.helper, &claimed, "items", items).await.ok(200);
    scene.complete(&claimed, "the answer").await;
}

async fn trace_reads(rig: &Rig) -> Vec<Value> {
    let admin = rig.key(&["admin"]).await;
    let entries = check_chain(&admin.get("/v1/audit/records").await);
    let reads = entries
        .into_iter()
        .filter(|entry| entry["event"]["act"] == "trace_read");
    reads.collect()
}

async fn say(scene: &Scene, who: &Who, headers: &[(&str, &str)]) -> Answer {
    let session = ("x-statehold-session", scene.session.as_str());
    let headers = [headers, &[session]].concat();
    let said = who.send(
        "POST",
        COMPLETIONS,
        &headers,
        words("helper", "hi").to_string(),
    );
    let (said, ()) = tokio::join!(said, work(scene, "secret-5"));
    said
}

#[tokio::test]
async fn an_answer_with_debug_carries_the_hidden_items_of_its_turn_and_of_no_other() {
    let scene = Scene::new().await;
    let debugger = scene.rig.key(&["client", "operator"]).await;
    let first = say(&scene, &debugger, &[]).await;
    assert!(!first.text().contains("secret"), "{}", first.text());
    assert!(first.ok(200)["statehold"].get("debug").is_none());
    assert!(trace_reads(&scene.rig).await.is_empty());

    let answer = say(&scene, &debugger, &[DEBUG]).await.ok(200);
    assert_eq!(answer["choices"][0]["message"]["content"], "the answer");
    let debug = &answer["statehold"]["debug"];
    assert_eq!(debug["cut"], false);
    let items = debug["items"].as_array().expect("a list");
    let kinds: Vec<&Value> = items.iter().map(|item| &item["kind"]).collect();
    assert_eq!(kinds, ["tool_call", "tool_result"], "{debug}");
    assert_eq!(items[1]["result"], "secret-5 found");
    for item in items {
        assert_eq!(item["request_id"], answer["statehold"]["request"]);
    }
    let reads = trace_reads(&scene.rig).await;
    assert_eq!(reads.len(), 1);
    assert_eq!(reads[0]["event"]["session"], scene.session.as_str());
    assert_eq!(reads[0]["principal"], debugger.id.as_str());
}

#[tokio::test]
async fn the_last_chunk_of_a_stream_carries_them() {
    let scene = Scene::new().await;
    let debugger = scene.rig.key(&["client", "operator"]).await;
    let mut body = words("helper", "hi");
    body["stream"] = true.into();
    let session = ("x-statehold-session", scene.session.as_str());
    let stream = async {
        let mut stream = ChatStream::open(&debugger, &body, &[DEBUG, session]).await;
        stream.rest().await
    };
    let ((said, last), ()) = tokio::join!(stream, work(&scene, "secret-6"));
    assert_eq!(said, "the answer");
    assert_eq!(
        last["statehold"]["debug"]["items"][1]["result"], "secret-6 found",
        "{last}"
    );
    assert_eq!(trace_reads(&scene.rig).await.len(), 1);
}

#[tokio::test]
async fn the_native_chat_carries_them_too() {
    let scene = Scene::new().await;
    let debugger = scene.rig.key(&["client", "admin"]).await;
    let body = json!({"message": "hi", "context": {"conversation": {"id": scene.session}}});
    let said = debugger.send("POST", "/v1/chat", &[DEBUG], body.to_string());
    let (said, ()) = tokio::join!(said, work(&scene, "secret-7"));
    let said = said.ok(200);
    assert_eq!(
        said["debug"]["items"][0]["arguments"],
        json!({"at": "secret-7"})
    );
    assert_eq!(trace_reads(&scene.rig).await.len(), 1);
}

#[tokio::test]
async fn whoever_may_not_read_traces_is_refused_before_anything_happens() {
    let scene = Scene::new().await;
    let backend = scene.rig.key(&["client"]).await;
    let missing = format!("{}beef", &scene.session[..scene.session.len() - 4]);
    for who in [&scene.ann, &backend] {
        for session in [scene.session.as_str(), &missing, "new", "none"] {
            let headers = [DEBUG, ("x-statehold-session", session)];
            let said = who.send(
                "POST",
                COMPLETIONS,
                &headers,
                words("helper", "hi").to_string(),
            );
            let said = said.await;
            assert_eq!(said.status, 403, "{}", said.text());
            assert_eq!(said.ok(403)["error"]["code"], "forbidden");
        }
        let body = json!({"message": "hi", "context": {"conversation": {"id": scene.session}}});
        let said = who
            .send("POST", "/v1/chat", &[DEBUG], body.to_string())
            .await;
        said.refused(403, "forbidden");
    }
    assert_eq!(scene.turns().await, 0);
    let both = scene.rig.key(&["client", "operator"]).await;
    for value in ["true", "", "2"] {
        let headers = [("x-statehold-debug", value)];
        let said = both.send(
            "POST",
            COMPLETIONS,
            &headers,
            words("helper", "hi").to_string(),
        );
        assert_eq!(said.await.ok(400)["error"]["code"], "bad_header");
    }
    assert!(trace_reads(&scene.rig).await.is_empty());
}

#[tokio::test]
async fn long_items_stay_out_of_an_answer_with_debug_and_it_says_so() {
    let scene = Scene::new().await;
    let debugger = scene.rig.key(&["client", "operator"]).await;
    let session = ("x-statehold-session", scene.session.as_str());
    let headers = [DEBUG, session];
    let said = debugger.send(
        "POST",
        COMPLETIONS,
        &headers,
        words("helper", "hi").to_string(),
    );
    let work = async {
        let claimed = scene.claim().await;
        for text in [
            "x".repeat(100_000),
            "short".to_owned(),
            "y".repeat(40_000),
            "z".repeat(40_000),
        ] {
            let items = json!({"items": [{"kind": "note", "data": text}]});
            act(&scene.helper, &claimed, "items", items).await.ok(200);
        }
        scene.complete(&claimed, "done").await;
    };
    let (said, ()) = tokio::join!(said, work);
    let said = said.ok(200);
    let debug = &said["statehold"]["debug"];
    assert_eq!(debug["cut"], true);
    let items = debug["items"].as_array().expect("a list").iter();
    let begins: Vec<String> = items
        .map(|item| text(item, "data")[..1].to_owned())
        .collect();
    assert_eq!(
        begins,
        ["s", "z"],
        "the newest, as far as they fit, and short ones before"
    );
}

//! Traces: who reads them, in which form, and what the audit stream keeps of that.

use serde_json::{Value, json};

use super::records::check_chain;
use super::{act, claim, new_session_of, start};
use crate::rig::{Rig, Who, text};

/// A session of ann in which her agent has called two tools at once, and then one more.
struct Scene {
    session: String,
    task: String,
    calls: Vec<String>,
}

async fn scene(rig: &Rig, ann: &Who) -> Scene {
    let helper = rig.worker(&["helper"]).await;
    let session = new_session_of(ann, "helper").await;
    start(ann, &session, "helper", "Extract this file").await;
    let claimed = claim(&helper, "helper").await;
    let call = |name: &str, id: &str| json!({"kind": "tool_call", "name": name, "call_id": id, "arguments": {"file": format!("secret-{name}")}});
    let mut calls = Vec::new();
    for (called, results) in [
        (
            vec![("read", "a"), ("list", "b")],
            vec![("b", json!(["secret-list"])), ("a", json!("secret-text"))],
        ),
        (vec![("sum", "c")], vec![("c", json!("secret-sum"))]),
    ] {
        let mut items: Vec<Value> = vec![json!({"kind": "step", "name": "secret-step"})];
        items.extend(called.iter().map(|(name, id)| call(name, id)));
        let written = act(&helper, &claimed, "items", json!({"items": items}))
            .await
            .ok(200);
        let written = written["items"].as_array().expect("a list").iter().skip(1);
        calls.extend(written.map(|item| text(item, "id")));
        let items: Vec<Value> = results
            .into_iter()
            .map(|(id, result)| json!({"kind": "tool_result", "call_id": id, "result": result}))
            .collect();
        act(&helper, &claimed, "items", json!({"items": items}))
            .await
            .ok(200);
    }
    let done = act(
        &helper,
        &claimed,
        "complete",
        json!({"output": "Based on the file"}),
    )
    .await;
    done.ok(200);
    Scene {
        session,
        task: text(&claimed, "task_id"),
        calls,
    }
}

/// The messages of a history without the marks of their items.
fn plain(page: &Value) -> Vec<Value> {
    let messages = page["tool_call_history"].as_array().expect("a list");
    let plain = messages.iter().map(|message| {
        let mut message = message.clone();
        message
            .as_object_mut()
            .expect("an object")
            .remove("statehold");
        message
    });
    plain.collect()
}

/// The content of the seed's state: questions, calls, results, answers.
fn expected(calls: &[String]) -> Vec<Value> {
    let call = |index: usize, name: &str| {
        json!({"id": calls[index], "type": "function",
               "function": {"name": name, "arguments": format!("{{\"file\":\"secret-{name}\"}}")}})
    };
    let result = |index: usize, name: &str, content: &str| json!({"role": "tool", "content": content, "tool_call_id": calls[index], "name": name});
    vec![
        json!({"role": "user", "content": "Extract this file"}),
        json!({"role": "assistant", "content": "", "tool_calls": [call(0, "read"), call(1, "list")]}),
        result(1, "list", "[\"secret-list\"]"),
        result(0, "read", "secret-text"),
        json!({"role": "assistant", "content": "", "tool_calls": [call(2, "sum")]}),
        result(2, "sum", "secret-sum"),
        json!({"role": "assistant", "content": "Based on the file"}),
    ]
}

#[tokio::test]
async fn a_trace_comes_as_the_messages_of_a_tool_call_history() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
        let Scene {
            session,
            task,
            calls,
        } = scene(&rig, &ann).await;
        for path in [
            format!("/v1/sessions/{session}/messages?view=trace&form=tool_call_history"),
            format!("/v1/sessions/{session}/messages?view=trace&form=tool_call_history&at=8"),
            format!("/v1/tasks/{task}?view=trace&form=tool_call_history"),
        ] {
            let page = operator.get(&path).await.ok(200);
            assert_eq!(plain(&page), expected(&calls), "{path}");
            assert_eq!(page["left_out"], 2, "the steps");
            let mark = &page["tool_call_history"][1]["statehold"];
            assert_eq!(
                (&mark["visibility"], &mark["task_id"]),
                (&json!("hidden"), &json!(task))
            );
        }
    }
}

#[tokio::test]
async fn pages_of_a_tool_call_history_keep_the_calls_of_one_message_together() {
    let rig = Rig::in_memory().await;
    let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
    let Scene {
        session,
        task,
        calls,
    } = scene(&rig, &ann).await;
    for path in [
        format!("/v1/sessions/{session}/messages?view=trace&form=tool_call_history"),
        format!("/v1/tasks/{task}?view=trace&form=tool_call_history"),
    ] {
        for limit in 5..10 {
            let (mut all, mut cursor) = (Vec::new(), String::new());
            loop {
                let page = operator
                    .get(&format!("{path}&limit={limit}{cursor}"))
                    .await
                    .ok(200);
                all.splice(0..0, plain(&page));
                let Some(next) = page["next_cursor"].as_str() else {
                    break;
                };
                cursor = format!("&cursor={next}");
                let elsewhere = path.replace("tool_call_history", "items");
                let elsewhere = operator
                    .get(&format!("{elsewhere}&limit={limit}{cursor}"))
                    .await;
                elsewhere.refused(400, "bad_cursor");
            }
            // A result does not name its tool if the call is on another page.
            let without_names = |messages: &[Value]| -> Vec<Value> {
                let strip = |message: &Value| {
                    let mut message = message.clone();
                    message.as_object_mut().expect("an object").remove("name");
                    message
                };
                messages.iter().map(strip).collect()
            };
            assert_eq!(
                without_names(&all),
                without_names(&expected(&calls)),
                "pages of {limit}"
            );
        }
    }
}

#[tokio::test]
async fn each_read_of_a_trace_in_any_form_is_one_entry_of_the_audit_stream() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
        let operator = rig.key(&["operator"]).await;
        let Scene { session, task, .. } = scene(&rig, &ann).await;
        let entries = async || check_chain(&admin.get("/v1/audit/records").await);
        for path in [
            format!("/v1/sessions/{session}/messages?view=trace"),
            format!("/v1/sessions/{session}/messages?view=trace&form=items"),
            format!("/v1/sessions/{session}/messages?view=trace&form=tool_call_history"),
            format!("/v1/sessions/{session}/messages?view=trace&form=tool_call_history&at=3"),
            format!("/v1/tasks/{task}?view=trace"),
            format!("/v1/tasks/{task}?view=trace&form=tool_call_history"),
        ] {
            let before = entries().await.len();
            operator.get(&path).await.ok(200);
            let after = entries().await;
            assert_eq!(after.len(), before + 1, "{path}");
            let entry = after.last().expect("an entry");
            assert_eq!(
                entry["event"],
                json!({"act": "trace_read", "session": session})
            );
            assert_eq!(entry["principal"], operator.id, "{entry}");
            assert!(entry["at"].is_u64());
        }
    }
}

#[tokio::test]
async fn whoever_may_not_read_traces_learns_nothing_from_any_form_of_them() {
    let rig = Rig::in_memory().await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let (worker, approver) = (rig.worker(&["helper"]).await, rig.key(&["approver"]).await);
    let far = rig.key_of("far", &["operator", "admin"], None, &[]).await;
    let Scene { session, task, .. } = scene(&rig, &ann).await;
    let other = |id: &str| format!("{}beef", &id[..id.len() - 4]);
    let path = |session: &str, task: &str| {
        let form = "view=trace&form=tool_call_history";
        [
            format!("/v1/sessions/{session}/messages?{form}"),
            format!("/v1/sessions/{session}/messages?{form}&at=99"),
            format!("/v1/tasks/{task}?{form}"),
        ]
    };
    let (own, missing) = (path(&session, &task), path(&other(&session), &other(&task)));
    for (own, missing) in own.iter().zip(&missing) {
        for who in [&ann, &bob, &worker, &approver] {
            let refused = who.get(own).await;
            assert!(!refused.text().contains("secret"));
            let refused = refused.refused(403, "forbidden");
            assert_eq!(refused, who.get(missing).await.refused(403, "forbidden"));
        }
        let refused = far.get(own).await.refused(404, "not_found");
        assert_eq!(refused, far.get(missing).await.refused(404, "not_found"));
        rig.nobody().get(own).await.refused(401, "unauthenticated");
    }
}

#[tokio::test]
async fn only_traces_have_a_form() {
    let rig = Rig::in_memory().await;
    let (ann, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
    let Scene { session, task, .. } = scene(&rig, &ann).await;
    for path in [
        format!("/v1/sessions/{session}/messages"),
        format!("/v1/tasks/{task}"),
    ] {
        for query in [
            "form=tool_call_history",
            "form=items",
            "form=x&view=trace",
            "form=&view=trace",
            "view=client&form=items",
        ] {
            operator
                .get(&format!("{path}?{query}"))
                .await
                .refused(400, "bad_query");
        }
    }
}

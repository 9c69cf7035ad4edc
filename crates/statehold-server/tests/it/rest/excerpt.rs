//! The excerpt of the conversation beside a hold: for people who may decide it, and never more than clients see.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_engine::policy::Policies;

use super::{act, claim, new_session_of, start};
use crate::rig::{Rig, Setup, Who, text};

/// A session of ann with so many turns, whose agent then asks to pay.
async fn asked(ann: &Who, helper: &Who, turns: usize) -> (String, Value, Value) {
    let session = new_session_of(ann, "helper").await;
    for n in 0..turns {
        start(ann, &session, "helper", &format!("question {n}")).await;
        let request = claim(helper, "helper").await;
        let secret = json!({"kind": "note", "content": "secret-note"});
        let items = json!({"items": [secret]});
        act(helper, &request, "items", items).await.ok(200);
        let output = json!({"output": format!("answer {n}")});
        act(helper, &request, "complete", output).await.ok(200);
    }
    start(ann, &session, "helper", "Pay the invoice").await;
    let request = claim(helper, "helper").await;
    let hold = json!({
        "kind": "approval", "title": "Pay", "action": {"tool": "pay", "args": {"n": 1}},
        "items": [{"kind": "step", "name": "secret-step"}],
    });
    let hold = act(helper, &request, "holds", hold).await.ok(201);
    (session, request, hold)
}

fn texts(hold: &Value) -> Vec<(String, String)> {
    let messages = hold["excerpt"]["messages"].as_array().expect("an excerpt");
    messages
        .iter()
        .map(|message| (text(message, "role"), text(message, "text")))
        .collect()
}

fn said(role: &str, words: &str) -> (String, String) {
    (role.to_owned(), words.to_owned())
}

#[tokio::test]
async fn people_who_may_decide_read_the_last_messages_as_they_were_when_the_hold_opened() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let carol = rig.key_for(&["approver"], Some("carol"), &[]).await;
        let (session, request, hold) = asked(&ann, &helper, 2).await;
        let path = format!("/v1/holds/{}", text(&hold, "id"));
        // Later messages are not the approver's to read.
        start(&ann, &session, "other", "secret later").await;
        let seen = carol.get(&path).await.ok(200);
        assert_eq!(
            texts(&seen),
            [
                said("user", "question 1"),
                said("assistant", "answer 1"),
                said("user", "Pay the invoice"),
            ]
        );
        assert_eq!(seen["excerpt"]["has_earlier"], true);
        assert!(!seen.to_string().contains("secret"), "{seen}");
        for who in [
            &ann,
            &helper,
            &rig.key(&["operator"]).await,
            &rig.key_for(&["approver", "client"], Some("ann"), &[]).await,
        ] {
            let seen = who.get(&path).await.ok(200);
            assert_eq!(seen.get("excerpt"), None, "{seen}");
        }
        let treasurer = rig.key_for(&["treasurer"], Some("tea"), &[]).await;
        treasurer.get(&path).await.refused(404, "not_found");
        let listed = carol.get("/v1/holds").await.ok(200);
        assert_eq!(listed["holds"][0].get("excerpt"), None, "{listed}");
        let shown = helper
            .get(&format!("/v1/requests/{}", text(&request, "id")))
            .await;
        assert!(!shown.ok(200).to_string().contains("excerpt"));
        let decision = json!({"decision": "reject"});
        carol
            .post(&format!("{path}/decision"), &decision)
            .await
            .ok(200);
        let seen = carol.get(&path).await.ok(200);
        assert_eq!(seen.get("excerpt"), None, "{seen}");
    }
}

#[tokio::test]
async fn the_policy_of_the_agent_says_how_much_of_the_conversation_is_shown() {
    for (messages, expected) in [
        (Some(0), None),
        (Some(1), Some(1)),
        (None, Some(3)),
        (Some(20), Some(5)),
    ] {
        let helper = "helper".parse().expect("a name");
        let policies = Policies {
            excerpts: messages.map(|count| (helper, count)).into_iter().collect(),
            ..Policies::default()
        };
        let rig = Rig::with(Setup {
            policies: Arc::new(policies),
            ..Setup::default()
        })
        .await;
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let carol = rig.key_for(&["approver"], Some("carol"), &[]).await;
        let (_, _, hold) = asked(&ann, &helper, 2).await;
        let seen = carol
            .get(&format!("/v1/holds/{}", text(&hold, "id")))
            .await
            .ok(200);
        let found = seen.get("excerpt").map(|_| texts(&seen).len());
        assert_eq!(found, expected, "{seen}");
        if expected == Some(5) {
            assert_eq!(seen["excerpt"]["has_earlier"], false);
        }
    }
}

#[tokio::test]
async fn an_excerpt_is_bounded_however_long_the_messages_are() {
    let helper = "helper".parse().expect("a name");
    let policies = Policies {
        excerpts: [(helper, 20)].into(),
        ..Policies::default()
    };
    let rig = Rig::on_disk_with(Setup {
        policies: Arc::new(policies),
        ..Setup::default()
    })
    .await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let carol = rig.key_for(&["approver"], Some("carol"), &[]).await;
    for (length, messages) in [(3_000, 4), (200_000, 1)] {
        let session = new_session_of(&ann, "helper").await;
        for _ in 0..4 {
            start(&ann, &session, "other", &"ä".repeat(length / 2)).await;
        }
        start(&ann, &session, "helper", &"ö".repeat(length / 2)).await;
        let request = claim(&helper, "helper").await;
        let hold =
            json!({"kind": "approval", "title": "Pay", "action": {"tool": "pay", "args": {}}});
        let hold = act(&helper, &request, "holds", hold).await.ok(201);
        let seen = carol
            .get(&format!("/v1/holds/{}", text(&hold, "id")))
            .await
            .ok(200);
        let excerpt = seen["excerpt"]["messages"].as_array().expect("a list");
        assert_eq!(excerpt.len(), messages, "{seen}");
        let bytes: usize = texts(&seen).iter().map(|(_, text)| text.len()).sum();
        assert!(bytes <= 8 * 1024, "{bytes}");
        let last = &excerpt[messages - 1];
        assert_eq!(last["text"], "ö".repeat(1_024));
        assert_eq!(
            (&last["is_cut"], &seen["excerpt"]["has_earlier"]),
            (&json!(true), &json!(true))
        );
    }
}

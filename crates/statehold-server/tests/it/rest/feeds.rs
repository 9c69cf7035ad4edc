use serde_json::json;

use super::{act, claim, new_session, new_session_of, start, turn};
use crate::rig::{Rig, text};

#[tokio::test]
async fn a_feed_is_dense_and_resumes_where_it_was() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let session = new_session(&ann).await;
        let path = format!("/v1/sessions/{session}/events");
        let mut live = ann.follow(&path, None).await;
        start(&ann, &session, "helper", "hello").await;
        let claimed = claim(&helper, "helper").await;
        let hidden = json!({"items": [{"kind": "note", "data": "secret"}], "task_state": 1});
        act(&helper, &claimed, "items", hidden).await.ok(200);
        act(&helper, &claimed, "complete", json!({"output": "bye"}))
            .await
            .ok(200);
        let events = live.take(4).await;
        for (event, revision) in events.iter().zip(2_u64..) {
            assert_eq!(event.id, revision.to_string());
            assert_eq!(event.event, "record");
            assert_eq!(event.data["revision"], revision);
            assert_eq!(event.data["session_id"], session.as_str());
            text(&event.data, "at");
            text(&event.data, "command");
        }
        let kinds = |index: usize| -> Vec<String> {
            let events = events[index].data["events"].as_array().expect("a list");
            events.iter().map(|event| text(event, "type")).collect()
        };
        assert!(
            kinds(0).contains(&"items_appended".to_owned()),
            "{:?}",
            kinds(0)
        );
        assert!(
            kinds(2).is_empty(),
            "hidden events are left out: {:?}",
            kinds(2)
        );
        assert!(kinds(3).contains(&"request_ended".to_owned()));

        let ids = |events: Vec<crate::rig::FeedEvent>| -> Vec<String> {
            events.into_iter().map(|event| event.id).collect()
        };
        let mut all = ann.follow(&format!("{path}?after=0"), None).await;
        assert_eq!(ids(all.take(5).await), ["1", "2", "3", "4", "5"]);
        let mut rest = ann.follow(&path, Some("3")).await;
        assert_eq!(ids(rest.take(2).await), ["4", "5"]);
        let mut both = ann.follow(&format!("{path}?after=0"), Some("4")).await;
        assert_eq!(ids(both.take(1).await), ["5"]);
        for bad in ["x", "-1", "", "1.5"] {
            let answer = ann.send("GET", &path, &[("last-event-id", bad)], "").await;
            answer.refused(400, "bad_header");
        }
        ann.get(&format!("{path}?after=x"))
            .await
            .refused(400, "bad_query");
    }
}

#[tokio::test]
async fn the_global_feed_shows_every_own_session_in_order() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
        let helper = rig.worker(&["helper"]).await;
        let operator = rig.key(&["operator"]).await;
        let mut anns = ann.follow("/v1/events", None).await;
        let mut all = operator.follow("/v1/events", None).await;
        let (first, second) = (
            new_session_of(&ann, "helper").await,
            new_session_of(&ann, "helper").await,
        );
        let bobs = new_session_of(&bob, "helper").await;
        turn(&helper, &first, "helper", "a", "b").await;
        turn(&helper, &bobs, "helper", "a", "b").await;
        turn(&helper, &second, "helper", "a", "b").await;
        let seen = anns.take(4).await;
        let sessions: Vec<String> = seen.iter().map(|e| text(&e.data, "session_id")).collect();
        assert_eq!(sessions, [&*first, &*second, &*first, &*second]);
        let seen_by_all = all.take(6).await;
        assert!(
            seen_by_all
                .iter()
                .any(|e| e.data["session_id"] == bobs.as_str())
        );
        let mut again = ann.follow("/v1/events", Some(&seen[1].id)).await;
        let again = again.take(2).await;
        assert_eq!(again[0].data, seen[2].data);
        assert_eq!(again[1].data, seen[3].data);
        for bad in ["x", "0", &seen_by_all[0].id] {
            let headers = [("last-event-id", bad)];
            let answer = ann.send("GET", "/v1/events", &headers, "").await;
            answer.refused(400, "bad_cursor");
        }
        helper.get("/v1/events").await.refused(403, "forbidden");
    }
}

#[tokio::test]
async fn the_global_feed_finds_what_lies_behind_many_commits_of_others() {
    let rig = Rig::in_memory().await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let mut feed = ann.follow("/v1/events", None).await;
    new_session(&ann).await;
    let place = feed.next().await.expect("an event").id;
    drop(feed);
    let path = format!("/v1/sessions/{}/state", new_session(&bob).await);
    for index in 0..1_100 {
        bob.patch(&path, &json!({"set": {"n": index}}))
            .await
            .ok(200);
    }
    let last = new_session(&ann).await;
    // Nothing happens from here on.
    let mut feed = ann.follow("/v1/events", Some(&place)).await;
    let event = feed.next().await.expect("an event");
    assert_eq!(event.data["session_id"], last.as_str());
}

#[tokio::test]
async fn feeds_end_when_the_server_stops() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    let mut one = ann
        .follow(&format!("/v1/sessions/{session}/events"), None)
        .await;
    let mut all = ann.follow("/v1/events", None).await;
    let stopped = tokio::spawn(rig.restart());
    assert!(one.next().await.is_none());
    assert!(all.next().await.is_none());
    let rig = stopped.await.expect("it starts again");
    let ann = crate::rig::Who {
        address: rig.address,
        ..ann
    };
    ann.get(&format!("/v1/sessions/{session}")).await.ok(200);
}

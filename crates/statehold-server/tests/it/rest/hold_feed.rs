//! The feed of holds: each change once, as the hold was then, for those who may see it.

use serde_json::{Value, json};

use super::{act, claim, new_session, start};
use crate::rig::{FeedEvent, Rig, Who, text};

async fn claimed(client: &Who, worker: &Who, agent: &str) -> Value {
    let session = new_session(client).await;
    start(client, &session, agent, "x").await;
    claim(worker, agent).await
}

async fn open(worker: &Who, request: &Value, title: &str, quorum: u8) -> Value {
    let hold = json!({
        "kind": "approval", "title": title, "quorum": quorum,
        "action": {"tool": "pay", "args": {"to": "hidden words"}},
    });
    act(worker, request, "holds", hold).await.ok(201)
}

async fn approve(who: &Who, hold: &Value) {
    let body = json!({"decision": "approve", "digest": hold["action"]["digest"]});
    let path = format!("/v1/holds/{}/decision", text(hold, "id"));
    who.post(&path, &body).await.ok(200);
}

fn told(events: &[FeedEvent]) -> Vec<(String, String, String, usize)> {
    let words = events.iter().map(|event| {
        assert_eq!(event.event, "hold");
        let hold = &event.data["hold"];
        let votes = hold["votes"].as_array().map_or(0, Vec::len);
        let change = text(&event.data, "change");
        (change, text(hold, "title"), text(hold, "status"), votes)
    });
    words.collect()
}

fn change(
    change: &str,
    title: &str,
    status: &str,
    votes: usize,
) -> (String, String, String, usize) {
    (
        change.to_owned(),
        title.to_owned(),
        status.to_owned(),
        votes,
    )
}

#[tokio::test]
async fn every_change_comes_once_and_the_feed_resumes_in_the_middle_of_a_record() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let chief = rig.key_for(&["approver"], Some("chief"), &[]).await;
        let mut live = boss.follow("/v1/holds/events", None).await;
        let request = claimed(&ann, &helper, "helper").await;
        let first = open(&helper, &request, "two", 2).await;
        approve(&boss, &first).await;
        approve(&chief, &first).await;
        for title in ["x", "y", "z"] {
            open(&helper, &request, title, 1).await;
        }
        // One record ends three holds.
        let path = format!("/v1/requests/{}/cancel", text(&request, "id"));
        ann.post(&path, &json!({})).await.ok(200);
        let expected = [
            change("opened", "two", "open", 0),
            change("voted", "two", "open", 1),
            change("decided", "two", "approved", 2),
            change("opened", "x", "open", 0),
            change("opened", "y", "open", 0),
            change("opened", "z", "open", 0),
            change("decided", "x", "cancelled", 0),
            change("decided", "y", "cancelled", 0),
            change("decided", "z", "cancelled", 0),
        ];
        let mut events = live.take(expected.len()).await;
        let mut seen = told(&events);
        // The last vote and the decision may be one change or two.
        seen.dedup_by(|b, a| a.0 == "voted" && b.0 == "voted" && b.1 == a.1);
        while seen.len() < expected.len() {
            let more = live.take(1).await;
            seen.extend(told(&more));
            events.extend(more);
        }
        let mut last_three: Vec<_> = seen.split_off(6);
        last_three.sort();
        assert_eq!(seen, expected[..6]);
        assert_eq!(last_three, expected[6..]);
        // Read again from every place: exactly what came after it.
        for (at, event) in events.iter().enumerate() {
            let rest = &events[at + 1..];
            if rest.is_empty() {
                continue;
            }
            let mut again = boss.follow("/v1/holds/events", Some(&event.id)).await;
            let again = again.take(rest.len()).await;
            let data = |events: &[FeedEvent]| -> Vec<Value> {
                let all = events.iter().map(|event| event.data.clone());
                all.map(without_rights).collect()
            };
            assert_eq!(data(&again), data(rest), "after event {at}");
        }
        for bad in ["x", "", "0"] {
            let headers = [("last-event-id", bad)];
            let answer = boss.send("GET", "/v1/holds/events", &headers, "").await;
            answer.refused(400, "bad_cursor");
        }
        let headers = [("last-event-id", events[0].id.as_str())];
        let answer = chief.send("GET", "/v1/holds/events", &headers, "").await;
        answer.refused(400, "bad_cursor");
    }
}

/// Whoever has decided before is told the same words, whenever they ask.
fn without_rights(mut data: Value) -> Value {
    let hold = data["hold"].as_object_mut().expect("a hold");
    hold.remove("may_decide");
    data
}

#[tokio::test]
async fn a_reader_sees_only_holds_in_reach_and_only_as_much_as_it_may() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
        let helper = rig.worker(&["helper"]).await;
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let far = rig
            .key_of("far", &["approver", "operator"], None, &[])
            .await;
        let mut of_ann = ann.follow("/v1/holds/events", None).await;
        let mut of_boss = boss.follow("/v1/holds/events", None).await;
        let mut of_far = far.follow("/v1/holds/events", None).await;
        let of_bob = claimed(&bob, &helper, "helper").await;
        let anns = claimed(&ann, &helper, "helper").await;
        open(&helper, &of_bob, "bob's", 1).await;
        let own = open(&helper, &anns, "ann's", 1).await;
        approve(&boss, &own).await;
        let seen = of_ann.take(2).await;
        for event in &seen {
            assert_eq!(event.data["hold"]["title"], "ann's");
            for field in ["action", "user", "decide_by", "evidence", "execution_key"] {
                assert!(
                    event.data["hold"].get(field).is_none(),
                    "{field}: {}",
                    event.data
                );
            }
        }
        assert!(!String::from_utf8_lossy(&of_ann.raw).contains("hidden words"));
        let seen = of_boss.take(3).await;
        assert_eq!(seen[0].data["hold"]["title"], "bob's");
        assert_eq!(seen[0].data["hold"]["action"]["args"]["to"], "hidden words");
        assert_eq!(seen[2].data["hold"]["evidence"]["right"], "role:approver");
        let nothing = of_far
            .next_within(std::time::Duration::from_millis(100))
            .await;
        assert!(nothing.is_err(), "{nothing:?}");
        rig.nobody()
            .get("/v1/holds/events")
            .await
            .refused(401, "unauthenticated");
    }
}

#[tokio::test]
async fn the_feed_of_holds_ends_with_the_right_to_read() {
    let rig = Rig::in_memory().await;
    let admin = rig.key(&["admin"]).await;
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let mut feed = boss.follow("/v1/holds/events", None).await;
    let request = claimed(&ann, &helper, "helper").await;
    open(&helper, &request, "before", 1).await;
    assert_eq!(
        told(&feed.take(1).await),
        [change("opened", "before", "open", 0)]
    );
    admin.delete(&format!("/v1/keys/{}", boss.id)).await;
    open(&helper, &request, "after", 1).await;
    assert!(feed.next().await.is_none(), "the feed has ended");
    assert!(!String::from_utf8_lossy(&feed.raw).contains("after"));
}

#[tokio::test]
async fn arguments_with_line_breaks_do_not_break_the_feed() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let mut live = boss.follow("/v1/holds/events", None).await;
    let request = claimed(&ann, &helper, "helper").await;
    let body = format!(
        "{{\"fence\": {}, \"kind\": \"approval\", \"title\": \"Pay?\", \"action\": {{\"tool\": \"pay\",\r\n\
         \"args\": {{\n\n  \"to\": \"a\\nb\"\r\n}}}}}}",
        request["fence"]
    );
    let path = format!("/v1/requests/{}/holds", text(&request, "id"));
    helper.send("POST", &path, &[], body).await.ok(201);
    let event = live.next().await.expect("an event");
    assert_eq!(event.data["hold"]["action"]["args"]["to"], "a\nb");
}

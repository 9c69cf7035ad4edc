//! The words of answers that are being written, on the feed of their session.

mod agents;

use serde_json::{Value, json};
use statehold_core::ids::RequestId;

use super::{act, claim, new_session, start};
use crate::rig::{Feed, FeedEvent, Rig, Who, text, until};

fn id(request: &Value) -> RequestId {
    text(request, "id").parse().expect("an id")
}

fn kinds(event: &FeedEvent) -> Vec<String> {
    let events = event.data["events"].as_array().expect("a list");
    events.iter().map(|event| text(event, "type")).collect()
}

/// What a record says the assistant said.
fn said(event: &FeedEvent) -> Option<String> {
    let events = event.data["events"].as_array()?;
    let mut items = events
        .iter()
        .filter(|event| event["type"] == "items_appended")
        .filter_map(|event| event["items"].as_array())
        .flatten();
    let said = items.find(|item| item["role"] == "assistant")?;
    said["content"].as_str().map(str::to_owned)
}

/// What a reader has of an answer, as the documentation says it is put together.
#[derive(Debug, Default)]
struct Heard(String);

impl Heard {
    #[track_caller]
    fn add(&mut self, delta: &FeedEvent) {
        assert_eq!((delta.event.as_str(), delta.id.as_str()), ("delta", ""));
        let offset = delta.data["offset"].as_u64().expect("a number");
        if offset == 0 {
            self.0.clear();
        }
        assert_eq!(self.0.len() as u64, offset, "{}", delta.data);
        self.0.push_str(&text(&delta.data, "text"));
    }
}

/// Reads to the record that ends a request: what was said until then, and the record.
async fn to_the_end(feed: &mut Feed, request: &Value, before: &str) -> (String, FeedEvent) {
    let mut heard = Heard(before.to_owned());
    loop {
        let event = feed.next().await.expect("the feed goes on");
        if event.event == "delta" {
            if event.data["request_id"] == request["id"] {
                heard.add(&event);
            }
            continue;
        }
        let events = event.data["events"].as_array().expect("a list");
        let is_end =
            |one: &Value| one["type"] == "request_ended" && one["request_id"] == request["id"];
        if events.iter().any(is_end) {
            return (heard.0, event);
        }
    }
}

/// The next event, which is a piece of an answer: where, and what.
async fn delta(feed: &mut Feed) -> (u64, String) {
    let event = feed.next().await.expect("the feed goes on");
    assert_eq!(event.event, "delta", "{}", event.data);
    assert_eq!(event.id, "");
    let offset = event.data["offset"].as_u64().expect("a number");
    (offset, text(&event.data, "text"))
}

/// Ann, her session, and a worker for every agent in it.
struct Scene {
    rig: Rig,
    ann: Who,
    worker: Who,
    session: String,
}

impl Scene {
    async fn on(rig: Rig) -> Self {
        let (ann, worker) = (rig.client("ann").await, rig.worker(&[]).await);
        let session = new_session(&ann).await;
        Self {
            rig,
            ann,
            worker,
            session,
        }
    }

    async fn new() -> Self {
        Self::on(Rig::in_memory().await).await
    }

    fn path(&self) -> String {
        format!("/v1/sessions/{}/events", self.session)
    }

    async fn follow(&self) -> Feed {
        self.ann.follow(&self.path(), None).await
    }

    /// A request that a worker is at.
    async fn asked(&self, agent: &str) -> Value {
        start(&self.ann, &self.session, agent, "hello").await;
        claim(&self.worker, agent).await
    }

    fn write(&self, request: &Value, piece: &str) {
        self.rig.engine.write_draft(id(request), piece);
    }

    async fn complete(&self, request: &Value, output: &str) {
        let done = act(&self.worker, request, "complete", json!({"output": output})).await;
        done.ok(200);
    }

    /// Something that happens beside all requests.
    async fn commit(&self) {
        let path = format!("/v1/sessions/{}/state", self.session);
        let set = json!({"set": {"a": 1}});
        self.ann.patch(&path, &set).await.ok(200);
    }

    async fn drafts_are(&self, count: usize) {
        until("so many drafts are kept", || async {
            (self.rig.engine.drafts_kept() == count).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn deltas_come_while_an_answer_is_written_and_join_to_what_is_recorded() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let scene = Scene::on(rig).await;
        let mut feed = scene.follow().await;
        let mut global = scene.ann.follow("/v1/events", None).await;
        let request = scene.asked("helper").await;
        let _draft = scene.rig.engine.open_draft(id(&request));
        let ids: Vec<String> = feed.take(2).await.into_iter().map(|one| one.id).collect();
        assert_eq!(ids, ["2", "3"]);
        let mut heard = Heard::default();
        for piece in ["Grü", "ße,\r\n\n", "🦀"] {
            scene.write(&request, piece);
            let event = feed.next().await.expect("a piece comes before the end");
            assert_eq!(event.data["request_id"], request["id"]);
            assert_eq!(event.data["task_id"], request["task_id"]);
            assert_eq!(event.data["agent"], "helper");
            assert_eq!(event.data.as_object().map(serde_json::Map::len), Some(5));
            assert_eq!(event.data["text"], piece);
            heard.add(&event);
        }
        // Whoever comes in the middle hears it from the beginning.
        let mut late = scene.follow().await;
        assert_eq!(delta(&mut late).await, (0, heard.0.clone()));
        scene.write(&request, " ann");
        scene.complete(&request, "Grüße,\r\n\n🦀 ann").await;
        for feed in [&mut feed, &mut late] {
            assert_eq!(delta(feed).await, (15, " ann".to_owned()));
            let end = feed.next().await.expect("the record");
            assert_eq!((end.event.as_str(), end.id.as_str()), ("record", "4"));
            assert_eq!(said(&end).as_deref(), Some("Grüße,\r\n\n🦀 ann"));
            assert!(kinds(&end).contains(&"request_ended".to_owned()));
        }
        let page = format!("/v1/sessions/{}/messages", scene.session);
        let page = scene.ann.get(&page).await.ok(200);
        assert_eq!(page["messages"][1]["content"], "Grüße,\r\n\n🦀 ann");
        // Neither records nor the feed of all sessions know of any piece.
        for (event, revision) in global.take(3).await.iter().zip(2_u64..) {
            assert_eq!(event.event, "record");
            assert_eq!(event.data["revision"], revision);
        }
        let mut again = scene.ann.follow(&scene.path(), Some("0")).await;
        let ids: Vec<String> = again.take(4).await.into_iter().map(|one| one.id).collect();
        assert_eq!(ids, ["1", "2", "3", "4"]);
    }
}

#[tokio::test]
async fn the_record_of_the_end_comes_after_every_piece_however_close() {
    let scene = Scene::on(Rig::on_disk().await).await;
    let mut feed = scene.follow().await;
    for turn in 0..40 {
        let request = scene.asked("helper").await;
        scene.drafts_are(1).await;
        let draft = scene.rig.engine.open_draft(id(&request));
        let whole: Vec<String> = (0..turn).map(|word| format!("word{word} ")).collect();
        for piece in &whole {
            scene.write(&request, piece);
        }
        let whole = whole.concat();
        scene.complete(&request, &whole).await;
        drop(draft);
        let (heard, end) = to_the_end(&mut feed, &request, "").await;
        assert_eq!((said(&end), heard), (Some(whole.clone()), whole));
        scene.drafts_are(0).await;
    }
}

#[tokio::test]
async fn a_feed_that_comes_back_misses_no_record_and_hears_an_answer_from_its_beginning() {
    let scene = Scene::new().await;
    let feed = scene.follow().await;
    let request = scene.asked("helper").await;
    let _draft = scene.rig.engine.open_draft(id(&request));
    scene.write(&request, "one ");
    drop(feed);
    let beginnings: [(Option<&str>, &[&str]); 3] = [
        (Some("0"), &["1", "2", "3"]),
        (Some("2"), &["3"]),
        (None, &[]),
    ];
    let mut feeds = Vec::new();
    for (last, missed) in beginnings {
        let mut feed = scene.ann.follow(&scene.path(), last).await;
        // An answer is heard of after the record that began it.
        for revision in missed {
            assert_eq!(feed.next().await.expect("a record").id, *revision);
        }
        assert_eq!(delta(&mut feed).await, (0, "one ".to_owned()));
        feeds.push(feed);
    }
    scene.write(&request, "two");
    scene.complete(&request, "one two").await;
    for mut feed in feeds {
        assert_eq!(delta(&mut feed).await, (4, "two".to_owned()));
        assert_eq!(feed.next().await.expect("the record").id, "4");
    }
}

#[tokio::test]
async fn answers_that_are_written_at_once_are_told_apart() {
    let scene = Scene::new().await;
    let mut feed = scene.follow().await;
    let mut requests = Vec::new();
    for agent in ["tick", "tock", "helper"] {
        let request = scene.asked(agent).await;
        let draft = scene.rig.engine.open_draft(id(&request));
        requests.push((agent, request, draft));
    }
    feed.take(6).await;
    for round in 0..3_u64 {
        for (agent, request, _) in &requests {
            let piece = format!("{agent} {round} ");
            scene.write(request, &piece);
            let event = feed.next().await.expect("a piece");
            assert_eq!(event.data["request_id"], request["id"]);
            assert_eq!(event.data["agent"], *agent);
            assert_eq!(event.data["offset"], round * piece.len() as u64);
            assert_eq!(event.data["text"], piece);
        }
    }
    for (agent, request, _) in &requests {
        let whole = format!("{agent} 0 {agent} 1 {agent} 2 ");
        scene.complete(request, &whole).await;
        let end = feed.next().await.expect("the record");
        assert_eq!(said(&end), Some(whole));
    }
}

#[tokio::test]
async fn more_answers_than_one_reader_follows_come_with_their_records() {
    let scene = Scene::new().await;
    let mut requests = Vec::new();
    for index in 0..20 {
        let request = scene.asked(&format!("agent{index}")).await;
        let draft = scene.rig.engine.open_draft(id(&request));
        scene.write(&request, "hi");
        requests.push((request, draft));
    }
    let mut feed = scene.follow().await;
    for _ in 0..16 {
        assert_eq!(delta(&mut feed).await, (0, "hi".to_owned()));
    }
    // The newest are followed, and one of the others when there is room.
    let (oldest, newest) = (&requests[0].0, &requests[19].0);
    scene.write(oldest, " there");
    scene.complete(newest, "hi").await;
    assert_eq!(
        said(&feed.next().await.expect("the record")).as_deref(),
        Some("hi")
    );
    let next = feed.next().await.expect("a piece");
    assert_eq!(next.data["request_id"], requests[3].0["id"]);
    scene.complete(oldest, "hi there").await;
    let end = feed.next().await.expect("the record");
    assert_eq!(said(&end).as_deref(), Some("hi there"));
}

#[tokio::test]
async fn what_a_child_says_is_not_heard_and_strangers_hear_nothing() {
    let scene = Scene::new().await;
    let mut feed = scene.follow().await;
    let parent = scene.asked("desk").await;
    let body = json!({
        "agent": "expert", "input": "psst", "parent_request_id": parent["id"],
        "parent_fence": parent["fence"], "lease": {"ttl_seconds": 60},
    });
    let path = format!("/v1/sessions/{}/requests", scene.session);
    let child = scene.worker.post(&path, &body).await.ok(201);
    let _drafts = [&parent, &child].map(|one| scene.rig.engine.open_draft(id(one)));
    feed.take(3).await;
    scene.write(&child, "SECRET thoughts");
    scene.write(&parent, "In short: ");
    assert_eq!(delta(&mut feed).await, (0, "In short: ".to_owned()));
    scene.write(&child, " and more");
    scene.complete(&child, "SECRET thoughts and more").await;
    scene.write(&parent, "no.");
    scene.complete(&parent, "In short: no.").await;
    let (heard, end) = to_the_end(&mut feed, &parent, "In short: ").await;
    assert_eq!(heard, "In short: no.");
    assert_eq!(said(&end), Some(heard));
    let raw = String::from_utf8_lossy(&feed.raw).into_owned();
    assert!(
        !raw.contains("SECRET") && !raw.contains("and more"),
        "{raw}"
    );

    let bob = scene.rig.client("bob").await;
    bob.get(&scene.path()).await.refused(404, "not_found");
    let approver = scene.rig.key(&["approver"]).await;
    approver.get(&scene.path()).await.refused(403, "forbidden");
}

#[tokio::test]
async fn an_answer_that_is_written_anew_begins_again() {
    let scene = Scene::new().await;
    let request = scene.asked("helper").await;
    let first = scene.rig.engine.open_draft(id(&request));
    let mut feed = scene.follow().await;
    scene.write(&request, "It is sweet");
    assert_eq!(delta(&mut feed).await, (0, "It is sweet".to_owned()));
    drop(first);
    // The same words again are no news, until they go on or go another way.
    let second = scene.rig.engine.open_draft(id(&request));
    for piece in ["It is ", "sweet", ", I think"] {
        scene.write(&request, piece);
    }
    assert_eq!(delta(&mut feed).await, (11, ", I think".to_owned()));
    drop(second);
    let _third = scene.rig.engine.open_draft(id(&request));
    scene.write(&request, "It is sour");
    assert_eq!(delta(&mut feed).await, (0, "It is sour".to_owned()));
    scene.complete(&request, "It is sour").await;
    let end = feed.next().await.expect("the record");
    assert_eq!(said(&end).as_deref(), Some("It is sour"));
}

#[tokio::test]
async fn a_place_in_a_draft_goes_with_its_reader_its_request_and_the_right_to_read() {
    let scene = Scene::new().await;
    // One that has ended is not followed, however early the feed begins.
    let request = scene.asked("helper").await;
    scene.complete(&request, "hi").await;
    let mut feed = scene.ann.follow(&scene.path(), Some("0")).await;
    feed.take(4).await;
    scene.drafts_are(0).await;

    // One that ends while it is followed, whoever ends it.
    for end in ["complete", "cancel"] {
        let request = scene.asked("helper").await;
        scene.drafts_are(1).await;
        if end == "complete" {
            scene.complete(&request, "hi").await;
        } else {
            let path = format!("/v1/requests/{}/cancel", text(&request, "id"));
            scene.ann.post(&path, &json!({})).await.ok(200);
        }
        to_the_end(&mut feed, &request, "").await;
        scene.drafts_are(0).await;
    }

    // A reader that hangs up, in the middle of an answer.
    let request = scene.asked("helper").await;
    feed.take(2).await;
    scene.write(&request, "so");
    assert_eq!(delta(&mut feed).await.1, "so");
    drop(feed);
    until("nobody follows", || async {
        // So that the server sees that the reader has gone.
        scene.commit().await;
        (scene.rig.engine.drafts_kept() == 0).then_some(())
    })
    .await;

    // One whose key is revoked.
    let twin = scene.rig.client("ann").await;
    let mut feed = twin.follow(&scene.path(), None).await;
    scene.drafts_are(1).await;
    let admin = scene.rig.key(&["admin"]).await;
    admin.delete(&format!("/v1/keys/{}", twin.id)).await.ok(204);
    scene.write(&request, "secret");
    assert!(feed.next().await.is_none());
    scene.drafts_are(0).await;

    // One whose session is deleted.
    let mut feed = scene.follow().await;
    scene.drafts_are(1).await;
    let path = format!("/v1/sessions/{}", scene.session);
    scene.ann.delete(&path).await.ok(204);
    assert!(feed.next().await.is_none());
    scene.drafts_are(0).await;
}

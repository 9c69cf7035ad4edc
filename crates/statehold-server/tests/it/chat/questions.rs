//! Which call answers a question, and which is only made again.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Scene, content, finished, refused, setup, words};
use crate::rig::{Answer, Rig, Setup, text, until};

impl Scene {
    fn say_with_key(&self, said: &str, key: &str) -> JoinHandle<Answer> {
        self.send(words("helper", said), &[("idempotency-key", key)])
    }

    async fn question(&self, request: &Value, title: &str) -> Value {
        let question = json!({"kind": "question", "title": title});
        self.ask(request, question).await
    }

    async fn is_open(&self, hold: &Value) -> bool {
        let path = format!("/v1/holds/{}", text(hold, "id"));
        self.ann.get(&path).await.ok(200)["status"] == "open"
    }

    pub(super) async fn until_answered(&self, hold: &Value) {
        until("it is answered", || async {
            (!self.is_open(hold).await).then_some(())
        })
        .await;
    }
}

/// Makes a call and goes away.
async fn given_up(call: JoinHandle<Answer>) {
    call.abort();
    drop(call.await);
}

#[tokio::test]
async fn a_call_that_is_made_again_answers_no_question_that_it_never_saw() {
    let scene = Scene::new().await;
    let call = scene.say("go");
    let request = scene.claim().await;
    let first = scene.question(&request, "Sure?").await;
    finished(call).await.ok(200);
    let call = scene.say("yes");
    scene.until_answered(&first).await;
    given_up(call).await;

    // The answer was lost on its way, and another question is open: it is not answered unseen.
    let next = scene.question(&request, "Really?").await;
    let body = finished(scene.say("yes")).await.ok(200);
    assert_eq!(body["statehold"]["holds"][0]["id"], next["id"]);
    assert!(scene.is_open(&next).await);
    assert_eq!(scene.turns().await, 1);
    let call = scene.say("yes");
    scene.until_answered(&next).await;
    // An answer that is sent again is no new turn.
    let mut again = scene.stream("yes").await;
    scene.complete(&request, "Done.").await;
    assert_eq!(content(&finished(call).await), "Done.");
    assert_eq!(again.rest().await.0, "Done.");
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn what_a_turn_began_with_is_no_answer_to_its_question_unless_it_is_a_choice() {
    let scene = Scene::new().await;
    let call = scene.say("yes");
    let request = scene.claim().await;
    let open = scene.question(&request, "Sure?").await;
    finished(call).await.ok(200);
    // However often a client that comes back says it.
    for _ in 0..2 {
        let body = finished(scene.say("yes")).await.ok(200);
        assert_eq!(body["statehold"]["holds"][0]["id"], open["id"]);
        assert!(scene.is_open(&open).await);
    }
    assert_eq!(scene.turns().await, 1);
    let call = scene.say("I am");
    scene.until_answered(&open).await;
    given_up(call).await;

    let choice = json!({
        "kind": "question", "title": "Really?", "response_schema": {"enum": ["yes", "no"]},
    });
    let choice = scene.ask(&request, choice).await;
    // Told of it first, then taken at its word.
    let body = finished(scene.say("yes")).await.ok(200);
    assert_eq!(body["statehold"]["holds"][0]["id"], choice["id"]);
    let call = scene.say("yes");
    scene.until_answered(&choice).await;
    scene.complete(&request, "Done.").await;
    assert_eq!(content(&finished(call).await), "Done.");
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn a_call_with_the_same_key_answers_no_question_that_came_up_since() {
    let scene = Scene::new().await;
    // It began a turn, which has asked since.
    let call = scene.say_with_key("hello", "one");
    let request = scene.claim().await;
    given_up(call).await;
    let first = scene.question(&request, "Which?").await;
    for _ in 0..2 {
        let answer = finished(scene.say_with_key("hello", "one")).await;
        assert_eq!(answer.ok(200)["statehold"]["status"], "paused");
        assert!(scene.is_open(&first).await);
    }

    // It answered a question, and the turn has asked another since.
    let call = scene.say_with_key("this", "two");
    scene.until_answered(&first).await;
    given_up(call).await;
    let second = scene.question(&request, "And then?").await;
    for _ in 0..2 {
        let answer = finished(scene.say_with_key("this", "two")).await;
        let body = answer.ok(200);
        assert_eq!(body["statehold"]["holds"][0]["id"], second["id"]);
        assert_eq!(answer.header("idempotency-replayed"), Some("true"));
        assert!(scene.is_open(&second).await);
    }
    let other = finished(scene.say_with_key("that", "two")).await;
    refused(&other, 422, "key_reused");
    assert!(scene.is_open(&second).await);

    // A key that is new answers, also in the words of the answer before.
    let call = scene.say_with_key("this", "three");
    scene.until_answered(&second).await;
    scene.complete(&request, "Done.").await;
    assert_eq!(content(&finished(call).await), "Done.");
    assert_eq!(scene.turns().await, 1);

    // The turn of another call asks: a call that was answered long ago gets its own answer.
    let call = scene.say("another");
    let asking = scene.claim().await;
    let third = scene.question(&asking, "What?").await;
    finished(call).await.ok(200);
    for (said, key) in [("hello", "one"), ("this", "two")] {
        let answer = finished(scene.say_with_key(said, key)).await;
        assert_eq!(content(&answer), "Done.");
        assert!(scene.is_open(&third).await);
    }
    assert_eq!(scene.turns().await, 2);
}

#[tokio::test]
async fn who_lets_people_decide_elsewhere_answers_no_question_with_a_message() {
    let scene = Scene::new().await;
    let own = |said: &str| {
        let mut body = words("helper", said);
        body["statehold"] = json!({"holds": "own"});
        scene.send(body, &[])
    };
    let call = own("weather?");
    let asking = scene.claim().await;
    let hold = scene.question(&asking, "Which Springfield?").await;
    finished(call).await.ok(200);
    // Another matter, while nobody there waits for the answer any more.
    let call = own("Delete user 5");
    let other = scene.claim().await;
    assert_ne!(other["id"], asking["id"]);
    scene.complete(&other, "No.").await;
    assert_eq!(content(&finished(call).await), "No.");
    assert!(scene.is_open(&hold).await);
}

/// On a server whose clock can be moved.
async fn scene_with_clock() -> Scene {
    let mut timed = setup();
    timed.server.clock = Setup::with_clock(0).server.clock;
    Scene::begin(Rig::on_disk_with(timed).await).await
}

impl Scene {
    /// Moves the clock beyond the time for which keys are known.
    async fn next_day(&self) {
        let admin = self.rig.key(&["admin"]).await;
        let day = json!({"step_seconds": 86_401});
        admin.post("/v1/dev/clock", &day).await.ok(200);
    }
}

#[tokio::test]
async fn a_call_that_is_made_again_for_days_is_one_turn() {
    let scene = scene_with_clock().await;
    let call = scene.say_with_key("delete it", "one");
    let request = scene.claim().await;
    let hold = scene.ask_approval(&request).await;
    finished(call).await.ok(200);
    for _ in 0..3 {
        scene.next_day().await;
        let answer = finished(scene.say_with_key("delete it", "one")).await;
        let body = answer.ok(200);
        assert_eq!(body["statehold"]["holds"][0]["id"], hold["id"]);
        assert_eq!(scene.turns().await, 1);
    }

    // Nor is the answer lost, if it comes while nobody asks.
    scene.approve(&hold).await;
    let request = scene.claim().await;
    scene.complete(&request, "Deleted.").await;
    let answer = finished(scene.say_with_key("delete it", "one")).await;
    assert_eq!(content(&answer), "Deleted.");
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    assert_eq!(scene.turns().await, 1);

    // It was told: said once more under a key, it is said anew.
    let call = scene.say_with_key("delete it", "two");
    let request = scene.claim().await;
    scene.complete(&request, "Deleted again.").await;
    assert_eq!(content(&finished(call).await), "Deleted again.");
    assert_eq!(scene.turns().await, 2);
}

#[tokio::test]
async fn a_call_that_is_made_again_for_days_answers_no_question_of_its_own_turn() {
    let scene = scene_with_clock().await;
    let call = scene.say_with_key("book a room", "one");
    let request = scene.claim().await;
    let first = scene.question(&request, "Which?").await;
    finished(call).await.ok(200);
    scene.next_day().await;
    let body = finished(scene.say_with_key("book a room", "one"))
        .await
        .ok(200);
    assert_eq!(body["statehold"]["holds"][0]["id"], first["id"]);
    assert!(scene.is_open(&first).await);

    // The words of an answer count from when they were said, not from when the turn began.
    let call = scene.say_with_key("the blue one", "two");
    scene.until_answered(&first).await;
    let request = scene.claim().await;
    given_up(call).await;
    let other = scene.say_with_key("the blue one", "three");
    let another = scene.claim().await;
    scene.complete(&another, "It is blue.").await;
    assert_eq!(content(&finished(other).await), "It is blue.");
    assert_eq!(scene.turns().await, 2);
    scene.next_day().await;
    let again = scene.say_with_key("the blue one", "two");
    let retaken = scene.claim().await;
    assert_eq!(retaken["id"], request["id"]);
    scene.complete(&retaken, "Booked.").await;
    assert_eq!(content(&finished(again).await), "Booked.");
    assert_eq!(scene.turns().await, 2);
}

//! Calls that name a session which has expired: for its own user they begin a fresh one.

use serde_json::{Value, json};

use super::{COMPLETIONS, Scene, book, content, finished, refused, words};
use crate::rest::claim;
use crate::rig::{Answer, Rig, Setup, Who, text, until};

/// A scene whose session lives for a minute, with an app of its own.
async fn scene() -> Scene {
    let mut setup = Setup::with_clock(0);
    setup.server.agents = book().into();
    let mut scene = Scene::begin(Rig::on_disk_with(setup).await).await;
    scene.session = mortal(&scene.ann).await;
    scene
}

async fn mortal(who: &Who) -> String {
    let made = json!({"app": "demo", "agent": "helper", "ttl_seconds": 60});
    text(&who.post("/v1/sessions", &made).await.ok(201), "id")
}

async fn step(scene: &Scene, seconds: u64) {
    let admin = scene.rig.key(&["admin"]).await;
    let body = json!({ "step_seconds": seconds });
    admin.post("/v1/dev/clock", &body).await.ok(200);
}

/// A turn in the session that the header names. Returns the answer.
async fn turn(scene: &Scene, body: Value) -> Answer {
    let call = scene.send(body, &[]);
    let request = claim(&scene.helper, "helper").await;
    scene.complete(&request, "ok").await;
    finished(call).await
}

fn session_of(answer: &Answer) -> &str {
    answer.header("x-statehold-session").expect("a session")
}

#[tokio::test]
async fn an_expired_session_is_replaced_for_its_own_user() {
    let scene = scene().await;
    turn(&scene, words("helper", "hello")).await.ok(200);
    step(&scene, 61).await;
    let answer = turn(&scene, words("helper", "and now?")).await;
    let body = answer.ok(200);
    let fresh = session_of(&answer).to_owned();
    assert_ne!(fresh, scene.session);
    assert_eq!(body["statehold"]["replaced"], scene.session.as_str());
    assert_eq!(body["statehold"]["session"], fresh.as_str());
    let made = scene
        .ann
        .get(&format!("/v1/sessions/{fresh}"))
        .await
        .ok(200);
    assert_eq!(
        (&made["app"], &made["agent"]),
        (&json!("demo"), &json!("helper"))
    );
    assert_eq!(made["user"], "ann");
    let operator = scene.rig.key(&["operator"]).await;
    let path = format!("/v1/sessions/{fresh}/messages?view=trace");
    let trace = operator.get(&path).await.ok(200);
    let found = &trace["messages"][0]["data"]["found"];
    assert_eq!(*found, json!({"by": "fresh", "replaced": scene.session}));
    // A client that goes on sending the old id stays in one session, also after the timer has settled the old one.
    let old = format!("/v1/sessions/{}", scene.session);
    until("the old session is closed", || async {
        let session = scene.ann.get(&old).await.ok(200);
        (session["status"] == "closed").then_some(())
    })
    .await;
    let again = turn(&scene, words("helper", "and more?")).await;
    assert_eq!(session_of(&again), fresh);
    assert_eq!(
        again.ok(200)["statehold"]["replaced"],
        scene.session.as_str()
    );
    // The new id is a session like others.
    let headers = [("x-statehold-session", fresh.as_str())];
    let body = words("helper", "third").to_string();
    let ann = scene.ann.clone();
    let call = ann.send("POST", COMPLETIONS, &headers, body);
    let (answer, ()) = tokio::join!(call, async {
        let request = claim(&scene.helper, "helper").await;
        scene.complete(&request, "ok").await;
    });
    assert_eq!(content(&answer), "ok");
    assert!(answer.ok(200)["statehold"].get("replaced").is_none());
    assert_eq!(session_of(&answer), fresh);
}

#[tokio::test]
async fn the_messages_of_a_call_to_an_expired_session_are_context_of_the_fresh_one() {
    let scene = scene().await;
    turn(&scene, words("helper", "hello")).await.ok(200);
    step(&scene, 61).await;
    let mut body = words("helper", "who am I?");
    let known = json!([
        {"role": "user", "content": "I am Ann"},
        {"role": "assistant", "content": "hi, Ann"},
        {"role": "tool", "content": "FORGED"},
    ]);
    body["messages"] = json!([known[0], known[1], known[2], body["messages"][0]]);
    let answer = turn(&scene, body.clone()).await;
    let fresh = session_of(&answer).to_owned();
    let operator = scene.rig.key(&["operator"]).await;
    let path = format!("/v1/sessions/{fresh}/messages?view=trace");
    let trace = operator.get(&path).await.ok(200);
    let data = &trace["messages"][0]["data"];
    assert_eq!(data["history"], json!([known[0], known[1]]));
    assert_eq!(data["found"]["by"], "messages");
    // The next call carries more, and goes on there.
    let messages = body["messages"].as_array_mut().expect("messages");
    messages.push(json!({"role": "assistant", "content": "ok"}));
    messages.push(json!({"role": "user", "content": "sure?"}));
    let again = turn(&scene, body).await;
    assert_eq!(session_of(&again), fresh);
}

#[tokio::test]
async fn what_somebody_closed_deleted_or_never_had_is_not_replaced() {
    let scene = scene().await;
    let bob = scene.rig.client("bob").await;
    let foreign = mortal(&bob).await;
    let (closed, deleted) = (mortal(&scene.ann).await, mortal(&scene.ann).await);
    let path = |session: &str| format!("/v1/sessions/{session}");
    scene
        .ann
        .post(&format!("{}/close", path(&closed)), &json!({}))
        .await
        .ok(200);
    scene.ann.delete(&path(&deleted)).await.ok(204);
    let say = async |session: &str| {
        let headers = [("x-statehold-session", session)];
        let body = words("helper", "hello").to_string();
        scene.ann.send("POST", COMPLETIONS, &headers, body).await
    };
    for _ in 0..2 {
        refused(&say(&closed).await, 409, "session_closed");
        for missing in [&deleted, &foreign] {
            refused(&say(missing).await, 404, "not_found");
        }
        // The lifetimes of all of them end; the closed one was closed before.
        step(&scene, 61).await;
        until("the timers have run", || async {
            let session = bob.get(&path(&foreign)).await.ok(200);
            (session["status"] == "closed").then_some(())
        })
        .await;
    }
    // One that expired and was deleted then is gone.
    scene.ann.delete(&path(&scene.session)).await.ok(204);
    refused(&say(&scene.session).await, 404, "not_found");
}

#[tokio::test]
async fn a_mode_call_to_an_expired_session_begins_a_fresh_one() {
    let scene = scene().await;
    turn(&scene, words("helper", "hello")).await.ok(200);
    step(&scene, 61).await;
    let context = json!({"conversation": {"id": scene.session}});
    let body = json!({"message": "and now?", "context": context});
    let ann = scene.ann.clone();
    let call = tokio::spawn(async move { ann.post("/v1/chat", &body).await });
    let request = claim(&scene.helper, "helper").await;
    scene.complete(&request, "ok").await;
    let answer = finished(call).await.ok(200);
    assert_eq!(answer["replaced"], scene.session.as_str());
    assert_ne!(answer["session_id"], scene.session.as_str());
}

#[tokio::test]
async fn the_session_in_place_of_an_expired_one_may_expire_too() {
    let mut scene = scene().await;
    turn(&scene, words("helper", "hello")).await.ok(200);
    step(&scene, 61).await;
    let first = turn(&scene, words("helper", "one")).await;
    let first = session_of(&first).to_owned();
    let ttl = json!({"ttl_seconds": 60});
    scene
        .ann
        .patch(&format!("/v1/sessions/{first}"), &ttl)
        .await
        .ok(200);
    step(&scene, 61).await;
    let second = turn(&scene, words("helper", "two")).await;
    let second = session_of(&second).to_owned();
    assert!(second != first && second != scene.session);
    // The same by either id.
    let third = turn(&scene, words("helper", "three")).await;
    assert_eq!(session_of(&third), second);
    scene.session = first;
    let fourth = turn(&scene, words("helper", "four")).await;
    assert_eq!(session_of(&fourth), second);
}

//! Long answers that many calls wait for.

use serde_json::json;
use statehold_server::ServerOptions;

use super::{Scene, book, content, finished, words};
use crate::rig::{Rig, Setup, until};

const LENGTH: usize = 300_000;

/// One key has the memory of one such answer at a time, and of another while it is sent.
fn setup() -> Setup {
    Setup {
        server: ServerOptions {
            agents: book().into(),
            answer_bytes_max: 4 * 1024 * 1024,
            ..ServerOptions::default()
        },
        ..Setup::default()
    }
}

#[tokio::test]
async fn repeats_of_a_chat_call_take_the_memory_for_answers_in_turn() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let key = [("idempotency-key", "again")];
    let calls: Vec<_> = (0..12)
        .map(|_| scene.send(words("helper", "a long story, please"), &key))
        .collect();
    let request = scene.claim().await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(
            scene
                .stream_with(words("helper", "a long story, please"), &key)
                .await,
        );
    }
    let open = || {
        let open = &scene.rig.connections;
        open.load(std::sync::atomic::Ordering::Relaxed)
    };
    until("they all wait", || async { (open() >= 16).then_some(()) }).await;
    let story = "é\n".repeat(LENGTH / 3);
    scene.complete(&request, &story).await;
    let calls = async {
        for call in calls {
            assert_eq!(content(&finished(call).await), story);
        }
    };
    let streams = async {
        for mut stream in streams {
            let (text, last) = stream.rest().await;
            assert_eq!(text, story);
            assert_eq!(last["choices"][0]["finish_reason"], "stop");
        }
    };
    tokio::join!(calls, streams);
    assert_eq!(scene.turns().await, 1);

    // A client that attaches to the turn when it has ended gets it in the same way.
    let late = scene.send(words("helper", "a long story, please"), &key);
    assert_eq!(content(&finished(late).await), story);
}

#[tokio::test]
async fn long_answers_of_earlier_turns_come_before_the_next_one() {
    let scene = Scene::begin(Rig::with(setup()).await).await;
    let mut paused = Vec::new();
    for n in 0..4 {
        let call = scene.say(&format!("pay {n}"));
        let request = scene.claim().await;
        let hold = scene.ask_approval(&request).await;
        finished(call).await.ok(200);
        paused.push((request, hold));
    }
    let mut stories = Vec::new();
    for (n, (request, hold)) in paused.iter().enumerate() {
        scene.approve(hold).await;
        let request = scene.claim_again(request).await;
        let story = format!("{n}").repeat(LENGTH);
        scene.complete(&request, &story).await;
        stories.push(story);
    }
    // Three of them fit, and the others come with the call after that.
    for earlier in [&stories[..3], &stories[3..]] {
        let call = scene.send(
            json!({"model": "helper", "messages": [{"role": "user", "content": format!("so? {}", earlier.len())}]}),
            &[],
        );
        let request = scene.claim().await;
        scene.complete(&request, "so").await;
        let answer = finished(call).await;
        let told: Vec<&str> = earlier.iter().map(String::as_str).collect();
        assert!(content(&answer) == format!("{}\n\nso", told.join("\n\n")));
    }
}

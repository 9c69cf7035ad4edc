//! Streams: pieces as they are written, and the end only after the commit.

use serde_json::{Value, json};
use statehold_core::ids::RequestId;
use statehold_server::ServerOptions;

use super::{ChatStream, Event, Scene, refused, setup, words};
use crate::rig::{Rig, Setup, text};

fn id(request: &Value) -> RequestId {
    text(request, "id").parse().expect("an id")
}

#[tokio::test]
async fn pieces_come_as_they_are_written_and_the_end_after_the_commit() {
    let scene = Scene::new().await;
    let mut stream = scene.stream("hello").await;
    let request = scene.claim().await;
    for (name, field) in [
        ("session", "session_id"),
        ("task", "task_id"),
        ("request", "id"),
    ] {
        let header = stream.header(&format!("x-statehold-{name}"));
        assert_eq!(header, text(&request, field));
    }
    let first = stream.chunk().await;
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(first["choices"][0]["finish_reason"], Value::Null);
    assert!(first.get("usage").is_none());
    let _draft = scene.rig.engine.open_draft(id(&request));
    for piece in ["Grü", "ße, 🦀", " ann"] {
        scene.rig.engine.write_draft(id(&request), piece);
        assert_eq!(stream.text().await, piece);
    }
    // Whoever comes later hears it from the beginning.
    let mut late = scene.stream("hello").await;
    assert_eq!(late.text().await, "Grüße, 🦀 ann");
    scene.complete(&request, "Grüße, 🦀 ann, and bob").await;
    for stream in [&mut stream, &mut late] {
        let (text, last) = stream.rest().await;
        assert_eq!(text, ", and bob");
        assert_eq!(last["choices"][0]["finish_reason"], "stop");
        assert_eq!(last["statehold"]["status"], "completed");
        assert_eq!(last["metadata"]["statehold_session"], scene.session);
    }
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn a_worker_that_writes_no_draft_is_streamed_too() {
    let scene = Scene::new().await;
    let mut body = words("helper", "hello");
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = scene.stream_with(body, &[]).await;
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    let first = stream.chunk().await;
    assert_eq!(first["usage"], Value::Null);
    assert!(first.get("usage").is_some());
    assert_eq!(stream.text().await, "hi");
    let last = stream.chunk().await;
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    let usage = stream.chunk().await;
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], 0);
    assert_eq!(stream.next().await, Event::Done);
    assert_eq!(stream.next().await, Event::End);
}

#[tokio::test]
async fn what_is_committed_counts_whatever_the_draft_said() {
    let scene = Scene::new().await;
    for (draft, committed, rest) in [
        ("I think", "No.", "\n\nNo."),
        ("I think", "I think", ""),
        ("I think", "", ""),
        ("", "Just so.", "Just so."),
    ] {
        let mut stream = scene.stream(&format!("say {committed}")).await;
        let request = scene.claim().await;
        let _open = scene.rig.engine.open_draft(id(&request));
        scene.rig.engine.write_draft(id(&request), draft);
        if !draft.is_empty() {
            assert_eq!(stream.text().await, draft);
        }
        scene.complete(&request, committed).await;
        assert_eq!(stream.rest().await.0, rest);
    }
}

#[tokio::test]
async fn an_answer_longer_than_any_draft_comes_whole() {
    let scene = Scene::new().await;
    let mut stream = scene.stream("tell me everything").await;
    let request = scene.claim().await;
    let piece = "0123456789abcdeü".repeat(4_096);
    let mut whole = String::new();
    let _draft = scene.rig.engine.open_draft(id(&request));
    while whole.len() < 3 * 1024 * 1024 {
        scene.rig.engine.write_draft(id(&request), &piece);
        whole.push_str(&piece);
    }
    scene.complete(&request, &whole).await;
    let (text, _) = stream.rest().await;
    assert!(text == whole, "{} of {} bytes", text.len(), whole.len());
}

#[tokio::test]
async fn a_server_that_stops_says_so_and_loses_nothing() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let mut stream = scene.stream("hello").await;
    let request = scene.claim().await;
    let _draft = scene.rig.engine.open_draft(id(&request));
    scene.rig.engine.write_draft(id(&request), "hi, ");
    assert_eq!(stream.text().await, "hi, ");
    let waiting = scene.say("hello");
    scene.rig.engine.begin_stop();
    let end = stream.chunk().await;
    assert_eq!(end["error"]["code"], "stopping", "{end}");
    assert_eq!(stream.next().await, Event::End, "an end that is no end");
    let answer = super::finished(waiting).await;
    refused(&answer, 503, "stopping");

    let scene = scene.restarted().await;
    // The turn goes on: whoever asks again hears of it.
    let mut stream = scene.stream("hello").await;
    scene.complete(&request, "hi, ann").await;
    assert_eq!(stream.rest().await.0, "hi, ann");
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn a_stream_ends_with_the_key_and_a_failed_turn_with_an_error() {
    let scene = Scene::new().await;
    let mut stream = scene.stream("hello").await;
    stream.chunk().await;
    let admin = scene.rig.key(&["admin"]).await;
    admin
        .delete(&format!("/v1/keys/{}", scene.ann.id))
        .await
        .ok(204);
    let end = stream.chunk().await;
    assert_eq!(end["error"]["code"], "unauthenticated", "{end}");
    assert_eq!(stream.next().await, Event::End);

    let scene = Scene::new().await;
    let mut stream = scene.stream("hello").await;
    let request = scene.claim().await;
    stream.chunk().await;
    let error = json!({"code": "agent_timeout", "message": "as bob at 10.0.0.7"});
    crate::rest::act(&scene.helper, &request, "fail", json!({"error": error}))
        .await
        .ok(200);
    let end = stream.chunk().await;
    assert_eq!(end["error"]["code"], "agent_timeout", "{end}");
    assert!(!end.to_string().contains("10.0.0.7"), "{end}");
    assert_eq!(stream.next().await, Event::End);
}

#[tokio::test]
async fn streams_are_bounded_and_a_refused_one_begins_nothing() {
    let rig = Rig::with(Setup {
        server: ServerOptions {
            streams_max: 1,
            ..setup().server
        },
        ..Setup::default()
    });
    let scene = Scene::begin(rig.await).await;
    let mut stream = scene.stream("hello").await;
    let mut body = words("helper", "bye");
    body["stream"] = true.into();
    refused(
        &super::finished(scene.send(body.clone(), &[])).await,
        429,
        "too_many",
    );
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    stream.rest().await;
    drop(stream);
    assert_eq!(scene.turns().await, 1);
    let headers = [("x-statehold-session", scene.session.as_str())];
    let mut again = crate::rig::until("a place for another stream", || async {
        let sent = scene.ann.begin(
            "POST",
            super::COMPLETIONS,
            &headers,
            body.to_string().into(),
        );
        let response = sent.await.expect("an answer");
        (response.status() == 200).then(|| ChatStream::read(response))
    })
    .await;
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    assert_eq!(again.rest().await.0, "hi");
}

#[tokio::test]
async fn one_key_takes_a_part_of_the_streams_and_long_waits_count_too() {
    let with_eight = |keys_required| Setup {
        server: ServerOptions {
            streams_max: 8,
            keys_required,
            ..setup().server
        },
        ..Setup::default()
    };
    let scene = Scene::begin(Rig::with(with_eight(true)).await).await;
    let stream = scene.stream("one").await;
    let waiting = scene.send(words("helper", "two"), &[("x-statehold-wait", "61")]);
    for _ in 0..2 {
        scene.claim().await;
    }
    let mut body = words("helper", "three");
    body["stream"] = true.into();
    let answer = super::finished(scene.send(body, &[])).await;
    let error = refused(&answer, 429, "too_many");
    assert!(error["message"].to_string().contains("one key"), "{error}");
    let long = [("x-statehold-wait", "61")];
    let answer = super::finished(scene.send(words("helper", "three"), &long)).await;
    refused(&answer, 429, "too_many");
    assert_eq!(scene.turns().await, 2);
    // Others have theirs, and so has whoever does not stay.
    let bob = scene.rig.client("bob").await;
    let mut body = words("helper", "hello");
    body["stream"] = true.into();
    drop(ChatStream::open(&bob, &body, &[]).await);
    scene.claim().await;
    let short = [("x-statehold-wait", "60")];
    let call = scene.send(words("helper", "three"), &short);
    let request = scene.claim().await;
    scene.complete(&request, "ok").await;
    super::finished(call).await.ok(200);
    // Whoever goes away makes room.
    drop(stream);
    waiting.abort();
    drop(waiting.await);
    let headers = [("x-statehold-session", scene.session.as_str())];
    crate::rig::until("there is room again", || async {
        let sent = scene.ann.begin(
            "POST",
            super::COMPLETIONS,
            &headers,
            body.to_string().into(),
        );
        let response = sent.await.expect("an answer");
        (response.status() == 200).then_some(())
    })
    .await;

    // The developer is alone.
    let rig = Rig::with(with_eight(false)).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(ChatStream::open(&rig.nobody(), &body, &[]).await);
    }
}

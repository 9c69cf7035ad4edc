//! The feed of a session: the words of an answer have their place among the records.

use serde_json::Value;
use statehold_core::command::Command;
use statehold_core::ids::RequestId;
use statehold_engine::PageLimit;
use statehold_engine::api::feed::{Feed, FeedPosition, session};

use crate::rig::{Rig, request_of};

/// What a feed has, in short.
async fn read(feed: &mut Feed, limit: usize) -> Vec<String> {
    let news = feed
        .read(PageLimit::entries(limit))
        .await
        .expect("it may be read");
    let told = news.into_iter().map(|event| match event.position {
        Some(FeedPosition::Revision(revision)) => format!("{} {revision}", event.kind),
        other => {
            assert_eq!((event.kind, other), ("delta", None));
            let delta: Value = serde_json::from_slice(&event.data).expect("JSON");
            let text = delta["text"].as_str().expect("a text");
            format!("{} {text}", delta["offset"])
        }
    });
    told.collect()
}

async fn start(rig: &Rig) -> RequestId {
    let started = rig.start(Some(60_000)).await.expect("it begins");
    request_of(&started)
}

async fn cancel(rig: &Rig, request: RequestId) {
    let cancel = Command::CancelRequest { request };
    rig.send(&cancel).await.expect("it is cancelled");
}

#[tokio::test]
async fn words_come_after_the_record_that_began_their_request_and_before_the_one_that_ended_it() {
    let rig = Rig::new(None).await;
    let follow = async |after| {
        let feed = session(&rig.engine, &rig.caller, rig.session, Some(after));
        feed.await.expect("it may be read")
    };
    let mut feed = follow(0).await;
    assert_eq!(read(&mut feed, 10).await, ["record 1"]);
    let request = start(&rig).await;
    let draft = rig.engine.open_draft(request);
    rig.engine.write_draft(request, "one ");
    assert_eq!(read(&mut feed, 10).await, ["record 2", "0 one "]);
    let mut slow = follow(0).await;
    assert_eq!(read(&mut slow, 1).await, ["record 1"]);
    rig.engine.write_draft(request, "two ");
    assert_eq!(read(&mut slow, 1).await, ["record 2", "0 one two "]);
    assert_eq!(read(&mut feed, 10).await, ["4 two "]);

    rig.engine.write_draft(request, "three");
    cancel(&rig, request).await;
    drop(draft);
    let next = start(&rig).await;
    let _draft = rig.engine.open_draft(next);
    rig.engine.write_draft(next, "anew");
    let rest = ["8 three", "record 3", "record 4", "0 anew"];
    assert_eq!(read(&mut feed, 10).await, rest);
    assert_eq!(read(&mut slow, 1).await, rest[..2]);
    assert_eq!(read(&mut slow, 1).await, rest[2..]);
    assert!(read(&mut slow, 1).await.is_empty());
    rig.engine.shut_down().await;
}

#[tokio::test]
async fn a_feed_keeps_no_draft_of_what_has_ended_and_none_when_it_is_gone() {
    let rig = Rig::new(None).await;
    let feed = session(&rig.engine, &rig.caller, rig.session, Some(0));
    let mut feed = feed.await.expect("it may be read");
    let first = start(&rig).await;
    read(&mut feed, 10).await;
    assert_eq!(rig.engine.drafts_kept(), 1);
    // It has ended before the feed hears of it.
    cancel(&rig, first).await;
    assert_eq!(rig.engine.drafts_kept(), 0);
    read(&mut feed, 10).await;
    assert_eq!(rig.engine.drafts_kept(), 0);
    start(&rig).await;
    read(&mut feed, 10).await;
    assert_eq!(rig.engine.drafts_kept(), 1);
    drop(feed);
    assert_eq!(rig.engine.drafts_kept(), 0);
    rig.engine.shut_down().await;
}

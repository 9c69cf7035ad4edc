//! Outlines that are begun again, and nested in any order.

use std::sync::Arc;

use statehold_core::ids::RequestId;
use statehold_engine::stage::{StageChange, StageStatus};
use statehold_engine::{
    DraftChange, DraftReader, Engine, EngineOptions, MemoryKeys, OpenDraft, SystemClock,
};
use statehold_store::memory::MemoryStore;

use super::{Outlines, RunningOutline, StageDetail, StageWriter};

const ROOT: u128 = 1;
const CHILD: u128 = 2;

fn request(number: u128) -> RequestId {
    RequestId::from_uuid(uuid::Uuid::from_u128(number))
}

/// The outlines of a turn with one child, and a reader of its draft.
struct Scene {
    engine: Engine,
    outlines: Arc<Outlines>,
    draft: OpenDraft,
    reader: DraftReader,
}

impl Scene {
    async fn new() -> Self {
        let engine = Engine::start(
            Arc::new(MemoryStore::new()),
            Arc::new(MemoryKeys::default()),
            Arc::new(SystemClock),
            EngineOptions::default(),
        );
        let engine = engine.await.expect("an engine in memory");
        Self {
            draft: engine.open_draft(request(ROOT)),
            reader: engine.follow_draft(request(ROOT)),
            engine,
            outlines: Arc::default(),
        }
    }

    fn root(&self) -> (RunningOutline, StageWriter) {
        let root = self.outlines.begin_root(&self.engine, request(ROOT), true);
        let writer = root.writer(StageDetail::Names);
        (root, writer)
    }

    fn child(&self) -> (RunningOutline, StageWriter) {
        let child = self.outlines.begin_child(request(CHILD), false);
        let writer = child.writer(StageDetail::Full);
        (child, writer)
    }

    /// The changes that readers got, in short, to the end.
    async fn shown(mut self) -> String {
        self.engine.forget_draft(request(ROOT));
        let mut shown = Vec::new();
        while let Some(change) = self.reader.next_change().await {
            shown.push(match change {
                DraftChange::Stage(StageChange::Opened { parent, name }) => {
                    let parent = parent.map(|parent| format!("{parent}/"));
                    format!("+{}{name}", parent.unwrap_or_default())
                }
                DraftChange::Stage(StageChange::Wrote { stage, text }) => format!("{stage}:{text}"),
                DraftChange::Stage(StageChange::Closed { stage, .. }) => format!("-{stage}"),
                other => format!("{other:?}"),
            });
        }
        assert_eq!(self.outlines.count(), 0, "outlines and places are dropped");
        drop(self.draft);
        self.engine.shut_down().await;
        shown.join(" ")
    }
}

/// The stages that the end of a request has, in short.
fn kept(writer: &StageWriter) -> Vec<String> {
    let stages = writer.stages_after(0);
    let stages = stages.iter().map(|stage| {
        let parent = stage.parent.map(|parent| format!("{parent}/"));
        let is_open = stage.status.is_none();
        let end = if is_open { " open" } else { "" };
        format!(
            "{}{} [{}]{end}",
            parent.unwrap_or_default(),
            stage.name,
            stage.content
        )
    });
    stages.collect()
}

fn write_stage(writer: &StageWriter, name: &str, text: &str) {
    let stage = writer.open(name);
    stage.write(text);
    stage.close(StageStatus::Completed);
}

#[tokio::test]
async fn stages_of_a_child_nest_whether_it_runs_before_its_parent_or_after() {
    for is_first in [true, false] {
        let scene = Scene::new().await;
        let early = is_first.then(|| scene.child());
        if let Some((_, writer)) = &early {
            write_stage(writer, "one", "first");
        }
        let (root, writer) = scene.root();
        let call = writer.open("call");
        let stages = scene.outlines.place(request(CHILD), &call);
        let (child, inner) = early.unwrap_or_else(|| {
            let (child, inner) = scene.child();
            write_stage(&inner, "one", "first");
            (child, inner)
        });
        assert!(inner.is_kept(), "the client of the parent shows stages");
        let two = inner.open("two");
        write_stage(&two.below(), "deep", "");
        two.close(StageStatus::Completed);
        child.complete();
        assert!(stages.is_complete());
        let expected = ["call [] open", "0/one [first]", "0/two []", "2/deep []"];
        assert_eq!(kept(&writer), expected);
        drop((root, child, stages));
        let shown = scene.shown().await;
        assert_eq!(shown, "+call +0/one 1:first -1 +0/two +2/deep -3 -2");
    }
}

#[tokio::test]
async fn an_outline_that_was_replaced_changes_nothing_any_more() {
    let scene = Scene::new().await;
    let (lost, old) = scene.root();
    let call = old.open("call");
    let stages = scene.outlines.place(request(CHILD), &call);
    let (child, inner) = scene.child();
    write_stage(&inner, "one", "first");
    // The lease of the parent is lost. The child goes on, and another run of the parent begins.
    let (root, writer) = scene.root();
    write_stage(&inner, "two", "second");
    write_stage(&writer, "plan", "");
    write_stage(&inner, "three", "third");
    old.open("stray");
    assert_eq!(kept(&writer), ["plan []"]);
    let call = writer.open("call");
    let again = scene.outlines.place(request(CHILD), &call);
    write_stage(&inner, "four", "4");
    drop((lost, stages));
    write_stage(&inner, "five", "5");
    let expected = [
        "plan []",
        "call [] open",
        "1/one [first]",
        "1/two [second]",
        "1/three [third]",
        "1/four [4]",
        "1/five [5]",
    ];
    assert_eq!(kept(&writer), expected);
    drop((root, child, again));
    // The first stages of the two runs differ, and readers keep those that they were shown.
    let shown = scene.shown().await;
    assert!(
        shown.starts_with("+call +0/one 1:first -1 +1/one 2:first -2"),
        "{shown}"
    );
    assert!(!shown.contains("stray"), "{shown}");
}

#[tokio::test]
async fn an_attempt_of_a_child_replaces_the_stages_of_the_one_before() {
    let scene = Scene::new().await;
    let (root, writer) = scene.root();
    write_stage(&writer, "plan", "");
    let call = writer.open("call");
    let stages = scene.outlines.place(request(CHILD), &call);
    let (lost, inner) = scene.child();
    write_stage(&inner, "one", "first");
    inner.open("two").write("ha");
    let (child, again) = scene.child();
    inner.open("late");
    write_stage(&again, "one", "first");
    write_stage(&again, "two", "half");
    drop(lost);
    let expected = ["plan []", "call [] open", "1/one [first]", "1/two [half]"];
    assert_eq!(kept(&writer), expected);
    // The record of the child counts, if it has ended elsewhere.
    assert!(!stages.is_complete());
    let recorded = again.stages_after(0);
    stages.replace(&recorded);
    assert_eq!(kept(&writer), expected);
    drop((root, child, stages));
    let shown = scene.shown().await;
    assert_eq!(shown, "+plan -0 +call +1/one 2:first -2 +1/two 3:half -3");
}

#[tokio::test]
async fn a_text_that_does_not_fit_ends_there_and_a_parent_with_none_hides_a_child() {
    let scene = Scene::new().await;
    let (root, writer) = scene.root();
    let full = root.writer(StageDetail::Full);
    let long = full.open("long");
    for _ in 0..5 {
        long.write(&"x".repeat(100_000));
        long.write("y");
    }
    let text = full.stages_after(0)[0].content.clone();
    assert_eq!(text, format!("{0}y{0}y", "x".repeat(100_000)));
    let hidden = root.writer(StageDetail::None).open("hidden");
    let stages = scene.outlines.place(request(CHILD), &hidden);
    let (child, inner) = scene.child();
    write_stage(&inner, "one", "first");
    stages.replace(&inner.stages_after(0));
    assert_eq!(writer.count(), 1);
    drop((root, child, stages));
    scene.shown().await;
}

//! The outlines of the requests that run in this process, and the places of children in those of
//! their parents. Parent and child find each other by the id of the child, whichever of them is
//! claimed first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use statehold_core::ids::RequestId;
use statehold_engine::Engine;
use statehold_engine::stage::Stage;

use super::outline::{ChildPlace, Outline};
use super::{OpenStage, StageDetail, StageWriter};

/// The outlines of a runner.
#[derive(Default)]
pub(crate) struct Outlines {
    entries: Mutex<HashMap<RequestId, Entry>>,
}

/// A request: its outline while it runs, and its place while its parent waits for it.
#[derive(Default)]
struct Entry {
    outline: Option<Arc<Outline>>,
    place: Option<Arc<ChildPlace>>,
}

/// The outline of a request that runs. Dropped with its run.
pub(crate) struct RunningOutline {
    outlines: Arc<Outlines>,
    request: RequestId,
    outline: Arc<Outline>,
}

/// The stages of a child for which its parent waits. When it is dropped, the parent takes no more
/// of them.
pub(crate) struct ChildStages {
    outlines: Arc<Outlines>,
    pub(crate) child: RequestId,
    place: Arc<ChildPlace>,
}

impl Outlines {
    fn entries(&self) -> MutexGuard<'_, HashMap<RequestId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the outline of a request at the root of its turn. `is_shown`: its client shows
    /// stages.
    pub(crate) fn begin_root(
        self: &Arc<Self>,
        engine: &Engine,
        request: RequestId,
        is_shown: bool,
    ) -> RunningOutline {
        let outline = Outline::of_root(engine.clone(), request, is_shown);
        let running = self.begin(request, outline);
        // An older outline that is replaced may have written since the draft was opened.
        engine.restart_stages(request);
        running
    }

    /// Begins the outline of a request below another one.
    pub(crate) fn begin_child(
        self: &Arc<Self>,
        request: RequestId,
        is_shown: bool,
    ) -> RunningOutline {
        self.begin(request, Outline::of_child(is_shown))
    }

    fn begin(self: &Arc<Self>, request: RequestId, outline: Outline) -> RunningOutline {
        let outline = Arc::new(outline);
        let mut entries = self.entries();
        let entry = entries.entry(request).or_default();
        if let Some(older) = entry.outline.replace(Arc::clone(&outline)) {
            older.detach();
        }
        // Under the lock, so that the newest outline gets the newest place.
        if let Some(place) = &entry.place {
            outline.attach(Arc::clone(place));
        }
        RunningOutline {
            outlines: Arc::clone(self),
            request,
            outline,
        }
    }

    /// Makes a place for a child below the stage of its call. The child writes there, also if it
    /// runs already.
    pub(crate) fn place(self: &Arc<Self>, child: RequestId, call: &OpenStage) -> ChildStages {
        let place = Arc::new(ChildPlace::new(call.below()));
        let mut entries = self.entries();
        let entry = entries.entry(child).or_default();
        entry.place = Some(Arc::clone(&place));
        if let Some(outline) = &entry.outline {
            outline.attach(Arc::clone(&place));
        }
        ChildStages {
            outlines: Arc::clone(self),
            child,
            place,
        }
    }

    /// How many requests it knows.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.entries().len()
    }
}

impl RunningOutline {
    /// Writes stages of an agent that allows this detail.
    pub(crate) fn writer(&self, detail: StageDetail) -> StageWriter {
        StageWriter {
            outline: Arc::clone(&self.outline),
            parent: None,
            detail,
        }
    }

    /// All stages are written: the request is about to complete.
    pub(crate) fn complete(&self) {
        self.outline.complete();
    }
}

impl Drop for RunningOutline {
    fn drop(&mut self) {
        let mut entries = self.outlines.entries();
        let Some(entry) = entries.get_mut(&self.request) else {
            return;
        };
        let outline = entry.outline.as_ref();
        if !outline.is_some_and(|outline| Arc::ptr_eq(outline, &self.outline)) {
            return;
        }
        entry.outline = None;
        if entry.place.is_none() {
            entries.remove(&self.request);
        }
    }
}

impl ChildStages {
    /// Whether the child has written all of its stages here.
    pub(crate) fn is_complete(&self) -> bool {
        self.place.is_complete()
    }

    /// Takes the recorded stages of the child in the place of those that it has written here.
    pub(crate) fn replace(&self, stages: &[Stage]) {
        self.place.replace(stages);
    }
}

impl Drop for ChildStages {
    fn drop(&mut self) {
        let mut entries = self.outlines.entries();
        let Some(entry) = entries.get_mut(&self.child) else {
            return;
        };
        let place = entry.place.as_ref();
        if !place.is_some_and(|place| Arc::ptr_eq(place, &self.place)) {
            return;
        }
        entry.place = None;
        match &entry.outline {
            Some(outline) => outline.detach(),
            None => drop(entries.remove(&self.child)),
        }
    }
}

//! What a request has recorded so far: its steps and its tool calls, in order. A run that begins again
//! after a crash or a pause is answered from here.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::ids::{ItemId, RequestId, SessionId, TaskId};
use statehold_core::item::{CallMark, CallOutcome, ItemKind};
use statehold_engine::kept::{ItemBody, Raw, parse};
use statehold_engine::{Engine, EngineError, StoredItem};

use super::tools::told_of;

/// How many items are read at a time.
const PAGE: usize = 200;

/// Writes down every kind once: the kind, its word, and the list of all of them.
macro_rules! step_kinds {
    ($(#[$of_all:meta])* pub enum $name:ident { $($(#[$of_one:meta])* $kind:ident = $word:literal,)+ }) => {
        $(#[$of_all])*
        pub enum $name {
            $($(#[$of_one])* #[serde(rename = $word)] $kind,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$kind),+];

            /// The word for it.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)+
                }
            }
        }
    };
}

step_kinds! {
    /// What kinds of steps there are. Each is committed before the next begins.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum StepKind {
        /// Who gets the turn.
        Route = "route",
        /// What a model said.
        Model = "model",
        /// What an agent behind a gateway said.
        AgentCall = "agent_call",
        /// The conversation that a service made for a task.
        Conversation = "conversation",
        /// A tool call that begins. An item of its own, whose id is the execution key.
        ToolCall = "tool_call",
        /// What a tool call came to. An item of its own.
        ToolResult = "tool_result",
        /// A person is asked. A hold.
        Hold = "hold",
        /// Another agent is asked. A request of its own.
        Child = "child",
        /// The last words, and with them the end.
        Answer = "answer",
    }
}

/// A step as its item keeps it, under `data`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StepBody {
    pub(super) index: usize,
    pub(super) step: StepKind,
    /// The digest of what the step was made from.
    pub(super) input: Digest,
    pub(super) result: Raw,
    /// The declaration of the agent that it ran under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) config: Option<Digest>,
    /// What the step took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Raw>,
}

/// A tool call that was recorded.
#[derive(Debug)]
pub(crate) struct RecordedCall {
    /// The execution key.
    pub(crate) id: ItemId,
    /// What the model calls it.
    pub(crate) call_id: Option<String>,
    /// The tool.
    pub(crate) tool: String,
    /// Whether it waits for an approval before it runs.
    pub(crate) gated: bool,
    /// Whether the tool honours the execution key.
    pub(crate) idempotent: bool,
    /// What it came to, as the model is told it.
    pub(crate) told: Option<(CallOutcome, String)>,
}

/// What a request has recorded.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(super) steps: VecDeque<StepBody>,
    pub(crate) calls: VecDeque<RecordedCall>,
    /// How many items were read to know it.
    pub(super) items_read: usize,
}

impl Journal {
    /// Reads what a request has recorded. Its items are the newest of its task: there is one live request
    /// at a time.
    pub(super) async fn read(
        engine: &Engine,
        session: SessionId,
        task: TaskId,
        request: RequestId,
    ) -> Result<Self, EngineError> {
        let mut journal = Self::default();
        let mut newest_first = Vec::new();
        let mut before = None;
        'pages: loop {
            let page = engine.task_items(session, task, before, PAGE).await?;
            before = page.next;
            for item in page.items {
                journal.items_read += 1;
                if item.placed.request != request {
                    break 'pages;
                }
                newest_first.push(item);
            }
            if before.is_none() {
                break;
            }
        }
        for item in newest_first.iter().rev() {
            journal.take(item);
        }
        Ok(journal)
    }

    fn take(&mut self, stored: &StoredItem) {
        let item = &stored.placed.item;
        let body: ItemBody = parse(stored.body.as_deref());
        match (item.kind, item.call) {
            (ItemKind::Step, _) => self.steps.extend(step_of(&body)),
            (ItemKind::ToolCall, Some(CallMark::Call { gated, idempotent })) => {
                self.calls.push_back(RecordedCall {
                    id: item.id,
                    call_id: body.call_id,
                    tool: body.name.unwrap_or_default(),
                    gated,
                    idempotent,
                    told: None,
                });
            }
            (_, Some(CallMark::Result { call, outcome, .. })) => {
                if let Some(known) = self.calls.iter_mut().find(|known| known.id == call) {
                    known.told = Some((outcome, told_of(&body)));
                }
            }
            _ => {}
        }
    }
}

/// The step that an item keeps. Steps of other makers have other shapes.
fn step_of(body: &ItemBody) -> Option<StepBody> {
    serde_json::from_str(body.data.as_ref()?.get()).ok()
}

/// What a step in a history was, and what it came to.
pub(crate) fn recorded_step(stored: &StoredItem) -> Option<(StepKind, Raw)> {
    let step = step_of(&parse(stored.body.as_deref()))?;
    Some((step.step, step.result))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn steps_are_kept_under_the_words_that_they_are_told_by() {
        for kind in StepKind::ALL {
            let kept = serde_json::to_value(kind).expect("JSON");
            assert_eq!(kept, kind.word());
            let read: StepKind = serde_json::from_value(kept).expect("a kind");
            assert_eq!(read, kind);
        }
        let words: BTreeSet<&str> = StepKind::ALL.map(StepKind::word).into();
        assert_eq!(words.len(), StepKind::ALL.len());
        // What was recorded before must be read for ever.
        let first = ["route", "model", "agent_call", "conversation", "tool_call"];
        let rest = ["tool_result", "hold", "child", "answer"];
        assert!(first.iter().chain(&rest).all(|word| words.contains(word)));
    }
}

//! Recorded steps and tool calls of a request, in order. A run that resumes after a crash or a pause
//! replays them.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::ids::{ItemId, RequestId};
use statehold_core::item::{CallMark, ItemKind};
use statehold_engine::bodies::{ItemBody, Raw, parse};
use statehold_engine::leased::LeasedRequest;
use statehold_engine::stage::Stage;
use statehold_engine::{EngineError, StoredItem};

use super::tools::CallReport;
use crate::message::raw;

/// Page size for reading items.
const ITEMS_PER_PAGE: usize = 200;

/// Shorter texts are repeated in a step.
const REPEATED_BYTES_MIN: usize = 512;

/// Declares the step kinds once: the variant, its name, and the list of all kinds.
macro_rules! step_kinds {
    ($(#[$of_all:meta])* pub enum $name:ident { $($(#[$of_one:meta])* $kind:ident = $word:literal,)+ }) => {
        $(#[$of_all])*
        pub enum $name {
            $($(#[$of_one])* #[serde(rename = $word)] $kind,)+
        }

        impl $name {
            /// All step kinds.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$kind),+];

            /// Name of the kind in records.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$kind => $word,)+
                }
            }
        }
    };
}

step_kinds! {
    /// Kinds of steps. Each step is committed before the next begins.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum StepKind {
        /// A router chose the agent for the turn.
        Route = "route",
        /// A pipeline began a phase.
        Phase = "phase",
        /// A model replied.
        Model = "model",
        /// An agent prepared the call of its tool.
        Prepare = "prepare",
        /// An agent behind a gateway replied.
        AgentCall = "agent_call",
        /// A service created a conversation for a task.
        Conversation = "conversation",
        /// A tool call starts. Recorded as an item of its own, whose id is the execution key.
        ToolCall = "tool_call",
        /// A tool call has a result. Recorded as an item of its own.
        ToolResult = "tool_result",
        /// A hold is opened.
        Hold = "hold",
        /// A child request is started.
        Child = "child",
        /// The final message, committed with the end of the request.
        Answer = "answer",
    }
}

/// A step as stored in its item, under `data`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StepBody {
    pub(super) index: usize,
    pub(super) step: StepKind,
    /// Digest of the step's input.
    pub(super) input: Digest,
    pub(super) result: Raw,
    /// Digest of the agent's declaration at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) config: Option<Digest>,
    /// Token usage of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Raw>,
    /// The text that `result` lacks, because the output in the same record has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) output: Option<OutputText>,
    /// The stages that the step has shown, as clients may see them. A turn that resumes shows them
    /// again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) stages: Vec<Stage>,
}

/// A text of a step's result that is the end of the text of the request's output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct OutputText {
    /// The member of the result.
    pub(super) member: String,
    /// Where it begins in the output, in bytes.
    pub(super) from: usize,
}

impl StepBody {
    /// Leaves out a long text of the result that is the end of the output.
    pub(super) fn name_output(&mut self, output: &str) {
        let Ok(mut members) = serde_json::from_str::<BTreeMap<String, Raw>>(self.result.get())
        else {
            return;
        };
        let begin = |json: &Raw| {
            let is_long = json.get().len() >= REPEATED_BYTES_MIN;
            let text: String = serde_json::from_str(json.get()).ok().filter(|_| is_long)?;
            Some(output.strip_suffix(&text)?.len())
        };
        let found = members.iter().find_map(|(member, json)| {
            let (member, from) = (member.clone(), begin(json)?);
            Some(OutputText { member, from })
        });
        if let Some(text) = found {
            members.remove(&text.member);
            self.result = raw(&members);
            self.output = Some(text);
        }
    }
}

/// A recorded tool call.
#[derive(Debug)]
pub(crate) struct RecordedCall {
    /// The execution key.
    pub(crate) id: ItemId,
    /// The call id that the model chose.
    pub(crate) call_id: Option<String>,
    pub(crate) tool: String,
    /// Whether it needs an approval before it runs.
    pub(crate) gated: bool,
    /// Whether the tool honours the execution key.
    pub(crate) idempotent: bool,
    /// The recorded result.
    pub(crate) report: Option<CallReport>,
}

/// Recorded steps and calls of a request.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(super) steps: VecDeque<StepBody>,
    pub(crate) calls: VecDeque<RecordedCall>,
    /// Number of items read from the store.
    pub(super) items_read: usize,
}

impl Journal {
    /// Reads the recorded steps of a request. They are the newest items of its task, because a task has
    /// one live request at a time.
    /// `earlier` are the failed requests that it goes on from.
    pub(super) async fn read(
        request: &LeasedRequest,
        earlier: &[RequestId],
    ) -> Result<Self, EngineError> {
        let mut journal = Self::default();
        let mut newest_first = Vec::new();
        let mut before = None;
        'pages: loop {
            let page = request.history(before, ITEMS_PER_PAGE).await?;
            before = page.next;
            for item in page.items {
                journal.items_read += 1;
                let by = item.placed.request;
                if by != request.ids.request && !earlier.contains(&by) {
                    break 'pages;
                }
                newest_first.push(item);
            }
            if before.is_none() {
                break;
            }
        }
        for item in newest_first.iter().rev() {
            journal.add_item(item);
        }
        Ok(journal)
    }

    fn add_item(&mut self, stored: &StoredItem) {
        let item = &stored.placed.item;
        let body: ItemBody = parse(stored.body.as_deref());
        match (item.kind, item.call) {
            (ItemKind::Step, _) => self.steps.extend(parse_step(&body)),
            (ItemKind::ToolCall, Some(CallMark::Call { gated, idempotent })) => {
                self.calls.push_back(RecordedCall {
                    id: item.id,
                    call_id: body.call_id,
                    tool: body.name.unwrap_or_default(),
                    gated,
                    idempotent,
                    report: None,
                });
            }
            (_, Some(CallMark::Result { call, outcome, .. })) => {
                if let Some(known) = self.calls.iter_mut().find(|known| known.id == call) {
                    known.report = Some(CallReport::of_result(outcome, &body));
                }
            }
            _ => {}
        }
    }
}

/// Parses the step in an item. None for steps of other workers, which have other shapes.
fn parse_step(body: &ItemBody) -> Option<StepBody> {
    serde_json::from_str(body.data.as_ref()?.get()).ok()
}

/// Kind and result of a step in a task's history, and from where on the output has the text of the result,
/// if the result lacks it.
pub(crate) fn recorded_step(stored: &StoredItem) -> Option<(StepKind, Raw, Option<usize>)> {
    let step = parse_step(&parse(stored.body.as_deref()))?;
    let from = step.output.map(|text| text.from);
    Some((step.step, step.result, from))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn step(result: &serde_json::Value) -> StepBody {
        StepBody {
            index: 0,
            step: StepKind::Model,
            input: Digest::ZERO,
            result: raw(result),
            config: None,
            usage: None,
            output: None,
            stages: Vec::new(),
        }
    }

    #[test]
    fn a_step_names_the_output_only_where_that_has_its_long_text() {
        let long = "words ".repeat(200);
        let said = json!({"text": long, "tokens": 3});
        let output = format!("First.\n\n{long}");
        let mut named = step(&said);
        named.name_output(&output);
        assert_eq!(named.result.get(), r#"{"tokens":3}"#);
        let text = named.output.expect("it is named");
        assert_eq!(
            (text.member.as_str(), &output[text.from..]),
            ("text", &*long)
        );
        for other in ["something else".repeat(100), format!("{long} and more")] {
            let mut whole = step(&said);
            whole.name_output(&other);
            assert_eq!(whole.result.get(), raw(&said).get());
            assert!(whole.output.is_none());
        }
        let mut short = step(&json!({"text": "short"}));
        short.name_output("short");
        assert!(short.output.is_none(), "a reader of the trace sees it");
    }

    #[test]
    fn the_engine_knows_the_steps_of_phases() {
        assert_eq!(StepKind::Phase.word(), statehold_engine::phases::PHASE_STEP);
    }

    #[test]
    fn every_step_kind_is_stored_under_its_word() {
        for kind in StepKind::ALL {
            let kept = serde_json::to_value(kind).expect("JSON");
            assert_eq!(kept, kind.word());
            let read: StepKind = serde_json::from_value(kept).expect("a kind");
            assert_eq!(read, kind);
        }
        let words: BTreeSet<&str> = StepKind::ALL.map(StepKind::word).into();
        assert_eq!(words.len(), StepKind::ALL.len());
        // Records of earlier versions must stay readable.
        let first = ["route", "model", "agent_call", "conversation", "tool_call"];
        let rest = ["tool_result", "hold", "child", "answer"];
        assert!(first.iter().chain(&rest).all(|word| words.contains(word)));
    }
}

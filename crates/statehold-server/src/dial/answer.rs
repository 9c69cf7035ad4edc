//! The answer to a call of a deployment: whole, or as a stream.
//!
//! No stage is open when an answer ends. A message that was told does not change any more, and a client that sends it back
//! with an open stage is refused by services that are built with DIAL's SDK. So the stage of a pause is open as long as
//! the call waits for a person, and closed when that person decides or the call ends. The answer that brings the rest of
//! a turn which waited has the stage once more, closed.

use http::{HeaderMap, HeaderValue, header};
use statehold_engine::HoldDetail;
use statehold_engine::api::hold::HoldView;
use statehold_engine::api::json::to_body;
use statehold_engine::api::turn::without_links;
use statehold_engine::stage::{Stage, StageChange, StageStatus};

use super::chunk::{
    AnswerHead, AttachmentOut, ChoiceOut, CompletionOut, CustomContentOut, MessageOut, StageOut,
    StatisticsOut, UsageOut, event, status_word,
};
use super::errors::ErrorOut;
use super::stages::{OwnStage, ShownStages};
use crate::chat::{CompletionFormat, Ending, Preface, StateholdOut, TurnFormat, TurnHead, TurnIds};
use crate::console;
use crate::http::problem::Problem;
use crate::http::sse;

/// The name of the stage of a pause.
const PAUSE: &str = "Waits for a person";

/// Writes one answer.
pub(super) struct AnswerWriter {
    head: AnswerHead,
    /// The ids of the turn. None for a call without a session.
    ids: Option<TurnIds>,
    /// The address of the console, if people find the session there.
    console: Option<String>,
    shown: ShownStages,
    /// The stage of the pause that the call waits for.
    pause: Option<OwnStage>,
}

impl AnswerWriter {
    /// The writer of a turn. `base` is the address of the server, if it has a console.
    pub(super) fn new(head: &TurnHead, base: Option<&str>) -> Self {
        let request = head.request.as_uuid();
        let address = |ids: TurnIds| {
            let base = base.filter(|base| !base.is_empty())?;
            Some(format!("{base}{}/sessions/{}", console::PATH, ids.session))
        };
        Self {
            head: AnswerHead {
                id: request.to_string(),
                created: head.started_at.as_micros() / 1_000_000,
            },
            ids: head.ids,
            console: head.ids.and_then(address),
            shown: ShownStages::default(),
            pause: None,
        }
    }

    /// Opens the stage of a pause.
    fn open_pause(&mut self, holds: &[HoldDetail]) -> Vec<u8> {
        let (stage, mut bytes) = self.shown.open_own(&self.head, PAUSE);
        bytes.extend(stage.write(&self.head, &pause_lines(holds)));
        self.pause = Some(stage);
        bytes
    }

    /// Closes the stage of a pause, if one is open.
    fn close_pause(&mut self) -> Vec<u8> {
        let stage = self.pause.take();
        let closed = stage.map(|stage| stage.close(&self.head, StageStatus::Completed));
        closed.unwrap_or_default()
    }

    /// The line below the text of a pause.
    fn link(&self, ending: &Ending) -> Option<String> {
        let console = self.console.as_ref().filter(|_| !ending.holds.is_empty())?;
        Some(format!("\n\n[Open the session]({console})"))
    }

    fn statehold(&self, ending: &Ending) -> Option<StateholdOut> {
        let is_paused = !ending.holds.is_empty();
        let via = ending.account.via.clone();
        is_paused.then(|| StateholdOut::of(self.ids, via, &ending.holds))
    }
}

/// A line for each hold: who asks, and for what.
fn pause_lines(holds: &[HoldDetail]) -> String {
    let lines = holds.iter().map(|hold| {
        let HoldView { agent, title, .. } = HoldView::of(hold);
        format!("{agent}: {}", without_links(&title))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn finish_reason(ending: &Ending) -> &'static str {
    match ending.answer.tool_calls {
        Some(_) => "tool_calls",
        None => "stop",
    }
}

/// The stage of a pause, as a whole answer shows it.
fn pause_stage(content: Option<&str>) -> StageOut<'_> {
    StageOut {
        name: Some(PAUSE),
        content,
        status: Some(status_word(StageStatus::Completed)),
        ..StageOut::default()
    }
}

/// A stage of the turn as a whole answer shows it. `before` stages of the server come before those of the turn.
fn whole_stage(stage: &Stage, before: usize) -> StageOut<'_> {
    let files = stage.attachments.iter().filter_map(AttachmentOut::of);
    StageOut {
        name: Some(&stage.name),
        content: Some(stage.content.as_str()).filter(|text| !text.is_empty()),
        attachments: files.collect(),
        status: Some(status_word(stage.status.unwrap_or(StageStatus::Completed))),
        parent_stage_index: stage.parent.map(|parent| parent + before),
        index: None,
    }
}

impl CompletionFormat for AnswerWriter {
    fn whole(self, mut ending: Ending) -> Vec<u8> {
        // The pause of an earlier answer is over.
        let waited = (!ending.preface.earlier.is_empty()).then(|| pause_stage(None));
        let text = std::mem::take(&mut ending.answer.text);
        let mut text = ending.preface.before(text);
        text.extend(self.link(&ending));
        let lines = pause_lines(&ending.holds);
        let waits = (!lines.is_empty()).then(|| pause_stage(Some(&lines)));
        let before = usize::from(waited.is_some());
        let stages = ending.answer.stages.iter();
        let stages = stages.map(|stage| whole_stage(stage, before));
        let files = ending.answer.attachments.iter();
        let tool_calls = ending.answer.tool_calls.as_deref();
        to_body(&CompletionOut {
            choices: [ChoiceOut {
                index: 0,
                finish_reason: finish_reason(&ending),
                message: MessageOut {
                    role: "assistant",
                    custom_content: CustomContentOut {
                        stages: waited.into_iter().chain(stages).chain(waits).collect(),
                        attachments: files.filter_map(AttachmentOut::of).collect(),
                        state: ending.carried.as_ref(),
                    },
                    content: (!text.is_empty() || tool_calls.is_none()).then_some(&text),
                    tool_calls,
                },
            }],
            usage: UsageOut::of(ending.account.usage),
            id: &self.head.id,
            created: self.head.created,
            object: "chat.completion",
            statistics: StatisticsOut::of(&ending.account),
            statehold: self.statehold(&ending),
        })
    }
}

impl TurnFormat for AnswerWriter {
    fn set_headers(&self, headers: &mut HeaderMap) {
        sse::set_headers(headers);
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, kind);
    }

    fn begin(&mut self, preface: &Preface) -> Vec<u8> {
        let mut bytes = self.head.role();
        if !preface.earlier.is_empty() {
            let (stage, opened) = self.shown.open_own(&self.head, PAUSE);
            bytes.extend(opened);
            bytes.extend(stage.close(&self.head, StageStatus::Completed));
        }
        bytes.extend(self.head.content(&preface.text()));
        bytes
    }

    fn text(&mut self, text: &str) -> Vec<u8> {
        self.head.content(text)
    }

    fn stage(&mut self, change: &StageChange) -> Vec<u8> {
        self.shown.change(&self.head, change)
    }

    fn pause(&mut self, _via: Vec<String>, holds: &[HoldDetail]) -> Vec<u8> {
        let mut bytes = self.close_pause();
        bytes.extend(self.open_pause(holds));
        bytes
    }

    fn resume(&mut self) -> Vec<u8> {
        self.close_pause()
    }

    fn end(&mut self, rest: &str, ending: &Ending) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !ending.holds.is_empty() && self.pause.is_none() {
            bytes.extend(self.open_pause(&ending.holds));
        }
        bytes.extend(self.close_pause());
        bytes.extend(self.shown.complete(&self.head, &ending.answer.stages));
        let link = self.link(ending).unwrap_or_default();
        bytes.extend(self.head.content(&format!("{rest}{link}")));
        let files = ending.answer.attachments.iter();
        for (index, file) in files.filter_map(AttachmentOut::of).enumerate() {
            bytes.extend(self.head.attachment(file.at(index)));
        }
        for (index, call) in ending.answer.tool_calls.iter().flatten().enumerate() {
            let mut call = call.clone();
            if let Some(fields) = call.as_object_mut() {
                fields.insert("index".to_owned(), index.into());
            }
            bytes.extend(self.head.tool_call(&call));
        }
        if let Some(state) = &ending.carried {
            bytes.extend(self.head.state(state));
        }
        let statehold = self.statehold(ending);
        let account = &ending.account;
        bytes.extend(self.head.last(finish_reason(ending), account, statehold));
        bytes.extend(event(b"[DONE]"));
        bytes
    }

    fn error(&mut self, problem: &Problem) -> Vec<u8> {
        let mut bytes = self.close_pause();
        bytes.extend(self.shown.close_all(&self.head, StageStatus::Failed));
        bytes.extend(event(&to_body(&ErrorOut::of(problem))));
        bytes.extend(event(b"[DONE]"));
        bytes
    }

    fn keep_alive(&self) -> &'static [u8] {
        sse::KEEP_ALIVE
    }
}

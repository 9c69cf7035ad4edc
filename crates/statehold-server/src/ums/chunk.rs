//! The answer of a conversation: whole, or as chunks.
//!
//! Clients of this service look for `[DONE]` and `conversation_id` anywhere in a line, and take more characters than a
//! line feed for the end of one. So a chunk writes these as escapes of JSON: an answer with such words arrives whole.

use http::HeaderMap;
use serde::Serialize;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_engine::HoldDetail;
use statehold_engine::api::hold::HoldView;
use statehold_engine::api::json::{Raw, to_body};
use statehold_engine::api::turn::EarlierAnswer;

use crate::chat::{Ending, Preface, TurnFormat, TurnHead, status_of};
use crate::http::problem::Problem;
use crate::http::sse;
use crate::openai::errors::ErrorOut;

/// Texts that no chunk may contain as they are, and their escapes.
const ESCAPES: [(&str, &str); 5] = [
    ("[DONE]", "\\u005bDONE]"),
    ("conversation_id", "conversation\\u005fid"),
    ("\u{85}", "\\u0085"),
    ("\u{2028}", "\\u2028"),
    ("\u{2029}", "\\u2029"),
];

#[derive(Debug, Serialize)]
struct WholeOut<'a> {
    content: &'a str,
    conversation_id: SessionId,
    #[serde(skip_serializing_if = "<[Raw]>::is_empty")]
    attachments: &'a [Raw],
    statehold: TurnOut,
}

#[derive(Debug, Serialize)]
struct BeginOut {
    conversation_id: SessionId,
}

#[derive(Debug, Serialize)]
struct ChunkOut<'a> {
    choices: [ChoiceOut<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    statehold: Option<TurnOut>,
}

#[derive(Debug, Serialize)]
struct ChoiceOut<'a> {
    delta: DeltaOut<'a>,
    index: u8,
    finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize)]
struct DeltaOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Raw]>::is_empty")]
    attachments: &'a [Raw],
}

/// The status and the ids of the turn.
#[derive(Debug, Serialize)]
struct TurnOut {
    /// `completed` or `paused`.
    status: &'static str,
    task: TaskId,
    request: RequestId,
    /// The agents that were asked on the way.
    via: Vec<String>,
    /// The open holds of a paused turn.
    holds: Vec<HoldView>,
    /// Answers that came since to turns that were paused: the content begins with them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<EarlierAnswer>,
}

/// Writes the answer of one turn.
#[derive(Debug)]
pub(super) struct ConversationWriter {
    session: SessionId,
    task: TaskId,
    request: RequestId,
}

impl ConversationWriter {
    /// A turn of a conversation always has a session.
    pub(super) fn new(session: SessionId, task: TaskId, head: &TurnHead) -> Self {
        Self {
            session,
            task,
            request: head.request,
        }
    }

    fn turn(&self, via: Vec<String>, holds: &[HoldDetail], earlier: Vec<EarlierAnswer>) -> TurnOut {
        TurnOut {
            status: status_of(holds),
            task: self.task,
            request: self.request,
            via,
            holds: holds.iter().map(HoldView::of).collect(),
            earlier,
        }
    }

    /// The whole answer.
    pub(super) fn whole(&self, mut ending: Ending) -> Vec<u8> {
        let text = std::mem::take(&mut ending.answer.text);
        let text = ending.preface.before(text);
        let earlier = std::mem::take(&mut ending.preface.earlier);
        to_body(&WholeOut {
            content: &text,
            conversation_id: self.session,
            attachments: &ending.answer.attachments,
            statehold: self.turn(ending.account.via, &ending.holds, earlier),
        })
    }
}

/// An event with a chunk.
fn chunk(
    delta: DeltaOut<'_>,
    finish_reason: Option<&'static str>,
    statehold: Option<TurnOut>,
) -> Vec<u8> {
    let choice = ChoiceOut {
        delta,
        index: 0,
        finish_reason,
    };
    event(&escaped(to_body(&ChunkOut {
        choices: [choice],
        statehold,
    })))
}

/// Escapes the texts that clients look for. They occur only inside JSON strings, where an escape means the same.
fn escaped(json: Vec<u8>) -> Vec<u8> {
    let Ok(mut json) = String::from_utf8(json) else {
        return b"{}".to_vec();
    };
    for (text, escape) in ESCAPES {
        if json.contains(text) {
            json = json.replace(text, escape);
        }
    }
    json.into_bytes()
}

fn event(data: &[u8]) -> Vec<u8> {
    let mut event = Vec::with_capacity(data.len() + 8);
    sse::push_event(&mut event, None, None, data);
    event
}

impl TurnFormat for ConversationWriter {
    fn set_headers(&self, headers: &mut HeaderMap) {
        sse::set_headers(headers);
    }

    fn begin(&mut self, preface: &Preface) -> Vec<u8> {
        let mut bytes = event(&to_body(&BeginOut {
            conversation_id: self.session,
        }));
        let earlier = preface.text();
        if !earlier.is_empty() {
            bytes.extend(self.text(&earlier));
        }
        bytes
    }

    fn text(&mut self, text: &str) -> Vec<u8> {
        let delta = DeltaOut {
            content: Some(text),
            ..DeltaOut::default()
        };
        chunk(delta, None, None)
    }

    fn pause(&mut self, via: Vec<String>, holds: &[HoldDetail]) -> Vec<u8> {
        let turn = self.turn(via, holds, Vec::new());
        chunk(DeltaOut::default(), None, Some(turn))
    }

    fn end(&mut self, rest: &str, ending: &Ending) -> Vec<u8> {
        let mut bytes = if rest.is_empty() {
            Vec::new()
        } else {
            self.text(rest)
        };
        let earlier = ending.preface.earlier.clone();
        let turn = self.turn(ending.account.via.clone(), &ending.holds, earlier);
        let delta = DeltaOut {
            attachments: &ending.answer.attachments,
            ..DeltaOut::default()
        };
        bytes.extend(chunk(delta, Some("stop"), Some(turn)));
        bytes.extend(event(b"[DONE]"));
        bytes
    }

    fn error(&mut self, problem: &Problem) -> Vec<u8> {
        event(&escaped(to_body(&ErrorOut::of(problem))))
    }

    fn keep_alive(&self) -> &'static [u8] {
        sse::KEEP_ALIVE
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_clients_look_for_is_nowhere_in_a_chunk_and_everywhere_in_its_text() {
        let said = "a [DONE] b \"conversation_id\" c\u{2028}d\u{2029}e\u{85}f\ng";
        let delta = DeltaOut {
            content: Some(said),
            ..DeltaOut::default()
        };
        let bytes = chunk(delta, None, None);
        let line = String::from_utf8(bytes).expect("text");
        for (text, _) in ESCAPES {
            assert!(!line.contains(text), "{text:?} in {line}");
        }
        let json = line.strip_prefix("data: ").expect("data").trim_end();
        let json: Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(json["choices"][0]["delta"]["content"], said);
    }
}

//! The briefing of a conversation service: the exchanges from before its conversation, in a marked block before
//! the first message. The conversation of a forked session is new to its service, and so is one whose client
//! brought earlier messages along.

use crate::history::{PastExchanges, left_out_note, newest_fitting};
use crate::json_line::compact_json;
use crate::llm::model_messages::{ModelMessages, text_exchanges};
use crate::runner::AgentRun;
use crate::turn::{TraceNote, TurnError};

const HEAD: &str = "[earlier conversation]";
const FOOT: &str = "[/earlier conversation]";
/// Most bytes of earlier exchanges in a briefing.
const BRIEFING_BYTES_MAX: usize = 64 * 1024;

/// A text before the first message of a conversation.
#[derive(Debug, Default)]
pub(super) struct Briefing {
    /// One message of JSON per line. Empty if there are no earlier exchanges.
    pub(super) block: String,
    /// Says that older exchanges are left out.
    pub(super) note: Option<TraceNote>,
}

impl Briefing {
    /// The newest exchanges that the request knows, as many as fit.
    pub(super) async fn read(run: &AgentRun) -> Result<Self, TurnError> {
        let past = PastExchanges::read(&run.request).await?;
        let exchanges = text_exchanges(&past, &run.input);
        if exchanges.is_empty() {
            return Ok(Self::default());
        }
        let bytes = |one: &ModelMessages| one_line_each(one).len();
        let (kept, left_out) = newest_fitting(exchanges, BRIEFING_BYTES_MAX, bytes);
        let lines: String = kept.iter().map(one_line_each).collect();
        Ok(Self {
            block: format!("{HEAD}\n{lines}{FOOT}\n\n"),
            note: left_out_note(left_out, past.is_cut),
        })
    }
}

/// The messages of an exchange, each on a line. No text in it can imitate the end of the block.
fn one_line_each(exchange: &ModelMessages) -> String {
    let lines = exchange.messages().iter();
    let lines = lines.map(|message| compact_json(message.get()) + "\n");
    lines.collect()
}

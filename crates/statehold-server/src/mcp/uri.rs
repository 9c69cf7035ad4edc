//! The addresses of conversations: `conversation://{session}/history` and the other parts.

use std::fmt;
use std::str::FromStr;

use statehold_core::ids::{RequestId, SessionId, TaskId};

/// The address of the one conversation that a token is bound to.
pub(super) const CURRENT_HISTORY: &str = "conversation://current-history";

const SCHEME: &str = "conversation://";

/// The address of a part of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConversationUri {
    /// The messages of the conversation that the caller's token is bound to.
    Current,
    /// A part of a conversation.
    Part(SessionId, Part),
}

/// A part of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Its messages.
    History(HistoryQuery),
    /// Its state, with the values of its app and user.
    State,
    /// The tree of its tasks.
    Tasks,
    /// One of its tasks.
    Task(TaskId),
    /// Its open holds.
    Holds,
    /// Every item, for operators.
    Trace,
}

/// Messages, and for the phases of a pipeline the answers of its earlier phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HistoryQuery {
    pub(super) range: Range,
    /// The turn whose phases' answers are read, too.
    pub(super) turn: Option<RequestId>,
}

impl HistoryQuery {
    /// The messages that there are now.
    pub(super) const NEWEST: Self = Self {
        range: Range::Newest,
        turn: None,
    };
}

/// Which messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    /// All that there are now.
    Newest,
    /// Messages of a revision, which never change; only messages before a place, if given.
    At { revision: u64, before: Option<u64> },
    /// Messages that came after a revision.
    After(u64),
}

/// An address that names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadUri;

impl FromStr for ConversationUri {
    type Err = BadUri;

    fn from_str(text: &str) -> Result<Self, BadUri> {
        if text == CURRENT_HISTORY {
            return Ok(Self::Current);
        }
        let rest = text.strip_prefix(SCHEME).ok_or(BadUri)?;
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let (session, part) = path.split_once('/').ok_or(BadUri)?;
        let session = session.parse().map_err(|_| BadUri)?;
        let part = match (part, query) {
            ("history", query) => Part::History(query.unwrap_or_default().parse()?),
            ("state", None) => Part::State,
            ("tasks", None) => Part::Tasks,
            ("holds", None) => Part::Holds,
            ("trace", None) => Part::Trace,
            (part, None) => {
                let task = part.strip_prefix("tasks/").ok_or(BadUri)?;
                Part::Task(task.parse().map_err(|_| BadUri)?)
            }
            _ => return Err(BadUri),
        };
        Ok(Self::Part(session, part))
    }
}

impl FromStr for HistoryQuery {
    type Err = BadUri;

    /// Reads a query: nothing, `rev`, `rev` and `before`, or `after`; and with any of them `turn`.
    fn from_str(query: &str) -> Result<Self, BadUri> {
        let (mut revision, mut before, mut after, mut turn) = (None, None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or(BadUri)?;
            let field = match name {
                "rev" => &mut revision,
                "before" => &mut before,
                "after" => &mut after,
                "turn" => {
                    let value = value.parse().map_err(|_| BadUri)?;
                    match turn.replace(value) {
                        None => continue,
                        Some(_) => return Err(BadUri),
                    }
                }
                _ => return Err(BadUri),
            };
            let value = value.parse().map_err(|_| BadUri)?;
            if field.replace(value).is_some() {
                return Err(BadUri);
            }
        }
        let range = match (revision, before, after) {
            (None, None, None) => Range::Newest,
            (Some(revision), before, None) => Range::At { revision, before },
            (None, None, Some(after)) => Range::After(after),
            _ => return Err(BadUri),
        };
        Ok(Self { range, turn })
    }
}

impl fmt::Display for HistoryQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("history")?;
        match self.range {
            Range::Newest => {}
            Range::After(revision) => write!(f, "?after={revision}")?,
            Range::At { revision, before } => {
                write!(f, "?rev={revision}")?;
                if let Some(before) = before {
                    write!(f, "&before={before}")?;
                }
            }
        }
        match (self.turn, self.range) {
            (None, _) => Ok(()),
            (Some(turn), Range::Newest) => write!(f, "?turn={turn}"),
            (Some(turn), _) => write!(f, "&turn={turn}"),
        }
    }
}

impl fmt::Display for ConversationUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (session, part) = match self {
            Self::Current => return f.write_str(CURRENT_HISTORY),
            Self::Part(session, part) => (session, part),
        };
        write!(f, "{SCHEME}{session}/")?;
        match part {
            Part::History(history) => write!(f, "{history}"),
            Part::State => f.write_str("state"),
            Part::Tasks => f.write_str("tasks"),
            Part::Task(task) => write!(f, "tasks/{task}"),
            Part::Holds => f.write_str("holds"),
            Part::Trace => f.write_str("trace"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &str = "ses_01977777777770008000000000000001";

    #[test]
    fn an_address_is_written_as_it_was_read() {
        let task = "tsk_01977777777770008000000000000002";
        let parts = [
            "history",
            "history?rev=17",
            "history?rev=17&before=4",
            "history?after=3",
            "history?turn=req_01977777777770008000000000000003",
            "history?rev=17&before=4&turn=req_01977777777770008000000000000003",
            "state",
            "tasks",
            &format!("tasks/{task}"),
            "holds",
            "trace",
        ];
        for part in parts {
            let text = format!("{SCHEME}{SESSION}/{part}");
            let uri: Result<ConversationUri, _> = text.parse();
            assert_eq!(uri.map(|uri| uri.to_string()), Ok(text));
        }
        assert_eq!(CURRENT_HISTORY.parse(), Ok(ConversationUri::Current));
    }

    #[test]
    fn an_address_that_names_nothing_is_refused() {
        let parts = [
            "history?rev=1&after=2",
            "history?before=2",
            "history?rev=1&rev=2",
            "history?rev=x",
            "history?limit=2",
            "history?turn=17",
            "history?turn=req_01977777777770008000000000000003&turn=req_01977777777770008000000000000003",
            "state?rev=1",
            "tasks/1",
            "",
        ];
        for part in parts {
            let text = format!("{SCHEME}{SESSION}/{part}");
            assert_eq!(text.parse::<ConversationUri>(), Err(BadUri), "{text}");
        }
        for text in [
            "conversation://x/history",
            "file:///etc/passwd",
            "conversation:history",
        ] {
            assert_eq!(text.parse::<ConversationUri>(), Err(BadUri), "{text}");
        }
    }
}

//! Server-sent events: bytes in, events out, as the HTML standard describes it. No I/O.

use std::collections::VecDeque;
use std::time::Duration;

/// The most bytes of one event.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// One event of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) kind: String,
    pub(crate) data: String,
}

/// An event was longer than anything a server sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Puts events together from pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    /// A carriage return ended the last line; a line feed right after it is the same end.
    after_return: bool,
    has_begun: bool,
    kind: String,
    data: String,
    id: Option<String>,
    retry: Option<Duration>,
    ready: VecDeque<Event>,
}

impl Parser {
    /// A parser that knows the id of the last event, so that events without one have it too.
    pub(super) fn after(id: Option<String>) -> Self {
        Self {
            id,
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        for &byte in bytes {
            let is_second_half = self.after_return && byte == b'\n';
            self.after_return = byte == b'\r';
            match byte {
                _ if is_second_half => {}
                b'\r' | b'\n' => self.end_line(),
                _ => self.line.push(byte),
            }
            if self.line.len() + self.data.len() > EVENT_BYTES_MAX {
                return Err(TooLong);
            }
        }
        Ok(())
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// How long the server wants a reader to wait before it comes back, if it said so.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = if self.has_begun {
            &line
        } else {
            self.has_begun = true;
            line.strip_prefix('\u{feff}').unwrap_or(&line)
        };
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "id" if !value.contains('\0') => {
                self.id = (!value.is_empty()).then(|| value.to_owned());
            }
            "retry" if value.bytes().all(|b| b.is_ascii_digit()) => {
                self.retry = value.parse().ok().map(Duration::from_millis);
            }
            // Comments begin with a colon: their field is empty.
            _ => {}
        }
    }

    fn dispatch(&mut self) {
        let kind = std::mem::take(&mut self.kind);
        let mut data = std::mem::take(&mut self.data);
        if data.pop().is_none() {
            return;
        }
        let kind = if kind.is_empty() {
            "message".to_owned()
        } else {
            kind
        };
        self.ready.push_back(Event {
            id: self.id.clone(),
            kind,
            data,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[&[u8]]) -> Vec<(Option<String>, String, String)> {
        let mut parser = Parser::default();
        for piece in pieces {
            parser.push(piece).expect("short events");
        }
        std::iter::from_fn(|| parser.next())
            .map(|event| (event.id, event.kind, event.data))
            .collect()
    }

    #[track_caller]
    fn check(text: &str, expected: &[(Option<&str>, &str, &str)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(id, kind, data)| {
                (
                    id.map(str::to_owned),
                    (*kind).to_owned(),
                    (*data).to_owned(),
                )
            })
            .collect();
        assert_eq!(all(&[text.as_bytes()]), expected, "{text:?} at once");
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(all(&bytes), expected, "{text:?} byte by byte");
    }

    #[test]
    fn events_have_an_id_a_kind_and_data() {
        check(
            "id: 7\nevent: record\ndata: {}\n\n: awake\n\nid:8\ndata:a\ndata: b\n\n",
            &[(Some("7"), "record", "{}"), (Some("8"), "message", "a\nb")],
        );
    }

    #[test]
    fn every_kind_of_line_end_ends_a_line() {
        check(
            "data: a\r\n\r\ndata: b\r\rdata: c\n\n",
            &[
                (None, "message", "a"),
                (None, "message", "b"),
                (None, "message", "c"),
            ],
        );
    }

    #[test]
    fn an_id_stays_until_there_is_another() {
        check(
            "id: 7\n\ndata: a\n\nid\ndata: b\n\n",
            &[(Some("7"), "message", "a"), (None, "message", "b")],
        );
    }

    #[test]
    fn what_is_not_whole_or_not_known_is_not_an_event() {
        check(
            "\u{feff}data: a\nother: x\nid: a\0b\n\ndata: cut",
            &[(None, "message", "a")],
        );
        check("event: x\n\n", &[]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1 << 20];
        let ends: Vec<_> = (0..17).map(|_| parser.push(&piece)).collect();
        assert_eq!(ends.last(), Some(&Err(TooLong)));
    }

    #[test]
    fn the_server_says_when_to_come_back() {
        let mut parser = Parser::default();
        parser.push(b"retry: 250\n").expect("short");
        assert_eq!(parser.retry(), Some(Duration::from_millis(250)));
        parser.push(b"retry: soon\n").expect("short");
        assert_eq!(parser.retry(), Some(Duration::from_millis(250)));
    }
}

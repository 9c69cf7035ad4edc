//! Server-sent events of agents: bytes in, events out, as the HTML standard describes them. No I/O.
//!
//! Only what answers use is kept: the kind of an event and its data. Text must be UTF-8: replacing what
//! is not would change what an agent gave us to keep.

use std::collections::VecDeque;

/// The most bytes of one event.
const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// `message` unless the stream named another.
    pub(crate) kind: String,
    /// Its lines, joined by line feeds.
    pub(crate) data: String,
}

/// Why nothing more can be read of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One event is longer than 1 MiB.
    TooLong,
    /// It is not UTF-8.
    NotText,
}

/// Puts events together from pieces of any size. Where the pieces are cut makes no difference.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// Bytes, not text: a character may be cut between pieces.
    line: Vec<u8>,
    /// A carriage return ended the last piece; a line feed right after it is the same end.
    is_after_return: bool,
    has_begun: bool,
    kind: String,
    /// Each line of data with a line feed after it. Empty if the event has no data.
    data: String,
    ready: VecDeque<Event>,
    fault: Option<Fault>,
}

impl Parser {
    /// Takes the next piece of a stream.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        if std::mem::take(&mut self.is_after_return) {
            match bytes.first() {
                Some(b'\n') => bytes = &bytes[1..],
                Some(_) => {}
                None => self.is_after_return = true,
            }
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.extend_line(&bytes[..end]);
            // After a fault nothing is an end any more.
            if self.fault.is_some() {
                return;
            }
            self.end_line();
            let is_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if is_return {
                match bytes.first() {
                    Some(b'\n') => bytes = &bytes[1..],
                    Some(_) => {}
                    None => self.is_after_return = true,
                }
            }
        }
        self.extend_line(bytes);
    }

    /// The next whole event. After a fault there are no more.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, Fault> {
        match (self.ready.pop_front(), self.fault) {
            (Some(event), _) => Ok(Some(event)),
            (None, Some(fault)) => Err(fault),
            (None, None) => Ok(None),
        }
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        if self.line.len() + bytes.len() + self.data.len() > EVENT_BYTES_MAX {
            self.fault = Some(Fault::TooLong);
        }
        if self.fault.is_none() {
            self.line.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        let Ok(text) = std::str::from_utf8(&line) else {
            self.fault = Some(Fault::NotText);
            return;
        };
        let text = if self.has_begun {
            text
        } else {
            text.strip_prefix('\u{feff}').unwrap_or(text)
        };
        self.has_begun = true;
        if text.is_empty() {
            self.end_event();
        } else {
            self.take_field(text);
        }
        // The next line needs the room again.
        line.clear();
        self.line = line;
    }

    fn take_field(&mut self, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            // Comments begin with a colon: their field is empty.
            _ => {}
        }
    }

    fn end_event(&mut self) {
        let mut kind = std::mem::take(&mut self.kind);
        let mut data = std::mem::take(&mut self.data);
        if data.pop().is_none() {
            return;
        }
        if kind.is_empty() {
            "message".clone_into(&mut kind);
        }
        self.ready.push_back(Event { kind, data });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outcome = (Vec<(String, String)>, Option<Fault>);

    fn read(pieces: &[&[u8]]) -> Outcome {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        for piece in pieces {
            parser.push(piece);
            loop {
                match parser.next() {
                    Ok(Some(event)) => events.push((event.kind, event.data)),
                    Ok(None) => break,
                    Err(fault) => return (events, Some(fault)),
                }
            }
        }
        (events, None)
    }

    /// Reads a stream whole, byte by byte, cut once at every place, and cut twice at every two places
    /// that are near each other.
    #[track_caller]
    fn check(stream: &[u8], expected: &[(&str, &str)], fault: Option<Fault>) {
        let events = expected
            .iter()
            .map(|(kind, data)| ((*kind).to_owned(), (*data).to_owned()));
        let expected: Outcome = (events.collect(), fault);
        assert_eq!(read(&[stream]), expected, "at once");
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(read(&bytes), expected, "byte by byte");
        for first in 0..=stream.len() {
            for second in first..=stream.len().min(first + 4) {
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(read(&pieces), expected, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn a_stream_means_the_same_wherever_it_is_cut() {
        check(
            "\u{feff}data: {\"a\":\"grüße 🦀\"}\r\n\r\n: awake\r\rdata:one\rdata: two\r\r\
             event: error\ndata:  x\n\nid: 7\nretry: 5\nunknown\ndata\n\n\
             event: lost\n\ndata: [DONE]\r\n\ndata: cut"
                .as_bytes(),
            &[
                ("message", "{\"a\":\"grüße 🦀\"}"),
                ("message", "one\ntwo"),
                ("error", " x"),
                ("message", ""),
                ("message", "[DONE]"),
            ],
            None,
        );
    }

    #[test]
    fn what_is_not_text_is_not_read_and_what_came_before_it_is() {
        check(
            b"data: a\n\ndata: \xff\xfe\n\ndata: b\n\n",
            &[("message", "a")],
            Some(Fault::NotText),
        );
    }

    #[test]
    fn only_the_first_mark_of_byte_order_is_none_of_the_text() {
        check(
            "\u{feff}data: a\n\n\u{feff}data: b\n\n".as_bytes(),
            &[("message", "a")],
            None,
        );
    }

    #[test]
    fn an_event_of_a_mebibyte_is_read_and_a_longer_one_is_not() {
        let room = EVENT_BYTES_MAX - "data: ".len();
        for pieces in [1, 3] {
            for (length, is_read) in [(room, true), (room + 1, false)] {
                let stream = format!("data: a\n\ndata: {}\n\n", "x".repeat(length));
                let parts = stream.as_bytes().chunks(stream.len().div_ceil(pieces));
                let (events, fault) = read(&parts.collect::<Vec<_>>());
                assert_eq!(events.len(), if is_read { 2 } else { 1 });
                assert_eq!(fault, (!is_read).then_some(Fault::TooLong));
            }
        }
    }

    #[test]
    fn an_event_of_many_short_lines_is_also_too_long() {
        let stream = "data: 0123456789\n".repeat(EVENT_BYTES_MAX / 10);
        let (events, fault) = read(&[stream.as_bytes(), b"\n\n"]);
        assert!(events.is_empty() && fault == Some(Fault::TooLong));
    }

    #[test]
    fn a_line_that_never_ends_is_too_long() {
        let mut parser = Parser::default();
        for _ in 0..1025 {
            parser.push(&[b':'; 1024]);
        }
        assert_eq!(parser.next(), Err(Fault::TooLong));
        assert!(parser.line.capacity() <= 2 * EVENT_BYTES_MAX);
    }
}

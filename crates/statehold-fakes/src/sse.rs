//! Server-sent events: bytes in, events out. It shares no code with the product, so that tests judge our
//! streams by a second reading of the standard.

use std::borrow::Cow;

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// The last id of the stream up to this event, empty if it had none.
    pub id: String,
    /// Whether this event has an id of its own.
    pub has_id: bool,
    /// The type of the event; `message` if the sender named none.
    pub event: String,
    /// The data, its lines joined by line feeds.
    pub data: String,
}

/// Turns bytes, cut anywhere, into events.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    after_return: bool,
    has_begun: bool,
    id: String,
    has_id: bool,
    event: String,
    data: Option<String>,
    faults: Vec<String>,
}

impl SseParser {
    /// Takes the next bytes and returns the events that they complete.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<SseEvent> {
        let mut events = Vec::new();
        while let Some((&first, rest)) = bytes.split_first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                bytes = rest;
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let Some(end) = end else {
                self.line.extend_from_slice(bytes);
                break;
            };
            self.after_return = bytes[end] == b'\r';
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            events.extend(self.end_line(&line));
        }
        events
    }

    /// Bytes of the line that has not ended yet.
    pub fn unfinished_bytes(&self) -> usize {
        self.line.len()
    }

    /// Lines that no sender should write: unknown fields, types of events without data, and lines that are
    /// not UTF-8.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    fn end_line(&mut self, line: &[u8]) -> Option<SseEvent> {
        let text = String::from_utf8_lossy(line);
        if matches!(text, Cow::Owned(_)) {
            self.faults.push(text.clone().into_owned());
        }
        let mut line = text.as_ref();
        if !std::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "event" => value.clone_into(&mut self.event),
            "id" if !value.contains('\0') => {
                value.clone_into(&mut self.id);
                self.has_id = true;
            }
            // A comment.
            "" => {}
            _ => self.faults.push(line.to_owned()),
        }
        None
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        let mut event = std::mem::take(&mut self.event);
        let has_id = std::mem::take(&mut self.has_id);
        let Some(data) = self.data.take() else {
            self.faults
                .extend((!event.is_empty()).then(|| format!("event: {event}")));
            return None;
        };
        if event.is_empty() {
            "message".clone_into(&mut event);
        }
        Some(SseEvent {
            id: self.id.clone(),
            has_id,
            event,
            data,
        })
    }
}

/// All events of a whole stream.
pub fn parse_events(stream: &[u8]) -> Vec<SseEvent> {
    SseParser::default().push(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, has_id: bool, event: &str, data: &str) -> SseEvent {
        SseEvent {
            id: id.to_owned(),
            has_id,
            event: event.to_owned(),
            data: data.to_owned(),
        }
    }

    #[track_caller]
    fn check(stream: impl AsRef<[u8]>, expected: &[SseEvent], faults: &[&str]) {
        let stream = stream.as_ref();
        assert_eq!(parse_events(stream), expected, "in one piece");
        let mut parser = SseParser::default();
        let bytes = stream.chunks(1);
        let cut: Vec<SseEvent> = bytes.flat_map(|byte| parser.push(byte)).collect();
        assert_eq!(cut, expected, "byte by byte");
        assert_eq!(parser.faults(), faults);
    }

    #[test]
    fn a_stream_is_read_however_it_is_cut() {
        let events = [
            event("1", true, "record", "{\"a\":1}"),
            event("2", true, "record", "x"),
        ];
        for stream in [
            "id: 1\nevent: record\ndata: {\"a\":1}\n\nid: 2\nevent: record\ndata: x\n\n",
            "id:1\r\nevent:record\r\ndata:{\"a\":1}\r\n\r\nid:2\r\nevent:record\r\ndata:x\r\n\r\n",
            "id: 1\revent: record\rdata: {\"a\":1}\r\rid: 2\revent: record\rdata: x\r\r",
        ] {
            check(stream, &events, &[]);
        }
    }

    #[test]
    fn lines_of_data_are_joined_and_comments_skipped() {
        check(
            "\u{feff}: hello\n\ndata: a\ndata:\ndata:  b\n\n: quiet\n\n",
            &[event("", false, "message", "a\n\n b")],
            &[],
        );
    }

    #[test]
    fn an_id_stays_until_the_next_and_an_unfinished_event_is_none() {
        check(
            "id: 7\ndata: a\n\ndata: b\n\nid: x\0y\ndata: c\n\nid: 8\ndata: cut off\n",
            &[
                event("7", true, "message", "a"),
                event("7", false, "message", "b"),
                event("7", false, "message", "c"),
            ],
            &["id: x\0y"],
        );
        check(
            "event: record\nid: 3\n\ndata: a\n\n",
            &[event("3", false, "message", "a")],
            &["event: record"],
        );
    }

    #[test]
    fn lines_that_no_sender_should_write_are_listed() {
        check(
            b"retry: 5\ndata: \xff\nwhat\n\n",
            &[event("", false, "message", "\u{fffd}")],
            &["retry: 5", "data: \u{fffd}", "what"],
        );
    }
}

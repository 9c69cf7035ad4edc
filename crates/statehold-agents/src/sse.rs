//! Server-sent events of a body: bytes in, event blocks out, with a limit on the bytes of one event.
//!
//! The parser of `sse-stream` buffers an event of any length, so bytes are counted before it gets them.

use std::error::Error;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use sse_stream::SseByteStream;

pub use sse_stream::Sse;

/// Why a stream of events ended early.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError<E> {
    /// One event has more bytes than the limit.
    #[error("an event is too long")]
    TooLong,
    /// Replacing bytes that are not UTF-8 would change an answer that is stored.
    #[error("an event is not UTF-8")]
    NotText,
    /// The body failed.
    #[error(transparent)]
    Body(E),
}

/// The event blocks of `body`, each as its lines have it: nothing is inherited from earlier blocks, and
/// a block may have no data. Events before an error are delivered; an incomplete last event is dropped.
pub fn events<S, E>(
    body: S,
    event_bytes_max: usize,
) -> impl Stream<Item = Result<Sse, EventError<E>>>
where
    S: Stream<Item = Result<Bytes, E>>,
    E: Error + Send + Sync + 'static,
{
    let mut meter = EventMeter {
        max: event_bytes_max,
        bytes: 0,
        last_byte: b'\n',
    };
    let bounded = body.flat_map(move |chunk| {
        let (chunk, error) = match chunk {
            Ok(chunk) => match meter.find_excess(&chunk) {
                None => (Some(chunk), None),
                Some(end) => (Some(chunk.slice(..end)), Some(EventError::TooLong)),
            },
            Err(error) => (None, Some(EventError::Body(error))),
        };
        stream::iter(chunk.map(Ok).into_iter().chain(error.map(Err)))
    });
    SseByteStream::new(bounded).map_err(restore_error)
}

/// The library boxes the errors of its input, which are of this type alone.
fn restore_error<E: Error + Send + Sync + 'static>(error: sse_stream::Error) -> EventError<E> {
    match error {
        sse_stream::Error::Body(error) => *error.downcast().expect("no other error is put in"),
        _ => EventError::NotText,
    }
}

/// Counts the bytes since the last empty line, without line ends.
struct EventMeter {
    max: usize,
    bytes: usize,
    last_byte: u8,
}

impl EventMeter {
    /// Where `chunk` makes an event longer than the limit.
    fn find_excess(&mut self, chunk: &[u8]) -> Option<usize> {
        for (index, &byte) in chunk.iter().enumerate() {
            let before = std::mem::replace(&mut self.last_byte, byte);
            match (before, byte) {
                // The second half of one line end.
                (b'\r', b'\n') => {}
                (b'\r' | b'\n', b'\r' | b'\n') => self.bytes = 0,
                (_, b'\r' | b'\n') => {}
                _ => self.bytes += 1,
            }
            if self.bytes > self.max {
                return Some(index);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MAX: usize = 1024 * 1024;

    type Outcome = (Vec<Sse>, Option<EventError<std::io::Error>>);

    fn read(chunks: &[&[u8]]) -> Outcome {
        let chunks: Vec<_> = chunks
            .iter()
            .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
            .collect();
        let all = events(stream::iter(chunks), MAX).collect::<Vec<_>>();
        let mut blocks = Vec::new();
        for block in all.now_or_never().expect("every chunk is there") {
            match block {
                Ok(block) => blocks.push(block),
                Err(error) => return (blocks, Some(error)),
            }
        }
        (blocks, None)
    }

    /// Reads a stream whole, byte by byte, cut once at every place, and cut twice at every two places
    /// that are near each other.
    #[track_caller]
    fn check(stream: &[u8], expected: &[Sse], error: Option<&str>) {
        let check = |chunks: &[&[u8]], how: &str| {
            let (blocks, found) = read(chunks);
            assert_eq!(blocks, expected, "{how}");
            let found = found.map(|found| found.to_string());
            assert_eq!(found.as_deref(), error, "{how}");
        };
        check(&[stream], "at once");
        check(&stream.chunks(1).collect::<Vec<_>>(), "byte by byte");
        for first in 0..=stream.len() {
            for second in first..=stream.len().min(first + 4) {
                let chunks = [&stream[..first], &stream[first..second], &stream[second..]];
                check(&chunks, &format!("cut at {first} and {second}"));
            }
        }
    }

    fn data(text: &str) -> Sse {
        Sse::default().data(text)
    }

    #[test]
    fn a_stream_means_the_same_wherever_it_is_cut() {
        check(
            "\u{feff}data: {\"a\":\"grüße 🦀\"}\r\n\r\n: awake\r\rdata:one\rdata: two\r\r\
             event: error\ndata:  x\n\nid: 7\nid: a\0b\nretry: 5\nretry: soon\nunknown\ndata\n\n\
             event: lost\n\nid\ndata: [DONE]\r\n\ndata: cut"
                .as_bytes(),
            &[
                data("{\"a\":\"grüße 🦀\"}"),
                data("one\ntwo"),
                data(" x").event("error"),
                data("").id("7").retry(5),
                Sse::default().event("lost"),
                data("[DONE]").id(""),
            ],
            None,
        );
    }

    #[test]
    fn text_that_is_not_utf_8_ends_the_stream_after_the_events_before_it() {
        check(
            b"data: a\n\ndata: \xff\xfe\n\ndata: b\n\n",
            &[data("a")],
            Some("an event is not UTF-8"),
        );
    }

    #[test]
    fn only_the_first_byte_order_mark_is_left_out() {
        check(
            "\u{feff}data: a\n\n\u{feff}data: b\n\n".as_bytes(),
            &[data("a")],
            None,
        );
    }

    #[test]
    fn an_event_as_long_as_the_limit_is_read_and_a_longer_one_is_not() {
        let room = MAX - "data: ".len();
        for chunks in [1, 3] {
            for (length, is_read) in [(room, true), (room + 1, false)] {
                let stream = format!("data: a\n\ndata: {}\n\n", "x".repeat(length));
                let parts = stream.as_bytes().chunks(stream.len().div_ceil(chunks));
                let (blocks, error) = read(&parts.collect::<Vec<_>>());
                assert_eq!(blocks.len(), if is_read { 2 } else { 1 });
                assert_eq!(matches!(error, Some(EventError::TooLong)), !is_read);
            }
        }
    }

    #[test]
    fn an_event_of_many_short_lines_is_also_too_long() {
        for end in ["\n", "\r", "\r\n"] {
            let stream = format!("data: 0123456789{end}").repeat(MAX / 10);
            let (blocks, error) = read(&[stream.as_bytes(), b"\n\n"]);
            assert!(blocks.is_empty() && matches!(error, Some(EventError::TooLong)));
        }
    }

    #[test]
    fn a_line_that_never_ends_is_too_long() {
        let (blocks, error) = read(&vec![[b':'; 1024].as_slice(); 1025]);
        assert!(blocks.is_empty() && matches!(error, Some(EventError::TooLong)));
    }

    #[test]
    fn a_body_that_fails_ends_the_stream_after_the_events_before_it() {
        let lost = std::io::Error::other("lost");
        let body = stream::iter([Ok(Bytes::from("data: a\n\ndata: b")), Err(lost)]);
        let all = events(body, MAX).collect::<Vec<_>>().now_or_never();
        let all = all.expect("every chunk is there");
        assert!(matches!(&all[..], [Ok(block), Err(EventError::Body(_))] if *block == data("a")));
    }
}

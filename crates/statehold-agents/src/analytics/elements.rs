//! Splits a JSON array of objects into its elements while it arrives: bytes in, whole elements out, in one pass and
//! wherever the chunks and the line breaks are. White space between tokens is dropped; everything else stays.

/// The most bytes of one element.
pub(super) const ELEMENT_BYTES_MAX: usize = 4 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Why the body is no array of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementError {
    /// An element has more bytes than the limit.
    TooLong,
    /// The bytes outside of elements are those of no array.
    NotAnArray,
}

/// Where the reader is, outside of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Start,
    /// Behind the bracket that opens the array.
    Opened,
    /// Behind a comma.
    Separated,
    InElement,
    /// Behind an element.
    Between,
    Done,
}

/// Reads one array.
#[derive(Debug, Default)]
pub(super) struct ElementReader {
    phase: Phase,
    /// The body is one object, not an array.
    is_alone: bool,
    element: Vec<u8>,
    depth: usize,
    in_text: bool,
    is_escaped: bool,
}

impl ElementReader {
    /// Whether the array has ended.
    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether nothing but white space has come.
    pub(super) fn is_empty(&self) -> bool {
        self.phase == Phase::Start
    }

    /// Takes the next bytes and returns the elements that they complete. Bytes behind the array are ignored.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ElementError> {
        let mut elements = Vec::new();
        for &byte in bytes {
            if self.phase != Phase::InElement {
                self.step_outside(byte)?;
            } else if self.add_byte(byte)? {
                self.phase = if self.is_alone {
                    Phase::Done
                } else {
                    Phase::Between
                };
                elements.push(std::mem::take(&mut self.element));
            }
        }
        Ok(elements)
    }

    fn step_outside(&mut self, byte: u8) -> Result<(), ElementError> {
        let is_mark = self.phase == Phase::Start && BYTE_ORDER_MARK.contains(&byte);
        if byte.is_ascii_whitespace() || is_mark {
            return Ok(());
        }
        self.phase = match (self.phase, byte) {
            (Phase::Start, b'[') => Phase::Opened,
            (Phase::Start | Phase::Opened | Phase::Separated, b'{') => {
                self.is_alone = self.phase == Phase::Start;
                self.depth = 1;
                self.element.push(byte);
                Phase::InElement
            }
            (Phase::Between, b',') => Phase::Separated,
            (Phase::Opened | Phase::Between, b']') | (Phase::Done, _) => Phase::Done,
            _ => return Err(ElementError::NotAnArray),
        };
        Ok(())
    }

    /// Adds a byte to the element. Returns whether it is complete.
    fn add_byte(&mut self, byte: u8) -> Result<bool, ElementError> {
        if self.in_text {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
        } else {
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                byte if byte.is_ascii_whitespace() => return Ok(false),
                _ => {}
            }
        }
        if self.element.len() == ELEMENT_BYTES_MAX {
            return Err(ElementError::TooLong);
        }
        self.element.push(byte);
        Ok(self.depth == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(chunks: &[&[u8]]) -> (Vec<String>, Result<bool, ElementError>) {
        let mut reader = ElementReader::default();
        let mut elements = Vec::new();
        for chunk in chunks {
            match reader.push(chunk) {
                Ok(more) => elements.extend(more),
                Err(error) => return (texts(elements), Err(error)),
            }
        }
        (texts(elements), Ok(reader.is_done()))
    }

    fn texts(elements: Vec<Vec<u8>>) -> Vec<String> {
        let texts = elements.into_iter().map(String::from_utf8);
        texts.collect::<Result<_, _>>().expect("UTF-8")
    }

    /// Reads a body whole, byte by byte, and cut once at every place.
    #[track_caller]
    fn check(body: &str, expected: &[&str], outcome: Result<bool, ElementError>) {
        let body = body.as_bytes();
        let byte_by_byte: Vec<&[u8]> = body.chunks(1).collect();
        let mut ways: Vec<Vec<&[u8]>> = vec![vec![body], byte_by_byte];
        ways.extend((0..=body.len()).map(|at| vec![&body[..at], &body[at..]]));
        for chunks in ways {
            let (elements, end) = read(&chunks);
            // Elements that are complete before an error may be lost with the chunk of the error.
            if outcome.is_ok() {
                assert_eq!(elements, expected, "{chunks:?}");
            }
            assert_eq!(end, outcome, "{chunks:?}");
        }
    }

    #[test]
    fn an_array_means_the_same_wherever_it_is_cut() {
        check(
            "\u{feff} [{\n  \"a\": \"grüße ] } \\\" \\\\\",\r\n \"b\": [1, {\"c\": 1.50}]\n}\n,\n{}]\n\n",
            &[r#"{"a":"grüße ] } \" \\","b":[1,{"c":1.50}]}"#, "{}"],
            Ok(true),
        );
        check("[]", &[], Ok(true));
        check(
            r#"[{"a":1},{"b":2}]trailing"#,
            &[r#"{"a":1}"#, r#"{"b":2}"#],
            Ok(true),
        );
    }

    #[test]
    fn an_object_alone_counts_as_the_only_element() {
        check(
            r#" {"error": {"code": 400}} "#,
            &[r#"{"error":{"code":400}}"#],
            Ok(true),
        );
    }

    #[test]
    fn an_array_without_its_end_is_not_done() {
        for body in ["", " ", "[", r#"[{"a":1}"#, r#"[{"a":1},"#] {
            check(
                body,
                &[r#"{"a":1}"#][..usize::from(body.len() > 2)],
                Ok(false),
            );
        }
        check(r#"[{"a":1},{"b":"x"#, &[r#"{"a":1}"#], Ok(false));
    }

    #[test]
    fn other_bodies_are_refused() {
        for body in ["<html>", "data: {}", "[1]", "[{},]", "[{}{}]", "[,{}]", "]"] {
            check(body, &[], Err(ElementError::NotAnArray));
        }
    }

    #[test]
    fn an_element_as_long_as_the_limit_is_read_and_a_longer_one_is_not() {
        let room = ELEMENT_BYTES_MAX - r#"{"a":""}"#.len();
        for (length, is_read) in [(room, true), (room + 1, false)] {
            let body = format!("[{{\"a\": \"{}\"}}]", "x".repeat(length));
            let chunks: Vec<&[u8]> = body.as_bytes().chunks(1 << 16).collect();
            let (elements, end) = read(&chunks);
            assert_eq!(elements.len(), usize::from(is_read));
            let expected = if is_read {
                Ok(true)
            } else {
                Err(ElementError::TooLong)
            };
            assert_eq!(end, expected);
        }
        // White space does not count.
        let body = format!("[{{\"a\":{}1}}]", " ".repeat(ELEMENT_BYTES_MAX));
        assert_eq!(
            read(&[body.as_bytes()]),
            (vec![r#"{"a":1}"#.to_owned()], Ok(true))
        );
    }
}

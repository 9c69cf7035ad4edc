//! The strict JSON scanner in front of every parser of input.
//!
//! JSON parsers disagree about duplicate keys, lone surrogates and large numbers, and attackers exploit
//! that. So the scanner checks a body once, strictly, before any parser: a text that passes means the
//! same to every parser. [`read`] then gives it a type.
//!
//! Beyond RFC 8259 the scanner refuses byte order marks, lone surrogates in escapes, the NUL
//! character, keys that occur twice in an object however they are spelled, nesting and length over
//! the limits, more values than the limit, and numbers that are not kept as they are written.
//! `statehold_core::number` has that rule.

use std::borrow::Cow;

use serde::Deserialize;
use statehold_core::limits::BODY_VALUES_MAX;
use statehold_core::number::{self, NumberError};

/// How long and how deep a text may be, and how many values it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonLimits {
    /// The longest text.
    pub bytes_max: usize,
    /// How many objects and arrays may be open at once. Keep it below 128, where `serde_json` stops.
    pub depth_max: usize,
    /// How many values: texts, numbers, literals, arrays and objects, those inside of others included.
    pub values_max: usize,
    /// Whether each number must be one that every reader keeps as it is written. The routes of ADK take others: they
    /// come back as they are written, and merges and schemas read them as the nearest double.
    pub exact_numbers: bool,
}

impl Default for JsonLimits {
    fn default() -> Self {
        Self {
            bytes_max: 8 * 1024 * 1024,
            depth_max: 64,
            values_max: BODY_VALUES_MAX,
            exact_numbers: true,
        }
    }
}

/// Why a text is refused, and at which byte.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// There is nothing, or only white space.
    #[error("there is no JSON here; send a value")]
    Empty,
    /// Longer than the limit.
    #[error("the text is {bytes} bytes long; send at most {bytes_max}")]
    TooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        bytes_max: usize,
    },
    /// Begins with U+FEFF.
    #[error("byte 0: leave out the byte order mark")]
    ByteOrderMark,
    /// Is not UTF-8.
    #[error("byte {offset}: send UTF-8")]
    NotUtf8 {
        /// The first byte that belongs to no character.
        offset: usize,
    },
    /// Nested deeper than the limit.
    #[error("byte {offset}: nest objects and arrays at most {depth_max} deep")]
    TooDeep {
        /// The bracket that is one too many.
        offset: usize,
        /// How deep it may be.
        depth_max: usize,
    },
    /// More values than the limit.
    #[error(
        "byte {offset}: the body has more than {values_max} JSON values; send fewer at a time, or data of many \
         values as one text"
    )]
    TooManyValues {
        /// The value that is one too many.
        offset: usize,
        /// How many there may be.
        values_max: usize,
    },
    /// An object has a key twice.
    #[error("byte {offset}: the object has the key {key:?} already; send each key once")]
    DuplicateKey {
        /// Where the key occurs again.
        offset: usize,
        /// The key without escapes, cut after 64 characters.
        key: String,
    },
    /// Half of a character outside the basic plane.
    #[error("byte {offset}: a surrogate stands alone; send both halves or the character itself")]
    LoneSurrogate {
        /// The escape.
        offset: usize,
    },
    /// A raw control character in a string.
    #[error("byte {offset}: escape control characters in strings")]
    ControlCharacter {
        /// The character.
        offset: usize,
    },
    /// U+0000 as an escape.
    #[error("byte {offset}: leave out the NUL character")]
    Nul {
        /// The escape.
        offset: usize,
    },
    /// A number that is not kept as it is written.
    #[error(
        "byte {offset}: this number cannot be kept as it is written (integers have 64 bits, others the \
         digits of a double); round it or send it as a string"
    )]
    InexactNumber {
        /// The first byte of the number.
        offset: usize,
    },
    /// Not JSON.
    #[error("byte {offset}: expected {expected}")]
    Syntax {
        /// The byte that does not belong there, or the end of the text.
        offset: usize,
        /// The token that would be valid there.
        expected: &'static str,
    },
}

impl JsonError {
    /// The byte at which the error is.
    pub fn offset(&self) -> usize {
        match self {
            Self::Empty | Self::ByteOrderMark => 0,
            Self::TooLong { bytes_max, .. } => *bytes_max,
            Self::NotUtf8 { offset }
            | Self::TooDeep { offset, .. }
            | Self::TooManyValues { offset, .. }
            | Self::DuplicateKey { offset, .. }
            | Self::LoneSurrogate { offset }
            | Self::ControlCharacter { offset }
            | Self::Nul { offset }
            | Self::InexactNumber { offset }
            | Self::Syntax { offset, .. } => *offset,
        }
    }
}

/// Why a body has no value of the wanted type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The scanner refused it.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// It is JSON, but no object.
    #[error("the body is {found}; send an object")]
    NotAnObject {
        /// The JSON type of the body, with its article.
        found: &'static str,
    },
    /// It is an object of another form.
    #[error("{path}: {problem}")]
    Shape {
        /// Where, for example `items[2].kind`; `body` if it is the object itself.
        path: String,
        /// The error and the expected form.
        problem: String,
    },
}

/// Reads bytes that [`scan`] has accepted as `T`. They must be an object.
///
/// # Errors
///
/// [`ParseError`], with the path to the field where the form is not that of `T`.
pub fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ParseError> {
    let text = text_of(bytes)?;
    let found = match text.trim_start().as_bytes().first() {
        Some(b'{') => return read_object(text),
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    };
    Err(ParseError::NotAnObject { found })
}

fn read_object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, ParseError> {
    // Tracking the path costs as much as parsing, so do it only after an error.
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = match error.path().to_string() {
            root if root == "." => "body".to_owned(),
            path => path,
        };
        let inner = error.inner();
        let mut problem = inner.to_string();
        // Drop the line and column: the path is more useful, and bodies rarely have lines.
        if inner.line() > 0
            && let Some((before, _)) = problem.rsplit_once(" at line ")
        {
            problem.truncate(before.len());
        }
        ParseError::Shape { path, problem }
    })
}

/// Checks that `bytes` are one JSON value within the limits that means the same to every reader. Returns how many
/// values it has, itself included.
///
/// Runs in one pass and without recursion; it allocates only to remember the keys of open objects.
///
/// # Errors
///
/// [`JsonError`], at the first byte that is refused.
pub fn scan(bytes: &[u8], limits: &JsonLimits) -> Result<usize, JsonError> {
    if bytes.len() > limits.bytes_max {
        return Err(JsonError::TooLong {
            bytes: bytes.len(),
            bytes_max: limits.bytes_max,
        });
    }
    if bytes.starts_with("\u{feff}".as_bytes()) {
        return Err(JsonError::ByteOrderMark);
    }
    let text = text_of(bytes)?;
    let scanner = Scanner {
        text,
        bytes,
        at: 0,
        depth_max: limits.depth_max,
        values: 0,
        values_max: limits.values_max,
        exact_numbers: limits.exact_numbers,
        open: Vec::new(),
        keys: Vec::new(),
    };
    scanner.run()
}

fn text_of(bytes: &[u8]) -> Result<&str, JsonError> {
    std::str::from_utf8(bytes).map_err(|error| JsonError::NotUtf8 {
        offset: error.valid_up_to(),
    })
}

/// An object or array that is still open.
enum OpenContainer {
    Array,
    Object {
        /// Where its keys begin in `Scanner::keys`.
        keys_from: usize,
    },
}

struct ObjectKey<'a> {
    /// Without escapes.
    text: Cow<'a, str>,
    offset: usize,
}

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    /// Invariant: at most the length of the text.
    at: usize,
    depth_max: usize,
    /// How many have begun. Invariant: at most `values_max`.
    values: usize,
    values_max: usize,
    exact_numbers: bool,
    open: Vec<OpenContainer>,
    /// The keys of all open objects, those of the innermost last.
    keys: Vec<ObjectKey<'a>>,
}

impl Scanner<'_> {
    /// Returns how many values there are.
    fn run(mut self) -> Result<usize, JsonError> {
        self.skip_space();
        if self.peek().is_none() {
            return Err(JsonError::Empty);
        }
        loop {
            let opened = self.value()?;
            if !opened && self.after_value()? {
                return Ok(self.values);
            }
        }
    }

    /// Reads a scalar or the beginning of an object or array. True if a value must follow.
    fn value(&mut self) -> Result<bool, JsonError> {
        if self.values == self.values_max {
            return Err(JsonError::TooManyValues {
                offset: self.at,
                values_max: self.values_max,
            });
        }
        self.values += 1;
        match self.peek() {
            Some(b'"') => self.string().map(|_| false),
            Some(b'{') => {
                let keys_from = self.keys.len();
                self.enter(OpenContainer::Object { keys_from })?;
                if self.peek() == Some(b'}') {
                    return Ok(false);
                }
                self.key("a key or '}'")?;
                Ok(true)
            }
            Some(b'[') => {
                self.enter(OpenContainer::Array)?;
                Ok(self.peek() != Some(b']'))
            }
            Some(b'-' | b'0'..=b'9') => {
                let number = if self.exact_numbers {
                    number::scan(self.text, self.at)
                } else {
                    number::scan_any(self.text, self.at)
                };
                self.at = number.map_err(|error| match error {
                    NumberError::Syntax { offset, expected } => {
                        JsonError::Syntax { offset, expected }
                    }
                    NumberError::Inexact => JsonError::InexactNumber { offset: self.at },
                })?;
                Ok(false)
            }
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            _ => self.fail("a value"),
        }
    }

    /// Closes the arrays and objects that end here, then moves to the next value. True at the end of the
    /// text.
    fn after_value(&mut self) -> Result<bool, JsonError> {
        loop {
            self.skip_space();
            let next = self.peek();
            match (self.open.last(), next) {
                (None, None) => return Ok(true),
                (None, Some(_)) => return self.fail("nothing after the value"),
                (Some(OpenContainer::Array), Some(b',')) => {
                    self.step();
                    return Ok(false);
                }
                (Some(OpenContainer::Object { .. }), Some(b',')) => {
                    self.step();
                    self.key("a key")?;
                    return Ok(false);
                }
                (Some(OpenContainer::Array), Some(b']')) => {}
                (Some(&OpenContainer::Object { keys_from }), Some(b'}')) => {
                    self.check_keys(keys_from)?;
                    self.keys.truncate(keys_from);
                }
                (Some(OpenContainer::Array), _) => return self.fail("',' or ']'"),
                (Some(OpenContainer::Object { .. }), _) => return self.fail("',' or '}'"),
            }
            self.at += 1;
            self.open.pop();
        }
    }

    fn enter(&mut self, open: OpenContainer) -> Result<(), JsonError> {
        if self.open.len() >= self.depth_max {
            return Err(JsonError::TooDeep {
                offset: self.at,
                depth_max: self.depth_max,
            });
        }
        self.open.push(open);
        self.step();
        Ok(())
    }

    /// Reads a key and the colon after it.
    fn key(&mut self, expected: &'static str) -> Result<(), JsonError> {
        if self.peek() != Some(b'"') {
            return self.fail(expected);
        }
        let offset = self.at;
        let has_escapes = self.string()?;
        let text = if has_escapes {
            let key = serde_json::from_str(&self.text[offset..self.at]);
            Cow::Owned(key.expect("every parser reads a string that the scanner has accepted"))
        } else {
            Cow::Borrowed(&self.text[offset + 1..self.at - 1])
        };
        self.keys.push(ObjectKey { text, offset });
        self.skip_space();
        if self.peek() != Some(b':') {
            return self.fail("':'");
        }
        self.step();
        Ok(())
    }

    /// Refuses the innermost object if two of its keys are the same.
    fn check_keys(&mut self, keys_from: usize) -> Result<(), JsonError> {
        /// Up to here comparing each with each is cheaper than sorting, and allocates nothing.
        const PAIRWISE_MAX: usize = 16;
        let keys = &mut self.keys[keys_from..];
        let duplicate = if keys.len() <= PAIRWISE_MAX {
            keys.iter()
                .enumerate()
                .find(|(index, key)| keys[..*index].iter().any(|other| other.text == key.text))
                .map(|(_, key)| key)
        } else {
            // Sorting, unlike hashing, has no bad case that a sender could aim for.
            keys.sort_unstable_by(|a, b| (&a.text, a.offset).cmp(&(&b.text, b.offset)));
            keys.windows(2)
                .filter(|pair| pair[0].text == pair[1].text)
                .map(|pair| &pair[1])
                .min_by_key(|key| key.offset)
        };
        duplicate.map_or(Ok(()), |key| {
            Err(JsonError::DuplicateKey {
                offset: key.offset,
                key: key.text.chars().take(64).collect(),
            })
        })
    }

    /// Reads a string. True if it has escapes.
    fn string(&mut self) -> Result<bool, JsonError> {
        let mut has_escapes = false;
        self.at += 1;
        loop {
            self.at += plain_bytes(&self.bytes[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(has_escapes);
                }
                Some(b'\\') => {
                    has_escapes = true;
                    self.escape()?;
                }
                Some(_) => return Err(JsonError::ControlCharacter { offset: self.at }),
                None => return self.fail("'\"' at the end of the string"),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        let offset = self.at;
        match self.bytes.get(offset + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                return Ok(());
            }
            Some(b'u') => {}
            _ => return self.fail("a valid escape"),
        }
        match self.code_unit()? {
            0 => Err(JsonError::Nul { offset }),
            0xD800..=0xDBFF => {
                let paired = self.bytes[self.at..].starts_with(b"\\u")
                    && matches!(self.code_unit()?, 0xDC00..=0xDFFF);
                if paired {
                    Ok(())
                } else {
                    Err(JsonError::LoneSurrogate { offset })
                }
            }
            0xDC00..=0xDFFF => Err(JsonError::LoneSurrogate { offset }),
            _ => Ok(()),
        }
    }

    /// Reads `\uXXXX`, of which the first two bytes are known to be there.
    fn code_unit(&mut self) -> Result<u32, JsonError> {
        let digits = self.bytes.get(self.at + 2..self.at + 6);
        let Some(unit) = digits.and_then(hex) else {
            return self.fail("four hexadecimal digits after '\\u'");
        };
        self.at += 6;
        Ok(unit)
    }

    fn literal(&mut self, word: &'static str) -> Result<bool, JsonError> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(false)
        } else {
            self.fail("true, false or null")
        }
    }

    /// Skips this byte and the white space after it.
    fn step(&mut self) {
        self.at += 1;
        self.skip_space();
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn fail<T>(&self, expected: &'static str) -> Result<T, JsonError> {
        Err(JsonError::Syntax {
            offset: self.at,
            expected,
        })
    }
}

/// How many bytes from the beginning are neither a quote, nor a backslash, nor a control character.
///
/// Most of every body is text in strings, so this checks eight bytes at a time.
fn plain_bytes(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    const SPACES: u64 = u64::from_ne_bytes([b' '; 8]);
    const QUOTES: u64 = u64::from_ne_bytes([b'"'; 8]);
    const BACKSLASHES: u64 = u64::from_ne_bytes([b'\\'; 8]);

    let mut at = 0;
    while let Some(chunk) = bytes[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let (quote, backslash) = (word ^ QUOTES, word ^ BACKSLASHES);
        // The high bit of each byte below 0x20, or zero after the xor. A borrow can only mark bytes
        // above a true find, and the lowest find is the one that counts.
        let found = (word.wrapping_sub(SPACES) & !word)
            | (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash);
        let found = found & HIGH;
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    let rest = &bytes[at..];
    at + rest.iter().position(is_special).unwrap_or(rest.len())
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |unit, &digit| {
        Some(unit * 16 + char::from(digit).to_digit(16)?)
    })
}

#[cfg(test)]
mod tests;

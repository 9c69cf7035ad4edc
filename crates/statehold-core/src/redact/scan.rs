//! Finds secrets in a text, by the rules and by configured patterns.

use std::ops::Range;

use aho_corasick::Input;

use super::rules::{ANCHORS, KEY_BYTES_MAX, MANY, Part, RULES, Rule, Set, Shape, secret_name};
use super::{Pattern, RuleId};

/// The longest user and password in a URL, in bytes.
const AUTHORITY_BYTES_MAX: usize = 1_024;
/// The longest scheme of a URL, in bytes.
const SCHEME_BYTES_MAX: usize = 32;
/// How far before `password=` another pair of a connection string begins at most, in bytes.
const PAIR_BYTES_MAX: usize = 128;
/// The longest name of a variable, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// How much of a value is looked at to tell it from the place for one, in bytes. The rest only belongs to it.
const JUDGED_BYTES_MAX: usize = 256;
/// The longest label of a PEM block.
const LABEL_BYTES_MAX: usize = 40;
/// The most white space before a variable on its line, and between a key and its value.
const INDENT_BYTES_MAX: usize = 64;

/// A secret in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) at: Range<usize>,
    pub(super) rule: RuleId,
}

/// The secrets of a text, in order, without overlaps.
pub(super) fn find(text: &str, patterns: &[Pattern]) -> Vec<Found> {
    let mut found = find_by_rules(text);
    if !patterns.is_empty() {
        found = with_patterns(text, patterns, found);
    }
    found
}

fn find_by_rules(text: &str) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let (mut from, mut done) = (0, 0);
    // Per rule: up to where a run has neither a letter nor a digit too few, so that no anchor in it is looked at again.
    let mut unmixed = [0; RULES.len()];
    while let Some(anchor) = ANCHORS.find.find(Input::new(text).span(from..text.len())) {
        let start = anchor.start();
        let (_, rules) = &ANCHORS.rules[anchor.pattern().as_usize()];
        let scan = Scan {
            text: text.as_bytes(),
            done,
        };
        let secret = rules.iter().find_map(|number| {
            let rule = &RULES[*number];
            if start < unmixed[*number] {
                return None;
            }
            let mut anchors = rule.anchors.iter();
            let at = anchors.find_map(|anchor| {
                let is_here = text[start..].starts_with(anchor);
                let at = is_here.then(|| scan.matched(rule, start, start + anchor.len()))??;
                if rule.is_mixed && !is_mixed(&text.as_bytes()[at.clone()]) {
                    // Every later match within the run has no more characters than this one.
                    unmixed[*number] = if rule.is_open_ended() { at.end } else { 0 };
                    return None;
                }
                Some(at)
            })?;
            Some(Found {
                at: at.start..text.ceil_char_boundary(at.end),
                rule: RuleId::own(rule.id),
            })
        });
        match secret {
            Some(secret) => {
                from = secret.at.end.max(anchor.end());
                done = secret.at.end;
                found.push(secret);
            }
            // Anchors are ASCII: a character begins behind their first byte.
            None => from = start + 1,
        }
    }
    found
}

/// Whether a secret has letters and digits.
fn is_mixed(secret: &[u8]) -> bool {
    secret.iter().any(u8::is_ascii_digit) && secret.iter().any(u8::is_ascii_alphabetic)
}

/// Adds what the patterns find in each line, outside of what the rules found.
fn with_patterns(text: &str, patterns: &[Pattern], found: Vec<Found>) -> Vec<Found> {
    let mut all = found;
    let mut begin = 0;
    for line in text.split_inclusive('\n') {
        let end = begin + line.len();
        for pattern in patterns {
            let matches = pattern.regex.find_iter(line.trim_end_matches(['\n', '\r']));
            let matches = matches.filter(|matched| !matched.is_empty());
            all.extend(matches.map(|matched| Found {
                at: begin + matched.start()..begin + matched.end(),
                rule: pattern.rule.clone(),
            }));
        }
        begin = end;
    }
    all.sort_by_key(|found| (found.at.start, std::cmp::Reverse(found.at.end)));
    let mut apart: Vec<Found> = Vec::with_capacity(all.len());
    for next in all {
        match apart.last_mut() {
            // Overlapping matches are one secret.
            Some(last) if next.at.start < last.at.end => last.at.end = last.at.end.max(next.at.end),
            _ => apart.push(next),
        }
    }
    apart
}

struct Scan<'t> {
    text: &'t [u8],
    /// Where the last secret ended: nothing before belongs to another.
    done: usize,
}

impl Scan<'_> {
    /// The secret of a rule whose anchor is at `start..end`.
    fn matched(&self, rule: &Rule, start: usize, end: usize) -> Option<Range<usize>> {
        Some(match rule.shape {
            Shape::Parts(parts) => {
                if self.goes_on(start, first_set(parts)) {
                    return None;
                }
                start..self.parts(parts, end)?
            }
            Shape::Behind(parts) => end..self.parts(parts, end)?,
            Shape::Around(set, least, most, parts) => {
                let before = self.run_before(set, start, most + 1);
                let is_fit = (least..=most).contains(&before);
                let begin = start - before;
                if !is_fit || self.goes_on(begin, Some(set)) {
                    return None;
                }
                end..self.parts(parts, end)?
            }
            Shape::Pem => self.pem(start, end)?,
            Shape::UrlPassword => self.url_password(start, end)?,
            Shape::PairValue => self.pair_value(start, end)?,
            Shape::Variable => self.variable(start, end)?,
            Shape::QuotedPair => self.quoted_value(start, end)?,
            Shape::Basic => {
                let secret = end..self.parts(&[Part::Run(Set::Base64, 12, MANY)], end)?;
                let mut inner = self.text[secret.clone()].iter().skip(1);
                inner
                    .any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
                    .then_some(secret)?
            }
        })
    }

    /// Whether a word or a run of this class goes on at a place.
    fn goes_on(&self, at: usize, set: Option<Set>) -> bool {
        let before = &self.text[self.done..at];
        let last = before.last().filter(|_| !ends_with_escape(before));
        last.is_some_and(|byte| Set::Word.has(*byte) || set.is_some_and(|set| set.has(*byte)))
    }

    /// The end of these parts from a place on. Padding of base64 belongs to the last of them.
    fn parts(&self, parts: &[Part], from: usize) -> Option<usize> {
        let mut at = from;
        for part in parts {
            at = match part {
                Part::Is(text) => self.text[at..]
                    .starts_with(text.as_bytes())
                    .then(|| at + text.len())?,
                Part::Run(set, least, most) => {
                    let length = self.run(*set, at, most + 1);
                    (*least..=*most).contains(&length).then(|| at + length)?
                }
            };
        }
        let last = parts.last();
        if matches!(
            last,
            Some(Part::Run(
                Set::Alnum | Set::Hex | Set::Upper | Set::Digit,
                ..
            ))
        ) && self.text.get(at).is_some_and(|byte| Set::Word.has(*byte))
        {
            return None;
        }
        let padding = self.text[at..]
            .iter()
            .take(2)
            .take_while(|byte| **byte == b'=');
        Some(at + padding.count())
    }

    /// How many characters of a class there are from a place on, up to `most`.
    fn run(&self, set: Set, from: usize, most: usize) -> usize {
        let bytes = self.text[from..].iter().take(most);
        counted(bytes.take_while(|byte| set.has(**byte)).count())
    }

    fn run_before(&self, set: Set, to: usize, most: usize) -> usize {
        let bytes = self.text[self.done..to].iter().rev().take(most);
        counted(bytes.take_while(|byte| set.has(**byte)).count())
    }

    /// A PEM block whose label says that it is a private key: to its end, or to the end of the text.
    fn pem(&self, start: usize, end: usize) -> Option<Range<usize>> {
        let rest = &self.text[end..];
        let label = &rest[..rest.len().min(LABEL_BYTES_MAX)];
        let label_end = find_bytes(label, b"-----")?;
        find_bytes(&label[..label_end], b"PRIVATE KEY")?;
        let body = end + label_end;
        let end = self.pem_end(body + 5);
        Some(start..end.unwrap_or(self.text.len()))
    }

    /// Behind the end label of a private key. One of another kind does not end it.
    fn pem_end(&self, from: usize) -> Option<usize> {
        let near = self.text.get(from..)?;
        let mut at = 0;
        while let Some(found) = find_bytes(&near[at..], b"-----END ") {
            let label = at + found + 9;
            let rest = &near[label..near.len().min(label + LABEL_BYTES_MAX)];
            let end = find_bytes(rest, b"-----").unwrap_or(rest.len());
            if find_bytes(&rest[..end], b"PRIVATE KEY").is_some() {
                return Some((from + label + end + 5).min(self.text.len()));
            }
            at = label;
        }
        None
    }

    /// The password of an authority behind the `://` at `start`.
    fn url_password(&self, start: usize, from: usize) -> Option<Range<usize>> {
        let scheme = self.text[self.done..start]
            .iter()
            .rev()
            .take(SCHEME_BYTES_MAX);
        let mut scheme = scheme.take_while(|byte| Set::Alnum.has(**byte) || b"+-.".contains(byte));
        if !scheme.any(u8::is_ascii_alphabetic) {
            return None;
        }
        let bytes = self.text[from..].iter().take(AUTHORITY_BYTES_MAX);
        let is_authority = |byte: &&u8| {
            !byte.is_ascii_whitespace()
                && !byte.is_ascii_control()
                && !b"/?#\"'<>`\\".contains(byte)
        };
        let length = counted(bytes.take_while(is_authority).count());
        let authority = &self.text[from..from + length];
        let at = authority.iter().rposition(|byte| *byte == b'@')?;
        let colon = authority[..at].iter().position(|byte| *byte == b':')?;
        let password = from + colon + 1..from + at;
        is_value(&self.text[password.clone()]).then_some(password)
    }

    /// The value of `password=` in `host=h user=u password=…`, in `Server=h;Password=…` or in the query of a URL.
    fn pair_value(&self, start: usize, end: usize) -> Option<Range<usize>> {
        let before = self.text[self.done..start].last()?;
        let is_pair = match before {
            b';' | b'&' | b'?' => true,
            b' ' => {
                let word = &self.text[self.done..start - 1];
                let word = word
                    .iter()
                    .rev()
                    .take(PAIR_BYTES_MAX)
                    .take_while(|byte| **byte != b' ');
                let word: Vec<u8> = word.copied().collect();
                word.first().is_some_and(|last| Set::Dotted.has(*last)) && word.contains(&b'=')
            }
            _ => false,
        };
        if !is_pair {
            return None;
        }
        self.value(end, |byte| b"\"'`;&<>".contains(&byte))
    }

    /// A value that begins at a place: behind a quote up to the next one on the line, else up to white space or one of
    /// these ends. None if it is the place for one.
    fn value(&self, from: usize, ends: impl Fn(u8) -> bool) -> Option<Range<usize>> {
        let quote = self
            .text
            .get(from)
            .copied()
            .filter(|byte| b"\"'".contains(byte));
        let from = from + usize::from(quote.is_some());
        let is_inside = |byte: u8| match quote {
            Some(quote) => byte != quote && byte != b'\n' && byte != b'\r',
            None => !byte.is_ascii_whitespace() && !byte.is_ascii_control() && !ends(byte),
        };
        let run = |most: usize| {
            let bytes = self.text[from..].iter().take(most);
            counted(bytes.take_while(|byte| is_inside(**byte)).count())
        };
        // Judged by its beginning: only a value is walked to its end, and no anchor in it is looked at again.
        if !is_value(&self.text[from..from + run(JUDGED_BYTES_MAX)]) {
            return None;
        }
        let value = &self.text[from..from + run(MANY)];
        let more = value.iter().rev().take_while(|byte| **byte == b',').count();
        Some(from..from + value.len() - more)
    }

    /// The value of a variable whose name ends at `end` with `=`, if a line begins with the name.
    fn variable(&self, start: usize, end: usize) -> Option<Range<usize>> {
        let bytes = self.text[self.done..start]
            .iter()
            .rev()
            .take(NAME_BYTES_MAX);
        let is_name = |byte: &&u8| Set::Upper.has(**byte) || **byte == b'_';
        let name = bytes.take_while(is_name).count();
        let before = &self.text[..start - name];
        // Before the value is walked: a text may be full of anchors.
        if !begins_assignment(before) {
            return None;
        }
        let is_quoted = self.text.get(end).is_some_and(|byte| b"\"'".contains(byte));
        let value = self.value(end, |byte| b"\"'`<>".contains(&byte))?;
        let text = &self.text[value.clone()];
        // A key or a token has a digit; a password may be words.
        let is_key = [&b"TOKEN="[..], b"KEY="]
            .iter()
            .any(|name| self.text[..end].ends_with(name));
        if text.len() < 6 || is_key && !is_mixed(text) || !is_quoted && is_code(text) {
            return None;
        }
        Some(value)
    }

    /// The value of `"password": "…"`, up to its closing quote, or to the end of a text that was cut off. The quotes may
    /// be escaped, as in JSON inside a text.
    fn quoted_value(&self, start: usize, end: usize) -> Option<Range<usize>> {
        let anchor = &self.text[start..end];
        let quote = anchor[..anchor.len() - 1].trim_ascii_end();
        let key_from = start
            .saturating_sub(KEY_BYTES_MAX + quote.len())
            .max(self.done);
        let before = &self.text[key_from..start];
        let opened = before
            .windows(quote.len())
            .rposition(|bytes| bytes == quote)?;
        let key = std::str::from_utf8(&before[opened + quote.len()..]).ok()?;
        let name = secret_name(key)?;
        let rest = &self.text[end..];
        let spaces = rest.iter().take(INDENT_BYTES_MAX);
        let spaces = spaces.take_while(|byte| byte.is_ascii_whitespace()).count();
        let rest = rest[spaces..].strip_prefix(quote)?;
        let from = end + spaces + quote.len();
        let length = counted(quoted_length(rest, quote));
        let value = &rest[..length];
        // While the quote is open, more may come that makes it a secret.
        let is_open = length == rest.len();
        let is_secret = || {
            let fits = std::str::from_utf8(value).is_ok_and(|text| name.fits(text));
            fits && is_value(&value[..length.min(JUDGED_BYTES_MAX)])
        };
        (length > 0 && (is_open || is_secret())).then_some(from..from + length)
    }
}

/// Whether a value is one, and not the place for one: `${PASSWORD}`, `<password>`, `%s`, `***`, `…`, or redacted.
fn is_value(value: &[u8]) -> bool {
    let is_name = |byte: &u8| Set::Upper.has(*byte) || *byte == b'_';
    let is_place = match value {
        [] | [b'<', ..] => true,
        [b'$', rest @ ..] => {
            rest.starts_with(b"{") || rest.starts_with(b"(") || rest.iter().all(is_name)
        }
        [b'{', rest @ ..] => rest.contains(&b'}'),
        [b'[', rest @ ..] => rest.contains(&b']'),
        [b'%', rest @ ..] => {
            rest.len() < 2 || matches!(rest[0], b'(' | b'{') || rest.ends_with(b"%")
        }
        [b'*', rest @ ..] => rest.iter().all(|byte| *byte == b'*'),
        _ => value.starts_with("…".as_bytes()),
    };
    !is_place
}

/// Whether the value of a variable is an expression of a program: `get_token()`, `os.environ['K']`, `process.env.KEY`.
fn is_code(value: &[u8]) -> bool {
    let is_path = |byte: &u8| byte.is_ascii_alphabetic() || b"._".contains(byte);
    value.iter().any(|byte| b"([".contains(byte))
        || value.contains(&b'.') && value.iter().all(is_path)
}

/// Whether a text ends with the escape of a character, such as the two characters `\n` in JSON that was cut off.
fn ends_with_escape(text: &[u8]) -> bool {
    matches!(text, [.., b'\\', b'n' | b'r' | b't'])
}

/// Whether a variable behind this text is assigned: at the beginning of a line, or behind `export`.
fn begins_assignment(before: &[u8]) -> bool {
    let near = &before[before.len().saturating_sub(INDENT_BYTES_MAX)..];
    let indent = near
        .iter()
        .rev()
        .take_while(|byte| b" \t".contains(byte))
        .count();
    let line = &before[..before.len() - indent];
    line.is_empty() || line.ends_with(b"\n") || indent > 0 && line.ends_with(b"export")
}

/// The length of a text up to its closing quote, or to its end. Other escapes than that of the quote count as text.
fn quoted_length(text: &[u8], quote: &[u8]) -> usize {
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(quote) {
            return at;
        }
        // An escape inside a text whose quotes are no escapes themselves.
        at += if text[at] == b'\\' && quote.len() == 1 {
            2
        } else {
            1
        };
    }
    text.len()
}

#[cfg(test)]
thread_local! {
    /// How many characters were looked at.
    pub(super) static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts the characters of a run in tests, which hold their number against the length of the text.
fn counted(length: usize) -> usize {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + length + 1));
    length
}

/// Whether the end of a text, a word that may go on, may become a secret. `at` is where the word begins.
pub(super) fn may_become_secret(text: &str, at: usize) -> bool {
    let (before, word) = text.split_at(at);
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let has_letter = || word.bytes().any(|byte| byte.is_ascii_alphabetic());
    if digits >= 8 || (digits > 0 && word.len() >= 4 && has_letter()) {
        return true;
    }
    if ANCHORS.find.is_match(word) {
        return true;
    }
    let begins = |place: usize, anchor: &str| {
        let rest = &word[place..];
        !rest.is_empty() && anchor.starts_with(rest)
    };
    // An anchor that has begun and not ended is shorter than the longest one.
    let tail = word.ceil_char_boundary(word.len().saturating_sub(ANCHORS.bytes_max));
    let places = word[tail..].char_indices().map(|(place, _)| tail + place);
    let places = places.filter(|place| {
        let before = &word.as_bytes()[..*place];
        before.last().is_none_or(|byte| !Set::Word.has(*byte)) || ends_with_escape(before)
    });
    let places: Vec<usize> = places.collect();
    let mut anchors = RULES.iter().flat_map(|rule| rule.anchors);
    anchors.any(|anchor| {
        anchor.ends_with(' ') && !word.is_empty() && before.ends_with(anchor)
            || places.iter().any(|place| begins(*place, anchor))
    })
}

fn first_set(parts: &[Part]) -> Option<Set> {
    match parts.first() {
        Some(Part::Run(set, ..)) => Some(*set),
        _ => None,
    }
}

fn find_bytes(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

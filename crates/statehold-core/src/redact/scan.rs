//! Finds secrets in a text, by the rules and by configured patterns.

use std::ops::Range;

use aho_corasick::Input;

use super::rules::{ANCHORS, Part, RULES, Rule, Set, Shape};
use super::{Pattern, RuleId};

/// The longest user and password in a URL, and the longest pair of a connection string, in bytes.
const AUTHORITY_BYTES_MAX: usize = 1_024;
/// How far before `password=` another pair of a connection string begins at most, in bytes.
const PAIR_BYTES_MAX: usize = 128;
/// The longest name and the longest value of a variable.
const NAME_BYTES_MAX: usize = 64;
const VARIABLE_BYTES_MAX: usize = 4_096;
/// The longest label of a PEM block.
const LABEL_BYTES_MAX: usize = 40;

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
    while let Some(anchor) = ANCHORS.find.find(Input::new(text).span(from..text.len())) {
        let start = anchor.start();
        let (_, rules) = &ANCHORS.rules[anchor.pattern().as_usize()];
        let mut matched = rules.iter().filter_map(|at| {
            let rule = &RULES[*at];
            let scan = Scan {
                text: text.as_bytes(),
                done,
            };
            let anchors = rule
                .anchors
                .iter()
                .filter(|anchor| text[start..].starts_with(**anchor));
            let mut secrets =
                anchors.filter_map(|anchor| scan.matched(rule, start, start + anchor.len()));
            secrets.next().map(|at| Found {
                at: at.start..text.ceil_char_boundary(at.end),
                rule: RuleId::own(rule.id),
            })
        });
        match matched.next() {
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
        let at = match rule.shape {
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
            Shape::UrlPassword => self.url_password(end)?,
            Shape::PairValue => self.pair_value(start, end)?,
            Shape::Variable => self.variable(start, end)?,
        };
        let secret = &self.text[at.clone()];
        let is_mixed =
            || secret.iter().any(u8::is_ascii_digit) && secret.iter().any(u8::is_ascii_alphabetic);
        (!rule.is_mixed || is_mixed()).then_some(at)
    }

    /// Whether a word or a run of this class goes on at a place.
    fn goes_on(&self, at: usize, set: Option<Set>) -> bool {
        let before = self.text[self.done..at].last();
        before.is_some_and(|byte| Set::Word.has(*byte) || set.is_some_and(|set| set.has(*byte)))
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
        bytes.take_while(|byte| set.has(**byte)).count()
    }

    fn run_before(&self, set: Set, to: usize, most: usize) -> usize {
        let bytes = self.text[self.done..to].iter().rev().take(most);
        bytes.take_while(|byte| set.has(**byte)).count()
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

    /// The password of an authority that begins at `from`.
    fn url_password(&self, from: usize) -> Option<Range<usize>> {
        let bytes = self.text[from..].iter().take(AUTHORITY_BYTES_MAX);
        let is_authority = |byte: &&u8| {
            !byte.is_ascii_whitespace()
                && !byte.is_ascii_control()
                && !b"/?#\"'<>`\\".contains(byte)
        };
        let length = bytes.take_while(is_authority).count();
        let authority = &self.text[from..from + length];
        let at = authority.iter().rposition(|byte| *byte == b'@')?;
        let colon = authority[..at].iter().position(|byte| *byte == b':')?;
        let password = from + colon + 1..from + at;
        self.is_value(&password).then_some(password)
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
        let length = self.run(Set::Value, end, AUTHORITY_BYTES_MAX);
        let value = end..end + length;
        self.is_value(&value).then_some(value)
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
        if !before.is_empty() && !before.ends_with(b"\n") && !before.ends_with(b"export ") {
            return None;
        }
        let quote = usize::from(self.text.get(end).is_some_and(|byte| b"\"'".contains(byte)));
        let from = end + quote;
        let length = self.run(Set::Value, from, VARIABLE_BYTES_MAX);
        let value = from..from + length;
        let text = &self.text[value.clone()];
        let is_code = quote == 0
            && (text.iter().any(|byte| b"([".contains(byte))
                || text.contains(&b'.')
                    && text
                        .iter()
                        .all(|byte| byte.is_ascii_alphabetic() || b"._".contains(byte)));
        (length >= 6 && !is_code && self.is_value(&value)).then_some(value)
    }

    /// Whether a value is one, and not the place for one: `${PASSWORD}`, `<password>`, `%s`, `***`, `…`, or redacted.
    fn is_value(&self, at: &Range<usize>) -> bool {
        let value = &self.text[at.clone()];
        let is_place = |first: &u8| b"$<{%*[".contains(first) || value.starts_with("…".as_bytes());
        value.first().is_some_and(|first| !is_place(first))
    }
}

/// Whether the end of a text, a word that may go on, may become a secret. `at` is where the word begins.
pub(super) fn may_become_secret(text: &str, at: usize) -> bool {
    let (before, word) = text.split_at(at);
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let has_letter = || word.bytes().any(|byte| byte.is_ascii_alphabetic());
    if digits >= 8 || (digits > 0 && word.len() >= 4 && has_letter()) {
        return true;
    }
    let begins = |place: usize, anchor: &str| {
        let rest = &word[place..];
        !rest.is_empty() && anchor.starts_with(rest)
    };
    let places = word.char_indices().map(|(place, _)| place);
    let places = places.filter(|place| {
        let last = word[..*place].bytes().next_back();
        last.is_none_or(|byte| !Set::Word.has(byte))
    });
    let places: Vec<usize> = places.collect();
    let mut anchors = RULES.iter().flat_map(|rule| rule.anchors);
    anchors.any(|anchor| {
        word.contains(anchor)
            || anchor.ends_with(' ') && !word.is_empty() && before.ends_with(anchor)
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

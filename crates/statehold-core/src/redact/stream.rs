//! Redacts a text while it is written: what may still become a secret is held back.

use super::scan::{self, Found, may_become_secret};
use super::{Redactor, placeholder};

/// How much is held back at most, in bytes. A longer secret ends the stream.
const HELD_BYTES_MAX: usize = 16 * 1024;
/// How much of what was shown is kept, because a rule may need the words before a secret, in bytes.
const CONTEXT_BYTES_MAX: usize = 256;
/// How many bytes may be scanned per byte of the text, on average. A text that comes in tiny pieces would otherwise be
/// scanned, with the words before it, for each of them.
const SCANNED_PER_BYTE: usize = 64;
/// How many bytes may be scanned ahead of that: the beginning of a text is shown piece by piece.
const CREDIT_BYTES_MAX: usize = 64 * 1024;
/// How many bytes may come before it is known whether a text is JSON. Behind more white space than that it is shown
/// when it is whole.
const BEGINNING_BYTES_MAX: usize = 1_024;
/// How far back a label of PEM may have begun, in bytes.
const LABEL_BYTES_MAX: usize = 64;

/// A text on its way to readers, piece by piece.
#[derive(Debug, Default)]
pub struct TextStream {
    redactor: Redactor,
    /// The words before what is held back, and that.
    text: String,
    /// How much of it was shown.
    shown: usize,
    /// Whether enough text has come to know that it is no JSON.
    has_begun: bool,
    /// Whether the text is JSON, or has a secret that is too long: it is shown when it is whole.
    is_stopped: bool,
    /// The length of the text at which it is scanned again. While much is held back, it is scanned each time that
    /// this has grown by an eighth, so that a text in small pieces costs little more than its length.
    scan_at: usize,
    /// Where a secret may begin that has not ended. What was released of it lies behind.
    uncertain_from: usize,
    /// How many bytes may be scanned now.
    credit: usize,
    #[cfg(test)]
    pub(super) scanned: usize,
}

impl TextStream {
    /// A text from its beginning.
    pub fn new(redactor: Redactor) -> Self {
        Self {
            redactor,
            credit: CREDIT_BYTES_MAX,
            ..Self::default()
        }
    }

    /// Takes the next piece, and returns what can be shown.
    pub fn push(&mut self, piece: &str) -> String {
        if self.is_stopped {
            return String::new();
        }
        self.text.push_str(piece);
        let earned = piece.len().saturating_mul(SCANNED_PER_BYTE);
        self.credit = self.credit.saturating_add(earned).min(CREDIT_BYTES_MAX);
        if !self.has_begun {
            match begins_json(&self.text) {
                None => {
                    self.is_stopped = self.text.len() > BEGINNING_BYTES_MAX;
                    return String::new();
                }
                // The keys of JSON say what is secret, and they are known when it is whole.
                Some(is_json) => (self.has_begun, self.is_stopped) = (true, is_json),
            }
        }
        if self.is_stopped {
            return String::new();
        }
        let is_long = self.text.len() > CREDIT_BYTES_MAX;
        if self.text.len() < self.scan_at || (self.text.len() > self.credit && !is_long) {
            return String::new();
        }
        let found = self.scan();
        self.uncertain_from = self.cut(&found);
        let shown = self.show(self.uncertain_from.max(self.shown), &found);
        let held = self.text.len() - self.shown;
        let more = if held > CONTEXT_BYTES_MAX {
            held / 8
        } else {
            0
        };
        if self.text.len() - self.shown > HELD_BYTES_MAX {
            self.is_stopped = true;
        }
        self.forget();
        self.scan_at = self.text.len() + more;
        shown
    }

    /// Shows what is held back if what may be the beginning of a secret has at most so many bytes,
    /// with those that were released before: so short a beginning says nothing about a secret. Not
    /// for rules with patterns of their own, which say nothing about beginnings.
    pub fn release_short(&mut self, bytes_max: usize) -> String {
        let uncertain = self.text.len() - self.uncertain_from;
        let is_known = self.has_begun && !self.is_stopped && !self.redactor.has_patterns();
        if !is_known || uncertain > bytes_max {
            return String::new();
        }
        let from = std::mem::replace(&mut self.shown, self.text.len());
        self.text[from..].to_owned()
    }

    /// Whether nothing more is shown until the text is whole.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// The secrets in what is held back and in the words before it.
    fn scan(&mut self) -> Vec<Found> {
        // `may_become_secret` looks at the text once more.
        self.credit = self.credit.saturating_sub(2 * self.text.len());
        #[cfg(test)]
        {
            self.scanned += self.text.len();
        }
        scan::find(&self.text, &self.redactor.patterns)
    }

    /// Up to where no secret can begin that ends behind it.
    fn cut(&self, found: &[Found]) -> usize {
        let text = &self.text;
        let mut cut = if self.redactor.has_patterns() {
            text.rfind('\n').map_or(0, |at| at + 1)
        } else {
            let word = text.rfind(char::is_whitespace);
            let word = word.map_or(0, |at| text.ceil_char_boundary(at + 1));
            if may_become_secret(text, word) {
                word
            } else {
                text.len()
            }
        };
        let label = text.floor_char_boundary(text.len().saturating_sub(LABEL_BYTES_MAX));
        if let Some(at) = text[label..].rfind("-----BEGIN") {
            cut = cut.min(label + at);
        }
        for found in found {
            if found.at.end > cut || found.at.end == text.len() {
                cut = cut.min(found.at.start);
            }
        }
        cut
    }

    fn show(&mut self, cut: usize, found: &[Found]) -> String {
        let mut shown = String::new();
        let mut from = self.shown;
        for found in found {
            if found.at.end > from && found.at.end <= cut {
                // A secret whose beginning was shown before it was known as one ends here all the same.
                shown.push_str(&self.text[from..found.at.start.max(from)]);
                shown.push_str(&placeholder(found.rule.as_str()));
                from = found.at.end;
            }
        }
        shown.push_str(&self.text[from..cut]);
        self.shown = cut;
        shown
    }

    /// Drops what no rule needs any more: everything before a few words.
    fn forget(&mut self) {
        if self.shown < 2 * CONTEXT_BYTES_MAX {
            return;
        }
        let from = self.text.ceil_char_boundary(self.shown - CONTEXT_BYTES_MAX);
        self.text.drain(..from);
        self.shown -= from;
        self.uncertain_from = self.uncertain_from.saturating_sub(from);
    }
}

/// Whether a text begins like an object or a list of JSON. None if that is not known yet.
fn begins_json(text: &str) -> Option<bool> {
    let mut signs = text.chars().filter(|c| !c.is_whitespace());
    let next: &[char] = match signs.next()? {
        '{' => &['"', '}'],
        '[' => &['"', '{', '[', ']', '-', 't', 'f', 'n'],
        _ => return Some(false),
    };
    let next_sign = signs.next()?;
    Some(next.contains(&next_sign) || next.len() > 2 && next_sign.is_ascii_digit())
}

//! Redacts secrets in texts and in JSON, by rules for the formats of vendors, by the names of keys, and by patterns
//! of the operator. Pure and linear in the length of the text.
//!
//! JSON stays the text that it was, except where a secret was: `[redacted:RULE]` is in its place, and the rule and the
//! path are reported, never the value. Redacting twice changes nothing.

mod json;
mod rules;
mod scan;
mod stream;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::name::Name;

pub use stream::TextStream;

/// The version of the rules. It grows with each change of what they find.
pub const RULES_VERSION: u32 = 2;
/// How many patterns can be configured, and how long each can be in bytes.
pub const PATTERNS_MAX: usize = 32;
/// The longest configured pattern.
pub const PATTERN_BYTES_MAX: usize = 512;
/// The memory that one pattern may take when it is compiled, in bytes.
const COMPILED_BYTES_MAX: usize = 256 * 1024;
/// How a placeholder begins.
pub const PLACEHOLDER_BEGIN: &str = "[redacted";
/// How many findings are listed. Further secrets are redacted without being listed.
pub const FINDINGS_MAX: usize = 256;

/// The name of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleId(Cow<'static, str>);

impl RuleId {
    fn own(id: &'static str) -> Self {
        Self(Cow::Borrowed(id))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A redacted place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The place, as a JSON Pointer. Of secrets in JSON inside a text, the place of the text.
    pub path: String,
    /// The rule that found it.
    pub rule: RuleId,
}

/// A text or JSON with placeholders for its secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redacted {
    /// The text.
    pub text: String,
    /// The redacted places: at least one, and the first so many.
    pub findings: Vec<Finding>,
}

/// A configured pattern. It is searched in each line of a text.
#[derive(Debug, Clone)]
pub struct Pattern {
    rule: RuleId,
    regex: Regex,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    ///
    /// If it is too long, too large when it is compiled, not a pattern, or finds the empty text.
    pub fn new(name: &Name, pattern: &str) -> Result<Self, PatternError> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong);
        }
        let regex = RegexBuilder::new(pattern)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(COMPILED_BYTES_MAX)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => PatternError::TooBig,
                error => PatternError::Malformed(error.to_string()),
            })?;
        if regex.is_match("") {
            return Err(PatternError::FindsNothing);
        }
        let rule = RuleId(Cow::Owned(name.to_string()));
        Ok(Self { rule, regex })
    }
}

/// Why a pattern cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Too long.
    #[error("is longer than 512 bytes; write a shorter pattern, or two")]
    TooLong,
    /// Too big when it is compiled.
    #[error("takes more than 256 KiB when it is compiled; use smaller repetitions")]
    TooBig,
    /// Not a pattern.
    #[error("is not a regular expression: {0}")]
    Malformed(String),
    /// It finds the empty text, and so every place of every text.
    #[error("matches the empty text; let it need at least one character")]
    FindsNothing,
}

/// The rules and the configured patterns.
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    patterns: Arc<[Pattern]>,
}

impl Redactor {
    /// The rules with these patterns.
    pub fn new(patterns: Vec<Pattern>) -> Self {
        Self {
            patterns: patterns.into(),
        }
    }

    /// Whether patterns are configured. They are searched line by line.
    pub fn has_patterns(&self) -> bool {
        !self.patterns.is_empty()
    }

    /// Redacts a text. None if it has no secret. JSON inside the text is read as JSON.
    pub fn text(&self, text: &str) -> Option<Redacted> {
        let (text, rules) = self.text_at(text, 0)?;
        let findings = rules.into_iter().map(|rule| Finding {
            path: String::new(),
            rule,
        });
        Some(Redacted {
            text,
            findings: findings.collect(),
        })
    }

    /// Redacts JSON. None if it has no secret. `kept` are JSON Pointers of values that stay as they are. A text that
    /// is not JSON is redacted as a text.
    pub fn json(&self, json: &str, kept: &[&str]) -> Option<Redacted> {
        json::redact(self, json, kept, None, 0).unwrap_or_else(|_| self.text(json))
    }

    /// Redacts the JSON value of a key: a text under a key that names a secret is one.
    pub fn value_of(&self, key: &str, json: &str) -> Option<Redacted> {
        json::redact(self, json, &[], Some(key), 0).unwrap_or_else(|_| self.text(json))
    }

    /// Redacts a text, of which `depth` layers of JSON are around it.
    fn text_at(&self, text: &str, depth: usize) -> Option<(String, Vec<RuleId>)> {
        if depth < json::NESTED_MAX
            && text.trim_start().starts_with(['{', '['])
            && let Ok(redacted) = json::redact(self, text, &[], None, depth + 1)
        {
            let redacted = redacted?;
            let rules = redacted.findings.into_iter().map(|finding| finding.rule);
            return Some((redacted.text, rules.collect()));
        }
        let found = scan::find(text, &self.patterns);
        if found.is_empty() {
            return None;
        }
        let (mut shown, mut rules, mut end) = (String::with_capacity(text.len()), Vec::new(), 0);
        for secret in found {
            shown.push_str(&text[end..secret.at.start]);
            shown.push_str(&placeholder(secret.rule.as_str()));
            end = secret.at.end;
            if rules.len() < FINDINGS_MAX {
                rules.push(secret.rule);
            }
        }
        shown.push_str(&text[end..]);
        Some((shown, rules))
    }
}

/// Whether the key of a value says that the value is a secret. Case and separators do not count.
pub fn names_secret(key: &str) -> bool {
    rules::secret_name(key).is_some()
}

/// The placeholder of a secret.
pub fn placeholder(rule: &str) -> String {
    format!("{PLACEHOLDER_BEGIN}:{rule}]")
}

/// Whether a text is a placeholder and nothing else.
fn is_placeholder(text: &str) -> bool {
    let rule = text
        .strip_prefix(PLACEHOLDER_BEGIN)
        .and_then(|rest| rest.strip_prefix(':'));
    let rule = rule.and_then(|rest| rest.strip_suffix(']'));
    rule.is_some_and(|rule| rule.parse::<Name>().is_ok())
}

/// The names of the built-in rules.
pub fn rule_ids() -> impl Iterator<Item = &'static str> {
    rules::RULES.iter().map(|rule| rule.id)
}

#[cfg(test)]
mod tests;

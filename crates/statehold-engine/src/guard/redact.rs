//! Redaction of what is stored, and previews: arguments with sensitive values redacted by policy.
//!
//! Secrets are found by the rules of the core, in payloads before they are digested and stored, and in previews. A
//! preview redacts more: values at a JSON Pointer (`*` matches one level), email addresses, card numbers. It lists each
//! redaction with its path and rule, so that people know the preview is incomplete.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use statehold_core::name::Name;
use statehold_core::redact::{FINDINGS_MAX, Finding, Redacted, Redactor, placeholder};

use crate::bodies::Redaction;
use crate::locks::Lock;

/// Longer payloads are redacted apart from the threads that serve calls, in bytes.
const APART_BYTES_MIN: usize = 256 * 1024;

/// Whether secrets are redacted before they are stored, and the patterns that are secrets besides the rules.
#[derive(Debug, Clone, Default)]
pub struct RedactionRules {
    /// Whether nothing is redacted, except where an agent says so.
    pub is_off: bool,
    /// The settings of agents, by agent.
    pub agents: BTreeMap<Name, bool>,
    /// The rules with the configured patterns.
    pub redactor: Redactor,
}

impl RedactionRules {
    /// Whether agents are redacted differently.
    pub(crate) fn differs_by_agent(&self) -> bool {
        !self.agents.is_empty()
    }

    /// The rules for what an agent writes, or is told. None if it is stored as it is.
    pub(crate) fn of(&self, agent: &Name) -> Option<&Redactor> {
        match self.agents.get(agent) {
            Some(is_on) => is_on.then_some(&self.redactor),
            None => self.of_any(),
        }
    }

    /// The rules for agents that say nothing about it.
    pub(crate) fn of_any(&self) -> Option<&Redactor> {
        (!self.is_off).then_some(&self.redactor)
    }
}

/// How often each rule has redacted something that was to be stored.
#[derive(Debug, Default)]
pub(crate) struct RedactionCounts {
    by_rule: Lock<BTreeMap<String, u64>>,
}

impl RedactionCounts {
    fn add(&self, findings: &[Finding]) {
        let mut counts = self.by_rule.lock();
        for finding in findings {
            match counts.get_mut(finding.rule.as_str()) {
                Some(count) => *count += 1,
                None => drop(counts.insert(finding.rule.to_string(), 1)),
            }
        }
    }

    pub(crate) fn all(&self) -> BTreeMap<String, u64> {
        self.by_rule.lock().clone()
    }
}

/// Redacts what is to be stored, and counts what was found. A long payload does not keep other calls waiting.
pub(crate) fn redact_stored(
    bytes: usize,
    counts: &RedactionCounts,
    redact: impl FnOnce() -> Option<Redacted>,
) -> Option<Redacted> {
    let redacted = if bytes >= APART_BYTES_MIN {
        apart(redact)
    } else {
        redact()
    }?;
    counts.add(&redacted.findings);
    Some(redacted)
}

/// Lets another thread serve calls meanwhile, where the runtime has another.
fn apart<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    let has_threads = |handle: Handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread;
    if Handle::try_current().is_ok_and(has_threads) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

impl From<Finding> for Redaction {
    fn from(finding: Finding) -> Self {
        Self {
            path: finding.path,
            rule: finding.rule.to_string(),
        }
    }
}

/// A named pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Keys and passwords, found by the rules for secrets.
    Secret,
    /// Email addresses.
    Email,
    /// Payment card numbers.
    Card,
}

/// A JSON Pointer in which `*` matches every member or element of one level.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathRule(Vec<String>);

impl TryFrom<String> for PathRule {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err("a path to hide is a JSON Pointer such as /email or /cards/*/number");
        };
        let steps = rest.split('/');
        let steps = steps.map(|step| step.replace("~1", "/").replace("~0", "~"));
        Ok(Self(steps.collect()))
    }
}

impl From<PathRule> for String {
    fn from(rule: PathRule) -> Self {
        rule.0.iter().map(|step| pointer_step(step)).collect()
    }
}

/// The rules for one preview.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rules<'a> {
    pub(crate) paths: &'a [PathRule],
    pub(crate) patterns: &'a [Pattern],
}

/// The rule name of a path rule, which redacts any value at its path.
pub(crate) const BY_PATH: &str = "path";

/// Redacted arguments, and the list of redactions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Preview {
    pub(crate) value: Value,
    pub(crate) redactions: Vec<Redaction>,
}

/// Redacts arguments. Secrets go last, so that what is shown has none of them.
pub(crate) fn preview(args: &Value, rules: &Rules<'_>, redactor: &Redactor) -> Preview {
    let mut walk = Walk {
        rules,
        path: String::new(),
        redactions: Vec::new(),
    };
    let paths: Vec<&[String]> = rules.paths.iter().map(|rule| rule.0.as_slice()).collect();
    let value = walk.value(args, &paths);
    let mut preview = Preview {
        value,
        redactions: walk.redactions,
    };
    if rules.patterns.contains(&Pattern::Secret)
        && let Some(redacted) = redactor.json(&preview.value.to_string(), &[])
    {
        preview.value = serde_json::from_str(&redacted.text).expect("redacted JSON is JSON");
        let room = FINDINGS_MAX.saturating_sub(preview.redactions.len()).max(1);
        let found = redacted.findings.into_iter().take(room);
        preview.redactions.extend(found.map(Redaction::from));
    }
    preview
}

impl Preview {
    /// Redacts one more value with this placeholder, unless it or a parent is already redacted.
    pub(crate) fn hide(&mut self, hidden: Redaction, shown: Value) {
        let is_hidden = |known: &Redaction| {
            let rest = hidden.path.strip_prefix(known.path.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if self.redactions.iter().any(is_hidden) {
            return;
        }
        if let Some(place) = self.value.pointer_mut(&hidden.path) {
            *place = shown;
            self.redactions.push(hidden);
        }
    }
}

struct Walk<'a> {
    rules: &'a Rules<'a>,
    /// The JSON Pointer of the current value.
    path: String,
    redactions: Vec<Redaction>,
}

impl Walk<'_> {
    /// Redacts a value; `paths` are the path rules that may still match at or below it.
    fn value(&mut self, value: &Value, paths: &[&[String]]) -> Value {
        if paths.iter().any(|rest| rest.is_empty()) {
            self.note(BY_PATH);
            return Value::String(placeholder(BY_PATH));
        }
        match value {
            Value::Null | Value::Bool(_) => value.clone(),
            Value::Number(number) => {
                let text = number.to_string();
                if self.has(Pattern::Card) && is_card(&text) {
                    self.note("card");
                    return Value::String(placeholder("card"));
                }
                value.clone()
            }
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(values) => {
                let numbered = values.iter().enumerate();
                let shown = numbered.map(|(index, value)| {
                    let below = self.enter(&index.to_string(), paths);
                    let shown = self.value(value, &below.rules);
                    self.path.truncate(below.path_before);
                    shown
                });
                Value::Array(shown.collect())
            }
            Value::Object(fields) => Value::Object(self.object(fields, paths)),
        }
    }

    fn object(&mut self, fields: &Map<String, Value>, paths: &[&[String]]) -> Map<String, Value> {
        let mut shown = Map::new();
        let mut repeated = 1_usize;
        for (name, value) in fields {
            let hidden_name = self.text(name);
            let mut seen_name = hidden_name.clone();
            // Names that become equal by redaction must stay distinct. The counter only grows, so that
            // many such names take linear time.
            while shown.contains_key(&seen_name) {
                repeated += 1;
                seen_name = format!("{hidden_name}+{repeated}");
            }
            let mut below = self.enter(name, paths);
            // Report the path with the redacted name.
            self.path.truncate(below.path_before);
            self.path.push_str(&pointer_step(&seen_name));
            let inner = self.value(value, &std::mem::take(&mut below.rules));
            self.path.truncate(below.path_before);
            shown.insert(seen_name, inner);
        }
        shown
    }

    /// Steps down one level; returns the rules that apply below it.
    fn enter<'p>(&mut self, step: &str, paths: &[&'p [String]]) -> Below<'p> {
        let path_before = self.path.len();
        self.path.push_str(&pointer_step(step));
        let fits = paths.iter().filter_map(|path| match path.split_first() {
            Some((first, rest)) if first == "*" || first == step => Some(rest),
            _ => None,
        });
        Below {
            path_before,
            rules: fits.collect(),
        }
    }

    fn text(&mut self, text: &str) -> String {
        let mut shown = std::borrow::Cow::Borrowed(text);
        if self.has(Pattern::Email) && EMAIL.is_match(&shown) {
            self.note("email");
            shown = EMAIL
                .replace_all(&shown, placeholder("email"))
                .into_owned()
                .into();
        }
        if self.has(Pattern::Card) {
            let mut found = false;
            let hidden = CARD.replace_all(&shown, |captures: &regex::Captures<'_>| {
                if is_card(&captures[0]) {
                    found = true;
                    placeholder("card")
                } else {
                    captures[0].to_owned()
                }
            });
            if found {
                let hidden = hidden.into_owned();
                self.note("card");
                shown = hidden.into();
            }
        }
        shown.into_owned()
    }

    fn has(&self, pattern: Pattern) -> bool {
        self.rules.patterns.contains(&pattern)
    }

    fn note(&mut self, rule: &str) {
        if self.redactions.len() < FINDINGS_MAX {
            self.redactions.push(Redaction {
                path: self.path.clone(),
                rule: rule.to_owned(),
            });
        }
    }
}

struct Below<'p> {
    path_before: usize,
    rules: Vec<&'p [String]>,
}

fn pointer_step(step: &str) -> String {
    format!("/{}", step.replace('~', "~0").replace('/', "~1"))
}

/// Whether the digits pass the checksum of card numbers (Luhn).
fn is_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    if !(13..=19).contains(&digits.len()) {
        return false;
    }
    let doubled = |(place, digit): (usize, &u32)| match (place % 2, *digit) {
        (0, digit) => digit,
        (_, digit) if digit > 4 => 2 * digit - 9,
        (_, digit) => 2 * digit,
    };
    let sum: u32 = digits.iter().rev().enumerate().map(doubled).sum();
    sum.is_multiple_of(10)
}

fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a fixed pattern compiles")
}

static EMAIL: LazyLock<Regex> =
    LazyLock::new(|| compile(r"[\p{L}0-9._%+'-]+@[\p{L}0-9-]+(?:\.[\p{L}0-9-]+)+"));

static CARD: LazyLock<Regex> = LazyLock::new(|| compile(r"\b[0-9](?:[ -]?[0-9]){12,18}\b"));

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(args: &Value, paths: &[&str], patterns: &[Pattern]) -> (Value, Vec<(String, String)>) {
        let paths: Vec<PathRule> = paths
            .iter()
            .map(|path| PathRule::try_from((*path).to_owned()).expect("a path"))
            .collect();
        let rules = Rules {
            paths: &paths,
            patterns,
        };
        let preview = preview(args, &rules, &Redactor::default());
        let found = preview.redactions.into_iter();
        (
            preview.value,
            found.map(|one| (one.path, one.rule)).collect(),
        )
    }

    fn at(path: &str, rule: &str) -> (String, String) {
        (path.to_owned(), rule.to_owned())
    }

    #[test]
    fn paths_hide_what_they_name_and_nothing_else() {
        let args = json!({"email": "a@b.test", "cards": [{"number": 1, "name": "x"}, {"number": [2]}],
                          "a/b": {"~": 3}, "keep": true});
        let hidden = "[redacted:path]";
        let (value, found) = shown(
            &args,
            &["/email", "/cards/*/number", "/a~1b/~0", "/no/*"],
            &[],
        );
        assert_eq!(
            value,
            json!({"email": hidden, "cards": [{"number": hidden, "name": "x"}, {"number": hidden}],
                   "a/b": {"~": hidden}, "keep": true})
        );
        assert_eq!(
            found,
            [
                at("/email", "path"),
                at("/cards/0/number", "path"),
                at("/cards/1/number", "path"),
                at("/a~1b/~0", "path"),
            ]
        );
        assert!(PathRule::try_from("email".to_owned()).is_err());
    }

    #[test]
    fn secrets_are_hidden_by_their_form_and_by_their_name() {
        let key = format!("sk-{}", "a1".repeat(12));
        let args =
            json!({"note": format!("use {key} please"), "api_key": "short", "max_tokens": 5});
        let (value, found) = shown(&args, &[], &[Pattern::Secret]);
        let (note, api_key) = (
            "use [redacted:openai-key] please",
            "[redacted:secret-key-name]",
        );
        assert_eq!(
            value,
            json!({"note": note, "api_key": api_key, "max_tokens": 5})
        );
        assert_eq!(
            found,
            [at("/note", "openai-key"), at("/api_key", "secret-key-name")]
        );
    }

    #[test]
    fn cards_are_hidden_only_if_they_check_out() {
        let args = json!({"a": "pay 4111 1111 1111 1111 now", "b": "4111111111111112",
                          "c": 4_111_111_111_111_111_u64, "d": "tel 123"});
        let (value, found) = shown(&args, &[], &[Pattern::Card]);
        assert_eq!(value["a"], "pay [redacted:card] now");
        assert_eq!(value["b"], "4111111111111112");
        assert_eq!(value["c"], "[redacted:card]");
        assert_eq!(found, [at("/a", "card"), at("/c", "card")]);
    }

    #[test]
    fn many_hidden_names_stay_apart_and_cost_no_more_than_each() {
        let mut args = Map::new();
        for n in 0..50_000 {
            args.insert(format!("xoxb-a{n:012}"), json!(n));
            args.insert(format!("{n}@mail.test"), json!(n));
        }
        let all = [Pattern::Secret, Pattern::Email];
        let (value, _) = shown(&Value::Object(args), &[], &all);
        let names = value.as_object().expect("an object");
        assert_eq!(names.len(), 100_000);
        assert!(names.keys().all(|name| name.starts_with("[redacted:")));
    }

    #[test]
    fn addresses_are_hidden() {
        let (value, found) = shown(
            &json!(["to ann.o'x@mail.example.org!"]),
            &[],
            &[Pattern::Email],
        );
        assert_eq!(value, json!(["to [redacted:email]!"]));
        assert_eq!(found, [at("/0", "email")]);
    }

    #[test]
    fn without_anything_to_hide_the_preview_is_the_whole() {
        let args = json!({"amount": 4, "to": ["ACME", null, 1.5]});
        let all = [Pattern::Secret, Pattern::Email, Pattern::Card];
        assert_eq!(shown(&args, &["/x"], &all), (args.clone(), vec![]));
    }
}

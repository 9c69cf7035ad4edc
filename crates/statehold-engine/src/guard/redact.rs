//! Previews: arguments with sensitive values redacted by policy.
//!
//! A rule is a JSON Pointer (`*` matches one level) or a named pattern. The pattern `secret` also
//! redacts every value under a name such as `password`. A preview lists each redaction with its path and
//! rule, so that people know the preview is incomplete.

use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::bodies::Redaction;

/// The placeholder for a redacted value.
pub(crate) const HIDDEN: &str = "[redacted]";
/// How many redactions are listed. Further values are redacted without being listed.
const REDACTIONS_MAX: usize = 256;

/// A named pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Keys and passwords, recognised by format or by field name.
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

/// Redacts arguments.
pub(crate) fn preview(args: &Value, rules: &Rules<'_>) -> Preview {
    let mut walk = Walk {
        rules,
        path: String::new(),
        redactions: Vec::new(),
    };
    let paths: Vec<&[String]> = rules.paths.iter().map(|rule| rule.0.as_slice()).collect();
    let value = walk.value(args, &paths);
    Preview {
        value,
        redactions: walk.redactions,
    }
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
            return Value::String(HIDDEN.to_owned());
        }
        match value {
            Value::Null | Value::Bool(_) => value.clone(),
            Value::Number(number) => {
                let text = number.to_string();
                if self.has(Pattern::Card) && is_card(&text) {
                    self.note("card");
                    return Value::String(HIDDEN.to_owned());
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
            let is_secret = self.has(Pattern::Secret) && has_telling_name(name, value);
            let inner = if is_secret && !below.rules.iter().any(|rest| rest.is_empty()) {
                self.note("secret");
                Value::String(HIDDEN.to_owned())
            } else {
                self.value(value, &std::mem::take(&mut below.rules))
            };
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
        for (pattern, regex, rule) in [
            (Pattern::Secret, &*SECRET, "secret"),
            (Pattern::Email, &*EMAIL, "email"),
        ] {
            if self.has(pattern) && regex.is_match(&shown) {
                self.note(rule);
                shown = regex.replace_all(&shown, HIDDEN).into_owned().into();
            }
        }
        if self.has(Pattern::Card) {
            let mut found = false;
            let hidden = CARD.replace_all(&shown, |captures: &regex::Captures<'_>| {
                if is_card(&captures[0]) {
                    found = true;
                    HIDDEN.to_owned()
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
        if self.redactions.len() < REDACTIONS_MAX {
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

/// Whether a field name always holds a secret.
fn has_telling_name(name: &str, value: &Value) -> bool {
    const NAMES: [&str; 21] = [
        "accesskey",
        "accesstoken",
        "apikey",
        "apitoken",
        "authorization",
        "authtoken",
        "bearertoken",
        "clientsecret",
        "cookie",
        "idtoken",
        "passphrase",
        "passwd",
        "password",
        "privatekey",
        "pwd",
        "refreshtoken",
        "secret",
        "secretaccesskey",
        "secretkey",
        "sessiontoken",
        "token",
    ];
    let plain = name.chars().filter(|c| !matches!(c, '_' | '-' | ' ' | '.'));
    let plain: String = plain.flat_map(char::to_lowercase).collect();
    let says_something = !matches!(value, Value::Null | Value::Bool(_));
    says_something && NAMES.contains(&plain.as_str())
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

/// Published vendor formats, and a few formats that are always secret.
static SECRET: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?x)
        -----BEGIN\ [A-Z0-9\ ]*PRIVATE\ KEY-----(?s:.*?)(?:-----END\ [A-Z0-9\ ]*PRIVATE\ KEY-----|\z)
        | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b
        | \bgh[pousr]_[0-9A-Za-z]{20,}
        | \bgithub_pat_[0-9A-Za-z_]{20,}
        | \bglpat-[0-9A-Za-z_-]{16,}
        | \bxox[abeoprs]-[0-9A-Za-z-]{10,}
        | \bxapp-[0-9A-Za-z-]{10,}
        | \bsk-[0-9A-Za-z_-]{16,}
        | \b(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{10,}
        | \bwhsec_[0-9A-Za-z+/=]{16,}
        | \bshk_[0-9A-Za-z_-]{16,}
        | \bAIza[0-9A-Za-z_-]{30,}
        | \bya29\.[0-9A-Za-z_-]{20,}
        | \bnpm_[0-9A-Za-z]{30,}
        | \bpypi-[0-9A-Za-z_-]{30,}
        | \bhf_[0-9A-Za-z]{20,}
        | \bSG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}
        | \beyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*
        | \b(?i:bearer|basic)\ +[0-9A-Za-z+/=._~-]{16,}
        | (?:[a-z][a-z0-9+.-]*)://[^\s/:@]+:[^\s/@]+@
        ",
    )
});

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
        let preview = preview(args, &rules);
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
        let (value, found) = shown(
            &args,
            &["/email", "/cards/*/number", "/a~1b/~0", "/no/*"],
            &[],
        );
        assert_eq!(
            value,
            json!({"email": HIDDEN, "cards": [{"number": HIDDEN, "name": "x"}, {"number": HIDDEN}],
                   "a/b": {"~": HIDDEN}, "keep": true})
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
        let jwt = format!("eyJ{0}.{0}.{0}", "abcdefgh12");
        let args = json!({
            "note": format!("use {key} please"), "list": [jwt, "plain"],
            "pem": "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nrest",
            "url": "postgres://bob:hunter2@db/x", "api_key": "short", "Client-Secret": {"a": 1},
            "password": null, "token": false, "max_tokens": 5,
        });
        let (value, found) = shown(&args, &[], &[Pattern::Secret]);
        assert_eq!(value["note"], "use [redacted] please");
        assert_eq!(value["list"], json!([HIDDEN, "plain"]));
        assert_eq!(value["pem"], "[redacted]\nrest");
        assert_eq!(value["url"], "[redacted]db/x");
        assert_eq!(value["api_key"], HIDDEN);
        assert_eq!(value["Client-Secret"], HIDDEN);
        assert_eq!(value["max_tokens"], 5);
        assert_eq!(
            (&value["password"], &value["token"]),
            (&Value::Null, &json!(false))
        );
        assert!(found.iter().all(|(_, rule)| rule == "secret"));
        assert_eq!(found.len(), 6, "{found:?}");
    }

    #[test]
    fn names_of_fields_are_hidden_too_and_stay_apart() {
        let key = |n: u8| format!("ghp_{}", char::from(b'a' + n).to_string().repeat(30));
        let args = json!({key(0): 1, key(1): 2});
        let (value, _) = shown(&args, &[], &[Pattern::Secret]);
        assert_eq!(value, json!({HIDDEN: 1, "[redacted]+2": 2}));
    }

    #[test]
    fn cards_are_hidden_only_if_they_check_out() {
        let args = json!({"a": "pay 4111 1111 1111 1111 now", "b": "4111111111111112",
                          "c": 4_111_111_111_111_111_u64, "d": "tel 123"});
        let (value, found) = shown(&args, &[], &[Pattern::Card]);
        assert_eq!(value["a"], "pay [redacted] now");
        assert_eq!(value["b"], "4111111111111112");
        assert_eq!(value["c"], HIDDEN);
        assert_eq!(found, [at("/a", "card"), at("/c", "card")]);
    }

    #[test]
    fn many_hidden_names_stay_apart_and_cost_no_more_than_each() {
        let mut args = Map::new();
        args.insert(format!("{HIDDEN}+2"), json!(0));
        for n in 0..50_000 {
            args.insert(format!("xoxb-{n:012}"), json!(n));
        }
        let (value, _) = shown(&Value::Object(args), &[], &[Pattern::Secret]);
        let names = value.as_object().expect("an object");
        assert_eq!(names.len(), 50_001);
        assert!(names.keys().all(|name| name.starts_with(HIDDEN)));
    }

    #[test]
    fn addresses_are_hidden() {
        let (value, found) = shown(
            &json!(["to ann.o'x@mail.example.org!"]),
            &[],
            &[Pattern::Email],
        );
        assert_eq!(value, json!(["to [redacted]!"]));
        assert_eq!(found, [at("/0", "email")]);
    }

    #[test]
    fn without_anything_to_hide_the_preview_is_the_whole() {
        let args = json!({"amount": 4, "to": ["ACME", null, 1.5]});
        let all = [Pattern::Secret, Pattern::Email, Pattern::Card];
        assert_eq!(shown(&args, &["/x"], &all), (args.clone(), vec![]));
    }
}

//! Redacts JSON as text: what has no secret is copied byte for byte.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::rules::{BY_KEY, SecretName, secret_name};
use super::{FINDINGS_MAX, Finding, PLACEHOLDER_BEGIN, Redacted, Redactor, RuleId};
use super::{is_placeholder, placeholder};

/// How many layers of JSON inside texts of JSON are read as JSON.
pub(super) const NESTED_MAX: usize = 3;
/// The deepest nesting of values that is read. Callers send less.
const DEPTH_MAX: usize = 256;

/// The longest path of a finding, in bytes.
const PATH_BYTES_MAX: usize = 1_024;

/// Where schemas describe values by their names.
const SCHEMAS: [&str; 5] = [
    "/properties",
    "/$defs",
    "/definitions",
    "/schemas",
    "/securitySchemes",
];

/// The text is not JSON.
pub(super) struct NotJson;

/// Redacts JSON, or the value of `key`. `layer` counts the texts around it that were JSON too.
pub(super) fn redact(
    redactor: &Redactor,
    json: &str,
    kept: &[&str],
    key: Option<&str>,
    layer: usize,
) -> Result<Option<Redacted>, NotJson> {
    let mut walk = Walk {
        redactor,
        json,
        kept,
        layer,
        at: 0,
        copied: 0,
        shown: String::new(),
        path: String::new(),
        depth: 0,
        findings: Vec::new(),
    };
    walk.space();
    let first = walk.peek()?;
    // Numbers and whole objects under a key of state are counters and records; a text is the secret itself.
    let name = key.and_then(secret_name).filter(|_| first == b'"');
    walk.value(name.map_or(Under::Plain, Under::Secret))?;
    walk.space();
    if walk.at < json.len() {
        return Err(NotJson);
    }
    if walk.findings.is_empty() {
        return Ok(None);
    }
    walk.shown.push_str(&json[walk.copied..]);
    Ok(Some(Redacted {
        text: walk.shown,
        findings: walk.findings,
    }))
}

/// Whether the key of a value says that it is secret.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    Plain,
    Secret(SecretName),
    /// The key is a name in a list of properties: an object below it describes values.
    SecretProperty,
    /// The value stays.
    Kept,
}

struct Walk<'a> {
    redactor: &'a Redactor,
    json: &'a str,
    kept: &'a [&'a str],
    layer: usize,
    at: usize,
    /// Up to where the JSON is in `shown`.
    copied: usize,
    shown: String,
    path: String,
    depth: usize,
    findings: Vec<Finding>,
}

impl<'a> Walk<'a> {
    fn peek(&self) -> Result<u8, NotJson> {
        self.json.as_bytes().get(self.at).copied().ok_or(NotJson)
    }

    fn space(&mut self) {
        let rest = &self.json.as_bytes()[self.at..];
        self.at += rest
            .iter()
            .take_while(|byte| b" \t\r\n".contains(byte))
            .count();
    }

    fn expect(&mut self, byte: u8) -> Result<(), NotJson> {
        if self.peek()? != byte {
            return Err(NotJson);
        }
        self.at += 1;
        Ok(())
    }

    fn value(&mut self, under: Under) -> Result<(), NotJson> {
        self.space();
        let begin = self.at;
        match self.peek()? {
            b'"' => {
                let text = self.string()?;
                match under {
                    Under::Kept => {}
                    Under::Secret(name) if !text.is_empty() && name.fits(&text) => {
                        self.hide(begin, &text);
                    }
                    Under::SecretProperty if !text.is_empty() => self.hide(begin, &text),
                    _ => {
                        if let Some((shown, rules)) = self.redactor.text_at(&text, self.layer) {
                            self.replace(begin, &shown, rules);
                        }
                    }
                }
            }
            b'{' => self.nested(under, begin, Self::object)?,
            b'[' => self.nested(under, begin, Self::array)?,
            b't' | b'f' | b'n' => self.at += self.run(u8::is_ascii_alphabetic),
            b'-' | b'0'..=b'9' => {
                self.at += self.run(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
                let is_secret = Under::Secret(SecretName::Sure);
                if under == is_secret || under == Under::SecretProperty {
                    self.replace(begin, &placeholder(BY_KEY), [RuleId::own(BY_KEY)]);
                }
            }
            _ => return Err(NotJson),
        }
        Ok(())
    }

    fn run(&self, is_in: impl Fn(&u8) -> bool) -> usize {
        let rest = &self.json.as_bytes()[self.at..];
        rest.iter().take_while(|byte| is_in(byte)).count()
    }

    /// An object or an array. Below a key that names a secret, all of it is one.
    fn nested(
        &mut self,
        under: Under,
        begin: usize,
        walk: fn(&mut Self, Under) -> Result<(), NotJson>,
    ) -> Result<(), NotJson> {
        if self.depth >= DEPTH_MAX {
            return Err(NotJson);
        }
        self.depth += 1;
        let is_list = self.peek()? == b'[';
        match under {
            Under::Secret(_) => {
                walk(self, Under::Kept)?;
                let is_empty = self.json[begin + 1..self.at - 1].trim().is_empty();
                if !is_empty {
                    self.replace(begin, &placeholder(BY_KEY), [RuleId::own(BY_KEY)]);
                }
            }
            Under::SecretProperty if is_list => walk(self, Under::SecretProperty)?,
            Under::SecretProperty | Under::Plain => walk(self, Under::Plain)?,
            Under::Kept => walk(self, Under::Kept)?,
        }
        self.depth -= 1;
        Ok(())
    }

    fn array(&mut self, under: Under) -> Result<(), NotJson> {
        self.expect(b'[')?;
        self.space();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(());
        }
        for index in 0_usize.. {
            let before = self.path.len();
            self.path.push('/');
            self.path.push_str(&index.to_string());
            let under = self.kept_or(under);
            self.value(under)?;
            self.path.truncate(before);
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b']' => break,
                _ => return Err(NotJson),
            }
        }
        self.expect(b']')
    }

    fn object(&mut self, under: Under) -> Result<(), NotJson> {
        self.expect(b'{')?;
        self.space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        let is_properties = SCHEMAS.iter().any(|parent| self.path.ends_with(parent));
        let mut redacted_keys = BTreeSet::new();
        loop {
            self.space();
            let begin = self.at;
            let key = self.string()?;
            let key = self.key(begin, key, under, &mut redacted_keys);
            let before = self.path.len();
            self.path.push('/');
            push_step(&mut self.path, &key);
            self.space();
            self.expect(b':')?;
            let below = match (under, secret_name(&key)) {
                (Under::Kept, _) => Under::Kept,
                (_, Some(_)) if is_properties => Under::SecretProperty,
                (_, Some(name)) => Under::Secret(name),
                (_, None) => Under::Plain,
            };
            let below = self.kept_or(below);
            self.value(below)?;
            self.path.truncate(before);
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => break,
                _ => return Err(NotJson),
            }
        }
        self.expect(b'}')
    }

    /// The key as it is shown. Keys that become equal by redaction stay distinct.
    fn key(
        &mut self,
        begin: usize,
        key: Cow<'a, str>,
        under: Under,
        redacted: &mut BTreeSet<String>,
    ) -> Cow<'a, str> {
        if under == Under::Kept {
            return key;
        }
        let (shown, rules) = match self.redactor.text_at(&key, self.layer) {
            Some((shown, rules)) => (shown, rules),
            // A key that looks like a redacted one could be what another key becomes.
            None if key.contains(PLACEHOLDER_BEGIN) => (key.to_string(), Vec::new()),
            None => return key,
        };
        let mut apart = shown.clone();
        // The count only grows, so that many such keys take linear time.
        let mut count = redacted.len();
        while !redacted.insert(apart.clone()) {
            count += 1;
            apart = format!("{shown}+{count}");
        }
        if apart != *key {
            let before = self.path.len();
            self.path.push('/');
            push_step(&mut self.path, &apart);
            self.replace(begin, &apart, rules);
            self.path.truncate(before);
        }
        Cow::Owned(apart)
    }

    fn kept_or(&self, under: Under) -> Under {
        let is_kept = self.layer == 0 && self.kept.contains(&self.path.as_str());
        if is_kept { Under::Kept } else { under }
    }

    /// Hides a text under a key that names a secret, unless that was done before.
    fn hide(&mut self, begin: usize, text: &str) {
        if !is_placeholder(text) {
            self.replace(begin, &placeholder(BY_KEY), [RuleId::own(BY_KEY)]);
        }
    }

    /// Writes this text in the place of the JSON since `begin`.
    fn replace(&mut self, begin: usize, text: &str, rules: impl IntoIterator<Item = RuleId>) {
        // A whole value replaces the secrets that were found in it.
        self.shown.push_str(&self.json[self.copied..begin]);
        self.shown
            .push_str(&serde_json::Value::from(text).to_string());
        self.copied = self.at;
        for rule in rules {
            if self.findings.len() < FINDINGS_MAX {
                self.findings.push(Finding {
                    path: short_path(&self.path),
                    rule,
                });
            }
        }
    }

    /// A string without its quotes and escapes.
    fn string(&mut self) -> Result<Cow<'a, str>, NotJson> {
        let begin = self.at;
        self.expect(b'"')?;
        let bytes = self.json.as_bytes();
        let mut has_escape = false;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => {
                    has_escape = true;
                    self.at += 1;
                    if bytes.get(self.at).is_none_or(|byte| !byte.is_ascii()) {
                        return Err(NotJson);
                    }
                    self.at += 1;
                }
                _ => self.at += self.run(|byte| !matches!(byte, b'"' | b'\\')),
            }
        }
        self.at += 1;
        if has_escape {
            let text = serde_json::from_str::<String>(&self.json[begin..self.at]);
            text.map(Cow::Owned).map_err(|_| NotJson)
        } else {
            Ok(Cow::Borrowed(&self.json[begin + 1..self.at - 1]))
        }
    }
}

/// A path as a finding has it: a key may be megabytes long, and each of many findings repeats it.
fn short_path(path: &str) -> String {
    if path.len() <= PATH_BYTES_MAX {
        return path.to_owned();
    }
    format!("{}…", &path[..path.floor_char_boundary(PATH_BYTES_MAX)])
}

fn push_step(path: &mut String, step: &str) {
    for c in step.chars() {
        match c {
            '~' => path.push_str("~0"),
            '/' => path.push_str("~1"),
            c => path.push(c),
        }
    }
}

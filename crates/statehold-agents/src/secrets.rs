//! Redacts secrets in texts from other services.

use serde_json::Value;

const MARK: &str = "…";
/// Minimum length for redacting single lines of a longer secret, in bytes.
const LINE_BYTES_MIN: usize = 8;
/// Parts of a variable name that mark a secret, and whole words of it.
const SECRET_PARTS: [&str; 6] = ["TOKEN", "SECRET", "KEY", "PASS", "CREDENTIAL", "COOKIE"];
const SECRET_WORDS: [&str; 4] = ["AUTH", "DSN", "PAT", "PWD"];

/// Whether the name of an environment variable, or of a parameter in a URL, marks a secret.
pub fn is_named_secret(name: &str) -> bool {
    let upper = name.to_uppercase();
    let mut words = upper.split('_');
    // `PWD` is the working directory.
    let is_word = upper != "PWD" && words.any(|word| SECRET_WORDS.contains(&word));
    is_word || SECRET_PARTS.iter().any(|part| upper.contains(part))
}

/// Whether a value is a URL with a password.
pub(crate) fn has_password(value: &str) -> bool {
    let Some((_, rest)) = value.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let person = authority.rsplit_once('@').map(|(person, _)| person);
    person.is_some_and(|person| person.contains(':'))
}

/// Texts to redact, longest first, because one may be a prefix of another.
#[derive(Debug, Default)]
pub(crate) struct SecretRedactor(Vec<String>);

impl SecretRedactor {
    pub(crate) fn new<'a>(values: impl Iterator<Item = &'a str>) -> Self {
        let mut forms: Vec<String> = values.flat_map(secret_forms).collect();
        forms.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        Self(forms)
    }

    pub(crate) fn redact(&self, text: String) -> String {
        let mut text = text;
        for secret in &self.0 {
            if text.contains(secret) {
                text = text.replace(secret, MARK);
            }
        }
        text
    }

    pub(crate) fn redact_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.redact(std::mem::take(text)),
            Value::Array(values) => values.iter_mut().for_each(|value| self.redact_value(value)),
            Value::Object(members) if !self.0.is_empty() => {
                let all = std::mem::take(members).into_iter();
                let all = all.map(|(name, mut value)| {
                    self.redact_value(&mut value);
                    (self.redact(name), value)
                });
                *members = all.collect();
            }
            Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The forms in which a secret may appear: verbatim, line by line, and JSON-escaped.
fn secret_forms(value: &str) -> Vec<String> {
    let value = value.trim();
    if value.is_empty() {
        return Vec::new();
    }
    let lines = value.lines().map(str::trim);
    let lines = lines.filter(|line| line.len() >= LINE_BYTES_MIN);
    let mut forms: Vec<String> = std::iter::once(value)
        .chain(lines)
        .map(str::to_owned)
        .collect();
    let written = Value::from(value).to_string();
    forms.push(written[1..written.len() - 1].to_owned());
    forms
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_is_redacted_in_every_form() {
        let pem = "-----BEGIN KEY-----\nAAAABBBBCCCC\nx\n-----END KEY-----\n";
        let secrets =
            SecretRedactor::new(["letmein", "letmein-too", pem, " \n", "a\"b\\c-d-e"].into_iter());
        for (said, left) in [
            (
                "Bearer letmein-too and letmein",
                "Bearer … and …".to_owned(),
            ),
            (pem.trim(), "…".to_owned()),
            ("line: AAAABBBBCCCC", "line: …".to_owned()),
            (r#"{"p":"a\"b\\c-d-e"}"#, r#"{"p":"…"}"#.to_owned()),
            ("x and nothing else", "x and nothing else".to_owned()),
        ] {
            assert_eq!(secrets.redact(said.to_owned()), left);
        }
        let as_json = json!({ "key": pem }).to_string();
        let left = secrets.redact(as_json);
        assert!(
            !left.contains("AAAA") && left.starts_with(r#"{"key":"…"#),
            "{left}"
        );
    }

    #[test]
    fn names_and_urls_mark_secrets() {
        for secret in [
            "NOTES_TOKEN",
            "DB_PASS",
            "github_pat",
            "SENTRY_DSN",
            "BASIC_AUTH",
            "OLDPWD_PWD",
        ] {
            assert!(is_named_secret(secret), "{secret}");
        }
        for plain in ["PATH", "PWD", "NOTES_DIR", "GIT_AUTHOR_NAME", "AWS_REGION"] {
            assert!(!is_named_secret(plain), "{plain}");
        }
        assert!(has_password("postgres://me:pw@h/db") && has_password("redis://:pw@h"));
        for plain in ["http://h:80/a@b:c", "http://me@h/", "me:pw@h", "/srv/notes"] {
            assert!(!has_password(plain), "{plain}");
        }
    }

    #[test]
    fn values_are_redacted_recursively() {
        let secrets = SecretRedactor::new(["letmein"].into_iter());
        let mut value = json!({"a letmein": [1, "x letmein y", null]});
        secrets.redact_value(&mut value);
        assert_eq!(value, json!({"a …": [1, "x … y", null]}));
    }
}

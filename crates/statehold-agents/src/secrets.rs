//! What must not be shown, should somebody repeat it: a mark stands in its place.

use serde_json::Value;

const MARK: &str = "…";
/// A line of a longer secret is one itself from this length on, in bytes.
const LINE_BYTES_MIN: usize = 8;
/// What is anywhere in the name of a variable with a secret, and what is a whole word of it.
const SECRET_PARTS: [&str; 6] = ["TOKEN", "SECRET", "KEY", "PASS", "CREDENTIAL", "COOKIE"];
const SECRET_WORDS: [&str; 4] = ["AUTH", "DSN", "PAT", "PWD"];

/// Whether a variable of this name holds a secret, as its name says.
pub(crate) fn is_named_secret(name: &str) -> bool {
    let upper = name.to_uppercase();
    let mut words = upper.split('_');
    // The directory that a program is in has a name of its own.
    let is_word = upper != "PWD" && words.any(|word| SECRET_WORDS.contains(&word));
    is_word || SECRET_PARTS.iter().any(|part| upper.contains(part))
}

/// Whether a value is an address with a password in it.
pub(crate) fn has_password(value: &str) -> bool {
    let Some((_, rest)) = value.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let person = authority.rsplit_once('@').map(|(person, _)| person);
    person.is_some_and(|person| person.contains(':'))
}

/// Everything that is left out, the longest first: one may be the beginning of another.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    pub(crate) fn new<'a>(values: impl Iterator<Item = &'a str>) -> Self {
        let mut forms: Vec<String> = values.flat_map(forms_of).collect();
        forms.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        Self(forms)
    }

    pub(crate) fn left_out(&self, text: String) -> String {
        let mut text = text;
        for secret in &self.0 {
            if text.contains(secret) {
                text = text.replace(secret, MARK);
            }
        }
        text
    }

    pub(crate) fn leave_out(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.left_out(std::mem::take(text)),
            Value::Array(values) => values.iter_mut().for_each(|value| self.leave_out(value)),
            Value::Object(members) if !self.0.is_empty() => {
                let all = std::mem::take(members).into_iter();
                let all = all.map(|(name, mut value)| {
                    self.leave_out(&mut value);
                    (self.left_out(name), value)
                });
                *members = all.collect();
            }
            Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The ways in which a value comes back: as it is, line by line, and inside of JSON.
fn forms_of(value: &str) -> Vec<String> {
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
    fn a_secret_is_left_out_in_every_form_in_which_it_comes_back() {
        let pem = "-----BEGIN KEY-----\nAAAABBBBCCCC\nx\n-----END KEY-----\n";
        let secrets =
            Secrets::new(["letmein", "letmein-too", pem, " \n", "a\"b\\c-d-e"].into_iter());
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
            assert_eq!(secrets.left_out(said.to_owned()), left);
        }
        let as_json = json!({ "key": pem }).to_string();
        let left = secrets.left_out(as_json);
        assert!(
            !left.contains("AAAA") && left.starts_with(r#"{"key":"…"#),
            "{left}"
        );
    }

    #[test]
    fn names_and_addresses_say_what_is_secret() {
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
    fn values_are_looked_through() {
        let secrets = Secrets::new(["letmein"].into_iter());
        let mut value = json!({"a letmein": [1, "x letmein y", null]});
        secrets.leave_out(&mut value);
        assert_eq!(value, json!({"a …": [1, "x … y", null]}));
    }
}

//! Names that people give to things in configuration: tenants, apps, agents, tools, roles.
//!
//! They stand in records, so they cannot be free text: a short alphabet, no spaces, no surprises.

use std::str::FromStr;
use std::sync::Arc;

use crate::limits::NAME_BYTES_MAX;

/// Serialises a type as the text that it displays, and parses that text again. A type that records have many
/// of says how to write its text without a format string.
macro_rules! serde_as_text {
    ($name:ty) => {
        serde_as_text!($name, this => &this.to_string());
    };
    ($name:ty, $this:ident => $text:expr) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $this = self;
                serializer.serialize_str($text)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::text::parse(deserializer)
            }
        }
    };
}
pub(crate) use serde_as_text;

/// Shows a type that wraps a text as that text.
macro_rules! text_type {
    ($name:ident) => {
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}
pub(crate) use text_type;

/// A name: 1 to 128 of `A-Z a-z 0-9 . _ -`, starting with a letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Whether a character can make a text look like another: controls, everything that Unicode calls a format
/// character, line and paragraph separators, and letters that are drawn as nothing. The sixteen variation
/// selectors of emoji are not among them.
pub fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A text that is not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name is 1 to 128 letters, digits, dots, dashes or underscores, and starts with a letter or digit"
)]
pub struct NameError;

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let fits = text.len() <= NAME_BYTES_MAX
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if fits {
            Ok(Self(text.into()))
        } else {
            Err(NameError)
        }
    }
}

text_type!(Name);

serde_as_text!(Name, this => &this.0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_names() {
        for good in ["a", "math-agent", "Demo.v2", "0", &"x".repeat(128)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a b", "é", "a/b", "a\n", "..", &"x".repeat(129)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }
}

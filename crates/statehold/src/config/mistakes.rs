//! Mistakes that are seen only when settings are looked at together. All of them are found at once.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use statehold_engine::{CREDENTIAL_BYTES_MAX, Credential};

use super::layers::{Explained, Source};
use super::values::Variable;
use super::{Config, Surroundings};
use crate::exit::Failure;

/// The most bytes of a file that a setting names.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Something that is wrong, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Mistake {
    /// The whole key.
    pub(crate) key: String,
    /// What is wrong with it. It names the key.
    pub(crate) message: String,
    /// What to do.
    pub(crate) hint: String,
}

/// Everything that is wrong. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistakes(pub(crate) Vec<Mistake>);

impl Mistakes {
    /// The first of them, as an error that says how to see the others.
    pub(crate) fn into_failure(self) -> Failure {
        let more = self.0.len().saturating_sub(1);
        let mut mistakes = self.0.into_iter();
        let (message, mut hint) = mistakes
            .next()
            .map_or_else(Default::default, |first| (first.message, first.hint));
        if more > 0 {
            hint = format!("{hint}\nand {more} more; see all with: statehold config validate");
        }
        Failure::usage(message).hint(hint)
    }
}

/// A configuration that is being read, and what was found wrong so far.
pub(super) struct Reading<'a> {
    pub(super) config: &'a Config,
    sources: BTreeMap<&'a str, &'a Source>,
    around: &'a Surroundings,
    mistakes: Vec<Mistake>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        config: &'a Config,
        explained: &'a [Explained],
        around: &'a Surroundings,
    ) -> Self {
        let sources = explained.iter();
        Self {
            config,
            sources: sources
                .map(|value| (value.key.as_str(), &value.source))
                .collect(),
            around,
            mistakes: Vec::new(),
        }
    }

    /// The names of the settings that somebody set in a table.
    pub(super) fn set_in(&self, place: &str) -> Vec<&'a str> {
        let keys = self.sources.keys();
        keys.filter_map(|key| key.strip_prefix(place)?.strip_prefix('.'))
            .filter(|setting| !setting.contains('.'))
            .collect()
    }

    /// Notes what is wrong with a setting.
    pub(super) fn wrong(&mut self, key: String, what: &str, hint: impl Into<String>) {
        let message = match self.sources.get(&*key) {
            Some(source) => format!("`{key}` {what} ({source})"),
            None => format!("`{key}` {what}"),
        };
        self.mistakes.push(Mistake {
            key,
            message,
            hint: hint.into(),
        });
    }

    /// Notes a setting that must be there and is not.
    pub(super) fn missing(&mut self, key: String, hint: impl Into<String>) {
        self.wrong(key, "is missing", hint);
    }

    /// What a variable of the environment holds that something is called with.
    pub(super) fn credential(&mut self, place: &str, variable: &Variable) -> Option<Credential> {
        let name = variable.name();
        let hint = format!("set {name} to the credential itself, or leave the setting out");
        self.held_by(format!("{place}.credential_env"), variable, true, hint)
    }

    /// What a variable of the environment holds that a program gets.
    pub(super) fn passed_on(&mut self, place: &str, variable: &Variable) -> Option<Credential> {
        let hint = format!("set {}, or leave its name out", variable.name());
        self.held_by(format!("{place}.env"), variable, false, hint)
    }

    fn held_by(
        &mut self,
        key: String,
        variable: &Variable,
        is_for_header: bool,
        hint: String,
    ) -> Option<Credential> {
        let name = variable.name();
        let fits =
            |text: &str| !is_for_header || text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        let mut environment = self.around.environment.iter();
        let found = environment.find(|(found, _)| found == name);
        let text = found.map(|(_, text)| text.to_str().unwrap_or_default().to_owned());
        let what = match &text {
            None => format!("names {name}, which is not set"),
            Some(text) if text.is_empty() => format!("names {name}, which is empty or not UTF-8"),
            Some(text) if !fits(text) => {
                format!("names {name}, which has characters that no header can carry")
            }
            Some(_) => format!("names {name}, which has more than {CREDENTIAL_BYTES_MAX} bytes"),
        };
        let usable = text.filter(|text| fits(text));
        let held = usable.and_then(Credential::new);
        if held.is_none() {
            self.wrong(key, &what, hint);
        }
        held
    }

    /// The text of a file that a setting names. Relative names count from the configuration file.
    pub(super) fn file(&mut self, key: &str, path: &Path) -> Option<String> {
        let directory = match self.sources.get(key) {
            Some(Source::File(file)) => file.parent().unwrap_or(Path::new("")),
            _ => &self.around.directory,
        };
        let path = directory.join(path);
        let shown = path.display();
        let what = match read(&path) {
            Ok(text) if text.trim().is_empty() => format!("names {shown}, which is empty"),
            Ok(text) => return Some(text),
            Err(why) => format!("names {shown}, which cannot be read: {why}"),
        };
        let hint = "relative names count from the directory of the configuration file";
        self.wrong(key.to_owned(), &what, hint);
        None
    }

    /// The result, unless something was wrong.
    pub(super) fn finish<T>(self, result: T) -> Result<T, Mistakes> {
        if self.mistakes.is_empty() {
            Ok(result)
        } else {
            Err(Mistakes(self.mistakes))
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    match read {
        Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => {
            Err(format!("it has more than {FILE_BYTES_MAX} bytes"))
        }
        Ok(_) => Ok(text),
        Err(error) => Err(error.to_string()),
    }
}

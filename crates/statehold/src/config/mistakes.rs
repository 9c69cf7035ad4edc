//! Mistakes that show only when settings are compared with each other. All of them are reported at
//! once.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use statehold_agents::spec::SecretHeader;
use statehold_engine::{CREDENTIAL_BYTES_MAX, Credential};
use statehold_server::ReloadMistake;

use super::layers::{SourcedValue, ValueSource};
use super::values::{ServiceHeaders, VariableName};
use super::{Config, ConfigEnvironment};
use crate::exit::Failure;

/// The largest file that a setting may name, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// All mistakes. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigMistakes(pub(crate) Vec<ReloadMistake>);

impl ConfigMistakes {
    /// The first mistake, as an error that says how to see the others.
    pub(crate) fn into_failure(self) -> Failure {
        let more = self.0.len().saturating_sub(1);
        let mut mistakes = self.0.into_iter();
        let (message, mut hint) = mistakes
            .next()
            .map_or_else(Default::default, |first| (first.message, first.hint));
        if more > 0 {
            hint = format!("{hint}\nand {more} more; see all with: statehold config validate");
        }
        let failure = Failure::usage(message);
        if hint.is_empty() {
            return failure;
        }
        failure.hint(hint.trim_start())
    }

    /// These mistakes after those that were found in single settings, without the ones that only follow from them.
    pub(crate) fn after(self, found: Vec<ReloadMistake>) -> Self {
        let follows = |mistake: &ReloadMistake| {
            found.iter().any(|cause| {
                let of_agent = cause.key.strip_suffix(".kind");
                let is_of_agent = of_agent.is_some_and(|agent| {
                    let rest = mistake.key.strip_prefix(agent);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                });
                cause.key == mistake.key || is_of_agent
            })
        };
        let rest = self.0.into_iter().filter(|mistake| !follows(mistake));
        let rest: Vec<ReloadMistake> = rest.collect();
        Self([found, rest].concat())
    }
}

/// A configuration being checked, with the mistakes found so far.
pub(super) struct ConfigReader<'a> {
    pub(super) config: &'a Config,
    sources: BTreeMap<&'a str, &'a ValueSource>,
    environment: &'a ConfigEnvironment,
    mistakes: Vec<ReloadMistake>,
}

impl<'a> ConfigReader<'a> {
    pub(super) fn new(
        config: &'a Config,
        explained: &'a [SourcedValue],
        environment: &'a ConfigEnvironment,
    ) -> Self {
        let sources = explained.iter();
        Self {
            config,
            sources: sources
                .map(|value| (value.key.as_str(), &value.source))
                .collect(),
            environment,
            mistakes: Vec::new(),
        }
    }

    /// The names of the settings that a table sets.
    pub(super) fn settings_in(&self, place: &str) -> Vec<&'a str> {
        let keys = self.sources.keys();
        keys.filter_map(|key| key.strip_prefix(place)?.strip_prefix('.'))
            .filter(|setting| !setting.contains('.'))
            .collect()
    }

    /// Records a mistake in a setting.
    pub(super) fn add_mistake(&mut self, key: String, what: &str, hint: impl Into<String>) {
        let message = match self.sources.get(&*key) {
            Some(source) => format!("`{key}` {what} ({source})"),
            None => format!("`{key}` {what}"),
        };
        self.mistakes.push(ReloadMistake {
            key,
            message,
            hint: hint.into(),
        });
    }

    /// Records a missing setting.
    pub(super) fn add_missing(&mut self, key: String, hint: impl Into<String>) {
        self.add_mistake(key, "is missing", hint);
    }

    /// The credential in an environment variable, for calls to a service.
    pub(super) fn credential(
        &mut self,
        place: &str,
        variable: &VariableName,
    ) -> Option<Credential> {
        let name = variable.name();
        let hint = format!("set {name} to the credential itself, or leave the setting out");
        self.read_variable(format!("{place}.credential_env"), variable, true, hint)
    }

    /// The headers of calls to a service, with their values.
    pub(super) fn headers(
        &mut self,
        place: &str,
        headers: Option<&ServiceHeaders>,
    ) -> Vec<SecretHeader> {
        let headers = headers.into_iter().flat_map(ServiceHeaders::iter);
        let mut read = Vec::new();
        for (name, variable) in headers {
            let hint = format!("set {}, or leave the header out", variable.name());
            let value = self.read_variable(format!("{place}.headers"), variable, true, hint);
            read.extend(value.and_then(|value| SecretHeader::new(name, value)));
        }
        read
    }

    /// The value of an environment variable that a tool server's program gets.
    pub(super) fn program_variable(
        &mut self,
        place: &str,
        variable: &VariableName,
    ) -> Option<Credential> {
        let hint = format!("set {}, or leave its name out", variable.name());
        self.read_variable(format!("{place}.env"), variable, false, hint)
    }

    pub(super) fn read_variable(
        &mut self,
        key: String,
        variable: &VariableName,
        is_for_header: bool,
        hint: String,
    ) -> Option<Credential> {
        let name = variable.name();
        let fits =
            |text: &str| !is_for_header || text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        let mut variables = self.environment.variables.iter();
        let found = variables.find(|(found, _)| found == name);
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
            self.add_mistake(key, &what, hint);
        }
        held
    }

    /// The text of a file that a setting names. Relative names start at the configuration file.
    pub(super) fn file(&mut self, key: &str, path: &Path) -> Option<String> {
        let directory = match self.sources.get(key) {
            Some(ValueSource::File(file)) => file.parent().unwrap_or(Path::new("")),
            _ => &self.environment.directory,
        };
        let path = directory.join(path);
        let shown = path.display();
        let what = match read(&path) {
            Ok(text) if text.trim().is_empty() => format!("names {shown}, which is empty"),
            Ok(text) => return Some(text),
            Err(why) => format!("names {shown}, which cannot be read: {why}"),
        };
        let hint = "relative names count from the directory of the configuration file";
        self.add_mistake(key.to_owned(), &what, hint);
        None
    }

    /// The result, unless there are mistakes.
    pub(super) fn finish<T>(self, result: T) -> Result<T, ConfigMistakes> {
        if self.mistakes.is_empty() {
            Ok(result)
        } else {
            Err(ConfigMistakes(self.mistakes))
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

//! Values with a memory of where they came from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value as Json, json};
use toml::{Table, Value};

use super::Config;
use crate::exit::Failure;

/// What a variable that sets a value begins with.
const PREFIX: &str = "STATEHOLD__";
/// The section whose keys are names of agents.
const AGENTS: &str = "agents";

/// Which layer set a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    /// What a command sets before it looks at anything else, for example `statehold dev`.
    Command(&'static str),
    File(PathBuf),
    Environment(String),
    Flag(&'static str),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Command(command) => write!(f, "default of {command}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// One value and who set it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Explained {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) source: Source,
}

impl Explained {
    /// The value as it would be written in the file, without the quotes of a text.
    pub(crate) fn text(&self) -> String {
        match &self.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    pub(crate) fn to_json(&self) -> Json {
        let value = serde_json::to_value(&self.value).unwrap_or(Json::Null);
        json!({ "key": self.key, "value": value, "source": self.source.to_string() })
    }
}

/// The values of all layers so far. Invariant: every known key has a value.
#[derive(Debug)]
pub(crate) struct Layers {
    values: BTreeMap<String, (Value, Source)>,
}

impl Layers {
    /// The lowest layer. It also says which keys there are.
    pub(crate) fn defaults() -> Self {
        let table = Table::try_from(Config::default()).expect("the defaults are plain values");
        let mut leaves = Vec::new();
        flatten("", table, &mut leaves);
        let values = leaves
            .into_iter()
            .map(|(key, value)| (key, (value, Source::Default)))
            .collect();
        Self { values }
    }

    /// Sets one value.
    ///
    /// # Errors
    ///
    /// If there is no such key.
    pub(crate) fn set(&mut self, key: &str, value: Value, source: Source) -> anyhow::Result<()> {
        let Some(place) = self.values.get_mut(key) else {
            return Err(self.unknown(key, &source));
        };
        *place = (value, source);
        Ok(())
    }

    /// Sets one value as a flag says, if it was given.
    pub(crate) fn set_flag(
        &mut self,
        key: &str,
        flag: &'static str,
        value: Option<impl Into<Value>>,
    ) -> anyhow::Result<()> {
        match value {
            Some(value) => self.set(key, value.into(), Source::Flag(flag)),
            None => Ok(()),
        }
    }

    /// Sets a value that nobody chose: a default that belongs to one command.
    pub(crate) fn set_if_default(
        &mut self,
        key: &str,
        value: impl Into<Value>,
        command: &'static str,
    ) -> anyhow::Result<()> {
        match self.values.get(key) {
            Some((_, Source::Default)) | None => {
                self.set(key, value.into(), Source::Command(command))
            }
            Some(_) => Ok(()),
        }
    }

    pub(super) fn add_file(&mut self, path: &Path) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(path)
            .with_context(|| Failure::usage(format!("{} cannot be read", path.display())))?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let message = format!("{} is not TOML", path.display());
            Failure::usage(message).hint(error.to_string())
        })?;
        let mut leaves = Vec::new();
        flatten("", table, &mut leaves);
        for (key, value) in leaves {
            self.set(&key, value, Source::File(path.to_owned()))?;
        }
        Ok(())
    }

    pub(super) fn add_environment(&mut self, all: &[(OsString, OsString)]) -> anyhow::Result<()> {
        for (name, text) in all {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
                continue;
            };
            let text = text.to_str();
            let text = text.ok_or_else(|| Failure::usage(format!("{name} is not UTF-8")))?;
            let key = name[PREFIX.len()..].to_ascii_lowercase().replace("__", ".");
            let value = self.parse(&key, text);
            self.set(&key, value, Source::Environment(name.to_owned()))?;
        }
        Ok(())
    }

    /// A value of the environment: TOML where it is, text where it is not or where text is wanted.
    fn parse(&self, key: &str, text: &str) -> Value {
        let wants_text = self
            .values
            .get(key)
            .is_some_and(|(value, _)| value.is_str());
        match text.parse::<Value>() {
            Ok(value) if value.is_str() || !wants_text => value,
            Ok(_) | Err(_) => Value::String(text.to_owned()),
        }
    }

    /// All values, checked, and who set them.
    ///
    /// # Errors
    ///
    /// If a value cannot be what its key needs.
    pub(crate) fn finish(self) -> anyhow::Result<(Config, Vec<Explained>)> {
        let mut table = Table::new();
        for (key, (value, _)) in &self.values {
            insert(&mut table, key, value.clone());
        }
        let config = serde_path_to_error::deserialize(Value::Table(table));
        let config = config.map_err(|error| self.unfit(&error))?;
        let explain = |(key, (value, source))| Explained { key, value, source };
        Ok((config, self.values.into_iter().map(explain).collect()))
    }

    fn unfit(&self, error: &serde_path_to_error::Error<toml::de::Error>) -> Failure {
        let key = error.path().to_string();
        let why = error.inner().message().trim();
        match self.values.get(&key) {
            Some((value, source)) => {
                Failure::usage(format!("`{key}` cannot be {value} ({source}): {why}"))
            }
            None => Failure::usage(format!("`{key}`: {why}")),
        }
    }

    fn unknown(&self, key: &str, source: &Source) -> anyhow::Error {
        let failure = Failure::usage(format!("there is no setting `{key}` ({source})"));
        let inside = format!("{key}.");
        let hint = if self.values.keys().any(|known| known.starts_with(&inside)) {
            format!("`{key}` is a section; its settings come below it")
        } else {
            let nearest = self
                .values
                .keys()
                .min_by_key(|known| strsim::damerau_levenshtein(known, key));
            let nearest = nearest.map_or("", String::as_str);
            format!("did you mean `{nearest}`? see all with: statehold config show")
        };
        failure.hint(hint).into()
    }
}

/// Every value of a table that is not a table, under its path.
fn flatten(path: &str, table: Table, leaves: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        let path = if path.is_empty() {
            key
        } else {
            format!("{path}.{key}")
        };
        match value {
            // People choose the names in it: it is one value.
            Value::Table(table) if path != AGENTS => flatten(&path, table, leaves),
            value => leaves.push((path, value)),
        }
    }
}

fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((section, rest)) => {
            let section = table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(section) = section {
                insert(section, rest, value);
            }
        }
    }
}

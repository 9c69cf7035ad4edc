//! Configuration values with their sources.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value as Json, json};
use statehold_server::ReloadMistake;
use toml::{Table, Value};

use super::Config;
use super::keys::{NamedKey, describe_value, is_value, redact_prompts, require_fit};
use super::mistakes::ConfigMistakes;
use crate::exit::Failure;

/// The prefix of environment variables that set a value.
const PREFIX: &str = "STATEHOLD__";

/// The layer that set a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueSource {
    Default,
    /// The default of one command, for example `statehold dev`.
    Command(&'static str),
    File(PathBuf),
    Environment(String),
    Flag(&'static str),
}

impl std::fmt::Display for ValueSource {
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

/// One value as it may be shown, and its source.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SourcedValue {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) source: ValueSource,
}

impl SourcedValue {
    /// The value as written in the file, without the quotes of a string.
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

/// The merged values of all layers. Invariant: every known key has a value.
#[derive(Debug)]
pub(crate) struct ConfigLayers {
    values: BTreeMap<String, (Value, ValueSource)>,
    /// The settings of the file and the environment that have no effect.
    mistakes: Vec<ReloadMistake>,
}

/// All values with their sources, and the mistakes in them. Wrong values are replaced by their defaults.
#[derive(Debug)]
pub(crate) struct CheckedLayers {
    pub(crate) config: Config,
    pub(crate) explained: Vec<SourcedValue>,
    pub(crate) mistakes: Vec<ReloadMistake>,
}

impl ConfigLayers {
    /// The lowest layer. It defines the known keys.
    pub(crate) fn defaults() -> Self {
        let table = Table::try_from(Config::default()).expect("the defaults are plain values");
        let mut leaves = Vec::new();
        flatten("", table, &mut leaves);
        let values = leaves
            .into_iter()
            .map(|(key, value)| (key, (value, ValueSource::Default)))
            .collect();
        Self {
            values,
            mistakes: Vec::new(),
        }
    }

    /// Sets one value.
    ///
    /// # Errors
    ///
    /// If the key is unknown.
    pub(crate) fn set(
        &mut self,
        key: &str,
        value: Value,
        source: ValueSource,
    ) -> anyhow::Result<()> {
        Ok(self.place(key, value, source)?)
    }

    fn place(&mut self, key: &str, value: Value, source: ValueSource) -> Result<(), Failure> {
        match NamedKey::of(&steps(key), &value) {
            NamedKey::Elsewhere => {}
            NamedKey::Known | NamedKey::Empty => {
                self.values.insert(key.to_owned(), (value, source));
                return Ok(());
            }
            NamedKey::Unknown(others) => return Err(unknown(key, &source, others.iter())),
            NamedKey::BadName(name) => {
                let message = format!("`{name}` in `{key}` is not a name ({source})");
                let hint = "names begin with a letter or digit and have letters, digits, . _ and -";
                return Err(Failure::usage(message).hint(hint));
            }
            NamedKey::BadStateKeys(why) => {
                let message = format!("`{key}` names no state keys: {why} ({source})");
                let hint = "write a key, or the beginning of keys and a star: [state.\"user:*\"]";
                return Err(Failure::usage(message).hint(hint));
            }
        }
        let Some(place) = self.values.get_mut(key) else {
            return Err(self.unknown(key, &source));
        };
        *place = (value, source);
        Ok(())
    }

    /// Sets one value, or notes the mistake: all of them are told together.
    fn set_or_note(&mut self, key: &str, value: Value, source: ValueSource) {
        if let Err(failure) = self.place(key, value, source) {
            self.mistakes.push(mistake(key, failure));
        }
    }

    /// Sets one value from a flag, if it was given.
    pub(crate) fn set_flag(
        &mut self,
        key: &str,
        flag: &'static str,
        value: Option<impl Into<Value>>,
    ) -> anyhow::Result<()> {
        match value {
            Some(value) => self.set(key, value.into(), ValueSource::Flag(flag)),
            None => Ok(()),
        }
    }

    /// Sets the default of one command, unless another layer has set the value.
    pub(crate) fn set_if_default(
        &mut self,
        key: &str,
        value: impl Into<Value>,
        command: &'static str,
    ) -> anyhow::Result<()> {
        match self.values.get(key) {
            Some((_, ValueSource::Default)) | None => {
                self.set(key, value.into(), ValueSource::Command(command))
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
            self.set_or_note(&key, value, ValueSource::File(path.to_owned()));
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
            let mut leaves = Vec::new();
            match self.parse(&key, text) {
                Value::Table(table) if !is_value(&steps(&key), &table) => {
                    flatten(&key, table, &mut leaves);
                }
                value => leaves.push((key, value)),
            }
            for (key, value) in leaves {
                self.set_or_note(&key, value, ValueSource::Environment(name.to_owned()));
            }
        }
        Ok(())
    }

    /// Parses a value of the environment: TOML if it parses, text otherwise or if the key needs
    /// text.
    fn parse(&self, key: &str, text: &str) -> Value {
        let plain = Value::String(text.to_owned());
        let steps = steps(key);
        let wants_text = match self.values.get(key) {
            Some((value, _)) => value.is_str(),
            None => {
                matches!(NamedKey::of(&steps, &plain), NamedKey::Known)
                    && require_fit(&steps, &plain).is_ok()
            }
        };
        match text.parse::<Value>() {
            Ok(value) if value.is_str() || !wants_text => value,
            Ok(_) | Err(_) => plain,
        }
    }

    /// All values, validated, with their sources.
    ///
    /// # Errors
    ///
    /// If a key is unknown, or a value has the wrong type or is out of range. The error tells the first mistake.
    pub(crate) fn finish(self) -> anyhow::Result<(Config, Vec<SourcedValue>)> {
        let checked = self.check();
        if checked.mistakes.is_empty() {
            return Ok((checked.config, checked.explained));
        }
        Err(ConfigMistakes(checked.mistakes).into_failure().into())
    }

    /// All values with their sources, and every mistake in them.
    ///
    /// # Panics
    ///
    /// Never: the defaults fit.
    pub(crate) fn check(mut self) -> CheckedLayers {
        let defaults = Self::defaults().values;
        self.refuse_unfit();
        let config = loop {
            let mut table = Table::new();
            for (key, (value, _)) in &self.values {
                insert(&mut table, &steps(key), value.clone());
            }
            let error = match serde_path_to_error::deserialize(Value::Table(table)) {
                Ok(config) => break config,
                Err(error) => error,
            };
            let key = error.path().to_string();
            let failure = self.invalid_value(&error);
            // Another mistake may hide behind this one: look again with the default.
            match (defaults.get(&key), self.values.get_mut(&key)) {
                (Some(default), Some(wrong)) if wrong != default => *wrong = default.clone(),
                (_, Some(_)) => drop(self.values.remove(&key)),
                (_, None) => self.values.clone_from(&defaults),
            }
            self.mistakes.push(mistake(&key, failure));
        };
        let explain = |(key, (value, source)): (String, _)| SourcedValue {
            value: redact_prompts(&steps(&key), value),
            key,
            source,
        };
        CheckedLayers {
            config,
            explained: self.values.into_iter().map(explain).collect(),
            mistakes: self.mistakes,
        }
    }

    /// Takes values of named tables out that do not fit their setting, and notes the mistakes.
    fn refuse_unfit(&mut self) {
        let unfit = self.values.iter().filter_map(|(key, (value, source))| {
            let steps = steps(key);
            let NamedKey::Known = NamedKey::of(&steps, value) else {
                return None;
            };
            let why = require_fit(&steps, value).err()?;
            let value = describe_value(&steps, value);
            let unfit = UnfitValue::of(&why);
            let message = format!("`{key}` cannot be {value} ({source}): {}", unfit.why);
            Some(mistake(key, unfit.hinted(Failure::usage(message))))
        });
        let unfit: Vec<ReloadMistake> = unfit.collect();
        for mistake in &unfit {
            self.values.remove(&mistake.key);
        }
        self.mistakes.extend(unfit);
    }

    fn invalid_value(&self, error: &serde_path_to_error::Error<toml::de::Error>) -> Failure {
        let key = error.path().to_string();
        let unfit = UnfitValue::of(error.inner().message().trim());
        let why = &unfit.why;
        let failure = match self.values.get(&key) {
            Some((value, source)) => {
                Failure::usage(format!("`{key}` cannot be {value} ({source}): {why}"))
            }
            None => Failure::usage(format!("`{key}`: {why}")),
        };
        unfit.hinted(failure)
    }

    fn unknown(&self, key: &str, source: &ValueSource) -> Failure {
        let inside = format!("{key}.");
        if self.values.keys().any(|known| known.starts_with(&inside)) {
            let failure = Failure::usage(format!("there is no setting `{key}` ({source})"));
            let hint = format!("`{key}` is a section; its settings come below it");
            return failure.hint(hint);
        }
        unknown(key, source, self.values.keys())
    }
}

/// The error for an unknown key, with the known key that was probably meant.
fn unknown<'a>(
    key: &str,
    source: &ValueSource,
    known: impl Iterator<Item = &'a String>,
) -> Failure {
    let failure = Failure::usage(format!("there is no setting `{key}` ({source})"));
    if let Some(agent) = key.strip_suffix(".openai_default") {
        let hint = format!("it is `{agent}.sessions` now: \"auto\", \"explicit\" or \"none\"");
        return failure.hint(hint);
    }
    let all = "see all with: statehold config show";
    failure.hint(match near(key, known) {
        Some(near) => format!("did you mean `{near}`? {all}"),
        None => all.to_owned(),
    })
}

/// Why a value does not fit its setting, in the words of the file rather than in those of the
/// program.
struct UnfitValue {
    why: String,
    hint: Option<String>,
}

impl UnfitValue {
    fn of(why: &str) -> Self {
        if why.contains("socket address") {
            return Self {
                why: "it must be an IP address and a port".to_owned(),
                hint: Some(
                    "for example 127.0.0.1:7717, or 0.0.0.0:7717 for all addresses".to_owned(),
                ),
            };
        }
        if let Some(rest) = why.strip_prefix("unknown variant `")
            && let Some((typed, expected)) = rest.split_once("`, expected ")
        {
            let distance = |word: &&str| strsim::damerau_levenshtein(word, typed);
            let words = expected.split('`').skip(1).step_by(2);
            let near = words.min_by_key(distance);
            let near = near.filter(|word| distance(word) <= (typed.chars().count() / 3).max(1));
            return Self {
                why: format!("it must be {expected}"),
                hint: near.map(|near| format!("did you mean `{near}`?")),
            };
        }
        let mut plain = why.to_owned();
        for unsigned in ["u8", "u16", "u32", "u64", "usize"] {
            let nonzero = format!("a nonzero {unsigned}");
            plain = plain.replace(&nonzero, "a whole number above 0");
        }
        Self {
            why: plain,
            hint: None,
        }
    }

    fn hinted(self, failure: Failure) -> Failure {
        match self.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// The known key that was probably meant: it differs in a few letters, has the name that was typed as a part of its own,
/// or is a value that was taken for a table.
fn near<'a>(key: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let last = |key: &str| steps(key).pop().unwrap_or_default();
    let typed = last(key);
    let distance = |known: &String| strsim::damerau_levenshtein(known, key);
    let nearest = known.min_by_key(|known| distance(known))?;
    let may_differ = (typed.chars().count() / 3).max(1);
    let is_part = typed.len() >= 4 && last(nearest).contains(&typed);
    let is_around = key.strip_prefix(nearest.as_str());
    let is_around = is_around.is_some_and(|rest| rest.starts_with('.'));
    (distance(nearest) <= may_differ || is_part || is_around).then_some(nearest)
}

/// A failure about one key, as one of several mistakes.
fn mistake(key: &str, failure: Failure) -> ReloadMistake {
    ReloadMistake {
        key: key.to_owned(),
        message: failure.message,
        hint: failure.hint.unwrap_or_default(),
    }
}

/// One step of a key: in quotes if TOML needs them.
pub(super) fn step(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(is_bare) {
        name.to_owned()
    } else {
        let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{escaped}\"")
    }
}

/// Splits a key into its steps.
fn steps(key: &str) -> Vec<String> {
    let mut steps = vec![String::new()];
    let mut is_quoted = false;
    let mut chars = key.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if is_quoted => steps.last_mut().expect("never empty").extend(chars.next()),
            '"' => is_quoted = !is_quoted,
            '.' if !is_quoted => steps.push(String::new()),
            c => steps.last_mut().expect("never empty").push(c),
        }
    }
    steps
}

/// Collects every leaf value of a table under its path.
fn flatten(path: &str, table: Table, leaves: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        let path = if path.is_empty() {
            step(&key)
        } else {
            format!("{path}.{}", step(&key))
        };
        match value {
            Value::Table(table) if !is_value(&steps(&path), &table) => {
                flatten(&path, table, leaves);
            }
            value => leaves.push((path, value)),
        }
    }
}

fn insert(table: &mut Table, steps: &[String], value: Value) {
    match steps {
        [] => {}
        [last] => {
            table.insert(last.clone(), value);
        }
        [section, rest @ ..] => {
            let section = table
                .entry(section.clone())
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(section) = section {
                insert(section, rest, value);
            }
        }
    }
}

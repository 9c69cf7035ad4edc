//! Validated value types. Each rejects bad input while it is deserialized, so that the error can
//! name the whole key. Invariant: a value of one of these types is valid.

use std::collections::BTreeMap;

use http::{HeaderName, Uri};
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use statehold_agents::is_named_secret;
use statehold_core::scope::{Scope, StateKey};
use statehold_engine::Schema;
use statehold_server::{UmsRoot, UmsRootError};

/// The memory limit of one compiled pattern.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// The key under which the TOML parser hands a date to serde.
const TOML_DATE: &str = "$__toml_private_datetime";

/// A whole number within a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub(crate) struct BoundedNumber<const LEAST: u64, const MOST: u64>(u64);

impl<const LEAST: u64, const MOST: u64> BoundedNumber<LEAST, MOST> {
    /// A constant within the range.
    pub(crate) const fn fixed(number: u64) -> Self {
        assert!(LEAST <= number && number <= MOST);
        Self(number)
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<u64> for BoundedNumber<LEAST, MOST> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        if (LEAST..=MOST).contains(&number) {
            Ok(Self(number))
        } else {
            Err(format!("it must be {LEAST} to {MOST}"))
        }
    }
}

/// A text that is not empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct NonEmptyText(String);

impl NonEmptyText {
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NonEmptyText {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.trim().is_empty() {
            Err("it must not be empty; leave the setting out instead")
        } else {
            Ok(Self(text))
        }
    }
}

impl From<NonEmptyText> for String {
    fn from(words: NonEmptyText) -> Self {
        words.0
    }
}

/// The name of an environment variable. Invalid text may be a misplaced secret, so errors never
/// quote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct VariableName(String);

impl VariableName {
    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VariableName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let goes_on = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if begins && goes_on {
            Ok(Self(text))
        } else {
            Err(
                "it must be the name of an environment variable, such as GPA_TOKEN, not the secret itself",
            )
        }
    }
}

/// An `http://` or `https://` address without credentials and fragment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ServiceUrl(String);

impl ServiceUrl {
    /// The URL without a slash at the end of its path, ready for a path.
    pub(crate) fn base(&self) -> String {
        match self.0.split_once('?') {
            Some((path, query)) => format!("{}?{query}", path.trim_end_matches('/')),
            None => self.0.trim_end_matches('/').to_owned(),
        }
    }
}

impl TryFrom<String> for ServiceUrl {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const NONE: &str = "it is not a URL; write http://HOST:PORT/PATH or https://HOST/PATH";
        if text.contains('#') {
            return Err("it has a fragment; leave out # and what follows");
        }
        let uri: Uri = text.parse().map_err(|_| NONE)?;
        let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(NONE);
        };
        if authority.as_str().contains('@') {
            return Err("it carries credentials; name a variable with them in credential_env");
        }
        let parameters = uri.query().into_iter().flat_map(|query| query.split('&'));
        let mut names = parameters.filter_map(|parameter| parameter.split('=').next());
        if names.any(is_named_secret) {
            return Err("its query carries a credential; name a variable with it in headers");
        }
        let port = authority.as_str().strip_prefix(authority.host());
        let is_port_well = match port.and_then(|port| port.strip_prefix(':')) {
            Some(port) => port.parse::<u16>().is_ok_and(|port| port > 0),
            None => port == Some(""),
        };
        if authority.host().is_empty() || !is_port_well {
            return Err(NONE);
        }
        Ok(Self(text))
    }
}

/// A [`ServiceUrl`] without a query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct WholeUrl(ServiceUrl);

impl WholeUrl {
    /// The text as written.
    pub(crate) fn text(&self) -> &str {
        &self.0.0
    }

    /// The text without a slash at its end.
    pub(crate) fn base(&self) -> String {
        self.text().trim_end_matches('/').to_owned()
    }
}

impl TryFrom<String> for WholeUrl {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.contains('?') {
            return Err("it has a query; leave out ? and what follows");
        }
        ServiceUrl::try_from(text).map(Self)
    }
}

/// A text that may be missing, written as an empty one: a setting is known by its default, so it needs one.
pub(crate) mod empty_as_none {
    use serde::de::{DeserializeOwned, IntoDeserializer};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => value.serialize(serializer),
            None => serializer.serialize_str(""),
        }
    }

    pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        T::deserialize(text.into_deserializer()).map(Some)
    }
}

/// The root of the paths of conversations.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct UmsPath(UmsRoot);

impl UmsPath {
    pub(crate) fn root(&self) -> UmsRoot {
        self.0.clone()
    }
}

impl From<UmsPath> for String {
    fn from(path: UmsPath) -> Self {
        path.0.to_string()
    }
}

impl TryFrom<String> for UmsPath {
    type Error = UmsRootError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

/// Headers of every call to a service, each with the environment variable that holds its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, HeaderSource>")]
pub(crate) struct ServiceHeaders(BTreeMap<String, HeaderSource>);

/// Where the value of a header comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderSource {
    pub(crate) env: VariableName,
}

impl ServiceHeaders {
    /// The headers, with their variables.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (HeaderName, &VariableName)> {
        self.0.iter().filter_map(|(name, source)| {
            let name = name.parse().ok()?;
            Some((name, &source.env))
        })
    }
}

impl TryFrom<BTreeMap<String, HeaderSource>> for ServiceHeaders {
    type Error = String;

    fn try_from(headers: BTreeMap<String, HeaderSource>) -> Result<Self, String> {
        // The server sets these itself.
        let reserved = [
            "content-type",
            "content-length",
            "host",
            "accept",
            "connection",
            "transfer-encoding",
        ];
        for name in headers.keys() {
            let is_name = name.parse::<HeaderName>().is_ok();
            let lower = name.to_ascii_lowercase();
            if !is_name || reserved.contains(&&*lower) || lower.starts_with("x-statehold-") {
                return Err(format!(
                    "`{name}` is no header that a configuration can set; write api-key = {{ env = \"NAME\" }}"
                ));
            }
        }
        Ok(Self(headers))
    }
}

/// A state key that an agent may read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ReadStateKey(StateKey);

impl ReadStateKey {
    pub(crate) fn key(&self) -> &StateKey {
        &self.0
    }
}

impl TryFrom<String> for ReadStateKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let key = text.parse().map_err(|error| format!("`{text}`: {error}"))?;
        Ok(Self(key))
    }
}

/// A state key that an agent may write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct WrittenStateKey(ReadStateKey);

impl WrittenStateKey {
    pub(crate) fn key(&self) -> &StateKey {
        self.0.key()
    }
}

impl TryFrom<String> for WrittenStateKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let key = ReadStateKey::try_from(text)?;
        match key.key().scope() {
            Scope::App => Err(format!(
                "`{}` is a key of the app, which agents only read; admins write it",
                key.key()
            )),
            Scope::User | Scope::Session | Scope::Temp => Ok(Self(key)),
        }
    }
}

/// A scope that an agent may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Scope")]
pub(crate) struct WrittenScope(Scope);

impl WrittenScope {
    pub(crate) fn scope(self) -> Scope {
        self.0
    }
}

impl TryFrom<Scope> for WrittenScope {
    type Error = &'static str;

    fn try_from(scope: Scope) -> Result<Self, Self::Error> {
        match scope {
            Scope::App => Err("agents only read the scope `app`; admins write it"),
            Scope::User | Scope::Session | Scope::Temp => Ok(Self(scope)),
        }
    }
}

/// A regular expression for messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct MessagePattern(String);

impl MessagePattern {
    /// The compiled expression.
    pub(crate) fn regex(&self) -> Regex {
        compile(&self.0).expect("it was compiled when it was read")
    }
}

impl TryFrom<String> for MessagePattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match compile(&text) {
            Ok(_) => Ok(Self(text)),
            Err(regex::Error::CompiledTooBig(_)) => Err(format!(
                "`{text}` is too large a pattern; use smaller counts or several rules"
            )),
            Err(error) => Err(format!("`{text}` is not a regular expression: {error}")),
        }
    }
}

fn compile(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text)
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX)
        .build()
}

/// A JSON Schema, written as a TOML table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct SchemaTable(Json);

impl SchemaTable {
    pub(crate) fn json(&self) -> &Json {
        &self.0
    }

    /// The compiled schema.
    pub(crate) fn schema(&self) -> Schema {
        Schema::new(&self.0.to_string()).expect("it was a schema when it was read")
    }
}

impl TryFrom<Json> for SchemaTable {
    type Error = String;

    fn try_from(schema: Json) -> Result<Self, String> {
        let schema = with_text_for_dates(schema);
        match Schema::new(&schema.to_string()) {
            Ok(_) => Ok(Self(schema)),
            Err(error) if error.path.is_empty() => {
                Err(format!("it is not a JSON Schema: {}", error.message))
            }
            Err(error) => Err(format!(
                "it is not a JSON Schema at {}: {}",
                error.path, error.message
            )),
        }
    }
}

/// The project and the location of an analytics service: `projects/P/locations/L`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct PlaceName(String);

impl PlaceName {
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PlaceName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.split('/').collect::<Vec<_>>()[..] {
            ["projects", project, "locations", location]
                if is_resource_id(project) && is_resource_id(location) =>
            {
                Ok(Self(text))
            }
            _ => {
                Err("it is not a project and a location; write projects/PROJECT/locations/LOCATION")
            }
        }
    }
}

/// A data agent of an analytics service: its id, or its whole name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct DataAgentName(String);

impl DataAgentName {
    /// The whole name. An id is one below the place.
    pub(crate) fn below(&self, place: &PlaceName) -> String {
        if self.0.contains('/') {
            self.0.clone()
        } else {
            format!("{}/dataAgents/{}", place.text(), self.0)
        }
    }
}

impl TryFrom<String> for DataAgentName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let (place, id) = match text.rsplit_once("/dataAgents/") {
            Some((place, id)) => (Some(place), id),
            None => (None, text.as_str()),
        };
        let has_place = place.is_none_or(|place| PlaceName::try_from(place.to_owned()).is_ok());
        if has_place && is_resource_id(id) {
            Ok(Self(text))
        } else {
            Err(
                "it is not a data agent; write its id, or projects/PROJECT/locations/LOCATION/dataAgents/ID",
            )
        }
    }
}

/// The name of an application of DIAL: one part of a path, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct DeploymentName(String);

impl DeploymentName {
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for DeploymentName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const BYTES_MAX: usize = 512;
        let is_segment = |part: &str| !matches!(part, "" | "." | "..");
        if text.len() > BYTES_MAX || text.contains(char::is_control) {
            Err("it must have at most 512 bytes, without control characters")
        } else if text.split('/').all(is_segment) {
            Ok(Self(text))
        } else {
            Err("it is not the name of a deployment; write it as DIAL lists it, such as my-agent")
        }
    }
}

/// Whether a text can be one part of a resource name.
fn is_resource_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (1..=256).contains(&text.len()) && text.bytes().all(is_plain) && !matches!(text, "." | "..")
}

/// Data sources of an analytics service, written as a TOML table in the form of its API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct DataSources(Json);

impl DataSources {
    pub(crate) fn json(&self) -> &Json {
        &self.0
    }
}

impl TryFrom<Json> for DataSources {
    type Error = &'static str;

    fn try_from(sources: Json) -> Result<Self, Self::Error> {
        let is_table = sources
            .as_object()
            .is_some_and(|members| !members.is_empty());
        if !is_table {
            return Err(
                "it is not a table with data sources; write { bq = { tableReferences = [{ … }] } }",
            );
        }
        if has_secret(&sources) {
            return Err("it carries a credential; name a variable with it in credential_env");
        }
        Ok(Self(with_text_for_dates(sources)))
    }
}

/// Arguments of a tool, written as a TOML table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Json")]
pub(crate) struct ToolArguments(serde_json::Map<String, Json>);

impl ToolArguments {
    pub(crate) fn members(&self) -> &serde_json::Map<String, Json> {
        &self.0
    }
}

impl TryFrom<Json> for ToolArguments {
    type Error = &'static str;

    fn try_from(arguments: Json) -> Result<Self, Self::Error> {
        if has_secret(&arguments) {
            return Err("it carries a credential; name a variable with it at the tool server");
        }
        match with_text_for_dates(arguments) {
            Json::Object(members) => Ok(Self(members)),
            _ => Err("it is not a table with arguments; write { name = \"value\" }"),
        }
    }
}

/// Whether a member with a text is named like a secret.
fn has_secret(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
        Json::Array(values) => values.iter().any(has_secret),
        Json::Object(members) => members
            .iter()
            .any(|(name, value)| value.is_string() && is_named_secret(name) || has_secret(value)),
    }
}

/// Converts TOML dates to strings: JSON has none.
fn with_text_for_dates(value: Json) -> Json {
    match value {
        plain @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_)) => plain,
        Json::Array(values) => values.into_iter().map(with_text_for_dates).collect(),
        Json::Object(mut members) => {
            if let Some(date) = members.remove(TOML_DATE) {
                return date;
            }
            let members = members.into_iter();
            let members = members.map(|(name, value)| (name, with_text_for_dates(value)));
            Json::Object(members.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_plain_and_carries_nothing_else() {
        for (text, expected) in [
            ("http://127.0.0.1:5000/v1", "http://127.0.0.1:5000/v1"),
            ("https://a.example/v1/", "https://a.example/v1"),
            ("http://[::1]:80", "http://[::1]:80"),
            ("http://h/v1/?api-version=2", "http://h/v1?api-version=2"),
        ] {
            let address = ServiceUrl::try_from(text.to_owned()).expect(text);
            assert_eq!(address.base(), expected);
        }
        for (text, says) in [
            ("", "not a URL"),
            ("127.0.0.1:5000", "not a URL"),
            ("/v1", "not a URL"),
            ("ftp://a.example", "not a URL"),
            ("http://a.example:99999/v1", "not a URL"),
            ("http://a.example:/v1", "not a URL"),
            ("http://a b", "not a URL"),
            ("http://me:secret@a.example", "credentials"),
            ("http://a.example/v1?key=1", "query"),
            ("http://a.example/v1#x", "fragment"),
        ] {
            let why = ServiceUrl::try_from(text.to_owned()).expect_err(text);
            assert!(why.contains(says), "{text}: {why}");
        }
        let query = "http://a.example/v1?api-version=2".to_owned();
        let why = WholeUrl::try_from(query).expect_err("a query");
        assert!(why.contains("query"), "{why}");
    }

    #[test]
    fn places_and_data_agents_are_names_of_resources() {
        let place = PlaceName::try_from("projects/a.b:c/locations/eu".to_owned()).expect("a place");
        for (text, expected) in [
            ("sales", "projects/a.b:c/locations/eu/dataAgents/sales"),
            (
                "projects/p/locations/l/dataAgents/d",
                "projects/p/locations/l/dataAgents/d",
            ),
        ] {
            let agent = DataAgentName::try_from(text.to_owned()).expect(text);
            assert_eq!(agent.below(&place), expected);
        }
        for bad in [
            "",
            "p",
            "projects/p",
            "projects//locations/l",
            "/projects/p/locations/l",
        ] {
            PlaceName::try_from(bad.to_owned()).expect_err(bad);
        }
        for bad in [
            "",
            "a b",
            "..",
            "a/b",
            "projects/p/dataAgents/d",
            "x/dataAgents/",
        ] {
            DataAgentName::try_from(bad.to_owned()).expect_err(bad);
        }
        let sources =
            |text: &str| DataSources::try_from(serde_json::from_str::<Json>(text).expect("JSON"));
        sources(r#"{"bq":{"tableReferences":[{"tableId":"keys"}]}}"#).expect("data sources");
        for (bad, says) in [
            ("7", "not a table"),
            ("{}", "not a table"),
            (
                r#"{"looker":[{"oauth":{"accessToken":"x"}}]}"#,
                "carries a credential",
            ),
        ] {
            let why = sources(bad).expect_err(bad);
            assert!(why.contains(says), "{bad}: {why}");
        }
    }

    #[test]
    fn only_names_of_variables_are_variables() {
        for good in ["GPA_TOKEN", "_x1"] {
            VariableName::try_from(good.to_owned()).expect(good);
        }
        for bad in ["", "sk-12345", "1X", "A B", "Ä"] {
            VariableName::try_from(bad.to_owned()).expect_err(bad);
        }
    }

    #[test]
    fn a_pattern_that_costs_too_much_is_none() {
        MessagePattern::try_from("(?i)user".to_owned()).expect("a pattern");
        MessagePattern::try_from("(".to_owned()).expect_err("not closed");
        let large = MessagePattern::try_from("(\\w{1000}){1000}".to_owned());
        assert!(large.expect_err("too large").contains("too large"));
    }
}

//! Builds agent specifications from the configuration: references must resolve, required settings
//! must be present, and secrets come from the environment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, CallerTrust, ConversationsSpec, LlmSpec, ModelSpec,
    OpenaiSpec, StageDetail, StateAccess, StateFormat, ToolServerSpec, ToolTransport,
};
use statehold_agents::traces::Collector;
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use statehold_engine::{Credential, Schema};

use super::agents::AgentConfig;
use super::keys::{AGENTS, MODELS, TOOL_SERVERS};
use super::kinds::{
    AgentDeclaration, DeclaredKind, RETRIES, RetryCount, STEPS_MAX, TIMEOUT_SECONDS,
    TimeoutSeconds, kinds_with,
};
use super::layers::{SourcedValue, step};
use super::mistakes::{ConfigMistakes, ConfigReader};
use super::models::ModelConfig;
use super::tool_servers::ToolServerConfig;
use super::values::{BoundedNumber, NonEmptyText, SchemaTable, ServiceUrl};
use super::{Config, ConfigEnvironment, DialConfig, TracesConfig};

/// The setting that names the agents which run contexts of callers.
const ANSWERERS: &str = "chat.answerers";
/// The setting that names the agent of new conversations.
const UMS_AGENT: &str = "ums.agent";

/// The agents that a configuration declares.
#[derive(Debug)]
pub(crate) struct DeclaredAgents {
    pub(crate) book: AgentBook,
    /// The agents' own credentials.
    pub(crate) credentials: BTreeMap<Name, Credential>,
    /// The DIAL Core that vouches for callers, and the API key of their calls.
    pub(crate) dial_core: Option<(String, Credential)>,
    /// The collector of traces, if there is one.
    pub(crate) traces: Option<Collector>,
}

/// Builds all declared agents, or returns every mistake.
pub(crate) fn declare_agents(
    config: &Config,
    explained: &[SourcedValue],
    environment: &ConfigEnvironment,
) -> Result<DeclaredAgents, ConfigMistakes> {
    let mut reading = ConfigReader::new(config, explained, environment);
    let mut book = AgentBook::default();
    for (name, model) in &config.models {
        if let Some(spec) = reading.model(name, model) {
            book.models.insert(name.clone(), Arc::new(spec));
        }
    }
    for (name, server) in &config.tool_servers {
        if let Some(spec) = reading.tool_server(name, server) {
            book.tool_servers.insert(name.clone(), Arc::new(spec));
        }
    }
    let mut credentials = BTreeMap::new();
    for (name, agent) in &config.agents {
        let place = format!("{AGENTS}.{}", step(name.as_str()));
        let variable = agent.credential_env.as_ref();
        let credential = variable.and_then(|variable| reading.credential(&place, variable));
        if let Some(credential) = &credential {
            credentials.insert(name.clone(), credential.clone());
        }
        if let Some(spec) = reading.agent(&place, name, agent, credential) {
            book.agents.insert(name.clone(), Arc::new(spec));
        }
    }
    reading.require_no_circles();
    reading.require_state_rules();
    let known = config.agents.keys();
    reading.require_known(ANSWERERS, &config.chat.answerers, &known, "agent", AGENTS);
    let of_conversations = config.ums.agent.as_slice();
    reading.require_known(UMS_AGENT, of_conversations, &known, "agent", AGENTS);
    let dial_core = reading.dial_core();
    let traces = reading.traces();
    reading.finish(DeclaredAgents {
        book,
        credentials,
        dial_core,
        traces,
    })
}

impl ConfigReader<'_> {
    fn traces(&mut self) -> Option<Collector> {
        let TracesConfig {
            otlp_url,
            credential_env,
        } = &self.config.traces;
        let hint = "set it to the credential of the collector, or leave traces.credential_env out";
        let credential = credential_env.as_ref().and_then(|variable| {
            let place = "traces.credential_env".to_owned();
            self.read_variable(place, variable, true, hint.to_owned())
        });
        let url = otlp_url.as_ref()?.text().to_owned();
        Some(Collector { url, credential })
    }

    fn dial_core(&mut self) -> Option<(String, Credential)> {
        let DialConfig { core_url, key_env } = &self.config.dial;
        match (core_url, key_env) {
            (Some(url), Some(variable)) => {
                let hint = format!(
                    "set {} to an API key: statehold token create --role client",
                    variable.name()
                );
                let key = self.read_variable("dial.key_env".to_owned(), variable, true, hint)?;
                Some((url.text().trim_end_matches('/').to_owned(), key))
            }
            (None, None) => None,
            (Some(_), None) => {
                let hint = "name the variable that holds an API key with the role client";
                self.add_mistake(
                    "dial.key_env".to_owned(),
                    "is missing beside dial.core_url",
                    hint,
                );
                None
            }
            (None, Some(_)) => {
                let hint = "set it to the address of DIAL Core, or leave dial.key_env out";
                self.add_mistake(
                    "dial.core_url".to_owned(),
                    "is missing beside dial.key_env",
                    hint,
                );
                None
            }
        }
    }

    fn model(&mut self, name: &Name, model: &ModelConfig) -> Option<ModelSpec> {
        let place = format!("{MODELS}.{}", step(name.as_str()));
        let model = model.with_defaults();
        let variable = model.credential_env.as_ref();
        let credential = variable.and_then(|variable| self.credential(&place, variable));
        let headers = self.headers(&place, model.headers.as_ref());
        let base_url = self.base_url(&place, model.base_url.as_ref(), "/chat/completions");
        let called = self.remote_model_name(&place, model.model.as_ref());
        Some(ModelSpec {
            name: name.clone(),
            base_url: base_url?,
            model: called?,
            credential,
            headers,
            input: model.input.clone().unwrap_or_default(),
            timeout: timeout(model.timeout_seconds),
            retries: retries(model.retries),
        })
    }

    fn tool_server(&mut self, name: &Name, server: &ToolServerConfig) -> Option<ToolServerSpec> {
        let place = format!("{TOOL_SERVERS}.{}", step(name.as_str()));
        if name.as_str().starts_with("statehold.") {
            let what = "is a name that only the server itself uses";
            let hint = "choose one that does not begin with `statehold.`";
            self.add_mistake(place.clone(), what, hint);
        }
        if name.as_str().contains("__") {
            let what = "has `__` in its name, which stands between a server and its tool";
            self.add_mistake(
                place.clone(),
                what,
                "give it a name with single underscores",
            );
        }
        let variable = server.credential_env.as_ref();
        let credential = variable.and_then(|variable| self.credential(&place, variable));
        let transport = match (&server.url, &server.command) {
            (Some(url), None) => {
                if server.env.is_some() {
                    let what = "is for servers with a command";
                    let hint = "name the variable with the credential in credential_env";
                    self.add_mistake(format!("{place}.env"), what, hint);
                }
                ToolTransport::Http {
                    url: url.text().to_owned(),
                    credential,
                    headers: self.headers(&place, server.headers.as_ref()),
                }
            }
            (None, Some(command)) => {
                let of_url = [
                    ("credential_env", server.credential_env.is_some()),
                    ("headers", server.headers.is_some()),
                ];
                for (setting, _) in of_url.into_iter().filter(|(_, is_set)| *is_set) {
                    let what = "is for servers with a url";
                    let hint = "name the variables that the program gets: env = [\"NAME\"]";
                    self.add_mistake(format!("{place}.{setting}"), what, hint);
                }
                let variables = server.env.iter().flatten();
                ToolTransport::Command {
                    program: command.program.text().to_owned(),
                    arguments: command.arguments.clone(),
                    environment: variables
                        .filter_map(|variable| {
                            let value = self.program_variable(&place, variable)?;
                            Some((variable.name().to_owned(), value))
                        })
                        .collect(),
                    mark: None,
                }
            }
            (Some(_), Some(_)) => {
                let what = "is set together with `url`";
                self.add_mistake(format!("{place}.command"), what, "leave one of them out");
                return None;
            }
            (None, None) => {
                let hint =
                    "add url = \"http://HOST:PORT/mcp\", or command = [\"PROGRAM\", \"ARGUMENT\"]";
                self.add_missing(format!("{place}.url"), hint);
                return None;
            }
        };
        Some(ToolServerSpec {
            name: name.clone(),
            trust_hints: server.trust_hints.unwrap_or(false),
            transport,
            timeout: timeout(server.timeout_seconds),
        })
    }

    fn agent(
        &mut self,
        place: &str,
        name: &Name,
        agent: &AgentConfig,
        credential: Option<Credential>,
    ) -> Option<AgentSpec> {
        let kind = agent.declared.kind.unwrap_or_default();
        if name.as_str().starts_with("statehold.") {
            let what = "is a name that only the server itself uses";
            let hint = "choose one that does not begin with `statehold.`";
            self.add_mistake(place.to_owned(), what, hint);
        }
        self.require_settings_of(place, kind);
        let mut declaration = agent.declared.clone();
        declaration.kind = Some(kind);
        let state_schema = self.state_schema(place, &mut declaration);
        let built = match kind {
            DeclaredKind::Worker => {
                let calls = declaration.calls.as_deref().unwrap_or_default();
                let declared = self.config.agents.keys();
                self.require_known(&format!("{place}.calls"), calls, &declared, "agent", AGENTS);
                Some(AgentKind::Worker)
            }
            DeclaredKind::Openai => self
                .openai(place, &mut declaration, credential)
                .map(|spec| AgentKind::Openai(Arc::new(spec))),
            DeclaredKind::Dial => self
                .dial(place, &mut declaration, credential)
                .map(|spec| AgentKind::Dial(Arc::new(spec))),
            DeclaredKind::Conversations => self
                .conversations(place, &mut declaration, credential)
                .map(|spec| AgentKind::Conversations(Arc::new(spec))),
            DeclaredKind::Analytics => self
                .analytics(place, &mut declaration, credential)
                .map(|spec| AgentKind::Analytics(Arc::new(spec))),
            DeclaredKind::Mcp => self
                .mcp_agent(place, &mut declaration)
                .map(|spec| AgentKind::Mcp(Arc::new(spec))),
            DeclaredKind::Llm => self
                .llm(place, &mut declaration)
                .map(|spec| AgentKind::Llm(Arc::new(spec))),
            DeclaredKind::Router => self
                .router(place, name, &mut declaration)
                .map(|spec| AgentKind::Router(Arc::new(spec))),
            DeclaredKind::Pipeline => self
                .pipeline(place, name, &mut declaration)
                .map(|spec| AgentKind::Pipeline(Arc::new(spec))),
        };
        self.require_own_output_key(place, &declaration);
        let built = built?;
        let default = built.default_sessions();
        let sessions = declaration.sessions.unwrap_or(default);
        let brief_on_loss = declaration.brief_on_loss.unwrap_or(false);
        // Writing the default explicitly must not change the digest.
        declaration
            .sessions
            .take_if(|sessions| *sessions == default);
        let caller_history = declaration.caller_history.unwrap_or_default();
        declaration
            .caller_history
            .take_if(|trust| *trust == CallerTrust::default());
        let references = declaration.references == Some(true);
        declaration.references.take_if(|is_on| !*is_on);
        declaration.brief_on_loss.take_if(|briefs| !*briefs);
        let pauses = declaration.pauses == Some(true);
        declaration.pauses.take_if(|pauses| !*pauses);
        let stages = declaration.stages.unwrap_or_default();
        declaration
            .stages
            .take_if(|detail| *detail == StageDetail::default());
        let state_format = declaration.state_format.unwrap_or_default();
        declaration
            .state_format
            .take_if(|format| *format == StateFormat::default());
        Some(AgentSpec {
            name: name.clone(),
            description: declaration.description.clone().map(Into::into),
            import: {
                let keys = declaration.import.iter().flatten();
                keys.map(|key| key.key().clone()).collect()
            },
            export: {
                let keys = declaration.export.iter().flatten();
                keys.map(|key| key.key().clone()).collect()
            },
            output_key: declaration.output_key.as_ref().map(|key| key.key().clone()),
            state_schema: state_schema.map(Arc::new),
            keep_pairs: declaration
                .keep_pairs
                .map(|pairs| usize::try_from(pairs.get()).unwrap_or(usize::MAX)),
            timeout: timeout(declaration.timeout_seconds),
            retries: retries(declaration.retries),
            sessions,
            caller_history,
            references,
            brief_on_loss,
            pauses,
            stages,
            state_format,
            digest: self.digest(name, agent, kind, &declaration),
            kind: built,
        })
    }

    /// Requires that an agent does not export the key of its answer: one commit writes a key once.
    fn require_own_output_key(&mut self, place: &str, declaration: &AgentDeclaration) {
        let Some(key) = &declaration.output_key else {
            return;
        };
        if declaration
            .export
            .iter()
            .flatten()
            .any(|other| other == key)
        {
            let what = format!("is `{}`, which is among `{place}.export`", key.key());
            let hint = "take it out there: the whole answer is written under this key";
            self.add_mistake(format!("{place}.output_key"), &what, hint);
        }
    }

    /// The digest of an agent's declaration with defaults, and of the models and tool servers it uses.
    fn digest(
        &self,
        name: &Name,
        agent: &AgentConfig,
        kind: DeclaredKind,
        declaration: &AgentDeclaration,
    ) -> Digest {
        let model = match kind {
            DeclaredKind::Llm | DeclaredKind::Router => declaration.model.as_ref(),
            DeclaredKind::Worker
            | DeclaredKind::Openai
            | DeclaredKind::Dial
            | DeclaredKind::Conversations
            | DeclaredKind::Analytics
            | DeclaredKind::Mcp
            | DeclaredKind::Pipeline => None,
        };
        let models = self.config.models.iter();
        let models = models
            .filter(|(name, _)| model.is_some_and(|model| model.text() == name.as_str()))
            .map(|(name, model)| (name.to_string(), settings_of(&model.with_defaults())));
        let servers = declaration.tool_servers.iter().flatten();
        let servers = servers
            .chain(&declaration.tool_server)
            .filter_map(|server| self.config.tool_servers.get_key_value(server))
            .map(|(name, server)| (name.to_string(), settings_of(&server.with_defaults())));
        let more = [
            ("name", json!(name)),
            ("credential_env", json!(agent.credential_env)),
            ("models_used", models.collect()),
            ("tool_servers_used", servers.collect()),
        ];
        let mut identity = settings_of(declaration);
        for (key, value) in more {
            let is_empty = value.as_object().is_some_and(Map::is_empty);
            if !is_empty && !value.is_null() {
                identity[key] = value;
            }
        }
        AgentSpec::digest_of(&identity)
    }

    /// Requires that the agent's kind supports each of its settings.
    fn require_settings_of(&mut self, place: &str, kind: DeclaredKind) {
        for setting in self.settings_in(place) {
            let Some(kinds) = kinds_with(setting) else {
                continue;
            };
            if kinds.contains(&kind) {
                continue;
            }
            let words: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
            let words = words.join(", ");
            let what = format!(
                "is not for agents of kind {}, only for: {words}",
                kind.word()
            );
            let hint = if self.settings_in(place).contains(&"kind") {
                "leave it out, or change the kind".to_owned()
            } else {
                format!("leave it out, or say which kind it is, one of: {words}")
            };
            self.add_mistake(format!("{place}.{setting}"), &what, hint);
        }
    }

    fn openai(
        &mut self,
        place: &str,
        declaration: &mut AgentDeclaration,
        credential: Option<Credential>,
    ) -> Option<OpenaiSpec> {
        declaration.timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
        declaration.retries.get_or_insert(RETRIES);
        let memory = *declaration.memory.get_or_insert_default();
        let base_url = self.base_url(place, declaration.base_url.as_ref(), "/chat/completions");
        let model = self.remote_model_name(place, declaration.model.as_ref());
        let headers = self.headers(place, declaration.headers.as_ref());
        Some(OpenaiSpec {
            base_url: base_url?,
            model: model?,
            credential,
            headers,
            memory,
        })
    }

    fn conversations(
        &mut self,
        place: &str,
        declaration: &mut AgentDeclaration,
        credential: Option<Credential>,
    ) -> Option<ConversationsSpec> {
        declaration.timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
        declaration.retries.get_or_insert(RETRIES);
        let base_url = self.base_url(place, declaration.base_url.as_ref(), "/conversations");
        let headers = self.headers(place, declaration.headers.as_ref());
        Some(ConversationsSpec {
            base_url: base_url?,
            credential,
            headers,
        })
    }

    fn llm(&mut self, place: &str, declaration: &mut AgentDeclaration) -> Option<LlmSpec> {
        declaration.retries.get_or_insert(RETRIES);
        let steps_max = *declaration.steps_max.get_or_insert(STEPS_MAX);
        let prompt = self.prompt(place, declaration);
        let model = self.declared_model(place, declaration.model.as_ref());
        let tool_servers = declaration.tool_servers.clone().unwrap_or_default();
        let known = self.config.tool_servers.keys();
        self.require_known(
            &format!("{place}.tool_servers"),
            &tool_servers,
            &known,
            "tool server",
            TOOL_SERVERS,
        );
        Some(LlmSpec {
            model: model?,
            prompt: prompt?,
            tool_servers,
            steps_max: u32::try_from(steps_max.get()).unwrap_or(u32::MAX),
            tokens_max: declaration.tokens_max.map(BoundedNumber::get),
            prompt_echo_words: declaration
                .prompt_echo_words
                .and_then(|words| usize::try_from(words.get()).ok()),
            state: StateAccess {
                read: declaration.state_read.iter().flatten().copied().collect(),
                write: {
                    let scopes = declaration.state_write.iter().flatten();
                    scopes.map(|scope| scope.scope()).collect()
                },
            },
        })
    }

    /// The prompt, inline or from a file. Moves its text into the declaration.
    fn prompt(&mut self, place: &str, declaration: &mut AgentDeclaration) -> Option<String> {
        let key = format!("{place}.prompt_file");
        match (&declaration.prompt, declaration.prompt_file.take()) {
            (Some(prompt), None) => Some(prompt.text().to_owned()),
            (None, Some(file)) => {
                let text = self.file(&key, &file)?;
                declaration.prompt = NonEmptyText::try_from(text.clone()).ok();
                Some(text)
            }
            (Some(_), Some(_)) => {
                self.add_mistake(
                    key,
                    "is set together with `prompt`",
                    "leave one of them out",
                );
                None
            }
            (None, None) => {
                let hint = "add the system prompt: prompt = \"…\", or prompt_file";
                self.add_missing(format!("{place}.prompt"), hint);
                None
            }
        }
    }

    /// The schema of the state. Moves it into the declaration.
    fn state_schema(&mut self, place: &str, declaration: &mut AgentDeclaration) -> Option<Schema> {
        let file: Option<PathBuf> = declaration.state_schema_file.take();
        if let Some(file) = file {
            let key = format!("{place}.state_schema_file");
            if declaration.state_schema.is_some() {
                let what = "is set together with `state_schema`";
                self.add_mistake(key, what, "leave one of them out");
                return None;
            }
            let text = self.file(&key, &file)?;
            let json: Result<serde_json::Value, _> = serde_json::from_str(&text);
            let json = json.map_err(|error| format!("it is not JSON: {error}"));
            match json.and_then(SchemaTable::try_from) {
                Ok(schema) => declaration.state_schema = Some(schema),
                Err(why) => {
                    let what = format!("names {}: {why}", file.display());
                    let hint =
                        "write a JSON Schema into it that refers to nothing outside of itself";
                    self.add_mistake(key, &what, hint);
                }
            }
        }
        declaration.state_schema.as_ref().map(SchemaTable::schema)
    }

    /// The base URL of a service, without the path that the server appends.
    pub(super) fn base_url(
        &mut self,
        place: &str,
        address: Option<&ServiceUrl>,
        path: &str,
    ) -> Option<String> {
        let key = format!("{place}.base_url");
        let Some(address) = address else {
            let hint = "add base_url = \"http://HOST:PORT/PATH\", up to and without";
            self.add_missing(key, format!("{hint} {path}"));
            return None;
        };
        let base = address.base();
        if base
            .split('?')
            .next()
            .is_some_and(|base| base.ends_with(path))
        {
            let what = format!("ends with {path}, which is added by itself");
            self.add_mistake(key, &what, format!("leave {path} out"));
        }
        Some(base)
    }

    /// The name of a model at its service.
    fn remote_model_name(&mut self, place: &str, model: Option<&NonEmptyText>) -> Option<String> {
        if model.is_none() {
            let hint = "add model = \"…\", its name at the service";
            self.add_missing(format!("{place}.model"), hint);
        }
        model.map(|model| model.text().to_owned())
    }

    /// The declared model that a setting refers to.
    pub(super) fn declared_model(
        &mut self,
        place: &str,
        model: Option<&NonEmptyText>,
    ) -> Option<Name> {
        let key = format!("{place}.model");
        let known = self.config.models.keys();
        let Some(model) = model else {
            self.add_missing(key, suggest_declaration("model", MODELS, "main", known));
            return None;
        };
        let mut found = self.config.models.keys();
        let found = found.find(|name| name.as_str() == model.text());
        if found.is_none() {
            let what = format!("is `{}`, which is not a declared model", model.text());
            let hint = suggest_declaration("model", MODELS, model.text(), known);
            self.add_mistake(key, &what, hint);
        }
        found.cloned()
    }

    /// Requires that each name in a list is declared and appears once.
    pub(super) fn require_known<'k>(
        &mut self,
        key: &str,
        names: &[Name],
        known: &(impl Iterator<Item = &'k Name> + Clone),
        thing: &str,
        section: &str,
    ) {
        for (at, name) in names.iter().enumerate() {
            if !known.clone().any(|known| known == name) {
                let what = format!("has `{name}`, which is not a declared {thing}");
                let hint = suggest_declaration(thing, section, name.as_str(), known.clone());
                self.add_mistake(key.to_owned(), &what, hint);
            }
            if names[..at].contains(name) {
                let what = format!("has `{name}` twice");
                self.add_mistake(key.to_owned(), &what, "name each once");
            }
        }
    }
}

/// The settings that a table sets.
fn settings_of(table: &impl Serialize) -> Value {
    let mut settings = serde_json::to_value(table).expect("settings are plain values");
    if let Value::Object(settings) = &mut settings {
        settings.retain(|_, value| !value.is_null());
    }
    settings
}

/// Suggests to declare a missing name, or to use a declared one.
pub(super) fn suggest_declaration<'k>(
    thing: &str,
    section: &str,
    name: &str,
    known: impl Iterator<Item = &'k Name>,
) -> String {
    let known: Vec<&str> = known.map(Name::as_str).collect();
    let table = format!("[{section}.{}]", step(name));
    if known.is_empty() {
        format!("declare the {thing} with {table}")
    } else {
        let known = known.join(", ");
        format!("declare the {thing} with {table}, or use one of: {known}")
    }
}

fn timeout(seconds: Option<TimeoutSeconds>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(TIMEOUT_SECONDS).get())
}

fn retries(retries: Option<RetryCount>) -> u32 {
    u32::try_from(retries.unwrap_or(RETRIES).get()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;

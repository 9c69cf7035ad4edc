//! From settings to declared agents: everything that agents refer to is there, everything that their
//! kind needs is said, and secrets come from the environment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, ChatDefault, ChatMemory, ConversationsSpec, LlmSpec,
    ModelSpec, OpenaiSpec, ToolServerSpec, ToolTransport,
};
use statehold_core::name::Name;
use statehold_engine::{Credential, Schema};

use super::agents::Agent;
use super::keys::{AGENTS, MODELS, TOOL_SERVERS};
use super::kinds::{
    Declaration, Kind, MemoryBy, OpenaiDefault, RETRIES, Retries, STEPS_MAX, TIMEOUT_SECONDS,
    Timeout, kinds_with,
};
use super::layers::{Explained, step};
use super::mistakes::{Mistakes, Reading};
use super::models::Model;
use super::tool_servers::ToolServer;
use super::values::{Address, SchemaTable, SessionKey, Variable, Within, Words};
use super::{Config, Surroundings};

/// What a configuration declares.
#[derive(Debug)]
pub(crate) struct Declared {
    pub(crate) book: AgentBook,
    /// The credentials that agents have of their own.
    pub(crate) credentials: BTreeMap<Name, Credential>,
}

/// Everything that a configuration declares, or everything that is wrong with it.
pub(crate) fn declared(
    config: &Config,
    explained: &[Explained],
    around: &Surroundings,
) -> Result<Declared, Mistakes> {
    let mut reading = Reading::new(config, explained, around);
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
    reading.finish(Declared { book, credentials })
}

/// What the digest of an agent is made of: its declaration with its defaults, and those of what it uses.
#[derive(Serialize)]
struct Identity<'a> {
    name: &'a Name,
    #[serde(flatten)]
    declaration: &'a Declaration,
    #[serde(skip_serializing_if = "Option::is_none")]
    credential_env: Option<&'a Variable>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    models_used: BTreeMap<&'a Name, Model>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tool_servers_used: BTreeMap<&'a Name, ToolServer>,
}

impl<'a> Reading<'a> {
    fn model(&mut self, name: &Name, model: &Model) -> Option<ModelSpec> {
        let place = format!("{MODELS}.{}", step(name.as_str()));
        let model = model.with_defaults();
        let variable = model.credential_env.as_ref();
        let credential = variable.and_then(|variable| self.credential(&place, variable));
        let base_url = self.base_url(&place, model.base_url.as_ref(), "/chat/completions");
        let called = self.called_there(&place, model.model.as_ref());
        Some(ModelSpec {
            name: name.clone(),
            base_url: base_url?,
            model: called?,
            credential,
            timeout: timeout(model.timeout_seconds),
            retries: retries(model.retries),
        })
    }

    fn tool_server(&mut self, name: &Name, server: &ToolServer) -> Option<ToolServerSpec> {
        let place = format!("{TOOL_SERVERS}.{}", step(name.as_str()));
        if name.as_str().contains("__") {
            let what = "has `__` in its name, which stands between a server and its tool";
            self.wrong(
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
                    let hint = "name the variable with what it is called with in credential_env";
                    self.wrong(format!("{place}.env"), what, hint);
                }
                ToolTransport::Http {
                    url: url.text().to_owned(),
                    credential,
                }
            }
            (None, Some(command)) => {
                if server.credential_env.is_some() {
                    let what = "is for servers with a url";
                    let hint = "name the variables that the program gets: env = [\"NAME\"]";
                    self.wrong(format!("{place}.credential_env"), what, hint);
                }
                let variables = server.env.iter().flatten();
                ToolTransport::Command {
                    program: command.program.text().to_owned(),
                    arguments: command.arguments.clone(),
                    environment: variables
                        .filter_map(|variable| {
                            let value = self.passed_on(&place, variable)?;
                            Some((variable.name().to_owned(), value))
                        })
                        .collect(),
                }
            }
            (Some(_), Some(_)) => {
                let what = "is set together with `url`";
                self.wrong(format!("{place}.command"), what, "leave one of them out");
                return None;
            }
            (None, None) => {
                let hint =
                    "add url = \"http://HOST:PORT/mcp\", or command = [\"PROGRAM\", \"ARGUMENT\"]";
                self.missing(format!("{place}.url"), hint);
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
        agent: &Agent,
        credential: Option<Credential>,
    ) -> Option<AgentSpec> {
        let kind = agent.declared.kind.unwrap_or_default();
        if name.as_str().starts_with("statehold.") {
            let what = "is a name that only the server itself uses";
            let hint = "choose one that does not begin with `statehold.`";
            self.wrong(place.to_owned(), what, hint);
        }
        self.require_settings_of(place, kind);
        let mut declaration = agent.declared.clone();
        declaration.kind = Some(kind);
        // What is the default anyway makes no difference for the digest.
        declaration
            .openai_default
            .take_if(|default| *default == OpenaiDefault::Stateless);
        let state_schema = self.state_schema(place, &mut declaration);
        let built = match kind {
            Kind::Worker => Some(AgentKind::Worker),
            Kind::Openai => self
                .openai(place, &mut declaration, credential)
                .map(|spec| AgentKind::Openai(Arc::new(spec))),
            Kind::Conversations => self
                .conversations(place, &mut declaration, credential)
                .map(|spec| AgentKind::Conversations(Arc::new(spec))),
            Kind::Llm => self
                .llm(place, &mut declaration)
                .map(|spec| AgentKind::Llm(Arc::new(spec))),
            Kind::Router => self
                .router(place, name, &mut declaration)
                .map(|spec| AgentKind::Router(Arc::new(spec))),
        };
        let keys = |keys: &Option<Vec<SessionKey>>| {
            let keys = keys.iter().flatten();
            keys.map(|key| key.key().clone()).collect()
        };
        Some(AgentSpec {
            name: name.clone(),
            description: declaration.description.clone().map(Into::into),
            import: keys(&declaration.import),
            export: keys(&declaration.export),
            state_schema: state_schema.map(Arc::new),
            keep_pairs: declaration
                .keep_pairs
                .map(|pairs| usize::try_from(pairs.get()).unwrap_or(usize::MAX)),
            timeout: timeout(declaration.timeout_seconds),
            retries: retries(declaration.retries),
            openai_default: match declaration.openai_default.unwrap_or_default() {
                OpenaiDefault::Stateless => ChatDefault::Stateless,
                OpenaiDefault::Stateful => ChatDefault::Stateful,
            },
            digest: AgentSpec::digest_of(&self.identity(name, agent, kind, &declaration)),
            kind: built?,
        })
    }

    fn identity<'b>(
        &self,
        name: &'b Name,
        agent: &'b Agent,
        kind: Kind,
        declaration: &'b Declaration,
    ) -> Identity<'b>
    where
        'a: 'b,
    {
        let config = self.config;
        let model = match kind {
            Kind::Llm | Kind::Router => declaration.model.as_ref(),
            Kind::Worker | Kind::Openai | Kind::Conversations => None,
        };
        let models = config.models.iter();
        let servers = declaration.tool_servers.iter().flatten();
        Identity {
            name,
            declaration,
            credential_env: agent.credential_env.as_ref(),
            models_used: models
                .filter(|(name, _)| model.is_some_and(|model| model.text() == name.as_str()))
                .map(|(name, model)| (name, model.with_defaults()))
                .collect(),
            tool_servers_used: servers
                .filter_map(|server| config.tool_servers.get_key_value(server))
                .map(|(name, server)| (name, server.with_defaults()))
                .collect(),
        }
    }

    /// Every setting of an agent is one that its kind has.
    fn require_settings_of(&mut self, place: &str, kind: Kind) {
        for setting in self.set_in(place) {
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
            let hint = if self.set_in(place).contains(&"kind") {
                "leave it out, or change the kind".to_owned()
            } else {
                format!("leave it out, or say which kind it is, one of: {words}")
            };
            self.wrong(format!("{place}.{setting}"), &what, hint);
        }
    }

    fn openai(
        &mut self,
        place: &str,
        declaration: &mut Declaration,
        credential: Option<Credential>,
    ) -> Option<OpenaiSpec> {
        declaration.timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
        declaration.retries.get_or_insert(RETRIES);
        let memory = *declaration.memory.get_or_insert_default();
        let base_url = self.base_url(place, declaration.base_url.as_ref(), "/chat/completions");
        let model = self.called_there(place, declaration.model.as_ref());
        Some(OpenaiSpec {
            base_url: base_url?,
            model: model?,
            credential,
            memory: match memory {
                MemoryBy::Restore => ChatMemory::Restore,
                MemoryBy::Track => ChatMemory::Track,
            },
        })
    }

    fn conversations(
        &mut self,
        place: &str,
        declaration: &mut Declaration,
        credential: Option<Credential>,
    ) -> Option<ConversationsSpec> {
        declaration.timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
        declaration.retries.get_or_insert(RETRIES);
        let base_url = self.base_url(place, declaration.base_url.as_ref(), "/conversations");
        Some(ConversationsSpec {
            base_url: base_url?,
            credential,
        })
    }

    fn llm(&mut self, place: &str, declaration: &mut Declaration) -> Option<LlmSpec> {
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
            tokens_max: declaration.tokens_max.map(Within::get),
        })
    }

    /// The prompt, from wherever it is. Afterwards the declaration has its text.
    fn prompt(&mut self, place: &str, declaration: &mut Declaration) -> Option<String> {
        let key = format!("{place}.prompt_file");
        match (&declaration.prompt, declaration.prompt_file.take()) {
            (Some(prompt), None) => Some(prompt.text().to_owned()),
            (None, Some(file)) => {
                let text = self.file(&key, &file)?;
                declaration.prompt = Words::try_from(text.clone()).ok();
                Some(text)
            }
            (Some(_), Some(_)) => {
                self.wrong(
                    key,
                    "is set together with `prompt`",
                    "leave one of them out",
                );
                None
            }
            (None, None) => {
                let hint = "add what the model is told first: prompt = \"…\", or prompt_file";
                self.missing(format!("{place}.prompt"), hint);
                None
            }
        }
    }

    /// What the state must look like. Afterwards the declaration has it.
    fn state_schema(&mut self, place: &str, declaration: &mut Declaration) -> Option<Schema> {
        let file: Option<PathBuf> = declaration.state_schema_file.take();
        if let Some(file) = file {
            let key = format!("{place}.state_schema_file");
            if declaration.state_schema.is_some() {
                let what = "is set together with `state_schema`";
                self.wrong(key, what, "leave one of them out");
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
                    self.wrong(key, &what, hint);
                }
            }
        }
        declaration.state_schema.as_ref().map(SchemaTable::schema)
    }

    /// Where a service is, without the path that is put behind it.
    fn base_url(&mut self, place: &str, address: Option<&Address>, path: &str) -> Option<String> {
        let key = format!("{place}.base_url");
        let Some(address) = address else {
            let hint = "add base_url = \"http://HOST:PORT/PATH\", up to and without";
            self.missing(key, format!("{hint} {path}"));
            return None;
        };
        if address.base().ends_with(path) {
            let what = format!("ends with {path}, which is added by itself");
            self.wrong(key, &what, format!("leave {path} out"));
        }
        Some(address.base().to_owned())
    }

    /// What a model is called by the service that has it.
    fn called_there(&mut self, place: &str, model: Option<&Words>) -> Option<String> {
        if model.is_none() {
            let hint = "add model = \"…\": what the service calls it";
            self.missing(format!("{place}.model"), hint);
        }
        model.map(|model| model.text().to_owned())
    }

    /// A model that is declared.
    pub(super) fn declared_model(&mut self, place: &str, model: Option<&Words>) -> Option<Name> {
        let key = format!("{place}.model");
        let known = self.config.models.keys();
        let Some(model) = model else {
            self.missing(key, declare("model", MODELS, "main", known));
            return None;
        };
        let mut found = self.config.models.keys();
        let found = found.find(|name| name.as_str() == model.text());
        if found.is_none() {
            let what = format!("is `{}`, and there is no such model", model.text());
            let hint = declare("model", MODELS, model.text(), known);
            self.wrong(key, &what, hint);
        }
        found.cloned()
    }

    /// Names in a list are of things that are declared, and each stands there once.
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
                let what = format!("has `{name}`, and there is no such {thing}");
                let hint = declare(thing, section, name.as_str(), known.clone());
                self.wrong(key.to_owned(), &what, hint);
            }
            if names[..at].contains(name) {
                let what = format!("has `{name}` twice");
                self.wrong(key.to_owned(), &what, "name each once");
            }
        }
    }
}

/// How to declare something that is missing, or what to use in its place.
pub(super) fn declare<'k>(
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

fn timeout(seconds: Option<Timeout>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(TIMEOUT_SECONDS).get())
}

fn retries(retries: Option<Retries>) -> u32 {
    u32::try_from(retries.unwrap_or(RETRIES).get()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;

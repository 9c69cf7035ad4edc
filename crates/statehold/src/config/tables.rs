//! Compares two versions of the configuration table by table. The effective values are compared, so
//! a changed prompt file or environment variable counts as a change.

use std::collections::BTreeMap;
use std::sync::Arc;

use statehold_agents::spec::{ModelSpec, ToolServerSpec};
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use statehold_engine::Credential;
use statehold_server::ReloadReport;

use super::Config;
use super::agents::AgentConfig;
use super::book::DeclaredAgents;
use super::keys::{AGENTS, APPS, MODELS, STATE, TOOL_SERVERS};
use super::layers::{SourcedValue, step};
use super::lifetimes::AppConfig;
use super::state_rules::StateRuleConfig;

/// The tables of agents, models, tool servers and state keys, by their names in the file.
#[derive(Debug)]
pub(crate) struct ConfigTables(BTreeMap<String, DeclaredTable>);

#[derive(Debug, PartialEq)]
enum DeclaredTable {
    Agent {
        said: Box<AgentConfig>,
        /// Covers the declaration and everything it refers to.
        digest: Option<Digest>,
        credential: Option<Credential>,
    },
    Model(Option<Arc<ModelSpec>>),
    ToolServer(Option<Arc<ToolServerSpec>>),
    State(StateRuleConfig),
    App(AppConfig),
}

impl ConfigTables {
    pub(crate) fn of(config: &Config, declared: &DeclaredAgents) -> Self {
        let DeclaredAgents {
            book, credentials, ..
        } = declared;
        let agents = config.agents.iter().map(|(name, said)| {
            let table = DeclaredTable::Agent {
                said: Box::new(said.clone()),
                digest: book.agents.get(name).map(|spec| spec.digest),
                credential: credentials.get(name).cloned(),
            };
            (key(AGENTS, name.as_str()), table)
        });
        let models = config.models.keys().map(|name| {
            let table = DeclaredTable::Model(book.models.get(name).cloned());
            (key(MODELS, name.as_str()), table)
        });
        let tool_servers = config.tool_servers.keys().map(|name| {
            let table = DeclaredTable::ToolServer(book.tool_servers.get(name).cloned());
            (key(TOOL_SERVERS, name.as_str()), table)
        });
        let state = config.state.iter().map(|(keys, rule)| {
            let table = DeclaredTable::State(rule.clone());
            (key(STATE, &keys.to_string()), table)
        });
        let apps = config.apps.iter().map(|(name, app)| {
            let table = DeclaredTable::App(app.clone());
            (key(APPS, name.as_str()), table)
        });
        let tables = agents.chain(apps).chain(models).chain(tool_servers);
        let tables = tables.chain(state);
        Self(tables.collect())
    }

    /// Compares with an earlier version.
    pub(crate) fn since(&self, old: &Self) -> ReloadReport {
        let mut differences = ReloadReport::default();
        for (key, table) in &self.0 {
            match old.0.get(key) {
                None => differences.added.push(key.clone()),
                Some(before) if before != table => differences.changed.push(key.clone()),
                Some(_) => {}
            }
        }
        let gone = old.0.keys().filter(|key| !self.0.contains_key(*key));
        differences.removed.extend(gone.cloned());
        differences
    }
}

/// The name of an agent's table in the file.
pub(crate) fn agent_table(agent: &Name) -> String {
    key(AGENTS, agent.as_str())
}

/// The name of the table of an agent's tool.
pub(crate) fn tool_table(agent: &Name, tool: &Name) -> String {
    format!("{}.tools.{}", agent_table(agent), step(tool.as_str()))
}

fn key(section: &str, name: &str) -> String {
    format!("{section}.{}", step(name))
}

/// The settings outside of these tables whose values differ.
pub(crate) fn other_settings(old: &[SourcedValue], new: &[SourcedValue]) -> Vec<String> {
    let before: BTreeMap<&str, _> = old
        .iter()
        .map(|value| (value.key.as_str(), &value.value))
        .collect();
    let is_named = |key: &str| {
        let section = key.split('.').next().unwrap_or_default();
        [AGENTS, APPS, MODELS, STATE, TOOL_SERVERS].contains(&section)
    };
    let others = new.iter().filter(|value| !is_named(&value.key));
    let others = others.filter(|value| before.get(value.key.as_str()) != Some(&&value.value));
    others.map(|value| value.key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::{ConfigEnvironment, declare_agents, layers};
    use super::*;

    fn read(
        directory: &std::path::Path,
        file: &str,
        token: &str,
    ) -> (ConfigTables, Vec<SourcedValue>) {
        std::fs::write(directory.join("statehold.toml"), file).expect("a file");
        let variable = ["TOKEN", token].map(OsString::from);
        let environment = ConfigEnvironment {
            directory: directory.to_owned(),
            variables: vec![variable.into()],
        };
        let layers = layers(&environment, None).expect("settings");
        let (config, explained) = layers.finish().expect("they fit");
        let declared = declare_agents(&config, &explained, &environment).expect("no mistakes");
        (ConfigTables::of(&config, &declared), explained)
    }

    const MODEL: &str = "[models.main]\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"x\"\n\
                         credential_env = \"TOKEN\"\n";
    const AGENT: &str = "[agents.a]\nkind = \"llm\"\nmodel = \"main\"\nprompt_file = \"prompt\"\n";

    #[track_caller]
    fn check(old: (&str, &str), new: (&str, &str), prompt: &str, expected: [&[&str]; 3]) {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("prompt");
        std::fs::write(&file, "Be terse.").expect("a file");
        let (before, _) = read(directory.path(), old.0, old.1);
        std::fs::write(&file, prompt).expect("a file");
        let (after, _) = read(directory.path(), new.0, new.1);
        let found = after.since(&before);
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let [added, changed, removed] = expected.map(names);
        let expected = ReloadReport {
            added,
            changed,
            removed,
            needs_restart: Vec::new(),
        };
        assert_eq!(found, expected, "{new:?}");
    }

    #[test]
    fn tables_are_compared_by_what_counts_in_the_end() {
        let both = format!("{MODEL}{AGENT}");
        let old = (both.as_str(), "one");
        check(old, old, "Be terse.", [&[], &[], &[]]);
        check(old, old, "Be kind.", [&[], &["agents.a"], &[]]);
        check(
            old,
            (&both, "two"),
            "Be terse.",
            [&[], &["models.main"], &[]],
        );
        let slower = both.replacen("[agents", "timeout_seconds = 5\n[agents", 1);
        let changed = ["agents.a", "models.main"];
        check(old, (&slower, "one"), "Be terse.", [&[], &changed, &[]]);
        let gated = format!("{both}[agents.a.tools.pay]\napproval = \"always\"\n");
        check(old, (&gated, "one"), "Be terse.", [&[], &["agents.a"], &[]]);
        check(old, (MODEL, "one"), "Be terse.", [&[], &[], &["agents.a"]]);
        let more =
            format!("{both}[agents.\"b.c\"]\n[tool_servers.t]\nurl = \"http://127.0.0.1:1\"\n");
        let added = ["agents.\"b.c\"", "tool_servers.t"];
        check(old, (&more, "one"), "Be terse.", [&added, &[], &[]]);
    }

    #[test]
    fn settings_that_need_a_restart_are_found_by_their_values() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_, before) = read(directory.path(), "", "one");
        let file = "[server]\nlisten = \"127.0.0.1:9\"\n[log]\nlevel = \"info\"\n[agents.a]\n";
        let (_, after) = read(directory.path(), file, "one");
        assert_eq!(other_settings(&before, &after), ["server.listen"]);
        assert_eq!(other_settings(&after, &after), [""; 0]);
    }
}

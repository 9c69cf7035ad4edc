//! `statehold agents reload`.

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use crate::cli::answers::{elements, text};
use crate::cli::output::CliOutput;
use crate::client::Client;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(in crate::cli) struct AgentsReloadArgs {}

impl AgentsReloadArgs {
    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let nothing = json!({});
        let asked = client.call(Method::POST, "/v1/config/reload", Some(&nothing));
        let answer = asked.await.map_err(with_mistakes)?.body;
        if output.json {
            return output.json(&answer);
        }
        for line in lines(&answer) {
            output.line(&line)?;
        }
        Ok(Exit::Done)
    }
}

/// The tables that changed.
fn lines(reloaded: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |what: &str, field: &str| {
        let names = elements(reloaded, field).iter().filter_map(Value::as_str);
        let names: Vec<&str> = names.collect();
        if !names.is_empty() {
            lines.push(format!("{what}: {}", names.join(", ")));
        }
    };
    say("added", "added");
    say("changed", "changed");
    say("removed", "removed");
    say("needs a restart", "needs_restart");
    if lines.is_empty() {
        lines.push("nothing changed".to_owned());
    }
    lines
}

/// Adds every configuration mistake, with its hint, to the error.
fn with_mistakes(mut failure: Failure) -> Failure {
    let told = elements(&failure.details, "mistakes")
        .iter()
        .flat_map(|mistake| {
            let hint = text(mistake, "hint")
                .lines()
                .map(|line| format!("  {line}"));
            std::iter::once(format!("✗ {}", text(mistake, "message"))).chain(hint)
        });
    let told: Vec<String> = told.collect();
    if told.is_empty() {
        return failure;
    }
    "the configuration has mistakes; nothing was changed".clone_into(&mut failure.message);
    failure.hint(told.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_different_is_said_in_words() {
        let of = |added: &[&str], needs_restart: &[&str]| {
            lines(&json!({
                "added": added, "changed": [], "removed": [], "needs_restart": needs_restart,
            }))
        };
        assert_eq!(of(&[], &[]), ["nothing changed"]);
        assert_eq!(
            of(&["agents.a", "models.m"], &["server.listen"]),
            [
                "added: agents.a, models.m",
                "needs a restart: server.listen"
            ]
        );
    }

    #[test]
    fn every_mistake_is_told() {
        let mut failure = Failure::new(Exit::Failed, "the first; and 1 more");
        let mistake = |message: &str, hint: &str| json!({"message": message, "hint": hint});
        let mistakes = [mistake("one", "do this"), mistake("two", "")];
        failure.details = Box::new(json!({ "mistakes": mistakes }));
        let told = with_mistakes(failure);
        assert_eq!(told.hint.as_deref(), Some("✗ one\n  do this\n✗ two"));
    }
}

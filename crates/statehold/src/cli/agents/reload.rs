//! `statehold agents reload`.

use clap::Args;
use http::Method;
use serde::Deserialize;
use serde_json::json;

use crate::cli::answers::read;
use crate::cli::output::CliOutput;
use crate::client::Client;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(in crate::cli) struct AgentsReloadArgs {}

/// The tables that changed, as the server reports them.
#[derive(Debug, Deserialize)]
struct ReloadSummary {
    added: Vec<String>,
    changed: Vec<String>,
    removed: Vec<String>,
    needs_restart: Vec<String>,
}

/// One mistake in the configuration, as the server reports it.
#[derive(Debug, Deserialize)]
struct ReportedMistake {
    message: String,
    hint: String,
}

impl AgentsReloadArgs {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        let nothing = json!({});
        let asked = client.call(Method::POST, "/v1/config/reload", Some(&nothing));
        let answer = asked.await.map_err(with_mistakes)?.body;
        if output.json {
            output.json(&answer)?;
            return Ok(Exit::Done);
        }
        for line in lines(read(&answer)?) {
            output.line(&line)?;
        }
        Ok(Exit::Done)
    }
}

fn lines(reloaded: ReloadSummary) -> Vec<String> {
    let ReloadSummary {
        added,
        changed,
        removed,
        needs_restart,
    } = reloaded;
    let mut lines = Vec::new();
    let mut say = |what: &str, names: &[String]| {
        if !names.is_empty() {
            lines.push(format!("{what}: {}", names.join(", ")));
        }
    };
    say("added", &added);
    say("changed", &changed);
    say("removed", &removed);
    say("needs a restart", &needs_restart);
    if lines.is_empty() {
        lines.push("nothing changed".to_owned());
    }
    lines
}

/// Adds every configuration mistake, with its hint, to the error.
fn with_mistakes(mut failure: Failure) -> Failure {
    let mistakes = failure.details.get("mistakes").cloned();
    let mistakes =
        mistakes.and_then(|all| serde_json::from_value::<Vec<ReportedMistake>>(all).ok());
    let Some(mistakes) = mistakes.filter(|all| !all.is_empty()) else {
        return failure;
    };
    "the configuration has mistakes; nothing was changed".clone_into(&mut failure.message);
    let told = mistakes.iter().flat_map(|mistake| {
        let hint = mistake.hint.lines().map(|line| format!("  {line}"));
        std::iter::once(format!("✗ {}", mistake.message)).chain(hint)
    });
    let told: Vec<String> = told.collect();
    failure.hint(told.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_different_is_said_in_words() {
        let of = |added: &[&str], needs_restart: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            lines(ReloadSummary {
                added: names(added),
                changed: Vec::new(),
                removed: Vec::new(),
                needs_restart: names(needs_restart),
            })
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

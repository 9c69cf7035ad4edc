//! `statehold approvals respond`: the answer to a question or a form, or the result of an action
//! that is not run.

use std::io::Read;

use clap::Args;
use serde_json::{Map, Value};

use super::decide::{Common, body, may_decide, send};
use super::fetch;
use crate::cli::ask;
use crate::cli::hold::Hold;
use crate::cli::output::{Output, Tone};
use crate::cli::printable::{cell, printable};
use crate::client::Client;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(in crate::cli) struct Respond {
    #[command(flatten)]
    common: Common,
    /// The answer as text; `-` reads it from standard input. On a terminal it is asked for.
    #[arg(conflicts_with = "content")]
    text: Option<String>,
    /// The answer as JSON, for forms.
    #[arg(long, value_name = "JSON")]
    content: Option<String>,
}

impl Respond {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        may_decide(&hold, "respond", &self.common, output)?;
        let content = self.answer(&hold, output)?;
        let mut body = body("respond", None, &self.common);
        if let Some(content) = content {
            body["content"] = content;
        }
        send(client, &hold, body, &self.common, output).await
    }

    /// The answer that was given, or that the person gives now. None if the comment is the answer.
    fn answer(&self, hold: &Hold, output: &Output) -> anyhow::Result<Option<Value>> {
        if let Some(json) = &self.content {
            let content = serde_json::from_str(json).map_err(|error| {
                Failure::usage(format!("the answer is not JSON: {error}"))
                    .hint("it looks like {\"city\": \"Rahway\"}; plain text needs no --content")
            })?;
            return Ok(Some(content));
        }
        match self.text.as_deref() {
            Some("-") => {
                let mut text = String::new();
                std::io::stdin().lock().read_to_string(&mut text)?;
                Ok(Some(text.trim_end_matches(['\n', '\r']).into()))
            }
            Some(text) => Ok(Some(text.into())),
            None if self.common.comment.is_some() => Ok(None),
            None if ask::can_ask() => asked(hold, output).map(Some),
            None => Err(
                Failure::usage("there is no answer, and nobody can be asked here")
                    .hint("give it as text after the hold, or with: --content JSON")
                    .into(),
            ),
        }
    }
}

/// Asks the person, field by field where a form has fields.
fn asked(hold: &Hold, output: &Output) -> anyhow::Result<Value> {
    output.note(&Tone::Strong.paint(&cell(&hold.title)));
    if let Some(message) = &hold.message {
        output.note(&printable(message));
    }
    if hold.kind == "credential" {
        return given(ask::secret("Answer (not shown): ")?).map(Value::from);
    }
    let schema = hold.response_schema.as_ref();
    let fields = schema.and_then(|schema| schema["properties"].as_object());
    let Some(fields) = fields else {
        return given(ask::line("Answer: ")?).map(Value::from);
    };
    let required = schema.and_then(|schema| schema["required"].as_array());
    let mut content = Map::new();
    for (name, field) in fields {
        let is_required =
            required.is_some_and(|required| required.iter().any(|wanted| wanted == name));
        if let Some(value) = ask_field(name, field, is_required)? {
            content.insert(name.clone(), value);
        }
    }
    Ok(Value::Object(content))
}

fn ask_field(name: &str, field: &Value, is_required: bool) -> anyhow::Result<Option<Value>> {
    let kind = field["type"].as_str().unwrap_or("string");
    let mut hint = cell(kind);
    if let Some(choices) = field["enum"].as_array() {
        let choices: Vec<String> = choices
            .iter()
            .map(|choice| cell(choice.as_str().unwrap_or(&choice.to_string())))
            .collect();
        hint = choices.join(" | ");
    }
    if !is_required {
        hint.push_str(", may be left out");
    }
    let title = field["title"].as_str().unwrap_or(name);
    let typed = given(ask::line(&format!("{} ({hint}): ", cell(title)))?)?;
    if typed.is_empty() && !is_required {
        return Ok(None);
    }
    if kind == "string" {
        return Ok(Some(typed.into()));
    }
    // The server says what is wrong with it, if it is.
    let value = serde_json::from_str(&typed).unwrap_or_else(|_| typed.into());
    Ok(Some(value))
}

fn given(answer: Option<String>) -> anyhow::Result<String> {
    answer.ok_or_else(|| Failure::usage("there was no answer; nothing was decided").into())
}

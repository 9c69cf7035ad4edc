//! `statehold approvals respond`: answers a question or a form, or supplies the result of an action
//! instead of running it.

use std::io::Read;

use clap::Args;
use serde_json::{Map, Value};

use super::decide::{
    DecisionArgs, check_may_decide, decision_body, print_before_decision, send_decision,
};
use super::fetch;
use crate::cli::ask;
use crate::cli::hold::HoldInfo;
use crate::cli::output::CliOutput;
use crate::cli::printable::cell;
use crate::client::Client;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(in crate::cli) struct RespondArgs {
    #[command(flatten)]
    common: DecisionArgs,
    /// The answer as text; `-` reads it from standard input. On a terminal the command asks for it.
    #[arg(conflicts_with = "content")]
    text: Option<String>,
    /// The answer as JSON, for forms.
    #[arg(long, value_name = "JSON")]
    content: Option<String>,
    /// Do not ask whether the answer may take the place of the result of an action.
    #[arg(short, long)]
    yes: bool,
}

/// The answer to a hold.
enum GivenAnswer {
    Content(Value),
    /// The comment is the answer.
    InComment,
    /// The person gave none.
    Nothing,
}

impl From<Option<Value>> for GivenAnswer {
    fn from(content: Option<Value>) -> Self {
        content.map_or(Self::Nothing, Self::Content)
    }
}

impl RespondArgs {
    /// With a question for the answer.
    pub(super) fn of(common: DecisionArgs) -> Self {
        Self {
            common,
            text: None,
            content: None,
            yes: false,
        }
    }

    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        check_may_decide(&hold, "respond", &self.common, output)?;
        let mut body = decision_body("respond", None, &self.common);
        match self.answer(&hold, output)? {
            GivenAnswer::Content(content) => body["content"] = content,
            GivenAnswer::InComment => {}
            GivenAnswer::Nothing => {
                output.note("nothing was decided");
                return Ok(Exit::Refused);
            }
        }
        send_decision(client, &hold, body, &self.common, output).await
    }

    /// The answer from the arguments, or from the person at the terminal.
    fn answer(&self, hold: &HoldInfo, output: &CliOutput) -> anyhow::Result<GivenAnswer> {
        let is_given = self.content.is_some() || self.text.is_some();
        if is_given && !self.confirm_result(hold, output)? {
            return Ok(GivenAnswer::Nothing);
        }
        if let Some(json) = &self.content {
            let content: Value = serde_json::from_str(json).map_err(|error| {
                Failure::usage(format!("the answer is not JSON: {error}"))
                    .hint("it looks like {\"city\": \"Rahway\"}; plain text needs no --content")
            })?;
            return Ok(GivenAnswer::Content(content));
        }
        match self.text.as_deref() {
            Some("-") => {
                let mut text = String::new();
                std::io::stdin().lock().read_to_string(&mut text)?;
                let text = text.trim_end_matches(['\n', '\r']);
                Ok(GivenAnswer::Content(text.into()))
            }
            Some(text) => Ok(GivenAnswer::Content(text.into())),
            None if self.common.comment.is_some() => Ok(GivenAnswer::InComment),
            None if ask::can_ask() => ask_person(hold, output).map(GivenAnswer::from),
            None => Err(Failure::usage(
                "the answer is missing, and there is no terminal to ask on",
            )
            .hint("give it as text after the hold, or with: --content JSON")
            .into()),
        }
    }

    /// Asks a person whether the answer on the command line may take the place of the result of an
    /// action: the agent reads it as a success.
    fn confirm_result(&self, hold: &HoldInfo, output: &CliOutput) -> anyhow::Result<bool> {
        let Some(action) = hold.action.as_ref().filter(|_| hold.kind == "approval") else {
            return Ok(true);
        };
        print_before_decision(hold, None, output);
        if self.yes || !ask::can_ask() {
            return Ok(true);
        }
        let tool = cell(&action.tool);
        ask::ask_yes(&format!(
            "Answer {} for {tool}, which does not run?",
            cell(&hold.alias)
        ))
    }
}

/// Asks the person, field by field if the form has fields. `None` if the person typed nothing.
fn ask_person(hold: &HoldInfo, output: &CliOutput) -> anyhow::Result<Option<Value>> {
    print_before_decision(hold, None, output);
    if hold.kind == "credential" {
        let secret = require_answer(ask::ask_secret("Answer (not shown): ")?)?;
        return Ok(answer_in(secret));
    }
    let schema = hold.response_schema.as_ref();
    let fields = schema.and_then(|schema| schema["properties"].as_object());
    let Some(fields) = fields else {
        let name = match &hold.action {
            Some(action) => format!("Result of {}, which does not run", cell(&action.tool)),
            None => "Answer".to_owned(),
        };
        let question = format!("{name} (Enter alone decides nothing): ");
        return Ok(answer_in(require_answer(ask::ask_line(&question)?)?));
    };
    let required = schema.and_then(|schema| schema["required"].as_array());
    let mut content = Map::new();
    for (name, field) in fields {
        let is_required =
            required.is_some_and(|required| required.iter().any(|wanted| wanted == name));
        match ask_field(name, field, is_required)? {
            Some(value) => {
                content.insert(name.clone(), value);
            }
            None if is_required => return Ok(None),
            None => {}
        }
    }
    Ok((!content.is_empty()).then_some(Value::Object(content)))
}

/// The answer in a typed line. `None` without one: Enter alone decides nothing.
fn answer_in(typed: String) -> Option<Value> {
    (!typed.trim().is_empty()).then(|| typed.into())
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
        hint.push_str(", optional");
    }
    let title = field["title"].as_str().unwrap_or(name);
    let typed = require_answer(ask::ask_line(&format!("{} ({hint}): ", cell(title)))?)?;
    if typed.trim().is_empty() {
        return Ok(None);
    }
    if kind == "string" {
        return Ok(Some(typed.into()));
    }
    // Send it as text if it is not JSON; the server validates it and explains the mistake.
    let value = serde_json::from_str(&typed).unwrap_or_else(|_| typed.into());
    Ok(Some(value))
}

fn require_answer(answer: Option<String>) -> anyhow::Result<String> {
    answer.ok_or_else(|| Failure::usage("there was no answer; nothing was decided").into())
}

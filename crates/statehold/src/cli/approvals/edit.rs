//! `statehold approvals edit`: approve an action with other arguments, which are shown first.

use std::io::{Read, Write};
use std::process::Command;

use anyhow::Context;
use clap::Args;
use serde_json::Value;
use statehold_engine::Schema;

use super::arguments::{differences, set};
use super::confirm::{self, ConfirmationArgs};
use super::decide::{
    DecisionArgs, check_may_decide, decision_body, digest_to_send, print_before_decision,
    send_decision,
};
use super::fetch;
use crate::cli::ask;
use crate::cli::hold::ActionInfo;
use crate::cli::output::{CliOutput, error_columns, wrapped};
use crate::cli::resolve::exact_name;
use crate::client::Client;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
#[command(after_help = confirm::HELP)]
pub(in crate::cli) struct EditArgs {
    #[command(flatten)]
    common: DecisionArgs,
    /// Set one argument: `user_id=8`, `address.city=Rahway` or `/address/city=Rahway`. A text stays
    /// a text; anything else is read as JSON. May be given several times.
    #[arg(long, value_name = "PATH=VALUE", conflicts_with = "args")]
    set: Vec<String>,
    /// All arguments, as a JSON object. Without this and --set, the command opens $VISUAL or
    /// $EDITOR.
    #[arg(long, value_name = "JSON")]
    args: Option<String>,
    #[command(flatten)]
    confirmation: ConfirmationArgs,
}

impl EditArgs {
    /// With an editor for the arguments.
    pub(super) fn of(common: DecisionArgs) -> Self {
        Self {
            common,
            set: Vec::new(),
            args: None,
            confirmation: ConfirmationArgs::default(),
        }
    }

    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        check_may_decide(&hold, "edit", &self.common, output)?;
        let digest = digest_to_send(&hold, self.confirmation.digest.as_deref())?;
        let action = hold.action.as_ref().ok_or_else(|| {
            Failure::usage(format!("{} has no action to edit", hold.alias)).hint(format!(
                "see what it offers with: statehold approvals show {}",
                hold.id
            ))
        })?;
        let args = self.edited_arguments(action)?;
        let lines = differences(&action.args, &args);
        if lines.is_empty() {
            let name = exact_name(&hold.session_id, &hold.alias);
            return Err(
                Failure::usage("nothing was changed, so nothing was decided")
                    .hint(format!(
                        "to run it as it is: statehold approvals approve {name}"
                    ))
                    .into(),
            );
        }
        require_fit(action, &args)?;
        print_before_decision(&hold, Some(&args), output);
        let columns = error_columns().unwrap_or(usize::MAX);
        for line in lines {
            for (at, line) in wrapped(&line, columns.saturating_sub(4)).iter().enumerate() {
                let indent = if at == 0 { "  " } else { "    " };
                output.note(&format!("{indent}{line}"));
            }
        }
        if !confirm::confirm_action(&hold, Some(&args), &self.confirmation)? {
            output.note("nothing was decided");
            return Ok(Exit::Refused);
        }
        let mut body = decision_body("edit", digest, &self.common);
        body["args"] = args;
        send_decision(client, &hold, body, &self.common, output).await
    }

    fn edited_arguments(&self, action: &ActionInfo) -> anyhow::Result<Value> {
        if let Some(text) = &self.args {
            return parse_arguments(text).map_err(Into::into);
        }
        if self.set.is_empty() {
            return edit_in_editor(&action.args);
        }
        let mut args = action.args.clone();
        for assignment in &self.set {
            set(&mut args, action.args_schema.as_ref(), assignment)?;
        }
        Ok(args)
    }
}

/// Requires that arguments fit their schema, before a person is asked to confirm them. The server
/// decides about those with redacted parts, which are not known here.
fn require_fit(action: &ActionInfo, args: &Value) -> Result<(), Failure> {
    let schema = action
        .args_schema
        .as_ref()
        .filter(|_| action.redactions.is_empty());
    // A schema that this version cannot read is the server's to judge.
    let schema = schema.and_then(|schema| Schema::new(&schema.to_string()).ok());
    let errors = schema.map_or_else(Vec::new, |schema| schema.errors(args));
    if errors.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = errors
        .iter()
        .map(|error| format!("{}: {}", error.path, error.message))
        .collect();
    let failure = Failure::usage("the arguments do not fit the schema of the action");
    Err(failure.hint(lines.join("\n")))
}

fn parse_arguments(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::usage(format!("the arguments are not JSON: {error}"))
            .hint("they look like {\"user_id\": 8}")
    })
}

/// Opens the person's editor on the arguments.
fn edit_in_editor(args: &Value) -> anyhow::Result<Value> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let editor = variable("VISUAL").or_else(|| variable("EDITOR"));
    let (true, Some(editor)) = (ask::can_ask(), editor) else {
        return Err(
            Failure::usage("there are no new arguments, and no editor is set")
                .hint("give them with: --set PATH=VALUE or --args JSON, or set EDITOR")
                .into(),
        );
    };
    // Only the owner can read the file; dropping it removes it.
    let mut file = tempfile::Builder::new()
        .prefix("statehold-")
        .suffix(".json")
        .tempfile()
        .context("a temporary file cannot be created")?;
    writeln!(file, "{}", serde_json::to_string_pretty(args)?)?;
    // Run through a shell, as git does: the variable may contain arguments of its own.
    let status = Command::new("sh")
        .arg("-c")
        .arg(format!("{editor} \"$1\""))
        .arg("sh")
        .arg(file.path())
        .status()
        .with_context(|| format!("the editor `{editor}` cannot be started"))?;
    if !status.success() {
        return Err(Failure::new(
            Exit::Failed,
            "the editor ended with an error; nothing was decided",
        )
        .into());
    }
    // Editors replace files, so open the file by name again.
    let mut text = String::new();
    std::fs::File::open(file.path())?.read_to_string(&mut text)?;
    Ok(parse_arguments(&text)?)
}

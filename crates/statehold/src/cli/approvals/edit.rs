//! `statehold approvals edit`: the action runs with other arguments, and those are shown first.

use std::io::{Read, Write};
use std::process::Command;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use super::arguments::{differences, set};
use super::confirm;
use super::decide::{Common, Confirmation, body, may_decide, send, show_before, shown_digest};
use super::fetch;
use crate::cli::ask;
use crate::cli::hold::Action;
use crate::cli::output::Output;
use crate::client::Client;
use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
#[command(after_help = confirm::HELP)]
pub(in crate::cli) struct Edit {
    #[command(flatten)]
    common: Common,
    /// Set one argument: `user_id=8`, `address.city=Rahway` or `/address/city=Rahway`. A text stays
    /// a text; anything else is read as JSON. May be given several times.
    #[arg(long, value_name = "PATH=VALUE", conflicts_with = "args")]
    set: Vec<String>,
    /// All arguments, as a JSON object. Without this and --set, $VISUAL or $EDITOR is opened.
    #[arg(long, value_name = "JSON")]
    args: Option<String>,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl Edit {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        may_decide(&hold, "edit", &self.common, output)?;
        let digest = shown_digest(&hold, self.confirmation.digest.as_deref())?;
        let action = hold.action.as_ref().ok_or_else(|| {
            Failure::usage(format!("{} has no action that could be edited", hold.alias)).hint(
                format!(
                    "see what it offers with: statehold approvals show {}",
                    hold.id
                ),
            )
        })?;
        let args = self.edited(action)?;
        let lines = differences(&action.args, &args);
        if lines.is_empty() {
            return Err(
                Failure::usage("nothing was changed, so nothing was decided")
                    .hint("to run it as it is: statehold approvals approve HOLD")
                    .into(),
            );
        }
        show_before(&hold, Some(&args), output);
        for line in lines {
            output.note(&format!("  {line}"));
        }
        if !confirm::is_meant(&hold, Some(&args), self.confirmation.answers())? {
            output.note("nothing was decided");
            return Ok(Exit::Refused);
        }
        let mut body = body("edit", digest, &self.common);
        body["args"] = args;
        send(client, &hold, body, &self.common, output).await
    }

    fn edited(&self, action: &Action) -> anyhow::Result<Value> {
        if let Some(text) = &self.args {
            return parse(text).map_err(Into::into);
        }
        if self.set.is_empty() {
            return in_editor(&action.args);
        }
        let mut args = action.args.clone();
        for assignment in &self.set {
            set(&mut args, action.args_schema.as_ref(), assignment)?;
        }
        Ok(args)
    }
}

fn parse(text: &str) -> Result<Value, Failure> {
    let args: Value = serde_json::from_str(text).map_err(|error| {
        Failure::usage(format!("the arguments are not JSON: {error}"))
            .hint("they look like {\"user_id\": 8}")
    })?;
    Ok(args)
}

/// Opens the person's editor on the arguments.
fn in_editor(args: &Value) -> anyhow::Result<Value> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let editor = variable("VISUAL").or_else(|| variable("EDITOR"));
    let (true, Some(editor)) = (ask::can_ask(), editor) else {
        return Err(
            Failure::usage("there are no new arguments, and no editor to write them in")
                .hint("give them with: --set PATH=VALUE or --args JSON, or set EDITOR")
                .into(),
        );
    };
    // Only the owner can read it, and it is removed at the end.
    let mut file = tempfile::Builder::new()
        .prefix("statehold-")
        .suffix(".json")
        .tempfile()
        .context("there is no place for a temporary file")?;
    writeln!(file, "{}", serde_json::to_string_pretty(args)?)?;
    // As git does it: the variable may have arguments of its own.
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
    // Editors replace files: read what is there under the name now.
    let mut text = String::new();
    std::fs::File::open(file.path())?.read_to_string(&mut text)?;
    Ok(parse(&text)?)
}

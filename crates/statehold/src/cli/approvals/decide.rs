//! `statehold approvals approve`, `reject` and `dismiss`, and what all decisions share.
//!
//! A decision names the digest of what was shown, and has a key of its own: if the answer is lost,
//! the same decision is sent again under the same key and gets the same answer.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::arguments::lines;
use super::confirm::{self, Answers};
use super::{fetch, resume};
use crate::cli::ask;
use crate::cli::hold::{Hold, why_not};
use crate::cli::output::{Output, Tone};
use crate::cli::printable::{cell, excerpt};
use crate::client::{ApiAnswer, Client};
use crate::exit::{Exit, Failure};

/// How often a decision is sent if its answer is lost; the pauses together are about 13 seconds.
const TRIES_MAX: u32 = 7;
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How much of an action is shown in the line before it is decided.
const ACTION_CHARS_MAX: usize = 200;

/// What every decision takes.
#[derive(Debug, Args)]
pub(super) struct Common {
    /// The hold: R8.h1, SESSION/R8.h1, or its id or a part of it.
    pub(super) hold: String,
    /// Words for the agent and for the records.
    #[arg(long, value_name = "TEXT")]
    pub(super) comment: Option<String>,
    /// The key of this decision: sent again, it gets the same answer [default: a new one].
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// Do not show what happens next.
    #[arg(long)]
    pub(super) no_wait: bool,
}

/// How an action is confirmed.
#[derive(Debug, Args)]
pub(super) struct Confirmation {
    /// Do not ask. Not enough for high risk.
    #[arg(short, long)]
    yes: bool,
    /// The confirmation text, for high risk.
    #[arg(long, value_name = "TEXT")]
    confirm: Option<String>,
    /// Decide only if this is the digest of the action.
    #[arg(long, value_name = "DIGEST")]
    pub(super) digest: Option<String>,
}

impl Confirmation {
    pub(super) fn answers(&self) -> Answers<'_> {
        Answers {
            yes: self.yes,
            confirm: self.confirm.as_deref(),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = confirm::HELP)]
pub(in crate::cli) struct Approve {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl Approve {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        may_decide(&hold, "approve", &self.common, output)?;
        let digest = shown_digest(&hold, self.confirmation.digest.as_deref())?;
        show_before(&hold, None, output);
        if !confirm::is_meant(&hold, None, self.confirmation.answers())? {
            output.note("nothing was decided");
            return Ok(Exit::Refused);
        }
        let body = body("approve", digest, &self.common);
        send(client, &hold, body, &self.common, output).await
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Reject {
    #[command(flatten)]
    common: Common,
    /// One of the reasons that the hold offers.
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
}

impl Reject {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        may_decide(&hold, "reject", &self.common, output)?;
        if hold.comment_required == Some(true) && self.common.comment.is_none() {
            return Err(
                Failure::usage(format!("{} is not rejected without a word", hold.alias))
                    .hint("say why with: --comment TEXT")
                    .into(),
            );
        }
        let mut body = body("reject", None, &self.common);
        if let Some(reason) = &self.reason {
            body["reason"] = reason.as_str().into();
        }
        send(client, &hold, body, &self.common, output).await
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Dismiss {
    #[command(flatten)]
    common: Common,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl Dismiss {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        may_decide(&hold, "dismiss", &self.common, output)?;
        if !self.yes {
            if !ask::can_ask() {
                return Err(Failure::usage(
                    "dismissing cancels the request that asks, and nobody can be asked here",
                )
                .hint("say that it is meant with: --yes")
                .into());
            }
            show_before(&hold, None, output);
            if !ask::yes("Cancel the request that asks, with everything below it?")? {
                output.note("nothing was decided");
                return Ok(Exit::Refused);
            }
        }
        let body = body("dismiss", None, &self.common);
        send(client, &hold, body, &self.common, output).await
    }
}

/// What is sent, as far as all decisions have it.
pub(super) fn body(decision: &str, digest: Option<String>, common: &Common) -> Value {
    let mut body = json!({ "decision": decision });
    if let Some(digest) = digest {
        body["digest"] = digest.into();
    }
    if let Some(comment) = &common.comment {
        body["comment"] = comment.as_str().into();
    }
    body
}

/// Refuses what the server would refuse, before anybody is asked anything.
///
/// # Errors
///
/// With exit code 5 if the hold has its decision, 4 if it is not the caller's to decide, and 2 if it
/// does not offer this decision. A key that was given may belong to the decision that stands: then
/// the server is asked.
pub(super) fn may_decide(
    hold: &Hold,
    decision: &str,
    common: &Common,
    output: &Output,
) -> Result<(), Failure> {
    if common.key.is_some() {
        return Ok(());
    }
    if !hold.is_open() {
        return Err(decided(hold, output));
    }
    if hold.may_decide == Some(false) {
        return Err(not_yours(hold, hold.why_not.as_deref(), None));
    }
    let is_offered = hold.allowed.iter().any(|allowed| allowed == decision);
    if is_offered || hold.allowed.is_empty() {
        return Ok(());
    }
    Err(
        Failure::usage(format!("{} does not offer `{decision}`", hold.alias))
            .hint(format!("it offers: {}", hold.allowed.join(", "))),
    )
}

/// The digest of what is shown. None if there is no action.
pub(super) fn shown_digest(hold: &Hold, given: Option<&str>) -> Result<Option<String>, Failure> {
    if let Some(given) = given {
        return Ok(Some(given.to_owned()));
    }
    match &hold.action {
        Some(action) => Ok(action.digest.clone()),
        None if hold.kind == "approval" => Err(Failure::new(
            Exit::NotAllowed,
            format!(
                "this key may not see what {} would run, so it cannot approve it",
                hold.alias
            ),
        )
        .hint("use a key with the role `approver`: STATEHOLD_TOKEN")),
        None => Ok(None),
    }
}

/// Shows what is about to be decided, on standard error. Whoever is asked sees all of it.
pub(super) fn show_before(hold: &Hold, args: Option<&Value>, output: &Output) {
    if !ask::can_ask() && (output.quiet || output.json) {
        return;
    }
    let action = hold.action.clone().map(|mut action| {
        if let Some(args) = args {
            action.args = args.clone();
        }
        action
    });
    let what = match &action {
        Some(action) => excerpt(&action.call(), ACTION_CHARS_MAX),
        None => hold.summary(ACTION_CHARS_MAX),
    };
    let user = hold
        .user
        .as_deref()
        .map(|user| format!(" for {}", cell(user)));
    let risk = if hold.is_high_risk() {
        let effect = hold
            .action
            .as_ref()
            .and_then(|action| action.effect.as_deref());
        let undone = if effect == Some("destructive") {
            ", cannot be undone"
        } else {
            ""
        };
        format!(" · {}", Tone::Bad.paint(&format!("HIGH RISK{undone}")))
    } else {
        String::new()
    };
    anstream::eprintln!(
        "{}   asked by {}{}{risk}",
        Tone::Strong.paint(&what),
        cell(&hold.agent),
        user.unwrap_or_default()
    );
    // What does not fit into a line is shown below it.
    if let (Some(action), true) = (&action, what.contains('…')) {
        for line in lines(action, true) {
            anstream::eprintln!("{line}");
        }
    }
}

/// Sends a decision, says what it came to, and shows for a short time what follows.
pub(super) async fn send(
    client: &Client,
    hold: &Hold,
    body: Value,
    common: &Common,
    output: &Output,
) -> anyhow::Result<Exit> {
    let key = match &common.key {
        Some(key) => key.clone(),
        None => new_key()?,
    };
    let answer = match post(client, hold, &body, &key, output).await {
        Ok(answer) => answer,
        Err(failure) => return Err(explain(client, hold, failure, output).await.into()),
    };
    if output.json {
        output.json(&answer.body)?;
        return Ok(Exit::Done);
    }
    let is_repeated = answer.headers.contains_key("idempotency-replayed");
    resume::show(
        client,
        hold,
        &answer.body,
        is_repeated,
        common.no_wait,
        output,
    )
    .await?;
    Ok(Exit::Done)
}

/// Sends it until there is an answer: under one key, twice is once.
async fn post(
    client: &Client,
    hold: &Hold,
    body: &Value,
    key: &str,
    output: &Output,
) -> Result<ApiAnswer, Failure> {
    let path = format!("/v1/holds/{}/decision", hold.id);
    let mut pause = RETRY_MIN;
    let mut tries = 1;
    loop {
        let failure = match client.post_once(&path, body, key).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        let may_pass = matches!(failure.exit, Exit::Unreachable | Exit::TimedOut)
            || matches!(failure.status, Some(429 | 503));
        if !may_pass {
            return Err(failure);
        }
        if tries >= TRIES_MAX {
            let hint = format!(
                "it may have been decided; the same decision again is safe with: --key {key}"
            );
            return Err(failure.hint(hint));
        }
        if tries == 1 && !output.json {
            output.note("no answer; sending the same decision again…");
        }
        tries += 1;
        sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// A key that nobody has used.
fn new_key() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("no randomness for the key of the decision")?;
    Ok(format!("cli-{:032x}", u128::from_be_bytes(bytes)))
}

/// A refusal in the words of holds: who was first, why not, or what is wrong with the answer.
async fn explain(client: &Client, hold: &Hold, failure: Failure, output: &Output) -> Failure {
    match failure.code.as_deref() {
        Some("hold_decided" | "hold_expired") => {
            // Read again: it was open when it was shown.
            let now = fetch(client, &hold.id).await;
            match now {
                Ok(now) if !now.is_open() => Failure {
                    status: failure.status,
                    code: failure.code,
                    details: failure.details,
                    ..decided(&now, output)
                },
                _ => failure,
            }
        }
        Some("may_not_decide") => {
            let why = failure.details["why"].as_str();
            let role = failure.details["role"].as_str();
            Failure {
                status: failure.status,
                code: failure.code.clone(),
                details: failure.details.clone(),
                ..not_yours(hold, why, role)
            }
        }
        Some("digest_mismatch") => failure.hint(format!(
            "the action is another than the one you looked at; see: statehold approvals show {}",
            hold.id
        )),
        Some("already_voted") => {
            failure.hint("somebody else must approve too; follow with: statehold approvals watch")
        }
        Some("comment_needed") => failure.hint("say why with: --comment TEXT"),
        Some("invalid_args" | "invalid_content") => {
            let lines: Vec<String> = failure.details["errors"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|error| {
                    let of = |field: &str| error[field].as_str().unwrap_or_default();
                    format!("{}: {}", of("path"), of("message"))
                })
                .collect();
            failure.hint(lines.join("\n"))
        }
        _ => failure,
    }
}

/// The hold has its decision: who was first, and what to do now.
fn decided(hold: &Hold, output: &Output) -> Failure {
    let (message, first) = match (hold.status.as_str(), &hold.decision) {
        ("expired", Some(decision)) => (
            format!(
                "{} expired {}: nobody decided in time",
                hold.alias,
                output.times.ago(&decision.at)
            ),
            "nothing was run",
        ),
        ("expired", None) => (
            format!("{} expired: nobody decided in time", hold.alias),
            "nothing was run",
        ),
        ("approved" | "edited", _) => (
            format!(
                "{} was already decided: {}",
                hold.alias,
                hold.outcome(&output.times)
            ),
            "nothing was run twice",
        ),
        _ => (
            format!(
                "{} was already decided: {}",
                hold.alias,
                hold.outcome(&output.times)
            ),
            "nothing was decided twice",
        ),
    };
    let mut failure = Failure::new(Exit::Conflict, message).hint(format!(
        "{first}; the result is in: statehold tasks show {}",
        hold.task_id
    ));
    failure.code = Some(if hold.status == "expired" {
        "hold_expired".to_owned()
    } else {
        "hold_decided".to_owned()
    });
    if let Some(decision) = &hold.decision {
        failure.details = Box::new(json!({
            "hold_id": hold.id,
            "hold_status": decision.status,
            "decided_by": decision.by,
            "decided_at": decision.at,
        }));
    }
    failure
}

/// The hold is not the caller's to decide.
fn not_yours(hold: &Hold, why: Option<&str>, role: Option<&str>) -> Failure {
    let needed = hold
        .decide_by
        .as_deref()
        .and_then(|by| by.strip_prefix("role:"));
    let why = why.map_or_else(
        || "this key may not decide it".to_owned(),
        |word| why_not(word, role.or(needed)),
    );
    let mut failure = Failure::new(
        Exit::NotAllowed,
        format!("{} is not yours to decide: {why}", hold.alias),
    )
    .hint("give the decision to somebody else, or use another key: STATEHOLD_TOKEN");
    failure.code = Some("may_not_decide".to_owned());
    failure
}

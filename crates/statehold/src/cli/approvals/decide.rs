//! `statehold approvals approve`, `reject` and `dismiss`, and the parts that all decisions share.
//!
//! A decision carries the digest of the action that was shown, and an idempotency key: if the
//! response is lost, the client sends the same decision again under the same key and gets the same
//! answer.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::confirm::{self, ConfirmationArgs};
use super::{card, fetch, resume};
use crate::cli::ask;
use crate::cli::hold::{HoldInfo, explain_why_not};
use crate::cli::output::{CliOutput, error_columns};
use crate::cli::printable::cell;
use crate::cli::resolve::exact_name;
use crate::client::{ApiAnswer, Client, random_key};
use crate::exit::{Exit, Failure};

/// How often a decision is sent if its response is lost; the pauses add up to about 13 seconds.
const TRIES_MAX: u32 = 7;
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Arguments of every decision.
#[derive(Debug, Args)]
pub(super) struct DecisionArgs {
    /// The hold: R8.h1, SESSION/R8.h1, or its id or a part of it.
    pub(super) hold: String,
    /// A comment for the agent and for the records.
    #[arg(long, value_name = "TEXT")]
    pub(super) comment: Option<String>,
    /// The idempotency key of this decision: sent again, it gets the same answer [default: a new
    /// one].
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// Do not wait for the request to continue.
    #[arg(long)]
    pub(super) no_wait: bool,
}

impl DecisionArgs {
    /// The arguments of a decision that a person makes at the terminal.
    pub(super) fn of(hold: &str) -> Self {
        Self {
            hold: hold.to_owned(),
            comment: None,
            key: None,
            no_wait: false,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = confirm::HELP)]
pub(in crate::cli) struct ApproveArgs {
    #[command(flatten)]
    common: DecisionArgs,
    #[command(flatten)]
    confirmation: ConfirmationArgs,
}

impl ApproveArgs {
    /// With a question for the confirmation.
    pub(super) fn of(common: DecisionArgs) -> Self {
        let confirmation = ConfirmationArgs::default();
        Self {
            common,
            confirmation,
        }
    }

    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        check_may_decide(&hold, "approve", &self.common, output)?;
        let digest = digest_to_send(&hold, self.confirmation.digest.as_deref())?;
        print_before_decision(&hold, None, output);
        if !confirm::confirm_action(&hold, None, &self.confirmation)? {
            output.note("nothing was decided");
            return Ok(Exit::Refused);
        }
        let body = decision_body("approve", digest, &self.common);
        send_decision(client, &hold, body, &self.common, output).await
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RejectArgs {
    #[command(flatten)]
    common: DecisionArgs,
    /// One of the reasons that the hold offers.
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Do not ask. Without a terminal the command never asks.
    #[arg(short, long)]
    yes: bool,
}

impl RejectArgs {
    /// Without a reason that the hold offers, by a person who has seen the hold.
    pub(super) fn of(common: DecisionArgs) -> Self {
        Self {
            common,
            reason: None,
            yes: true,
        }
    }

    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        check_may_decide(&hold, "reject", &self.common, output)?;
        self.require_comment(&hold)?;
        print_before_decision(&hold, None, output);
        let is_asked = !self.yes && ask::can_ask();
        if is_asked && !ask::ask_yes(&format!("Reject {}?", hold.in_question()))? {
            output.note("nothing was decided");
            return Ok(Exit::Refused);
        }
        self.send(client, &hold, output).await
    }

    fn require_comment(&self, hold: &HoldInfo) -> Result<(), Failure> {
        if hold.comment_required == Some(true) && self.common.comment.is_none() {
            return Err(
                Failure::usage(format!("rejecting {} needs a comment", hold.alias))
                    .hint("give the reason with: --comment TEXT"),
            );
        }
        Ok(())
    }

    /// Sends the rejection of a hold that the person has seen.
    pub(super) async fn send(
        &self,
        client: &Client,
        hold: &HoldInfo,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        let mut body = decision_body("reject", None, &self.common);
        if let Some(reason) = &self.reason {
            body["reason"] = reason.as_str().into();
        }
        send_decision(client, hold, body, &self.common, output).await
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct DismissArgs {
    #[command(flatten)]
    common: DecisionArgs,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl DismissArgs {
    /// With a question for the confirmation.
    pub(super) fn of(common: DecisionArgs) -> Self {
        let yes = false;
        Self { common, yes }
    }

    pub(super) async fn run(&self, client: &Client, output: &CliOutput) -> anyhow::Result<Exit> {
        let hold = fetch(client, &self.common.hold).await?;
        check_may_decide(&hold, "dismiss", &self.common, output)?;
        ask::require_person(self.yes, "dismissing cancels the request and")?;
        print_before_decision(&hold, None, output);
        let question = format!(
            "Cancel {} of {}, with everything below it?",
            hold.request_alias(),
            cell(&hold.agent)
        );
        if !self.yes && !ask::ask_yes(&question)? {
            output.note("nothing was decided");
            return Ok(Exit::Refused);
        }
        let body = decision_body("dismiss", None, &self.common);
        send_decision(client, &hold, body, &self.common, output).await
    }
}

/// The fields of a request body that all decisions have.
pub(super) fn decision_body(
    decision: &str,
    digest: Option<String>,
    common: &DecisionArgs,
) -> Value {
    let mut body = json!({ "decision": decision });
    if let Some(digest) = digest {
        body["digest"] = digest.into();
    }
    if let Some(comment) = &common.comment {
        body["comment"] = comment.as_str().into();
    }
    body
}

/// Checks locally what the server would refuse, before the person is asked to confirm.
///
/// # Errors
///
/// With exit code 5 if the hold is decided, 4 if the caller may not decide it, and 2 if it does not
/// offer this decision. With `--key` the server checks instead: the key may belong to the decision
/// that stands.
pub(super) fn check_may_decide(
    hold: &HoldInfo,
    decision: &str,
    common: &DecisionArgs,
    output: &CliOutput,
) -> Result<(), Failure> {
    if common.key.is_some() {
        return Ok(());
    }
    if !hold.is_open() {
        return Err(already_decided(hold, output));
    }
    if hold.may_decide == Some(false) {
        return Err(may_not_decide(hold, hold.why_not.as_deref(), None));
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

/// The digest of the action that was shown. `None` if there is no action.
pub(super) fn digest_to_send(
    hold: &HoldInfo,
    given: Option<&str>,
) -> Result<Option<String>, Failure> {
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

/// Prints the hold about to be decided on standard error. A person who will be asked always sees all of it.
pub(super) fn print_before_decision(hold: &HoldInfo, args: Option<&Value>, output: &CliOutput) {
    if !ask::can_ask() && (output.quiet || output.json) {
        return;
    }
    let columns = error_columns().unwrap_or(output.columns);
    for line in card::lines_of(hold, args, columns, output) {
        anstream::eprintln!("{line}");
    }
    anstream::eprintln!();
}

/// Sends a decision, prints its outcome, and follows the request for a short time.
pub(super) async fn send_decision(
    client: &Client,
    hold: &HoldInfo,
    body: Value,
    common: &DecisionArgs,
    output: &CliOutput,
) -> anyhow::Result<Exit> {
    let key = match &common.key {
        Some(key) => key.clone(),
        None => random_key("cli")?,
    };
    let answer = match post_with_retries(client, hold, &body, &key, output).await {
        Ok(answer) => answer,
        Err(failure) => return Err(explain_refusal(client, hold, failure, output).await.into()),
    };
    if output.json {
        return output.json(&answer.body);
    }
    let is_repeated = answer.headers.contains_key("idempotency-replayed");
    resume::print_outcome(
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

/// Retries until there is a response. One idempotency key makes retries safe.
async fn post_with_retries(
    client: &Client,
    hold: &HoldInfo,
    body: &Value,
    key: &str,
    output: &CliOutput,
) -> Result<ApiAnswer, Failure> {
    let path = format!("/v1/holds/{}/decision", hold.id);
    let mut pause = RETRY_MIN;
    let mut tries = 1;
    loop {
        let failure = match client.post_once(&path, body, key).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        if !failure.is_transient() {
            return Err(failure);
        }
        if tries >= TRIES_MAX {
            let hint = format!(
                "the hold may be decided by now; repeat the decision safely with: --key {key}"
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

/// Explains a refusal in the words of holds: the decision that stands, the missing right, or the
/// invalid arguments.
async fn explain_refusal(
    client: &Client,
    hold: &HoldInfo,
    failure: Failure,
    output: &CliOutput,
) -> Failure {
    match failure.code.as_deref() {
        Some("hold_decided" | "hold_expired") => {
            // Read the hold again: it was open when it was shown.
            let now = fetch(client, &hold.id).await;
            match now {
                Ok(now) if !now.is_open() => Failure {
                    status: failure.status,
                    code: failure.code,
                    details: failure.details,
                    ..already_decided(&now, output)
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
                ..may_not_decide(hold, why, role)
            }
        }
        Some("digest_mismatch") => failure.hint(format!(
            "the action differs from the one you saw; show it with: statehold approvals show {}",
            hold.id
        )),
        Some("already_voted") => {
            failure.hint("another person must approve too; follow with: statehold approvals watch")
        }
        Some("comment_needed") => failure.hint("give the reason with: --comment TEXT"),
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

/// The error for a hold that is already decided: by whom, and the next command.
fn already_decided(hold: &HoldInfo, output: &CliOutput) -> Failure {
    let (what, first, code) = match (hold.status.as_str(), &hold.decision) {
        ("expired", decision) => {
            let ago = decision
                .as_ref()
                .map(|decision| output.times.ago(&decision.at));
            let ago = ago.map_or_else(String::new, |ago| format!("{ago} "));
            let what = format!("expired {ago}without a decision");
            (what, "nothing was run", "hold_expired")
        }
        (status, _) => {
            let first = match status {
                "approved" | "edited" => "nothing was run twice",
                _ => "nothing was decided twice",
            };
            let what = format!("was already decided: {}", hold.outcome(&output.times));
            (what, first, "hold_decided")
        }
    };
    let message = format!("{} {what}", hold.alias);
    let mut failure = Failure::new(Exit::Conflict, message).hint(format!(
        "{first}; see the decision with: statehold approvals show {}",
        exact_name(&hold.session_id, &hold.alias)
    ));
    failure.code = Some(code.to_owned());
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

/// The error for a hold that the caller may not decide.
fn may_not_decide(hold: &HoldInfo, why: Option<&str>, role: Option<&str>) -> Failure {
    let needed = hold
        .decide_by
        .as_deref()
        .and_then(|by| by.strip_prefix("role:"));
    // Another key of the same person would not help.
    let is_own = matches!(why, Some("own_session" | "own_hold" | "own_request"));
    let why = why.map_or_else(
        || "this key may not decide it".to_owned(),
        |word| explain_why_not(word, role.or(needed)),
    );
    let mut failure = Failure::new(
        Exit::NotAllowed,
        format!("you may not decide {}: {why}", hold.alias),
    )
    .hint(if is_own {
        "ask another person to decide"
    } else {
        "ask another person to decide, or use another key: STATEHOLD_TOKEN"
    });
    failure.code = Some("may_not_decide".to_owned());
    failure
}

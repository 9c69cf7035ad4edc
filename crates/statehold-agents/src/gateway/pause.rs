//! Pauses of remote agents. Each hold of a remote agent is opened here once, and its decision is
//! delivered once. The agent's texts are shown to people, so they are bounded and stripped of control
//! characters. The agent has no say in who may decide.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use statehold_core::hold::{DecisionKind, HoldKind, HoldStatus};
use statehold_core::ids::{ItemId, RequestId};
use statehold_core::item::CallOutcome;
use statehold_core::json_keys::require_unique_keys;
use statehold_core::name::Name;
use statehold_engine::bodies::{Raw, text_of};
use statehold_engine::{HoldSpec, NewAction, Schema};

use crate::display_text::clean_text;
use crate::http::EndpointError;
use crate::message::raw;
use crate::runner::{AgentRun, HoldDecision};
use crate::turn::{TurnError, describe_json_error};

/// Most times an agent may pause for people in one turn.
pub(super) const PAUSES_MAX: usize = 64;
/// Delays between attempts to deliver a decision.
const DELIVERY_DELAYS_SECONDS: [u64; 5] = [1, 2, 5, 10, 30];
const DELIVERY_DELAY_SECONDS_MAX: u64 = 60;
/// Most remote holds opened at a time. Further ones follow when these are decided.
const HOLDS_MAX: usize = 16;
/// Limits of shown texts, in bytes.
const TITLE_BYTES_MAX: usize = 200;
const MESSAGE_BYTES_MAX: usize = 8 * 1024;
const ID_BYTES_MAX: usize = 128;
const ARGS_BYTES_MAX: usize = 64 * 1024;
const SCHEMA_BYTES_MAX: usize = 16 * 1024;
/// Tool name for an action without a name.
const UNNAMED_ACTION: &str = "remote_action";

/// Pause of a remote agent.
#[derive(Debug, Deserialize)]
pub(super) struct RemotePause {
    #[serde(default)]
    holds: Vec<RemoteHold>,
}

/// One hold of a remote agent.
#[derive(Debug, Deserialize)]
pub(super) struct RemoteHold {
    id: String,
    kind: RemoteKind,
    title: Option<String>,
    message: Option<String>,
    response_schema: Option<Raw>,
    url: Option<String>,
    allowed: Option<Vec<Value>>,
    action: Option<RemoteAction>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RemoteKind {
    Approval,
    Question,
    Form,
    Link,
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct RemoteAction {
    tool: Option<String>,
    args: Option<Raw>,
    digest: Option<String>,
}

#[derive(Deserialize)]
struct RemoteStatus {
    status: Option<String>,
}

#[derive(Serialize)]
struct ShownArgs<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<&'a Raw>,
    remote_hold: &'a str,
}

/// A decision as sent to the agent.
#[derive(Debug, Serialize)]
pub(super) struct DecisionDelivery {
    hold_id: String,
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Id of the local hold. It makes repeated deliveries of one decision idempotent.
    key: String,
}

/// Decisions to deliver with a call, and the results of the local tool calls that stand for the remote
/// actions.
#[derive(Default)]
pub(super) struct DecisionBatch {
    pub(super) deliveries: Vec<DecisionDelivery>,
    pub(super) results: Vec<(ItemId, CallOutcome, Raw)>,
}

impl DecisionDelivery {
    /// The decision in words, for an agent that reads it as a message: the answer to a question as it was given.
    fn words(&self) -> String {
        let answer = self.content.as_deref().map(text_of);
        let answer = answer.filter(|text| !text.is_empty());
        let said = answer.unwrap_or_else(|| match &self.content {
            Some(content) => content.get().to_owned(),
            None => self.decision.to_owned(),
        });
        match &self.comment {
            Some(comment) => format!("{said}: {comment}"),
            None => said,
        }
    }
}

impl RemotePause {
    /// Parses the `statehold` member of an answer. None if the agent is not paused.
    pub(super) fn read(said: &RawValue) -> Result<Option<Self>, TurnError> {
        let status: RemoteStatus =
            serde_json::from_str(said.get()).unwrap_or(RemoteStatus { status: None });
        if status.status.as_deref() != Some("paused") {
            return Ok(None);
        }
        let mut paused: Self = serde_json::from_str(said.get()).map_err(|error| {
            let why = describe_json_error(&error);
            malformed(&format!("`statehold` cannot be read: {why}"))
        })?;
        let is_sound = |id: &str| {
            (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
        };
        if !paused.holds.iter().all(|hold| is_sound(&hold.id)) {
            return Err(malformed("the id of a hold is 1 to 128 plain characters"));
        }
        let mut seen = BTreeSet::new();
        paused.holds.retain(|hold| seen.insert(hold.id.clone()));
        paused.holds.truncate(HOLDS_MAX);
        if paused.holds.is_empty() {
            return Err(malformed("it waits for a person without naming a hold"));
        }
        Ok(Some(paused))
    }

    /// Local holds to open, in order, each with the remote hold.
    fn local_holds(&self) -> Result<Vec<(&RemoteHold, HoldSpec)>, TurnError> {
        let local_holds = self
            .holds
            .iter()
            .map(|hold| Ok((hold, hold.to_local_hold()?)));
        local_holds.collect()
    }
}

impl RemoteHold {
    fn to_local_hold(&self) -> Result<HoldSpec, TurnError> {
        let kind = match self.kind {
            RemoteKind::Approval => HoldKind::Approval,
            RemoteKind::Question => HoldKind::Question,
            RemoteKind::Form => HoldKind::Form,
            RemoteKind::Link => HoldKind::Link,
            RemoteKind::Other => {
                let message = "the agent waits for a decision that can only be made on its own server \
                               (neither approval, question, form nor link); decide it there, and ask again";
                return Err(TurnError::failed("agent_pause_unsupported", message));
            }
        };
        let title = self.title.as_deref().unwrap_or_default();
        let title = clean_text(&title.replace('\n', " "), TITLE_BYTES_MAX);
        let title = if title.trim().is_empty() {
            "The agent asks a person".to_owned()
        } else {
            title
        };
        let message = self.message.as_deref();
        let message = message.map(|text| clean_text(text, MESSAGE_BYTES_MAX));
        let schema = match kind {
            HoldKind::Question | HoldKind::Form => self.schema()?,
            _ => None,
        };
        Ok(HoldSpec {
            kind,
            title,
            message: message.filter(|text| !text.is_empty()),
            action: match kind {
                HoldKind::Approval => Some(self.action()?),
                _ => None,
            },
            response_schema: schema,
            url: self.url.clone().filter(|_| kind == HoldKind::Link),
            reasons: None,
            group_id: None,
            allowed: self.allowed(kind),
            quorum: None,
            expires_in_seconds: None,
            on_expiry: None,
            decide_by: None,
        })
    }

    /// The answer schema, if the engine can validate with it.
    fn schema(&self) -> Result<Option<Raw>, TurnError> {
        let Some(schema) = &self.response_schema else {
            return Ok(None);
        };
        let sound = if schema.get().len() > SCHEMA_BYTES_MAX {
            Err(format!("it has more than {SCHEMA_BYTES_MAX} bytes"))
        } else {
            Schema::new(schema.get())
                .map(drop)
                .map_err(|error| error.message)
        };
        match sound {
            Ok(()) => Ok(Some(schema.clone())),
            Err(why) => {
                let what = format!("the form that it asks for cannot be used: {why}");
                Err(malformed(&clean_text(&what, TITLE_BYTES_MAX)))
            }
        }
    }

    /// The action to approve: the agent's action as far as it is shown, and the id of the remote hold.
    fn action(&self) -> Result<NewAction, TurnError> {
        let action = self.action.as_ref();
        let tool = action.and_then(|action| action.tool.as_deref());
        let tool: Option<Name> = tool.and_then(|tool| tool.parse().ok());
        let unnamed = || UNNAMED_ACTION.parse().expect("this is a name");
        let args = action.and_then(|action| action.args.as_ref());
        if args.is_some_and(|args| args.get().len() > ARGS_BYTES_MAX) {
            let message = format!(
                "the agent waits for an approval of an action whose arguments are too long to be shown here \
                 (more than {ARGS_BYTES_MAX} bytes); decide it where the agent is, and ask again"
            );
            return Err(TurnError::failed("agent_pause_unsupported", message));
        }
        if let Some(error) = args.and_then(|args| require_unique_keys(args.get()).err()) {
            return Err(malformed(&format!("the action of a hold: {error}")));
        }
        let remote_hold = self.id.as_str();
        Ok(NewAction {
            tool: tool.unwrap_or_else(unnamed),
            args: raw(&ShownArgs { args, remote_hold }),
            args_schema: None,
            call_id: None,
            call: None,
            effect: None,
            risk: None,
            // The action runs on the agent's side. The local call only delivers the decision, which is
            // idempotent.
            idempotent: Some(true),
        })
    }

    /// The decisions that both sides support. Edited arguments cannot be delivered.
    fn allowed(&self, kind: HoldKind) -> BTreeSet<DecisionKind> {
        let mut possible = kind.decisions();
        possible.remove(&DecisionKind::Edit);
        let Some(offered) = &self.allowed else {
            return possible;
        };
        let offered: BTreeSet<DecisionKind> = offered
            .iter()
            .filter_map(|word| serde_json::from_value(word.clone()).ok())
            .collect();
        let both: BTreeSet<_> = possible.intersection(&offered).copied().collect();
        if both.is_empty() { possible } else { both }
    }

    /// The decision to send to the agent.
    fn delivery(&self, decided: &HoldDecision) -> DecisionDelivery {
        let digest = self
            .action
            .as_ref()
            .and_then(|action| action.digest.clone());
        let (decision, content) = match decided.status {
            HoldStatus::Approved | HoldStatus::Edited => ("approve", None),
            HoldStatus::Answered => ("respond", decided.content.clone()),
            HoldStatus::Rejected
            | HoldStatus::Expired
            | HoldStatus::Cancelled
            | HoldStatus::Open => ("reject", None),
        };
        let late = || "nobody decided in time".to_owned();
        let is_late = decided.status == HoldStatus::Expired;
        let comment = decided.comment.clone();
        DecisionDelivery {
            hold_id: self.id.clone(),
            decision,
            content,
            comment: comment.or_else(|| is_late.then(late)),
            digest: digest.filter(|_| decision == "approve"),
            key: decided.hold.to_string(),
        }
    }
}

/// Rejects a message while the agent waits for a person: the agent would take the message for the
/// answer to its question.
pub(super) async fn require_not_paused(run: &AgentRun) -> Result<(), TurnError> {
    let Some(other) = run.request.other_asking_request().await? else {
        return Ok(());
    };
    let pending = run.request.pending_holds().await?;
    let open = pending.holds.iter().find(|hold| hold.hold.request == other);
    let what = match open {
        Some(open) => {
            let (title, id) = (&open.title, open.hold.id);
            format!("it waits for a decision about “{title}” ({id}); decide that, then ask again")
        }
        None => "the decision is being delivered to it; ask again in a moment".to_owned(),
    };
    let agent = &run.spec.name;
    let message = format!("the agent {agent} cannot be asked now: {what}");
    Err(TurnError::failed("agent_busy", message))
}

pub(super) fn pauses_too_often() -> TurnError {
    let message = format!(
        "the agent waited for people {PAUSES_MAX} times in one turn; ask for less at once, or check \
         why it keeps asking"
    );
    TurnError::failed("agent_pauses_too_often", message)
}

/// Opens holds for the agent's holds. If a decision is missing, releases the lease.
pub(super) async fn open_holds(
    run: &mut AgentRun,
    paused: &RemotePause,
) -> Result<DecisionBatch, TurnError> {
    let mut decisions = DecisionBatch::default();
    let mut is_open = false;
    let holds = paused.local_holds()?;
    // Check all holds before opening any: open all or none.
    for (_, spec) in &holds {
        run.require_valid_hold(spec).await?;
    }
    for (hold, spec) in holds {
        match run.ask_person(spec).await? {
            Some(decided) => {
                decisions.deliveries.push(hold.delivery(&decided));
                decisions.results.extend(call_result(&decided));
            }
            None => is_open = true,
        }
    }
    if is_open {
        return Err(run.release_lease().await);
    }
    Ok(decisions)
}

/// The pauses between attempts to deliver a decision. It must be delivered: without limit while the agent is
/// unavailable, but only a few times if it is up and fails.
#[derive(Default)]
pub(super) struct DeliveryDelays {
    attempts: usize,
}

impl DeliveryDelays {
    /// Whether a decision is delivered again after this error.
    pub(super) fn has_next(&self, error: &EndpointError) -> bool {
        let is_away = error.is_unavailable() || error.is_of_gateway();
        self.attempts < DELIVERY_DELAYS_SECONDS.len() || is_away
    }

    /// Waits for the next attempt.
    pub(super) async fn wait(&mut self, request: RequestId, error: &EndpointError) {
        let delay = DELIVERY_DELAYS_SECONDS.get(self.attempts);
        let delay = delay.copied().unwrap_or(DELIVERY_DELAY_SECONDS_MAX);
        self.attempts += 1;
        tracing::warn!(%request, %error, "cannot deliver a decision yet; retrying");
        tokio::time::sleep(Duration::from_secs(delay)).await;
    }
}

/// Decisions in words, a line for each.
pub(super) fn decision_words(decisions: &[DecisionDelivery]) -> String {
    let words: Vec<String> = decisions.iter().map(DecisionDelivery::words).collect();
    words.join("\n")
}

/// Result of the local call that stands for the remote action, after the decision is delivered.
fn call_result(decided: &HoldDecision) -> Option<(ItemId, CallOutcome, Raw)> {
    let call_result = match decided.status {
        HoldStatus::Approved | HoldStatus::Edited => CallOutcome::Ran,
        HoldStatus::Answered => CallOutcome::Answered,
        HoldStatus::Rejected | HoldStatus::Expired | HoldStatus::Cancelled | HoldStatus::Open => {
            CallOutcome::Refused
        }
    };
    let result = raw(&BTreeMap::from([("decision_delivered", true)]));
    Some((decided.call?, call_result, result))
}

fn malformed(what: &str) -> TurnError {
    let message = format!(
        "the agent's answer cannot be understood: {what}; check the `statehold` member that it sends, and ask again"
    );
    TurnError::failed("agent_malformed", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_with_a_key_twice_is_not_asked_about() {
        let hold = |args: &str| {
            let said = format!(
                r#"{{"status":"paused","holds":[{{"id":"h","kind":"approval","action":{{"tool":"pay","args":{args}}}}}]}}"#
            );
            let said = RawValue::from_string(said).expect("JSON");
            let paused = RemotePause::read(&said).expect("it is understood");
            paused.expect("it is paused").local_holds().map(drop)
        };
        assert!(hold(r#"{"amount":1,"to":{"amount":2}}"#).is_ok());
        for twice in [
            r#"{"amount":1,"amount":1000}"#,
            r#"{"to":[{"iban":"a","iban":"b"}]}"#,
        ] {
            let refused = hold(twice).expect_err("it is refused");
            assert!(
                format!("{refused:?}").contains("agent_malformed"),
                "{refused:?}"
            );
        }
    }
}

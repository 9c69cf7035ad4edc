//! An agent that waits for a person itself. What it asks is asked here too, once, and what is decided here
//! is told to it, once. Its words are shown to people, so they are bounded and plain; it decides nothing
//! about who may decide.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use statehold_core::hold::{DecisionKind, HoldKind, HoldStatus};
use statehold_core::ids::ItemId;
use statehold_core::item::CallOutcome;
use statehold_core::name::Name;
use statehold_engine::kept::Raw;
use statehold_engine::{NewAction, NewAsk, Schema};

use crate::runner::Decided;
use crate::turn::{TurnError, why_unreadable};
use crate::words::raw;

/// How many holds of an agent are asked here at a time. The others come when these are decided.
const HOLDS_MAX: usize = 16;
/// What people read, in bytes.
const TITLE_BYTES_MAX: usize = 200;
const MESSAGE_BYTES_MAX: usize = 8 * 1024;
const ID_BYTES_MAX: usize = 128;
const ARGS_BYTES_MAX: usize = 64 * 1024;
const SCHEMA_BYTES_MAX: usize = 16 * 1024;
/// What the action is called if the agent does not say.
const UNNAMED_ACTION: &str = "remote_action";

/// That an agent waits, and for what.
#[derive(Debug, Deserialize)]
pub(super) struct Paused {
    #[serde(default)]
    holds: Vec<RemoteHold>,
    /// The agent's session.
    #[serde(default)]
    pub(super) session: Option<String>,
}

/// One thing that an agent waits for.
#[derive(Debug, Deserialize)]
pub(super) struct RemoteHold {
    id: String,
    kind: RemoteKind,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    response_schema: Option<Raw>,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    allowed: Option<Vec<Value>>,
    #[serde(default)]
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
    #[serde(default)]
    tool: Option<String>,
    #[serde(default)]
    args: Option<Raw>,
    #[serde(default)]
    digest: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    status: Option<String>,
}

#[derive(Serialize)]
struct ShownArgs<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<&'a Raw>,
    remote_hold: &'a str,
}

/// A decision as the agent is told it.
#[derive(Debug, Serialize)]
pub(super) struct Delivery {
    hold_id: String,
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// The hold here: the same decision told again is the same decision.
    key: String,
}

impl Paused {
    /// What an answer says about waiting. None if it does not wait.
    pub(super) fn read(said: &RawValue) -> Result<Option<Self>, TurnError> {
        let status: Status = serde_json::from_str(said.get()).unwrap_or(Status { status: None });
        if status.status.as_deref() != Some("paused") {
            return Ok(None);
        }
        let mut paused: Self = serde_json::from_str(said.get()).map_err(|error| {
            let why = why_unreadable(&error);
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
            return Err(malformed("it waits for a person and does not say for what"));
        }
        Ok(Some(paused))
    }

    /// What is asked here, in order, each with what the agent calls it.
    pub(super) fn asks(&self) -> Result<Vec<(&RemoteHold, NewAsk)>, TurnError> {
        let asks = self.holds.iter().map(|hold| Ok((hold, hold.ask()?)));
        asks.collect()
    }
}

impl RemoteHold {
    fn ask(&self) -> Result<NewAsk, TurnError> {
        let kind = match self.kind {
            RemoteKind::Approval => HoldKind::Approval,
            RemoteKind::Question => HoldKind::Question,
            RemoteKind::Form => HoldKind::Form,
            RemoteKind::Link => HoldKind::Link,
            RemoteKind::Other => {
                let message = "the agent waits for something that is decided only where it is \
                               (neither approval, question, form nor link); decide it there, and ask again";
                return Err(TurnError::failed("agent_pause_unsupported", message));
            }
        };
        let title = self.title.as_deref().unwrap_or_default();
        let title = plain(&title.replace('\n', " "), TITLE_BYTES_MAX);
        let title = if title.trim().is_empty() {
            "The agent asks a person".to_owned()
        } else {
            title
        };
        let message = self.message.as_deref();
        let message = message.map(|text| plain(text, MESSAGE_BYTES_MAX));
        let schema = match kind {
            HoldKind::Question | HoldKind::Form => self.schema()?,
            _ => None,
        };
        Ok(NewAsk {
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

    /// The form of an answer, if it is one that can be asked for here.
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
                Err(malformed(&plain(&what, TITLE_BYTES_MAX)))
            }
        }
    }

    /// What people approve: the agent's action as far as it shows it, and which hold of the agent it is.
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
        let remote_hold = self.id.as_str();
        Ok(NewAction {
            tool: tool.unwrap_or_else(unnamed),
            args: raw(&ShownArgs { args, remote_hold }),
            args_schema: None,
            call_id: None,
            call: None,
            effect: None,
            risk: None,
            // It runs where the agent is. What is done here is to tell the decision, which may be told
            // again.
            idempotent: Some(true),
        })
    }

    /// What the agent offers, as far as it can be told there. Other arguments cannot.
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

    /// What the agent is told of a decision.
    pub(super) fn delivery(&self, decided: &Decided) -> Delivery {
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
        Delivery {
            hold_id: self.id.clone(),
            decision,
            content,
            comment: comment.or_else(|| is_late.then(late)),
            digest: digest.filter(|_| decision == "approve"),
            key: decided.hold.to_string(),
        }
    }
}

/// What became of the call that stands here for the agent's action, once the decision is told.
pub(super) fn outcome(decided: &Decided) -> Option<(ItemId, CallOutcome, Raw)> {
    let outcome = match decided.status {
        HoldStatus::Approved | HoldStatus::Edited => CallOutcome::Ran,
        HoldStatus::Answered => CallOutcome::Answered,
        HoldStatus::Rejected | HoldStatus::Expired | HoldStatus::Cancelled | HoldStatus::Open => {
            CallOutcome::Refused
        }
    };
    let result = raw(&BTreeMap::from([("decision_delivered", true)]));
    Some((decided.call?, outcome, result))
}

fn malformed(what: &str) -> TurnError {
    let message = format!(
        "the agent's answer cannot be understood: {what}; look at what it sends as `statehold`, and ask again"
    );
    TurnError::failed("agent_malformed", message)
}

/// Somebody else's words as people may read them: no control characters, nothing that turns the
/// direction of writing, and an end.
fn plain(text: &str, bytes_max: usize) -> String {
    let is_hidden = |c: char| {
        c.is_control() && c != '\n'
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let mut plain = String::new();
    for c in text.chars().filter(|c| !is_hidden(*c)) {
        if plain.len() + c.len_utf8() + '…'.len_utf8() > bytes_max {
            plain.push('…');
            break;
        }
        plain.push(c);
    }
    plain
}

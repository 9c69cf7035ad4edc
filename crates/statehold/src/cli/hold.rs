//! A hold as the API returns it, and short descriptions of it.
//!
//! Older and newer servers may leave out fields, so every description works without the optional
//! ones.

use serde::Deserialize;
use serde_json::Value;

use super::printable::{cell, excerpt};
use super::times::{TimeFormat, TimeStyle};

/// Holds that expire sooner than this are marked.
const SOON_SECONDS: i64 = 600;
/// The longest argument value shown on one line.
const VALUE_CHARS_MAX: usize = 32;

#[derive(Debug, Clone, Deserialize)]
pub(super) struct HoldInfo {
    pub(super) id: String,
    pub(super) alias: String,
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) session_id: String,
    pub(super) task_id: String,
    pub(super) request_id: String,
    #[serde(default)]
    pub(super) task_path: Vec<String>,
    /// The aliases from the root task to the request that opened the hold.
    #[serde(default)]
    pub(super) chain: String,
    pub(super) agent: String,
    /// The user of the session, if the caller may know.
    pub(super) user: Option<String>,
    pub(super) app: Option<String>,
    #[serde(default)]
    pub(super) title: String,
    pub(super) message: Option<String>,
    /// Missing if the caller may not see the action.
    pub(super) action: Option<ActionInfo>,
    pub(super) response_schema: Option<Value>,
    pub(super) url: Option<String>,
    pub(super) reasons: Option<Vec<Value>>,
    #[serde(default)]
    pub(super) allowed: Vec<String>,
    #[serde(default = "one")]
    pub(super) quorum: u64,
    pub(super) votes: Option<Vec<String>>,
    pub(super) expires_at: Option<String>,
    pub(super) on_expiry: Option<String>,
    pub(super) decide_by: Option<String>,
    pub(super) comment_required: Option<bool>,
    pub(super) group: Option<Value>,
    pub(super) may_decide: Option<bool>,
    pub(super) why_not: Option<String>,
    /// The role that `why_not` says is needed.
    pub(super) role: Option<String>,
    pub(super) decision: Option<DecisionInfo>,
    pub(super) execution_key: Option<String>,
    pub(super) evidence: Option<Value>,
    /// The end of the conversation, for people who may decide the hold.
    pub(super) excerpt: Option<ExcerptInfo>,
    #[serde(default)]
    pub(super) created_at: String,
}

/// The last visible messages of the conversation when the hold was opened.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ExcerptInfo {
    pub(super) messages: Vec<MessageInfo>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct MessageInfo {
    pub(super) role: String,
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) text: String,
    #[serde(default)]
    pub(super) is_cut: bool,
    #[serde(default)]
    pub(super) attachments: u64,
}

fn one() -> u64 {
    1
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ActionInfo {
    pub(super) tool: String,
    #[serde(default)]
    pub(super) args: Value,
    pub(super) args_schema: Option<Value>,
    pub(super) digest: Option<String>,
    pub(super) effect: Option<String>,
    pub(super) risk: Option<String>,
    #[serde(default)]
    pub(super) redactions: Vec<RedactionInfo>,
}

/// A redacted value.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct RedactionInfo {
    /// A JSON pointer.
    pub(super) path: String,
    #[serde(default)]
    pub(super) rule: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct DecisionInfo {
    pub(super) status: String,
    pub(super) by: String,
    pub(super) at: String,
    pub(super) comment: Option<String>,
    pub(super) reason: Option<Value>,
    pub(super) args: Option<Value>,
    pub(super) content: Option<Value>,
}

impl HoldInfo {
    pub(super) fn is_open(&self) -> bool {
        self.status == "open"
    }

    /// How many of the people that it needs have approved: `1 of 2: carol`. None if one is enough.
    pub(super) fn approvals(&self) -> Option<String> {
        let votes = self.votes.as_deref().unwrap_or_default();
        let by = if votes.is_empty() {
            String::new()
        } else {
            format!(": {}", votes.join(", "))
        };
        (self.quorum > 1).then(|| format!("{} of {}{by}", votes.len(), self.quorum))
    }

    /// The hold in a question: its name, and the tool that it would run. Safe to print.
    pub(super) fn in_question(&self) -> String {
        let alias = cell(&self.alias);
        match &self.action {
            Some(action) => format!("{} of {alias}", cell(&action.tool)),
            None => alias,
        }
    }

    /// The name of the request that opened the hold. Safe to print.
    pub(super) fn request_alias(&self) -> String {
        cell(self.alias.split('.').next().unwrap_or_default())
    }

    pub(super) fn risk(&self) -> Option<&str> {
        self.action.as_ref()?.risk.as_deref()
    }

    /// Whether a plain yes is not enough.
    pub(super) fn is_high_risk(&self) -> bool {
        let action = self.action.as_ref();
        action.is_some_and(|action| {
            action.risk.as_deref() == Some("high")
                || action.effect.as_deref() == Some("destructive")
        })
    }

    /// The risk and the effect of the action, in words.
    pub(super) fn risk_words(&self) -> String {
        let action = self.action.as_ref();
        let risk = match action.and_then(|action| action.risk.as_deref()) {
            Some("high") => "HIGH RISK",
            Some(risk) => risk,
            None => "not known",
        };
        match action.and_then(|action| action.effect.as_deref()) {
            Some("destructive") => format!("{risk}, destructive: it cannot be undone"),
            Some(effect) => format!("{risk}, effect: {effect}"),
            None => risk.to_owned(),
        }
    }

    /// The user of the session and its app, if this key may know.
    pub(super) fn for_whom(&self) -> Option<String> {
        let user = self.user.as_deref()?;
        Some(match self.app.as_deref() {
            Some(app) => format!("{user} in {app}"),
            None => user.to_owned(),
        })
    }

    /// When the hold expires, and the effect of that.
    pub(super) fn until(&self, times: &TimeFormat) -> String {
        let Some(at) = &self.expires_at else {
            return "never".to_owned();
        };
        let then = match self.on_expiry.as_deref() {
            Some("dismiss") => "then the request is cancelled",
            Some("fail") => "then the request fails",
            Some("reject") => "then it is rejected",
            _ => "then it expires",
        };
        let soon = if self.expires_soon(times) {
            ", soon"
        } else {
            ""
        };
        format!("{}{soon}; {then}", times.show(at))
    }

    /// Whether an answer is plain text.
    pub(super) fn takes_text(&self) -> bool {
        let schema = self.response_schema.as_ref();
        schema.is_none_or(|schema| schema["type"] == "string" || schema.get("enum").is_some())
    }

    /// The hold on one line: the action, or the kind and the title.
    pub(super) fn summary(&self, chars_max: usize) -> String {
        let whole = match &self.action {
            Some(action) if self.kind == "approval" => action.call_text(),
            Some(action) => format!("{}: {}", self.kind, action.call_text()),
            None if self.kind == "approval" => self.title.clone(),
            None => format!("{}: {}", self.kind, self.title),
        };
        excerpt(&whole, chars_max)
    }

    /// When the hold expires, for a table.
    pub(super) fn expires(&self, times: &TimeFormat) -> Option<String> {
        let at = self.expires_at.as_deref().filter(|_| self.is_open())?;
        let shown = times.show(at);
        Some(if self.expires_soon(times) {
            format!("{shown}, soon")
        } else {
            shown
        })
    }

    pub(super) fn expires_soon(&self, times: &TimeFormat) -> bool {
        let left = self
            .expires_at
            .as_deref()
            .and_then(|at| times.seconds_until(at));
        self.is_open()
            && times.style == TimeStyle::Relative
            && left.is_some_and(|left| left < SOON_SECONDS)
    }

    /// The decision, its author and its time: `approved by local 14 s ago`.
    pub(super) fn outcome(&self, times: &TimeFormat) -> String {
        match &self.decision {
            Some(decision) => format!(
                "{} by {} {}",
                cell(&decision.status),
                cell(&decision.by),
                times.ago(&decision.at)
            ),
            None => cell(&self.status),
        }
    }
}

impl ActionInfo {
    /// The action written as a call: `delete_user(user_id=7, cascade=false)`. Escape it before
    /// printing.
    pub(super) fn call_text(&self) -> String {
        let args: Vec<String> = match &self.args {
            Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| format!("{name}={}", value_in_line(value)))
                .collect(),
            Value::Null => Vec::new(),
            other => vec![value_in_line(other)],
        };
        format!("{}({})", self.tool, args.join(", "))
    }

    pub(super) fn is_redacted(&self, pointer: &str) -> bool {
        let mut redactions = self.redactions.iter();
        redactions.any(|redaction| redaction.path == pointer)
    }
}

fn value_in_line(value: &Value) -> String {
    let whole = value.to_string();
    match value {
        Value::String(text) if text.chars().count() > VALUE_CHARS_MAX => {
            let start: String = text.chars().take(VALUE_CHARS_MAX).collect();
            format!("{}…", Value::from(start).to_string().trim_end_matches('"'))
        }
        Value::Array(_) | Value::Object(_) if whole.chars().count() > VALUE_CHARS_MAX => {
            let start: String = whole.chars().take(VALUE_CHARS_MAX).collect();
            format!("{start}…")
        }
        _ => whole,
    }
}

/// The reason why the caller may not decide, as a sentence.
pub(super) fn explain_why_not(word: &str, role: Option<&str>) -> String {
    match word {
        "own_session" => "the session is yours, so another person must decide".to_owned(),
        "own_hold" | "own_request" => "you requested it, so another person must decide".to_owned(),
        "needs_role" => match role {
            Some(role) => format!("it needs the role `{role}`"),
            None => "it needs another role".to_owned(),
        },
        "server" => "the server itself decides this".to_owned(),
        other => format!("the server says: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::cli) fn hold(more: &Value) -> HoldInfo {
        let mut whole = json!({
            "id": "hld_1", "alias": "R8.h1", "kind": "approval", "status": "open",
            "session_id": "ses_1", "task_id": "tsk_1", "request_id": "req_1", "agent": "ums-agent",
            "title": "Delete user 7", "created_at": "2026-08-06T11:58:00Z"
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            whole[field] = value.clone();
        }
        serde_json::from_value(whole).expect("a hold")
    }

    #[test]
    fn an_action_is_written_as_a_call() {
        let action = json!({ "tool": "delete_user", "args": { "user_id": 7, "cascade": false, "note": "x".repeat(50) } });
        assert_eq!(
            hold(&json!({ "action": action })).summary(100),
            format!(
                "delete_user(user_id=7, cascade=false, note=\"{}…)",
                "x".repeat(32)
            )
        );
        assert_eq!(hold(&json!({})).summary(100), "Delete user 7");
        let question = json!({ "kind": "question", "title": "Which\nSpringfield?" });
        assert_eq!(hold(&question).summary(100), "question: Which Springfield?");
        let hostile = json!({ "action": { "tool": "t", "args": { "\u{202e}a": "\u{1b}[2J" } } });
        assert_eq!(hold(&hostile).summary(100), "t(\\u{202e}a=\"\\u001b[2J\")");
    }

    #[test]
    fn what_expires_soon_is_marked_in_words() {
        let now = "2026-08-06T12:00:00Z".parse().expect("a time");
        let style = TimeStyle::Relative;
        let times = TimeFormat { style, now };
        let soon = hold(&json!({ "expires_at": "2026-08-06T12:04:00Z" }));
        assert_eq!(soon.expires(&times).as_deref(), Some("in 4 min, soon"));
        let later = hold(&json!({ "expires_at": "2026-08-06T12:57:00Z" }));
        assert_eq!(later.expires(&times).as_deref(), Some("in 57 min"));
        assert_eq!(hold(&json!({})).expires(&times), None);
    }

    #[test]
    fn high_risk_is_said_by_risk_or_by_effect() {
        let of = |action: Value| hold(&json!({ "action": action })).is_high_risk();
        assert!(of(json!({ "tool": "t", "risk": "high" })));
        assert!(of(
            json!({ "tool": "t", "risk": "low", "effect": "destructive" })
        ));
        assert!(!of(
            json!({ "tool": "t", "risk": "medium", "effect": "write" })
        ));
        assert!(!hold(&json!({})).is_high_risk());
    }
}

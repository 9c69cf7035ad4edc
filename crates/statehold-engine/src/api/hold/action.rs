//! The action behind a hold, as callers see it.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::hold::{Effect, Risk};
use statehold_core::name::Name;
use utoipa::ToSchema;

use crate::api::json::{Raw, raw_null};
use crate::guard::sealed::OpenedArgs;
use crate::kept::{ActionBody, Reason, Redaction};

/// An action that waits, or waited.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Action)]
pub struct ActionView {
    #[schema(value_type = Name)]
    pub tool: String,
    /// The arguments without what the policy hides; for the worker, all of them. Null for a worker
    /// where they are lost.
    #[schema(value_type = serde_json::Value)]
    pub args: Raw,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub args_schema: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    pub idempotent: bool,
    /// The digest that an approval names. It covers the full arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The redacted places. Only the worker sees the full arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub redactions: Vec<RedactionView>,
}

/// A redacted place in a preview.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Redaction)]
pub struct RedactionView {
    /// The place, as a JSON Pointer into the arguments.
    pub path: String,
    /// The rule that redacts it: `path`, `secret`, `email` or `card`.
    pub rule: String,
}

/// A reason that a person may choose.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Reason)]
pub struct ReasonView {
    pub id: String,
    pub title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl From<ActionBody> for ActionView {
    fn from(action: ActionBody) -> Self {
        let redactions = action.redactions.into_iter();
        Self {
            tool: action.tool,
            args: action.args,
            args_schema: action.args_schema,
            call_id: action.call_id,
            effect: action.effect,
            risk: action.risk,
            idempotent: action.idempotent,
            digest: action.digest,
            redactions: redactions.map(Into::into).collect(),
        }
    }
}

impl ActionView {
    /// The action as its worker gets it.
    pub(crate) fn opened(mut self, opened: &OpenedArgs) -> Self {
        if opened.lost {
            // A worker that overlooks the loss must not run the preview.
            self.args = raw_null();
        } else if let Some(args) = &opened.args {
            self.args = args.clone();
        }
        self
    }
}

impl From<Redaction> for RedactionView {
    fn from(redaction: Redaction) -> Self {
        Self {
            path: redaction.path,
            rule: redaction.rule,
        }
    }
}

impl From<Reason> for ReasonView {
    fn from(reason: Reason) -> Self {
        Self {
            id: reason.id,
            title: reason.title,
            text: reason.text,
        }
    }
}

//! The action behind a hold, as callers see it.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::hold::{Effect, Risk};
use statehold_core::name::Name;
use utoipa::ToSchema;

use crate::api::json::{Raw, raw_null};
use crate::bodies::{ActionBody, Redaction};
use crate::guard::sealed::OpenedArgs;

/// An action that waits, or waited.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Action)]
pub struct ActionView {
    #[schema(value_type = Name)]
    pub tool: String,
    /// The arguments without what the policy hides; for the worker, all of them. Null for a worker
    /// where they are lost, and for operators in lists.
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
    pub redactions: Vec<Redaction>,
}

impl From<ActionBody> for ActionView {
    fn from(action: ActionBody) -> Self {
        Self {
            tool: action.tool,
            args: action.args,
            args_schema: action.args_schema,
            call_id: action.call_id,
            effect: action.effect,
            risk: action.risk,
            idempotent: action.idempotent,
            digest: action.digest,
            redactions: action.redactions,
        }
    }
}

impl ActionView {
    /// Whether a plain yes does not confirm it.
    pub(crate) fn is_high_risk(&self) -> bool {
        self.risk == Some(Risk::High) || self.effect == Some(Effect::Destructive)
    }

    /// The tool with its effect and risk, without anything that depends on the arguments.
    pub(super) fn without_args(self) -> Self {
        Self {
            args: raw_null(),
            args_schema: None,
            digest: None,
            redactions: Vec::new(),
            ..self
        }
    }

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

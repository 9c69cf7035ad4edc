//! What is kept of a hold, as callers see it.

use serde::Serialize;
use statehold_core::hold::{Effect, Risk};
use statehold_engine::OpenedArgs;
use statehold_engine::kept::{ActionBody, Reason, Redaction};
pub(crate) use statehold_engine::kept::{DecisionBody, HoldBody};
use utoipa::ToSchema;

use super::words::{EffectWire, RiskWire};
use crate::wire::schema::{DigestText, NameText};
use crate::wire::{Raw, raw_null};

/// An action that waits, or waited.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Action)]
pub(crate) struct ActionOut {
    #[schema(value_type = NameText)]
    pub(crate) tool: String,
    /// The arguments without what the policy hides; for the worker, all of them. Null for a worker
    /// where they are lost.
    #[schema(value_type = serde_json::Value)]
    pub(crate) args: Raw,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) args_schema: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<EffectWire>)]
    pub(crate) effect: Option<Effect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RiskWire>)]
    pub(crate) risk: Option<Risk>,
    pub(crate) idempotent: bool,
    /// The digest that an approval names. It covers the full arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DigestText>)]
    pub(crate) digest: Option<String>,
    /// What others than the worker do not see.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) redactions: Vec<RedactionOut>,
}

/// Something that a preview hides.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Redaction)]
pub(crate) struct RedactionOut {
    /// Where, as a JSON Pointer into the arguments.
    pub(crate) path: String,
    /// By which rule: `path`, `secret`, `email` or `card`.
    pub(crate) rule: String,
}

/// A reason that a person may choose.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Reason)]
pub(crate) struct ReasonOut {
    pub(crate) id: String,
    pub(crate) title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
}

impl From<ActionBody> for ActionOut {
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
            digest: action.digest.map(|digest| digest.to_string()),
            redactions: redactions.map(Into::into).collect(),
        }
    }
}

impl ActionOut {
    /// The action as its worker gets it.
    pub(crate) fn opened(mut self, opened: &OpenedArgs) -> Self {
        if opened.lost {
            // Whoever overlooks that they are lost must not run with the preview.
            self.args = raw_null();
        } else if let Some(args) = &opened.args {
            self.args = args.clone();
        }
        self
    }
}

impl From<Redaction> for RedactionOut {
    fn from(redaction: Redaction) -> Self {
        Self {
            path: redaction.path,
            rule: redaction.rule,
        }
    }
}

impl From<Reason> for ReasonOut {
    fn from(reason: Reason) -> Self {
        Self {
            id: reason.id,
            title: reason.title,
            text: reason.text,
        }
    }
}

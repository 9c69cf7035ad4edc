//! The words of holds and decisions, as callers write them.

use serde::{Deserialize, Serialize};
use statehold_core::hold::{DecisionKind, Effect, HoldKind, OnExpiry, Risk};
use utoipa::ToSchema;

/// What an action does to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Effect)]
pub(crate) enum EffectWire {
    Read,
    Write,
    Destructive,
}

/// How much is at stake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Risk)]
pub(crate) enum RiskWire {
    Low,
    Medium,
    High,
}

impl From<EffectWire> for Effect {
    fn from(wire: EffectWire) -> Self {
        match wire {
            EffectWire::Read => Self::Read,
            EffectWire::Write => Self::Write,
            EffectWire::Destructive => Self::Destructive,
        }
    }
}

impl From<RiskWire> for Risk {
    fn from(wire: RiskWire) -> Self {
        match wire {
            RiskWire::Low => Self::Low,
            RiskWire::Medium => Self::Medium,
            RiskWire::High => Self::High,
        }
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = HoldKind)]
pub(crate) enum HoldKindWire {
    Approval,
    Question,
    Form,
    Link,
    Credential,
    Reconcile,
}

impl From<HoldKindWire> for HoldKind {
    fn from(wire: HoldKindWire) -> Self {
        match wire {
            HoldKindWire::Approval => Self::Approval,
            HoldKindWire::Question => Self::Question,
            HoldKindWire::Form => Self::Form,
            HoldKindWire::Link => Self::Link,
            HoldKindWire::Credential => Self::Credential,
            HoldKindWire::Reconcile => Self::Reconcile,
        }
    }
}

/// What may be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DecisionKind)]
pub(crate) enum DecisionWire {
    Approve,
    Edit,
    Reject,
    Respond,
    Dismiss,
}

impl From<DecisionWire> for DecisionKind {
    fn from(wire: DecisionWire) -> Self {
        match wire {
            DecisionWire::Approve => Self::Approve,
            DecisionWire::Edit => Self::Edit,
            DecisionWire::Reject => Self::Reject,
            DecisionWire::Respond => Self::Respond,
            DecisionWire::Dismiss => Self::Dismiss,
        }
    }
}

/// What follows if nobody decides in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OnExpiry)]
pub(crate) enum OnExpiryWire {
    Reject,
    Dismiss,
    Fail,
}

impl From<OnExpiryWire> for OnExpiry {
    fn from(wire: OnExpiryWire) -> Self {
        match wire {
            OnExpiryWire::Reject => Self::Reject,
            OnExpiryWire::Dismiss => Self::Dismiss,
            OnExpiryWire::Fail => Self::Fail,
        }
    }
}

//! What the file says about models: `[models.NAME]`.

use serde::{Deserialize, Serialize};

use super::kinds::{RETRIES, Retries, TIMEOUT_SECONDS, Timeout};
use super::values::{Address, Variable, Words};

/// A model behind a chat completions endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "the words of the file")]
pub(crate) struct Model {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) base_url: Option<Address>,
    /// The variable of the environment that holds the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) credential_env: Option<Variable>,
    /// What it is called there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<Words>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retries: Option<Retries>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_seconds: Option<Timeout>,
}

impl Model {
    /// The same with everything said that has a default.
    pub(super) fn with_defaults(&self) -> Self {
        Self {
            retries: self.retries.or(Some(RETRIES)),
            timeout_seconds: self.timeout_seconds.or(Some(TIMEOUT_SECONDS)),
            ..self.clone()
        }
    }
}

/// The settings of a model, by name.
pub(super) const MODEL_SETTINGS: [&str; 5] = [
    "base_url",
    "credential_env",
    "model",
    "retries",
    "timeout_seconds",
];

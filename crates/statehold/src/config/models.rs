//! Models in the file: `[models.NAME]`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use statehold_agents::spec::MediaKind;

use super::kinds::{RETRIES, RetryCount, TIMEOUT_SECONDS, TimeoutSeconds};
use super::values::{NonEmptyText, ServiceHeaders, ServiceUrl, VariableName};

/// A model behind a chat completions endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ModelConfig {
    pub(super) base_url: Option<ServiceUrl>,
    /// The environment variable that holds the API key.
    pub(super) credential_env: Option<VariableName>,
    pub(super) headers: Option<ServiceHeaders>,
    /// The kinds of input that the model reads besides text.
    pub(super) input: Option<BTreeSet<MediaKind>>,
    /// The model's name at the service.
    pub(super) model: Option<NonEmptyText>,
    pub(super) retries: Option<RetryCount>,
    pub(super) timeout_seconds: Option<TimeoutSeconds>,
}

impl ModelConfig {
    /// The same model with every default filled in.
    pub(super) fn with_defaults(&self) -> Self {
        Self {
            retries: self.retries.or(Some(RETRIES)),
            timeout_seconds: self.timeout_seconds.or(Some(TIMEOUT_SECONDS)),
            ..self.clone()
        }
    }
}

/// The names of the model settings.
pub(super) const MODEL_SETTINGS: [&str; 7] = [
    "base_url",
    "credential_env",
    "headers",
    "input",
    "model",
    "retries",
    "timeout_seconds",
];

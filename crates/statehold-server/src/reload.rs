//! The port for reloading the configuration. The program that owns the files implements it.

use std::pin::Pin;

use serde::Serialize;
use utoipa::ToSchema;

/// Reloads the declared agents, models and tool servers.
pub trait Reload: std::fmt::Debug + Send + Sync {
    /// Reads the whole configuration and applies it, or changes nothing.
    fn reload(&self) -> ReloadFuture<'_>;
}

/// The future that a [`Reload`] returns.
pub type ReloadFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ReloadReport, ReloadError>> + Send + 'a>>;

/// The differences to the previous configuration. Names are table names, such as `agents.math`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Reloaded)]
pub struct ReloadReport {
    /// Tables that are new.
    pub added: Vec<String>,
    /// Tables whose content changed.
    pub changed: Vec<String>,
    /// Tables that are gone.
    pub removed: Vec<String>,
    /// Changed settings that take effect only after a restart.
    pub needs_restart: Vec<String>,
}

/// A mistake in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReloadMistake {
    /// The full key. Empty if the mistake belongs to no key.
    pub key: String,
    /// A sentence that describes the mistake.
    pub message: String,
    /// A sentence that says how to correct it.
    pub hint: String,
}

/// The reason why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The configuration has mistakes.
    #[error("the configuration has mistakes; nothing was changed")]
    Mistakes(Vec<ReloadMistake>),
    /// The runner cannot run the declared agents.
    #[error("the agents that are declared cannot be worked for; nothing was changed")]
    Agents(#[source] statehold_agents::runner::RunnerError),
    /// The server is stopping.
    #[error("the server is stopping; nothing was changed")]
    Stopping,
}

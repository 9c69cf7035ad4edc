//! Reading the configuration again, as a port: whoever has files reads them, this crate only asks.

use std::pin::Pin;

use serde::Serialize;
use utoipa::ToSchema;

/// Reads what is declared about agents again, and lets it count.
pub trait Reload: std::fmt::Debug + Send + Sync {
    /// Reads everything again. All of it counts afterwards, or nothing has changed.
    fn reload(&self) -> Reloading<'_>;
}

/// What comes of it.
pub type Reloading<'a> = Pin<Box<dyn Future<Output = Result<Reloaded, ReloadError>> + Send + 'a>>;

/// What is different from before. Names are those of tables, such as `agents.math`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Reloaded {
    /// Declared now, and not before.
    pub added: Vec<String>,
    /// Declared otherwise than before.
    pub changed: Vec<String>,
    /// Declared no more.
    pub removed: Vec<String>,
    /// Settings that are not what the server was started with, and count after a restart only.
    pub needs_restart: Vec<String>,
}

/// Something that is wrong in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReloadMistake {
    /// The whole key. Empty if it is not about one.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The configuration has mistakes.
    #[error("the configuration has mistakes; nothing was changed")]
    Mistakes(Vec<ReloadMistake>),
    /// The agents that are declared cannot be worked for.
    #[error("the agents that are declared cannot be worked for; nothing was changed")]
    Agents(#[source] statehold_agents::runner::RunnerError),
    /// The server is about to end.
    #[error("the server is stopping; nothing was changed")]
    Stopping,
}

//! Watches of sessions: which parts have changed, without their content.

use statehold_core::ids::SessionId;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::watch::Watched;

pub use crate::watch::PartRevisions;

/// One watcher of a session. It holds numbers only, so a slow one buffers nothing: changes that it has not taken yet
/// become one.
#[derive(Debug)]
pub struct SessionWatch {
    engine: Engine,
    caller: Caller,
    session: SessionId,
    watched: Watched,
}

/// Watches a session from now on.
///
/// # Errors
///
/// If the caller may not read it.
pub async fn session(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
) -> Result<SessionWatch, EngineError> {
    let watched = engine.inner().watches.watch(session);
    engine.readable_conversation(caller, session).await?;
    Ok(SessionWatch {
        engine: engine.clone(),
        caller: caller.clone(),
        session,
        watched,
    })
}

impl SessionWatch {
    /// Waits for the next commit, and tells at which revisions each part changed last since the watch began. Cancelling
    /// the wait loses nothing.
    ///
    /// # Errors
    ///
    /// If the caller may no longer read the session.
    pub async fn changed(&mut self) -> Result<PartRevisions, EngineError> {
        let changed = self.watched.changed().await;
        self.engine
            .readable_conversation(&self.caller, self.session)
            .await?;
        Ok(changed)
    }

    /// The changes that other watchers were told of before this one began.
    pub fn known(&self) -> PartRevisions {
        self.watched.known()
    }
}

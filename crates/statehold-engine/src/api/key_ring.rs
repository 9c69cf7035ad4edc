//! The key ring: its secrets by their names, and adding one.

use serde::Serialize;
use statehold_core::tenant::TenantEvent;
use utoipa::ToSchema;

use super::json::Time;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_admin;

/// A secret of the key ring, without the secret.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = RingKey)]
pub struct RingKeyView {
    /// Its name: 8 hexadecimal digits.
    pub id: String,
    /// When it was made.
    pub created_at: Time,
    /// Whether it seals what callers get from now on. The others only open what was sealed before.
    pub seals: bool,
}

/// The secrets of the key ring, oldest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = KeyRing)]
pub struct KeyRingView {
    /// The secrets.
    pub keys: Vec<RingKeyView>,
}

/// Lists the secrets of the key ring by their names.
///
/// # Errors
///
/// If the caller is not an admin.
pub fn list(engine: &Engine, caller: &Caller) -> Result<KeyRingView, EngineError> {
    require_admin(caller)?;
    Ok(view(engine))
}

fn view(engine: &Engine) -> KeyRingView {
    let ring = engine.inner().payload_keys.ring();
    let newest = ring.newest().id;
    let keys = ring.all().into_iter().map(|key| RingKeyView {
        id: key.id.to_string(),
        created_at: key.since.into(),
        seals: key.id == newest,
    });
    KeyRingView {
        keys: keys.collect(),
    }
}

/// Adds a secret to the key ring, which seals from now on, and wraps the keys of all users with it. Whatever was
/// sealed before stays valid.
///
/// # Errors
///
/// If the caller is not an admin, the ring is full, or a file cannot be written.
pub async fn rotate(engine: &Engine, caller: &Caller) -> Result<KeyRingView, EngineError> {
    require_admin(caller)?;
    let (own, caller) = (engine.clone(), caller.clone());
    let rotating = async move {
        let keys = std::sync::Arc::clone(&own.inner().payload_keys);
        let rotated = tokio::task::spawn_blocking(move || keys.rotate_ring()).await;
        rotated.map_err(|_| EngineError::Stopping)??;
        let view = view(&own);
        let secrets = view.keys.len() as u64;
        own.audit(&caller, TenantEvent::KeyRingRotated { secrets })
            .await?;
        Ok(view)
    };
    engine.run_to_end(rotating).await
}

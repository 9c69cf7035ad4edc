//! Key management, independent of where the keys are: a server, or a data directory without a
//! running server.

use serde::{Deserialize, Serialize};

/// The keys of one tenant.
pub(super) trait KeyService {
    /// Creates a key. The secret in the answer is shown once and not stored.
    async fn create(&self, new: &KeyRequest) -> anyhow::Result<CreatedKey>;

    /// All keys, revoked ones included.
    async fn list(&self) -> anyhow::Result<Vec<KeyInfo>>;

    /// Revokes a key. Revoking it again succeeds.
    async fn revoke(&self, id: &str) -> anyhow::Result<()>;
}

/// A request to create a key. The field names are those of the API.
#[derive(Debug, Serialize)]
pub(super) struct KeyRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) roles: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agents: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_in_seconds: Option<u64>,
}

/// A key without its secret.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeyInfo {
    pub(super) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) roles: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agents: Option<Vec<String>>,
    pub(super) created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revoked_at: Option<String>,
}

/// A new key with its secret.
#[derive(Serialize, Deserialize)]
pub(super) struct CreatedKey {
    #[serde(flatten)]
    pub(super) about: KeyInfo,
    pub(super) key: String,
}

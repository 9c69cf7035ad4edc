//! What can be done with keys, whoever keeps them: a server, or a data directory that none serves.

use serde::{Deserialize, Serialize};

/// The keys of one tenant.
pub(super) trait KeyService {
    /// Makes a key. The secret in the answer is shown once and stored nowhere.
    async fn create(&self, new: &NewKey) -> anyhow::Result<MadeKey>;

    /// All keys, revoked ones too.
    async fn list(&self) -> anyhow::Result<Vec<Key>>;

    /// Makes a key worthless. Doing it again is fine.
    async fn revoke(&self, id: &str) -> anyhow::Result<()>;
}

/// A key to make. The names are those of the API.
#[derive(Debug, Serialize)]
pub(super) struct NewKey {
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
pub(super) struct Key {
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

/// A key that was just made, with its secret.
#[derive(Serialize, Deserialize)]
pub(super) struct MadeKey {
    #[serde(flatten)]
    pub(super) about: Key,
    pub(super) key: String,
}

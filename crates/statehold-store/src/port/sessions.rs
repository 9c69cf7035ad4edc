//! Sessions in lists: orders and summaries.

use serde::{Deserialize, Serialize};
use statehold_core::ids::{SessionId, UserId};
use statehold_core::name::Name;
use statehold_core::session::{Owner, SessionStatus, TimeToLive};
use statehold_core::time::Timestamp;

/// In which order to list sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionOrder {
    /// The last that was created first.
    #[default]
    Created,
    /// The last that changed first; of several at the same time, the last that was created.
    Updated,
}

/// Where a session stands in a list. Ordered by the last change; in the order of creation, only the number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionPlace {
    /// When the session last changed.
    pub updated_at: Timestamp,
    /// The order of creation.
    pub number: u64,
}

/// Which sessions to list.
#[derive(Debug, Clone)]
pub struct SessionQuery {
    /// The isolation wall.
    pub tenant: Name,
    /// Only sessions of this app.
    pub app: Option<Name>,
    /// Only sessions of this user.
    pub user: Option<UserId>,
    /// In this order.
    pub order: SessionOrder,
    /// Continue after this place of the previous page.
    pub after: Option<SessionPlace>,
    /// The maximum size of the page.
    pub limit: usize,
}

/// A session in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSummary {
    /// Its number in the order of creation.
    pub place: u64,
    /// The id.
    pub id: SessionId,
    /// Whose it is.
    pub owner: Owner,
    /// The name the client gave it.
    pub name: Option<String>,
    /// The labels the client gave it, as JSON.
    pub labels: Option<String>,
    /// The status of the session.
    pub status: SessionStatus,
    /// Whether its payloads were removed for good.
    pub deleted: bool,
    /// How long it lives.
    pub ttl: Option<TimeToLive>,
    /// When that ends.
    pub expires_at: Option<Timestamp>,
    /// How long it keeps its hidden payloads after its last use, in milliseconds.
    pub hidden_ttl_ms: Option<u64>,
    /// When they are erased.
    pub hidden_expires_at: Option<Timestamp>,
    /// Its revision.
    pub revision: u64,
    /// When it began.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// The session that it was forked from, and the last revision that both share.
    pub forked_from: Option<(SessionId, u64)>,
}

impl SessionSummary {
    /// The bytes of its name and labels.
    pub fn text_bytes(&self) -> usize {
        let texts = [&self.name, &self.labels].into_iter().flatten();
        texts.map(String::len).sum()
    }

    /// Its place in a list, for the next page.
    pub fn list_place(&self) -> SessionPlace {
        SessionPlace {
            updated_at: self.updated_at,
            number: self.place,
        }
    }
}

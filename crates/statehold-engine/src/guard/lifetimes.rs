//! How long sessions live, and how long they keep their hidden payloads, where the call that makes them does not say.

use std::collections::BTreeMap;

use statehold_core::name::Name;
use statehold_core::session::{Owner, TimeToLive, TtlMode};

/// A session lives from its last commit on, and so do its hidden payloads. Zero is for ever; `None` leaves it to the
/// next defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lifetimes {
    /// How long a session lives, in milliseconds.
    pub session_ms: Option<u64>,
    /// How long it keeps its hidden payloads, in milliseconds.
    pub hidden_ms: Option<u64>,
}

/// The defaults. Those of the agent of a session come first, then those of its app, then those of chats.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefaultLifetimes {
    /// Of the sessions whose agent it is.
    pub agents: BTreeMap<Name, Lifetimes>,
    /// Of the sessions of an app.
    pub apps: BTreeMap<Name, Lifetimes>,
    /// Of the sessions that chat calls make.
    pub chats: Lifetimes,
}

impl DefaultLifetimes {
    /// How long a new session lives, and how long it keeps its hidden payloads. None is for ever.
    pub(crate) fn of_new(&self, owner: &Owner, is_chat: bool) -> (Option<TimeToLive>, Option<u64>) {
        let candidates = [
            self.agents.get(&owner.agent),
            self.apps.get(&owner.app),
            is_chat.then_some(&self.chats),
        ];
        let first = |of: fn(&Lifetimes) -> Option<u64>| {
            let found = candidates.into_iter().flatten().find_map(of);
            found.filter(|ms| *ms > 0)
        };
        let mode = TtlMode::Sliding;
        let session = first(|lifetimes| lifetimes.session_ms);
        let session = session.map(|ms| TimeToLive { mode, ms });
        (session, first(|lifetimes| lifetimes.hidden_ms))
    }

    /// The longest life that these defaults give a chat with an agent, in any app. None is for ever.
    pub fn longest_chat_ms(&self, agent: &Name) -> Option<u64> {
        let own = self.agents.get(agent).and_then(|own| own.session_ms);
        let longest = own.or_else(|| {
            let apps = self.apps.values().filter_map(|app| app.session_ms);
            let all = apps.chain([self.chats.session_ms.unwrap_or(0)]);
            all.map(|ms| if ms == 0 { u64::MAX } else { ms }).max()
        });
        longest.filter(|ms| (1..u64::MAX).contains(ms))
    }
}

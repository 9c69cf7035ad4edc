//! The conversation that a service stores for a session and a path of agents. All tasks of the path share
//! it; the task that created it keeps the record in its private state.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::memory::AgentPath;

use crate::runner::AgentRun;
use crate::turn::TurnError;

/// Number of locks at which unused ones are removed.
const LOCKS_SWEPT_AT: usize = 256;

/// A gateway to services that store conversations. The agent may since have been declared with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gateway {
    Analytics,
    Conversations,
    Openai,
}

impl Gateway {
    const ALL: [Self; 3] = [Self::Analytics, Self::Conversations, Self::Openai];

    /// Its name in steps.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Analytics => "analytics",
            Self::Conversations => "conversations",
            Self::Openai => "openai",
        }
    }

    /// Its name in records.
    fn letter(self) -> char {
        match self {
            Self::Analytics => 'a',
            Self::Conversations => 'c',
            Self::Openai => 'o',
        }
    }
}

/// A session, as far as a record must tell it from the forks of the session: the beginning of a digest of its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionTag(String);

impl SessionTag {
    pub(super) fn of(session: SessionId) -> Self {
        let digest = Digest::sha256(session.to_string().as_bytes());
        Self(BASE64URL_NOPAD.encode(&digest.as_bytes()[..8]))
    }
}

/// Private state of a task: the remote conversation. Stored as a short list of texts, because each session and path
/// has one: the gateway with numbers and marks, the tag of the session, the id, the agent of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<Option<String>>", try_from = "Vec<Option<String>>")]
pub(super) struct ConversationRecord {
    pub(super) gateway: Gateway,
    /// The local session. A forked session has conversations of its own.
    pub(super) session: SessionTag,
    /// Counts the conversations created, from 1. The highest generation is current.
    pub(super) generation: u32,
    /// Id that the service assigned. None while the creation is in progress.
    pub(super) conversation: Option<String>,
    /// The agent of the service that it is held with, if the service has several.
    pub(super) remote_agent: Option<String>,
    /// The newest rewind of the session when it was created. A later rewind takes exchanges back that its service
    /// would still know, so the next turn creates another one.
    pub(super) rewind: u64,
    /// It replaces a lost one.
    pub(super) is_another: bool,
    /// The service has not got the earlier exchanges yet, which its first message brings.
    pub(super) needs_briefing: bool,
}

/// Mark of a conversation that replaces a lost one.
const ANOTHER: char = '+';
/// Mark of a conversation whose service has not got the earlier exchanges.
const UNBRIEFED: char = '?';
/// Before the newest rewind.
const REWIND: char = '@';

impl From<ConversationRecord> for Vec<Option<String>> {
    fn from(record: ConversationRecord) -> Self {
        let mut head = format!("{}{}", record.gateway.letter(), record.generation);
        if record.rewind > 0 {
            head.push(REWIND);
            head.push_str(&record.rewind.to_string());
        }
        head.extend(record.is_another.then_some(ANOTHER));
        head.extend(record.needs_briefing.then_some(UNBRIEFED));
        let mut all = vec![
            Some(head),
            Some(record.session.0),
            record.conversation,
            record.remote_agent,
        ];
        while all.last().is_some_and(Option::is_none) {
            all.pop();
        }
        all
    }
}

impl TryFrom<Vec<Option<String>>> for ConversationRecord {
    type Error = &'static str;

    fn try_from(all: Vec<Option<String>>) -> Result<Self, Self::Error> {
        const FOREIGN: &str = "it is no record of a conversation";
        let mut all = all.into_iter();
        let (Some(Some(head)), Some(Some(session))) = (all.next(), all.next()) else {
            return Err(FOREIGN);
        };
        let rest = head.as_str();
        let (rest, needs_briefing) = without_mark(rest, UNBRIEFED);
        let (rest, is_another) = without_mark(rest, ANOTHER);
        let mut gateways = Gateway::ALL.into_iter();
        let gateway = gateways.find(|gateway| rest.starts_with(gateway.letter()));
        let numbers = rest.get(1..).unwrap_or_default();
        let (generation, rewind) = numbers.split_once(REWIND).unwrap_or((numbers, "0"));
        Ok(Self {
            gateway: gateway.ok_or(FOREIGN)?,
            session: SessionTag(session),
            generation: generation.parse().map_err(|_| FOREIGN)?,
            conversation: all.next().flatten(),
            remote_agent: all.next().flatten(),
            rewind: rewind.parse().map_err(|_| FOREIGN)?,
            is_another,
            needs_briefing,
        })
    }
}

fn without_mark(text: &str, mark: char) -> (&str, bool) {
    let rest = text.strip_suffix(mark);
    (rest.unwrap_or(text), rest.is_some())
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The newest record of the conversation of this session and path, whichever task has it.
pub(super) async fn find_newest(
    run: &AgentRun,
    gateway: Gateway,
) -> Result<Option<ConversationRecord>, TurnError> {
    let mut newest: Option<ConversationRecord> = None;
    for kept in run.request.private_states().await? {
        let Ok(known) = serde_json::from_slice::<ConversationRecord>(&kept) else {
            continue;
        };
        let is_newer = newest
            .as_ref()
            .is_none_or(|newest| known.generation > newest.generation);
        if known.gateway == gateway && is_newer {
            newest = Some(known);
        }
    }
    Ok(newest)
}

/// The session and the path of agents that have a conversation.
type ConversationOwner = (SessionId, AgentPath);

/// Locks that allow one turn at a time in each conversation of one agent. They outlive new declarations
/// of the agent.
#[derive(Debug, Default)]
pub(crate) struct ConversationLocks {
    locks: Mutex<HashMap<ConversationOwner, Weak<tokio::sync::Mutex<()>>>>,
}

impl ConversationLocks {
    /// Waits until no other turn uses the conversation of this session and path. Releases the turn's
    /// permit meanwhile, so that turns of other conversations can run.
    pub(super) async fn lock(&self, run: &mut AgentRun) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = self.lock_of((run.request.ids.session, run.request.path().clone()));
        match Arc::clone(&lock).try_lock_owned() {
            Ok(held) => held,
            Err(_) => run.permit.release_while(lock.lock_owned()).await,
        }
    }

    fn lock_of(&self, owner: ConversationOwner) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(&owner).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() >= LOCKS_SWEPT_AT {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::default();
        locks.insert(owner, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn record() -> ConversationRecord {
        ConversationRecord {
            gateway: Gateway::Conversations,
            session: SessionTag::of(SessionId::from_uuid(Uuid::from_u128(7))),
            generation: 1,
            conversation: Some("0198f2aa-7a10-7c3e-9d1f-2f6b8c1d0e4a".to_owned()),
            remote_agent: None,
            rewind: 0,
            is_another: false,
            needs_briefing: false,
        }
    }

    fn written(record: &ConversationRecord) -> String {
        let json = serde_json::to_string(record).expect("JSON");
        let read: ConversationRecord = serde_json::from_str(&json).expect("a record");
        assert_eq!(&read, record, "{json}");
        json
    }

    #[test]
    fn a_conversation_with_an_id_of_36_characters_is_kept_in_64_bytes() {
        let one = written(&record());
        assert_eq!(one.len(), 59, "{one}");
        let another = ConversationRecord {
            generation: 9_999,
            is_another: true,
            needs_briefing: true,
            ..record()
        };
        let another = written(&another);
        assert_eq!(another.len(), 64, "{another}");
    }

    #[test]
    fn everything_that_is_known_of_a_conversation_is_read_as_it_was_written() {
        for gateway in Gateway::ALL {
            for bits in 0..32 {
                let is = |bit: u32| bits & (1 << bit) != 0;
                written(&ConversationRecord {
                    gateway,
                    generation: 12,
                    conversation: is(0).then(|| "+?@ \"".to_owned()),
                    remote_agent: is(1).then(|| "p/agents/a".to_owned()),
                    rewind: if is(2) { 34 } else { 0 },
                    is_another: is(3),
                    needs_briefing: is(4),
                    ..record()
                });
            }
        }
        let other = SessionTag::of(SessionId::from_uuid(Uuid::from_u128(8)));
        assert_ne!(other, record().session);
    }

    #[test]
    fn the_private_state_of_another_agent_is_no_record() {
        for json in [
            "[]",
            r#"["x1","t"]"#,
            r#"["c","t"]"#,
            r#"["c1"]"#,
            r#"["c1@","t"]"#,
            "{}",
            "7",
        ] {
            assert!(
                serde_json::from_str::<ConversationRecord>(json).is_err(),
                "{json}"
            );
        }
    }
}

//! Credentials of callers: in memory, attached to their request, never on disk.
//!
//! A claim hands three kinds of credential to a worker. The credential that came with a request
//! lives until the request ends or its root first pauses, because a pause has no time limit. A
//! person's answer to a `credential` hold goes to the next claim only. The configured credential of
//! an agent lives as long as the process.
//!
//! A fourth kind is valid only while the call that brought it is open, and only for one audience of
//! agents. The call owns it ([`CallCredential`]); this table refers to it by the root of the turn,
//! and no claim gets it.
//!
//! This module does not know whether a request once had a credential that is now gone: that fact
//! must survive a restart.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};
use statehold_core::command::Command;
use statehold_core::hold::HoldStatus;
use statehold_core::ids::RequestId;
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_store::Commit;
use utoipa::ToSchema;
use zeroize::Zeroizing;

use crate::error::EngineError;
use crate::locks::Lock;
use crate::shares::{Holder, PoolFull, Share, Shares};

/// The longest credential, in bytes.
pub const CREDENTIAL_BYTES_MAX: usize = 8 * 1024;
/// The maximum total size of all credentials, in bytes.
const TOTAL_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The roots whose calls may have ended, before the table of lent credentials is swept.
const LENT_ROOTS_MIN: usize = 64;

/// A secret of a caller, a person or a service. `Debug` does not print it, and dropping it wipes
/// its memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(Arc<Zeroizing<String>>);

impl Credential {
    /// A credential of 1 to 8192 bytes.
    pub fn new(text: String) -> Option<Self> {
        let text = Zeroizing::new(text);
        (1..=CREDENTIAL_BYTES_MAX)
            .contains(&text.len())
            .then(|| Self(Arc::new(text)))
    }

    /// The bytes that it takes.
    fn bytes(&self) -> usize {
        self.0.len()
    }

    /// The secret itself. Use it only in the answer to a claim.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential(…)")
    }
}

/// The agents that a credential of one call is for. A surface and a gateway share its word; the
/// engine only compares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audience(&'static str);

impl Audience {
    /// The audience with this word.
    pub const fn new(word: &'static str) -> Self {
        Self(word)
    }

    pub(crate) fn word(self) -> &'static str {
        self.0
    }
}

/// A credential that is valid only while the call that brought it is open. The call owns it, and
/// its turn refers to it: when the call ends, it is gone from memory, however long the turn goes
/// on.
#[derive(Debug)]
pub struct CallCredential {
    audience: Audience,
    /// The credential.
    pub secret: Credential,
    /// A second one that goes with it.
    pub companion: Option<Credential>,
}

impl CallCredential {
    /// A credential for the agents of an audience.
    pub fn new(audience: Audience, secret: Credential, companion: Option<Credential>) -> Arc<Self> {
        Arc::new(Self {
            audience,
            secret,
            companion,
        })
    }

    pub(crate) fn audience(&self) -> Audience {
        self.audience
    }
}

/// A reference to the credential of a call.
pub type CallCredentialRef = Weak<CallCredential>;

/// The credentials of open calls, by the root of their turn.
#[derive(Debug, Default)]
struct LentCredentials {
    roots: HashMap<RequestId, Vec<CallCredentialRef>>,
    /// How many roots there may be before those without an open call are dropped.
    swept_above: usize,
}

impl LentCredentials {
    fn lend(&mut self, root: RequestId, lent: &CallCredentialRef) {
        if self.roots.len() >= self.swept_above {
            self.roots.retain(|_, lent| {
                lent.retain(is_open);
                !lent.is_empty()
            });
            self.swept_above = (2 * self.roots.len()).max(LENT_ROOTS_MIN);
        }
        let known = self.roots.entry(root).or_default();
        known.retain(|known| is_open(known) && !known.ptr_eq(lent));
        known.push(lent.clone());
    }

    /// The newest one for an audience.
    fn find(&self, root: RequestId, audience: Audience) -> Option<Arc<CallCredential>> {
        let mut lent = self.roots.get(&root)?.iter().rev();
        lent.find_map(|lent| lent.upgrade().filter(|lent| lent.audience == audience))
    }
}

fn is_open(lent: &CallCredentialRef) -> bool {
    lent.strong_count() > 0
}

/// Where a credential came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CredentialSource {
    /// It came with the request.
    Caller,
    /// The configuration gives it to the agent.
    Service,
    /// A person answered a `credential` hold with it.
    Hold,
}

#[derive(Debug)]
pub(crate) struct Credentials {
    kept: Lock<CredentialTable>,
    lent: Lock<LentCredentials>,
    /// The bytes of all credentials.
    bytes: Shares,
    service: Lock<BTreeMap<Name, Credential>>,
}

impl Default for Credentials {
    fn default() -> Self {
        Self {
            kept: Lock::default(),
            lent: Lock::default(),
            bytes: Shares::new(TOTAL_BYTES_MAX),
            service: Lock::default(),
        }
    }
}

#[derive(Debug, Default)]
struct CredentialTable {
    /// The credential that came with a request, and the request's root.
    given: HashMap<RequestId, (RequestId, KeptCredential)>,
    /// The requests of each root that have a credential.
    roots: HashMap<RequestId, BTreeSet<RequestId>>,
    /// Credentials from holds, until the next claim.
    answers: HashMap<RequestId, KeptCredential>,
}

/// A credential, and the bytes that it takes.
#[derive(Debug)]
struct KeptCredential {
    credential: Credential,
    _bytes: Share,
}

impl CredentialTable {
    fn drop_given(&mut self, request: RequestId) {
        let Some((root, _)) = self.given.remove(&request) else {
            return;
        };
        if let Some(requests) = self.roots.get_mut(&root) {
            requests.remove(&request);
            if requests.is_empty() {
                self.roots.remove(&root);
            }
        }
    }

    fn take_answer(&mut self, request: RequestId) -> Option<Credential> {
        Some(self.answers.remove(&request)?.credential)
    }
}

fn too_many(full: PoolFull) -> &'static str {
    match full {
        PoolFull::OwnShare(_) => {
            "requests of this key keep as many credentials as one key may; wait until some have ended"
        }
        PoolFull::All => "too many credentials are kept; try again when requests have ended",
    }
}

/// A credential whose commit is in flight. Dropping it before the commit is durable removes the
/// credential.
#[derive(Debug)]
pub(crate) struct PendingCredential {
    credentials: Arc<Credentials>,
    /// The requests of the credential, and whether the credential answers a hold.
    kept: Vec<(RequestId, bool)>,
}

impl PendingCredential {
    /// The commit is durable: keep the credential.
    pub(crate) fn settle(mut self) {
        self.kept.clear();
    }
}

impl Drop for PendingCredential {
    fn drop(&mut self) {
        for (request, is_answer) in self.kept.drain(..) {
            if is_answer {
                drop(self.credentials.take_answer(request));
            } else {
                self.credentials.kept.lock().drop_given(request);
            }
        }
    }
}

impl Credentials {
    /// Keeps a credential for the request that a commit starts, or whose hold it answers. Must run
    /// before the commit is visible, so that no claim misses the credential.
    pub(crate) fn keep(
        self: &Arc<Self>,
        (credential, holder): (&Credential, Holder),
        command: &Command,
        commit: &Commit,
    ) -> Result<PendingCredential, EngineError> {
        let entry = self.counted(credential, holder)?;
        let mut kept = self.kept.lock();
        let content = &commit.record.content;
        let found = match command {
            Command::StartRequest(_) => content.started_request(),
            Command::DecideHold { hold, .. } => {
                content.events.iter().find_map(|event| match event {
                    Event::HoldDecided {
                        hold: decided,
                        request,
                        decision,
                        ..
                    } if decided == hold && decision.status == HoldStatus::Answered => {
                        Some(*request)
                    }
                    _ => None,
                })
            }
            _ => None,
        };
        let is_answer = matches!(command, Command::DecideHold { .. });
        if let Some(request) = found {
            if is_answer {
                drop(kept.take_answer(request));
                kept.answers.insert(request, entry);
            } else {
                let root = commit.after.root_of(request);
                kept.given.insert(request, (root, entry));
                kept.roots.entry(root).or_default().insert(request);
            }
        }
        Ok(PendingCredential {
            credentials: Arc::clone(self),
            kept: found
                .map(|request| (request, is_answer))
                .into_iter()
                .collect(),
        })
    }

    /// Keeps the credential of a caller who lets a turn go on: for the request whose hold a commit
    /// decides, and for those that wait for it. Their own were dropped when the turn paused. Keeps
    /// nothing if the turn still waits for people: that has no time limit.
    pub(crate) fn keep_resumed(
        self: &Arc<Self>,
        (credential, holder): (&Credential, Holder),
        commit: &Commit,
    ) -> Result<PendingCredential, EngineError> {
        let mut pending = PendingCredential {
            credentials: Arc::clone(self),
            kept: Vec::new(),
        };
        let decided = commit
            .record
            .content
            .events
            .iter()
            .find_map(|event| match event {
                Event::HoldDecided { request, .. } => Some(*request),
                _ => None,
            });
        let Some(decided) = decided else {
            return Ok(pending);
        };
        let after = &commit.after;
        let root = after.root_of(decided);
        if !after.holds_below(root).is_empty() {
            return Ok(pending);
        }
        let mut next = Some(decided);
        while let Some(request) = next {
            let entry = self.counted(credential, holder)?;
            let mut kept = self.kept.lock();
            kept.given.insert(request, (root, entry));
            kept.roots.entry(root).or_default().insert(request);
            pending.kept.push((request, false));
            next = after.requests.get(&request).and_then(|live| live.parent);
        }
        Ok(pending)
    }

    /// A credential with the memory that it takes.
    fn counted(
        &self,
        credential: &Credential,
        holder: Holder,
    ) -> Result<KeptCredential, EngineError> {
        let mut bytes = self.bytes.none_for(holder);
        let resized = bytes.resize(credential.bytes());
        resized.map_err(|full| EngineError::TooMany(too_many(full)))?;
        Ok(KeptCredential {
            _bytes: bytes,
            credential: credential.clone(),
        })
    }

    /// The credential for a claim of this request. A person's answer is handed out once.
    pub(crate) fn take(&self, request: RequestId) -> Option<(Credential, CredentialSource)> {
        let mut kept = self.kept.lock();
        if let Some(answer) = kept.take_answer(request) {
            return Some((answer, CredentialSource::Hold));
        }
        let (_, given) = kept.given.get(&request)?;
        Some((given.credential.clone(), CredentialSource::Caller))
    }

    fn take_answer(&self, request: RequestId) -> Option<Credential> {
        self.kept.lock().take_answer(request)
    }

    /// Lends the credential of a call to the turn that the call is about, until the call ends.
    pub(crate) fn lend(&self, root: RequestId, lent: &CallCredentialRef) {
        self.lent.lock().lend(root, lent);
    }

    /// The credential that an open call has lent to a turn, for agents of this audience.
    pub(crate) fn lent(&self, root: RequestId, audience: Audience) -> Option<Arc<CallCredential>> {
        self.lent.lock().find(root, audience)
    }

    /// Removes all credentials of a request that has ended.
    pub(crate) fn drop_request(&self, request: RequestId) {
        let mut kept = self.kept.lock();
        kept.drop_given(request);
        drop(kept.take_answer(request));
    }

    /// Removes the credentials that came with the requests of a root that ended or paused. Answers
    /// to holds stay: people gave them during the pause, for the work after it.
    pub(crate) fn drop_root(&self, root: RequestId) {
        let mut kept = self.kept.lock();
        for request in kept.roots.remove(&root).unwrap_or_default() {
            kept.drop_given(request);
        }
    }

    /// The configured credential of an agent.
    pub(crate) fn of_service(&self, agent: &Name) -> Option<Credential> {
        self.service.lock().get(agent).cloned()
    }

    pub(crate) fn set_service(&self, service: BTreeMap<Name, Credential>) {
        *self.service.lock() = service;
    }
}

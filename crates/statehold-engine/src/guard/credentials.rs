//! Credentials of callers: in memory, attached to their request, never on disk.
//!
//! A claim hands three kinds of credential to a worker. The credential that came with a request lives
//! until the request ends or its root first pauses, because a pause has no time limit. A person's answer
//! to a `credential` hold goes to the next claim only. The configured credential of an agent lives as
//! long as the process.
//!
//! This module does not know whether a request once had a credential that is now gone: that fact must
//! survive a restart.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

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

/// A secret of a caller, a person or a service. `Debug` does not print it, and dropping it wipes its
/// memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    secret: Arc<Zeroizing<String>>,
    /// The token of the user, which came beside the key of the call.
    token: Option<Arc<Zeroizing<String>>>,
    /// Whether DIAL Core made it for one call: it is for applications of DIAL, and for no other service.
    is_for_dial: bool,
}

impl Credential {
    /// A credential of 1 to 8192 bytes.
    pub fn new(text: String) -> Option<Self> {
        let text = Zeroizing::new(text);
        (1..=CREDENTIAL_BYTES_MAX)
            .contains(&text.len())
            .then(|| Self {
                secret: Arc::new(text),
                token: None,
                is_for_dial: false,
            })
    }

    /// The same secret, as a key that DIAL Core made for one call.
    #[must_use]
    pub fn for_dial(self) -> Self {
        Self {
            is_for_dial: true,
            ..self
        }
    }

    /// Whether it is a key that DIAL Core made for one call.
    pub fn is_for_dial(&self) -> bool {
        self.is_for_dial
    }

    /// The same credential, with the token of the user that came beside it: the whole value of `Authorization`.
    #[must_use]
    pub fn with_token(self, token: &Self) -> Self {
        Self {
            token: Some(Arc::clone(&token.secret)),
            ..self
        }
    }

    /// The token of the user that came beside it.
    pub fn token(&self) -> Option<Self> {
        let secret = Arc::clone(self.token.as_ref()?);
        Some(Self {
            secret,
            token: None,
            is_for_dial: self.is_for_dial,
        })
    }

    /// The bytes that it takes.
    fn bytes(&self) -> usize {
        let token = self.token.as_ref();
        self.secret.len() + token.map_or(0, |token| token.len())
    }

    /// The secret itself. Use it only in the answer to a claim.
    pub fn expose(&self) -> &str {
        &self.secret
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential(…)")
    }
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
    /// The bytes of all credentials.
    bytes: Shares,
    service: Lock<BTreeMap<Name, Credential>>,
}

impl Default for Credentials {
    fn default() -> Self {
        Self {
            kept: Lock::default(),
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

    /// Keeps the credential of a caller who lets a turn go on: for the request whose hold a commit decides, and for
    /// those that wait for it. What came with them was dropped when they paused.
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

    /// Removes all credentials of a request that has ended.
    pub(crate) fn drop_request(&self, request: RequestId) {
        let mut kept = self.kept.lock();
        kept.drop_given(request);
        drop(kept.take_answer(request));
    }

    /// Removes the credentials that came with the requests of a root that ended or paused. Answers to
    /// holds stay: people gave them during the pause, for the work after it.
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

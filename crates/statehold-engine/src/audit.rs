//! The audit stream of a tenant: its entries, signed roots over the heads of all chains, and
//! verification while the engine runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::root::{HEADS_PER_ROOT_MAX, SignedHead};
use statehold_core::tenant::{NewRoot, TenantEvent, TenantHead, TenantRecord};
use statehold_core::time::Timestamp;
use statehold_store::keys::KeyOwner;
use statehold_store::signing::RootSigner;
use statehold_store::{AddressChange, CheckReport, StoreError, TenantChange, TenantCommit};
use tokio::sync::{Mutex, OnceCell, Semaphore};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;

/// How many commits one query reads.
const SCAN_STEP: usize = 1_000;
/// How many commits are read before their changes are signed.
const WINDOW_COMMITS: usize = 100_000;
/// How many entries one query reads; a root may be large.
pub(crate) const ENTRIES_STEP: usize = 16;

/// The engine's state of audit streams.
pub(crate) struct Audit {
    /// Locked while an entry is appended: one at a time.
    streams: Mutex<Streams>,
    /// The commit after which the next root begins. None until the streams were read.
    until: Mutex<Option<u64>>,
    signer: OnceCell<RootSigner>,
    /// A verification reads everything, so only one runs at a time.
    verifying: Semaphore,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            streams: Mutex::default(),
            until: Mutex::default(),
            signer: OnceCell::new(),
            verifying: Semaphore::new(1),
        }
    }
}

#[derive(Default)]
struct Streams {
    /// The last entry that this process wrote, by tenant. A verification must find it.
    written: HashMap<Name, TenantHead>,
    /// Tenants with entries that no root covers yet.
    unsigned: BTreeSet<Name>,
}

/// The heads changed by a range of commits, by tenant.
struct Window {
    changed: BTreeMap<Name, BTreeMap<SessionId, SignedHead>>,
    until: u64,
}

impl Engine {
    /// Verifies all data of a tenant while the engine keeps serving calls. One verification at a time.
    pub(crate) async fn verify(&self, tenant: &Name) -> Result<CheckReport, EngineError> {
        let inner = self.inner();
        let busy = EngineError::TooMany(
            "a verification is under way, and only one runs at a time; try again when it has ended",
        );
        let _only = inner.audit.verifying.try_acquire().map_err(|_| busy)?;
        // Take the expected head before the store takes its snapshot, so the snapshot must contain it.
        let streams = inner.audit.streams.lock().await;
        let expected = streams.written.get(tenant).copied();
        drop(streams);
        let keys = Arc::clone(&inner.payload_keys);
        let verifying = inner.store.verify(tenant.clone(), expected, keys);
        tokio::select! {
            report = verifying => Ok(report?),
            () = inner.stop.cancelled() => Err(EngineError::Stopping),
        }
    }

    /// Records an event outside any session, before the call is answered.
    pub(crate) async fn audit(
        &self,
        caller: &Caller,
        event: TenantEvent,
    ) -> Result<(), EngineError> {
        self.append_audit(caller, event, None).await?;
        Ok(())
    }

    /// Records an event outside any session, with the row beside the stream that it changes. Runs as a task
    /// of its own: if the caller disconnects after the commit, memory is still updated, so a revoked key
    /// stops working. Returns the entry as the head of the stream.
    pub(crate) async fn append_audit(
        &self,
        caller: &Caller,
        event: TenantEvent,
        change: Option<TenantChange>,
    ) -> Result<TenantHead, EngineError> {
        let (engine, tenant, principal) = (self.clone(), caller.tenant.clone(), caller.principal);
        let appended = self.inner().tasks.spawn(async move {
            let make = |head: &TenantHead, now| {
                TenantRecord::after(head, tenant.clone(), principal, now, event)
            };
            engine.append(&tenant, change, false, make).await
        });
        appended.await.unwrap_or(Err(EngineError::Stopping))
    }

    async fn append(
        &self,
        tenant: &Name,
        change: Option<TenantChange>,
        is_root: bool,
        make: impl FnOnce(&TenantHead, Timestamp) -> TenantRecord,
    ) -> Result<TenantHead, EngineError> {
        let inner = self.inner();
        let mut streams = inner.audit.streams.lock().await;
        // Under the lock, so that the erasure finds every key that was made before.
        if let Some(TenantChange::Key(key)) = &change
            && key.revoked_at.is_none()
            && key
                .user
                .is_some_and(|user| !inner.users.takes_commits_of(user))
        {
            return Err(EngineError::UserErased);
        }
        let before = inner.store.tenant_head(tenant.clone()).await?;
        let record = make(&before, inner.clock.now());
        let head = record.head();
        let commit = TenantCommit {
            record,
            change: change.clone(),
        };
        match inner.store.commit_tenant(commit).await {
            Err(StoreError::TenantConflict { .. }) => {
                let detail = "the audit stream changes too fast; try again";
                return Err(EngineError::TooMany(detail));
            }
            other => other?,
        }
        // Update memory under the lock, so that it follows the order of the store.
        match change {
            Some(TenantChange::Key(key)) => self.note_key(key),
            Some(TenantChange::Address(AddressChange::Set(address))) => {
                let place = (tenant.clone(), address.agent.clone());
                self.note_address(place, Some(address));
            }
            Some(TenantChange::Address(AddressChange::Removed(agent))) => {
                self.note_address((tenant.clone(), agent), None);
            }
            Some(TenantChange::UserForgotten(user)) => inner.users.forget(tenant, user),
            None => {}
        }
        if is_root {
            streams.unsigned.remove(tenant);
        } else {
            streams.unsigned.insert(tenant.clone());
        }
        // If the head in the store is not the one this process wrote last, the stream was truncated.
        // Keep expecting the missing entries, so that a verification reports them.
        let known = streams.written.get(tenant);
        if known.is_none_or(|known| *known == before) {
            streams.written.insert(tenant.clone(), head);
        }
        Ok(head)
    }
}

impl Engine {
    /// Signs the heads of all chains, if anything changed since the last root. Timers and a clean stop
    /// call this.
    ///
    /// # Errors
    ///
    /// If the store fails, or the key cannot be kept.
    pub async fn sign_heads(&self) -> Result<(), EngineError> {
        let mut until = self.inner().audit.until.lock().await;
        let mut from = match *until {
            Some(until) => until,
            None => self.find_roots().await?,
        };
        loop {
            let window = self.changes_after(from).await?;
            if window.until == from {
                break;
            }
            for (tenant, heads) in window.changed {
                let heads: Vec<SignedHead> = heads.into_values().collect();
                let mut parts = heads.chunks(HEADS_PER_ROOT_MAX).peekable();
                while let Some(part) = parts.next() {
                    // Only the last part of several claims to cover the whole window.
                    let is_last = parts.peek().is_none();
                    let covers = if is_last { window.until } else { from };
                    self.append_root(&tenant, part.to_vec(), covers).await?;
                }
            }
            from = window.until;
            *until = Some(from);
        }
        *until = Some(from);
        // Sign entries that no root covers yet.
        let streams = self.inner().audit.streams.lock().await;
        let unsigned: Vec<Name> = streams.unsigned.iter().cloned().collect();
        drop(streams);
        for tenant in unsigned {
            self.append_root(&tenant, Vec::new(), from).await?;
        }
        Ok(())
    }

    /// The heads changed after a commit, up to a limit.
    async fn changes_after(&self, after: u64) -> Result<Window, EngineError> {
        let mut window = Window {
            changed: BTreeMap::new(),
            until: after,
        };
        for _ in 0..WINDOW_COMMITS / SCAN_STEP {
            let store = &self.inner().store;
            let page = store.heads_after(window.until, SCAN_STEP).await?;
            let Some(last) = page.last() else { break };
            window.until = last.place;
            for one in page {
                let heads = window.changed.entry(one.tenant).or_default();
                heads.insert(one.head.session, one.head);
            }
        }
        Ok(window)
    }

    async fn append_root(
        &self,
        tenant: &Name,
        heads: Vec<SignedHead>,
        until: u64,
    ) -> Result<(), EngineError> {
        let signer = self.root_signer().await?;
        let root = NewRoot {
            heads,
            public_key: signer.public_key(),
            until,
        };
        let make = |head: &TenantHead, now| {
            TenantRecord::root_after(head, tenant.clone(), now, root, |bytes| signer.sign(bytes))
        };
        self.append(tenant, None, true, make).await?;
        Ok(())
    }

    /// The commit at which signing continues after a start: every tenant has roots up to there.
    async fn find_roots(&self) -> Result<u64, EngineError> {
        let inner = self.inner();
        let mut until = u64::MAX;
        for tenant in inner.store.tenants().await? {
            let head = inner.store.tenant_head(tenant.clone()).await?;
            let (seq, covers) = self.last_root(&tenant, head.seq).await?.unwrap_or((0, 0));
            if seq < head.seq {
                let mut streams = inner.audit.streams.lock().await;
                streams.unsigned.insert(tenant);
            }
            until = until.min(covers);
        }
        Ok(if until == u64::MAX { 0 } else { until })
    }

    /// The number of a stream's last root, and the commit up to which its roots cover everything. The
    /// search starts at the end, because entries are signed soon after they are appended.
    async fn last_root(&self, tenant: &Name, end: u64) -> Result<Option<(u64, u64)>, EngineError> {
        let mut before = end;
        while before > 0 {
            let after = before.saturating_sub(ENTRIES_STEP as u64);
            let store = &self.inner().store;
            let page = store.tenant_records(tenant.clone(), after, ENTRIES_STEP);
            let root = page.await?.into_iter().rev().find_map(|record| {
                let seq = record.content.seq;
                match record.content.event {
                    TenantEvent::HeadsSigned { until, .. } if seq <= before => Some((seq, until)),
                    _ => None,
                }
            });
            if root.is_some() {
                return Ok(root);
            }
            before = after;
        }
        Ok(None)
    }

    /// The signer of roots.
    pub(crate) async fn root_signer(&self) -> Result<&RootSigner, EngineError> {
        let make = async || {
            let secret = self.payload_key(KeyOwner::Signer).await?;
            Ok(RootSigner::new(&secret))
        };
        self.inner().audit.signer.get_or_try_init(make).await
    }
}

//! The audit stream of a tenant: entries one at a time, roots that sign how far the chains have come,
//! and the verification of everything while the engine runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use statehold_core::digest::PayloadKey;
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::root::{HEADS_PER_ROOT_MAX, PublicKey, SignedHead};
use statehold_core::tenant::{NewRoot, TenantEvent, TenantHead, TenantRecord};
use statehold_core::time::Timestamp;
use statehold_store::keys::{KeyOwner, KnownKeys};
use statehold_store::signing::RootSigner;
use statehold_store::{AddressChange, ApiKey, CheckReport, StoreError, TenantCommit};
use tokio::sync::{Mutex, OnceCell, Semaphore};

use crate::access::require_any;
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::ports::PayloadKeys;

/// How many commits are looked at in one step.
const SCAN_STEP: usize = 1_000;
/// How many commits are looked at before what they changed is signed.
const WINDOW_COMMITS: usize = 100_000;
/// How many entries are read in one step; one root may be large.
const ENTRIES_STEP: usize = 16;
/// How many bytes of entries are read for one answer, and at least one entry.
const ENTRIES_BYTES_MAX: usize = 4 << 20;

/// What the engine knows about audit streams.
pub(crate) struct Audit {
    /// Entries are appended one at a time.
    streams: Mutex<Streams>,
    /// Where the next root begins. None until the streams were looked at.
    until: Mutex<Option<u64>>,
    signer: OnceCell<RootSigner>,
    /// Who verifies reads everything: one at a time.
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
    /// The last entry that this process wrote, by tenant: it must be there when somebody verifies.
    written: HashMap<Name, TenantHead>,
    /// Tenants with entries that no root covers yet.
    unsigned: BTreeSet<Name>,
}

/// Entries of an audit stream, with what is needed to verify them.
#[derive(Debug)]
pub struct AuditPage {
    /// The entries, in order.
    pub records: Vec<TenantRecord>,
    /// The end of the stream.
    pub head: TenantHead,
    /// What roots are signed with now.
    pub public_key: PublicKey,
}

/// What a verification found.
#[derive(Debug)]
pub struct Verification {
    /// What was looked at, and what is wrong.
    pub report: CheckReport,
    /// What roots are signed with now.
    pub public_key: PublicKey,
}

/// The heads that changed in a stretch of commits, by tenant.
struct Window {
    changed: BTreeMap<Name, BTreeMap<SessionId, SignedHead>>,
    until: u64,
}

/// The engine's keys as a verification sees them.
struct Known(Arc<dyn PayloadKeys>);

impl KnownKeys for Known {
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        self.0.get(owner)
    }

    fn since(&self, owner: &KeyOwner) -> Option<Timestamp> {
        self.0.since(owner)
    }
}

impl Engine {
    /// The audit stream of the caller's tenant. A page may be short: it ends with an empty one.
    ///
    /// # Errors
    ///
    /// If the caller may not read it.
    pub async fn audit_records(
        &self,
        caller: &Caller,
        after: u64,
        limit: usize,
    ) -> Result<AuditPage, EngineError> {
        require_any(caller, &[Role::Operator, Role::Admin])?;
        let public_key = self.root_signer().await?.public_key();
        let store = &self.inner().store;
        let mut records: Vec<TenantRecord> = Vec::new();
        let (mut after, mut bytes) = (after, 0);
        while records.len() < limit && bytes < ENTRIES_BYTES_MAX {
            let step = ENTRIES_STEP.min(limit - records.len());
            let page = store.tenant_records(caller.tenant.clone(), after, step);
            let page = page.await?;
            let Some(last) = page.last() else { break };
            after = last.content.seq;
            bytes += page.iter().map(|one| one.as_bytes().len()).sum::<usize>();
            records.extend(page);
        }
        Ok(AuditPage {
            records,
            head: store.tenant_head(caller.tenant.clone()).await?,
            public_key,
        })
    }

    /// Verifies everything that the caller's tenant has, while calls go on.
    ///
    /// # Errors
    ///
    /// If the caller may not, or somebody else is at it.
    pub async fn verify(&self, caller: &Caller) -> Result<Verification, EngineError> {
        require_any(caller, &[Role::Operator, Role::Admin])?;
        let inner = self.inner();
        let busy = EngineError::TooMany(
            "a verification is under way, and only one runs at a time; try again when it has ended",
        );
        let _only = inner.audit.verifying.try_acquire().map_err(|_| busy)?;
        let public_key = self.root_signer().await?.public_key();
        // What was written before the store is looked at must be in what it sees.
        let streams = inner.audit.streams.lock().await;
        let expected = streams.written.get(&caller.tenant).copied();
        drop(streams);
        let keys = Arc::new(Known(Arc::clone(&inner.payload_keys)));
        let verifying = inner.store.verify(caller.tenant.clone(), expected, keys);
        let report = tokio::select! {
            report = verifying => report?,
            () = inner.stop.cancelled() => return Err(EngineError::Stopping),
        };
        Ok(Verification { report, public_key })
    }

    /// Records something beside sessions, before it is answered.
    pub(crate) async fn audit(
        &self,
        caller: &Caller,
        event: TenantEvent,
    ) -> Result<(), EngineError> {
        self.append_audit(caller, event, None, None).await
    }

    /// Records something beside sessions, with the key or the address that it changes. A caller that
    /// hangs up does not stop it half way: a key that is revoked in the store counts no more.
    pub(crate) async fn append_audit(
        &self,
        caller: &Caller,
        event: TenantEvent,
        key: Option<ApiKey>,
        address: Option<AddressChange>,
    ) -> Result<(), EngineError> {
        let (engine, tenant, principal) = (self.clone(), caller.tenant.clone(), caller.principal);
        let appended = self.inner().tasks.spawn(async move {
            let make = |head: &TenantHead, now| {
                TenantRecord::after(head, tenant.clone(), principal, now, event)
            };
            let change = (key, address);
            engine.append(&tenant, change, false, make).await
        });
        appended.await.unwrap_or(Err(EngineError::Stopping))
    }

    async fn append(
        &self,
        tenant: &Name,
        (key, address): (Option<ApiKey>, Option<AddressChange>),
        is_root: bool,
        make: impl FnOnce(&TenantHead, Timestamp) -> TenantRecord,
    ) -> Result<(), EngineError> {
        let inner = self.inner();
        let mut streams = inner.audit.streams.lock().await;
        let before = inner.store.tenant_head(tenant.clone()).await?;
        let record = make(&before, inner.clock.now());
        let head = record.head();
        let commit = TenantCommit {
            record,
            key: key.clone(),
            address: address.clone(),
        };
        match inner.store.commit_tenant(commit).await {
            Err(StoreError::TenantConflict { .. }) => {
                let detail = "the audit stream changes too fast; try again";
                return Err(EngineError::TooMany(detail));
            }
            other => other?,
        }
        // Before the next entry: what is in memory follows the order of the store.
        if let Some(key) = key {
            self.note_key(key);
        }
        match address {
            Some(AddressChange::Set(address)) => {
                let place = (tenant.clone(), address.agent.clone());
                self.note_address(place, Some(address));
            }
            Some(AddressChange::Removed(agent)) => {
                self.note_address((tenant.clone(), agent), None);
            }
            None => {}
        }
        if is_root {
            streams.unsigned.remove(tenant);
        } else {
            streams.unsigned.insert(tenant.clone());
        }
        // If the stream did not go on where this process left it, somebody cut it: what is missing
        // stays expected, so that a verification says so.
        let known = streams.written.get(tenant);
        if known.is_none_or(|known| *known == before) {
            streams.written.insert(tenant.clone(), head);
        }
        Ok(())
    }
}

impl Engine {
    /// Signs how far every chain has come, if anything changed since the last time. Timers call
    /// this, and a clean stop does.
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
                    // Only the last of several says that all of them are there.
                    let is_last = parts.peek().is_none();
                    let covers = if is_last { window.until } else { from };
                    self.append_root(&tenant, part.to_vec(), covers).await?;
                }
            }
            from = window.until;
            *until = Some(from);
        }
        *until = Some(from);
        // Entries that nothing was signed after.
        let streams = self.inner().audit.streams.lock().await;
        let unsigned: Vec<Name> = streams.unsigned.iter().cloned().collect();
        drop(streams);
        for tenant in unsigned {
            self.append_root(&tenant, Vec::new(), from).await?;
        }
        Ok(())
    }

    /// What commits changed after a place, up to so many.
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
        self.append(tenant, (None, None), true, make).await
    }

    /// Where signing goes on after a start: the place up to which every tenant has roots.
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

    /// The number of the last root of a stream, and the place up to which it and those before name
    /// everything. It is near the end: whatever is appended is signed soon.
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

    async fn root_signer(&self) -> Result<&RootSigner, EngineError> {
        let make = async || {
            let secret = self.payload_key(KeyOwner::Signer).await?;
            Ok(RootSigner::new(&secret))
        };
        self.inner().audit.signer.get_or_try_init(make).await
    }
}

//! Addresses to which decisions for an agent are pushed, and the requests to push.
//!
//! There is no table of deliveries. The pending deliveries follow from the state of the requests: a
//! request that is queued again after a worker had it, and a running request with a decision newer than
//! its lease. So pushing continues after a restart.

use std::sync::{Arc, PoisonError};

use data_encoding::BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use statehold_core::digest::Digest;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::name::Name;
use statehold_core::request::{LiveRequest, LiveStatus};
use statehold_core::tenant::TenantEvent;
use statehold_store::keys::KeyOwner;
use statehold_store::{AddressChange, LiveWork, ResumeAddress, TenantChange};
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::caller::Caller;
use crate::claim::ClaimedRequest;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::ports::random;

/// The maximum number of agents with an address.
const ADDRESSES_MAX: usize = 1_000;
/// How many live requests one query reads, and how many one search reads in total.
const PAGE: usize = 500;
const SCAN_MAX: usize = 20_000;

/// The secret that signs deliveries to one address, in the form of Standard Webhooks.
#[derive(Clone)]
pub struct SigningSecret(Zeroizing<[u8; 32]>);

impl SigningSecret {
    /// The secret as text. The API shows it once.
    pub(crate) fn reveal(&self) -> String {
        format!("whsec_{}", BASE64.encode(self.0.as_slice()))
    }

    /// The signature over a message.
    ///
    /// # Panics
    ///
    /// Never: a key may have any length.
    pub fn sign(&self, id: &str, seconds: i64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_slice()).expect("of any length");
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", BASE64.encode(&mac.finalize().into_bytes()))
    }
}

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

/// A request to push to the worker of its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumable {
    /// Its session.
    pub session: SessionId,
    /// The request.
    pub request: RequestId,
    /// How often it was claimed.
    pub fence: u64,
    /// `queued`, or `running` under a worker that has not seen the newest decision.
    pub status: LiveStatus,
    /// How many of its holds are decided.
    pub decisions: u32,
}

impl Engine {
    /// Loads all addresses into memory. Called once.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn load_addresses(&self) -> Result<usize, EngineError> {
        let found = self.inner().store.resume_addresses().await?;
        let count = found.len();
        for address in found {
            let key = (address.tenant.clone(), address.agent.clone());
            self.note_address(key, Some(address));
        }
        Ok(count)
    }

    /// Updates an address in memory after the store has committed it.
    pub(crate) fn note_address(&self, key: (Name, Name), address: Option<ResumeAddress>) {
        let inner = self.inner();
        let addresses = inner.addresses.write();
        let mut addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        match address {
            Some(address) => drop(addresses.insert(key, address)),
            None => drop(addresses.remove(&key)),
        }
        drop(addresses);
        inner.addresses_changed.send_modify(|count| *count += 1);
    }

    /// All addresses of all tenants, for the pusher.
    pub fn all_addresses(&self) -> Vec<ResumeAddress> {
        let addresses = self.inner().addresses.read();
        let addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        addresses.values().cloned().collect()
    }

    /// Subscribes to changes of addresses.
    pub fn address_changes(&self) -> watch::Receiver<u64> {
        self.inner().addresses_changed.subscribe()
    }

    /// The address of an agent.
    pub(crate) fn address_of(&self, tenant: &Name, agent: &Name) -> Option<ResumeAddress> {
        let addresses = self.inner().addresses.read();
        let addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        addresses.get(&(tenant.clone(), agent.clone())).cloned()
    }

    /// Sets the address of an agent, with a new secret. Checks no rights.
    pub(crate) async fn set_address(
        &self,
        caller: &Caller,
        agent: &Name,
        url: String,
    ) -> Result<(ResumeAddress, SigningSecret), EngineError> {
        let _turn = self.inner().addresses_turn.lock().await;
        let is_new = self.address_of(&caller.tenant, agent).is_none();
        if is_new && self.all_addresses().len() >= ADDRESSES_MAX {
            return Err(EngineError::TooMany("at most 1,000 agents have an address"));
        }
        let address = ResumeAddress {
            tenant: caller.tenant.clone(),
            agent: agent.clone(),
            url,
            salt: Digest::from_bytes(random::<32>()?),
            set_at: self.inner().clock.now(),
        };
        let secret = self.signing_secret(&address)?;
        let event = TenantEvent::ResumeAddressSet {
            address: address.commitment(),
            agent: agent.clone(),
        };
        let change = AddressChange::Set(address.clone());
        self.append_audit(caller, event, Some(TenantChange::Address(change)))
            .await?;
        Ok((address, secret))
    }

    /// The secret of an address, derived from its salt and the key of this server. Neither the data nor
    /// a backup contains it.
    ///
    /// # Errors
    ///
    /// If the key of the server cannot be read.
    ///
    /// # Panics
    ///
    /// Never: a key may have any length.
    pub fn signing_secret(&self, address: &ResumeAddress) -> Result<SigningSecret, EngineError> {
        let key = self.inner().payload_keys.get_or_create(&KeyOwner::Server)?;
        let mut mac = Hmac::<Sha256>::new_from_slice(key.expose()).expect("of any length");
        for part in [
            b"statehold resume address v1".as_slice(),
            address.tenant.as_str().as_bytes(),
            address.agent.as_str().as_bytes(),
            address.salt.as_bytes(),
        ] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        let secret: [u8; 32] = mac.finalize().into_bytes().into();
        Ok(SigningSecret(Zeroizing::new(secret)))
    }

    /// Notifies its waiters when workers of an agent may have new work.
    pub fn work_news(&self, tenant: &Name, agent: &Name) -> Arc<tokio::sync::Notify> {
        self.inner().queue(tenant, agent)
    }

    /// The requests of an agent to push to its worker, oldest first.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn resumable(
        &self,
        tenant: &Name,
        agent: &Name,
        limit: usize,
    ) -> Result<Vec<Resumable>, EngineError> {
        let store = &self.inner().store;
        let (mut found, mut after, mut seen) = (Vec::new(), None, 0);
        loop {
            let page = store.live_work(tenant.clone(), agent.clone(), after, PAGE);
            let page = page.await?;
            let is_last = page.len() < PAGE;
            seen += page.len();
            after = page.last().map(|work| work.live.id);
            for work in &page {
                found.extend(self.is_resumable(work).await?);
                if found.len() == limit {
                    return Ok(found);
                }
            }
            if is_last || seen >= SCAN_MAX {
                return Ok(found);
            }
        }
    }

    async fn is_resumable(&self, work: &LiveWork) -> Result<Option<Resumable>, EngineError> {
        let live = &work.live;
        let is_told = match live.status {
            LiveStatus::Queued => live.fence > 0,
            LiveStatus::Running if live.holds_opened > 0 => {
                self.was_decided_since(work.session, live).await?
            }
            LiveStatus::Running | LiveStatus::Held | LiveStatus::Waiting => false,
        };
        Ok(is_told.then_some(Resumable {
            session: work.session,
            request: live.id,
            fence: live.fence,
            status: live.status,
            decisions: live.holds_opened,
        }))
    }

    /// Whether a hold of a running request was decided after its worker got the lease.
    async fn was_decided_since(
        &self,
        session: SessionId,
        live: &LiveRequest,
    ) -> Result<bool, EngineError> {
        let store = &self.inner().store;
        let Some(lease) = live.lease else {
            return Ok(false);
        };
        for hold in store.holds_of(live.id).await?.into_iter().rev() {
            let Some(closed) = store.closed_hold(hold).await? else {
                continue;
            };
            let decided = self.record(session, closed.decided_by).await?;
            let decided_at = decided.map(|stored| stored.record.content.at);
            if decided_at.is_some_and(|at| at.plus_ms(lease.ttl_ms) >= lease.until) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The request as a claim would return it now, without credentials. None if it has ended, or if its
    /// fence or status has changed.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn pushed_work(
        &self,
        tenant: &Name,
        resumable: &Resumable,
    ) -> Result<Option<ClaimedRequest>, EngineError> {
        let caller = Caller::worker_of_server(tenant.clone());
        let (session, request) = (resumable.session, resumable.request);
        let begun = self.inner().store.children_of(request).await?;
        let view = match self.work_view(&caller, session, request, begun).await {
            Ok(view) => view,
            Err(EngineError::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let same =
            view.detail.request.live().is_some_and(|live| {
                live.fence == resumable.fence && live.status == resumable.status
            });
        Ok(same.then_some(view))
    }
}

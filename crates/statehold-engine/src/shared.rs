//! State shared between sessions, and values in memory.
//!
//! A direct write of `app:` or `user:` values is an ordinary commit. It goes to a keeper session used
//! only for such writes, so that it has an order, a chain and idempotency keys. Lists omit keeper
//! sessions.

use serde::Serialize;
use serde::de::DeserializeOwned;
use statehold_core::command::{Command, Rejection, StatePatch};
use statehold_core::ids::{IdMint, RequestId, SessionId, Shard, UserId};
use statehold_core::limits::{COMMAND_KEYS_MAX, PAYLOAD_BYTES_MAX};
use statehold_core::name::Name;
use statehold_core::scope::Scope;
use statehold_core::session::{Owner, STATE_KEEPER};
use statehold_core::time::Timestamp;
use statehold_store::{
    KeyRange, PageLimit, SessionSummary, SharedOwner, SharedValue, StatePage, StateValue,
    StoreError,
};
use uuid::Uuid;

use crate::api::session::{SessionInput, create_command};
use crate::api::state::StateQuery;
use crate::caller::{Caller, Role};
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::idempotency::digest;
use crate::commit::payloads::Payloads;
use crate::commit::write::{Authority, SessionWrite};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::{require_admin, require_any};
use crate::users::NamedUser;

/// How many bytes of values one page reads of a user who is erased: one value of any length, with its key.
const ERASED_PAGE_BYTES: u64 = PAYLOAD_BYTES_MAX as u64 + 4_096;

/// Fails unless the caller may write the values of an app, or of a user in an app.
pub(crate) fn require_shared_writer(
    caller: &Caller,
    user: Option<UserId>,
) -> Result<(), EngineError> {
    let Some(user) = user else {
        return require_admin(caller);
    };
    require_any(caller, &[Role::Client, Role::Admin])?;
    if caller.acts_for(user) || caller.has(Role::Admin) {
        Ok(())
    } else {
        Err(EngineError::NotFound)
    }
}

impl Engine {
    /// A page of the values of an app, or of a user in an app, and the revision of direct writes.
    pub(crate) async fn shared(
        &self,
        caller: &Caller,
        app: &Name,
        user: Option<UserId>,
        (query, limit): (&StateQuery, PageLimit),
    ) -> Result<(StatePage<SharedValue>, u64), EngineError> {
        if let Some(user) = user {
            // Workers read a user's values only through the sessions that they work in.
            if !caller.acts_for(user) && !caller.reads_all() {
                return Err(EngineError::NotFound);
            }
        }
        let owner = SharedOwner {
            tenant: caller.tenant.clone(),
            app: app.clone(),
            user,
        };
        let mut values = PageInParts::new(limit);
        for (_, range) in &query.ranges {
            let part = self
                .inner()
                .store
                .shared(owner.clone(), range.clone(), values.left);
            if !values.add(part.await)? {
                break;
            }
        }
        let page = values.page;
        let (_, keeper) = self.find_keeper(&caller.tenant, app, user).await?;
        Ok((page, keeper.map_or(0, |keeper| keeper.revision)))
    }

    /// The keeper session, or the id of the one to create. Earlier builds let callers delete keeper
    /// sessions: a deleted one is followed by the next.
    async fn find_keeper(
        &self,
        tenant: &Name,
        app: &Name,
        user: Option<UserId>,
    ) -> Result<(SessionId, Option<SessionSummary>), EngineError> {
        let mut generation = 0;
        loop {
            let session = keeper_of(tenant, app, user, generation);
            match self.inner().store.session(session).await? {
                Some(found) if found.deleted => generation += 1,
                found => return Ok((session, found)),
            }
        }
    }

    /// Commits a direct write of shared state to its keeper session, which is created if missing. Checks no rights:
    /// see [`require_shared_writer`].
    pub(crate) async fn commit_shared<V: Serialize + DeserializeOwned + Send>(
        &self,
        call: &Call,
        (app, user): (&Name, Option<&NamedUser>),
        command: impl FnOnce(&mut Payloads) -> Command,
        view: impl Fn(&DecidedCommit<'_>) -> Option<V> + Send + Sync,
    ) -> Result<Receipt<V>, EngineError> {
        let (tenant, id) = (&call.caller.tenant, user.map(|user| user.id));
        let (session, found) = self.find_keeper(tenant, app, id).await?;
        let owner = Owner {
            agent: STATE_KEEPER.parse().expect("a fixed name is a name"),
            app: app.clone(),
            tenant: tenant.clone(),
            user: id.unwrap_or(UserId::from_uuid(Uuid::nil())),
        };
        let mut write = SessionWrite::of_owner(self, call, session, &owner).await?;
        write.authority = Authority::SharedWriter;
        let command = command(&mut write.payloads);
        if found.is_none() {
            if user.is_some_and(|user| user.new.is_some()) {
                write.require_first_write(&owner, &command).await?;
            }
            self.create_keeper(&write, &owner).await?;
        }
        write.commit(&command, view).await
    }

    /// Deletes every value of a user in an app, and the keeper session with its payloads. For erasing the user:
    /// checks no rights.
    pub(crate) async fn delete_user_values(
        &self,
        caller: &Caller,
        app: &Name,
        user: UserId,
    ) -> Result<(), EngineError> {
        let call = Call::by(caller.clone());
        let owner = Owner {
            agent: STATE_KEEPER.parse().expect("a fixed name is a name"),
            app: app.clone(),
            tenant: caller.tenant.clone(),
            user,
        };
        let shared = SharedOwner {
            tenant: caller.tenant.clone(),
            app: app.clone(),
            user: Some(user),
        };
        let limit = PageLimit {
            entries: COMMAND_KEYS_MAX,
            bytes: ERASED_PAGE_BYTES,
        };
        loop {
            let store = &self.inner().store;
            let page = store
                .shared(shared.clone(), KeyRange::default(), limit)
                .await?;
            if page.values.is_empty() {
                break;
            }
            let (session, found) = self.find_keeper(&caller.tenant, app, Some(user)).await?;
            let mut write = SessionWrite::new(self, &call, session);
            write.authority = Authority::Eraser;
            if found.is_none() {
                self.create_keeper(&write, &owner).await?;
            }
            let patch = StatePatch {
                delete: page.values.into_keys().collect(),
                ..StatePatch::default()
            };
            write
                .commit_unseen(&Command::PutState { patch, by: None })
                .await?;
        }
        let (session, found) = self.find_keeper(&caller.tenant, app, Some(user)).await?;
        if found.is_some() {
            let mut write = SessionWrite::new(self, &call, session);
            write.authority = Authority::Eraser;
            write.commit_unseen(&Command::DeleteSession).await?;
        }
        Ok(())
    }

    async fn create_keeper(
        &self,
        write: &SessionWrite<'_>,
        owner: &Owner,
    ) -> Result<(), EngineError> {
        let call = Call::by(write.call.caller.clone());
        let mut creation = SessionWrite {
            call: &call,
            authority: match write.authority {
                Authority::Eraser => Authority::Eraser,
                _ => Authority::Server,
            },
            ..write.clone()
        };
        let command = create_command(
            owner,
            &SessionInput::default(),
            // The values of an app or a user have no end of their own.
            (None, None),
            StatePatch::default(),
            &mut creation.payloads,
        )?;
        match creation.commit_unseen(&command).await {
            Ok(_) | Err(EngineError::Rejected(Rejection::SessionExists)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A page of the values visible in a session, each under its full key: those of its app, then those of its
    /// user, then its own. With the revision of the session.
    ///
    /// # Errors
    ///
    /// If the caller may not read the session.
    pub async fn state(
        &self,
        caller: &Caller,
        session: SessionId,
        (query, limit): (&StateQuery, PageLimit),
    ) -> Result<(StatePage<StateValue>, u64), EngineError> {
        let summary = self.session(caller, session).await?;
        let store = &self.inner().store;
        let mut values = PageInParts::new(limit);
        for (scope, range) in &query.ranges {
            let part = if *scope == Scope::Session {
                store.state(session, range.clone(), values.left).await
            } else {
                let owner = SharedOwner::of(&summary.owner, *scope);
                let shared = store.shared(owner, range.clone(), values.left).await;
                shared.map(|page| page.map(StateValue::from))
            };
            if !values.add(part)? {
                break;
            }
        }
        Ok((values.page, summary.revision))
    }

    /// The root of a live request that the caller works on.
    pub(crate) async fn root_of(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RequestId,
        fence: Option<u64>,
    ) -> Result<RequestId, EngineError> {
        require_any(caller, &[Role::Worker])?;
        let state = self.readable_around(caller, session).await?;
        let live = state.requests.get(&request).ok_or(EngineError::NotFound)?;
        let works = state
            .task_of(request)
            .is_some_and(|task| caller.works_for(&task.agent));
        if !works {
            return Err(EngineError::NotFound);
        }
        if let Some(shown) = fence {
            let current = live.fence;
            if shown != current {
                return Err(Rejection::StaleFence { shown, current }.into());
            }
            if live.lease.map(|lease| lease.worker) != Some(caller.principal) {
                return Err(Rejection::NotLeaseHolder.into());
            }
        }
        Ok(state.root_of(request))
    }
}

/// A page of values that is read in several parts.
struct PageInParts<V> {
    page: StatePage<V>,
    /// The room for the next part.
    left: PageLimit,
}

impl<V: StateBytes> PageInParts<V> {
    fn new(limit: PageLimit) -> Self {
        Self {
            page: StatePage::default(),
            left: limit,
        }
    }

    /// Adds a part, and tells whether another one may follow.
    fn add(&mut self, part: Result<StatePage<V>, StoreError>) -> Result<bool, StoreError> {
        let part = match part {
            Err(StoreError::PageTooSmall { .. }) if !self.page.values.is_empty() => {
                self.page.has_more = true;
                return Ok(false);
            }
            part => part?,
        };
        self.left.entries -= part.values.len();
        let values = part.values.iter();
        let read = values.map(|(key, value)| key.as_str().len() + value.bytes());
        self.left.bytes = self.left.bytes.saturating_sub(read.sum::<usize>() as u64);
        self.page.values.extend(part.values);
        self.page.has_more = part.has_more;
        Ok(!part.has_more)
    }
}

/// A value of state, by its length.
trait StateBytes {
    fn bytes(&self) -> usize;
}

impl StateBytes for StateValue {
    fn bytes(&self) -> usize {
        self.value.len()
    }
}

impl StateBytes for SharedValue {
    fn bytes(&self) -> usize {
        self.value.len()
    }
}

/// The id of the keeper session: one per app, and one per user in an app.
fn keeper_of(tenant: &Name, app: &Name, user: Option<UserId>, generation: u32) -> SessionId {
    let user = user.map(|user| user.to_string()).unwrap_or_default();
    let shard = Shard::of_owner(tenant.as_str(), app.as_str(), &user);
    let parts = [tenant.as_str(), app.as_str(), &user].map(str::as_bytes);
    let digest = match generation {
        0 => digest(&parts),
        later => digest(&[parts[0], parts[1], parts[2], &later.to_be_bytes()]),
    };
    let mut entropy = [0; 8];
    entropy.copy_from_slice(&digest.as_bytes()[..8]);
    let entropy = u64::from_be_bytes(entropy);
    // Without a time, so that the same name always gives the same id.
    let mut mint = IdMint::new(Timestamp::default(), shard, entropy);
    SessionId::from_uuid(mint.next_uuid())
}

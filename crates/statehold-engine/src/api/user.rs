//! Users: erasing one.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde::Serialize;
use statehold_core::command::Command;
use statehold_core::digest::Digest;
use statehold_core::ids::UserId;
use statehold_core::name::Name;
use statehold_core::tenant::TenantEvent;
use statehold_store::keys::KeyOwner;
use statehold_store::{ApiKey, SessionSummary, TenantChange};
use utoipa::ToSchema;

use super::json::Time;
use crate::caller::Caller;
use crate::commit::call::Call;
use crate::commit::idempotency::digest;
use crate::commit::write::{Authority, SessionWrite};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_admin;

/// How many sessions are deleted at the same time.
const SESSIONS_AT_ONCE: usize = 64;

/// The receipt of an erasure. It is the entry `user_erased` of the audit stream.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = UserErased)]
pub struct ErasureReceipt {
    /// The pseudonym, which names nobody from now on.
    #[schema(value_type = UserId)]
    pub user_id: UserId,
    /// How many sessions were deleted.
    pub sessions: u64,
    /// How many API keys that were bound to the user were revoked.
    pub keys_revoked: u64,
    /// When the key of the user was gone.
    pub erased_at: Time,
    /// The number of the entry in the audit stream.
    pub entry: u64,
    /// The hash of the entry. Who keeps it can prove the erasure as long as the stream is there.
    #[schema(value_type = String)]
    pub hash: Digest,
}

/// Erases a user: revokes their API keys, deletes their sessions and `user:` values, then the key under which all of
/// it is sealed, then their name. From then on the text is unreadable in every backup too. If it fails or the server
/// stops before the receipt, a repetition goes on with the rest.
///
/// # Errors
///
/// If the caller is not an admin, there is no such user, or the store fails.
pub async fn erase(
    engine: &Engine,
    caller: &Caller,
    user: &str,
) -> Result<ErasureReceipt, EngineError> {
    require_admin(caller)?;
    let known = engine.known_user(&caller.tenant, user).await?;
    let id = known.ok_or(EngineError::NotFound)?;
    let (own, caller) = (engine.clone(), caller.clone());
    let erasing = async move { own.erase_user(&caller, id).await };
    engine.run_to_end(erasing).await
}

impl Engine {
    async fn erase_user(
        &self,
        caller: &Caller,
        user: UserId,
    ) -> Result<ErasureReceipt, EngineError> {
        let inner = self.inner();
        // One erasure of a user at a time: the second one finds nobody.
        let _turn = inner
            .in_flight
            .lock(digest(&[b"erase user", user.as_uuid().as_bytes()]))
            .await;
        if inner.users.is_gone(user) {
            return Err(EngineError::NotFound);
        }
        // From here on no call commits anything in the name of the user.
        inner.users.refuse_commits_of(user);
        let mut keys_revoked = self.revoke_keys_of(caller, user).await?;
        let mut sessions = self.delete_sessions_of(caller, user).await?;
        self.delete_values_of(caller, user).await?;
        let keys = std::sync::Arc::clone(&inner.payload_keys);
        let deleted = tokio::task::spawn_blocking(move || keys.delete(&KeyOwner::User(user))).await;
        deleted.map_err(|_| EngineError::Stopping)??;
        // Commits that were encrypted before are in the store after this; later ones are refused without the key.
        inner.store.settle_begun_commits().await?;
        sessions += self.delete_sessions_of(caller, user).await?;
        self.delete_values_of(caller, user).await?;
        keys_revoked += self.revoke_keys_of(caller, user).await?;
        let event = TenantEvent::UserErased { sessions, user };
        let forgotten = TenantChange::UserForgotten(user);
        let entry = self.append_audit(caller, event, Some(forgotten)).await?;
        Ok(ErasureReceipt {
            user_id: user,
            sessions,
            keys_revoked,
            erased_at: entry.at.into(),
            entry: entry.seq,
            hash: entry.hash,
        })
    }

    async fn revoke_keys_of(&self, caller: &Caller, user: UserId) -> Result<u64, EngineError> {
        let is_theirs = |key: &ApiKey| key.user == Some(user) && key.revoked_at.is_none();
        let mut revoked = 0;
        for key in self.keys_where(caller, is_theirs).await? {
            self.revoke_key(caller, key).await?;
            revoked += 1;
        }
        Ok(revoked)
    }

    /// Deletes every listed session of a user; says how many.
    async fn delete_sessions_of(&self, caller: &Caller, user: UserId) -> Result<u64, EngineError> {
        let (mut after, mut deleted) = (0, 0);
        loop {
            let page = self.sessions_of(caller, user, true, after).await?;
            let Some(last) = page.last() else {
                return Ok(deleted);
            };
            after = last.place;
            let call = Call::by(caller.clone());
            let deletions = page.iter().map(|found| {
                let write = SessionWrite {
                    authority: Authority::Eraser,
                    ..SessionWrite::new(self, &call, found.id)
                };
                async move { write.commit_unseen(&Command::DeleteSession).await }
            });
            for outcome in join_all(deletions).await {
                match outcome {
                    Ok(_) => deleted += 1,
                    // Another call deleted it meanwhile. A damaged session takes no commit: its text goes with the key.
                    Err(EngineError::NotFound | EngineError::Damaged(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Deletes the `user:` values of a user in every app where the user had a session.
    async fn delete_values_of(&self, caller: &Caller, user: UserId) -> Result<(), EngineError> {
        let mut apps = BTreeSet::<Name>::new();
        for is_listed in [true, false] {
            let mut after = 0;
            loop {
                let page = self.sessions_of(caller, user, is_listed, after).await?;
                let Some(last) = page.last() else { break };
                after = last.place;
                apps.extend(page.into_iter().map(|found| found.owner.app));
            }
        }
        for app in &apps {
            self.delete_user_values(caller, app, user).await?;
        }
        Ok(())
    }

    async fn sessions_of(
        &self,
        caller: &Caller,
        user: UserId,
        is_listed: bool,
        after: u64,
    ) -> Result<Vec<SessionSummary>, EngineError> {
        let store = &self.inner().store;
        let tenant = caller.tenant.clone();
        let page = store.sessions_of_user(tenant, user, is_listed, after, SESSIONS_AT_ONCE);
        Ok(page.await?)
    }
}

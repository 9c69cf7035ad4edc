//! Two commands in one go: the second is decided on the result of the first and queued before the first
//! is durable, so one write to the disk makes both durable.

use std::sync::Arc;

use statehold_core::command::{Command, Outcome};
use statehold_core::ids::SessionId;
use statehold_core::session::SessionState;
use statehold_store::{Commit, StoreError};

use super::{Call, Done, Head, InLine, Mailbox, Ready, Reply, Submission, is_missing};
use crate::caller::Caller;
use crate::commit::auto_claim::PendingClaim;
use crate::commit::payloads::Payloads;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::Credential;

/// The second command, decided; with its claim, if it claims the request that the first one starts.
pub(super) struct Next {
    ready: Ready,
    claim: Option<PendingClaim>,
}

impl Engine {
    /// Submits two commands without another between them: the second is decided on the result of the
    /// first, and both are queued before either is durable. Waits until both are durable. The second has
    /// the reply and may carry a credential.
    ///
    /// # Errors
    ///
    /// As [`Engine::submit_with_credential`]. If the first is refused or fails, so does the second; if
    /// only the second does, the first stays.
    pub async fn submit_both(
        &self,
        session: SessionId,
        caller: &Caller,
        first: (&Command, &Payloads),
        second: (&Command, &Payloads, &Reply),
        credential: Option<&Credential>,
    ) -> Result<Done, EngineError> {
        let call = Call::by(caller.clone());
        let (command, payloads, reply) = second;
        let first = Submission::new(&call, first);
        let second = Submission {
            answer: &**reply,
            credential,
            ..Submission::new(&call, (command, payloads))
        };
        first.require_role()?;
        second.require_role()?;
        let behind = self.submit_in_line(session, &first, Some(&second)).await?.1;
        if let Some(behind) = behind {
            match behind.told.await.unwrap_or(Err(StoreError::Stopped)) {
                Ok(_) => return Ok(behind.done),
                // The store certainly did not commit it: decide it again.
                Err(StoreError::Conflict { .. } | StoreError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The second command was not queued behind the first, or its commit failed: submit it alone.
        Ok(self.submit_in_line(session, &second, None).await?.0)
    }

    /// Decides the second command: the one submitted with the first, or the claim of the request that
    /// the first starts.
    pub(super) async fn decide_next(
        &self,
        first: &Commit,
        behind: Option<&Submission<'_>>,
        claim: Option<PendingClaim>,
    ) -> Option<Box<Next>> {
        let ready = match (behind, &claim) {
            (Some(behind), _) => self.decide_behind(&first.after, behind).await?,
            (None, Some(claim)) => {
                let payloads = self.no_payloads();
                let claim = Submission::new(&claim.call, (&claim.command, &payloads));
                self.decide_behind(&first.after, &claim).await?
            }
            (None, None) => return None,
        };
        Some(Box::new(Next { ready, claim }))
    }

    /// Queues the second command behind the first. If that fails, a submitted command is decided again
    /// when the first is durable; a claim is dropped, and its request waits for a worker.
    pub(super) async fn put_next(
        &self,
        mailbox: &Arc<Mailbox>,
        head: &mut Head,
        next: Box<Next>,
    ) -> Option<InLine> {
        let Next { ready, claim } = *next;
        let in_line = self.put_in_line(mailbox, head, ready, None).await.ok()?;
        match claim {
            Some(claim) => {
                self.send_when_durable(claim, in_line);
                None
            }
            None => Some(in_line),
        }
    }

    /// Decides a command on a state that is not queued yet. None unless it results in a commit: any
    /// other result is valid only on a durable state.
    async fn decide_behind(
        &self,
        state: &SessionState,
        submission: &Submission<'_>,
    ) -> Option<Ready> {
        if is_missing(state, &submission.command.named()) {
            return None;
        }
        match self.decide(state, submission).await {
            Ok(Outcome::Commit(record)) => self.prepare(state, submission, record, true).ok(),
            _ => None,
        }
    }
}

//! The credential that a claim gives to a worker.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::hold::{HoldKind, HoldStatus};
use statehold_core::ids::RequestId;
use statehold_core::item::Role;
use statehold_store::StoredRecord;
use utoipa::ToSchema;

use crate::bodies::{ItemBody, message_in, parse, payload};
use crate::claim::ClaimedRequest;
use crate::guard::credentials::CredentialSource;

/// A credential. Only the answer to a claim contains it.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Credential)]
pub struct CredentialView {
    pub value: String,
    pub source: CredentialSource,
}

impl std::fmt::Debug for CredentialView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CredentialView({:?}, …)", self.source)
    }
}

impl CredentialView {
    /// The credential for a claim, and whether a given credential was lost. The agent's service credential
    /// replaces only a lost one: a caller who gave no credential must not act with the agent's rights.
    pub fn of_claim(claimed: &ClaimedRequest) -> (Option<Self>, bool) {
        if let Some((credential, source)) = &claimed.credential {
            let value = credential.expose().to_owned();
            let source = *source;
            return (Some(Self { value, source }), false);
        }
        let id = claimed.detail.request.live().map(|live| live.id);
        let started = claimed.detail.started.as_ref().zip(id);
        let was_given = started.is_some_and(|(stored, id)| had_credential(stored, id));
        let was_answered = claimed.detail.holds.iter().any(|detail| {
            let closed = detail.closed.as_ref();
            detail.hold.kind == HoldKind::Credential
                && closed.is_some_and(|closed| closed.decision.status == HoldStatus::Answered)
        });
        let is_lost = was_given || was_answered;
        let service = claimed.service_credential.as_ref().filter(|_| is_lost);
        let service = service.map(|credential| Self {
            value: credential.expose().to_owned(),
            source: CredentialSource::Service,
        });
        (service, is_lost)
    }
}

/// Whether a credential came with the input of a request.
fn had_credential(stored: &StoredRecord, id: RequestId) -> bool {
    let input = message_in(&stored.record.content.events, id, Role::User);
    let body = payload(stored, input.map(|item| item.body));
    parse::<ItemBody>(body).had_credential
}

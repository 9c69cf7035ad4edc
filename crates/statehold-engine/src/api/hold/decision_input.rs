//! Input of decisions.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::Deserialize;
use statehold_core::digest::Digest;
use statehold_core::hold::DecisionKind;
use statehold_core::ids::HoldId;
use utoipa::ToSchema;

use crate::api::json::Raw;
use crate::error::EngineError;

/// Declares the input of a decision: its own fields, and the fields that all decisions have.
macro_rules! decision_input {
    ($(#[$doc:meta])* $name:ident as $schema:ident { $($own:tt)* } $(=> $answer:ident)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        #[schema(as = $schema)]
        pub struct $name {
            $($own)*
            pub decision: DecisionKind,
            /// The digest of the action, as the hold shows it.
            #[schema(pattern = "^(sha256:)?[0-9a-f]{64}$")]
            pub digest: Option<String>,
            /// The edited arguments, for `edit`.
            #[schema(value_type = Option<serde_json::Value>)]
            pub args: Option<Raw>,
            /// The answer, for `respond`.
            #[schema(value_type = Option<serde_json::Value>)]
            pub content: Option<Raw>,
            pub comment: Option<String>,
            pub reason: Option<String>,
        }

        $(impl $name {
            /// The decision alone. Refuses a digest that is none.
            pub(crate) fn answer(self) -> Result<$answer, EngineError> {
                let answer = $answer {
                    decision: self.decision,
                    digest: self.digest,
                    args: self.args,
                    content: self.content,
                    comment: self.comment,
                    reason: self.reason,
                };
                answer.digest()?;
                Ok(answer)
            }
        })?
    };
}

decision_input! {
    /// A decision on a hold.
    DecisionInput as DecisionIn {}
}

decision_input! {
    /// A decision on the hold of a request.
    ResumeInput as ResumeIn {
        /// The hold, if the request had several.
        pub hold_id: Option<HoldId>,
    } => DecisionInput
}

decision_input! {
    /// A decision for one hold of the session, sent along with a message.
    TurnDecision as ChatDecision {
        pub hold_id: HoldId,
        /// The decision key.
        pub key: Option<String>,
    } => DecisionInput
}

impl DecisionInput {
    /// The digest of the action that the person saw.
    pub(crate) fn digest(&self) -> Result<Option<Digest>, EngineError> {
        let digest = self.digest.as_deref().map(|text| {
            let hex = text.strip_prefix("sha256:").unwrap_or(text);
            hex.parse()
                .map_err(|error| EngineError::invalid("digest", format!("`digest`: {error}")))
        });
        digest.transpose()
    }
}

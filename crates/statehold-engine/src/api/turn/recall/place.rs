//! References that clients carry to name a place in a session, and the note about the step by which the session
//! of a call was found.

use std::collections::BTreeMap;

use serde::Serialize;
use statehold_core::ids::{RequestId, SessionId};

use super::client_transcript::ClientTranscript;
use super::{Fit, REPEATS_MAX, Recall, RecalledSession, unless_gone};
use crate::api::json::{Raw, raw_bytes, to_body};
use crate::error::EngineError;
use crate::guard::rights::Act;

/// The member of the `data` of an input that says how its session was found.
const NOTE: &str = "found";

/// A place in a session: after the answer of a turn. The surface has sealed it for its subject, and opened it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionReference {
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub request: RequestId,
    /// The revision at which its answer was told.
    pub revision: u64,
}

/// The place in a session that a call names beside its messages.
#[derive(Debug, Clone, Copy, Default)]
pub enum CarriedPlace {
    /// Nothing.
    #[default]
    Nothing,
    /// A reference of this server to this subject.
    Reference {
        /// The reference.
        reference: SessionReference,
        /// Whether it came with the last answer of the conversation: nothing was said since.
        is_last: bool,
    },
    /// A reference that cannot be opened here: forged, foreign, cut, or sealed under a key that is lost.
    Unreadable,
    /// A reference past its expiry.
    Outdated,
    /// A reference to a session that takes no more turns, or that this subject cannot reach.
    Gone,
    /// The id of a session that has expired.
    Expired(SessionId),
}

/// The step by which the session of a call was found. Each is taken only if those before it fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::api::turn) enum SearchStep {
    /// The place of a valid reference.
    Reference,
    /// The session that the server knows by its messages.
    Session,
    /// The session that the server knows by an idempotency key.
    #[serde(rename = "session")]
    Key,
    /// A new session with the messages of the client as context.
    Messages,
    /// A new session with nothing before the message.
    Fresh,
}

impl SearchStep {
    /// The step of a call that begins a session.
    pub(in crate::api::turn) fn without_session(context: Option<&Raw>) -> Self {
        if context.is_some() {
            Self::Messages
        } else {
            Self::Fresh
        }
    }
}

/// How the session of a call was found, for the trace.
#[derive(Debug, Serialize)]
struct SearchNote {
    by: SearchStep,
    /// The validity of the reference that the call carried.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<&'static str>,
    /// The expired session that the call named.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<SessionId>,
}

impl CarriedPlace {
    /// The note for the trace. None for a call that carried nothing but messages.
    pub(in crate::api::turn) fn note(self, by: SearchStep) -> Option<Raw> {
        let reference = match self {
            Self::Nothing => return None,
            Self::Expired(_) => None,
            Self::Reference { .. } if by == SearchStep::Reference => Some("valid"),
            // The messages since then name the session better.
            Self::Reference { is_last: false, .. } if by == SearchStep::Session => {
                Some("not_needed")
            }
            Self::Reference { .. } if by == SearchStep::Key => Some("not_needed"),
            Self::Reference { .. } | Self::Gone => Some("gone"),
            Self::Unreadable => Some("unreadable"),
            Self::Outdated => Some("expired"),
        };
        let replaced = match self {
            Self::Expired(session) => Some(session),
            _ => None,
        };
        let note = SearchNote {
            by,
            reference,
            replaced,
        };
        Some(raw_bytes(&to_body(&note)))
    }
}

/// The `data` of an input, with a note about how its session was found.
pub(in crate::api::turn) fn with_note(data: Option<Raw>, note: Option<Raw>) -> Option<Raw> {
    let note = note.map(|note| raw_bytes(&to_body(&BTreeMap::from([(NOTE, note)]))));
    with_members(data, note)
}

/// An object with the members of two. The second one counts where both have a member.
pub(in crate::api::turn) fn with_members(one: Option<Raw>, other: Option<Raw>) -> Option<Raw> {
    let (one, other) = match (one, other) {
        (Some(one), Some(other)) => (one, other),
        (one, other) => return one.or(other),
    };
    let members = serde_json::from_str(one.get());
    let mut members: BTreeMap<String, Raw> = members.unwrap_or_default();
    let more: BTreeMap<String, Raw> = serde_json::from_str(other.get()).unwrap_or_default();
    members.extend(more);
    Some(raw_bytes(&to_body(&members)))
}

impl Recall<'_> {
    /// The place of a reference: its session, if nothing was said there since; the session, or a fork of it, that
    /// has received this message and owes the answer; otherwise a fork as the session was then. None if the caller
    /// cannot reach the session, or its turn is no longer there.
    pub(super) async fn find_referred(
        &self,
        reference: &SessionReference,
    ) -> Result<Option<RecalledSession>, EngineError> {
        unless_gone(self.referred(reference).await)
    }

    async fn referred(
        &self,
        reference: &SessionReference,
    ) -> Result<Option<RecalledSession>, EngineError> {
        let session = reference.session;
        let authorised = self.engine.authorise(self.caller, session, &Act::Start);
        let owner = authorised.await?;
        let state = self.engine.durable_state(session).await?;
        let is_own = owner.user == self.owner.user && owner.app == self.owner.app;
        let is_over = state.closed || state.is_expired(self.engine.now());
        // A restored backup may be older than the reference.
        if !is_own || is_over || state.revision < reference.revision {
            return Ok(None);
        }
        let mut bytes = 0;
        let first = ClientTranscript::new(self, session)
            .first_attempt(reference.request)
            .await?;
        let Some((mut transcript, turn)) = self.transcript(session, first, 0, &mut bytes).await?
        else {
            return Ok(None);
        };
        let last = transcript.turns[turn].last;
        let ended = transcript.detail(last).await?.request.ended();
        let is_answered = ended.is_some_and(|ended| ended.ended_by <= reference.revision);
        let fit = match transcript.fit_after(turn, reference.revision).await? {
            // The reference came with the end of the answer, so the client has all of it.
            Fit::Head { unheard, .. } => Fit::Head {
                answered: is_answered.then_some(last),
                unheard,
            },
            Fit::Past(revision) => {
                if let Some(repeated) = self.repeated_after(first, &mut bytes).await? {
                    return Ok(Some(RecalledSession::Known(repeated)));
                }
                Fit::Past(revision)
            }
        };
        Ok(Some(self.place_of(session, fit)))
    }

    /// The session in which the same message was said after a turn, if the client waits for the answer.
    async fn repeated_after(
        &self,
        before: RequestId,
        bytes: &mut usize,
    ) -> Result<Option<SessionId>, EngineError> {
        let repeated = self.requests_with(&self.conversation.message).await?;
        for (session, request) in repeated.into_iter().take(REPEATS_MAX) {
            let is_repeat = self.repeats_after(before, (session, request), bytes);
            if unless_gone(is_repeat.await.map(Some))? == Some(true) {
                return Ok(Some(session));
            }
        }
        Ok(None)
    }

    async fn repeats_after(
        &self,
        before: RequestId,
        (session, request): (SessionId, RequestId),
        bytes: &mut usize,
    ) -> Result<bool, EngineError> {
        // Turns that failed may lie in between.
        let transcript = self.transcript(session, request, REPEATS_MAX, bytes);
        let Some((mut transcript, turn)) = transcript.await? else {
            return Ok(false);
        };
        for earlier in (0..turn).rev() {
            if transcript.turns[earlier].request == before {
                return self.awaits_answer(&mut transcript, turn, true).await;
            }
            if !transcript.has_failed(earlier).await? {
                break;
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn note(place: CarriedPlace, by: SearchStep) -> serde_json::Value {
        let note = place.note(by).expect("a note");
        serde_json::from_str(note.get()).expect("JSON")
    }

    #[test]
    fn the_note_says_which_step_was_taken_and_why() {
        let session = SessionId::from_uuid(Uuid::from_u128(1));
        let reference = SessionReference {
            session,
            request: RequestId::from_uuid(Uuid::from_u128(2)),
            revision: 3,
        };
        let valid = CarriedPlace::Reference {
            reference,
            is_last: true,
        };
        let older = CarriedPlace::Reference {
            reference,
            is_last: false,
        };
        let expected = [
            (
                older,
                SearchStep::Session,
                json!({"by": "session", "reference": "not_needed"}),
            ),
            (
                valid,
                SearchStep::Key,
                json!({"by": "session", "reference": "not_needed"}),
            ),
            (
                valid,
                SearchStep::Reference,
                json!({"by": "reference", "reference": "valid"}),
            ),
            (
                valid,
                SearchStep::Session,
                json!({"by": "session", "reference": "gone"}),
            ),
            (
                valid,
                SearchStep::Messages,
                json!({"by": "messages", "reference": "gone"}),
            ),
            (
                CarriedPlace::Unreadable,
                SearchStep::Session,
                json!({"by": "session", "reference": "unreadable"}),
            ),
            (
                CarriedPlace::Outdated,
                SearchStep::Messages,
                json!({"by": "messages", "reference": "expired"}),
            ),
            (
                CarriedPlace::Gone,
                SearchStep::Fresh,
                json!({"by": "fresh", "reference": "gone"}),
            ),
            (
                CarriedPlace::Expired(session),
                SearchStep::Fresh,
                json!({"by": "fresh", "replaced": session.to_string()}),
            ),
        ];
        for (place, by, told) in expected {
            assert_eq!(note(place, by), told);
        }
        assert!(CarriedPlace::Nothing.note(SearchStep::Fresh).is_none());
    }

    #[test]
    fn a_note_stands_beside_the_data_of_the_input() {
        let data = || Some(raw_bytes(br#"{"history":[1.50]}"#));
        let note = || Some(raw_bytes(br#"{"by":"messages"}"#));
        let text = |data: Option<Raw>| data.map(|data| data.get().to_owned());
        assert_eq!(
            text(with_note(data(), None)).as_deref(),
            Some(r#"{"history":[1.50]}"#)
        );
        let both = r#"{"found":{"by":"messages"},"history":[1.50]}"#;
        assert_eq!(text(with_note(data(), note())).as_deref(), Some(both));
        assert_eq!(
            text(with_note(None, note())).as_deref(),
            Some(r#"{"found":{"by":"messages"}}"#)
        );
    }
}

//! Deciding a hold: the checks that every surface makes before the core decides.
//!
//! Answers are checked against the schema stored when the hold was opened, so a decision means the same
//! on every surface and at any time.

use serde::Deserialize;
use serde_json::Value;
use statehold_core::command::{Command, Rejection};
use statehold_core::digest::{Digest, action_digest};
use statehold_core::hold::{DecisionKind, HoldKind, NewDecision};
use statehold_core::ids::HoldId;

use crate::api::hold::DecisionReceipt;
use crate::ask::{parse_args, raw};
use crate::commit::call::{Call, Committed, Receipt};
use crate::commit::idempotency::IdempotencyKey;
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::{CREDENTIAL_BYTES_MAX, Credential};
use crate::guard::redact::{BY_PATH, HIDDEN, Preview, preview};
use crate::guard::schema::{FieldError, Schema};
use crate::holds::HoldDetail;
use crate::kept::{ActionBody, DecisionBody, HoldBody, Raw, Redaction, Sealed, parse, to_bytes};

const COMMENT_BYTES_MAX: usize = 16 * 1024;

/// A person's decision about a hold.
#[derive(Debug, Clone)]
pub struct NewAnswer {
    /// The kind of decision.
    pub kind: DecisionKind,
    /// The digest of the action that the person saw.
    pub digest: Option<Digest>,
    /// Edited arguments, for `edit`.
    pub args: Option<Raw>,
    /// The answer, for `respond`.
    pub content: Option<Raw>,
    /// A comment in the person's words.
    pub comment: Option<String>,
    /// The id of one of the offered reasons.
    pub reason: Option<String>,
}

/// Edited arguments, with their digest and preview.
struct EditedArgs {
    digest: Digest,
    preview: Raw,
    redactions: Vec<Redaction>,
    sealed: Option<Sealed>,
}

impl Engine {
    /// Decides a hold. A hold is decided once. A retry with the same key gets the same answer; without a
    /// key, the same decision by the same person counts as a retry.
    ///
    /// # Errors
    ///
    /// If the caller lacks the right, the hold was decided differently, or the decision is invalid.
    pub async fn decide_hold(
        &self,
        call: &Call,
        key: Option<&str>,
        detail: &HoldDetail,
        answer: NewAnswer,
    ) -> Result<Receipt<DecisionReceipt>, EngineError> {
        let (session, id) = (detail.session.id, detail.hold.id);
        let is_credential = detail.hold.kind == HoldKind::Credential;
        let body: HoldBody = parse(detail.body.as_deref());
        require_decider(detail)?;
        require_fields(&answer)?;
        let is_open = detail.closed.is_none();
        if is_open {
            self.require_sound(detail, &body, &answer).await?;
        }
        let edited = match (&answer.args, &body.action) {
            (Some(args), Some(action)) if is_open => {
                match self.edited(detail, action, args).await {
                    // Another decision was faster and its action has ended, with the sealed arguments: the
                    // core refuses this one as decided.
                    Err(EngineError::InvalidArgs(_))
                        if self.inner().store.closed_hold(id).await?.is_some() =>
                    {
                        Some(edited_digest(id, &action.tool, args)?)
                    }
                    edited => Some(edited?),
                }
            }
            (Some(args), Some(action)) => Some(edited_digest(id, &action.tool, args)?),
            (Some(_), None) => return Err(Rejection::EditImpossible.into()),
            (None, _) => None,
        };
        let named = decision_key(call, key, id, is_credential, &answer);
        let edited_digest = edited.as_ref().map(|edited| edited.digest);
        let (words, credential) = kept_words(is_credential, answer.clone(), edited);
        // A decision key belongs to its hold and outlives every idempotency key.
        let call = Call {
            key: None,
            ..call.clone()
        };
        let owner = &detail.session.owner;
        let mut write = SessionWrite::of_owner(self, &call, session, owner).await?;
        let words = to_bytes(&words);
        let decision = NewDecision {
            key: named.key,
            fingerprint: named.fingerprint,
            kind: answer.kind,
            digest: answer.digest,
            edited: edited_digest,
            body: (words != b"{}").then(|| write.payloads.put(words)),
        };
        let command = Command::DecideHold { hold: id, decision };
        let credential = credential.and_then(Credential::new);
        write.credential = credential.as_ref();
        // If the core refuses an edit, the key made for its arguments is destroyed when the action ends.
        let view = |made: &Committed<'_>| DecisionReceipt::of_commit(made, id);
        write.commit(&command, view).await
    }

    /// Validates a decision about an open hold.
    async fn require_sound(
        &self,
        detail: &HoldDetail,
        body: &HoldBody,
        answer: &NewAnswer,
    ) -> Result<(), EngineError> {
        if !detail.hold.allowed.contains(&answer.kind) {
            let (decision, allowed) = (answer.kind, detail.hold.allowed.clone());
            return Err(Rejection::DecisionNotOffered { decision, allowed }.into());
        }
        if let Some(reason) = &answer.reason {
            let offered = body.reasons.as_deref().unwrap_or_default();
            if !offered.iter().any(|known| known.id == *reason) {
                return Err(EngineError::InvalidField {
                    path: "reason",
                    what: "it is the id of one of the hold's `reasons`".to_owned(),
                });
            }
        }
        let comment = answer.comment.as_deref().unwrap_or_default().trim();
        match answer.kind {
            DecisionKind::Reject if body.comment_required && comment.is_empty() => {
                Err(EngineError::CommentNeeded)
            }
            DecisionKind::Respond => self.require_content(detail.hold.kind, body, answer).await,
            _ => Ok(()),
        }
    }

    /// Validates the content of an answer against the kind of the hold and its schema.
    async fn require_content(
        &self,
        kind: HoldKind,
        body: &HoldBody,
        answer: &NewAnswer,
    ) -> Result<(), EngineError> {
        let wrong = |what: &str| Err(EngineError::InvalidContent(vec![FieldError::new("", what)]));
        let content = match &answer.content {
            Some(content) => Some(parse_args(content, "content")?),
            None => None,
        };
        match (kind, content, &body.response_schema) {
            (HoldKind::Credential, Some(Value::String(value)), _) => {
                if (1..=CREDENTIAL_BYTES_MAX).contains(&value.len()) {
                    Ok(())
                } else {
                    wrong("a credential is a text of 1 to 8192 bytes")
                }
            }
            (HoldKind::Credential, Some(_), _) => wrong("a credential is a text"),
            (HoldKind::Reconcile, content, _) => {
                match content.map(serde_json::from_value::<RanAnswer>) {
                    Some(Ok(_)) => Ok(()),
                    _ => wrong("it is {\"outcome\": \"ran\", \"result\"?: …}"),
                }
            }
            (_, Some(content), Some(schema)) => {
                let schema = schema.clone();
                let errors = move || {
                    let schema = Schema::new(schema.get()).map_err(|error| vec![error])?;
                    let errors = schema.errors(&content);
                    if errors.is_empty() {
                        Ok(())
                    } else {
                        Err(errors)
                    }
                };
                let checked = tokio::task::spawn_blocking(errors).await;
                let checked = checked.map_err(|_| EngineError::Stopping)?;
                checked.map_err(EngineError::InvalidContent)
            }
            (HoldKind::Question, Some(content), None) if !content.is_string() => {
                wrong("an answer to this question is a text")
            }
            (HoldKind::Form | HoldKind::Credential, None, _) | (_, None, Some(_)) => {
                Err(Rejection::AnswerMissing.into())
            }
            _ => Ok(()),
        }
    }

    /// Validates edited arguments against the tool's schema and redacts them by its policy.
    async fn edited(
        &self,
        detail: &HoldDetail,
        action: &ActionBody,
        args: &Raw,
    ) -> Result<EditedArgs, EngineError> {
        let id = detail.hold.id;
        let mut value = parse_args(args, "args")?;
        let is_whole = action.redactions.is_empty();
        let seen = value.clone();
        let kept = if is_whole {
            Vec::new()
        } else {
            self.restore_redacted(action, &mut value)?
        };
        if let Some(schema) = action.args_schema.clone() {
            let instance = value.clone();
            let errors = move || match Schema::new(schema.get()) {
                Ok(schema) if is_whole => schema.errors(&instance),
                // Report only paths: error texts could reveal redacted values.
                Ok(schema) => schema.places(&instance, &seen),
                Err(error) => vec![error],
            };
            let errors = tokio::task::spawn_blocking(errors).await;
            let errors = errors.map_err(|_| EngineError::Stopping)?;
            if !errors.is_empty() {
                return Err(EngineError::InvalidArgs(errors));
            }
        }
        let digest = exact_digest(id, &action.tool, &value)?;
        let policy = self.policies().of(&detail.agent, &action.tool);
        let mut preview = preview(&value, &policy.rules());
        for (hidden, shown) in kept {
            preview.hide(hidden, shown);
        }
        let Preview {
            value: shown,
            redactions,
        } = preview;
        let whole = if is_whole { args.clone() } else { raw(&value) };
        let (preview, sealed) = if redactions.is_empty() {
            (whole, None)
        } else {
            let request = detail.hold.request;
            if let Some(call) = detail.hold.call {
                self.inner().sealed_calls.learn(id, call);
            }
            let sealed = self.seal(id, request, &action.tool, whole.get()).await?;
            (raw(&shown), Some(sealed))
        };
        Ok(EditedArgs {
            digest,
            preview,
            redactions,
            sealed,
        })
    }

    /// Redacted fields left unchanged keep their value. Returns the fields that stay redacted even if
    /// the policy has changed, each with its placeholder.
    fn restore_redacted(
        &self,
        action: &ActionBody,
        edited: &mut Value,
    ) -> Result<Vec<(Redaction, Value)>, EngineError> {
        let wrong = |path: &str, what: &str| {
            Err(EngineError::InvalidArgs(vec![FieldError::new(path, what)]))
        };
        let sealed = action.sealed.as_ref();
        let original = sealed.and_then(|sealed| self.unseal(&action.tool, sealed));
        let original: Option<Value> =
            original.and_then(|args| serde_json::from_str(args.get()).ok());
        let shown: Value = serde_json::from_str(action.args.get()).unwrap_or_default();
        let mut kept = Vec::new();
        for hidden in &action.redactions {
            let path = hidden.path.as_str();
            let (Some(place), Some(was)) = (edited.pointer_mut(path), shown.pointer(path)) else {
                continue;
            };
            if place != was {
                // Path rules also redact the replacement value.
                if hidden.rule == BY_PATH {
                    kept.push((hidden.clone(), was.clone()));
                }
                continue;
            }
            match original.as_ref().and_then(|args| args.pointer(path)) {
                Some(value) => *place = value.clone(),
                None => return wrong(path, "the hidden value is lost; give another"),
            }
            kept.push((hidden.clone(), was.clone()));
        }
        match find_hidden(edited, String::new()) {
            Some(path) => wrong(&path, "a hidden value can only stay where it was"),
            None => Ok(kept),
        }
    }
}

/// Fails unless the caller may decide the hold, with its roles. Asked before the decision is validated:
/// validation errors reveal the action. The core answers decisions of decided holds.
pub(crate) fn require_decider(detail: &HoldDetail) -> Result<(), EngineError> {
    match &detail.why_not {
        Some(why) if detail.closed.is_none() => {
            let why = why.clone();
            Err(Rejection::MayNotDecide { why }.into())
        }
        _ => Ok(()),
    }
}

/// A person's answer that the action did run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RanAnswer {
    #[expect(dead_code, reason = "only its shape matters here")]
    outcome: RanOutcome,
    #[expect(dead_code, reason = "only its shape matters here")]
    result: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RanOutcome {
    Ran,
}

/// The path of a placeholder for a redacted value.
fn find_hidden(value: &Value, path: String) -> Option<String> {
    match value {
        Value::String(text) => text.contains(HIDDEN).then_some(path),
        Value::Array(values) => {
            let mut numbered = values.iter().enumerate();
            numbered.find_map(|(index, value)| find_hidden(value, format!("{path}/{index}")))
        }
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let step = name.replace('~', "~0").replace('/', "~1");
            let path = format!("{path}/{step}");
            if name.contains(HIDDEN) {
                return Some(path);
            }
            find_hidden(value, path)
        }),
        _ => None,
    }
}

/// Validates the fields that do not depend on the hold.
fn require_fields(answer: &NewAnswer) -> Result<(), EngineError> {
    let wrong = |path: &'static str, what: &str| {
        Err(EngineError::InvalidField {
            path,
            what: what.to_owned(),
        })
    };
    if answer.args.is_some() && answer.kind != DecisionKind::Edit {
        return wrong("args", "it goes with `edit`");
    }
    if answer.content.is_some() && answer.kind != DecisionKind::Respond {
        return wrong("content", "it goes with `respond`");
    }
    let comment = answer.comment.as_deref().unwrap_or_default();
    if comment.len() > COMMENT_BYTES_MAX {
        return wrong("comment", "it has at most 16384 bytes");
    }
    Ok(())
}

/// The idempotency key of a decision. A credential is part of neither digest: a reader of the log could
/// otherwise guess its value and compare.
fn decision_key(
    call: &Call,
    key: Option<&str>,
    hold: HoldId,
    is_credential: bool,
    answer: &NewAnswer,
) -> IdempotencyKey {
    let words = DecisionBody {
        args: answer.args.clone(),
        content: answer.content.clone().filter(|_| !is_credential),
        given: is_credential && answer.content.is_some(),
        comment: answer.comment.clone(),
        reason: answer.reason.clone(),
        ..DecisionBody::default()
    };
    let shown = answer.digest.map(|digest| digest.to_string());
    let parts = [
        hold.to_string().into_bytes(),
        format!("{:?}", answer.kind).into_bytes(),
        shown.unwrap_or_default().into_bytes(),
        to_bytes(&words),
    ];
    let key = key.map_or_else(
        || format!("decision {}", Digest::sha256(&parts.concat())),
        str::to_owned,
    );
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let caller = &call.caller;
    IdempotencyKey::new(&caller.tenant, caller.principal, &key, &parts)
}

/// Splits an answer into its stored body and the credential, which is never stored.
fn kept_words(
    is_credential: bool,
    answer: NewAnswer,
    edited: Option<EditedArgs>,
) -> (DecisionBody, Option<String>) {
    let mut words = DecisionBody {
        comment: answer.comment,
        reason: answer.reason,
        ..DecisionBody::default()
    };
    if let Some(edited) = edited {
        words.args = Some(edited.preview);
        words.redactions = edited.redactions;
        words.sealed = edited.sealed;
    }
    if is_credential {
        words.given = answer.content.is_some();
        let content = answer.content;
        let value = content.and_then(|content| serde_json::from_str(content.get()).ok());
        return (words, value);
    }
    words.content = answer.content;
    (words, None)
}

fn exact_digest(hold: HoldId, tool: &str, args: &Value) -> Result<Digest, EngineError> {
    action_digest(hold, tool, args).map_err(|error| EngineError::InvalidField {
        path: "args",
        what: error.to_string(),
    })
}

/// The digest only: the hold is already decided, so nothing is sealed or stored.
fn edited_digest(hold: HoldId, tool: &str, args: &Raw) -> Result<EditedArgs, EngineError> {
    let value = parse_args(args, "args")?;
    Ok(EditedArgs {
        digest: exact_digest(hold, tool, &value)?,
        preview: args.clone(),
        redactions: Vec::new(),
        sealed: None,
    })
}

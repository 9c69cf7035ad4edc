//! Deciding a hold: the checks that every surface makes before the core decides.
//!
//! Answers are checked against the schema stored when the hold was opened, so a decision means the same
//! on every surface and at any time.

use serde::Deserialize;
use serde_json::Value;
use statehold_core::command::{Command, Rejection};
use statehold_core::digest::Digest;
use statehold_core::hold::{DecisionKind, HoldKind, NewDecision, WhyNot};
use statehold_core::ids::{HoldId, RequestId};
use statehold_store::HoldSummary;

use super::edited::{EditedArgs, edited};
use super::{DecisionInput, DecisionReceipt, HoldRef, HoldView, ResumeInput};
use crate::answer_memory::AnswerMemory;
use crate::bodies::{DecisionBody, HoldBody, parse, to_bytes};
use crate::caller::Caller;
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::idempotency::IdempotencyKey;
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::{CREDENTIAL_BYTES_MAX, Credential};
use crate::guard::rights::require_decider_role;
use crate::guard::schema::{FieldError, Schema};
use crate::holds::{HoldDetail, Reach, fitting_holds};
use crate::open_hold::parse_args;

const COMMENT_BYTES_MAX: usize = 16 * 1024;

/// Decides a hold. A hold gets exactly one decision.
///
/// # Errors
///
/// If the caller may not, the decision is malformed, or the hold is already decided.
pub async fn decide(
    engine: &Engine,
    call: &Call,
    key: Option<&str>,
    hold: HoldId,
    input: DecisionInput,
    memory: &dyn AnswerMemory,
) -> Result<Receipt<DecisionReceipt>, EngineError> {
    require_decider_role(&call.caller)?;
    let detail = engine.hold_in(memory, &call.caller, hold).await?;
    decide_shown(engine, call, key, &detail, input).await
}

/// Decides the only hold of a request, or the one that the input names.
///
/// # Errors
///
/// As [`decide`], and if the request had several and none is named.
pub async fn resume(
    engine: &Engine,
    call: &Call,
    key: Option<&str>,
    request: RequestId,
    input: ResumeInput,
    memory: &dyn AnswerMemory,
) -> Result<Receipt<DecisionReceipt>, EngineError> {
    require_decider_role(&call.caller)?;
    engine.session_of_request(request).await?;
    let visible = engine.held_by(&call.caller, request).await?;
    if visible.is_empty() {
        // Authorise before validating: a request of another caller answers like a missing one.
        return Err(EngineError::NotFound);
    }
    if let [only] = visible.as_slice() {
        let why_not = Reach::of(&call.caller, only).why_not;
        require_decider(why_not.as_ref(), only.decision.is_some())?;
    }
    let named = input
        .hold_id
        .or_else(|| decided_under(call, key?, &visible));
    let answer = input.answer()?;
    let digest = answer.digest()?;
    let is_meant = |row: &&HoldSummary| match (named, digest) {
        (Some(named), _) => row.hold.id == named,
        (None, Some(digest)) if visible.len() > 1 => row.hold.digest == Some(digest),
        (None, _) => true,
    };
    let mut meant = visible.iter().filter(is_meant);
    match (meant.next(), meant.next()) {
        (Some(one), None) => {
            let detail = engine.hold_in(memory, &call.caller, one.hold.id).await?;
            decide_shown(engine, call, key, &detail, answer).await
        }
        (None, _) => Err(EngineError::NotFound),
        (Some(_), Some(_)) => {
            let (rows, _) = fitting_holds(visible);
            let holds = engine.hold_details(&call.caller, rows).await?;
            let holds = holds.iter().map(HoldRef::of).collect();
            Err(EngineError::SeveralHolds { holds })
        }
    }
}

/// The hold that the caller decided under this decision key: a repeat means that one, whatever has been opened
/// since.
fn decided_under(call: &Call, key: &str, holds: &[HoldSummary]) -> Option<HoldId> {
    let Caller {
        tenant, principal, ..
    } = &call.caller;
    let key = IdempotencyKey::new(tenant, *principal, key, &[]).key;
    let is_under = |row: &&HoldSummary| {
        let decision = row.decision.map(|(decision, _)| decision);
        decision.and_then(|decision| decision.key) == Some(key)
    };
    holds.iter().find(is_under).map(|row| row.hold.id)
}

/// Decides a hold that the caller has just read. A hold is decided once: a repeat with the same key gets the
/// same answer, and without a key the same decision by the same person counts as a repeat. If it is already
/// decided, the error contains the decision, as far as the caller may see it.
///
/// # Errors
///
/// As [`decide`].
pub async fn decide_shown(
    engine: &Engine,
    call: &Call,
    key: Option<&str>,
    detail: &HoldDetail,
    answer: DecisionInput,
) -> Result<Receipt<DecisionReceipt>, EngineError> {
    decide_resuming(engine, (call, None), key, detail, answer).await
}

/// The same, with a credential of the caller for the work that goes on.
///
/// # Errors
///
/// As [`decide`].
pub(crate) async fn decide_resuming(
    engine: &Engine,
    (call, resumed_with): (&Call, Option<&Credential>),
    key: Option<&str>,
    detail: &HoldDetail,
    answer: DecisionInput,
) -> Result<Receipt<DecisionReceipt>, EngineError> {
    require_decider(detail.why_not.as_ref(), detail.closed.is_some())?;
    let shown = answer.digest()?;
    require_fields(&answer)?;
    let id = detail.hold.id;
    let body: HoldBody = parse(detail.body.as_deref());
    if detail.closed.is_none() {
        require_sound(detail, &body, &answer).await?;
    }
    let edited = match (&answer.args, &body.action) {
        (Some(args), Some(action)) => Some(edited(engine, detail, action, args).await?),
        (Some(_), None) => return Err(Rejection::EditImpossible.into()),
        (None, _) => None,
    };
    // A decision key belongs to its hold and outlives every idempotency key.
    let decision_key = decision_key(call, key, detail, &answer, shown);
    let call = Call {
        key: None,
        ..call.clone()
    };
    let owner = &detail.session.owner;
    let mut write = SessionWrite::of_owner(engine, &call, detail.session.id, owner).await?;
    write
        .payloads
        .redact_by(engine.redaction_for(&detail.agent));
    let mut decision = NewDecision {
        key: decision_key.key,
        fingerprint: decision_key.fingerprint,
        kind: answer.decision,
        digest: shown,
        edited: edited.as_ref().map(|edited| edited.digest),
        body: None,
    };
    let (words, credential) = kept_words(detail.hold.kind, answer, edited);
    let words = to_bytes(&words);
    decision.body = (words != b"{}").then(|| write.payloads.put_decision(words));
    write.credential = credential.as_ref();
    write.resumed_with = resumed_with.filter(|_| credential.is_none());
    let command = Command::DecideHold { hold: id, decision };
    // If the core refuses an edit, the key made for its arguments is destroyed when the action ends.
    let by = engine.principal_name(&call.caller).await?;
    let view = |made: &DecidedCommit<'_>| DecisionReceipt::of_commit(made, id, &by);
    match write.commit(&command, view).await {
        Err(EngineError::Rejected(
            rejection @ (Rejection::HoldDecided { .. } | Rejection::HoldExpired { .. }),
        )) => {
            let now = engine.hold(&call.caller, id).await.ok();
            let decision = now.and_then(|now| HoldView::of(&now).decision);
            Err(EngineError::DecidedBefore {
                rejection,
                decision: decision.map(Box::new),
            })
        }
        other => other,
    }
}

/// Fails unless the caller may decide the hold, with its roles. Asked before the decision is validated:
/// validation errors reveal the action. The core answers decisions of decided holds.
pub(crate) fn require_decider(
    why_not: Option<&WhyNot>,
    is_decided: bool,
) -> Result<(), EngineError> {
    match why_not {
        Some(why) if !is_decided => {
            let why = why.clone();
            Err(Rejection::MayNotDecide { why }.into())
        }
        _ => Ok(()),
    }
}

/// Validates the fields that do not depend on the hold.
fn require_fields(answer: &DecisionInput) -> Result<(), EngineError> {
    let wrong = |path: &'static str, what: &str| {
        Err(EngineError::InvalidField {
            path,
            what: what.to_owned(),
        })
    };
    if answer.args.is_some() && answer.decision != DecisionKind::Edit {
        return wrong("args", "it goes with `edit`");
    }
    if answer.content.is_some() && answer.decision != DecisionKind::Respond {
        return wrong("content", "it goes with `respond`");
    }
    let comment = answer.comment.as_deref().unwrap_or_default();
    if comment.len() > COMMENT_BYTES_MAX {
        return wrong("comment", "it has at most 16384 bytes");
    }
    Ok(())
}

/// Validates a decision about an open hold.
async fn require_sound(
    detail: &HoldDetail,
    body: &HoldBody,
    answer: &DecisionInput,
) -> Result<(), EngineError> {
    if !detail.hold.allowed.contains(&answer.decision) {
        let (decision, allowed) = (answer.decision, detail.hold.allowed.clone());
        return Err(Rejection::DecisionNotOffered { decision, allowed }.into());
    }
    if let Some(reason) = &answer.reason {
        let offered = body.reasons.as_deref().unwrap_or_default();
        if !offered.iter().any(|known| known.id == *reason) {
            return Err(EngineError::InvalidField {
                path: "reason",
                what: match offered {
                    [] => "this hold offers no reasons; send a `comment` instead".to_owned(),
                    _ => "it is the id of one of the hold's `reasons`".to_owned(),
                },
            });
        }
    }
    let comment = answer.comment.as_deref().unwrap_or_default().trim();
    match answer.decision {
        DecisionKind::Reject if body.comment_required && comment.is_empty() => {
            Err(EngineError::CommentNeeded)
        }
        DecisionKind::Respond => require_content(detail.hold.kind, body, answer).await,
        _ => Ok(()),
    }
}

/// Validates the content of an answer against the kind of the hold and its schema.
async fn require_content(
    kind: HoldKind,
    body: &HoldBody,
    answer: &DecisionInput,
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

/// The idempotency key of a decision. A credential is part of neither digest: a reader of the log could
/// otherwise guess its value and compare.
fn decision_key(
    call: &Call,
    key: Option<&str>,
    detail: &HoldDetail,
    answer: &DecisionInput,
    shown: Option<Digest>,
) -> IdempotencyKey {
    let is_credential = detail.hold.kind == HoldKind::Credential;
    let words = DecisionBody {
        args: answer.args.clone(),
        content: answer.content.clone().filter(|_| !is_credential),
        given: is_credential && answer.content.is_some(),
        comment: answer.comment.clone(),
        reason: answer.reason.clone(),
        ..DecisionBody::default()
    };
    let shown = shown.map(|digest| digest.to_string());
    let parts = [
        detail.hold.id.to_string().into_bytes(),
        format!("{:?}", answer.decision).into_bytes(),
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
    kind: HoldKind,
    answer: DecisionInput,
    edited: Option<EditedArgs>,
) -> (DecisionBody, Option<Credential>) {
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
    if kind == HoldKind::Credential {
        words.given = answer.content.is_some();
        let content = answer.content;
        let value = content.and_then(|content| serde_json::from_str(content.get()).ok());
        return (words, value.and_then(Credential::new));
    }
    words.content = answer.content;
    (words, None)
}

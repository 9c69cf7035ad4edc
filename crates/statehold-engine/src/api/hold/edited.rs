//! Edited arguments of an action, as a decision carries them.

use serde_json::Value;
use statehold_core::digest::{Digest, action_digest};
use statehold_core::ids::HoldId;

use crate::bodies::{ActionBody, Raw, Redaction, Sealed};
use crate::engine::Engine;
use crate::error::EngineError;
use statehold_core::redact::PLACEHOLDER_BEGIN;

use crate::guard::redact::{BY_PATH, Preview, preview};
use crate::guard::schema::{FieldError, Schema};
use crate::holds::HoldDetail;
use crate::open_hold::{parse_args, raw};

/// Edited arguments, with their digest and preview.
pub(super) struct EditedArgs {
    pub(super) digest: Digest,
    pub(super) preview: Raw,
    pub(super) redactions: Vec<Redaction>,
    pub(super) sealed: Option<Sealed>,
}

/// The edited arguments of a decision. Those of a decided hold get their digest only: nothing is sealed or
/// stored.
pub(super) async fn edited(
    engine: &Engine,
    detail: &HoldDetail,
    action: &ActionBody,
    args: &Raw,
) -> Result<EditedArgs, EngineError> {
    let id = detail.hold.id;
    if detail.closed.is_some() {
        return digest_only(id, &action.tool, args);
    }
    match sealed_edit(engine, detail, action, args).await {
        // Another decision was faster and its action has ended, with the sealed arguments: the core refuses
        // this one as decided.
        Err(EngineError::InvalidArgs(_))
            if engine.inner().store.closed_hold(id).await?.is_some() =>
        {
            digest_only(id, &action.tool, args)
        }
        edited => edited,
    }
}

/// Validates edited arguments against the tool's schema and redacts them by its policy.
async fn sealed_edit(
    engine: &Engine,
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
        restore_redacted(engine, action, &mut value)?
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
    let policies = engine.policies();
    let policy = policies.of(&detail.agent, &action.tool);
    let mut preview = preview(&value, &policy.rules(), &policies.redaction.redactor);
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
            engine.inner().sealed_calls.learn(id, call);
        }
        let sealed = engine.seal(id, request, &action.tool, whole.get()).await?;
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
    engine: &Engine,
    action: &ActionBody,
    edited: &mut Value,
) -> Result<Vec<(Redaction, Value)>, EngineError> {
    let wrong =
        |path: &str, what: &str| Err(EngineError::InvalidArgs(vec![FieldError::new(path, what)]));
    let sealed = action.sealed.as_ref();
    let original = sealed.and_then(|sealed| engine.unseal(&action.tool, sealed));
    let original: Option<Value> = original.and_then(|args| serde_json::from_str(args.get()).ok());
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

/// The path of a placeholder for a redacted value.
fn find_hidden(value: &Value, path: String) -> Option<String> {
    match value {
        Value::String(text) => text.contains(PLACEHOLDER_BEGIN).then_some(path),
        Value::Array(values) => {
            let mut numbered = values.iter().enumerate();
            numbered.find_map(|(index, value)| find_hidden(value, format!("{path}/{index}")))
        }
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let step = name.replace('~', "~0").replace('/', "~1");
            let path = format!("{path}/{step}");
            if name.contains(PLACEHOLDER_BEGIN) {
                return Some(path);
            }
            find_hidden(value, path)
        }),
        _ => None,
    }
}

fn exact_digest(hold: HoldId, tool: &str, args: &Value) -> Result<Digest, EngineError> {
    action_digest(hold, tool, args).map_err(|error| EngineError::InvalidField {
        path: "args",
        what: error.to_string(),
    })
}

fn digest_only(hold: HoldId, tool: &str, args: &Raw) -> Result<EditedArgs, EngineError> {
    let value = parse_args(args, "args")?;
    Ok(EditedArgs {
        digest: exact_digest(hold, tool, &value)?,
        preview: args.clone(),
        redactions: Vec::new(),
        sealed: None,
    })
}

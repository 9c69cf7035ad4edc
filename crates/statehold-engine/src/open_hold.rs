//! Opening a hold: the steps shared by every surface and every built-in agent.
//!
//! This module applies the tool's policy, seals the arguments, makes their preview, and binds the
//! pending call to the digest that people approve.

use std::collections::BTreeSet;

use serde_json::Value;
use serde_json::value::RawValue;
use statehold_core::command::{Command, Fenced, Rejection};
use statehold_core::digest::{Digest, action_digest};
use statehold_core::hold::{
    CallTarget, DecideBy, DecisionKind, Effect, HoldKind, NewHold, OnExpiry, Risk,
};
use statehold_core::ids::{HoldId, IdMint, ItemId, RequestId, SessionId};
use statehold_core::item::{ItemKind, NewCallMark, NewItem, Visibility};
use statehold_core::json_keys::require_unique_keys;
use statehold_core::name::Name;
use statehold_core::number::{canonical_value, require_exact_arguments};
use statehold_core::session::SessionState;

use crate::api::hold::HoldView;
use crate::bodies::{ActionBody, HoldBody, ItemBody, Raw, Reason, parse};
use crate::commit::call::{DecidedCommit, Receipt};
use crate::commit::payloads::Payloads;
use crate::commit::write::SessionWrite;
use crate::engine::{Engine, entropy};
use crate::error::EngineError;
use crate::guard::credentials::Audience;
use crate::guard::policy::{Effective, HoldTerms};
use crate::guard::redact::{Preview, preview};
use crate::guard::schema::Schema;
use crate::reconcile::CALLS_LOOKED_AT;

const TITLE_BYTES_MAX: usize = 256;
const MESSAGE_BYTES_MAX: usize = 16 * 1024;
const URL_BYTES_MAX: usize = 2_048;
/// Keeps arguments short enough for a person to read.
const ARGS_BYTES_MAX: usize = 1024 * 1024;
/// The users of one API key together may have the open holds of so many users.
const KEY_HOLDS_PER_USER: usize = 4;
const GROUP_BYTES_MAX: usize = 64;
const REASONS_MAX: usize = 32;
const REASON_ID_BYTES_MAX: usize = 64;
const REASON_TEXT_BYTES_MAX: usize = 2_048;

/// A hold to open.
#[derive(Debug, Clone)]
pub struct HoldSpec {
    /// The kind of hold.
    pub kind: HoldKind,
    /// One line.
    pub title: String,
    /// A longer text.
    pub message: Option<String>,
    /// The pending action, for approvals.
    pub action: Option<NewAction>,
    /// JSON Schema of the answer.
    pub response_schema: Option<Raw>,
    /// The address to visit, for links.
    pub url: Option<String>,
    /// Reasons that a person may choose from.
    pub reasons: Option<Raw>,
    /// Holds opened together share a group.
    pub group_id: Option<String>,
    /// The allowed decisions; empty means all that fit the kind.
    pub allowed: BTreeSet<DecisionKind>,
    /// How many people must approve.
    pub quorum: Option<u16>,
    /// How long people have to decide.
    pub expires_in_seconds: Option<u64>,
    /// The outcome if they do not.
    pub on_expiry: Option<OnExpiry>,
    /// The people who may decide.
    pub decide_by: Option<DecideBy>,
}

/// An action that needs approval.
#[derive(Debug, Clone)]
pub struct NewAction {
    /// The tool.
    pub tool: Name,
    /// The full arguments.
    pub args: Raw,
    /// JSON Schema of edited arguments.
    pub args_schema: Option<Raw>,
    /// The caller's own id of the call.
    pub call_id: Option<String>,
    /// The call to approve. None adds one.
    pub call: Option<CallTarget>,
    /// Its effect on the outside world.
    pub effect: Option<Effect>,
    /// Its risk.
    pub risk: Option<Risk>,
    /// Whether the tool honours the execution key.
    pub idempotent: Option<bool>,
}

/// An action after its policy was applied.
struct GatedAction {
    call: CallTarget,
    digest: Digest,
    body: ActionBody,
}

/// Opens a hold for a request.
///
/// # Errors
///
/// If the hold is invalid, the policy is stricter, or the worker lacks the right.
pub(crate) async fn open_hold(
    write: SessionWrite<'_>,
    by: Fenced,
    spec: HoldSpec,
    items: Vec<NewItem>,
) -> Result<Receipt<HoldView>, EngineError> {
    open_hold_for(None, write, by, (spec, items)).await
}

/// The same, for a `credential` hold that a call with a credential for this audience answers.
pub(crate) async fn open_hold_for(
    audience: Option<Audience>,
    mut write: SessionWrite<'_>,
    by: Fenced,
    (spec, mut items): (HoldSpec, Vec<NewItem>),
) -> Result<Receipt<HoldView>, EngineError> {
    let (engine, session) = (write.engine, write.session);
    require_words(&spec)?;
    let reasons = spec.reasons.as_deref().map(reasons).transpose()?;
    engine.require_schemas(&spec).await?;
    let state = engine.durable_state(session).await?;
    let task = state.task_of(by.request).cloned();
    engine.require_room(&state, by.request).await?;
    let policy = engine.policy_for(task.as_ref().map(|task| &task.agent), &spec);
    let terms = policy.tighten(spec.kind, wanted_terms(&spec))?;
    if let Some(task) = &task {
        engine.hide_gated(&task.agent, &mut items, &mut write.payloads);
    }
    let mut mint = IdMint::new(engine.now(), session.shard(), entropy()?);
    let id = HoldId::from_uuid(mint.next_uuid());
    let gated = match spec.action {
        Some(action) => {
            let written = (&mut items, &mut write.payloads);
            let place = (session, by.request, id);
            Some(engine.gate(place, action, &policy, &terms, written).await?)
        }
        None => None,
    };
    let (target, digest, action) = match gated {
        Some(GatedAction { call, digest, body }) => (Some(call), Some(digest), Some(body)),
        None => (None, None, None),
    };
    let is_sealed = action.as_ref().is_some_and(|body| body.sealed.is_some());
    let body = HoldBody {
        title: spec.title,
        message: spec.message,
        action,
        response_schema: spec.response_schema,
        url: spec.url,
        reasons,
        group_id: spec.group_id,
        comment_required: policy.policy.comment_required.unwrap_or(false),
        audience: audience.map(|audience| audience.word().to_owned()),
    };
    let hold = NewHold {
        id,
        kind: spec.kind,
        body: write.payloads.put_hold(&body),
        call: target,
        digest,
        allowed: spec.allowed,
        need: terms.quorum.unwrap_or(1),
        expires_in_ms: terms
            .expires_in_seconds
            .map(|seconds| seconds.saturating_mul(1_000)),
        on_expiry: terms.on_expiry.unwrap_or_default(),
        decide_by: terms.decide_by,
        effect: terms.effect,
        risk: terms.risk,
        policy: policy.digest,
    };
    // An idempotency key stores this view, so it must contain only what the store has.
    let body: HoldBody = parse(write.payloads.get(&hold.body));
    let command = Command::OpenHold { by, hold, items };
    let view = |made: &DecidedCommit<'_>| HoldView::of_commit(made, id, body.clone());
    let done = write.commit(&command, view).await;
    // Destroy the key if no hold was opened under this id: the command was refused or replayed. If
    // the result is unknown, the next start sweeps unused keys.
    let is_unused = match &done {
        Ok(done) => done.replayed,
        Err(
            EngineError::Store(_)
            | EngineError::Damaged(_)
            | EngineError::Stopping
            | EngineError::Full,
        ) => false,
        Err(_) => true,
    };
    if is_sealed && is_unused {
        engine.destroy_hold_keys(vec![id]).await;
    }
    done
}

impl Engine {
    /// Checks that a hold is valid and allowed by the policy, apart from checks that depend on the
    /// current state. Used to open several holds or none.
    ///
    /// # Errors
    ///
    /// If the hold is invalid, or the policy is stricter.
    pub(crate) async fn require_valid_hold(
        &self,
        agent: &Name,
        spec: &HoldSpec,
    ) -> Result<(), EngineError> {
        require_words(spec)?;
        spec.reasons.as_deref().map(reasons).transpose()?;
        self.require_schemas(spec).await?;
        let policy = self.policy_for(Some(agent), spec);
        policy.tighten(spec.kind, wanted_terms(spec))?;
        if let Some(action) = &spec.action {
            require_args(action)?;
        }
        Ok(())
    }

    fn policy_for(&self, agent: Option<&Name>, spec: &HoldSpec) -> Effective {
        match (agent, &spec.action) {
            (Some(agent), Some(action)) => self.policies().of(agent, action.tool.as_str()),
            _ => Effective::default(),
        }
    }

    /// Replaces the arguments of gated calls with their preview; their hold keeps the full arguments.
    /// Every surface that accepts items calls this before writing them.
    pub(crate) fn hide_gated(&self, agent: &Name, items: &mut [NewItem], payloads: &mut Payloads) {
        for item in items.iter_mut().filter(|item| is_gated(item)) {
            let mut body: ItemBody = parse(payloads.get(&item.body));
            let (Some(tool), Some(arguments)) = (&body.name, &body.arguments) else {
                continue;
            };
            if let Some(shown) = self.shown_arguments(agent, tool, arguments) {
                body.arguments = Some(shown);
                item.body = payloads.put_item(&body);
            }
        }
    }

    /// The preview of a call's arguments. None if the tool's policy redacts nothing in them.
    pub fn shown_arguments(&self, agent: &Name, tool: &str, arguments: &RawValue) -> Option<Raw> {
        let args = serde_json::from_str(arguments.get()).ok()?;
        let policies = self.policies();
        let shown = preview(
            &args,
            &policies.of(agent, tool).rules(),
            &policies.redaction.redactor,
        );
        (!shown.redactions.is_empty()).then(|| raw(&shown.value))
    }

    /// A call's arguments as a step with them is stored. None if they have no secrets.
    pub fn stored_arguments(&self, agent: &Name, arguments: &RawValue) -> Option<Raw> {
        let policies = self.policies();
        let redacted = policies.redaction.of(agent)?.json(arguments.get(), &[])?;
        RawValue::from_string(redacted.text).ok()
    }

    /// Binds an action to its call: a call in the same command, a call recorded earlier, or a new one.
    async fn gate(
        &self,
        (session, request, hold): (SessionId, RequestId, HoldId),
        action: NewAction,
        policy: &Effective,
        terms: &HoldTerms,
        (items, payloads): (&mut Vec<NewItem>, &mut Payloads),
    ) -> Result<GatedAction, EngineError> {
        let args = require_args(&action)?;
        let tool = action.tool.as_str();
        let digest =
            action_digest(hold, tool, &args).map_err(|error| EngineError::InvalidField {
                path: "action.args",
                what: error.to_string(),
            })?;
        let Preview { value, redactions } =
            preview(&args, &policy.rules(), &self.policies().redaction.redactor);
        // Without redactions, keep the exact bytes of the arguments.
        let shown = match redactions.as_slice() {
            [] => action.args.clone(),
            _ => raw(&value),
        };
        let idempotent = terms.idempotent.unwrap_or(false);
        let call = action.call.unwrap_or(CallTarget::SameCommand(items.len()));
        match call {
            CallTarget::SameCommand(at) if at == items.len() => {
                let body = ItemBody {
                    name: Some(tool.to_owned()),
                    call_id: action.call_id.clone(),
                    arguments: Some(shown.clone()),
                    ..ItemBody::default()
                };
                items.push(NewItem {
                    kind: ItemKind::ToolCall,
                    visibility: Visibility::Hidden,
                    role: None,
                    body: payloads.put_item(&body),
                    attachments: Vec::new(),
                    call: Some(NewCallMark::Call {
                        gated: true,
                        idempotent,
                    }),
                });
            }
            CallTarget::SameCommand(at) => {
                if let Some(item) = items.get_mut(at) {
                    let body: ItemBody = parse(payloads.get(&item.body));
                    require_same(tool, &value, &body)?;
                    if let Some(NewCallMark::Call { idempotent: is, .. }) = &mut item.call {
                        *is = idempotent;
                    }
                }
            }
            CallTarget::Recorded(id) => {
                // Refuse a call that cannot be read: it could belong to another tool with another
                // policy.
                let Some(body) = self.recorded_call(session, request, id).await? else {
                    return Err(Rejection::CallUnknown { call: Some(id) }.into());
                };
                require_same(tool, &value, &body)?;
            }
        }
        let sealed = match redactions.as_slice() {
            [] => None,
            _ => Some(self.seal(hold, request, tool, action.args.get()).await?),
        };
        let body = ActionBody {
            tool: tool.to_owned(),
            args: shown,
            args_schema: action.args_schema,
            call_id: action.call_id,
            effect: terms.effect,
            risk: terms.risk,
            idempotent,
            digest: Some(digest),
            redactions,
            sealed,
        };
        Ok(GatedAction { call, digest, body })
    }

    /// The recorded body of a call of a live request.
    async fn recorded_call(
        &self,
        session: SessionId,
        request: RequestId,
        call: ItemId,
    ) -> Result<Option<ItemBody>, EngineError> {
        let state = self.durable_state(session).await?;
        let Some(live) = state.requests.get(&request) else {
            return Ok(None);
        };
        let found = self
            .recent_items(session, live.task, CALLS_LOOKED_AT, |item| {
                item.placed.item.id == call
            })
            .await?;
        let found = found.first();
        Ok(found.map(|item| parse(item.body.as_deref())))
    }

    /// Limits the open holds of one user, so that agents cannot flood people, and those of all users of one API key.
    /// Agents that ask at the same moment may exceed the limit together.
    async fn require_room(
        &self,
        state: &SessionState,
        request: RequestId,
    ) -> Result<(), EngineError> {
        let Some(owner) = &state.owner else {
            return Ok(());
        };
        let max = self.inner().options.user_holds_max;
        let holder = self.inner().starters.holder_of(owner.user, request);
        let of_key = holder
            .account()
            .map(|key| self.inner().holds_by_key.count(key));
        let key_max = max.saturating_mul(KEY_HOLDS_PER_USER);
        if of_key.is_some_and(|open| open >= key_max) {
            let (limit, max) = ("open holds of all users of one key", key_max as u64);
            return Err(Rejection::Limit { limit, max }.into());
        }
        let store = &self.inner().store;
        let open = store.open_holds_of_user(owner.tenant.clone(), owner.user, max);
        if open.await? >= max {
            let (limit, max) = ("open holds of one user", max as u64);
            return Err(Rejection::Limit { limit, max }.into());
        }
        Ok(())
    }

    /// Compiles the schemas when the hold is opened, so that a worker's invalid schema never blocks a
    /// decision.
    async fn require_schemas(&self, spec: &HoldSpec) -> Result<(), EngineError> {
        let args_schema = spec
            .action
            .as_ref()
            .and_then(|action| action.args_schema.clone());
        let schemas = [
            ("response_schema", spec.response_schema.clone()),
            ("action.args_schema", args_schema),
        ];
        for (path, schema) in schemas {
            let Some(schema) = schema else { continue };
            let built = tokio::task::spawn_blocking(move || Schema::new(schema.get()).map(drop));
            let built = built.await.map_err(|_| EngineError::Stopping)?;
            built.map_err(|error| EngineError::HoldMalformed {
                path: format!("{path}{}", error.path),
                what: format!("is not a schema that can be used: {}", error.message),
            })?;
        }
        Ok(())
    }
}

/// The terms that a worker asks for.
fn wanted_terms(spec: &HoldSpec) -> HoldTerms {
    let action = spec.action.as_ref();
    HoldTerms {
        decide_by: spec.decide_by.clone(),
        effect: action.and_then(|action| action.effect),
        expires_in_seconds: spec.expires_in_seconds,
        idempotent: action.and_then(|action| action.idempotent),
        on_expiry: spec.on_expiry,
        quorum: spec.quorum,
        risk: action.and_then(|action| action.risk),
    }
}

/// The arguments of an action. Refuses numbers that parsers read differently.
fn require_args(action: &NewAction) -> Result<Value, EngineError> {
    if action.args.get().len() > ARGS_BYTES_MAX {
        return Err(EngineError::InvalidField {
            path: "action.args",
            what: "the arguments have at most 1 MiB; hand over the rest by reference".to_owned(),
        });
    }
    let args = parse_args(&action.args, "action.args")?;
    require_exact_arguments(&args).map_err(|error| EngineError::InvalidField {
        path: "action.args",
        what: error.to_string(),
    })?;
    Ok(args)
}

fn is_gated(item: &NewItem) -> bool {
    matches!(item.call, Some(NewCallMark::Call { gated: true, .. }))
}

/// The action that people approve must be the call that runs. The recorded call has only the preview, so
/// this compares previews.
fn require_same(tool: &str, shown: &Value, recorded: &ItemBody) -> Result<(), EngineError> {
    let arguments = recorded.arguments.as_ref();
    let arguments: Option<Value> =
        arguments.and_then(|arguments| serde_json::from_str(arguments.get()).ok());
    let is_same = recorded.name.as_deref() == Some(tool)
        && arguments.is_some_and(|arguments| canonical_value(&arguments) == canonical_value(shown));
    if is_same {
        Ok(())
    } else {
        Err(EngineError::HoldMalformed {
            path: "action".to_owned(),
            what: "is not the tool call that it names: tool and arguments must be the same"
                .to_owned(),
        })
    }
}

/// Parses JSON that people decide about, or that they answer with. Refuses an object with the same key twice: a
/// person would see one of the values, and a tool could take the other.
pub(crate) fn parse_args(raw: &RawValue, path: &'static str) -> Result<Value, EngineError> {
    let invalid = |what| EngineError::InvalidField { path, what };
    require_unique_keys(raw.get()).map_err(|error| invalid(error.to_string()))?;
    serde_json::from_str(raw.get()).map_err(|error| invalid(error.to_string()))
}

pub(crate) fn raw(value: &Value) -> Raw {
    serde_json::value::to_raw_value(value).expect("a value is JSON")
}

fn malformed<T>(path: &str, what: impl Into<String>) -> Result<T, EngineError> {
    Err(EngineError::HoldMalformed {
        path: path.to_owned(),
        what: what.into(),
    })
}

fn require_words(spec: &HoldSpec) -> Result<(), EngineError> {
    if spec.title.is_empty() || spec.title.len() > TITLE_BYTES_MAX {
        return malformed("title", "is 1 to 256 bytes");
    }
    let message = spec.message.as_deref().unwrap_or_default();
    if message.len() > MESSAGE_BYTES_MAX {
        return malformed("message", "has at most 16384 bytes");
    }
    let group = spec.group_id.as_deref();
    if group.is_some_and(|group| group.is_empty() || group.len() > GROUP_BYTES_MAX) {
        return malformed("group_id", "is 1 to 64 bytes");
    }
    if (spec.kind == HoldKind::Approval) != spec.action.is_some() {
        return malformed("action", "is needed for approvals, and only there");
    }
    match (&spec.url, spec.kind) {
        (None, HoldKind::Link) => return malformed("url", "is needed for links"),
        (Some(url), _) if !is_web_address(url) => {
            return malformed("url", "is an http or https address without a password");
        }
        _ => {}
    }
    if spec.kind == HoldKind::Form && spec.response_schema.is_none() {
        return malformed("response_schema", "is needed for forms");
    }
    Ok(())
}

/// Whether a text is an address that is safe to send a person to: http or https, with a host, without a
/// password or characters that disguise it.
fn is_web_address(url: &str) -> bool {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '<' | '>' | '\\' | '`');
    url.len() <= URL_BYTES_MAX
        && !host.is_empty()
        && !host.contains('@')
        && url.chars().all(is_plain)
}

fn reasons(raw: &RawValue) -> Result<Vec<Reason>, EngineError> {
    const SHAPE: &str = "is a list of at most 32 {id, title, text?} with ids of their own";
    let Ok(reasons) = serde_json::from_str::<Vec<Reason>>(raw.get()) else {
        return malformed("reasons", SHAPE);
    };
    let ids: BTreeSet<&str> = reasons.iter().map(|reason| reason.id.as_str()).collect();
    let is_sound = |reason: &Reason| {
        let text = reason.text.as_deref().unwrap_or_default();
        (1..=REASON_ID_BYTES_MAX).contains(&reason.id.len())
            && (1..=TITLE_BYTES_MAX).contains(&reason.title.len())
            && text.len() <= REASON_TEXT_BYTES_MAX
    };
    if reasons.len() > REASONS_MAX || ids.len() < reasons.len() || !reasons.iter().all(is_sound) {
        return malformed("reasons", SHAPE);
    }
    Ok(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_web_addresses_are_links() {
        for good in [
            "https://x.test",
            "http://x.test:80/a?b=c#d",
            "https://[::1]/x",
        ] {
            assert!(is_web_address(good), "{good}");
        }
        for bad in [
            "",
            "x.test",
            "javascript:alert(1)",
            "file:///etc/passwd",
            "https://",
            "https:///x",
            "https://ann:secret@x.test/",
            "https://good.test@evil.test/",
            "https://x.test/a b",
            "https://x.test/\u{202e}",
            "HTTPS://x.test",
        ] {
            assert!(!is_web_address(bad), "{bad}");
        }
    }
}

//! Holds: workers open them, people decide them.

mod action;
mod confirmation;
mod decide;
mod decision_input;
mod edited;
mod evidence;
mod excerpt;
mod input;
mod pending;
mod summary;
mod view;

use statehold_core::command::Fenced;
use statehold_core::hold::{CallTarget, HoldKind};
use statehold_core::ids::{HoldId, RequestId, TaskId};
use statehold_core::item::ItemKind;
use statehold_store::{HoldPlace, LineageStep, PageLimit};

use super::item::ItemInput;
use super::item::write::{call_targets, new_items};
use super::json::to_body;
use super::request::{parse_name, repeated};
use crate::answer_memory::AnswerMemory;
use crate::bodies::{HoldBody, RECONCILE_TITLE, Raw, parse};
use crate::caller::Caller;
use crate::commit::call::{Call, Receipt};
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_hold_reader;
use crate::guard::policy::parse_decide_by;
use crate::holds::HoldFilter;
use crate::open_hold::{HoldSpec, NewAction, open_hold};
use crate::read::Page;

pub use action::ActionView;
pub use confirmation::confirmation_text;
pub use decide::{decide, decide_shown, resume};
pub(crate) use decide::{decide_resuming, require_decider};
pub use decision_input::{DecisionInput, ResumeInput, TurnDecision};
pub use evidence::{EvidenceView, ToolRunView};
pub use excerpt::{ExcerptMessage, ExcerptView};
pub use input::{ActionInput, HoldInput};
pub use pending::PendingHoldView;
pub(crate) use pending::pending_views;
pub use summary::{DecisionReceipt, HoldCountsView, HoldPage, HoldRef, KindCounts, RiskCounts};
pub use view::{DecideRefusal, DecisionView, HoldView};

/// The title of a hold. The server opens `reconcile` holds and gives them a fixed title.
pub(crate) fn title_of(kind: HoldKind, body: Option<&[u8]>) -> String {
    shown_title(kind, body.map(title_in).unwrap_or_default())
}

/// The title in the body of a hold.
pub(crate) fn title_in(body: &[u8]) -> String {
    let body: HoldBody = parse(Some(body));
    body.title
}

/// The title of a hold with this title in its body.
pub(crate) fn shown_title(kind: HoldKind, title: String) -> String {
    if title.is_empty() && kind == HoldKind::Reconcile {
        RECONCILE_TITLE.to_owned()
    } else {
        title
    }
}

/// The path from the root task to a request: `T1 ← R7 ← T4 ← R8`.
fn chain(lineage: &[LineageStep]) -> String {
    let steps = lineage
        .iter()
        .map(|step| format!("T{} ← R{}", step.task_number, step.number));
    steps.collect::<Vec<_>>().join(" ← ")
}

fn task_path(lineage: &[LineageStep]) -> Vec<TaskId> {
    lineage.iter().map(|step| step.task).collect()
}

/// The alias of a hold: `R8.h1`.
fn alias(lineage: &[LineageStep], number: u32) -> String {
    let request = lineage.last().map_or(0, |step| step.number);
    format!("R{request}.h{number}")
}

/// Opens a hold: asks a person for an approval or an answer.
///
/// # Errors
///
/// If the caller may not, the input is malformed, the policy is stricter, or the core refuses.
pub async fn open(
    engine: &Engine,
    call: &Call,
    request: RequestId,
    mut input: HoldInput,
) -> Result<Receipt<HoldView>, EngineError> {
    let mut write = SessionWrite::to_request(engine, call, request).await?;
    if let Some(receipt) = repeated(&write, &input.items).await? {
        return Ok(match &input.action {
            Some(action) => with_whole_args(receipt, &action.args),
            None => receipt,
        });
    }
    let targets = call_targets(&write, request, &input.items).await?;
    let action = input.action.take();
    let whole_args = action.as_ref().map(|action| action.args.clone());
    let action = action.map(|action| new_action(action, &input.items));
    let action = action.transpose()?;
    let items = new_items(input.items, &targets, &mut write.payloads)?;
    let decide_by = input.decide_by.as_deref().map(parse_decide_by).transpose();
    let spec = HoldSpec {
        kind: input.kind,
        title: input.title,
        message: input.message,
        action,
        response_schema: input.response_schema,
        url: input.url,
        reasons: input.reasons,
        group_id: input.group_id,
        allowed: input.allowed.into_iter().collect(),
        quorum: input.quorum,
        expires_in_seconds: input.expires_in_seconds,
        on_expiry: input.on_expiry,
        decide_by: decide_by.map_err(|_| EngineError::HoldMalformed {
            path: "decide_by".to_owned(),
            what: "is other, user or role:NAME".to_owned(),
        })?,
    };
    let fence = input.fence;
    let opened = open_hold(write, Fenced { request, fence }, spec, items).await?;
    Ok(match whole_args {
        Some(args) => with_whole_args(opened, &args),
        None => opened,
    })
}

fn new_action(action: ActionInput, items: &[ItemInput]) -> Result<NewAction, EngineError> {
    let call_id = action.call_id.as_deref();
    let recorded = call_id.and_then(|id| id.parse().ok());
    Ok(NewAction {
        tool: parse_name(&action.tool, "action.tool")?,
        call: gated_call(items, call_id)
            .map(CallTarget::SameCommand)
            .or(recorded.map(CallTarget::Recorded)),
        args: action.args,
        args_schema: action.args_schema,
        call_id: action.call_id,
        effect: action.effect,
        risk: action.risk,
        idempotent: action.idempotent,
    })
}

/// The index of the gated call that an action names, in the same input.
fn gated_call(items: &[ItemInput], call_id: Option<&str>) -> Option<usize> {
    let call_id = call_id?;
    items.iter().position(|item| {
        item.kind == ItemKind::ToolCall && item.call_id.as_deref() == Some(call_id)
    })
}

/// Replaces the preview in the answer with the full arguments, because the worker has just sent them. The
/// answer stored for retries has only the preview.
fn with_whole_args(mut opened: Receipt<HoldView>, args: &Raw) -> Receipt<HoldView> {
    let action = opened.view.action.as_mut();
    if let Some(action) = action.filter(|action| !action.redactions.is_empty()) {
        action.args = args.clone();
        let whole = serde_json::to_value(&opened.view);
        opened.body = whole.map_or(opened.body, |whole| to_body(&whole));
    }
    opened
}

/// Filter of a hold list.
#[derive(Debug, Clone, Default)]
pub struct HoldListInput {
    /// The filter, without the user.
    pub filter: HoldFilter,
    /// Only holds in sessions of the user with this name.
    pub user: Option<String>,
}

/// A page of the holds that the caller may see: open ones by urgency, decided ones newest first.
///
/// # Errors
///
/// If the caller may not see holds. [`EngineError::PageTooSmall`] if the next hold does not fit.
pub async fn list(
    engine: &Engine,
    caller: &Caller,
    input: HoldListInput,
    (after, limit): (Option<HoldPlace>, PageLimit),
) -> Result<Page<HoldView, HoldPlace>, EngineError> {
    require_hold_reader(caller)?;
    let mut filter = input.filter;
    if let Some(user) = &input.user {
        // An unknown user gets an empty list, like a user that the caller may not see.
        let Some(user) = engine.known_user(&caller.tenant, user).await? else {
            return Ok(Page::empty());
        };
        filter.user = Some(user);
    }
    let page = engine.holds(caller, &filter, after, limit).await?;
    let reads_traces = caller.reads_all();
    let entries = page.entries.iter();
    Ok(Page {
        entries: entries
            .map(|detail| HoldView::listed(detail, reads_traces))
            .collect(),
        next: page.next,
    })
}

/// Counts the open holds that the caller may see.
///
/// # Errors
///
/// If the caller may not see holds.
pub async fn counts(engine: &Engine, caller: &Caller) -> Result<HoldCountsView, EngineError> {
    require_hold_reader(caller)?;
    engine.hold_counts(caller).await
}

/// Reads a hold. Reading never decides.
///
/// # Errors
///
/// If the caller may not see it, or there is no memory for it in time.
pub async fn read(
    engine: &Engine,
    caller: &Caller,
    hold: HoldId,
    memory: &dyn AnswerMemory,
) -> Result<HoldView, EngineError> {
    Ok(HoldView::of(&engine.hold_in(memory, caller, hold).await?))
}

/// Reads a hold for a person, with an excerpt of the conversation if the caller may decide it.
///
/// # Errors
///
/// As [`read`].
pub async fn read_with_excerpt(
    engine: &Engine,
    caller: &Caller,
    hold: HoldId,
    memory: &dyn AnswerMemory,
) -> Result<HoldView, EngineError> {
    let detail = engine.hold_in(memory, caller, hold).await?;
    let mut view = HoldView::of(&detail);
    view.excerpt = excerpt::excerpt(engine, &detail, memory).await?;
    Ok(view)
}

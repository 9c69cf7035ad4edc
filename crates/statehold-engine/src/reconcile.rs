//! Tool calls that may have run: their worker was lost, or their tool gave no answer. The core opens a
//! `reconcile` hold for each at the next claim, and a person says what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value;
use statehold_core::hold::{Hold, HoldKind};
use statehold_core::ids::{ItemId, RequestId, SessionId};
use statehold_core::item::{CallMark, ItemKind};
use statehold_core::request::{AskedAbout, CallState, OpenCall};
use statehold_core::session::SessionState;
use statehold_store::StoredItem;

use crate::bodies::{
    ActionBody, DecisionBody, HoldBody, ItemBody, NO_ANSWER, NoAnswerBody, NoAnswerReason,
    RECONCILE_TITLE, Redaction, parse, payload, to_bytes,
};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::policy::Effective;
use crate::guard::redact::{Preview, preview};
use crate::open_hold::raw;

/// How many items a search for a recorded call reads.
pub(crate) const CALLS_LOOKED_AT: usize = 10_000;

impl Engine {
    /// Calls of a request that may be retried, but whose worker gave up after all retries went
    /// unanswered.
    pub(crate) async fn unanswered(
        &self,
        state: &SessionState,
        request: RequestId,
    ) -> Result<BTreeSet<ItemId>, EngineError> {
        let Some(live) = state.requests.get(&request) else {
            return Ok(BTreeSet::new());
        };
        let may_be_repeated =
            |call: &OpenCall| call.idempotent && matches!(call.state, CallState::Started { .. });
        if !live.calls.values().any(may_be_repeated) {
            return Ok(BTreeSet::new());
        }
        let written = self
            .recent_items(state.session, live.task, CALLS_LOOKED_AT, is_note)
            .await?;
        // People were already asked about notes written before the last hold.
        let noted = noted_without_answer(&written);
        let noted = noted.filter(|noted| noted.holds_opened == live.holds_opened);
        Ok(noted.map(|noted| noted.call).collect())
    }

    /// The policies of calls that may have run without approval. If people must reconcile such a call,
    /// the people who could have approved it decide.
    pub(crate) async fn policies_of_uncertain_calls(
        &self,
        state: &SessionState,
        request: RequestId,
        unanswered: &BTreeSet<ItemId>,
    ) -> Result<BTreeMap<ItemId, AskedAbout>, EngineError> {
        let mut asked_about = BTreeMap::new();
        let (Some(live), Some(task)) = (state.requests.get(&request), state.task_of(request))
        else {
            return Ok(asked_about);
        };
        let is_new = |call: &ItemId| {
            live.calls
                .get(call)
                .is_some_and(|open| open.asked.is_none())
        };
        let calls = live.uncertain_calls(unanswered).filter(is_new);
        let calls: BTreeSet<ItemId> = calls.collect();
        let policies = self.policies();
        if calls.is_empty() || !policies.knows(&task.agent) {
            return Ok(asked_about);
        }
        let written = self
            .recent_items(state.session, task.id, CALLS_LOOKED_AT, |item| {
                calls.contains(&item.placed.item.id)
            })
            .await?;
        for item in written {
            let id = item.placed.item.id;
            let body: ItemBody = parse(item.body.as_deref());
            let Some(tool) = body.name else {
                continue;
            };
            let Effective { policy, digest } = policies.of(&task.agent, &tool);
            let decide_by = policy
                .decide_by
                .unwrap_or_else(|| HoldKind::Reconcile.default_decide_by());
            let asked = AskedAbout {
                decide_by,
                effect: policy.effect,
                policy: digest,
                risk: policy.risk,
            };
            asked_about.insert(id, asked);
        }
        Ok(asked_about)
    }

    /// The text of a `reconcile` hold, which the server opens by itself: the action as approved, or the
    /// call as recorded.
    pub(crate) async fn reconcile_body(
        &self,
        session: SessionId,
        hold: &Hold,
    ) -> Result<Vec<u8>, EngineError> {
        let mut body = HoldBody {
            title: RECONCILE_TITLE.to_owned(),
            ..HoldBody::default()
        };
        let Some(call) = hold.call else {
            return Ok(to_bytes(&body));
        };
        let store = &self.inner().store;
        let (mut approval, mut asked_before) = (None, 0);
        for asked in store.holds_of(hold.request).await? {
            let Some(closed) = store.closed_hold(asked).await? else {
                continue;
            };
            if closed.hold.call != Some(call) {
                continue;
            }
            match closed.hold.kind {
                HoldKind::Approval => approval = approval.or(Some(closed)),
                HoldKind::Reconcile if closed.hold.number < hold.number => {
                    asked_before = closed.hold.number;
                }
                _ => {}
            }
        }
        let written = self
            .recent_items(session, hold.task, CALLS_LOOKED_AT, |item| {
                is_note(item) || item.placed.item.id == call
            })
            .await?;
        let why = why_unknown(&written, call, asked_before..hold.number);
        body.message = Some(why.to_owned());
        let Some(closed) = approval else {
            let item = written.iter().find(|item| item.placed.item.id == call);
            body.action = match item {
                Some(item) => self.recorded_action(session, hold, item).await?,
                None => None,
            };
            return Ok(to_bytes(&body));
        };
        let opened = self.record(session, closed.hold.opened_at).await?;
        let decided = self.record(session, closed.decided_by).await?;
        let first: HoldBody = parse(payload(opened.as_ref(), closed.hold.body));
        let words: DecisionBody = parse(payload(decided.as_ref(), closed.decision.body));
        body.title = format!("{RECONCILE_TITLE} {}", first.title);
        body.comment_required = first.comment_required;
        body.action = first.action.map(|action| match words.args {
            None => action,
            Some(args) => ActionBody {
                args,
                redactions: words.redactions,
                sealed: words.sealed,
                ..action
            },
        });
        if let Some(action) = &mut body.action {
            action.digest = hold.digest.or(action.digest);
            action.args_schema = None;
        }
        Ok(to_bytes(&body))
    }

    /// The action of a call that had no earlier hold.
    async fn recorded_action(
        &self,
        session: SessionId,
        hold: &Hold,
        item: &StoredItem,
    ) -> Result<Option<ActionBody>, EngineError> {
        let idempotent = matches!(
            item.placed.item.call,
            Some(CallMark::Call {
                idempotent: true,
                ..
            })
        );
        let item: ItemBody = parse(item.body.as_deref());
        let (Some(tool), Some(arguments)) = (item.name, item.arguments) else {
            return Ok(None);
        };
        let state = self.durable_state(session).await?;
        let (task, _) = self.find_task(&state, hold.task).await?;
        let policies = self.policies();
        let policy = policies.of(&task.agent, &tool);
        let args: Value = serde_json::from_str(arguments.get()).unwrap_or_default();
        let Preview {
            value,
            mut redactions,
        } = preview(&args, &policy.rules(), &policies.redaction.redactor);
        // The stored arguments may lack secrets already.
        redactions.extend(item.redactions.into_iter().filter_map(|known| {
            let path = known.path.strip_prefix("/arguments")?.to_owned();
            Some(Redaction { path, ..known })
        }));
        Ok(Some(ActionBody {
            tool,
            args: raw(&value),
            args_schema: None,
            call_id: item.call_id,
            effect: hold.effect.or(policy.policy.effect),
            risk: hold.risk.or(policy.policy.risk),
            idempotent,
            digest: hold.digest,
            redactions,
            sealed: None,
        }))
    }
}

/// The notes of workers about calls without an answer.
fn is_note(item: &StoredItem) -> bool {
    item.placed.item.kind == ItemKind::Note
}

fn noted_without_answer(written: &[StoredItem]) -> impl Iterator<Item = NoAnswerBody> {
    let notes = written.iter().filter(|item| is_note(item));
    notes.filter_map(|item| {
        let body: ItemBody = parse(item.body.as_deref());
        let data = body
            .data
            .filter(|_| body.name.as_deref() == Some(NO_ANSWER))?;
        serde_json::from_str(data.get()).ok()
    })
}

/// Why it is unknown whether a call ran: the reason its worker noted since the last hold about it, or
/// the loss of the worker. Clients read this text.
fn why_unknown(written: &[StoredItem], call: ItemId, holds: Range<u32>) -> &'static str {
    let mut noted = noted_without_answer(written)
        .filter(|noted| noted.call == call && holds.contains(&noted.holds_opened));
    match noted.next().map(|noted| noted.reason) {
        Some(NoAnswerReason::Timeout) => "The tool did not answer in time.",
        Some(NoAnswerReason::ConnectionLost) => "The connection to the tool was lost.",
        Some(NoAnswerReason::Unclear) => "What came back from the tool is no answer.",
        None => "The worker was lost during this action.",
    }
}

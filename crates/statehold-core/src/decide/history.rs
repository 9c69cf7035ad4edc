//! Appending items to a task's history.

use super::draft::{Draft, require_limit};
use crate::command::{Output, Rejection, StartRequest};
use crate::hold::CallTarget;
use crate::ids::{ItemId, RequestId};
use crate::item::{CallMark, CallOutcome, Item, ItemKind, NewCallMark, NewItem, Role, Visibility};
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::record::Event;
use crate::request::{CallState, OpenCall};

/// The items of one command, numbered and checked, not yet written.
pub(super) struct Batch {
    request: RequestId,
    is_root: bool,
    items: Vec<Item>,
    /// The open tool calls of the request, with the calls that these items open or close.
    calls: std::collections::BTreeMap<ItemId, OpenCall>,
    fence: u64,
}

impl Batch {
    /// Starts a batch for a live request.
    pub(super) fn new(draft: &Draft<'_>, request: RequestId) -> Result<Self, Rejection> {
        let live = draft.live(request)?;
        let is_root = live.parent.is_none();
        let (calls, fence) = (live.calls.clone(), live.fence);
        Ok(Self {
            request,
            is_root,
            items: Vec::new(),
            calls,
            fence,
        })
    }

    /// Adds the input of a request. Clients see that of the request which it continues.
    pub(super) fn push_input(
        &mut self,
        draft: &mut Draft<'_>,
        start: &StartRequest,
    ) -> Result<(), Rejection> {
        let input = NewItem {
            attachments: start.attachments.clone(),
            ..NewItem::message(Role::User, start.input)
        };
        let visibility = match start.continues {
            Some(_) => Visibility::Hidden,
            None => input.visibility,
        };
        self.push(
            draft,
            &NewItem {
                visibility,
                ..input
            },
        )
    }

    /// Adds an answer.
    pub(super) fn push_output(
        &mut self,
        draft: &mut Draft<'_>,
        output: &Output,
    ) -> Result<(), Rejection> {
        let answer = NewItem {
            attachments: output.attachments.clone(),
            ..NewItem::message(Role::Assistant, output.body)
        };
        self.push(draft, &answer)
    }

    /// Adds the items that a worker sends.
    pub(super) fn push_all(
        &mut self,
        draft: &mut Draft<'_>,
        items: &[NewItem],
    ) -> Result<Vec<ItemId>, Rejection> {
        require_limit("items in one call", items.len(), limits::COMMAND_ITEMS_MAX)?;
        let first = self.items.len();
        for item in items {
            self.push_worker_item(draft, item, first)?;
        }
        Ok(self.items[first..].iter().map(|item| item.id).collect())
    }

    /// Adds the items of a turn that ran outside of the server: messages and notes, no tool calls.
    pub(super) fn push_recorded(
        &mut self,
        draft: &mut Draft<'_>,
        items: &[NewItem],
    ) -> Result<(), Rejection> {
        require_limit("items in one call", items.len(), limits::COMMAND_ITEMS_MAX)?;
        if items.is_empty() {
            return Err(Rejection::ItemMalformed("a recorded turn has an item"));
        }
        for item in items {
            let is_known = match (item.kind, item.role, item.call) {
                (ItemKind::Message, Some(Role::User | Role::Assistant), None) => true,
                (ItemKind::Note, None, None) => item.visibility == Visibility::Hidden,
                _ => false,
            };
            if !is_known {
                return Err(Rejection::ItemMalformed(
                    "a recorded turn has messages of the user and the assistant, and hidden notes",
                ));
            }
            self.push(draft, item)?;
        }
        Ok(())
    }

    /// Writes the batch.
    pub(super) fn write(self, draft: &mut Draft<'_>) {
        let Some(task) = draft
            .state
            .requests
            .get(&self.request)
            .map(|live| live.task)
        else {
            return;
        };
        if !self.items.is_empty() {
            let (request, items) = (self.request, self.items);
            draft.emit(Event::ItemsAppended {
                task,
                request,
                items,
            });
        }
    }

    fn push_worker_item(
        &mut self,
        draft: &mut Draft<'_>,
        item: &NewItem,
        first: usize,
    ) -> Result<(), Rejection> {
        match (item.kind, item.role, item.call) {
            (ItemKind::Message, Some(Role::User), None)
                if self.is_root && item.visibility == Visibility::Visible =>
            {
                Err(Rejection::ItemMalformed(
                    "only the client's own question is a visible message of the user",
                ))
            }
            (ItemKind::Message, Some(Role::User | Role::Assistant), None)
            | (ItemKind::Step | ItemKind::Note, None, None) => self.push(draft, item),
            (ItemKind::ToolCall, None, Some(NewCallMark::Call { .. }))
            | (ItemKind::ToolResult, None, Some(NewCallMark::Result { .. })) => {
                if item.visibility == Visibility::Visible {
                    return Err(Rejection::ItemMalformed(
                        "tool calls and results are always hidden",
                    ));
                }
                self.push_call_item(draft, item, first)
            }
            (ItemKind::Message, _, _) => Err(Rejection::ItemMalformed(
                "a message has the role `user` or `assistant` and says nothing about a tool call",
            )),
            (ItemKind::ToolCall | ItemKind::ToolResult, _, _) => Err(Rejection::ItemMalformed(
                "a tool call or result says which call it is, and has no role",
            )),
            (ItemKind::Step | ItemKind::Note, _, _) => Err(Rejection::ItemMalformed(
                "a step or note has no role and says nothing about a tool call",
            )),
        }
    }

    fn push_call_item(
        &mut self,
        draft: &mut Draft<'_>,
        item: &NewItem,
        first: usize,
    ) -> Result<(), Rejection> {
        let mark = match item.call {
            Some(NewCallMark::Call { idempotent, gated }) => CallMark::Call { idempotent, gated },
            Some(NewCallMark::Result { call, outcome }) => {
                let call = self.resolve(call, first)?;
                let executed = self.take_result(call, outcome)?;
                CallMark::Result {
                    call,
                    outcome,
                    executed,
                }
            }
            None => {
                return Err(Rejection::ItemMalformed(
                    "a tool item says which call it is",
                ));
            }
        };
        self.push(draft, item)?;
        if let Some(last) = self.items.last_mut() {
            last.call = Some(mark);
            if let CallMark::Call { idempotent, gated } = mark {
                let state = if gated {
                    CallState::Proposed
                } else {
                    CallState::Started { fence: self.fence }
                };
                require_limit(
                    "open tool calls of one request",
                    self.calls.len() + 1,
                    limits::REQUEST_CALLS_MAX,
                )?;
                self.calls.insert(
                    last.id,
                    OpenCall {
                        idempotent,
                        gated,
                        state,
                        digest: None,
                        asked: None,
                    },
                );
            }
        }
        Ok(())
    }

    /// The call that is meant.
    pub(super) fn resolve(&self, target: CallTarget, first: usize) -> Result<ItemId, Rejection> {
        let (named, id) = match target {
            CallTarget::Recorded(id) => (Some(id), Some(id)),
            CallTarget::SameCommand(index) => {
                (None, self.items.get(first + index).map(|item| item.id))
            }
        };
        id.filter(|id| self.calls.contains_key(id))
            .ok_or(Rejection::CallUnknown { call: named })
    }

    /// How far a call is, with the items of this batch.
    pub(super) fn call(&self, id: ItemId) -> Option<&OpenCall> {
        self.calls.get(&id)
    }

    /// Accepts a result only if it matches the decision about its call; returns the digest of the
    /// executed action.
    fn take_result(
        &mut self,
        call: ItemId,
        outcome: CallOutcome,
    ) -> Result<Option<crate::digest::Digest>, Rejection> {
        let Some(open) = self.calls.get(&call).cloned() else {
            return Err(Rejection::CallUnknown { call: Some(call) });
        };
        let fits = match (open.state, outcome) {
            (CallState::Started { .. } | CallState::Confirmed, CallOutcome::Ran)
            | (CallState::Refused, CallOutcome::Refused)
            | (CallState::Answered, CallOutcome::Answered) => true,
            (CallState::Proposed, CallOutcome::Ran) => mutant::is_on(Mutant::RunUngated),
            _ => false,
        };
        if !fits {
            return Err(Rejection::CallNotReleased { call });
        }
        self.calls.remove(&call);
        Ok(open.digest.filter(|_| outcome == CallOutcome::Ran))
    }

    fn push(&mut self, draft: &mut Draft<'_>, item: &NewItem) -> Result<(), Rejection> {
        require_limit(
            "attachments of one item",
            item.attachments.len(),
            limits::ITEM_ATTACHMENTS_MAX,
        )?;
        let shows = self.is_root || mutant::is_on(Mutant::ShowChildMessages);
        let visibility = if shows {
            item.visibility
        } else {
            Visibility::Hidden
        };
        self.items.push(Item {
            id: ItemId::from_uuid(draft.fresh_uuid()),
            seq: draft.state.items_appended + self.items.len() as u64 + 1,
            kind: item.kind,
            visibility,
            role: item.role,
            body: item.body,
            attachments: item.attachments.clone(),
            call: None,
        });
        Ok(())
    }
}

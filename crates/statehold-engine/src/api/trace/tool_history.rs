//! A trace as the messages of a chat: questions, calls of tools by the assistant, their results, and answers. Agents
//! that keep their own history have it in this form, in a member `tool_call_history`.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use std::collections::BTreeMap;

use serde::Serialize;
use statehold_core::ids::{ItemId, RequestId, TaskId};
use statehold_core::item::{CallMark, CallOutcome, ItemKind, Role, Visibility};
use statehold_store::StoredItem;
use utoipa::ToSchema;

use crate::api::item::ItemView;
use crate::api::json::{Raw, raw_text};
use crate::api::schema::Content;
use crate::bodies::AttachmentBody;
use crate::read::ItemPage;

/// A page of a history as messages, the oldest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ToolCallHistory {
    pub tool_call_history: Vec<HistoryMessageView>,
    /// Steps and notes of the page: no message has a place for them.
    pub left_out: usize,
    pub revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A message of the history.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = HistoryMessage)]
pub struct HistoryMessageView {
    pub role: Role,
    /// Empty if the assistant only calls tools. Of a tool: its result, as text.
    #[schema(value_type = Content)]
    pub content: Raw,
    /// The calls that the assistant made one after the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub tool_calls: Vec<ToolCallView>,
    /// The call that a result belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ItemId>,
    /// The tool of a result, if its call is on the same page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Option<AttachmentBody>>, required = false)]
    pub attachments: Vec<Raw>,
    pub statehold: ItemMark,
}

/// A call of a tool.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = HistoryToolCall)]
pub struct ToolCallView {
    /// The id of its item, which is its execution key.
    pub id: ItemId,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub function: FunctionCallView,
}

/// The tool and its arguments.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = HistoryFunctionCall)]
pub struct FunctionCallView {
    pub name: String,
    /// JSON as text.
    pub arguments: String,
}

/// The item that a message was made of; the first one of several calls.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = HistoryItemMark)]
pub struct ItemMark {
    pub seq: u64,
    pub visibility: Visibility,
    pub task_id: TaskId,
    pub request_id: RequestId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<CallOutcome>,
    /// A rewind removed the item from the conversation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub rewound: bool,
    /// The content was deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub erased: bool,
}

impl ToolCallHistory {
    /// The messages of a page, and the `seq` before which the next page begins. A page that is not the oldest begins
    /// where a message does, so that the calls of one message are together.
    pub(super) fn of(page: ItemPage) -> (Self, Option<u64>) {
        let ItemPage {
            mut items,
            mut next,
            revision,
        } = page;
        items.reverse();
        if next.is_some() {
            let begin = whole_messages_from(&items);
            if let Some(first) = items.get(begin) {
                next = Some(first.placed.item.seq);
            }
            items.drain(..begin);
        }
        let mut history = Self {
            tool_call_history: Vec::new(),
            left_out: 0,
            revision,
            next_cursor: None,
        };
        let mut tools = BTreeMap::new();
        // Whether the newest message may take further calls.
        let mut is_calling = false;
        for stored in &items {
            is_calling = history.add(stored, &mut tools, is_calling);
        }
        (history, next)
    }

    /// Adds an item. Returns whether the calls of the newest message may go on.
    fn add(
        &mut self,
        stored: &StoredItem,
        tools: &mut BTreeMap<ItemId, String>,
        is_calling: bool,
    ) -> bool {
        let placed = &stored.placed;
        let mut shown = ItemView::of(stored);
        match shown.kind {
            ItemKind::Message => {
                let content = shown.content.take();
                let role = shown.role.unwrap_or(Role::Assistant);
                self.push(shown, role, content.unwrap_or_else(|| raw_text("")));
                false
            }
            ItemKind::ToolCall => {
                let name = shown.name.take().unwrap_or_default();
                tools.insert(shown.id, name.clone());
                let arguments = shown.arguments.take();
                let call = ToolCallView {
                    id: shown.id,
                    kind: "function",
                    function: FunctionCallView {
                        name,
                        arguments: arguments.map_or_else(String::new, |raw| raw.get().to_owned()),
                    },
                };
                let newest = self.tool_call_history.last();
                let goes_on = newest.is_some_and(|message| {
                    is_calling && message.statehold.request_id == placed.request
                });
                if !goes_on {
                    self.push(shown, Role::Assistant, raw_text(""));
                }
                if let Some(message) = self.tool_call_history.last_mut() {
                    message.tool_calls.push(call);
                }
                true
            }
            ItemKind::ToolResult => {
                let content = shown.result.take().map_or_else(|| raw_text(""), as_text);
                let call = match placed.item.call {
                    Some(CallMark::Result { call, .. }) => Some(call),
                    Some(CallMark::Call { .. }) | None => None,
                };
                self.push(shown, Role::Tool, content);
                if let Some(message) = self.tool_call_history.last_mut() {
                    message.tool_call_id = call;
                    message.name = call.and_then(|call| tools.get(&call).cloned());
                }
                false
            }
            ItemKind::Step | ItemKind::Note => {
                self.left_out += 1;
                is_calling
            }
        }
    }

    fn push(&mut self, shown: ItemView, role: Role, content: Raw) {
        self.tool_call_history.push(HistoryMessageView {
            role,
            content,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            attachments: shown.attachments,
            statehold: ItemMark {
                seq: shown.seq,
                visibility: shown.visibility,
                task_id: shown.task_id,
                request_id: shown.request_id,
                outcome: shown.outcome,
                rewound: shown.rewound,
                erased: shown.erased,
            },
        });
    }
}

/// The first item of a page at which a message begins for certain: the page does not show whether earlier calls belong
/// to its first one. 0 if there is none.
fn whole_messages_from(items: &[StoredItem]) -> usize {
    let mut kind_before = None;
    for (index, stored) in items.iter().enumerate() {
        let kind = stored.placed.item.kind;
        match (kind, kind_before) {
            (ItemKind::Message, _) | (ItemKind::ToolCall, Some(ItemKind::ToolResult)) => {
                return index;
            }
            (ItemKind::ToolCall | ItemKind::ToolResult, _) => kind_before = Some(kind),
            // They may stand between the calls of one message.
            (ItemKind::Step | ItemKind::Note, _) => {}
        }
    }
    0
}

/// A result as the text of a message.
fn as_text(result: Raw) -> Raw {
    if result.get().starts_with('"') {
        return result;
    }
    raw_text(result.get())
}

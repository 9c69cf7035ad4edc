//! Items and messages as lines of a page.

use std::collections::BTreeMap;

use statehold_core::ids::TaskId;
use statehold_core::item::{ItemKind, Role, Visibility};
use statehold_engine::api::item::{ItemView, MessageView};
use statehold_engine::api::json::Raw;
use statehold_engine::api::trace::FailedRequest;

use super::page;
use super::text::{PageText, shown};
use super::tree::word;

/// One message, call, result, step or note.
pub(super) struct ItemLine {
    pub(super) seq: u64,
    pub(super) at: String,
    /// Its kind or role: `user`, `assistant`, `tool call`, …
    pub(super) what: String,
    /// The author: the agent, or the tool.
    pub(super) who: String,
    /// A class of the style.
    pub(super) class: &'static str,
    pub(super) is_hidden: bool,
    pub(super) notes: Vec<String>,
    pub(super) parts: Vec<Part>,
}

/// A failed request.
pub(super) struct FailureLine {
    pub(super) alias: String,
    pub(super) at: String,
    pub(super) text: Option<PageText>,
}

/// A text of an item, under a name if it is not the only one.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) text: PageText,
}

impl Part {
    fn of(name: &'static str, raw: &Raw) -> Self {
        let text = PageText::json(raw);
        Self { name, text }
    }
}

impl ItemLine {
    /// A message of the transcript.
    pub(super) fn message(message: &MessageView) -> Self {
        let mut parts = vec![Part::of("", &message.content)];
        parts.extend(
            message
                .attachments
                .iter()
                .map(|file| Part::of("file", file)),
        );
        parts.extend(
            message
                .annotations
                .iter()
                .map(|raw| Part::of("annotations", raw)),
        );
        Self {
            seq: message.seq,
            at: page::time(message.created_at),
            what: word(message.role),
            who: message.name.as_deref().map_or_else(String::new, shown),
            class: class_of(ItemKind::Message, Some(message.role)),
            is_hidden: false,
            notes: Vec::new(),
            parts,
        }
    }

    /// An item of a trace. `tasks` has the names of the tasks that are known.
    pub(super) fn item(item: &ItemView, tasks: &BTreeMap<TaskId, String>) -> Self {
        let mut parts = Vec::new();
        let named = [
            ("", &item.content),
            ("arguments", &item.arguments),
            ("result", &item.result),
            ("data", &item.data),
            ("annotations", &item.annotations),
        ];
        for (name, raw) in named {
            parts.extend(raw.iter().map(|raw| Part::of(name, raw)));
        }
        parts.extend(item.attachments.iter().map(|file| Part::of("file", file)));
        let task = tasks.get(&item.task_id).map_or("", String::as_str);
        let name = item.name.as_deref().map(shown);
        let who = match (task, name) {
            ("", name) => name.unwrap_or_default(),
            (task, Some(name)) => format!("{task} · {name}"),
            (task, None) => task.to_owned(),
        };
        let mut notes = Vec::new();
        notes.extend(item.outcome.map(word));
        notes.extend((item.gated == Some(true)).then(|| "needs approval".to_owned()));
        notes.extend(item.rewound.then(|| "rewound".to_owned()));
        notes.extend(item.erased.then(|| "erased".to_owned()));
        let what = match (item.kind, item.role) {
            (ItemKind::Message, Some(role)) => word(role),
            (kind, _) => word(kind).replace('_', " "),
        };
        Self {
            seq: item.seq,
            at: page::time(item.created_at),
            what,
            who,
            class: class_of(item.kind, item.role),
            is_hidden: item.visibility == Visibility::Hidden,
            notes,
            parts,
        }
    }
}

impl FailureLine {
    /// A failed request, and why it failed.
    pub(super) fn of(failed: &FailedRequest) -> Self {
        Self {
            alias: failed.alias.clone(),
            at: page::time(failed.at),
            text: failed.error.as_ref().map(PageText::json),
        }
    }
}

fn class_of(kind: ItemKind, role: Option<Role>) -> &'static str {
    match (kind, role) {
        (ItemKind::Message, Some(Role::User)) => "user",
        (ItemKind::Message, _) => "assistant",
        (ItemKind::ToolCall | ItemKind::ToolResult, _) => "tool",
        (ItemKind::Step | ItemKind::Note, _) => "step",
    }
}

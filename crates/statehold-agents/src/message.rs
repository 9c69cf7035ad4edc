//! Messages as stored in items: content, attachments and metadata.

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use statehold_core::command::Output;
use statehold_core::ids::RequestId;
use statehold_core::item::{Attachment, AttachmentSource, Role};
use statehold_engine::bodies::{
    AttachmentBody, ItemBody, Raw, message_in, parse, payload, text_of, to_bytes,
};
use statehold_engine::{Payloads, StoredItem, StoredRecord};

/// One input or output message.
#[derive(Debug, Clone)]
pub(crate) struct AgentMessage {
    /// A string, or a list of parts.
    pub(crate) content: Raw,
    pub(crate) attachments: Vec<AttachmentBody>,
    pub(crate) annotations: Option<Raw>,
    /// Data that clients do not see.
    pub(crate) data: Option<Raw>,
}

/// Serializes a value of our own types to raw JSON.
pub(crate) fn raw<T: serde::Serialize>(value: &T) -> Raw {
    to_raw_value(value).expect("our own types always serialize to JSON")
}

impl AgentMessage {
    pub(crate) fn plain(text: &str) -> Self {
        Self {
            content: raw(&text),
            attachments: Vec::new(),
            annotations: None,
            data: None,
        }
    }

    /// The text, without images and attachments.
    pub(crate) fn text(&self) -> String {
        text_of(&self.content)
    }

    /// Reads a stored item. None if it was erased.
    pub(crate) fn from_item(item: &StoredItem) -> Option<Self> {
        let files = item.attachments.iter().map(|file| file.as_deref());
        Self::from_bodies(item.body.as_deref()?, files)
    }

    /// Reads the first user message, or the last assistant message, that a record wrote for a request.
    pub(crate) fn from_record(stored: &StoredRecord, id: RequestId, role: Role) -> Option<Self> {
        let item = message_in(&stored.record.content.events, id, role)?;
        let files = item
            .attachments
            .iter()
            .map(|file| payload(stored, file.body));
        Self::from_bodies(payload(stored, item.body)?, files)
    }

    fn from_bodies<'a>(body: &[u8], files: impl Iterator<Item = Option<&'a [u8]>>) -> Option<Self> {
        let body: ItemBody = parse(Some(body));
        let files = files.map(|file| serde_json::from_slice(file?).ok());
        Some(Self {
            content: body.content?,
            attachments: files.flatten().collect(),
            annotations: body.annotations,
            data: body.data,
        })
    }

    /// Adds the message to the payloads of a commit.
    pub(crate) fn put(&self, payloads: &mut Payloads) -> Output {
        let body = ItemBody {
            content: Some(self.content.clone()),
            annotations: self.annotations.clone(),
            data: self.data.clone(),
            ..ItemBody::default()
        };
        let files = self.attachments.iter().map(|file| {
            let source = match (&file.url, &file.reference_url) {
                (Some(_), _) => AttachmentSource::Url,
                (None, Some(_)) => AttachmentSource::ReferenceUrl,
                (None, None) => AttachmentSource::Inline,
            };
            (to_bytes(file), source)
        });
        let files: Vec<_> = files.collect();
        Output {
            body: payloads.put(to_bytes(&body)),
            attachments: files
                .into_iter()
                .map(|(bytes, source)| Attachment {
                    body: payloads.put(bytes),
                    source,
                })
                .collect(),
        }
    }
}

/// A tool call in the form of chat completions.
pub(crate) fn tool_call(id: &str, name: &str, arguments: &str) -> Value {
    let function = json!({ "name": name, "arguments": arguments });
    json!({ "id": id, "type": "function", "function": function })
}

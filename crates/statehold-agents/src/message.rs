//! Messages as stored in items: content, attachments and metadata.

use serde::Deserialize;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use statehold_core::command::Output;
use statehold_core::ids::RequestId;
use statehold_core::item::{Attachment, AttachmentSource, Role};
use statehold_core::name::Name;
use statehold_engine::bodies::{
    AttachmentBody, ItemBody, PartBody, Raw, message_in, parse, payload, text_of,
};
use statehold_engine::{Payloads, StoredItem, StoredRecord};

use crate::chat::is_usable_id;
use crate::spec::MediaKind;

/// The longest name of a conversation of DIAL, in bytes.
const CONVERSATION_BYTES_MAX: usize = 1_024;

/// The data of a message that came over the surface of DIAL:
/// `{"dial": {"conversation_id", "parameters", "ums_conversation_id"}}`.
#[derive(Deserialize)]
struct DialData {
    dial: Option<Raw>,
}

#[derive(Deserialize)]
struct DialConversation {
    conversation_id: Option<String>,
}

#[derive(Deserialize)]
struct DialService {
    ums_conversation_id: Option<String>,
}

#[derive(Deserialize)]
struct DialParameters {
    parameters: Option<Map<String, Value>>,
}

/// One input or output message.
#[derive(Debug, Clone)]
pub(crate) struct AgentMessage {
    /// A string, or a list of parts.
    pub(crate) content: Raw,
    pub(crate) attachments: Vec<AttachmentBody>,
    /// The order of texts and attachments, if they came as parts.
    pub(crate) parts: Vec<PartBody>,
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
            parts: Vec::new(),
            annotations: None,
            data: None,
        }
    }

    /// The text, without images and attachments.
    pub(crate) fn text(&self) -> String {
        text_of(&self.content)
    }

    /// Whether its client shows the stages of the turn.
    pub(crate) fn shows_stages(&self) -> bool {
        self.dial().is_some()
    }

    /// The data of another message of the same turn: whether its client shows stages, and nothing
    /// else.
    pub(crate) fn stage_marker(&self) -> Option<Raw> {
        self.shows_stages().then(|| raw(&json!({"dial": {}})))
    }

    /// The conversation that a client of DIAL named.
    pub(crate) fn dial_conversation(&self) -> Option<String> {
        let members: DialConversation = serde_json::from_str(self.dial()?.get()).ok()?;
        let id = members.conversation_id?;
        (1..=CONVERSATION_BYTES_MAX)
            .contains(&id.len())
            .then_some(id)
    }

    /// The conversation of a service that a trusted client brought along, from a coordinator that kept it with its
    /// answers.
    pub(crate) fn brought_conversation(&self) -> Option<String> {
        let members: DialService = serde_json::from_str(self.dial()?.get()).ok()?;
        members.ums_conversation_id.filter(|id| is_usable_id(id))
    }

    /// The parameters that a client of DIAL set, as members of its call.
    pub(crate) fn dial_parameters(&self) -> Map<String, Value> {
        let dial = self.dial();
        let members = dial.and_then(|dial| serde_json::from_str::<DialParameters>(dial.get()).ok());
        members
            .and_then(|members| members.parameters)
            .unwrap_or_default()
    }

    /// The part of the hidden data that the surface of DIAL wrote.
    fn dial(&self) -> Option<Raw> {
        let data: DialData = serde_json::from_str(self.data.as_ref()?.get()).ok()?;
        data.dial
    }

    /// Adds a text below the message, after a blank line.
    pub(crate) fn push_text_below(&mut self, text: &str) {
        self.content = match serde_json::from_str(self.content.get()) {
            Ok(Value::Array(mut parts)) => {
                parts.push(json!({"type": "text", "text": text}));
                raw(&parts)
            }
            _ => raw(&format!("{}\n\n{text}", self.text())),
        };
    }

    /// The texts and files of a message that came as parts, in their order, and the attachments that came
    /// beside them. `text` is the text of the message.
    pub(crate) fn placed_parts<'a>(
        &'a self,
        text: &'a str,
    ) -> (Vec<MessagePart<'a>>, Vec<&'a AttachmentBody>) {
        let mut files: Vec<_> = self.attachments.iter().map(Some).collect();
        let mut take = |place: usize| files.get_mut(place).and_then(Option::take);
        let (mut parts, mut rest) = (Vec::new(), text);
        for part in &self.parts {
            match part {
                PartBody::Text(bytes) => {
                    let (text, after) = rest.split_at_checked(*bytes).unwrap_or((rest, ""));
                    parts.push(MessagePart::Text(text));
                    rest = after.strip_prefix('\n').unwrap_or(after);
                }
                PartBody::Image { attachment, detail } => parts.extend(
                    take(*attachment).map(|file| MessagePart::Image(file, detail.as_deref())),
                ),
                PartBody::File { attachment } => {
                    parts.extend(take(*attachment).map(MessagePart::File));
                }
            }
        }
        // A coordinator may have added instructions to the text.
        let rest = if self.parts.is_empty() {
            rest
        } else {
            rest.trim_start_matches('\n')
        };
        if !rest.is_empty() {
            parts.push(MessagePart::Text(rest));
        }
        (parts, files.into_iter().flatten().collect())
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

    /// Reads a message that was added to the payloads of a commit, as it is stored.
    pub(crate) fn from_output(output: &Output, payloads: &Payloads) -> Option<Self> {
        let files = output.attachments.iter();
        let files = files.map(|file| payloads.get(&file.body));
        Self::from_bodies(payloads.get(&output.body)?, files)
    }

    fn from_bodies<'a>(body: &[u8], files: impl Iterator<Item = Option<&'a [u8]>>) -> Option<Self> {
        let body: ItemBody = parse(Some(body));
        let files = files.map(|file| serde_json::from_slice(file?).ok());
        Some(Self {
            content: body.content?,
            attachments: files.flatten().collect(),
            parts: body.parts,
            annotations: body.annotations,
            data: body.data,
        })
    }

    /// Adds the message to the payloads of a commit.
    pub(crate) fn put(&self, payloads: &mut Payloads) -> Output {
        self.put_as(None, payloads)
    }

    /// Adds the message of a named phase to the payloads of a commit.
    pub(crate) fn put_as(&self, name: Option<&Name>, payloads: &mut Payloads) -> Output {
        let body = ItemBody {
            name: name.map(Name::to_string),
            content: Some(self.content.clone()),
            annotations: self.annotations.clone(),
            data: self.data.clone(),
            parts: self.parts.clone(),
            ..ItemBody::default()
        };
        let files = self.attachments.iter().map(|file| {
            let source = match (&file.url, &file.reference_url) {
                (Some(_), _) => AttachmentSource::Url,
                (None, Some(_)) => AttachmentSource::ReferenceUrl,
                (None, None) => AttachmentSource::Inline,
            };
            (payloads.put_file(file), source)
        });
        let files: Vec<_> = files.collect();
        Output {
            body: payloads.put_item(&body),
            attachments: files
                .into_iter()
                .map(|(body, source)| Attachment { body, source })
                .collect(),
        }
    }
}

/// A text or a file of a message.
pub(crate) enum MessagePart<'a> {
    Text(&'a str),
    /// A picture, and how closely a model should look at it.
    Image(&'a AttachmentBody, Option<&'a str>),
    /// A file whose data is in base64.
    File(&'a AttachmentBody),
}

impl<'a> MessagePart<'a> {
    /// An attachment as a part, if its type says that it is a picture or a sound.
    pub(crate) fn of_attachment(file: &'a AttachmentBody) -> Option<Self> {
        match media_kind(file) {
            MediaKind::Image => Some(Self::Image(file, None)),
            MediaKind::Audio if file.data.is_some() => Some(Self::File(file)),
            MediaKind::Audio | MediaKind::File => None,
        }
    }

    pub(crate) fn file(&self) -> Option<&'a AttachmentBody> {
        match self {
            Self::Text(_) => None,
            Self::Image(file, _) | Self::File(file) => Some(file),
        }
    }

    /// The kind of input that a model must take to get it. None for text.
    pub(crate) fn media(&self) -> Option<MediaKind> {
        match self {
            Self::Text(_) => None,
            Self::Image(..) => Some(MediaKind::Image),
            Self::File(file) => Some(media_kind(file)),
        }
    }

    /// The part in the form of chat completions. None for a file that is only an address.
    pub(crate) fn to_json(&self) -> Option<Value> {
        match self {
            Self::Text(text) => Some(text_part(text)),
            Self::Image(file, detail) => {
                let mut image = json!({ "url": file_url(file)? });
                if let Some(detail) = detail {
                    image["detail"] = (*detail).into();
                }
                Some(json!({"type": "image_url", "image_url": image}))
            }
            Self::File(file) if media_kind(file) == MediaKind::Audio => {
                let kind = file.kind.as_deref().unwrap_or_default();
                Some(audio_part(kind, file.data.as_deref()?))
            }
            Self::File(file) => {
                let mut sent = json!({ "file_data": file_url(file)? });
                if let Some(title) = &file.title {
                    sent["filename"] = title.as_str().into();
                }
                Some(json!({"type": "file", "file": sent}))
            }
        }
    }
}

/// The address of a file, or one that holds its data.
fn file_url(file: &AttachmentBody) -> Option<String> {
    let data = || {
        let kind = file.kind.as_deref().unwrap_or_default();
        Some(format!("data:{kind};base64,{}", file.data.as_ref()?))
    };
    file.url.clone().or_else(data)
}

fn media_kind(file: &AttachmentBody) -> MediaKind {
    let kind = file.kind.as_deref().unwrap_or_default();
    match kind.split('/').next() {
        Some("image") => MediaKind::Image,
        Some("audio") => MediaKind::Audio,
        _ => MediaKind::File,
    }
}

/// A text as a part of a message.
pub(crate) fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A sound as a part of a message.
pub(crate) fn audio_part(kind: &str, data: &str) -> Value {
    let format = match kind.rsplit('/').next().unwrap_or_default() {
        "mpeg" => "mp3",
        "x-wav" | "wave" => "wav",
        other => other,
    };
    json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
}

/// A tool call in the form of chat completions.
pub(crate) fn tool_call(id: &str, name: &str, arguments: &str) -> Value {
    let function = json!({ "name": name, "arguments": arguments });
    json!({ "id": id, "type": "function", "function": function })
}

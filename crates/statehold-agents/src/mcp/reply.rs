//! Tool results, limited to a size that can be stored and sent to a model.

use std::fmt::Write;

use rmcp::model::{CallToolResult, ContentBlock};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use statehold_core::limits::ITEM_ATTACHMENTS_MAX;
use statehold_engine::bodies::AttachmentBody;

use super::listing::truncate;
use crate::message::audio_part;
use crate::secrets::SecretRedactor;
use crate::spec::MediaKind;

/// Most bytes of a result as JSON, including the note about omitted parts.
pub(super) const REPLY_BYTES_MAX: usize = 1024 * 1024;
/// Bytes reserved for that note and the JSON around the parts.
const NOTE_BYTES_MAX: usize = 512;

/// Result of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolReply {
    /// A string if the result has only text. Otherwise an object with `text`, `structured` for
    /// structured content, and `parts` for images, audio and resources.
    pub(crate) content: Value,
    /// Whether the tool reports an error.
    pub(crate) is_error: bool,
}

impl ToolReply {
    /// Converts a result: redacts secrets and truncates.
    pub(super) fn of(result: CallToolResult, secrets: &SecretRedactor) -> Self {
        let mut left = REPLY_BYTES_MAX - NOTE_BYTES_MAX;
        let mut cut = CutParts::default();
        let mut texts = Vec::new();
        let mut parts = Vec::new();
        for part in result.content {
            match part {
                ContentBlock::Text(text) => texts.push(text.text),
                other => parts.push(serde_json::to_value(other).unwrap_or_default()),
            }
        }
        let has_text = !texts.is_empty();
        let mut structured = result.structured_content;
        let mut text = secrets.redact(texts.join("\n"));
        for value in structured.iter_mut().chain(&mut parts) {
            secrets.redact_value(value);
        }
        let fitting_len = fitting_len(&text, left);
        if fitting_len < text.len() {
            cut.text = Some((text.len(), fitting_len));
            text.truncate(fitting_len);
        }
        left = left.saturating_sub(json_len(&text));
        let mut keep = |value: &Value| {
            let size = value.to_string().len();
            let fits = size <= left;
            if fits {
                left -= size;
            } else {
                cut.values += 1;
            }
            fits
        };
        let structured = structured.filter(|value| !repeats_text(value, &text));
        let structured = structured.filter(&mut keep);
        parts.retain(&mut keep);
        cut.write_to(&mut text);

        let mut members = Map::new();
        if let Some(structured) = structured {
            members.insert("structured".to_owned(), structured);
        }
        if !parts.is_empty() {
            members.insert("parts".to_owned(), Value::from(parts));
        }
        let content = if members.is_empty() {
            Value::from(text)
        } else {
            if has_text || !text.is_empty() {
                members.shift_insert(0, "text".to_owned(), Value::from(text));
            }
            Value::Object(members)
        };
        Self {
            content,
            is_error: result.is_error.unwrap_or(false),
        }
    }

    /// Text for the model: the text parts, which repeat the structured content if there is any; a sentence
    /// about each image and sound, which a model cannot read as text; other parts as JSON.
    pub(crate) fn for_model(&self) -> String {
        let Value::Object(members) = &self.content else {
            return match &self.content {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
        };
        let text = members.get("text").and_then(Value::as_str);
        let structured = members.get("structured").filter(|_| text.is_none());
        let parts = members.get("parts").and_then(Value::as_array);
        let lines = text
            .map(str::to_owned)
            .into_iter()
            .chain(structured.map(Value::to_string))
            .chain(parts.into_iter().flatten().map(part_text));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Whether structured content is the text alone, as SDKs wrap the result of a function: `{"result": text}`.
fn repeats_text(structured: &Value, text: &str) -> bool {
    let members = structured.as_object().filter(|members| members.len() == 1);
    members.is_some_and(|members| members.get("result").and_then(Value::as_str) == Some(text))
}

/// A part that is not text, for the model.
fn part_text(part: &Value) -> String {
    let resource = part.get("resource").unwrap_or(part);
    let data = resource.get("data").or(resource.get("blob"));
    let Some(data) = data.and_then(Value::as_str) else {
        return part.to_string();
    };
    let kind = resource["mimeType"].as_str().unwrap_or("unknown type");
    // Four characters of base64 are three bytes.
    let bytes = data.len() / 4 * 3;
    format!("[The tool returned data of {kind}, about {bytes} bytes, which is not text.]")
}

/// An image or a sound that a tool returned.
#[derive(Debug, Clone)]
pub(crate) struct ToolMedia {
    pub(crate) kind: MediaKind,
    /// The media type.
    mime: String,
    /// The content in base64.
    data: String,
}

impl ToolMedia {
    /// The images and sounds of a recorded result.
    pub(crate) fn read(result: &RawValue) -> Vec<Self> {
        #[derive(Deserialize)]
        struct MediaPart {
            #[serde(rename = "type")]
            kind: Option<String>,
            #[serde(rename = "mimeType", default)]
            mime: String,
            data: Option<String>,
        }
        #[derive(Deserialize)]
        struct ResultParts {
            parts: Vec<MediaPart>,
        }
        let Ok(ResultParts { parts }) = serde_json::from_str(result.get()) else {
            return Vec::new();
        };
        let media = parts.into_iter().filter_map(|part| {
            let kind = match part.kind.as_deref() {
                Some("image") => MediaKind::Image,
                Some("audio") => MediaKind::Audio,
                _ => return None,
            };
            let (mime, data) = (part.mime, part.data?);
            Some(Self { kind, mime, data })
        });
        media.collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// The part of a message in chat completions form.
    pub(crate) fn to_part(&self) -> Value {
        match self.kind {
            MediaKind::Image => {
                let url = format!("data:{};base64,{}", self.mime, self.data);
                json!({"type": "image_url", "image_url": {"url": url}})
            }
            _ => audio_part(&self.mime, &self.data),
        }
    }
}

/// The links of a recorded result to files.
pub(crate) fn resource_links(result: &RawValue) -> Vec<AttachmentBody> {
    #[derive(Deserialize)]
    struct LinkPart {
        #[serde(rename = "type")]
        kind: Option<String>,
        uri: Option<String>,
        #[serde(rename = "mimeType")]
        mime: Option<String>,
        name: Option<String>,
        title: Option<String>,
    }
    #[derive(Deserialize)]
    struct ResultParts {
        parts: Vec<LinkPart>,
    }
    let Ok(ResultParts { parts }) = serde_json::from_str(result.get()) else {
        return Vec::new();
    };
    let links = parts
        .into_iter()
        .filter(|part| part.kind.as_deref() == Some("resource_link"));
    let links = links.filter_map(|part| {
        Some(AttachmentBody {
            kind: part.mime,
            title: part.title.or(part.name),
            url: Some(part.uri?),
            ..AttachmentBody::default()
        })
    });
    links.take(ITEM_ATTACHMENTS_MAX).collect()
}

/// Parts that were cut to fit.
#[derive(Default)]
struct CutParts {
    /// Original and remaining length of the text.
    text: Option<(usize, usize)>,
    values: usize,
}

impl CutParts {
    fn write_to(&self, text: &mut String) {
        let mut say = |words: std::fmt::Arguments<'_>| {
            let gap = if text.is_empty() { "" } else { "\n" };
            write!(text, "{gap}[{words}]").expect("writing to a string works");
        };
        if let Some((whole, kept)) = self.text {
            say(format_args!(
                "cut: the first {kept} of {whole} bytes; a result may have 1 MiB"
            ));
        }
        if self.values > 0 {
            say(format_args!(
                "cut: {} parts that are not text were left out; a result may have 1 MiB",
                self.values
            ));
        }
    }
}

/// Bytes of a character in a JSON string.
fn json_char_len(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => c.len_utf8(),
    }
}

fn json_len(text: &str) -> usize {
    text.chars().map(json_char_len).sum()
}

/// How much of a text fits into a number of JSON bytes, up to a character boundary.
fn fitting_len(text: &str, json_bytes_max: usize) -> usize {
    let mut left = json_bytes_max;
    let end = text.char_indices().find(|(_, c)| {
        let fits = json_char_len(*c) <= left;
        left = left.saturating_sub(json_char_len(*c));
        !fits
    });
    let end = end.map_or(text.len(), |(at, _)| at);
    truncate(text, end).len()
}

//! The request of a call to chat completions.
//!
//! Unknown fields are ignored: the clients of OpenAI and DIAL keep adding new ones. Fields that ask for an unsupported
//! feature are refused by name, so that no feature is silently missing.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_engine::api::json::{Raw, raw_bytes, to_body};
use statehold_engine::api::turn::{CarriedMessage, TurnDecision, UserMessage};
use statehold_engine::bodies::{PartBody, text_of};
use utoipa::ToSchema;

use super::files::{AttachmentIn, FileIn, ImageIn};
use super::legacy_state::{MalformedState, legacy_state};
use crate::chat::CarriedText;
use crate::http::problem::{Code, Problem};

/// The most messages of one call.
const MESSAGES_MAX: usize = 10_000;

/// A chat call. Other fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ChatRequest)]
pub(crate) struct CompletionsIn {
    /// The agent.
    #[schema(value_type = String, required)]
    pub(crate) model: Option<String>,
    /// With a session: the last one is the input, and the server knows the rest. Without: the whole
    /// conversation.
    #[schema(value_type = Vec<ChatMessageIn>, min_items = 1)]
    pub(crate) messages: Vec<Raw>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptionsIn>,
    /// The session: its id, `new`, or `none`.
    pub(crate) conversation: Option<ConversationIn>,
    /// The user of a new session, unless the key or a header says who it is.
    pub(crate) user: Option<String>,
    /// The same under its newer name.
    pub(crate) safety_identifier: Option<String>,
    /// Fields that only this server understands.
    pub(crate) statehold: Option<ExtensionIn>,
    /// Only 1.
    n: Option<u64>,
    /// Only false.
    logprobs: Option<bool>,
    #[schema(ignore)]
    top_logprobs: Option<u64>,
    #[schema(ignore)]
    modalities: Option<Vec<String>>,
    #[schema(ignore)]
    audio: Option<Raw>,
    #[schema(ignore)]
    web_search_options: Option<Raw>,
    /// For agents of the kind `openai`, without a session.
    #[schema(value_type = Option<Vec<serde_json::Value>>)]
    tools: Option<Vec<Raw>>,
    #[schema(ignore)]
    functions: Option<Vec<Raw>>,
    #[schema(ignore)]
    response_format: Option<ResponseFormatIn>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ChatStreamOptions)]
pub(crate) struct StreamOptionsIn {
    /// Whether a chunk with the usage comes before the end.
    pub(crate) include_usage: Option<bool>,
}

/// A session by its id.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ChatConversation)]
pub(crate) enum ConversationIn {
    Id(String),
    Object { id: String },
}

impl ConversationIn {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Id(id) | Self::Object { id } => id,
        }
    }
}

/// Fields of a chat call that only this server understands.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatExtension)]
pub(crate) struct ExtensionIn {
    /// Decisions for holds of the session. They are taken first; then the call follows their request.
    #[serde(default)]
    pub(crate) decisions: Vec<TurnDecision>,
    /// How holds are shown: as clients see them (`client`), or with everything that the caller may see
    /// (`own`), for services in which people decide elsewhere.
    #[serde(default)]
    holds: HoldsView,
}

/// How the holds of a paused turn are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ChatHoldsView)]
pub(crate) enum HoldsView {
    #[default]
    Client,
    Own,
}

#[derive(Debug, Deserialize)]
struct ResponseFormatIn {
    #[serde(rename = "type")]
    kind: String,
}

/// A message. The server reads only these fields.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ChatMessage)]
pub(crate) struct ChatMessageIn {
    pub(crate) role: String,
    /// Text, or a list of parts: `text`, `image_url` and `file`.
    #[schema(value_type = Option<statehold_engine::api::schema::Content>)]
    content: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    custom_content: Option<CustomIn>,
}

/// Files beside the content of a message of the user, as clients of DIAL send them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ChatMessageFiles)]
pub(crate) struct CustomIn {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attachments: Option<Vec<AttachmentIn>>,
    /// The state of an agent that trusts its callers, beside an earlier answer.
    #[serde(default, skip_deserializing, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    state: Option<Raw>,
}

/// An earlier message. A malformed `custom_content` does not make the message unreadable.
#[derive(Debug, Deserialize)]
struct EarlierIn {
    role: String,
    content: Option<Raw>,
    custom_content: Option<Raw>,
}

/// The legacy states of a call.
#[derive(Debug, Default)]
pub(crate) struct LegacyStates {
    /// The newest id of a conversation.
    pub(crate) conversation: Option<String>,
    /// Whether one of them fits no schema.
    pub(crate) has_malformed: bool,
}

/// The signs of a message about tools that the caller runs.
#[derive(Debug, Deserialize)]
struct ToolMarks {
    #[serde(default)]
    role: String,
    tool_calls: Option<Vec<IgnoredAny>>,
    function_call: Option<IgnoredAny>,
}

impl ToolMarks {
    fn has_any(&self) -> bool {
        let calls = self.tool_calls.as_ref();
        matches!(self.role.as_str(), "tool" | "function")
            || calls.is_some_and(|calls| !calls.is_empty())
            || self.function_call.is_some()
    }
}

/// The conversation so far, in the `data` of an input.
#[derive(Debug, Serialize)]
struct ContextOut<'a> {
    history: &'a [ChatMessageIn],
}

#[derive(Debug, Deserialize)]
struct PartIn {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    image_url: Option<ImageIn>,
    file: Option<FileIn>,
}

impl CompletionsIn {
    /// Whether the client asks for the usage in a stream.
    pub(crate) fn wants_stream_usage(&self) -> bool {
        let options = self.stream_options.as_ref();
        self.stream == Some(true) && options.is_some_and(|it| it.include_usage == Some(true))
    }

    /// Whether the answer shows holds with everything that the caller may see.
    pub(crate) fn wants_own_holds(&self) -> bool {
        let extension = self.statehold.as_ref();
        extension.is_some_and(|extension| extension.holds == HoldsView::Own)
    }

    /// The decisions in the call.
    pub(crate) fn decisions(&self) -> &[TurnDecision] {
        let extension = self.statehold.as_ref();
        extension.map_or(&[], |extension| &extension.decisions)
    }

    /// The last message, parsed, and its place for errors.
    pub(crate) fn last_message(&self) -> Result<(ChatMessageIn, String), Problem> {
        let Some(last) = self.messages.last() else {
            let detail = "`messages` is empty; send at least one";
            return Err(Problem::invalid(detail).with("path", "messages"));
        };
        let path = format!("messages[{}]", self.messages.len() - 1);
        let message = serde_json::from_str(last.get()).map_err(|error| {
            let detail = format!("`{path}` is {{role, content}}: {error}");
            Problem::invalid(detail).with("path", path.clone())
        })?;
        Ok((message, path))
    }

    /// Whether the caller brings tools of its own.
    pub(crate) fn has_tools(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| !tools.is_empty())
    }

    /// Whether the caller brings functions in the old form.
    pub(crate) fn has_functions(&self) -> bool {
        self.functions.as_ref().is_some_and(|list| !list.is_empty())
    }

    /// The reference of the newest answer that has one, and whether nothing was said between it and the new message.
    pub(crate) fn reference(&self) -> Option<(String, bool)> {
        let earlier = self.messages.len().saturating_sub(1);
        let mut is_last = true;
        for message in self.messages[..earlier].iter().rev() {
            let Ok(message) = serde_json::from_str::<EarlierIn>(message.get()) else {
                continue;
            };
            let custom = message
                .custom_content
                .filter(|_| message.role == "assistant");
            if let Some(CarriedText::Reference(text)) = custom.and_then(|it| CarriedText::of(&it)) {
                return Some((text, is_last));
            }
            is_last &= !matches!(message.role.as_str(), "user" | "assistant");
        }
        None
    }

    /// Whether the caller runs tools itself: it brings some, or has called one before.
    pub(crate) fn carries_tools(&self) -> bool {
        let is_about_tools = |message: &Raw| {
            let read = serde_json::from_str::<ToolMarks>(message.get());
            read.is_ok_and(|marks| marks.has_any())
        };
        self.has_tools() || self.has_functions() || self.messages.iter().any(is_about_tools)
    }

    /// The messages of user and assistant before the last one, and the same for an agent that does not know
    /// them. Other members of a message may claim anything, and are left out; `takes_states` keeps legacy states of
    /// answers, for an agent that trusts its callers.
    pub(crate) fn earlier(&self, takes_states: bool) -> (Vec<CarriedMessage>, Option<Raw>) {
        let (mut carried, mut context) = (Vec::new(), Vec::new());
        let earlier = self.messages.len().saturating_sub(1);
        for message in &self.messages[..earlier] {
            let Ok(EarlierIn {
                role,
                content,
                custom_content,
            }) = serde_json::from_str(message.get())
            else {
                continue;
            };
            let state = custom_content.as_deref().filter(|_| takes_states);
            let state = state.and_then(legacy_state).and_then(Result::ok);
            let state = state.and_then(|state| RawValue::from_string(state.own?).ok());
            let custom = custom_content.and_then(|custom| serde_json::from_str(custom.get()).ok());
            let mut message = ChatMessageIn {
                role,
                content,
                custom_content: custom,
            };
            let UserMessage { text, files, .. } = message.readable_parts();
            match message.role.as_str() {
                "user" => carried.push(CarriedMessage::by_user(&text, &files)),
                "assistant" => {
                    carried.push(CarriedMessage::by_assistant(&text));
                    message.custom_content = state.map(|state| CustomIn {
                        attachments: None,
                        state: Some(state),
                    });
                }
                _ => continue,
            }
            context.push(message);
        }
        let history = || raw_bytes(&to_body(&ContextOut { history: &context }));
        let context = (!context.is_empty()).then(history);
        (carried, context)
    }

    /// The legacy states that come with earlier answers. None if there are none.
    pub(crate) fn legacy(&self) -> Option<LegacyStates> {
        let earlier = self.messages.len().saturating_sub(1);
        let mut found: Option<LegacyStates> = None;
        for message in self.messages[..earlier].iter().rev() {
            let Ok(message) = serde_json::from_str::<EarlierIn>(message.get()) else {
                continue;
            };
            let custom = message
                .custom_content
                .filter(|_| message.role == "assistant");
            let Some(state) = custom.as_deref().and_then(legacy_state) else {
                continue;
            };
            let found = found.get_or_insert_default();
            match state {
                Ok(state) => {
                    // The newest one counts: an older conversation may have been given up.
                    found.conversation = found.conversation.take().or(state.conversation);
                }
                Err(MalformedState) => found.has_malformed = true,
            }
        }
        found
    }

    /// Refuses parameters that no agent supports.
    pub(crate) fn require_possible(&self) -> Result<(), Problem> {
        if self.messages.len() > MESSAGES_MAX {
            let detail =
                format!("a call carries at most {MESSAGES_MAX} messages; leave out the oldest");
            return Err(Problem::invalid(detail).with("path", "messages"));
        }
        let speaks = |modality: &String| modality != "text";
        let wanted = [
            ("n", self.n.is_some_and(|n| n != 1)),
            ("logprobs", self.logprobs == Some(true)),
            ("top_logprobs", self.top_logprobs.is_some_and(|n| n > 0)),
            ("modalities", self.modalities.iter().flatten().any(speaks)),
            ("audio", self.audio.is_some()),
            ("web_search_options", self.web_search_options.is_some()),
        ];
        match wanted.into_iter().find(|(_, is_wanted)| *is_wanted) {
            Some((name, _)) => Err(not_supported(name)),
            None => Ok(()),
        }
    }

    /// Refuses parameters that only chat services support, and only without a session.
    pub(crate) fn require_plain(&self) -> Result<(), Problem> {
        let has = |list: &Option<Vec<Raw>>| list.as_ref().is_some_and(|list| !list.is_empty());
        if has(&self.tools) || has(&self.functions) {
            let path = if has(&self.tools) {
                "tools"
            } else {
                "functions"
            };
            return Err(Problem::new(
                Code::ToolsNotSupported,
                format!(
                    "`{path}` is passed on only to agents of the kind `openai` and without a session; \
                     leave it out"
                ),
            )
            .with("path", path));
        }
        let format = self.response_format.as_ref();
        if format.is_some_and(|format| format.kind != "text") {
            return Err(not_supported("response_format"));
        }
        Ok(())
    }
}

fn not_supported(name: &str) -> Problem {
    let detail = format!("`{name}` asks for something that agents here do not do; leave it out");
    Problem::new(Code::ParameterNotSupported, detail).with("path", name)
}

impl ChatMessageIn {
    /// Whether the content is plain text.
    pub(crate) fn is_text(&self) -> bool {
        let content = self.content.as_ref();
        content.is_some_and(|content| content.get().starts_with('"'))
    }

    /// The text and the files of a message as far as the server reads them.
    fn readable_parts(&self) -> UserMessage {
        let whole = self.user_message("");
        whole.unwrap_or_else(|_| {
            let content = self.content.as_deref();
            UserMessage {
                text: content.map(text_of).unwrap_or_default(),
                ..UserMessage::default()
            }
        })
    }

    /// The message as the engine takes it: the texts of its parts, joined, and its files.
    pub(crate) fn user_message(&self, path: &str) -> Result<UserMessage, Problem> {
        let mut message = self.content_parts(path)?;
        let custom = self.custom_content.as_ref();
        let beside = custom.and_then(|custom| custom.attachments.as_ref());
        let beside = beside.into_iter().flatten();
        message.files.extend(beside.map(AttachmentIn::to_file));
        Ok(message)
    }

    fn content_parts(&self, path: &str) -> Result<UserMessage, Problem> {
        let wrong = |what: &str| {
            let path = format!("{path}.content");
            Problem::invalid(format!("`{path}` {what}")).with("path", path)
        };
        let Some(content) = &self.content else {
            return Err(wrong("is missing; send text or a list of parts"));
        };
        if self.is_text() {
            let text = serde_json::from_str(content.get());
            let text = text.map_err(|_| wrong("is text or a list of parts"))?;
            return Ok(UserMessage {
                text,
                ..UserMessage::default()
            });
        }
        let sent: Vec<PartIn> = serde_json::from_str(content.get())
            .map_err(|error| wrong(&format!("is text or a list of parts: {error}")))?;
        let (mut texts, mut files, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for part in sent {
            let attachment = files.len();
            match (part.kind.as_str(), part.text, part.image_url, part.file) {
                ("text", Some(text), ..) => {
                    parts.push(PartBody::Text(text.len()));
                    texts.push(text);
                }
                ("image_url", _, Some(mut image), _) => {
                    let detail = image.detail.take();
                    parts.push(PartBody::Image { attachment, detail });
                    files.push(image.into_file());
                }
                ("file", .., Some(file)) => {
                    parts.push(PartBody::File { attachment });
                    files.push(file.into_file().map_err(wrong)?);
                }
                (kind, ..) => {
                    let kind: String = kind.chars().take(64).collect();
                    let what = format!(
                        "has a part `{kind}` that is not understood; send `text`, `image_url` or `file`"
                    );
                    return Err(wrong(&what));
                }
            }
        }
        if files.is_empty() {
            parts.clear();
        }
        Ok(UserMessage {
            text: texts.join("\n"),
            files,
            parts,
            data: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use statehold_engine::api::json::to_body;

    use super::*;

    fn user_message(content: &str) -> Result<UserMessage, Problem> {
        let message = format!(r#"{{"role":"user","content":{content}}}"#);
        let message: ChatMessageIn = serde_json::from_str(&message).expect("a message");
        message.user_message("messages[0]")
    }

    #[test]
    fn parts_are_joined_and_files_become_attachments() {
        let found = user_message(
            r#"[{"type":"text","text":"look"},
                {"type":"image_url","image_url":{"url":"https://x.test/a.png"}},
                {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},
                {"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,BB"}},
                {"type":"text","text":"here"}]"#,
        );
        let found = found.expect("a message");
        assert_eq!(found.text, "look\nhere");
        let files: Vec<_> = found.files.iter().map(to_body).collect();
        assert_eq!(
            files
                .iter()
                .map(|file| String::from_utf8_lossy(file))
                .collect::<Vec<_>>(),
            [
                r#"{"url":"https://x.test/a.png"}"#,
                r#"{"type":"image/png","data":"AAAA"}"#,
                r#"{"type":"application/pdf","title":"a.pdf","data":"BB"}"#,
            ]
        );
    }

    #[test]
    fn the_order_of_texts_and_files_is_kept() {
        let found = user_message(
            r#"[{"type":"image_url","image_url":{"url":"https://x.test/a.png","detail":"high"}},
                {"type":"text","text":"and"},
                {"type":"file","file":{"filename":"a.pdf","file_data":"BB"}}]"#,
        );
        let parts = found.expect("a message").parts;
        let expected =
            r#"[{"image":{"attachment":0,"detail":"high"}},{"text":3},{"file":{"attachment":1}}]"#;
        assert_eq!(String::from_utf8_lossy(&to_body(&parts)), expected);
        let texts = user_message(r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#);
        assert_eq!(texts.expect("a message").parts, []);
    }

    #[test]
    fn files_beside_the_content_are_taken() {
        let message = r#"{"role":"user","content":"look","custom_content":{"state":{"x":1},"attachments":[
            {"index":0,"type":"text/csv","title":"t","data":null,"url":"files/a.csv","reference_type":null}]}}"#;
        let message: ChatMessageIn = serde_json::from_str(message).expect("a message");
        let found = message.user_message("messages[0]").expect("a message");
        assert_eq!((found.text.as_str(), found.parts), ("look", Vec::new()));
        let file = String::from_utf8(to_body(&found.files)).expect("text");
        assert_eq!(
            file,
            r#"[{"type":"text/csv","title":"t","url":"files/a.csv"}]"#
        );
        assert!(!String::from_utf8_lossy(&to_body(&message)).contains("state"));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for content in [
            "null",
            "7",
            r#"[{"type":"video","video":1}]"#,
            r#"[{"type":"file","file":{"file_id":"file-1"}}]"#,
            r#"[{"type":"file"}]"#,
            r#"[{"type":"file","file":{"file_data":"https://x.test/a.pdf"}}]"#,
            r#"[{"type":"text"}]"#,
        ] {
            let refused = user_message(content).expect_err("no message");
            assert_eq!(refused.code, "invalid_body", "{content}");
            assert_eq!(refused.more["path"], "messages[0].content", "{content}");
        }
    }
}

//! Schemas of strings and words with a fixed form, for the `OpenAPI` document only. The parsers check the
//! values; these types only describe them. Ids, names and the enums of the model derive their schemas behind
//! the feature `schema` of the core.

use std::borrow::Cow;

use serde_json::Value;
use utoipa::openapi::schema::{
    AnyOfBuilder, ArrayBuilder, ObjectBuilder, Schema, SchemaFormat, Type,
};
use utoipa::openapi::{KnownFormat, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::item::MessageInput;
use super::json::Time;

/// Declares types that only carry a named schema.
macro_rules! schemas {
    ($($(#[$doc:meta])+ $name:ident as $named:literal = $schema:expr;)*) => {$(
        $(#[$doc])+
        pub enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($named)
            }
        }
    )*};
}

schemas! {
    /// The key of a label.
    LabelText as "Label" = text("1 to 64 bytes without `:` and control characters.")
        .min_length(Some(1))
        .max_length(Some(64))
        .pattern(Some(r"^[^:\u0000-\u001f\u007f-\u009f]+$"));
    /// A key that verifies signatures.
    PublicKeyText as "PublicKey" =
        text("An Ed25519 public key in hexadecimal.").pattern(Some("^[0-9a-f]{64}$"));
    /// The kind of a problem that a verification found.
    ProblemKindWord as "AuditProblemKind" = word(
        "What kind of thing is wrong.",
        &[
            "record", "payload", "projection", "missing_tail", "missing_session", "entry", "root",
        ],
    );
    /// The kind of an agent.
    AgentKindWord as "AgentKind" = word(
        "`worker`: a process claims its work. All others are called by the server itself.",
        &[
            "worker", "openai", "dial", "conversations", "analytics", "mcp", "llm", "router", "pipeline",
        ],
    );
    /// The session of a chat call that names none.
    ChatSessionsWord as "ChatSessions" = word(
        "The session of a chat call that names none: the one in which its messages were said, or a new \
         one (`auto`); none, and the call is refused (`explicit`); none, and nothing is kept (`none`).",
        &["auto", "explicit", "none"],
    );
    /// Which calls of a tool need an approval.
    ToolApprovalWord as "ToolApproval" = word(
        "Which calls need an approval: every one, none, those that the worker chooses, or those \
         whose arguments fit a condition.",
        &["always", "never", "worker", "conditional"],
    );
    /// Which holds to list.
    HoldStatusFilter as "HoldStatusFilter" = word(
        "How a hold ended, that it has not, or `decided` for all that ended.",
        &[
            "open", "decided", "approved", "edited", "answered", "rejected", "expired",
            "cancelled",
        ],
    );
    /// In which order holds are listed.
    HoldOrderWord as "HoldOrder" = word(
        "High risk first, then the earliest deadline, then the oldest; or by age alone.",
        &["urgency", "oldest", "newest"],
    );
    /// In which order sessions are listed.
    SessionOrderWord as "SessionOrder" = word(
        "The last that was created first, or the last that changed.",
        &["created_at", "updated_at"],
    );
    /// How much of a history is shown.
    ViewWord as "View" = word(
        "`trace` shows every item, needs `operator`, and is audited.",
        &["client", "trace"],
    );
    /// The form of a trace.
    TraceFormWord as "TraceForm" = word(
        "`items` (default), or `tool_call_history`: messages with the tool calls of the assistant and their \
         results. Needs `view=trace`.",
        &["items", "tool_call_history"],
    );
    /// How much of the history of a task is shown.
    TaskViewWord as "TaskView" = word(
        "`agent` shows the history and the private state to the worker of the task's agent. `trace` shows \
         every item, needs `operator`, and is audited.",
        &["client", "agent", "trace"],
    );
    /// The change that a long poll waits for.
    UntilWord as "Until" = word("What to wait for.", &["final", "changed"]);
    /// A record of a session or of the audit stream.
    RecordForm as "Record" = ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some("A record as it is chained, with its `hash`."));
    /// The last messages of a session.
    Messages as "Messages" = AnyOfBuilder::new()
        .description(Some("The last messages; every item if `view` is `trace`."))
        .item(Ref::from_schema_name("MessagePage"))
        .item(Ref::from_schema_name("TracePage"))
        .item(Ref::from_schema_name("ToolCallHistory"));
    /// A task, or its history as messages.
    TaskOrHistory as "TaskOrHistory" = AnyOfBuilder::new()
        .description(Some("The task; its history as messages if `form` is `tool_call_history`."))
        .item(Ref::from_schema_name("Task"))
        .item(Ref::from_schema_name("ToolCallHistory"));
    /// The content of a message.
    Content as "Content" = AnyOfBuilder::new()
        .description(Some("Text, or a list of parts."))
        .item(ObjectBuilder::new().schema_type(Type::String))
        .item(ArrayBuilder::new().items(anything()));
    /// Text, or nothing.
    NullableText as "NullableText" = AnyOfBuilder::new()
        .description(Some("Text, or null."))
        .item(ObjectBuilder::new().schema_type(Type::String))
        .item(ObjectBuilder::new().schema_type(Type::Null));
    /// The input or output of a request.
    Words as "Words" = AnyOfBuilder::new()
        .description(Some("Text, or content with files."))
        .item(ObjectBuilder::new().schema_type(Type::String))
        .item(MessageInput::schema());
}

fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
}

fn word(description: &str, words: &[&str]) -> ObjectBuilder {
    text(description).enum_values(Some(words.iter().copied()))
}

fn anything() -> RefOr<Schema> {
    Value::schema()
}

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        text("RFC 3339 in UTC with microseconds.")
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .into()
    }
}

impl ToSchema for Time {}

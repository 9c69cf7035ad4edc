//! Texts and words of a fixed form, for the document of the API only. They are checked where they
//! are parsed; here the document learns what they look like.

use std::borrow::Cow;

use serde_json::Value;
use utoipa::openapi::schema::{
    AnyOfBuilder, ArrayBuilder, ObjectBuilder, Schema, SchemaFormat, Type,
};
use utoipa::openapi::{KnownFormat, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::item::MessageWire;

/// Declares types that are nothing but a schema with a name.
macro_rules! schemas {
    ($($(#[$doc:meta])+ $name:ident as $named:literal = $schema:expr;)*) => {$(
        $(#[$doc])+
        pub(crate) enum $name {}

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
    /// A point in time.
    TimeText as "Time" = text("RFC 3339 in UTC with microseconds.")
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
    /// A name as the core has it.
    NameText as "Name" = text("1 to 128 letters, digits, dots, dashes or underscores.")
        .max_length(Some(128))
        .pattern(Some("^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"));
    /// A state key as the core has it.
    StateKeyText as "StateKey" = text(
        "`app:…`, `user:…`, `temp:…`, or no prefix for the session; at most 512 bytes without \
         control characters.",
    )
        .max_length(Some(512))
        .pattern(Some(
            r"^((app|user|temp):[^\u0000-\u001f\u007f-\u009f]+|[^:\u0000-\u001f\u007f-\u009f]+)$",
        ));
    /// The key of a label.
    LabelText as "Label" = text("1 to 64 bytes without `:` and control characters.")
        .min_length(Some(1))
        .max_length(Some(64))
        .pattern(Some(r"^[^:\u0000-\u001f\u007f-\u009f]+$"));
    /// A digest.
    DigestText as "Digest" = text("SHA-256 in hexadecimal.").pattern(Some("^[0-9a-f]{64}$"));
    /// A key that verifies signatures.
    PublicKeyText as "PublicKey" =
        text("An Ed25519 public key in hexadecimal.").pattern(Some("^[0-9a-f]{64}$"));
    /// What a verification found wrong.
    ProblemKindWord as "AuditProblemKind" = word(
        "What kind of thing is wrong.",
        &[
            "record", "payload", "projection", "missing_tail", "missing_session", "entry", "root",
        ],
    );
    /// What an agent is.
    AgentKindWord as "AgentKind" = word(
        "`worker`: a process claims its work. All others are called by the server itself.",
        &["worker", "openai", "conversations", "llm", "router"],
    );
    /// What a chat call without a session means.
    ChatDefaultWord as "ChatDefault" = word(
        "What a chat call without a session means: nothing is kept, or a new session.",
        &["stateless", "stateful"],
    );
    /// Which calls of a tool need an approval.
    ToolApprovalWord as "ToolApproval" = word(
        "Which calls need an approval: every one, none, those that the worker chooses, or those \
         whose arguments fit a condition.",
        &["always", "never", "worker", "conditional"],
    );
    /// The id of a session.
    SessionIdText as "SessionId" = id("A session.", "ses");
    /// The id of a task.
    TaskIdText as "TaskId" = id("A task.", "tsk");
    /// The id of a request.
    RequestIdText as "RequestId" = id("A request.", "req");
    /// The id of a hold.
    HoldIdText as "HoldId" = id("A hold.", "hld");
    /// The id of an item.
    ItemIdText as "ItemId" = id("An item. The id of a tool call is its execution key.", "itm");
    /// The id of a key.
    KeyIdText as "KeyId" = id("A key; not the key itself.", "key");
    /// What a session does.
    SessionStatusWord as "SessionStatus" =
        word("What a session does.", &["running", "paused", "idle", "closed"]);
    /// What a task does.
    TaskStatusWord as "TaskStatus" = word(
        "What a task does.",
        &["running", "paused", "idle", "completed", "failed", "cancelled"],
    );
    /// What a request does, or how it ended.
    RequestStatusWord as "RequestStatus" = word(
        "What a request does, or how it ended.",
        &["queued", "running", "held", "waiting", "completed", "failed", "cancelled"],
    );
    /// What a live request does.
    LiveStatusWord as "LiveRequestStatus" =
        word("What a live request does.", &["queued", "running", "held", "waiting"]);
    /// How a request ended.
    OutcomeWord as "RequestOutcome" =
        word("How a request ended.", &["completed", "failed", "cancelled"]);
    /// How a hold ended, or that it has not.
    HoldStatusWord as "HoldStatus" = word(
        "How a hold ended, or that it has not.",
        &["open", "approved", "edited", "answered", "rejected", "expired", "cancelled"],
    );
    /// Which holds to list.
    HoldStatusFilter as "HoldStatusFilter" = word(
        "How a hold ended, that it has not, or `decided` for all that ended.",
        &[
            "open", "decided", "approved", "edited", "answered", "rejected", "expired",
            "cancelled",
        ],
    );
    /// What is known about a tool call without a result.
    CallStateWord as "CallState" = word(
        "What is known about a tool call without a result.",
        &["proposed", "started", "released", "unknown", "refused", "answered", "confirmed"],
    );
    /// What a tool call came to.
    CallOutcomeWord as "CallOutcome" =
        word("What a tool call came to.", &["ran", "refused", "answered"]);
    /// Why somebody may not decide a hold.
    WhyNotWord as "WhyNot" = word(
        "Why somebody may not decide a hold.",
        &["own_session", "own_hold", "needs_role", "server"],
    );
    /// In which order holds are listed.
    HoldOrderWord as "HoldOrder" = word(
        "High risk first, then the earliest deadline, then the oldest; or by age alone.",
        &["urgency", "oldest", "newest"],
    );
    /// Where a credential came from.
    CredentialSourceWord as "CredentialSource" = word(
        "Where a credential came from.",
        &["caller", "service", "hold"],
    );
    /// How much of a history is shown.
    ViewWord as "View" = word(
        "`trace` shows every item, needs `operator`, and is audited.",
        &["client", "trace"],
    );
    /// What a long poll waits for.
    UntilWord as "Until" = word("What to wait for.", &["final", "changed"]);
    /// A record of a session or of the audit stream.
    RecordForm as "Record" = ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some("A record as it is chained, with its `hash`."));
    /// The last messages of a session.
    Messages as "Messages" = AnyOfBuilder::new()
        .description(Some("The last messages; every item if `view` is `trace`."))
        .item(Ref::from_schema_name("MessagePage"))
        .item(Ref::from_schema_name("TracePage"));
    /// What a message says.
    Content as "Content" = AnyOfBuilder::new()
        .description(Some("Text, or a list of parts."))
        .item(ObjectBuilder::new().schema_type(Type::String))
        .item(ArrayBuilder::new().items(anything()));
    /// Text, or nothing.
    NullableText as "NullableText" = AnyOfBuilder::new()
        .description(Some("Text, or null."))
        .item(ObjectBuilder::new().schema_type(Type::String))
        .item(ObjectBuilder::new().schema_type(Type::Null));
    /// What is asked or answered.
    Words as "Words" = AnyOfBuilder::new()
        .description(Some("Text, or content with files."))
        .item(ObjectBuilder::new().schema_type(Type::String))
        .item(MessageWire::schema());
}

fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
}

fn id(description: &str, prefix: &str) -> ObjectBuilder {
    text(description).pattern(Some(format!("^{prefix}_[0-9a-f]{{32}}$")))
}

fn word(description: &str, words: &[&str]) -> ObjectBuilder {
    text(description).enum_values(Some(words.iter().copied()))
}

fn anything() -> RefOr<Schema> {
    Value::schema()
}

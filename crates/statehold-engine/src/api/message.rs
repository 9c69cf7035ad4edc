//! Messages that were said outside of the server, appended to the transcript of a session.

use serde::{Deserialize, Serialize};
use statehold_core::command::{Command, RecordTurn, StatePatch};
use statehold_core::ids::{ItemId, SessionId};
use statehold_core::item::{NewItem, Role};
use statehold_core::limits::ITEM_ATTACHMENTS_MAX;
use statehold_core::name::Name;
use statehold_core::record::Event;
use utoipa::ToSchema;

use super::item::MessageInput;
use super::item::write::message_of;
use super::json::{Raw, list_at_most};
use super::schema::Content;
use crate::bodies::AttachmentBody;
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::{Act, require_own_items};

/// The agent whose history appended messages are. No key works for it, and no other agent remembers them.
const RECORDER: &str = "statehold.messages";

/// A message to append.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AppendedMessageIn)]
pub struct AppendedMessageInput {
    /// Who said it: `user` or `assistant`.
    pub role: Role,
    /// Text, or parts.
    #[schema(value_type = Content)]
    pub content: Raw,
    /// Attached files.
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * ITEM_ATTACHMENTS_MAX }, _, _>"
    )]
    pub attachments: Vec<AttachmentBody>,
    /// Free-form annotations of the content.
    #[schema(value_type = Option<serde_json::Value>)]
    pub annotations: Option<Raw>,
}

/// A message that was appended.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MessageWritten {
    /// The id of the message.
    pub id: ItemId,
    /// Its place in the session.
    pub seq: u64,
    /// The session.
    pub session_id: SessionId,
    /// The revision that added it.
    pub revision: u64,
}

/// Appends a message to the transcript of a session.
///
/// # Errors
///
/// If the caller may not, the message is malformed, or the core refuses.
pub async fn append(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    input: AppendedMessageInput,
) -> Result<Receipt<MessageWritten>, EngineError> {
    let (mut write, _) = SessionWrite::authorised(engine, call, session, &Act::Record).await?;
    let message = MessageInput {
        content: input.content,
        attachments: input.attachments,
        annotations: input.annotations,
    };
    let said = message_of(message, "content", false, &mut write.payloads)?;
    let items = vec![NewItem {
        attachments: said.attachments,
        ..NewItem::message(input.role, said.body)
    }];
    require_own_items(&call.caller, &items)?;
    let command = Command::RecordTurn(RecordTurn {
        agent: recorder(),
        request: None,
        items,
        state: StatePatch::default(),
    });
    let view = |made: &DecidedCommit<'_>| {
        let content = &made.record.content;
        let mut events = content.events.iter();
        let item = events.find_map(|event| match event {
            Event::ItemsAppended { items, .. } => items.first(),
            _ => None,
        })?;
        Some(MessageWritten {
            id: item.id,
            seq: item.seq,
            session_id: session,
            revision: content.seq,
        })
    };
    write.commit(&command, view).await
}

fn recorder() -> Name {
    RECORDER.parse().expect("a fixed name is a name")
}

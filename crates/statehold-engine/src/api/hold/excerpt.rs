//! The excerpt of the conversation that comes with an open hold, for the people who may decide it.
//!
//! It has the last messages of the transcript as it was when the hold was opened: what the user of the session saw,
//! and nothing that is hidden. A hold that stays open for a month shows nothing of what is said meanwhile. Only the
//! read of one hold has it; lists and feeds stay light.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::item::Role;
use statehold_core::view::View;
use statehold_store::{PageLimit, PastItemQuery, StoreError, StoredItem};
use utoipa::ToSchema;

use crate::answer_memory::{AnswerMemory, SMALL_PAYLOAD_BYTES};
use crate::api::item::ItemView;
use crate::api::json::Time;
use crate::bodies::text_of;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::holds::HoldDetail;

/// The longest text of one message, in bytes.
const MESSAGE_BYTES_MAX: usize = 2 * 1024;
/// The longest text of all messages together, in bytes.
const EXCERPT_BYTES_MAX: usize = 8 * 1024;

/// The last visible messages of the conversation when the hold was opened.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Excerpt)]
pub struct ExcerptView {
    /// The oldest first.
    #[schema(max_items = 20)]
    pub messages: Vec<ExcerptMessage>,
    /// Whether the conversation has earlier messages.
    pub has_earlier: bool,
}

/// A message of an excerpt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExcerptMessage {
    pub role: Role,
    /// The phase of a pipeline that said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The beginning of its text, at most 2048 bytes.
    #[schema(max_length = 2048)]
    pub text: String,
    /// Whether the message is longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub is_cut: bool,
    /// How many files came with it.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub attachments: usize,
    pub at: Time,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The excerpt for a caller who may decide a hold now. None for other callers, where the policy of the agent shows
/// nothing, and where the data is damaged: the action can be judged without it.
///
/// # Errors
///
/// If the store fails, or there is no memory for a long message in time.
pub(super) async fn excerpt(
    engine: &Engine,
    detail: &HoldDetail,
    memory: &dyn AnswerMemory,
) -> Result<Option<ExcerptView>, EngineError> {
    let entries = engine.policies().excerpt_messages(&detail.agent);
    let may_decide = detail.closed.is_none() && detail.why_not.is_none();
    if !may_decide || entries == 0 {
        return Ok(None);
    }
    let read = |limit| {
        let query = PastItemQuery {
            revision: detail.hold.opened_at,
            view: View::Client,
            before: None,
            limit,
        };
        engine.inner().store.items_at(detail.session.id, query)
    };
    let bytes = SMALL_PAYLOAD_BYTES;
    let page = match read(PageLimit { entries, bytes }).await {
        Err(StoreError::PageTooSmall { bytes }) => {
            let bodies = [&detail.body, &detail.decision_body];
            let own: usize = bodies.into_iter().flatten().map(Vec::len).sum();
            memory.take(bytes + own as u64).await?;
            read(PageLimit { entries: 1, bytes }).await
        }
        page => page,
    };
    match page {
        Ok((items, next)) => Ok(Some(ExcerptView::of(&items, next.is_some()))),
        Err(StoreError::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl ExcerptView {
    /// The excerpt of some items, the newest first. The newest messages get the room.
    fn of(items: &[StoredItem], has_more: bool) -> Self {
        let mut left = EXCERPT_BYTES_MAX;
        let mut messages = Vec::new();
        let said = items.iter().map(ItemView::of).filter(|item| !item.erased);
        let mut has_earlier = has_more;
        for item in said {
            if left == 0 {
                has_earlier = true;
                break;
            }
            let whole = item.content.as_deref().map(text_of).unwrap_or_default();
            let text = beginning(&whole, MESSAGE_BYTES_MAX.min(left));
            left -= text.len();
            messages.push(ExcerptMessage {
                role: item.role.unwrap_or(Role::Assistant),
                name: item.name,
                text: text.to_owned(),
                is_cut: text.len() < whole.len(),
                attachments: item.attachments.len(),
                at: item.created_at,
            });
        }
        messages.reverse();
        Self {
            messages,
            has_earlier,
        }
    }
}

/// The beginning of a text, at most so many bytes and whole characters.
fn beginning(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev();
    let end = end.into_iter().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        for (text, bytes_max, expected) in [
            ("héé", 2, "h"),
            ("héé", 3, "hé"),
            ("abc", 3, "abc"),
            ("abc", 9, "abc"),
            ("日本", 2, ""),
        ] {
            assert_eq!(beginning(text, bytes_max), expected, "{text}");
        }
    }
}

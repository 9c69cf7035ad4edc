//! The message of a user.

use statehold_core::command::Output;

use crate::api::item::write::output;
use crate::api::json::{Raw, raw_text};
use crate::commit::payloads::Payloads;
use crate::error::EngineError;
use crate::kept::{AttachmentBody, ItemBody};

/// The message of a user to an agent.
#[derive(Debug, Clone, Default)]
pub struct UserMessage {
    /// The text.
    pub text: String,
    /// Files that go with it.
    pub files: Vec<AttachmentBody>,
    /// JSON for the agent beside the text: the conversation so far, where the server does not keep it.
    pub data: Option<Raw>,
}

impl UserMessage {
    /// The message as the input of a request. Equal messages of one user have equal digests.
    pub(super) fn to_output(
        &self,
        had_credential: bool,
        payloads: &mut Payloads,
    ) -> Result<Output, EngineError> {
        let body = ItemBody {
            content: Some(raw_text(&self.text)),
            data: self.data.clone(),
            had_credential,
            ..ItemBody::default()
        };
        output(&body, &self.files, "messages", payloads)
    }
}

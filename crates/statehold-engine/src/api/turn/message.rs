//! The message of a user.

use statehold_core::command::Output;
use statehold_core::item::{Attachment, AttachmentSource};

use crate::api::json::{Raw, raw_text, to_body};
use crate::commit::payloads::Payloads;
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
    pub(super) fn to_output(&self, had_credential: bool, payloads: &mut Payloads) -> Output {
        let body = ItemBody {
            content: Some(raw_text(&self.text)),
            data: self.data.clone(),
            had_credential,
            ..ItemBody::default()
        };
        let body = payloads.put(to_body(&body));
        let attachments = self.files.iter().map(|file| Attachment {
            body: payloads.put(to_body(file)),
            source: match (&file.url, &file.reference_url) {
                (Some(_), _) => AttachmentSource::Url,
                (None, Some(_)) => AttachmentSource::ReferenceUrl,
                (None, None) => AttachmentSource::Inline,
            },
        });
        let attachments = attachments.collect();
        Output { body, attachments }
    }
}

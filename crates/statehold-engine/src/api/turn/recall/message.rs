//! Messages that a chat call carries, in the form in which they are compared.

use std::time::Instant;

use statehold_core::digest::Digest;
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::redact::Redactor;

use super::place::CarriedPlace;
use crate::api::json::Raw;
use crate::bodies::AttachmentBody;
use crate::commit::payloads::Payloads;

/// A message as clients repeat it: line ends and outer white space do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedMessage {
    pub(super) is_users: bool,
    pub(super) text: String,
    /// Digests of the addresses or the bytes of its files.
    files: Vec<Digest>,
}

impl CarriedMessage {
    /// A message of the user.
    pub fn by_user(text: &str, files: &[AttachmentBody]) -> Self {
        let source = |file: &AttachmentBody| {
            let source = [&file.url, &file.reference_url, &file.data];
            let source = source.into_iter().flatten().next();
            Digest::sha256(source.map_or(b"".as_slice(), |source| source.as_bytes()))
        };
        Self {
            is_users: true,
            text: plain(text),
            files: files.iter().map(source).collect(),
        }
    }

    /// A message of the assistant.
    pub fn by_assistant(text: &str) -> Self {
        Self {
            is_users: false,
            text: plain(text),
            files: Vec::new(),
        }
    }

    /// Redacts the message as it is redacted when it is stored.
    pub(in crate::api::turn) fn redact(&mut self, payloads: &Payloads) {
        if let Some(redacted) = payloads.redacted(self.text.as_bytes(), Redactor::text) {
            self.text = plain(&redacted.text);
        }
    }

    /// The digest by which a request with this message is found. Only the same principal finds it, in the same
    /// app and with the same agent.
    pub(in crate::api::turn) fn digest(
        &self,
        payloads: &Payloads,
        app: &Name,
        agent: &Name,
        principal: Principal,
    ) -> Digest {
        let principal = principal.to_string();
        let mut parts: Vec<&[u8]> = vec![
            b"chat",
            app.as_str().as_bytes(),
            agent.as_str().as_bytes(),
            principal.as_bytes(),
            self.text.as_bytes(),
        ];
        parts.extend(self.files.iter().map(|file| file.as_bytes().as_slice()));
        payloads.keyed_digest(&parts)
    }
}

/// A text without its outer white space, with line feeds alone.
pub(super) fn plain(text: &str) -> String {
    text.replace("\r\n", "\n").trim().to_owned()
}

/// The conversation that a chat call carries.
#[derive(Debug)]
pub struct Conversation {
    /// The agent.
    pub agent: Name,
    /// The messages of user and assistant before the new one.
    pub earlier: Vec<CarriedMessage>,
    /// The new message.
    pub message: CarriedMessage,
    /// The `data` of the first input, if no session is found: the earlier messages for the agent.
    pub context: Option<Raw>,
    /// The idempotency key of the turn, without its fingerprint.
    pub key: Option<Digest>,
    /// When the call arrived.
    pub arrived: Instant,
    /// The place in a session that the call names beside its messages.
    pub place: CarriedPlace,
}

impl Conversation {
    /// The digest of the place after which the new message comes: of the reference, or of the last message of the user
    /// before it. None if there is neither.
    pub(in crate::api::turn) fn place_digest(
        &self,
        digest: impl Fn(&CarriedMessage) -> Digest,
    ) -> Option<Digest> {
        if let CarriedPlace::Reference {
            reference,
            is_last: true,
        } = &self.place
        {
            return Some(Digest::sha256(reference.request.as_uuid().as_bytes()));
        }
        let mut earlier = self.earlier.iter().rev();
        earlier.find(|message| message.is_users).map(digest)
    }

    pub(in crate::api::turn) fn redact(&mut self, payloads: &Payloads) {
        for message in self.earlier.iter_mut().chain([&mut self.message]) {
            message.redact(payloads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_and_outer_white_space_do_not_count() {
        let one = CarriedMessage::by_user(" a\r\nb \n", &[]);
        assert_eq!(one, CarriedMessage::by_user("a\nb", &[]));
        assert_ne!(one, CarriedMessage::by_user("a b", &[]));
        assert_ne!(one, CarriedMessage::by_assistant("a\nb"));
    }

    #[test]
    fn files_count_by_their_address_or_their_bytes() {
        let file = |url: &str, title: &str| AttachmentBody {
            url: Some(url.to_owned()),
            title: Some(title.to_owned()),
            ..AttachmentBody::default()
        };
        let with = |file: AttachmentBody| CarriedMessage::by_user("look", &[file]);
        assert_eq!(with(file("a.png", "x")), with(file("a.png", "y")));
        assert_ne!(with(file("a.png", "x")), with(file("b.png", "x")));
        assert_ne!(
            with(file("a.png", "x")),
            CarriedMessage::by_user("look", &[])
        );
    }
}

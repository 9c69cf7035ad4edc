//! Read tokens as text: sealed, so that they are stored nowhere.

use statehold_engine::Credential;
use statehold_engine::api::caller::ReadToken;

use super::seal::Sealer;

/// How read tokens begin.
const PREFIX: &str = "sht_";
/// Purpose of the seal.
const PURPOSE: &str = "read token";

/// The text of a token.
///
/// # Panics
///
/// If the system has no random source.
pub fn sealed(sealer: &Sealer, token: &ReadToken) -> Credential {
    let content = serde_json::to_vec(token).expect("a token is plain JSON");
    let text = format!("{PREFIX}{}", sealer.seal(PURPOSE, &[], &content));
    Credential::new(text).expect("a token is short")
}

/// Whether a text is meant as a read token.
pub(crate) fn is_token(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// The token in a text. None if this server did not make it.
pub(crate) fn opened(sealer: &Sealer, text: &str) -> Option<ReadToken> {
    let text = text.strip_prefix(PREFIX)?;
    let content = sealer.open(PURPOSE, &[], text).ok()?;
    serde_json::from_slice(&content).ok()
}

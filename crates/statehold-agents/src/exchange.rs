//! Exchanges of a turn with models, agents and tools, for the debug log. A turn that is logged carries its recorder
//! with it: what it sends and receives is copied there, without headers and without the credentials that the call
//! was made with.

use std::sync::Arc;

use bytes::Bytes;
use statehold_core::ids::UserId;
use statehold_core::name::Name;
use statehold_engine::debug_log::{BODY_BYTES_MAX, DebugBody, DebugExchange, DebugLog, DebugPeer};
use statehold_engine::leased::RequestRef;
use tokio::time::Instant;

use crate::secrets::SecretRedactor;
use crate::spec::{AgentKind, AgentSpec};

tokio::task_local! {
    static RECORDER: Option<Recorder>;
}

/// The longest word that a cut leaves out, in bytes.
const WORD_BYTES_MAX: usize = 4 * 1024;

/// Where the exchanges of one turn go.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    log: Arc<DebugLog>,
    turn: RequestRef,
    /// The user of its session.
    user: UserId,
    agent: Name,
    /// With whom the agent speaks HTTP.
    http_peer: DebugPeer,
}

impl Recorder {
    pub(crate) fn new(
        log: Arc<DebugLog>,
        (turn, user): (RequestRef, UserId),
        spec: &AgentSpec,
    ) -> Self {
        let http_peer = match &spec.kind {
            AgentKind::Openai(_)
            | AgentKind::Dial(_)
            | AgentKind::Conversations(_)
            | AgentKind::Analytics(_) => DebugPeer::Agent,
            AgentKind::Worker
            | AgentKind::Llm(_)
            | AgentKind::Router(_)
            | AgentKind::Pipeline(_)
            | AgentKind::Mcp(_) => DebugPeer::Model,
        };
        Self {
            log,
            turn,
            user,
            agent: spec.name.clone(),
            http_peer,
        }
    }
}

/// Runs a turn whose exchanges go to this recorder. None for a turn that is not logged.
pub(crate) async fn with_recorder<T>(
    recorder: Option<Recorder>,
    turn: impl Future<Output = T>,
) -> T {
    RECORDER.scope(recorder, turn).await
}

/// An exchange while it goes on. It is noted when it is dropped, also if its turn is cancelled.
#[derive(Debug)]
pub(crate) struct OpenExchange {
    recorder: Recorder,
    with: DebugPeer,
    target: String,
    sent: Bytes,
    received: Vec<u8>,
    received_left_out: u64,
    status: Option<u16>,
    error: Option<String>,
    /// Credentials that were sent beside the body.
    secrets: Vec<String>,
    begun: Instant,
}

impl OpenExchange {
    /// An exchange over HTTP. None if the turn is not logged.
    pub(crate) fn http<'a>(
        target: impl FnOnce() -> String,
        sent: Option<&Bytes>,
        secrets: impl Iterator<Item = &'a str>,
    ) -> Option<Self> {
        let recorder = RECORDER.try_with(Clone::clone).ok().flatten()?;
        let with = recorder.http_peer;
        let sent = sent.cloned().unwrap_or_default();
        Some(Self::begin(recorder, with, target(), sent, secrets))
    }

    /// A call of a tool. None if the turn is not logged.
    pub(crate) fn tool<'a>(
        target: impl FnOnce() -> String,
        sent: impl FnOnce() -> Vec<u8>,
        secrets: impl Iterator<Item = &'a str>,
    ) -> Option<Self> {
        let recorder = RECORDER.try_with(Clone::clone).ok().flatten()?;
        let sent = Bytes::from(sent());
        Some(Self::begin(
            recorder,
            DebugPeer::Tool,
            target(),
            sent,
            secrets,
        ))
    }

    fn begin<'a>(
        recorder: Recorder,
        with: DebugPeer,
        target: String,
        sent: Bytes,
        secrets: impl Iterator<Item = &'a str>,
    ) -> Self {
        Self {
            recorder,
            with,
            target,
            sent,
            received: Vec::new(),
            received_left_out: 0,
            status: None,
            error: None,
            secrets: secrets.map(str::to_owned).collect(),
            begun: Instant::now(),
        }
    }

    pub(crate) fn set_status(&mut self, status: u16) {
        self.status = Some(status);
    }

    pub(crate) fn fail(&mut self, error: &dyn std::fmt::Display) {
        self.error = Some(error.to_string());
    }

    /// Adds a piece of the answer.
    pub(crate) fn receive(&mut self, piece: &[u8]) {
        let room = BODY_BYTES_MAX - self.received.len();
        let kept = &piece[..piece.len().min(room)];
        self.received.extend_from_slice(kept);
        self.received_left_out += (piece.len() - kept.len()) as u64;
    }
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        let redactor = SecretRedactor::new(self.secrets.iter().map(String::as_str));
        let body = |bytes: &[u8], left_out: u64| {
            let kept = whole_words(bytes);
            let text = redactor.redact(String::from_utf8_lossy(kept).into_owned());
            DebugBody {
                text: without_keys(text),
                left_out: left_out + (bytes.len() - kept.len()) as u64,
            }
        };
        let Recorder {
            log,
            turn,
            user,
            agent,
            ..
        } = &self.recorder;
        let exchange = DebugExchange {
            session: turn.session,
            task: turn.task,
            request: turn.request,
            agent: agent.clone(),
            with: self.with,
            target: std::mem::take(&mut self.target),
            sent: body(&self.sent, 0),
            received: body(&self.received, self.received_left_out),
            status: self.status,
            error: self.error.take(),
            ms: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        log.note(*user, exchange);
    }
}

/// The beginning of a body, without the word that its cut would go through: half a secret is not known as one.
fn whole_words(bytes: &[u8]) -> &[u8] {
    if bytes.len() <= BODY_BYTES_MAX {
        return bytes;
    }
    let last = &bytes[BODY_BYTES_MAX - WORD_BYTES_MAX..BODY_BYTES_MAX];
    let word = last.iter().rev().take_while(|byte| byte.is_ascii_graphic());
    &bytes[..BODY_BYTES_MAX - word.count()]
}

/// Keys and tokens of this server, wherever they stand in a text.
fn without_keys(text: String) -> String {
    const PREFIXES: [&str; 2] = ["shk_", "sht_"];
    if !PREFIXES.iter().any(|prefix| text.contains(prefix)) {
        return text;
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices("sh") {
        let key = &text[at..];
        if at < copied || !PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
            continue;
        }
        let end = key.find(|c| !is_part(c)).unwrap_or(key.len());
        out.push_str(&text[copied..at + 4]);
        out.push('…');
        copied = at + end;
    }
    out.push_str(&text[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_tokens_of_this_server_are_in_no_entry() {
        for (text, expected) in [
            ("nothing", "nothing"),
            ("use shk_abcDEF-1_2 now", "use shk_… now"),
            ("[\"sht_x\",\"shk_y\"]", "[\"sht_…\",\"shk_…\"]"),
            ("shk_", "shk_…"),
            ("ü shk_aü", "ü shk_…ü"),
        ] {
            assert_eq!(without_keys(text.to_owned()), expected);
        }
    }
}

//! Single keys of a person at the terminal. The terminal gets its modes back when the keys are dropped.
//!
//! Ctrl-C is a key here, so that it ends the program in order; a signal that ends the program is waited for beside the
//! keys. The output modes stay: lines end as always.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use anyhow::Context;
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr,
    tcsetattr,
};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::ask;

/// The most bytes of one read.
const READ_BYTES: usize = 256;
const CTRL_C: u8 = 3;
const ESCAPE: u8 = 27;

/// The key that a person pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchKey {
    Approve,
    Edit,
    Reject,
    Answer,
    Dismiss,
    Next,
    Previous,
    Quit,
}

impl WatchKey {
    /// The keys in some bytes from the terminal. Others mean nothing.
    fn all_in(bytes: &[u8]) -> Vec<Self> {
        let mut keys = Vec::new();
        let mut rest = bytes;
        while let [first, after @ ..] = rest {
            rest = after;
            if *first != ESCAPE {
                keys.extend(Self::of(*first));
                continue;
            }
            // A sequence ends with its letter: arrows are `ESC [ A` or `ESC O A`.
            if let [b'[' | b'O', after @ ..] = after {
                let end = after.iter().position(u8::is_ascii_alphabetic);
                let end = end.unwrap_or(after.len());
                keys.extend(match after.get(end) {
                    Some(b'A') => Some(Self::Previous),
                    Some(b'B') => Some(Self::Next),
                    _ => None,
                });
                rest = after.get(end + 1..).unwrap_or_default();
            }
        }
        keys
    }

    fn of(byte: u8) -> Option<Self> {
        match byte {
            b'a' => Some(Self::Approve),
            b'e' => Some(Self::Edit),
            b'r' => Some(Self::Reject),
            b'm' => Some(Self::Answer),
            b'i' => Some(Self::Dismiss),
            b's' | b'j' => Some(Self::Next),
            b'k' => Some(Self::Previous),
            b'q' | CTRL_C => Some(Self::Quit),
            _ => None,
        }
    }

    /// The decision that the key begins.
    pub(super) fn decision(self) -> Option<&'static str> {
        match self {
            Self::Approve => Some("approve"),
            Self::Edit => Some("edit"),
            Self::Reject => Some("reject"),
            Self::Answer => Some("respond"),
            Self::Dismiss => Some("dismiss"),
            Self::Next | Self::Previous | Self::Quit => None,
        }
    }
}

/// The keys of the terminal.
#[derive(Debug)]
pub(super) struct WatchKeys {
    input: AsyncFd<OwnedFd>,
    /// The modes of the terminal before.
    before: Termios,
    ends: [Signal; 2],
    /// Keys that were read and not yet taken.
    pressed: VecDeque<WatchKey>,
}

impl WatchKeys {
    /// Begins to read single keys. None if there is no person at a terminal.
    ///
    /// # Errors
    ///
    /// If the terminal refuses.
    pub(super) fn open() -> anyhow::Result<Option<Self>> {
        if !ask::can_ask() {
            return Ok(None);
        }
        let input = rustix::io::dup(std::io::stdin()).context("the terminal cannot be read")?;
        let before = tcgetattr(&input)?;
        let keys = Self {
            input: watched(input)?,
            before,
            pressed: VecDeque::new(),
            ends: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
            ],
        };
        keys.begin()?;
        Ok(Some(keys))
    }

    /// Single keys, without echo.
    pub(super) fn begin(&self) -> anyhow::Result<()> {
        let mut single = self.before.clone();
        let lines = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
        single.local_modes.remove(lines);
        // A read never waits: it follows a notice that there is something.
        single.special_codes[SpecialCodeIndex::VMIN] = 0;
        single.special_codes[SpecialCodeIndex::VTIME] = 0;
        Ok(tcsetattr(
            self.input.get_ref(),
            OptionalActions::Now,
            &single,
        )?)
    }

    /// Whole lines again, as questions need them. Keys that were pressed before are forgotten, so that none of them
    /// answers a question that was not on the screen.
    pub(super) fn pause(&mut self) -> anyhow::Result<()> {
        self.pressed.clear();
        tcflush(self.input.get_ref(), QueueSelector::IFlush)?;
        Ok(tcsetattr(
            self.input.get_ref(),
            OptionalActions::Now,
            &self.before,
        )?)
    }

    /// Waits for the next key. The end of the terminal, or a signal to end, is the key that quits.
    pub(super) async fn next(&mut self) -> anyhow::Result<WatchKey> {
        let [terminated, hung_up] = &mut self.ends;
        loop {
            if let Some(key) = self.pressed.pop_front() {
                return Ok(key);
            }
            let mut ready = tokio::select! {
                ready = self.input.readable() => ready?,
                _ = terminated.recv() => return Ok(WatchKey::Quit),
                _ = hung_up.recv() => return Ok(WatchKey::Quit),
            };
            let mut bytes = [0; READ_BYTES];
            let count = match rustix::io::read(ready.get_inner(), &mut bytes) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => 0,
                Err(_) => return Ok(WatchKey::Quit),
            };
            if count == 0 && ready.ready().is_read_closed() {
                // A closed terminal stays readable for ever, and reads nothing.
                return Ok(WatchKey::Quit);
            }
            if count < READ_BYTES {
                ready.clear_ready();
            }
            self.pressed.extend(WatchKey::all_in(&bytes[..count]));
        }
    }
}

/// Waits for a descriptor without a thread. It is owned, and closed with its registration.
#[expect(
    deprecated,
    reason = "its successor needs `unsafe`, and an owned descriptor keeps its promise"
)]
fn watched(input: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(input)
}

impl Drop for WatchKeys {
    fn drop(&mut self) {
        // The program ends, and no reader is left.
        tcsetattr(self.input.get_ref(), OptionalActions::Now, &self.before).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_small_letters_and_arrows_and_all_else_means_nothing() {
        for (bytes, keys) in [
            (&b"a"[..], &[WatchKey::Approve][..]),
            (b"sr\n", &[WatchKey::Next, WatchKey::Reject]),
            (b"\x1b[B\x1bOA", &[WatchKey::Next, WatchKey::Previous]),
            (b"\x03", &[WatchKey::Quit]),
            (b"AY\ry ", &[]),
            (b"\x1b", &[]),
            (b"\x1b[", &[]),
            (b"\x1b[1;5Cq", &[WatchKey::Quit]),
            (b"", &[]),
        ] {
            assert_eq!(WatchKey::all_in(bytes), keys, "{bytes:?}");
        }
    }
}

//! Fake services for tests. [`FakeService`] answers over HTTP from a script and records its requests;
//! `chat`, `dial`, `conversations`, `analytics` and `tools` have the responses of agents, models and tool servers. [`SseParser`]
//! reads the event streams that our own server sends.

#![allow(
    clippy::missing_panics_doc,
    reason = "a fake panics where the program under test sends nonsense"
)]

pub mod analytics;
pub mod chat;
pub mod conversations;
pub mod dial;
mod response;
mod service;
mod sse;
pub mod tools;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::response::{BodyStep, ScriptedResponse, event, send};
pub use self::service::{FakeService, SeenRequest};
pub use self::sse::{SseEvent, SseParser, parse_events};

/// Locks, also after a panic of another test thread.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

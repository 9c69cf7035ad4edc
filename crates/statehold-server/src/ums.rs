//! Conversations as clients of a stateful service know them: create one, send a message, read the answer as a
//! stream. The paths are below a root of the configuration, `/ums` by default.
//!
//! A conversation is a session, and its id is the id of the session. `docs/ums.md` has the rules.

mod chat;
mod chunk;
mod conversations;
pub(crate) mod errors;

use std::fmt;
use std::str::FromStr;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::json;
use statehold_core::name::Name;

use crate::chat::ChatSurface;
use crate::http::call::App;
use crate::native::plain;

static SURFACE: ChatSurface = ChatSurface {
    new_session: "`POST /conversations`, and chat in the conversation that it answers with",
    session: "the id in the path",
    agent: "ums.agent",
    has_debug: false,
    shows_stages: false,
    refers: false,
};

/// The first segments of the paths of other surfaces.
const TAKEN: [&str; 16] = [
    ".well-known",
    "a2a",
    "apps",
    "console",
    "health",
    "healthz",
    "list-apps",
    "mcp",
    "metrics",
    "openai",
    "openapi.json",
    "readyz",
    "v1",
    "v1alpha",
    "v1beta",
    "version",
];
/// The longest root, in bytes.
const ROOT_BYTES_MAX: usize = 128;

/// How conversations are served.
#[derive(Debug, Clone, Default)]
pub struct UmsOptions {
    /// The root of the paths.
    pub root: UmsRoot,
    /// The declared agent of new conversations. None is `coordinator`, or the only agent.
    pub agent: Option<Name>,
}

/// The root of the paths: `/ums`, `/team/ums`, or nothing for `/conversations` itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UmsRoot(String);

impl Default for UmsRoot {
    fn default() -> Self {
        Self("/ums".to_owned())
    }
}

/// Why a text is no root of paths.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UmsRootError {
    /// It is no path.
    #[error(
        "it is `/`, or `/` and words of letters, digits, `.`, `_` and `-`, at most 128 bytes, as in `/ums`"
    )]
    Malformed,
    /// Another surface has it.
    #[error("the paths below `/{0}` belong to another API")]
    Taken(String),
}

impl FromStr for UmsRoot {
    type Err = UmsRootError;

    fn from_str(text: &str) -> Result<Self, UmsRootError> {
        let path = text.strip_prefix('/').ok_or(UmsRootError::Malformed)?;
        if path.is_empty() {
            return Ok(Self(String::new()));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_word = |word: &str| !matches!(word, "" | "." | "..") && word.bytes().all(is_plain);
        if text.len() > ROOT_BYTES_MAX || !path.split('/').all(is_word) {
            return Err(UmsRootError::Malformed);
        }
        let first = path.split('/').next().unwrap_or_default();
        if TAKEN.contains(&first) {
            return Err(UmsRootError::Taken(first.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for UmsRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "/" } else { &self.0 })
    }
}

impl UmsRoot {
    /// Whether a path belongs to this surface.
    fn has(&self, path: &str) -> bool {
        let Some(rest) = path.strip_prefix(&self.0) else {
            return false;
        };
        let below = rest.strip_prefix("/conversations");
        let is_health = rest == "/health" && !self.0.is_empty();
        is_health || below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    }
}

pub(crate) fn add_routes(router: Router<App>, root: &UmsRoot) -> Router<App> {
    let UmsRoot(root) = root;
    let router = router
        .route(
            &format!("{root}/conversations"),
            get(conversations::list).post(conversations::create),
        )
        .route(
            &format!("{root}/conversations/{{conversation}}"),
            get(conversations::read).delete(conversations::delete),
        )
        .route(
            &format!("{root}/conversations/{{conversation}}/chat"),
            post(chat::chat),
        );
    if root.is_empty() {
        // The surface of ADK has `/health`.
        return router;
    }
    router.route(&format!("{root}/health"), get(health))
}

async fn health() -> Response {
    plain(&json!({"status": "healthy", "conversation_manager_initialized": true}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_a_path_that_no_other_surface_has() {
        for (text, shown) in [("/ums", "/ums"), ("/team/a.b", "/team/a.b"), ("/", "/")] {
            let root: UmsRoot = text.parse().expect("a root");
            assert_eq!(root.to_string(), shown);
        }
        for text in [
            "", "ums", "/ums/", "//", "/a//b", "/../v1", "/{id}", "/é", "/a b", "/*x",
        ] {
            assert_eq!(
                text.parse::<UmsRoot>(),
                Err(UmsRootError::Malformed),
                "{text}"
            );
        }
        let long = format!("/{}", "x".repeat(ROOT_BYTES_MAX));
        assert_eq!(long.parse::<UmsRoot>(), Err(UmsRootError::Malformed));
        for text in [
            "/v1",
            "/v1/ums",
            "/openai",
            "/mcp",
            "/apps",
            "/health",
            "/metrics/x",
        ] {
            let error = text.parse::<UmsRoot>().expect_err("it is taken");
            assert!(matches!(error, UmsRootError::Taken(_)), "{text}: {error}");
        }
    }

    #[test]
    fn a_root_has_its_own_paths_and_no_others() {
        let own = [
            "/ums/conversations",
            "/ums/conversations/x/chat",
            "/ums/health",
        ];
        let others = [
            "/ums",
            "/ums/conversationsx",
            "/conversations",
            "/health",
            "/umsx/health",
        ];
        let root = UmsRoot::default();
        assert!(own.iter().all(|path| root.has(path)));
        assert!(!others.iter().any(|path| root.has(path)));
        let top: UmsRoot = "/".parse().expect("a root");
        assert!(top.has("/conversations/x") && !top.has("/health"));
    }
}

//! Contexts that a caller brings along: instructions, tools and data sources, and the history before its message.
//! A configured answerer runs them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;
use statehold_agents::spec::AgentBook;
use statehold_core::name::Name;
use statehold_engine::api::json::{Raw, raw_bytes, to_body};
use utoipa::ToSchema;

use super::{passes_tools, unknown_agent};
use crate::http::call::App;
use crate::http::problem::{Code, Problem};

/// The longest instructions of a context, in bytes.
const INSTRUCTIONS_BYTES_MAX: usize = 250_000;
/// The most messages of a history.
const HISTORY_MAX: usize = 10_000;

/// Everything that a configured answerer needs, in the call.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InlineContext)]
pub(crate) struct InlineContext {
    /// Instructions for the answerer. They never replace its own prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 250_000)]
    pub(crate) instructions: Option<String>,
    /// One of the configured answerers. Left out: the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// Functions that the caller runs itself, as in chat completions. Only answerers of the kind `openai` take them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<serde_json::Value>, required = false)]
    pub(crate) tools: Vec<Raw>,
    /// Data that the answer is about, in the form that the answerer knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<serde_json::Value>, required = false)]
    pub(crate) data_sources: Vec<Raw>,
}

impl InlineContext {
    /// The answerer of the context: the one that `model` names, or the first.
    pub(crate) fn answerer(&self, app: &App) -> Result<Name, Problem> {
        let answerers = &app.options.answerers;
        let first = answerers.first().ok_or_else(no_answerer)?;
        let Some(model) = &self.model else {
            return Ok(first.clone());
        };
        let mut known = answerers.iter();
        let found = known.find(|name| name.as_str() == model).cloned();
        let known = || answerers.iter().map(Name::as_str).collect();
        found.ok_or_else(|| unknown_agent(model, known()).with("path", "model"))
    }

    /// Refuses a context that no answerer takes.
    pub(crate) fn require_possible(&self, book: &AgentBook, agent: &Name) -> Result<(), Problem> {
        let instructions = self.instructions.as_ref();
        if instructions.is_some_and(|text| text.len() > INSTRUCTIONS_BYTES_MAX) {
            let detail = format!("`instructions` has at most {INSTRUCTIONS_BYTES_MAX} bytes");
            return Err(Problem::invalid(detail).with("path", "instructions"));
        }
        if !self.tools.is_empty() && !passes_tools(book, agent) {
            let detail = format!(
                "`{agent}` takes no tools of a caller; leave `tools` out, or name an answerer of the kind `openai`"
            );
            return Err(Problem::new(Code::ToolsNotSupported, detail).with("path", "tools"));
        }
        Ok(())
    }

    /// The context in words. Empty if it has none.
    fn text(&self) -> String {
        let mut text = self.instructions.clone().unwrap_or_default();
        if !self.data_sources.is_empty() {
            let sources = to_body(&self.data_sources);
            let sources = String::from_utf8_lossy(&sources);
            let gap = if text.is_empty() { "" } else { "\n\n" };
            text = format!("{text}{gap}Data sources: {sources}");
        }
        text
    }
}

/// The problem of a server without an answerer.
fn no_answerer() -> Problem {
    Problem::new(
        Code::NoAnswerer,
        "this server has no answerer for contexts in calls; name a declared agent, or set `chat.answerers`",
    )
}

/// The ids of a conversation and an agent that a product keeps itself. They are labels: nothing is stored under them.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = ClientManagedIds)]
pub(crate) struct ClientManagedIds {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) conversation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agent_id: Option<String>,
}

/// The `data` of a message: the conversation so far, for an agent that does not know it.
#[derive(Debug, Default)]
pub(crate) struct CallerData<'a> {
    /// Messages with `role` and `content`.
    pub(crate) history: Vec<Raw>,
    pub(crate) inline: Option<&'a InlineContext>,
    pub(crate) ids: Option<&'a ClientManagedIds>,
}

#[derive(Serialize)]
struct CallerDataBody<'a> {
    history: Vec<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    passthrough: Option<BTreeMap<&'static str, &'a [Raw]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inline: Option<&'a InlineContext>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_managed: Option<&'a ClientManagedIds>,
}

impl CallerData<'_> {
    /// The data of a call without a session.
    pub(crate) fn stateless(self) -> Result<Raw, Problem> {
        let inline = self.inline;
        let tools = inline.map_or(&[][..], |inline| &inline.tools);
        let mut passthrough = BTreeMap::new();
        if !tools.is_empty() {
            passthrough.insert("tools", tools);
        }
        self.body(Some(passthrough))
    }

    /// The data of a turn in a session. The agent remembers the history of the first one.
    pub(crate) fn in_session(self) -> Result<Raw, Problem> {
        self.body(None)
    }

    fn body(self, passthrough: Option<BTreeMap<&'static str, &[Raw]>>) -> Result<Raw, Problem> {
        if self.history.len() > HISTORY_MAX {
            let detail =
                format!("a history has at most {HISTORY_MAX} messages; leave out the oldest");
            return Err(Problem::invalid(detail).with("path", "history"));
        }
        let context = self.inline.map(InlineContext::text).unwrap_or_default();
        let context = (!context.is_empty())
            .then(|| raw_bytes(&to_body(&json!({"role": "system", "content": context}))));
        let history = context.into_iter().chain(self.history).collect();
        let body = CallerDataBody {
            history,
            passthrough,
            inline: self.inline,
            client_managed: self.ids,
        };
        Ok(raw_bytes(&to_body(&body)))
    }
}

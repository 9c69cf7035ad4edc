//! The states of agents in plain JSON, for deployments whose clients must be able to read them. These are the forms that
//! coordinators without a state server give to clients of DIAL.

use serde::{Deserialize, Serialize};
use statehold_engine::api::turn::TurnAgentState;
use statehold_engine::bodies::Raw;

use crate::message::raw;
use crate::spec::{AgentBook, AgentKind};

/// The form of the state that clients of DIAL carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateFormat {
    /// A sealed reference to the place in the session.
    #[default]
    Sealed,
    /// The states of the agents themselves, which the client can read and change.
    Plain,
}

/// The state of a coordinator.
#[derive(Serialize)]
struct CoordinatorState<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    is_gpa: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpa_messages: Option<&'a Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ums_conversation_id: Option<&'a str>,
}

/// The plain state of a turn: that of the agent itself, or in a coordinator the newest state of an agent that keeps none
/// and the id of the conversation with a service that keeps it. None if there is nothing to keep.
pub fn plain_state(book: &AgentBook, states: &[TurnAgentState]) -> Option<Raw> {
    let (mut own, mut below, mut conversation) = (None, None, None);
    for left in states {
        let kind = book.agent(&left.agent).map(|spec| &spec.kind);
        if let Some(AgentKind::Conversations(_)) = kind {
            conversation = conversation_in(&left.private).or(conversation);
        } else if left.is_root {
            own = left.state.as_ref().or(own);
        } else {
            below = left.state.as_ref().or(below);
        }
    }
    if own.is_some() || below.is_none() && conversation.is_none() {
        return own.cloned();
    }
    Some(raw(&CoordinatorState {
        is_gpa: conversation.is_none().then_some(true),
        gpa_messages: below,
        ums_conversation_id: conversation.as_deref(),
    }))
}

/// The newest conversation in the private states of an agent that is behind a conversation service: each is a list of
/// texts, of which the first has the kind of service and the number, and the third the id.
fn conversation_in(private: &[Vec<u8>]) -> Option<String> {
    let conversations = private.iter().filter_map(|kept| {
        let texts: Vec<Option<String>> = serde_json::from_slice(kept).ok()?;
        let mut texts = texts.into_iter();
        let head = texts.next()??;
        let id = texts.nth(1)??;
        let number = head.strip_prefix('c')?;
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        Some((number[..digits].parse::<u32>().ok()?, id))
    });
    conversations
        .max_by_key(|(number, _)| *number)
        .map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::spec::{AgentSpec, ConversationsSpec};

    fn book() -> AgentBook {
        let mut ums = AgentSpec::worker("ums".parse().expect("a name"));
        ums.kind = AgentKind::Conversations(Arc::new(ConversationsSpec {
            base_url: "http://127.0.0.1:1".to_owned(),
            credential: None,
            headers: Vec::new(),
        }));
        AgentBook {
            agents: [(ums.name.clone(), Arc::new(ums))].into(),
            ..AgentBook::default()
        }
    }

    fn left(agent: &str, is_root: bool, state: Option<&str>, private: &[&str]) -> TurnAgentState {
        TurnAgentState {
            agent: agent.parse().expect("a name"),
            is_root,
            state: state.map(|state| raw(&serde_json::from_str::<Raw>(state).expect("JSON"))),
            private: private.iter().map(|one| one.as_bytes().to_vec()).collect(),
        }
    }

    #[track_caller]
    fn check(states: &[TurnAgentState], expected: Option<&str>) {
        let found = plain_state(&book(), states);
        assert_eq!(found.as_ref().map(|state| state.get()), expected);
    }

    #[test]
    fn each_kind_of_agent_has_its_form() {
        let history = r#"{"tool_call_history":[{"index":1,"x":1.50}]}"#;
        let root = || left("coordinator", true, None, &[]);
        let gpa = || left("gpa", false, Some(history), &[]);
        let old = json!(["c1", "tag", "old"]).to_string();
        let new = json!(["c12@3+?", "tag", "new", null]).to_string();
        let ums = || left("ums", false, None, &[&new, &old, "7", r#"["o1","t","x"]"#]);
        check(&[root()], None);
        check(&[left("gpa", true, Some(history), &[])], Some(history));
        let wrapped = format!(r#"{{"is_gpa":true,"gpa_messages":{history}}}"#);
        check(&[root(), gpa()], Some(&wrapped));
        let id = r#"{"ums_conversation_id":"new"}"#;
        check(&[root(), ums()], Some(id));
        check(&[left("ums", true, None, &[&new])], Some(id));
        let both = format!(r#"{{"gpa_messages":{history},"ums_conversation_id":"new"}}"#);
        check(&[root(), gpa(), ums()], Some(&both));
    }
}

//! The memory of an agent in a session: the exchanges of its path.
//!
//! A task is a job, and memory is the agent's. An exchange is a request of the path that has ended with
//! an answer, or without one after a tool had run for it. A request knows the exchanges that had ended
//! before it started, however long it waits. The exchanges themselves are in the log; here are their
//! number and the newest of them.

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::RequestId;
use crate::limits;
use crate::name::{Name, NameError, serde_as_text, text_type};

/// The agents from the root task down to a task, as `coordinator/math-agent`. Fixed when the task opens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentPath(Arc<str>);

impl AgentPath {
    /// The path of a task of `agent` below a task of this path; of a root task without one.
    pub fn of(above: Option<&Self>, agent: &Name) -> Self {
        Self(above.map_or_else(
            || agent.as_str().into(),
            |above| format!("{above}/{agent}").into(),
        ))
    }
}

impl FromStr for AgentPath {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let mut depth = 0;
        for name in text.split('/') {
            name.parse::<Name>()?;
            depth += 1;
        }
        if depth <= usize::from(limits::DEPTH_MAX) + 1 {
            Ok(Self(text.into()))
        } else {
            Err(NameError)
        }
    }
}

text_type!(AgentPath);

serde_as_text!(AgentPath, this => &this.0);

/// The memory of a path at some moment. There is none before the first exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// How many exchanges it has; the number of the newest.
    pub exchanges: u64,
    /// The record that ended the newest.
    pub record: u64,
    /// The request that the newest was.
    pub request: RequestId,
}

impl Memory {
    /// The number of exchanges in a memory that may be none.
    pub fn count(memory: Option<Self>) -> u64 {
        memory.map_or(0, |memory| memory.exchanges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_names_between_slashes() {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let root = AgentPath::of(None, &name("coordinator"));
        let below = AgentPath::of(Some(&root), &name("math-agent"));
        assert_eq!(below.as_str(), "coordinator/math-agent");
        assert_eq!("coordinator/math-agent".parse(), Ok(below));
        let deepest = vec!["a"; 25].join("/");
        assert!(deepest.parse::<AgentPath>().is_ok());
        for bad in ["", "/", "a/", "/a", "a//b", "a b", &format!("{deepest}/a")] {
            assert!(bad.parse::<AgentPath>().is_err(), "{bad:?}");
        }
    }
}

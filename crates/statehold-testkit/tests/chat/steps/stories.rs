//! The turns that are told, and what must come of each wherever the server dies in it.

use statehold_agents::runner::StepKind;

use super::Counts;

/// The tools in the order in which the model wants them: whether each honours keys.
pub(super) const TOOLS: [(&str, bool); 4] = [
    ("look", true),
    ("note", false),
    ("pay", true),
    ("wipe", false),
];

/// The tools from this place on need an approval.
const GATED_FROM: usize = 2;

/// A turn, and everything that happens in it.
pub(super) struct Story {
    pub(super) agent: &'static str,
    /// The agents below that one, in the order of the tree.
    pub(super) below: &'static [&'static str],
    pub(super) asked: &'static str,
    pub(super) answer: &'static str,
    /// Every kind of step in it, and how often.
    pub(super) steps: &'static [(StepKind, usize)],
    /// Every call in it that leaves the server, in order.
    pub(super) calls: &'static [&'static str],
}

pub(super) const STORIES: [Story; 5] = [
    Story {
        agent: "gpa",
        below: &[],
        asked: "gpa: what is new?",
        answer: "Nothing is new today.",
        steps: &[
            (StepKind::Route, 1),
            (StepKind::Child, 1),
            (StepKind::AgentCall, 1),
            (StepKind::Answer, 2),
        ],
        calls: &["chooser", "gpa"],
    },
    Story {
        agent: "ums",
        below: &[],
        asked: "ums: who is there?",
        answer: "Ann and Bob are there.",
        steps: &[
            (StepKind::Route, 1),
            (StepKind::Child, 1),
            (StepKind::Conversation, 1),
            (StepKind::AgentCall, 1),
            (StepKind::Answer, 2),
        ],
        calls: &["chooser", "ums begin", "ums say"],
    },
    Story {
        agent: "assistant",
        below: &[],
        asked: "assistant: do it all.",
        answer: "It is all done.",
        steps: &[
            (StepKind::Route, 1),
            (StepKind::Child, 1),
            (StepKind::Model, 5),
            (StepKind::ToolCall, 4),
            (StepKind::Hold, 2),
            (StepKind::ToolResult, 4),
            (StepKind::Answer, 2),
        ],
        calls: &[
            "chooser", "model 0", "look", "model 1", "note", "model 2", "pay", "model 3", "wipe",
            "model 4",
        ],
    },
    Story {
        agent: "line",
        below: &["parse", "write"],
        asked: "line: how much was sold?",
        answer: "Three were sold.",
        steps: &[
            (StepKind::Route, 1),
            (StepKind::Phase, 2),
            (StepKind::Child, 3),
            (StepKind::AgentCall, 2),
            (StepKind::Answer, 4),
        ],
        calls: &["chooser", "parse", "write"],
    },
    Story {
        agent: "lookup",
        below: &[],
        asked: "lookup: where is it?",
        answer: "It is in the drawer.",
        steps: &[
            (StepKind::Route, 1),
            (StepKind::Child, 1),
            (StepKind::Prepare, 1),
            (StepKind::ToolCall, 1),
            (StepKind::ToolResult, 1),
            (StepKind::Answer, 2),
        ],
        calls: &["chooser", "find"],
    },
];

impl Story {
    /// Which answer of the turn is the one that the agents above pass on: the first, or that of the last
    /// phase.
    fn answered_by(&self) -> usize {
        self.below.len().max(1)
    }
}

/// Where the server dies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Death {
    pub(super) kind: StepKind,
    pub(super) moment: &'static str,
    pub(super) time: usize,
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.kind.word(), self.moment, self.time)
    }
}

/// What was called in all, after this death, in one of these ways: what was not recorded is called once
/// more.
pub(super) fn expected(story: &Story, death: Option<Death>) -> Vec<Counts> {
    let mut counts: Counts = story
        .calls
        .iter()
        .map(|call| ((*call).to_owned(), 1))
        .collect();
    let or_again = |calls: &[&str]| {
        let again = calls.iter().map(|call| {
            let mut again = counts.clone();
            *again.entry((*call).to_owned()).or_default() += 1;
            again
        });
        again.chain([counts.clone()]).collect()
    };
    match death.map(|death| (death.kind, death.moment, death.time)) {
        Some((_, "after", _)) => {
            let later = calls_after(story, death);
            // A conversation that may have begun is looked for, not begun again.
            let again = later.iter().map(|call| match *call {
                "ums begin" => "ums find",
                call => call,
            });
            return or_again(&again.collect::<Vec<_>>());
        }
        // A pipeline begins when the request to it is decided: the route may not be recorded.
        Some((StepKind::Phase, "before", 1) | (StepKind::Child, "before", 2)) => {
            return or_again(&["chooser"]);
        }
        _ => {}
    }
    let Some(death) = death.filter(|death| death.moment == "before") else {
        return vec![counts];
    };
    if story.agent == "lookup" {
        // The call is recorded before it is made, and its result before the answer.
        match death.kind {
            StepKind::ToolResult => *counts.entry("find".to_owned()).or_default() += 1,
            StepKind::Route | StepKind::Child if death.time == 1 => {
                *counts.entry("chooser".to_owned()).or_default() += 1;
            }
            _ => {}
        }
        return vec![counts];
    }
    // The last call of the agent is recorded with its answer, which is the first of the two.
    let last = match story.agent {
        "ums" => "ums say".to_owned(),
        "assistant" => format!("model {}", TOOLS.len()),
        "line" => "write".to_owned(),
        agent => agent.to_owned(),
    };
    let is_first_phase = !story.below.is_empty() && death.time == 1;
    let again = match death.kind {
        // The answer of the phase before it, and the hold, are recorded.
        StepKind::Phase | StepKind::Hold | StepKind::Prepare => None,
        StepKind::Child if death.time > 1 => None,
        // The route is recorded with the request to the chosen agent.
        StepKind::Route | StepKind::Child => Some("chooser".to_owned()),
        // The calls are recorded with the reply that wants them.
        StepKind::Model | StepKind::ToolCall => Some(format!("model {}", death.time - 1)),
        StepKind::AgentCall | StepKind::Answer if is_first_phase => Some("parse".to_owned()),
        StepKind::AgentCall => Some(last.clone()),
        StepKind::Answer => (death.time == story.answered_by()).then(|| last.clone()),
        // It is looked for, not begun again.
        StepKind::Conversation => Some("ums find".to_owned()),
        StepKind::ToolResult => {
            let (tool, honours_keys) = TOOLS[death.time - 1];
            honours_keys.then(|| tool.to_owned())
        }
    };
    // The coordinator takes the answer of its agent when that is decided: it may be recorded or not. After
    // a pause it waits until it is recorded.
    let is_passing_on = death.kind == StepKind::Answer && death.time > story.answered_by();
    let may_be = (is_passing_on && story.agent != "assistant").then(|| counts.clone());
    let again = again.or_else(|| may_be.as_ref().map(|_| last));
    if let Some(again) = again {
        *counts.entry(again).or_default() += 1;
    }
    may_be.into_iter().chain([counts]).collect()
}

/// The calls that may have been made while the process died after a step: its other threads run until the signal
/// reaches them, and on a busy machine they may be ahead of the thread that was to send it. A turn makes one call
/// at a time, so at most one of them was not recorded.
fn calls_after(story: &Story, death: Option<Death>) -> &'static [&'static str] {
    let Some(death) = death.filter(|death| death.moment == "after") else {
        return &[];
    };
    let nth = death.time - 1;
    let next = match (death.kind, story.agent) {
        (StepKind::Route, _) => story.calls.get(1).copied(),
        (StepKind::Conversation, _) => Some("ums say"),
        (StepKind::Prepare, _) | (StepKind::ToolCall, "lookup") => Some("find"),
        (StepKind::Phase, _) => story.below.get(nth).copied(),
        // The agents below a pipeline end before it.
        (StepKind::AgentCall | StepKind::Answer | StepKind::Child, "line") => {
            story.below.get(death.time).copied()
        }
        (StepKind::Model | StepKind::ToolCall, "assistant") => {
            TOOLS.get(nth).map(|(tool, _)| *tool)
        }
        (StepKind::Hold, _) => TOOLS.get(GATED_FROM + nth).map(|(tool, _)| *tool),
        (StepKind::ToolResult, "assistant") => story.calls.get(2 * death.time + 1).copied(),
        _ => None,
    };
    let is_next = |call: &&&str| Some(**call) == next;
    let from = story.calls.iter().position(|call| is_next(&call));
    &story.calls[from.unwrap_or(story.calls.len())..]
}

/// What people were asked, in one of these ways: the two approvals, and about a call that may have run.
pub(super) fn expected_holds(story: &Story, death: Option<Death>) -> Vec<Vec<String>> {
    let sure = sure_holds(story, death);
    let mut asked = vec![sure.clone()];
    for (tool, honours_keys) in TOOLS {
        let question = format!("reconcile {tool}");
        if honours_keys || !calls_after(story, death).contains(&tool) || sure.contains(&question) {
            continue;
        }
        // A gated call is asked about after its approval.
        let approval = sure
            .iter()
            .position(|hold| *hold == format!("approval {tool}"));
        let mut with_question = sure.clone();
        with_question.insert(approval.map_or(0, |place| place + 1), question);
        asked.push(with_question);
    }
    asked
}

fn sure_holds(story: &Story, death: Option<Death>) -> Vec<String> {
    let mut holds = Vec::new();
    for (at, (tool, honours_keys)) in TOOLS.into_iter().enumerate() {
        if story.agent != "assistant" {
            break;
        }
        let is_gated = at >= GATED_FROM;
        if is_gated {
            holds.push(format!("approval {tool}"));
        }
        let was_lost = death.is_some_and(|death| {
            let may_have_run = match (death.kind, death.moment) {
                (StepKind::Model | StepKind::ToolCall, "after") => !is_gated,
                (StepKind::ToolResult, "before") => true,
                _ => false,
            };
            may_have_run && death.time == at + 1
        });
        if was_lost && !honours_keys {
            holds.push(format!("reconcile {tool}"));
        }
    }
    holds
}

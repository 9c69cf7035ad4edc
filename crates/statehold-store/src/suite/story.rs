//! One long session in which everything happens: nested agents, holds and votes, lost workers,
//! deadlines, cancels, state of every scope, a rewind, the end.

use statehold_core::command::{Command, Output, StartRequest, StatePatch};
use statehold_core::digest::Digest;
use statehold_core::hold::{DecisionKind, HoldKind, OnExpiry};
use statehold_core::item::{CallOutcome, NewItem, Role, Visibility};
use statehold_core::principal::Actor;
use statehold_core::scope::MergePolicy;
use statehold_core::task::CloseOn;

use super::driver::Driver;
use super::fixture::{key, system};
use super::words::LONG_MS;

/// One step: its name, and who does what. Step n is revision n.
pub type Step = (&'static str, fn(&mut Driver) -> (Actor, Command));

/// The revision at which three requests are live, one of them held.
pub const NESTED: u64 = 12;
/// The last revision before the session closes.
pub const OPEN: u64 = STEPS.len() as u64 - 1;

/// Tells the story up to a revision.
pub async fn tell(driver: &mut Driver, until: u64) {
    while driver.state.revision < until {
        next(driver).await;
    }
}

/// Tells the next step and says its name; None at the end.
pub async fn next(driver: &mut Driver) -> Option<&'static str> {
    let index = usize::try_from(driver.state.revision).ok()?;
    let (name, step) = STEPS.get(index)?;
    let (actor, command) = step(driver);
    driver.ok(&actor, command).await;
    Some(name)
}

/// All steps.
pub const STEPS: &[Step] = &[
    ("create", |d| {
        let mut state = d.set(&[
            ("topic", r#""sea""#),
            ("depth", "1"),
            ("user:language", r#""de""#),
        ]);
        state
            .set
            .extend(d.merge(MergePolicy::Add, &[("app:visits", "1")]).set);
        let create = Command::CreateSession {
            owner: d.owner.clone(),
            name: Some(d.body("trip to Malmö")),
            labels: Some(d.body(r#"{"team":"red"}"#)),
            state,
            ttl: None,
            hidden_ttl_ms: None,
        };
        (d.client(), create)
    }),
    ("start", |d| {
        let attachments = vec![d.file("a map"), d.file([0, 255, 0])];
        let start = StartRequest {
            attachments,
            chat: Some(Digest::sha256(b"plan a trip")),
            ..d.start("planner")
        };
        (d.client(), Command::StartRequest(start))
    }),
    ("claim", |d| (d.worker(1), claim(d, 1))),
    ("append", |d| {
        let thought = NewItem {
            visibility: Visibility::Hidden,
            ..NewItem::message(Role::Assistant, d.body("hm"))
        };
        let append = Command::AppendItems {
            by: d.fenced(1),
            items: vec![d.note("a note"), thought],
            state: d.set(&[("plan", "[1,2]")]),
            task_state: Some(d.body(r#"{"step":1}"#)),
        };
        (d.worker(1), append)
    }),
    ("spawn", |d| {
        let child = StartRequest {
            lease_ttl_ms: None,
            ..d.spawn(1, "booker")
        };
        (d.worker(1), Command::StartRequest(child))
    }),
    ("claim the child", |d| (d.worker(2), claim(d, 2))),
    ("ask for two approvals", |d| (d.worker(2), d.approval(2, 2))),
    ("vote", |d| {
        (d.approver(1), d.decision(1, DecisionKind::Approve))
    }),
    ("approve", |d| {
        (d.approver(2), d.decision(1, DecisionKind::Approve))
    }),
    ("append the result", |d| {
        let items = vec![d.result_of(2, CallOutcome::Ran)];
        let state = StatePatch {
            delete: vec![key("plan")],
            ..d.set(&[("seats", "2")])
        };
        let append = Command::AppendItems {
            by: d.fenced(2),
            items,
            state,
            task_state: None,
        };
        (d.worker(2), append)
    }),
    ("spawn a grandchild", |d| {
        let child = StartRequest {
            close_on: CloseOn::Failure,
            ..d.spawn(2, "checker")
        };
        (d.worker(2), Command::StartRequest(child))
    }),
    ("ask a question", |d| {
        (d.worker(2), d.question(3, Some(3_600_000)))
    }),
    ("respond", |d| {
        (d.client(), d.decision(2, DecisionKind::Respond))
    }),
    ("ask with a deadline", |d| {
        let mut form = d.question(3, Some(5_000));
        if let Command::OpenHold { hold, .. } = &mut form {
            (hold.kind, hold.on_expiry) = (HoldKind::Form, OnExpiry::Fail);
        }
        (d.worker(2), form)
    }),
    ("expire", |d| {
        d.later(10);
        (system(&d.owner), Command::ExpireHold { hold: d.holds[2] })
    }),
    ("complete the child", |d| {
        let done = Command::CompleteRequest {
            by: d.fenced(2),
            output: d.output("booked"),
            items: vec![d.note("last words")],
            state: d.set(&[("booked", "true")]),
            task_state: Some(d.body(r#"{"step":2}"#)),
            close_task: true,
            cancel_children: false,
        };
        (d.worker(2), done)
    }),
    ("call a tool", |d| {
        let call = d.call(false);
        (d.worker(1), d.append(1, vec![call]))
    }),
    ("lose the worker", |d| {
        d.later(1_000);
        (
            system(&d.owner),
            Command::LapseLease {
                request: d.requests[0],
            },
        )
    }),
    ("ask what the lost worker did", |d| {
        (d.worker(3), claim(d, 1))
    }),
    ("run it again", |d| {
        (d.approver(1), d.decision(4, DecisionKind::Approve))
    }),
    ("claim again", |d| (d.worker(3), claim(d, 1))),
    ("append the second result", |d| {
        let result = d.result_of(1, CallOutcome::Ran);
        (d.worker(3), d.append(1, vec![result]))
    }),
    ("write state under a fence", |d| {
        let patch = d.set(&[("depth", "2")]);
        let by = Some(d.fenced(1));
        (d.worker(3), Command::PutState { patch, by })
    }),
    ("complete", |d| {
        let attachments = vec![d.file("the ticket")];
        let output = Output {
            attachments,
            ..d.output("have a nice trip")
        };
        let mut done = d.complete(1);
        if let Command::CompleteRequest { output: answer, .. } = &mut done {
            *answer = output;
        }
        (d.worker(3), done)
    }),
    ("a whole turn", |d| {
        let turn = StartRequest {
            items: vec![d.note("quick")],
            state: d.set(&[("mood", r#""good""#)]),
            output: Some(d.output("yes")),
            ..d.leased("planner")
        };
        (d.worker(1), Command::StartRequest(turn))
    }),
    ("start another", |d| {
        (d.worker(1), Command::StartRequest(d.leased("planner")))
    }),
    ("ask for an approval in time", |d| {
        let mut ask = d.approval(5, 1);
        if let Command::OpenHold { hold, .. } = &mut ask {
            (hold.expires_in_ms, hold.on_expiry) = (Some(5_000), OnExpiry::Dismiss);
        }
        (d.worker(1), ask)
    }),
    ("approve too late", |d| {
        d.later(10);
        (d.approver(1), d.decision(5, DecisionKind::Approve))
    }),
    ("start a writer", |d| {
        (d.worker(1), Command::StartRequest(d.leased("writer")))
    }),
    ("fail", |d| {
        let error = d.body(r#"{"code":"no_ink"}"#);
        let (by, cancel_children) = (d.fenced(6), false);
        (
            d.worker(1),
            Command::FailRequest {
                by,
                error,
                cancel_children,
            },
        )
    }),
    ("start the writer again", |d| {
        (d.worker(1), Command::StartRequest(d.leased("writer")))
    }),
    ("spawn a critic", |d| {
        (d.worker(1), Command::StartRequest(d.spawn(7, "critic")))
    }),
    ("cancel the request", |d| {
        (
            d.client(),
            Command::CancelRequest {
                request: d.requests[6],
            },
        )
    }),
    ("start a last time", |d| {
        (d.worker(1), Command::StartRequest(d.leased("writer")))
    }),
    ("ask before the end", |d| (d.worker(1), d.question(9, None))),
    ("cancel the task", |d| {
        (d.client(), Command::CancelTask { task: d.tasks[3] })
    }),
    ("close the task", |d| {
        (d.client(), Command::CloseTask { task: d.tasks[0] })
    }),
    ("write state", |d| {
        let patch = StatePatch {
            delete: vec![key("depth")],
            ..d.set(&[("topic", r#""mountains""#), ("extra", "1")])
        };
        (d.client(), Command::PutState { patch, by: None })
    }),
    ("rewind", |d| (d.client(), Command::Rewind { to: 4 })),
    ("write shared state", |d| {
        let mut patch = d.set(&[("user:language", r#""fr""#), ("extra", "2")]);
        patch.if_versions.insert(key("user:language"), 1);
        (d.client(), Command::PutState { patch, by: None })
    }),
    ("remove shared state", |d| {
        let delete = vec![key("user:language")];
        let patch = StatePatch {
            delete,
            ..StatePatch::default()
        };
        (d.client(), Command::PutState { patch, by: None })
    }),
    ("queue a request", |d| {
        (d.client(), Command::StartRequest(d.start("planner")))
    }),
    ("start a guide", |d| {
        (d.worker(1), Command::StartRequest(d.leased("guide")))
    }),
    ("ask the last approval", |d| {
        (d.worker(1), d.approval(11, 1))
    }),
    ("edit", |d| {
        (d.approver(3), d.decision(7, DecisionKind::Edit))
    }),
    ("ask and keep asking", |d| {
        (d.worker(1), d.question(11, Some(9_000_000)))
    }),
    ("close the session", |d| {
        (d.client(), Command::CloseSession { cancel_live: true })
    }),
];

fn claim(driver: &Driver, n: usize) -> Command {
    Command::ClaimRequest {
        request: driver.requests[n - 1],
        ttl_ms: LONG_MS,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemoryStore;
    use crate::suite::driver::block_on;
    use crate::suite::fixture::owner;

    #[test]
    fn everything_that_can_happen_happens() {
        let mut driver = Driver::new(Arc::new(MemoryStore::new()), owner(), 1);
        block_on(tell(&mut driver, OPEN + 1));
        let fork = block_on(driver.fork(2, NESTED));
        let mut seen = BTreeSet::new();
        for stored in driver.log.iter().chain(&fork.log) {
            seen.insert(format!("{:?}", stored.record.content.command));
            for event in &stored.record.content.events {
                let event = serde_json::to_value(event).expect("events are JSON");
                seen.insert(event["act"].to_string());
            }
        }
        let (commands, events) = (17, 23);
        assert_eq!(seen.len(), commands + events, "{seen:?}");
        assert!(driver.past.iter().any(|state| state.requests.len() == 3));
    }
}

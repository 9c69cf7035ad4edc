//! The situations that the scopes are made for, as `sometimes` properties: a scope that is trimmed too
//! far fails.

use statehold_core::hold::HoldKind;
use statehold_core::request::FENCE_RAISE;
use stateright::Property;

use super::{CoreModel, World};
use crate::fixtures;

/// The situations that must come up somewhere.
pub(super) fn all() -> Vec<Property<CoreModel>> {
    vec![
        Property::sometimes(
            "the third level waits for a person, beside a sibling",
            |_, world: &World| third_level_waits(world),
        ),
        Property::sometimes("two holds are open on one request", |_, world: &World| {
            let requests = &world.core.requests;
            requests.values().any(|live| live.holds.len() == 2)
        }),
        Property::sometimes(
            "a reused child task waits for a person",
            |_, world: &World| reused_child_waits(world),
        ),
        Property::sometimes("one of two approvals is there", |_, world: &World| {
            let holds = &world.core.holds;
            holds
                .values()
                .any(|hold| hold.need == 2 && hold.votes.len() == 1)
        }),
        Property::sometimes(
            "a hold is due, but the wall clock stepped back",
            |_, world: &World| {
                let wall = world.context(fixtures::client()).now;
                let at = world.core.last_at;
                let mut holds = world.core.holds.values();
                wall < at && holds.any(|hold| hold.is_due(at) && !hold.is_due(wall))
            },
        ),
        Property::sometimes("a second worker took over", |_, world: &World| {
            let second = fixtures::worker(2).principal;
            let requests = &world.core.requests;
            requests.values().any(|live| {
                live.fence > 1 && live.lease.is_some_and(|lease| lease.worker == second)
            })
        }),
        Property::sometimes(
            "a call of unknown outcome is asked about",
            |_, world: &World| {
                let holds = &world.core.holds;
                holds.values().any(|hold| hold.kind == HoldKind::Reconcile)
            },
        ),
        Property::sometimes(
            "a held request was taken from the workers of another copy",
            |_, world: &World| {
                let mut requests = world.core.requests.values();
                requests.any(|live| live.fence > FENCE_RAISE && !live.holds.is_empty())
            },
        ),
        Property::sometimes("the disk is two records behind", |_, world: &World| {
            world.core.revision > world.durable + 1
        }),
        Property::sometimes("a crash took a hold with it", |_, world: &World| {
            world.facts.holds.len() < usize::from(world.spent.holds)
        }),
    ]
}

fn third_level_waits(world: &World) -> bool {
    let core = &world.core;
    core.holds.values().any(|hold| {
        let leaf = core.requests.get(&hold.request);
        let above = leaf.and_then(|leaf| core.requests.get(&leaf.parent?));
        let root = above.and_then(|above| core.requests.get(&above.parent?));
        root.is_some_and(|root| root.children.len() == 2)
    })
}

/// The request that waits is not the child of the one that its task was opened for.
fn reused_child_waits(world: &World) -> bool {
    let core = &world.core;
    core.holds.values().any(|hold| {
        let asked_by = core
            .requests
            .get(&hold.request)
            .and_then(|live| live.parent);
        let opened_for = core.tasks.get(&hold.task).and_then(|task| task.parent);
        asked_by.is_some() && asked_by != opened_for.map(|link| link.request)
    })
}

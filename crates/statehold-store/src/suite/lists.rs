//! Lists over all sessions: in order, in pages, behind the wall of the tenant.

use std::sync::Arc;

use statehold_core::command::{Command, StatePatch};
use statehold_core::hold::DecisionKind;
use statehold_core::ids::SessionId;
use statehold_core::session::{Owner, SessionStatus};

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{name, owner, owner_of, seconds, session};
use crate::{HoldQuery, HoldSummary, SessionQuery, SessionSummary, Store};

async fn sessions(store: &Arc<dyn Store>, query: SessionQuery) -> Vec<SessionSummary> {
    store.sessions(query).await.expect(HEALTHY)
}

fn of_tenant(tenant: &str) -> SessionQuery {
    SessionQuery {
        tenant: name(tenant),
        app: None,
        user: None,
        after: None,
        limit: 1_000,
    }
}

fn of_owner(owner: &Owner) -> SessionQuery {
    SessionQuery {
        app: Some(owner.app.clone()),
        user: Some(owner.user),
        ..of_tenant(owner.tenant.as_str())
    }
}

fn ids(found: &[SessionSummary]) -> Vec<SessionId> {
    found.iter().map(|summary| summary.id).collect()
}

pub(super) async fn sessions_are_listed_newest_first_in_pages(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for n in 1..=7 {
        let mut driver = Driver::new(Arc::clone(&store), owner_of("north", "shop", n % 2), n);
        driver.now = seconds(i64::try_from(n).expect("a small number"));
        let create = driver.create(None);
        driver.ok(&driver.client(), create).await;
        drivers.push(driver);
    }
    drivers[2].turn("planner").await;
    for (query, newest_first) in [
        (of_tenant("north"), vec![7, 6, 5, 4, 3, 2, 1]),
        (of_owner(&owner_of("north", "shop", 1)), vec![7, 5, 3, 1]),
    ] {
        let expected: Vec<SessionId> = newest_first.into_iter().map(session).collect();
        for limit in 1..=8 {
            let mut found: Vec<SessionSummary> = Vec::new();
            loop {
                let after = found.last().map(|summary| summary.place);
                let page = sessions(
                    &store,
                    SessionQuery {
                        after,
                        limit,
                        ..query.clone()
                    },
                )
                .await;
                assert!(page.len() <= limit, "pages of {limit}");
                if page.is_empty() {
                    break;
                }
                found.extend(page);
                assert!(found.len() < 1_000, "pages of {limit} never end");
            }
            assert_eq!(ids(&found), expected, "pages of {limit}");
        }
    }
    let page = SessionQuery {
        limit: 3,
        ..of_tenant("north")
    };
    let first = sessions(&store, page.clone()).await;
    Driver::begin(&store, 8).await;
    let after = first.last().map(|summary| summary.place);
    let second = sessions(&store, SessionQuery { after, ..page }).await;
    assert_eq!(
        ids(&second),
        [4, 3, 2].map(session),
        "new sessions do not move a page"
    );
}

pub(super) async fn sessions_are_listed_by_tenant_and_owner(store: Arc<dyn Store>) {
    let owners = [
        owner(),
        owner_of("north", "shop", 2),
        owner_of("north", "bank", 1),
        owner_of("south", "shop", 1),
    ];
    for (n, owner) in (1..).zip(&owners) {
        Driver::begin_for(&store, owner.clone(), n).await;
    }
    let found = sessions(&store, of_tenant("north")).await;
    assert_eq!(ids(&found), [3, 2, 1].map(session));
    let found = sessions(&store, of_tenant("south")).await;
    assert_eq!(ids(&found), [session(4)]);
    assert_eq!(sessions(&store, of_tenant("west")).await, []);
    for (n, owner) in (1..).zip(&owners) {
        let found = sessions(&store, of_owner(owner)).await;
        assert_eq!(ids(&found), [session(n)], "{owner:?}");
        assert_eq!(found[0].owner, *owner);
    }
}

pub(super) async fn a_listed_session_says_what_it_is(store: Arc<dyn Store>) {
    let mut driver = Driver::new(Arc::clone(&store), owner(), 1);
    let create = Command::CreateSession {
        owner: owner(),
        name: None,
        labels: Some(driver.body(r#"{"team":"red"}"#)),
        state: StatePatch::default(),
        ttl: None,
    };
    driver.ok(&driver.client(), create).await;
    let created_at = driver.now;
    driver.later(60);
    driver.turn("planner").await;
    let mut expected = SessionSummary {
        place: 0,
        id: session(1),
        owner: owner(),
        name: None,
        labels: Some(r#"{"team":"red"}"#.to_owned()),
        status: SessionStatus::Idle,
        deleted: false,
        ttl: None,
        expires_at: None,
        revision: 2,
        created_at,
        updated_at: driver.now,
    };
    let mut found = sessions(&store, of_owner(&owner())).await;
    expected.place = found[0].place;
    assert_eq!(found, [expected.clone()]);
    let close = Command::CloseSession { cancel_live: false };
    driver.ok(&driver.client(), close).await;
    found = sessions(&store, of_owner(&owner())).await;
    (expected.status, expected.revision, expected.updated_at) =
        (SessionStatus::Closed, 3, driver.now);
    assert_eq!(found, [expected]);
}

async fn holds(
    store: &Arc<dyn Store>,
    tenant: &str,
    after: Option<u64>,
    limit: usize,
) -> Vec<HoldSummary> {
    let tenant = name(tenant);
    let query = HoldQuery {
        tenant,
        after,
        limit,
    };
    store.open_holds(query).await.expect(HEALTHY)
}

/// Sessions of `north` with three open holds each, opened by turns; one of `south` has one.
async fn waiting(store: &Arc<dyn Store>) -> (Vec<Driver>, Vec<HoldSummary>) {
    let mut drivers = Vec::new();
    for (n, owner) in [
        owner(),
        owner_of("north", "bank", 2),
        owner_of("south", "shop", 1),
    ]
    .into_iter()
    .enumerate()
    {
        let mut driver = Driver::begin_for(store, owner, n as u64 + 1).await;
        driver.run("planner", 6_000_000).await;
        drivers.push(driver);
    }
    let mut expected = Vec::new();
    for _ in 0..3 {
        for driver in &mut drivers[..2] {
            let ask = driver.question(1, None);
            driver.by_worker(ask).await;
            let id = driver.holds.last().expect("just opened");
            let hold = driver.state.holds[id].clone();
            expected.push(HoldSummary {
                place: 0,
                session: driver.session(),
                hold,
            });
        }
    }
    let ask = drivers[2].approval(1, 2);
    drivers[2].by_worker(ask).await;
    (drivers, expected)
}

pub(super) async fn open_holds_are_listed_oldest_first_in_pages(store: Arc<dyn Store>) {
    let (_, expected) = waiting(&store).await;
    for limit in 1..=7 {
        let mut found: Vec<HoldSummary> = Vec::new();
        loop {
            let after = found.last().map(|summary| summary.place);
            let page = holds(&store, "north", after, limit).await;
            assert!(page.len() <= limit, "pages of {limit}");
            if page.is_empty() {
                break;
            }
            found.extend(page);
            assert!(found.len() < 1_000, "pages of {limit} never end");
        }
        for summary in &mut found {
            summary.place = 0;
        }
        assert_eq!(found, expected, "pages of {limit}");
    }
    assert_eq!(holds(&store, "south", None, 10).await.len(), 1);
    assert_eq!(holds(&store, "west", None, 10).await, []);
}

pub(super) async fn a_hold_keeps_its_place_until_it_is_decided(store: Arc<dyn Store>) {
    let (mut drivers, _) = waiting(&store).await;
    let [first_asks, other, voted_on] = &mut drivers[..] else {
        panic!("three sessions wait");
    };
    let before = holds(&store, "north", None, 10).await;
    let answer = first_asks.decision(2, DecisionKind::Respond);
    first_asks.ok(&first_asks.client(), answer).await;
    let after = holds(&store, "north", None, 10).await;
    let mut expected = before.clone();
    expected.remove(2);
    assert_eq!(after, expected, "the others stay where they were");
    let first = holds(&store, "south", None, 10).await;
    let vote = voted_on.decision(1, DecisionKind::Approve);
    voted_on.ok(&voted_on.approver(1), vote).await;
    let voted = holds(&store, "south", None, 10).await;
    assert_eq!(voted[0].place, first[0].place, "a vote moves nothing");
    assert_eq!(voted[0].hold.votes.len(), 1);
    let cancel = Command::CancelRequest {
        request: first_asks.requests[0],
    };
    first_asks.ok(&first_asks.client(), cancel).await;
    let left = holds(&store, "north", None, 10).await;
    assert!(
        left.iter()
            .all(|summary| summary.session == other.session())
    );
    assert_eq!(left.len(), 3);
}

async fn decided(
    store: &Arc<dyn Store>,
    tenant: &str,
    after: Option<u64>,
    limit: usize,
) -> Vec<HoldSummary> {
    let tenant = name(tenant);
    let query = HoldQuery {
        tenant,
        after,
        limit,
    };
    store.decided_holds(query).await.expect(HEALTHY)
}

pub(super) async fn decided_holds_are_listed_last_decided_first_in_pages(store: Arc<dyn Store>) {
    let (mut drivers, _) = waiting(&store).await;
    let [first, second, voted_on] = &mut drivers[..] else {
        panic!("three sessions wait");
    };
    assert_eq!(decided(&store, "north", None, 10).await, []);
    let mut expected = Vec::new();
    for (is_second, hold) in [(true, 3), (false, 2), (false, 1), (true, 2)] {
        let driver = if is_second { &mut *second } else { &mut *first };
        let id = driver.holds[hold - 1];
        let hold_itself = driver.state.holds[&id].clone();
        let answer = driver.decision(hold, DecisionKind::Respond);
        driver.ok(&driver.client(), answer).await;
        expected.push((driver.session(), hold_itself));
    }
    // Cancelling a request decides what it still waits for.
    let request = second.requests[0];
    let id = second.holds[0];
    let cancelled = second.state.holds[&id].clone();
    let cancel = Command::CancelRequest { request };
    second.ok(&second.client(), cancel).await;
    expected.push((second.session(), cancelled));
    let vote = voted_on.decision(1, DecisionKind::Approve);
    voted_on.ok(&voted_on.approver(1), vote).await;
    assert_eq!(
        decided(&store, "south", None, 10).await,
        [],
        "one vote of two"
    );
    // A fork cancels what is open in its origin for itself; the origin still waits.
    first.fork(9, first.state.revision).await;
    expected.reverse();
    for limit in 1..=6 {
        let mut found: Vec<HoldSummary> = Vec::new();
        loop {
            let after = found.last().map(|summary| summary.place);
            let page = decided(&store, "north", after, limit).await;
            assert!(page.len() <= limit, "pages of {limit}");
            if page.is_empty() {
                break;
            }
            found.extend(page);
            assert!(found.len() < 1_000, "pages of {limit} never end");
        }
        let found: Vec<_> = found
            .into_iter()
            .map(|one| (one.session, one.hold))
            .collect();
        assert_eq!(found, expected, "pages of {limit}");
    }
    let page = decided(&store, "north", None, 2).await;
    let answer = first.decision(3, DecisionKind::Respond);
    first.ok(&first.client(), answer).await;
    let after = page.last().map(|summary| summary.place);
    let next = decided(&store, "north", after, 1).await;
    assert_eq!(next[0].hold, expected[2].1, "new ones do not move a page");
    let vote = voted_on.decision(1, DecisionKind::Approve);
    voted_on.ok(&voted_on.approver(2), vote).await;
    let found = decided(&store, "south", None, 10).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].hold.votes.len(), 2, "with its votes");
    assert_eq!(decided(&store, "west", None, 10).await, []);
}

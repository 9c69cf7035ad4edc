//! What waits for a worker, and whose time has come.

use std::collections::BTreeSet;
use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::hold::DecisionKind;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::session::TtlMode;

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{name, owner, owner_of, seconds, session, system, the_end};
use crate::{AgentQueue, Due, DueKind, Store, WorkTotals};

async fn claimable(
    store: &Arc<dyn Store>,
    tenant: &str,
    agent: &str,
) -> Vec<(SessionId, RequestId)> {
    let found = store
        .claimable(name(tenant), name(agent), None, None, 1_000)
        .await;
    found.expect(HEALTHY)
}

pub(super) async fn claimable_requests_come_oldest_first(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for n in 1..=3 {
        drivers.push(Driver::begin_for(&store, owner_of("north", "shop", n), n).await);
    }
    let mut expected = Vec::new();
    for (second, index) in (10..).zip([2, 0, 1, 1, 0, 2]) {
        let driver = &mut drivers[index];
        driver.now = seconds(second);
        driver.queue("planner").await;
        let request = *driver.requests.last().expect("just started");
        expected.push((driver.session(), request));
    }
    assert_eq!(claimable(&store, "north", "planner").await, expected);
    for limit in 0..=expected.len() {
        let found = store.claimable(name("north"), name("planner"), None, None, limit);
        let found = found.await.expect(HEALTHY);
        assert_eq!(found, expected[..limit], "at most {limit}");
    }
    for (index, (_, request)) in expected.iter().enumerate() {
        let found = store.claimable(name("north"), name("planner"), None, Some(*request), 2);
        let rest = &expected[index + 1..];
        let found = found.await.expect(HEALTHY);
        assert_eq!(found, rest[..rest.len().min(2)], "after {request}");
    }
    // Those of others are not counted.
    let user = owner_of("north", "shop", 2).user;
    let found = store.claimable(name("north"), name("planner"), Some(user), None, 2);
    let found = found.await.expect(HEALTHY);
    assert_eq!(found, [expected[2], expected[3]]);
}

pub(super) async fn live_work_of_an_agent_comes_in_pages(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut other = Driver::begin_for(&store, owner_of("south", "shop", 1), 2).await;
    for second in 10..15 {
        driver.now = seconds(second);
        driver.queue("planner").await;
    }
    driver.queue("writer").await;
    other.queue("planner").await;
    let (first, third) = (driver.requests[0], driver.requests[2]);
    let claim = Command::ClaimRequest {
        request: third,
        ttl_ms: 5_000,
    };
    driver.by_worker(claim).await;
    let cancel = Command::CancelRequest { request: first };
    driver.ok(&driver.client(), cancel).await;
    let expected = &driver.requests[1..5];
    for limit in 1..=5 {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = store.live_work(name("north"), name("planner"), after, limit);
            let page = page.await.expect(HEALTHY);
            assert!(page.len() <= limit);
            for work in &page {
                assert_eq!(work.session, driver.session());
                assert_eq!(work.live.fence, u64::from(work.live.id == third));
            }
            after = page.last().map(|work| work.live.id);
            found.extend(page.iter().map(|work| work.live.id));
            if page.is_empty() {
                break;
            }
        }
        assert_eq!(found, expected, "in pages of {limit}");
    }
}

pub(super) async fn only_queued_requests_of_the_agent_are_claimable(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut other = Driver::begin_for(&store, owner_of("south", "shop", 1), 2).await;
    driver.queue("planner").await;
    driver.queue("writer").await;
    other.queue("planner").await;
    let planner = [(driver.session(), driver.requests[0])];
    assert_eq!(claimable(&store, "north", "planner").await, planner);
    assert_eq!(claimable(&store, "north", "writer").await.len(), 1);
    assert_eq!(claimable(&store, "north", "guide").await, []);
    let request = driver.requests[0];
    let claim = Command::ClaimRequest {
        request,
        ttl_ms: 5_000,
    };
    driver.by_worker(claim).await;
    assert_eq!(claimable(&store, "north", "planner").await, [], "it runs");
    driver.later(10);
    driver
        .ok(&system(&owner()), Command::LapseLease { request })
        .await;
    assert_eq!(
        claimable(&store, "north", "planner").await,
        planner,
        "its worker is lost"
    );
    let claim = Command::ClaimRequest {
        request,
        ttl_ms: 5_000,
    };
    driver.by_worker(claim).await;
    let ask = driver.question(1, None);
    driver.by_worker(ask).await;
    assert_eq!(
        claimable(&store, "north", "planner").await,
        [],
        "it is held"
    );
    driver
        .ok(&system(&owner()), Command::RaiseFence { request })
        .await;
    assert_eq!(
        claimable(&store, "north", "planner").await,
        [],
        "it is held, whoever had it"
    );
    driver.later(10);
    let answer = driver.decision(1, DecisionKind::Respond);
    driver.ok(&driver.client(), answer).await;
    assert_eq!(
        claimable(&store, "north", "planner").await,
        planner,
        "it waits for a worker"
    );
    driver
        .ok(&driver.client(), Command::CancelRequest { request })
        .await;
    assert_eq!(
        claimable(&store, "north", "planner").await,
        [],
        "it has ended"
    );
    let close = Command::CloseSession { cancel_live: true };
    driver.ok(&driver.client(), close).await;
    assert_eq!(claimable(&store, "north", "writer").await, []);
    assert_eq!(claimable(&store, "south", "planner").await.len(), 1);
}

pub(super) async fn open_holds_and_queued_requests_are_counted(store: Arc<dyn Store>) {
    let totals = async |tenant: &str, agents| {
        let found = store.work_totals(name(tenant), agents);
        found.await.expect(HEALTHY)
    };
    assert_eq!(totals("north", 10).await, WorkTotals::default(), "nothing");
    let mut first = Driver::begin(&store, 1).await;
    let mut second = Driver::begin_for(&store, owner_of("north", "shop", 2), 2).await;
    let mut other = Driver::begin_for(&store, owner_of("south", "shop", 1), 3).await;
    first.now = seconds(9);
    first.run("planner", 600_000).await;
    let asks = [first.question(1, None), first.question(1, None)];
    for ask in asks {
        first.by_worker(ask).await;
    }
    other.queue("planner").await;
    for (second_of, driver) in [(20, &mut second), (30, &mut first)] {
        driver.now = seconds(second_of);
        driver.queue("planner").await;
    }
    second.queue("writer").await;
    let queue = |agent: &str, requests, oldest| AgentQueue {
        agent: name(agent),
        requests,
        oldest: Some(oldest),
    };
    let expected = WorkTotals {
        open_holds: 2,
        oldest_hold: first.holds.iter().copied().min(),
        queues: vec![
            queue("planner", 2, second.requests[0]),
            queue("writer", 1, second.requests[1]),
        ],
    };
    assert_eq!(totals("north", 10).await, expected);
    assert_eq!(
        totals("north", 1).await.queues,
        expected.queues[..1],
        "one agent"
    );
    let theirs = WorkTotals {
        queues: vec![queue("planner", 1, other.requests[0])],
        ..WorkTotals::default()
    };
    assert_eq!(totals("south", 10).await, theirs);
    let request = first.requests[0];
    let cancel = Command::CancelRequest { request };
    first.ok(&first.client(), cancel).await;
    let claim = Command::ClaimRequest {
        request: second.requests[0],
        ttl_ms: 5_000,
    };
    second.by_worker(claim).await;
    let rest = WorkTotals {
        queues: vec![
            queue("planner", 1, first.requests[1]),
            queue("writer", 1, second.requests[1]),
        ],
        ..WorkTotals::default()
    };
    assert_eq!(totals("north", 10).await, rest, "decided and claimed");
}

/// What is due at a second of the suite, with the second it was due.
async fn due(store: &Arc<dyn Store>, second: i64, limit: usize) -> Vec<(SessionId, i64, DueKind)> {
    let found = store
        .due(seconds(second), None, limit)
        .await
        .expect(HEALTHY)
        .due;
    let since = |due: &Due| (due.at.as_micros() - seconds(0).as_micros()) / 1_000_000;
    found
        .iter()
        .map(|due| (due.session, since(due), due.kind))
        .collect()
}

pub(super) async fn leases_and_deadlines_are_due_in_order(store: Arc<dyn Store>) {
    let mut first = Driver::begin(&store, 1).await;
    let mut second = Driver::begin_for(&store, owner_of("south", "bank", 2), 2).await;
    first.now = seconds(9);
    first.run("planner", 50_000).await;
    second.now = seconds(19);
    second.run("planner", 10_000).await;
    first.now = seconds(29);
    first.run("writer", 100_000).await;
    let ask = first.question(2, Some(10_000));
    first.by_worker(ask).await;
    second.now = seconds(39);
    second.run("guide", 600_000).await;
    let ask = second.question(2, Some(200_000));
    second.by_worker(ask).await;
    let expected = [
        (session(2), 30, DueKind::Lease(second.requests[0])),
        (session(1), 41, DueKind::Hold(first.holds[0])),
        (session(1), 60, DueKind::Lease(first.requests[0])),
        (session(2), 241, DueKind::Hold(second.holds[0])),
    ];
    assert_eq!(due(&store, 100_000, 10).await, expected);
    for limit in 0..=4 {
        assert_eq!(
            due(&store, 100_000, limit).await,
            expected[..limit],
            "at most {limit}"
        );
    }
    for (count, (_, at, _)) in expected.iter().enumerate() {
        assert_eq!(
            due(&store, at - 1, 10).await,
            expected[..count],
            "before {at}"
        );
        assert_eq!(due(&store, *at, 10).await, expected[..=count], "at {at}");
    }
}

pub(super) async fn deadlines_come_in_pages_that_have_each_of_them_once(store: Arc<dyn Store>) {
    for n in 1..=5 {
        let mut driver = Driver::new(Arc::clone(&store), owner_of("north", "shop", n), n);
        // The lease, the hold and the life of a session end in the same moment, and so do those of the next.
        driver.now = seconds(0);
        let create = driver.create_for(TtlMode::Fixed, 59_000);
        driver.ok(&driver.client(), create).await;
        driver.now = seconds(9);
        driver.run("planner", 49_000).await;
        driver.now = seconds(19);
        driver.run("writer", 600_000).await;
        driver.now = seconds(29);
        let ask = driver.question(2, Some(30_000));
        driver.by_worker(ask).await;
    }
    let all = store.due(the_end(), None, 100).await.expect(HEALTHY);
    assert_eq!(all.next, None, "one page has them all");
    let times: BTreeSet<_> = all.due.iter().map(|due| due.at).collect();
    assert!(
        times.len() < all.due.len(),
        "some are due in the same moment"
    );
    assert_eq!(all.due.len(), 15);
    for limit in 1..=16 {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = store.due(the_end(), after, limit).await.expect(HEALTHY);
            assert!(page.due.len() <= limit, "at most {limit}");
            found.extend(page.due);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, all.due, "in pages of {limit}");
    }
}

pub(super) async fn only_running_leases_and_open_holds_are_due(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 10_000).await;
    let is_due = async |kind: DueKind| {
        let found = store.due(the_end(), None, 100).await.expect(HEALTHY).due;
        found.iter().any(|due| due.kind == kind)
    };
    let lease = DueKind::Lease(driver.requests[0]);
    assert!(is_due(lease).await, "a lease that runs");
    let child = Command::StartRequest(driver.spawn(1, "booker"));
    driver.by_worker(child).await;
    assert!(!is_due(lease).await, "the request waits for its child");
    let done = driver.complete(2);
    driver.by_worker(done).await;
    assert!(is_due(lease).await, "the request runs on");
    let ask = driver.question(1, Some(10_000));
    driver.by_worker(ask).await;
    let deadline = DueKind::Hold(driver.holds[0]);
    assert!(!is_due(lease).await, "the request is held");
    assert!(is_due(deadline).await, "the hold is open");
    driver.later(100);
    let expire = Command::ExpireHold {
        hold: driver.holds[0],
    };
    driver.ok(&system(&owner()), expire).await;
    assert!(!is_due(deadline).await, "the hold is decided");
    assert!(!is_due(lease).await, "the request is queued");
    let request = driver.requests[0];
    driver
        .by_worker(Command::ClaimRequest {
            request,
            ttl_ms: 10_000,
        })
        .await;
    assert!(is_due(lease).await, "the request was claimed again");
    let done = driver.complete(1);
    driver.by_worker(done).await;
    assert_eq!(
        store.due(the_end(), None, 100).await.expect(HEALTHY).due,
        [],
        "all is over"
    );
}

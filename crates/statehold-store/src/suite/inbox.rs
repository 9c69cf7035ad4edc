//! What waits for people: in every order, in pages, with what a reader needs to know.

use std::cmp::Reverse;
use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::hold::{DecisionKind, HoldStatus, Risk};
use statehold_core::ids::HoldId;
use statehold_core::item::CallOutcome;

use super::driver::Driver;
use super::fixture::{name, owner, owner_of};
use super::{HEALTHY, story};
use crate::{HoldChangeKind, HoldOrder, HoldQuery, HoldSummary, LineageStep, Store, StoredRecord};

const ORDERS: [HoldOrder; 3] = [HoldOrder::Urgency, HoldOrder::Oldest, HoldOrder::Newest];

fn of_tenant(tenant: &str, order: HoldOrder) -> HoldQuery {
    HoldQuery {
        tenant: name(tenant),
        user: None,
        session: None,
        order,
        after: None,
        limit: 1_000,
    }
}

async fn open(store: &Arc<dyn Store>, query: HoldQuery) -> Vec<HoldSummary> {
    store.open_holds(query).await.expect(HEALTHY)
}

async fn decided(store: &Arc<dyn Store>, query: HoldQuery) -> Vec<HoldSummary> {
    store.decided_holds(query).await.expect(HEALTHY)
}

/// All pages of a list, one after the other.
async fn in_pages(
    store: &Arc<dyn Store>,
    query: &HoldQuery,
    limit: usize,
    is_decided: bool,
) -> Vec<HoldSummary> {
    let mut found: Vec<HoldSummary> = Vec::new();
    loop {
        let after = found.last().map(|summary| summary.place);
        let query = HoldQuery {
            after,
            limit,
            ..query.clone()
        };
        let page = if is_decided {
            decided(store, query).await
        } else {
            open(store, query).await
        };
        assert!(page.len() <= limit, "pages of {limit}");
        if page.is_empty() {
            return found;
        }
        found.extend(page);
        assert!(found.len() < 1_000, "pages of {limit} never end");
    }
}

fn ids(found: &[HoldSummary]) -> Vec<HoldId> {
    found.iter().map(|summary| summary.hold.id).collect()
}

/// Sessions of `north` with holds of every risk, with and without a deadline, opened by turns; one of
/// `south` waits for two approvals. The holds of `north` come in the order of opening.
async fn waiting(store: &Arc<dyn Store>) -> (Vec<Driver>, Vec<HoldId>) {
    let mut drivers = Vec::new();
    let owners = [
        owner(),
        owner_of("north", "bank", 2),
        owner_of("south", "shop", 1),
    ];
    for (owner, n) in owners.into_iter().zip(1..) {
        let mut driver = Driver::begin_for(store, owner, n).await;
        driver.run("planner", 6_000_000).await;
        drivers.push(driver);
    }
    let mut opened = Vec::new();
    for (risk, expires_in_ms) in [
        (None, None),
        (Some(Risk::Low), Some(90_000)),
        (Some(Risk::High), None),
        (None, Some(10_000)),
        (Some(Risk::High), Some(50_000)),
        (Some(Risk::Medium), None),
    ] {
        for driver in &mut drivers[..2] {
            let ask = driver.risky(1, risk, expires_in_ms);
            driver.by_worker(ask).await;
            opened.extend(driver.holds.last().copied());
        }
    }
    let ask = drivers[2].approval(1, 2);
    drivers[2].by_worker(ask).await;
    (drivers, opened)
}

/// The holds of these sessions, most urgent first.
fn by_urgency(drivers: &[Driver], opened: &[HoldId]) -> Vec<HoldId> {
    let find = |id: &HoldId| drivers.iter().find_map(|driver| driver.state.holds.get(id));
    let mut holds: Vec<_> = opened.iter().filter_map(find).collect();
    // Stable: among equals, the order of opening.
    holds.sort_by_key(|hold| {
        let deadline = hold.deadline.map(|deadline| (0, Some(deadline)));
        (Reverse(hold.risk), deadline.unwrap_or((1, None)))
    });
    holds.iter().map(|hold| hold.id).collect()
}

pub(super) async fn open_holds_are_listed_in_every_order_in_pages(store: Arc<dyn Store>) {
    let (drivers, opened) = waiting(&store).await;
    for order in ORDERS {
        let mut expected = opened.clone();
        match order {
            HoldOrder::Urgency => expected = by_urgency(&drivers, &opened),
            HoldOrder::Oldest => {}
            HoldOrder::Newest => expected.reverse(),
        }
        for limit in [1, 2, 3, 5, 12, 13] {
            let found = in_pages(&store, &of_tenant("north", order), limit, false).await;
            assert_eq!(ids(&found), expected, "{order:?} in pages of {limit}");
        }
        assert_eq!(open(&store, of_tenant("south", order)).await.len(), 1);
        assert_eq!(open(&store, of_tenant("west", order)).await, []);
    }
}

pub(super) async fn a_page_misses_and_repeats_nothing_while_holds_are_decided(
    store: Arc<dyn Store>,
) {
    let (mut drivers, opened) = waiting(&store).await;
    for order in ORDERS {
        let query = HoldQuery {
            limit: 3,
            ..of_tenant("north", order)
        };
        let all = open(
            &store,
            HoldQuery {
                limit: 1_000,
                ..query.clone()
            },
        )
        .await;
        let first = open(&store, query.clone()).await;
        assert_eq!(first, all[..3]);
        // One that was shown and one that was not are decided, and new ones come.
        for gone in [all[2].hold.id, all[4].hold.id] {
            let driver = drivers
                .iter_mut()
                .find(|driver| driver.holds.contains(&gone));
            let driver = driver.expect("it is one of these");
            let at = driver.holds.iter().position(|hold| *hold == gone);
            let answer = driver.decision(at.expect("it is there") + 1, DecisionKind::Respond);
            driver.ok(&driver.client(), answer).await;
        }
        let after = first.last().map(|summary| summary.place);
        let rest = open(
            &store,
            HoldQuery {
                after,
                limit: 1_000,
                ..query
            },
        )
        .await;
        let mut expected = all[3..].to_vec();
        expected.remove(1);
        assert_eq!(ids(&rest), ids(&expected), "{order:?}");
    }
    assert_eq!(opened.len(), 12);
}

pub(super) async fn a_hold_keeps_its_place_until_it_is_decided(store: Arc<dyn Store>) {
    let (mut drivers, _) = waiting(&store).await;
    let [first_asks, other, voted_on] = &mut drivers[..] else {
        panic!("three sessions wait");
    };
    let query = of_tenant("north", HoldOrder::Oldest);
    let before = open(&store, query.clone()).await;
    let answer = first_asks.decision(2, DecisionKind::Respond);
    first_asks.ok(&first_asks.client(), answer).await;
    let after = open(&store, query.clone()).await;
    let places = |found: &[HoldSummary]| -> Vec<_> {
        let places = found.iter().map(|summary| (summary.hold.id, summary.place));
        places.collect()
    };
    let mut expected = places(&before);
    expected.remove(2);
    assert_eq!(places(&after), expected, "the others stay where they were");
    let south = of_tenant("south", HoldOrder::Urgency);
    let first = open(&store, south.clone()).await;
    let vote = voted_on.decision(1, DecisionKind::Approve);
    voted_on.ok(&voted_on.approver(1), vote).await;
    let voted = open(&store, south).await;
    assert_eq!(voted[0].place, first[0].place, "a vote moves nothing");
    assert_eq!(voted[0].hold.votes.len(), 1);
    let cancel = Command::CancelRequest {
        request: first_asks.requests[0],
    };
    first_asks.ok(&first_asks.client(), cancel).await;
    let left = open(&store, query).await;
    let of_other = |summary: &HoldSummary| summary.session.id == other.session();
    assert!(left.iter().all(of_other));
    assert_eq!(left.len(), 6);
}

pub(super) async fn holds_are_narrowed_to_a_user_and_a_session(store: Arc<dyn Store>) {
    let (mut drivers, _) = waiting(&store).await;
    for driver in &mut drivers[..2] {
        for hold in [1, 2] {
            let answer = driver.decision(hold, DecisionKind::Respond);
            driver.ok(&driver.client(), answer).await;
        }
    }
    for order in ORDERS {
        for is_decided in [false, true] {
            let of_all = of_tenant("north", order);
            let all = in_pages(&store, &of_all, 100, is_decided).await;
            for driver in &drivers[..2] {
                let own: Vec<HoldSummary> = all
                    .iter()
                    .filter(|summary| summary.session.id == driver.session())
                    .cloned()
                    .collect();
                assert_eq!(own.len(), if is_decided { 2 } else { 4 });
                let (user, session) = (Some(driver.owner.user), Some(driver.session()));
                for query in [
                    HoldQuery {
                        user,
                        ..of_all.clone()
                    },
                    HoldQuery {
                        session,
                        ..of_all.clone()
                    },
                    HoldQuery {
                        user,
                        session,
                        ..of_all.clone()
                    },
                ] {
                    for limit in [1, 3, 9] {
                        let found = in_pages(&store, &query, limit, is_decided).await;
                        assert_eq!(found, own, "{query:?} in pages of {limit}");
                    }
                }
            }
            // What does not go together has nothing in it.
            let mixed = HoldQuery {
                user: Some(drivers[0].owner.user),
                session: Some(drivers[1].session()),
                ..of_all.clone()
            };
            assert_eq!(in_pages(&store, &mixed, 9, is_decided).await, []);
            let foreign = HoldQuery {
                session: Some(drivers[2].session()),
                ..of_all
            };
            assert_eq!(in_pages(&store, &foreign, 9, is_decided).await, []);
        }
    }
}

pub(super) async fn open_holds_of_a_user_are_counted(store: Arc<dyn Store>) {
    let (drivers, _) = waiting(&store).await;
    for driver in &drivers {
        let owner = driver.state.owner.clone().expect("it was created");
        let theirs = HoldQuery {
            user: Some(owner.user),
            ..of_tenant(owner.tenant.as_str(), HoldOrder::Oldest)
        };
        let listed = open(&store, theirs).await.len();
        for limit in [0, 1, 1_000] {
            let count = store.open_holds_of_user(owner.tenant.clone(), owner.user, limit);
            assert_eq!(count.await.expect(HEALTHY), listed.min(limit));
        }
    }
}

pub(super) async fn decided_holds_are_listed_in_the_order_of_decisions(store: Arc<dyn Store>) {
    let (mut drivers, _) = waiting(&store).await;
    let [first, second, voted_on] = &mut drivers[..] else {
        panic!("three sessions wait");
    };
    let newest = of_tenant("north", HoldOrder::Newest);
    assert_eq!(decided(&store, newest.clone()).await, []);
    let mut expected = Vec::new();
    for (is_second, hold) in [(true, 3), (false, 2), (false, 1), (true, 2)] {
        let driver = if is_second { &mut *second } else { &mut *first };
        expected.push(driver.holds[hold - 1]);
        let answer = driver.decision(hold, DecisionKind::Respond);
        driver.ok(&driver.client(), answer).await;
    }
    // Cancelling a request decides what it still waits for.
    let request = second.requests[0];
    let cancel = Command::CancelRequest { request };
    let record = second.record(&second.client(), cancel).await;
    let commit = second.commit_of(&record);
    let closed = commit.changes.closed_holds.iter();
    expected.extend(closed.map(|closed| closed.hold.id));
    store.commit(commit).await.expect(HEALTHY);
    second.absorb(&record);
    let vote = voted_on.decision(1, DecisionKind::Approve);
    voted_on.ok(&voted_on.approver(1), vote).await;
    let south = of_tenant("south", HoldOrder::Newest);
    assert_eq!(decided(&store, south.clone()).await, [], "one vote of two");
    // A fork cancels what is open in its origin for itself; the origin still waits.
    first.fork(9, first.state.revision).await;
    for limit in 1..=9 {
        let oldest = of_tenant("north", HoldOrder::Oldest);
        let found = in_pages(&store, &oldest, limit, true).await;
        assert_eq!(ids(&found), expected, "pages of {limit}");
    }
    expected.reverse();
    for order in [HoldOrder::Newest, HoldOrder::Urgency] {
        for limit in 1..=9 {
            let found = in_pages(&store, &of_tenant("north", order), limit, true).await;
            assert_eq!(ids(&found), expected, "pages of {limit}");
        }
    }
    let page = decided(
        &store,
        HoldQuery {
            limit: 2,
            ..newest.clone()
        },
    )
    .await;
    let answer = first.decision(3, DecisionKind::Respond);
    first.ok(&first.client(), answer).await;
    let after = page.last().map(|summary| summary.place);
    let next = decided(
        &store,
        HoldQuery {
            after,
            limit: 1,
            ..newest
        },
    )
    .await;
    assert_eq!(ids(&next), [expected[2]], "new ones do not move a page");
    let vote = voted_on.decision(1, DecisionKind::Approve);
    voted_on.ok(&voted_on.approver(2), vote).await;
    let found = decided(&store, south).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].hold.votes.len(), 2, "with its votes");
    assert_eq!(
        decided(&store, of_tenant("west", HoldOrder::Newest)).await,
        []
    );
}

pub(super) async fn a_listed_hold_says_whose_it_is_and_what_came_of_it(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 6_000_000).await;
    let child = driver.spawn(1, "booker");
    driver.by_worker(Command::StartRequest(child)).await;
    let ask = driver.approval(2, 1);
    driver.by_worker(ask).await;
    let id = driver.holds[0];
    let read = async || {
        let found = store.holds(vec![id]).await.expect(HEALTHY);
        let [found] = &found[..] else {
            panic!("one hold is there: {found:?}");
        };
        found.clone()
    };
    let summary = async || store.session(driver.session()).await.expect(HEALTHY);
    let asked = read().await;
    assert_eq!(asked.agent, name("booker"));
    assert_eq!(Some(asked.session.clone()), summary().await);
    assert_eq!(asked.hold, driver.state.holds[&id]);
    assert_eq!((asked.decision, asked.result), (None, None));
    let listed = open(&store, of_tenant("north", HoldOrder::Urgency)).await;
    assert_eq!(listed, [asked]);

    let approve = driver.decision(1, DecisionKind::Approve);
    let decided_by = driver.ok(&driver.approver(1), approve).await;
    let made = async || {
        let found = read_one(&store, id).await;
        (
            found.decision.map(|(made, by)| (made.status, by)),
            found.result,
        )
    };
    let standing = Some((HoldStatus::Approved, decided_by));
    assert_eq!(made().await, (standing, None), "nothing came of it yet");
    let result = driver.result_of(2, CallOutcome::Ran);
    let report = driver.append(2, vec![result]);
    let revision = driver.by_worker(report).await;
    let (same, result) = made().await;
    assert_eq!(same, standing);
    let result = result.expect("there is a result");
    assert_eq!(
        (result.outcome, result.revision),
        (CallOutcome::Ran, revision)
    );
    assert_eq!(result.at, driver.state.last_at);
    let end = driver.complete(2);
    driver.by_worker(end).await;
    let found = read_one(&store, id).await;
    assert_eq!(
        found.agent,
        name("booker"),
        "also when its request has ended"
    );
    let listed = decided(&store, of_tenant("north", HoldOrder::Newest)).await;
    assert_eq!(listed, [found]);
    let nobody = HoldId::from_uuid(*driver.session().as_uuid());
    let found = store.holds(vec![nobody, id, nobody]).await.expect(HEALTHY);
    assert_eq!(ids(&found), [id], "what is not there is left out");
}

async fn read_one(store: &Arc<dyn Store>, id: HoldId) -> HoldSummary {
    let found = store.holds(vec![id]).await.expect(HEALTHY);
    found.into_iter().next().expect("it is there")
}

pub(super) async fn what_happens_to_holds_is_found_in_order(store: Arc<dyn Store>) {
    let begin = store.last_place().await.expect(HEALTHY);
    let (mut drivers, opened) = waiting(&store).await;
    let [first, _, voted_on] = &mut drivers[..] else {
        panic!("three sessions wait");
    };
    let cancel = Command::CancelRequest {
        request: first.requests[0],
    };
    let before = first.state.revision;
    first.ok(&first.client(), cancel).await;
    // What a fork ends is a copy.
    first.fork(9, before).await;
    let vote = voted_on.decision(1, DecisionKind::Approve);
    voted_on.ok(&voted_on.approver(1), vote).await;
    let vote = voted_on.decision(1, DecisionKind::Approve);
    voted_on.ok(&voted_on.approver(2), vote).await;
    let end = store.last_place().await.expect(HEALTHY);
    for limit in [1, 2, 7, 1_000] {
        let mut found = Vec::new();
        let mut after = begin;
        loop {
            let page = store.hold_changes(name("north"), after, limit).await;
            let (page, seen) = page.expect(HEALTHY);
            if seen == after {
                break;
            }
            assert!(
                page.iter()
                    .all(|one| one.place > after && one.place <= seen)
            );
            after = seen;
            found.extend(page);
        }
        assert_eq!(after, end, "everything was looked at");
        let opens = found
            .iter()
            .filter(|one| one.kind == HoldChangeKind::Opened);
        let opens: Vec<HoldId> = opens.map(|one| one.hold).collect();
        assert_eq!(opens, opened, "steps of {limit}");
        let decides: Vec<_> = found
            .iter()
            .filter(|one| one.kind == HoldChangeKind::Decided)
            .collect();
        assert_eq!(decides.len(), 6, "all that the request waited for");
        for (one, index) in decides.into_iter().zip(0..) {
            assert_eq!(one.index, index, "one record decides them all");
            assert_eq!((one.session, one.revision), (first.session(), before + 1));
        }
        assert_eq!(found.len(), 18);
    }
    let (south, _) = store
        .hold_changes(name("south"), begin, 1_000)
        .await
        .expect(HEALTHY);
    let kinds: Vec<HoldChangeKind> = south.iter().map(|one| one.kind).collect();
    assert_eq!(kinds[..2], [HoldChangeKind::Opened, HoldChangeKind::Voted]);
    assert_eq!(kinds.last(), Some(&HoldChangeKind::Decided));
}

pub(super) async fn a_request_knows_the_way_down_to_it(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 6_000_000).await;
    for (parent, agent) in [(1, "booker"), (2, "payer")] {
        let child = driver.spawn(parent, agent);
        driver.by_worker(Command::StartRequest(child)).await;
    }
    let steps: Vec<LineageStep> = ["planner", "booker", "payer"]
        .into_iter()
        .zip(1..)
        .zip(driver.requests.iter().zip(&driver.tasks))
        .map(|((agent, number), (request, task))| LineageStep {
            request: *request,
            number,
            task: *task,
            task_number: number,
            agent: name(agent),
        })
        .collect();
    let nobody = statehold_core::ids::RequestId::from_uuid(*driver.session().as_uuid());
    let asked = vec![
        driver.requests[2],
        driver.requests[0],
        nobody,
        driver.requests[1],
    ];
    let expected = [
        steps.clone(),
        steps[..1].to_vec(),
        Vec::new(),
        steps[..2].to_vec(),
    ];
    let found = store.lineages(asked.clone()).await.expect(HEALTHY);
    assert_eq!(found, expected);
    for request in [3, 2, 1] {
        let end = driver.complete(request);
        driver.by_worker(end).await;
        let found = store.lineages(asked.clone()).await.expect(HEALTHY);
        assert_eq!(found, expected, "after request {request} has ended");
    }
}

pub(super) async fn single_records_are_read_as_they_stand_in_the_chain(store: Arc<dyn Store>) {
    let mut driver = Driver::new(Arc::clone(&store), owner(), 1);
    story::tell(&mut driver, story::OPEN).await;
    let (session, last) = (driver.session(), driver.state.revision);
    let fork = driver.fork(2, 5).await;
    let nobody = super::fixture::session(9);
    let asked = vec![
        (session, last),
        (session, 1),
        (session, 0),
        (session, last + 1),
        (nobody, 1),
        (fork.session(), 3),
        (fork.session(), 6),
    ];
    let found = store.records_at(asked.clone(), u64::MAX);
    let found = found.await.expect(HEALTHY);
    let record = |driver: &Driver, revision: u64| -> Option<StoredRecord> {
        let index = usize::try_from(revision - 1).expect("a small number");
        driver.log.get(index).cloned()
    };
    let expected = [
        record(&driver, last),
        record(&driver, 1),
        None,
        None,
        None,
        record(&driver, 3),
        record(&fork, 6),
    ];
    assert_eq!(found, expected);
    // A page has one record at least, and no second one beyond its bytes.
    let first = expected[0].as_ref().expect("a record").bytes();
    for (bytes_max, count) in [(0, 1), (first, 1), (u64::MAX, asked.len())] {
        let page = store.records_at(asked.clone(), bytes_max);
        let page = page.await.expect(HEALTHY);
        assert_eq!(page, expected[..count], "{bytes_max} bytes");
    }
}

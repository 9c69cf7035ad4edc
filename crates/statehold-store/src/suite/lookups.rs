//! Things that are over are found by their id, and everything knows its session.

use std::sync::Arc;

use statehold_core::command::{Command, StartRequest};
use statehold_core::digest::Digest;
use statehold_core::hold::{DecisionKind, HoldStatus};
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId};
use statehold_core::projection::EndedRequest;
use statehold_core::record::{Event, Record};
use statehold_core::request::RequestOutcome;
use statehold_core::session::TtlMode;
use statehold_core::task::TaskStatus;

use super::HEALTHY;
use super::driver::Driver;
use super::{fixture, story};
use crate::{CHAT_REQUESTS_MAX, Store};

async fn told(store: Arc<dyn Store>) -> Driver {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, story::OPEN).await;
    driver
}

pub(super) async fn ended_requests_are_found(store: Arc<dyn Store>) {
    let driver = told(store).await;
    let mut outcomes = Vec::new();
    for &id in &driver.requests {
        let ended = driver.store.ended_request(id).await.expect(HEALTHY);
        let is_live = driver.state.requests.contains_key(&id);
        assert_eq!(ended.is_none(), is_live, "it is live or it has ended");
        outcomes.push(ended.map(|ended| (ended.outcome, ended.ended_by)));
    }
    let completed = |by| Some((RequestOutcome::Completed, by));
    let failed = |by| Some((RequestOutcome::Failed, by));
    let cancelled = |by| Some((RequestOutcome::Cancelled, by));
    let expected = [
        completed(24),
        completed(16),
        failed(15),
        completed(25),
        cancelled(28),
        failed(30),
        cancelled(33),
        cancelled(33),
        cancelled(36),
        None,
        None,
    ];
    assert_eq!(outcomes, expected);
    let grandchild = driver
        .store
        .ended_request(driver.requests[2])
        .await
        .expect(HEALTHY);
    let expected = EndedRequest {
        id: driver.requests[2],
        number: 3,
        task: driver.tasks[2],
        parent: Some(driver.requests[1]),
        outcome: RequestOutcome::Failed,
        memory: None,
        ran: false,
        left_calls: false,
        started_by: driver
            .log
            .iter()
            .find(|stored| starts(&stored.record, driver.requests[2]))
            .map_or(0, |stored| stored.record.content.seq),
        ended_by: 15,
        ended_at: driver.log[14].record.content.at,
    };
    assert_eq!(grandchild, Some(expected));
}

pub(super) async fn closed_tasks_are_found(store: Arc<dyn Store>) {
    let driver = told(store).await;
    let mut found = Vec::new();
    for &id in &driver.tasks {
        let closed = driver.store.closed_task(id).await.expect(HEALTHY);
        assert_eq!(closed.is_none(), driver.state.tasks.contains_key(&id));
        found.push(closed.map(|closed| {
            assert_eq!((closed.task.id, closed.task.live), (id, None));
            (closed.status, closed.closed_by, closed.task.number)
        }));
    }
    let expected = [
        Some((TaskStatus::Completed, 37, 1)),
        Some((TaskStatus::Completed, 16, 2)),
        Some((TaskStatus::Failed, 15, 3)),
        Some((TaskStatus::Cancelled, 36, 4)),
        Some((TaskStatus::Cancelled, 36, 5)),
        None,
        None,
    ];
    assert_eq!(found, expected);
}

pub(super) async fn decided_holds_are_found_with_their_votes(store: Arc<dyn Store>) {
    let driver = told(store).await;
    let mut found = Vec::new();
    for &id in &driver.holds {
        let closed = driver.store.closed_hold(id).await.expect(HEALTHY);
        assert_eq!(closed.is_none(), driver.state.holds.contains_key(&id));
        found.push(closed.map(|closed| {
            let status = closed.decision.status;
            (status, closed.decided_by, closed.hold.votes.len())
        }));
    }
    let expected = [
        Some((HoldStatus::Approved, 9, 2)),
        Some((HoldStatus::Answered, 13, 0)),
        Some((HoldStatus::Expired, 15, 0)),
        Some((HoldStatus::Approved, 20, 0)),
        Some((HoldStatus::Expired, 28, 0)),
        Some((HoldStatus::Cancelled, 36, 0)),
        Some((HoldStatus::Edited, 45, 0)),
        None,
    ];
    assert_eq!(found, expected);
    let voted = driver
        .store
        .closed_hold(driver.holds[0])
        .await
        .expect(HEALTHY);
    let hold = voted.expect("it is decided").hold;
    let voters: Vec<_> = hold.votes.keys().copied().collect();
    assert_eq!(voters, [1, 2].map(|n| driver.approver(n).principal));
    assert_eq!(hold.votes[&voters[0]].revision, 8);
}

pub(super) async fn everything_knows_its_session(store: Arc<dyn Store>) {
    let mut first = Driver::begin(&store, 1).await;
    let mut second = Driver::begin(&store, 2).await;
    for driver in [&mut first, &mut second] {
        driver.run("planner", 600_000).await;
        let ask = driver.approval(1, 1);
        driver.by_worker(ask).await;
    }
    for round in 0..2 {
        for driver in [&first, &second] {
            let session = Some(driver.session());
            let (request, task, hold) = (driver.requests[0], driver.tasks[0], driver.holds[0]);
            let found = store.session_of_request(request).await.expect(HEALTHY);
            assert_eq!(found, session, "of a request, round {round}");
            let found = store.session_of_task(task).await.expect(HEALTHY);
            assert_eq!(found, session, "of a task, round {round}");
            let found = store.session_of_hold(hold).await.expect(HEALTHY);
            assert_eq!(found, session, "of a hold, round {round}");
        }
        if round == 0 {
            for driver in [&mut first, &mut second] {
                let dismiss = driver.decision(1, DecisionKind::Dismiss);
                driver.ok(&driver.approver(1), dismiss).await;
                let close = Command::CloseTask {
                    task: driver.tasks[0],
                };
                driver.ok(&driver.client(), close).await;
            }
        }
    }
    let stranger = *fixture::session(99).as_uuid();
    let found = store
        .session_of_request(RequestId::from_uuid(stranger))
        .await;
    assert_eq!(found.expect(HEALTHY), None);
    let found = store.session_of_task(TaskId::from_uuid(stranger)).await;
    assert_eq!(found.expect(HEALTHY), None);
    let found = store.session_of_hold(HoldId::from_uuid(stranger)).await;
    assert_eq!(found.expect(HEALTHY), None);
}

pub(super) async fn a_request_knows_the_holds_that_it_opened(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 6_000_000).await;
    driver.run("writer", 6_000_000).await;
    let of = async |request| store.holds_of(request).await.expect(HEALTHY);
    assert_eq!(of(driver.requests[0]).await, []);
    // Whoever opens a hold chooses its id: the order of ids says nothing.
    for id in [900, 100, 500, 300] {
        for request in [1, 2] {
            let mut ask = driver.question(request, None);
            if let Command::OpenHold { hold, .. } = &mut ask {
                let (high, low) = hold.id.as_uuid().as_u64_pair();
                let high = id << 16 | high & 0xffff;
                hold.id = HoldId::from_uuid(uuid::Uuid::from_u64_pair(high, low));
            }
            driver.by_worker(ask).await;
        }
    }
    let holds = driver.holds.clone();
    let mut expected = [Vec::new(), Vec::new()];
    for (index, hold) in holds.iter().enumerate() {
        expected[index % 2].push(*hold);
    }
    for decided in [5, 1, 3, 2, 8] {
        for (request, expected) in driver.requests.iter().zip(&expected) {
            assert_eq!(of(*request).await, *expected, "in the order of opening");
        }
        let rows = store.held_by(vec![driver.requests[1], driver.requests[0]]);
        let rows = rows.await.expect(HEALTHY);
        let rows: Vec<HoldId> = rows.iter().map(|row| row.hold.id).collect();
        assert_eq!(rows, [expected[1].clone(), expected[0].clone()].concat());
        let answer = driver.decision(decided, DecisionKind::Respond);
        driver.ok(&driver.client(), answer).await;
    }
    let dismiss = driver.decision(7, DecisionKind::Dismiss);
    driver.ok(&driver.client(), dismiss).await;
    for (request, expected) in driver.requests.iter().zip(&expected) {
        assert_eq!(of(*request).await, *expected, "also when it is over");
    }
    let fork = driver.fork(2, 6).await;
    assert_eq!(of(fork.requests[0]).await, expected[0], "the origin's");
    let stranger = RequestId::from_uuid(*fixture::session(99).as_uuid());
    assert_eq!(of(stranger).await, []);
}

pub(super) async fn a_request_knows_the_requests_that_it_started(store: Arc<dyn Store>) {
    const MANY: usize = 40;
    let mut driver = Driver::begin(&store, 1).await;
    let mut other = Driver::begin(&store, 2).await;
    for driver in [&mut driver, &mut other] {
        driver.run("planner", 6_000_000).await;
    }
    let of = async |request| store.children_of(request).await.expect(HEALTHY);
    assert_eq!(of(driver.requests[0]).await, []);
    for n in 0..MANY {
        let child = driver.spawn(1, &format!("agent{n}"));
        driver.by_worker(Command::StartRequest(child)).await;
        if n % 5 == 0 {
            let child = other.spawn(1, &format!("agent{n}"));
            other.by_worker(Command::StartRequest(child)).await;
            let done = driver.complete(n + 2);
            driver.by_worker(done).await;
        }
    }
    let grandchild = driver.spawn(MANY + 1, "checker");
    driver.by_worker(Command::StartRequest(grandchild)).await;
    for is_over in [false, true] {
        assert_eq!(of(driver.requests[0]).await, driver.requests[1..=MANY]);
        assert_eq!(of(driver.requests[MANY]).await, driver.requests[MANY + 1..]);
        assert_eq!(of(driver.requests[1]).await, []);
        assert_eq!(of(other.requests[0]).await, other.requests[1..]);
        if !is_over {
            let close = Command::CloseSession { cancel_live: true };
            driver.ok(&driver.client(), close).await;
        }
    }
}

/// A whole turn of a chat call with this digest.
async fn chat(driver: &mut Driver, digest: Digest) -> (SessionId, RequestId) {
    let output = Some(driver.output("an answer"));
    let turn = StartRequest {
        chat: Some(digest),
        output,
        ..driver.leased("planner")
    };
    driver.by_worker(Command::StartRequest(turn)).await;
    let started = driver.requests.last().expect("it was started");
    (driver.session(), *started)
}

pub(super) async fn chat_requests_are_found_by_their_digest_newest_first(store: Arc<dyn Store>) {
    let (hi, bye) = (Digest::sha256(b"hi"), Digest::sha256(b"bye"));
    let mut first = Driver::begin(&store, 1).await;
    let mut second = Driver::begin(&store, 2).await;
    let found = async |digest, limit| store.chat_requests(digest, limit).await.expect(HEALTHY);
    assert_eq!(found(hi, 9).await, []);
    let one = chat(&mut first, hi).await;
    let two = chat(&mut second, hi).await;
    let three = chat(&mut first, hi).await;
    let other = chat(&mut second, bye).await;
    second.turn("planner").await;
    assert_eq!(found(hi, 9).await, [three, two, one]);
    assert_eq!(found(hi, 2).await, [three, two]);
    assert_eq!(found(bye, 9).await, [other]);
    let mut fork = first.fork(3, first.state.revision).await;
    assert_eq!(found(hi, 9).await, [three, two, one], "a fork has its own");
    let four = chat(&mut fork, hi).await;
    assert_eq!(found(hi, 9).await, [four, three, two, one]);
}

pub(super) async fn a_session_is_found_by_its_newest_chat_requests_only(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let digest_of = |n: u64| Digest::sha256(&n.to_be_bytes());
    let mut started = Vec::new();
    for n in 0..CHAT_REQUESTS_MAX + 2 {
        started.push(chat(&mut driver, digest_of(n)).await);
    }
    for (n, at) in (0..).zip(&started) {
        let found = store.chat_requests(digest_of(n), 9).await.expect(HEALTHY);
        let expected: &[_] = if n < 2 { &[] } else { &[*at] };
        assert_eq!(found, expected, "request {n}");
    }
}

pub(super) async fn no_chat_request_of_an_erased_session_is_found(store: Arc<dyn Store>) {
    let hi = Digest::sha256(b"hi");
    let mut kept = Driver::begin(&store, 1).await;
    let mut deleted = Driver::begin(&store, 2).await;
    let mut expired = Driver::begin(&store, 3).await;
    expired.live_for(Some((TtlMode::Fixed, 60_000))).await;
    let stays = chat(&mut kept, hi).await;
    chat(&mut deleted, hi).await;
    chat(&mut expired, hi).await;
    deleted.delete_session().await;
    expired.expire().await;
    let found = store.chat_requests(hi, 9).await.expect(HEALTHY);
    assert_eq!(found, [stays]);
}

fn starts(record: &Record, wanted: RequestId) -> bool {
    let is_it = |event: &Event| matches!(event, Event::RequestStarted { request, .. } if *request == wanted);
    record.content.events.iter().any(is_it)
}

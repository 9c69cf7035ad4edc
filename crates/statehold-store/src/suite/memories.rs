//! Memories: the exchanges of an agent path, as a request knew them when it started.

use std::sync::Arc;

use statehold_core::command::{Command, StartRequest};
use statehold_core::item::CallOutcome;
use statehold_core::memory::Memory;
use statehold_core::request::RequestOutcome;

use super::HEALTHY;
use super::driver::Driver;
use super::history;
use crate::{MemoryPage, MemoryQuery, Store, StoredExchange};

/// More than all payloads of a check.
const PLENTY: u64 = 1 << 30;

fn whole(path: &str, memory: Option<Memory>) -> MemoryQuery {
    MemoryQuery {
        path: path.parse().expect("a path of the suite"),
        memory,
        reader: None,
        exchanges: 1_000,
        bytes: PLENTY,
    }
}

async fn read(driver: &Driver, query: MemoryQuery) -> MemoryPage {
    let page = driver.store.memory(driver.session(), query).await;
    page.expect(HEALTHY)
}

/// The memory of a path as it is now.
async fn memory(driver: &Driver, path: &str) -> MemoryPage {
    let query = whole(path, None);
    let memory = driver.state.memories.get(&query.path).copied();
    read(driver, MemoryQuery { memory, ..query }).await
}

/// Which requests the exchanges are, by their number in the order of starts.
fn requests(driver: &Driver, page: &MemoryPage) -> Vec<usize> {
    let number = |exchange: &StoredExchange| {
        let at = driver
            .requests
            .iter()
            .position(|id| *id == exchange.request);
        at.expect("a request of the driver") + 1
    };
    page.exchanges.iter().map(number).collect()
}

/// Compares exchanges with the histories of their tasks.
async fn require_items(driver: &Driver, page: &MemoryPage) {
    for exchange in &page.exchanges {
        let mut items = history::all(driver, Some(exchange.task)).await;
        items.retain(|stored| stored.placed.request == exchange.request);
        items.reverse();
        assert!(!items.is_empty(), "an exchange begins with a question");
        assert_eq!(exchange.items, items, "all items, oldest first");
        assert!(!exchange.too_large);
    }
    let numbers: Vec<u64> = page
        .exchanges
        .iter()
        .map(|exchange| exchange.number)
        .collect();
    let dense = numbers.is_sorted_by(|newer, older| *newer == older + 1);
    assert!(dense, "newest first, none left out: {numbers:?}");
}

async fn finish(driver: &mut Driver, request: usize) {
    let complete = driver.complete(request);
    driver.by_worker(complete).await;
}

async fn run_tool(driver: &mut Driver, request: usize) {
    let call = driver.call(false);
    let append = driver.append(request, vec![call]);
    driver.by_worker(append).await;
    let ran = driver.result_of(request, CallOutcome::Ran);
    let append = driver.append(request, vec![ran]);
    driver.by_worker(append).await;
}

async fn cancel(driver: &mut Driver, request: usize) {
    let request = driver.requests[request - 1];
    let cancel = Command::CancelRequest { request };
    driver.ok(&driver.client(), cancel).await;
}

async fn spawn(driver: &mut Driver, parent: usize, agent: &str) {
    let start = driver.spawn(parent, agent);
    driver.by_worker(Command::StartRequest(start)).await;
}

pub(super) async fn a_memory_has_the_exchanges_of_its_path_newest_first(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for _ in 0..3 {
        driver.run("planner", 6_000_000).await;
        let parent = driver.requests.len();
        for agent in ["writer", "critic", "writer"] {
            spawn(&mut driver, parent, agent).await;
            let child = driver.requests.len();
            let note = driver.note(format!("by {child}"));
            let append = driver.append(child, vec![note]);
            driver.by_worker(append).await;
            finish(&mut driver, child).await;
        }
        driver.turn("critic").await;
        finish(&mut driver, parent).await;
    }
    for (path, expected) in [
        ("planner", vec![11, 6, 1]),
        ("planner/writer", vec![14, 12, 9, 7, 4, 2]),
        ("planner/critic", vec![13, 8, 3]),
        ("critic", vec![15, 10, 5]),
        ("writer", vec![]),
    ] {
        let page = memory(&driver, path).await;
        assert_eq!(requests(&driver, &page), expected, "{path}");
        assert_eq!(page.rest, None);
        require_items(&driver, &page).await;
    }
}

pub(super) async fn a_memory_stays_what_it_was_when_its_request_started(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.turn("planner").await;
    driver.run("planner", 6_000_000).await;
    let approval = driver.approval(2, 1);
    driver.by_worker(approval).await;
    for _ in 0..100 {
        driver.turn("planner").await;
    }
    let live = driver.state.requests[&driver.requests[1]].clone();
    let page = read(&driver, whole("planner", live.memory)).await;
    assert_eq!(requests(&driver, &page), [1]);
    finish_held(&mut driver).await;
    let ended = store.ended_request(live.id).await.expect(HEALTHY);
    assert_eq!(ended.and_then(|ended| ended.memory), live.memory);
    let page = memory(&driver, "planner").await;
    let newest: Vec<usize> = requests(&driver, &page).into_iter().take(2).collect();
    assert_eq!(newest, [2, 102], "in the order of the ends");
    assert_eq!(page.exchanges.len(), 102);
    require_items(&driver, &page).await;
}

async fn finish_held(driver: &mut Driver) {
    let approve = driver.decision(1, statehold_core::hold::DecisionKind::Approve);
    driver.ok(&driver.approver(1), approve).await;
    let ran = driver.result_of(2, CallOutcome::Ran);
    let append = driver.append(2, vec![ran]);
    driver.by_worker(append).await;
    finish(driver, 2).await;
}

pub(super) async fn pages_of_a_memory_are_bounded_in_exchanges_and_bytes(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for n in 1..=7 {
        driver.run("planner", 6_000_000).await;
        let length = if n == 4 { 70_000 } else { 1_000 };
        let note = driver.note(vec![b'x'; length]);
        let append = driver.append(n, vec![note]);
        driver.by_worker(append).await;
        finish(&mut driver, n).await;
    }
    let newest = driver.state.memories.values().next().copied();
    let all = memory(&driver, "planner").await;
    for limit in 1..=8 {
        let (mut left, mut found) = (newest, Vec::new());
        while left.is_some() {
            let query = MemoryQuery {
                exchanges: limit,
                ..whole("planner", left)
            };
            let page = read(&driver, query).await;
            assert!(page.exchanges.len() <= limit && !page.exchanges.is_empty());
            found.extend(page.exchanges);
            left = page.rest;
        }
        assert_eq!(found, all.exchanges, "pages of {limit}");
    }
    let (mut left, mut found, mut pages) = (newest, Vec::new(), Vec::new());
    while left.is_some() {
        let query = MemoryQuery {
            bytes: 2_500,
            ..whole("planner", left)
        };
        let page = read(&driver, query).await;
        let sizes = page.exchanges.iter().flat_map(|exchange| &exchange.items);
        let bytes: u32 = sizes.map(|stored| stored.placed.item.body.bytes).sum();
        assert!(bytes <= 2_500, "{bytes} bytes in one page");
        pages.push(page.exchanges.len());
        found.extend(page.exchanges);
        left = page.rest;
    }
    assert_eq!(pages, [2, 1, 1, 2, 1]);
    let large: Vec<u64> = found
        .iter()
        .filter(|exchange| exchange.too_large && exchange.items.is_empty())
        .map(|exchange| exchange.number)
        .collect();
    assert_eq!(large, [4], "one that never fits is there without its items");
    let none = MemoryQuery {
        exchanges: 0,
        ..whole("planner", newest)
    };
    let page = read(&driver, none).await;
    assert_eq!((page.exchanges.len(), page.rest), (0, newest));
}

pub(super) async fn a_failed_exchange_is_in_a_memory_if_a_tool_ran(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for request in 1..=3 {
        driver.run("planner", 6_000_000).await;
        if request > 1 {
            run_tool(&mut driver, request).await;
        }
        if request == 3 {
            cancel(&mut driver, request).await;
        } else {
            let error = driver.body("broken");
            let fail = Command::FailRequest {
                by: driver.fenced(request),
                error,
                cancel_children: false,
            };
            driver.by_worker(fail).await;
        }
    }
    let page = memory(&driver, "planner").await;
    assert_eq!(requests(&driver, &page), [3, 2]);
    let outcomes: Vec<_> = page
        .exchanges
        .iter()
        .map(|exchange| exchange.outcome)
        .collect();
    assert_eq!(
        outcomes,
        [RequestOutcome::Cancelled, RequestOutcome::Failed]
    );
    require_items(&driver, &page).await;
    let at = driver.log.last().map(|stored| stored.record.content.at);
    assert_eq!(Some(page.exchanges[0].ended_at), at);
}

pub(super) async fn a_memory_gives_back_the_last_private_state_of_a_completed_exchange(
    store: Arc<dyn Store>,
) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 6_000_000).await;
    for value in ["1a", "1b"] {
        let remember = driver.remember(1, value);
        driver.by_worker(remember).await;
    }
    finish(&mut driver, 1).await;
    driver.run("planner", 6_000_000).await;
    let complete = Command::CompleteRequest {
        by: driver.fenced(2),
        output: driver.output("done"),
        items: Vec::new(),
        state: statehold_core::command::StatePatch::default(),
        task_state: Some(driver.body("2")),
        close_task: false,
        cancel_children: false,
    };
    driver.by_worker(complete).await;
    driver.run("planner", 6_000_000).await;
    run_tool(&mut driver, 3).await;
    let remember = driver.remember(3, "3, which was cancelled");
    driver.by_worker(remember).await;
    cancel(&mut driver, 3).await;
    driver.turn("planner").await;
    driver.run("planner", 6_000_000).await;
    let state = |value: &str| Some(value.as_bytes().to_vec());
    let page = memory(&driver, "planner").await;
    assert_eq!(page.task_state, state("2"));
    let own: Vec<_> = page
        .exchanges
        .into_iter()
        .map(|exchange| exchange.task_state)
        .collect();
    assert_eq!(own, [None, None, state("2"), state("1b")]);
    let newest = driver.state.memories.values().next().copied();
    let asked = |driver: &Driver| MemoryQuery {
        reader: Some((driver.tasks[0], driver.requests[4])),
        exchanges: 0,
        ..whole("planner", newest)
    };
    assert_eq!(read(&driver, asked(&driver)).await.task_state, state("2"));
    let remember = driver.remember(5, "5");
    driver.by_worker(remember).await;
    assert_eq!(read(&driver, asked(&driver)).await.task_state, state("5"));
    let first = MemoryQuery {
        reader: Some((driver.tasks[0], driver.requests[4])),
        ..whole("planner", None)
    };
    assert_eq!(read(&driver, first).await.task_state, state("5"));
}

pub(super) async fn a_rewind_takes_exchanges_out_of_a_memory_for_good(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for agent in ["planner", "planner", "critic", "planner"] {
        driver.turn(agent).await;
    }
    let (then, later) = (3, driver.state.revision);
    driver
        .ok(&driver.client(), Command::Rewind { to: then })
        .await;
    driver.turn("planner").await;
    let page = memory(&driver, "planner").await;
    assert_eq!(requests(&driver, &page), [5, 2, 1]);
    assert!(memory(&driver, "critic").await.exchanges.is_empty());
    let kept = store.kept_revision(driver.session(), later).await;
    assert_eq!(kept.expect(HEALTHY), then, "a rewind took it back");
    driver
        .ok(&driver.client(), Command::Rewind { to: later })
        .await;
    driver.turn("planner").await;
    let page = memory(&driver, "planner").await;
    assert_eq!(
        requests(&driver, &page),
        [6, 2, 1],
        "going forward brings none back"
    );
    require_items(&driver, &page).await;
    let fork = driver.fork(2, driver.state.revision).await;
    let kept = store.kept_revision(fork.session(), later).await;
    assert_eq!(
        kept.expect(HEALTHY),
        then,
        "a fork has the rewinds before it"
    );
    let loaded = store.load(driver.session()).await.expect(HEALTHY);
    assert_eq!(loaded, Some(driver.state));
}

pub(super) async fn a_fork_has_the_memories_of_that_time(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.turn("planner").await;
    driver.run("planner", 6_000_000).await;
    run_tool(&mut driver, 2).await;
    let at = driver.state.revision;
    finish(&mut driver, 2).await;
    driver.turn("planner").await;
    let mut fork = driver.fork(2, at).await;
    fork.turn("planner").await;
    let page = memory(&fork, "planner").await;
    assert_eq!(requests(&fork, &page), [3, 2, 1]);
    assert_eq!(page.exchanges[1].outcome, RequestOutcome::Cancelled);
    require_items(&fork, &page).await;
    let page = memory(&driver, "planner").await;
    assert_eq!(requests(&driver, &page), [3, 2, 1]);
    assert_eq!(page.exchanges[1].outcome, RequestOutcome::Completed);
    require_items(&driver, &page).await;
    let mut again = fork.fork(3, fork.state.revision).await;
    again.turn("planner").await;
    let page = memory(&again, "planner").await;
    assert_eq!(requests(&again, &page), [4, 3, 2, 1]);
    require_items(&again, &page).await;
    let loaded = store.load(again.session()).await.expect(HEALTHY);
    assert_eq!(loaded, Some(again.state));
}

pub(super) async fn one_record_may_end_exchanges_of_several_paths(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 6_000_000).await;
    run_tool(&mut driver, 1).await;
    for agent in ["writer", "critic", "writer"] {
        spawn(&mut driver, 1, agent).await;
        let child = driver.requests.len();
        run_tool(&mut driver, child).await;
    }
    cancel(&mut driver, 1).await;
    let start = StartRequest {
        output: Some(driver.output("answer")),
        ..driver.leased("planner")
    };
    driver.by_worker(Command::StartRequest(start)).await;
    for (path, expected) in [
        ("planner", vec![5, 1]),
        ("planner/writer", vec![4, 2]),
        ("planner/critic", vec![3]),
    ] {
        let page = memory(&driver, path).await;
        assert_eq!(requests(&driver, &page), expected, "{path}");
        require_items(&driver, &page).await;
    }
}

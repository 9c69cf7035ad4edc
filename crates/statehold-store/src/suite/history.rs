//! Items: newest first, in pages, with their content and their place in the tree.

use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::ids::TaskId;
use statehold_core::record::Event;
use statehold_core::view::View;

use super::HEALTHY;
use super::driver::Driver;
use super::{fixture, story};
use crate::{ItemQuery, PageLimit, Store, StoredItem};

pub(super) async fn page(
    driver: &Driver,
    task: Option<TaskId>,
    before: Option<u64>,
    limit: usize,
) -> Vec<StoredItem> {
    let query = ItemQuery {
        task,
        before,
        limit: PageLimit::entries(limit),
    };
    let found = driver.store.items(driver.session(), query).await;
    found.expect(HEALTHY).0
}

pub(super) async fn all(driver: &Driver, task: Option<TaskId>) -> Vec<StoredItem> {
    page(driver, task, None, 10_000).await
}

fn seqs(items: &[StoredItem]) -> Vec<u64> {
    items.iter().map(|stored| stored.placed.item.seq).collect()
}

/// The payloads of every item in the log, by `seq`, with where it stands.
fn logged(driver: &Driver) -> Vec<StoredItem> {
    let mut items = Vec::new();
    for stored in &driver.log {
        let mut bodies = stored.bodies.iter().cloned();
        for event in &stored.record.content.events {
            let Event::ItemsAppended {
                task,
                request,
                items: new,
            } = event
            else {
                bodies.by_ref().take(event.bodies().len()).for_each(drop);
                continue;
            };
            for item in new {
                items.push(StoredItem {
                    placed: statehold_core::item::PlacedItem {
                        task: *task,
                        request: *request,
                        is_root: false,
                        rewound: false,
                        item: item.clone(),
                    },
                    at: stored.record.content.at,
                    body: bodies.next().flatten(),
                    attachments: bodies.by_ref().take(item.attachments.len()).collect(),
                });
            }
        }
    }
    items
}

pub(super) async fn items_come_newest_first_with_their_content(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, story::OPEN).await;
    let mut found = all(&driver, None).await;
    found.reverse();
    let expected = logged(&driver);
    assert!(expected.len() > 20, "the story has many items");
    let numbers: Vec<u64> = (1..=expected.len() as u64).collect();
    assert_eq!(seqs(&found), numbers, "newest first, none left out");
    for stored in &mut found {
        (stored.placed.is_root, stored.placed.rewound) = (false, false);
    }
    assert_eq!(found, expected);
}

/// A session in which three agents write by turns, some records many items.
async fn chatter(store: Arc<dyn Store>) -> Driver {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    let create = driver.create(None);
    driver.ok(&driver.client(), create).await;
    for agent in ["planner", "writer", "guide"] {
        driver.run(agent, 6_000_000).await;
    }
    for round in 0..12 {
        let count = round % 4;
        let items = (0..count)
            .map(|n| driver.note(format!("note {round}.{n}")))
            .collect();
        let append = driver.append(1 + round % 3, items);
        driver.by_worker(append).await;
        driver.put(&[("round", &round.to_string())]).await;
    }
    driver
}

/// Reads a history page by page.
async fn paged(driver: &Driver, task: Option<TaskId>, limit: usize) -> Vec<StoredItem> {
    let mut found: Vec<StoredItem> = Vec::new();
    loop {
        let before = found.last().map(|stored| stored.placed.item.seq);
        let next = page(driver, task, before, limit).await;
        assert!(next.len() <= limit, "pages of {limit}");
        if next.is_empty() {
            return found;
        }
        found.extend(next);
        assert!(found.len() < 1_000, "pages of {limit} never end");
    }
}

pub(super) async fn pages_of_items_have_no_gaps_and_no_repeats(store: Arc<dyn Store>) {
    let driver = chatter(store).await;
    let everything = all(&driver, None).await;
    let last = driver.state.items_appended;
    let numbers: Vec<u64> = (1..=last).rev().collect();
    assert_eq!(seqs(&everything), numbers);
    for limit in 1..=everything.len() + 1 {
        assert_eq!(
            paged(&driver, None, limit).await,
            everything,
            "pages of {limit}"
        );
    }
    for before in 0..=last + 2 {
        let expected: Vec<u64> = numbers
            .iter()
            .copied()
            .filter(|seq| *seq < before)
            .collect();
        let found = page(&driver, None, Some(before), 10_000).await;
        assert_eq!(seqs(&found), expected, "before {before}");
    }
    assert_eq!(
        page(&driver, None, None, 0).await,
        [],
        "no items were asked for"
    );
}

pub(super) async fn the_transcript_is_what_clients_see_in_whole_pages(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, story::OPEN).await;
    let mut expected = all(&driver, None).await;
    let count = expected.len();
    expected.retain(|stored| View::Client.shows(&stored.placed));
    assert!(
        !expected.is_empty() && expected.len() < count,
        "some are hidden"
    );
    for limit in 1..=expected.len() + 1 {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let page = driver
                .store
                .transcript(driver.session(), before, PageLimit::entries(limit))
                .await;
            let (items, next) = page.expect(HEALTHY);
            assert!(items.len() <= limit);
            found.extend(items);
            let Some(next) = next else { break };
            assert!(before.is_none_or(|before| next < before), "pages go back");
            before = Some(next);
        }
        assert_eq!(found, expected, "pages of {limit}");
    }
    let nobody = driver
        .store
        .transcript(fixture::session(99), None, PageLimit::entries(10))
        .await;
    assert_eq!(nobody.expect(HEALTHY), (Vec::new(), None));
}

pub(super) async fn pages_of_one_task_have_its_items_only(store: Arc<dyn Store>) {
    let mut other = Driver::begin(&store, 2).await;
    other.turn("planner").await;
    let driver = chatter(store).await;
    let everything = all(&driver, None).await;
    for &task in &driver.tasks {
        let own = everything
            .iter()
            .filter(|stored| stored.placed.task == task);
        let expected: Vec<StoredItem> = own.cloned().collect();
        assert!(expected.len() > 4, "every task has a history");
        for limit in 1..=expected.len() + 1 {
            let found = paged(&driver, Some(task), limit).await;
            assert_eq!(found, expected, "pages of {limit}");
        }
        for before in 0..=driver.state.items_appended + 2 {
            let earlier = expected
                .iter()
                .filter(|stored| stored.placed.item.seq < before);
            let earlier: Vec<StoredItem> = earlier.cloned().collect();
            assert_eq!(page(&driver, Some(task), Some(before), 100).await, earlier);
        }
        assert_eq!(
            all(&other, Some(task)).await,
            [],
            "the task is not of that session"
        );
    }
}

pub(super) async fn pages_of_a_task_are_found_over_many_records_of_others(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for agent in ["planner", "writer"] {
        driver.run(agent, 6_000_000).await;
    }
    for round in 0..3_u64 {
        for n in 0..3 {
            let note = driver.note(format!("note {round}.{n}"));
            let append = driver.append(1 + n % 2, vec![note]);
            driver.by_worker(append).await;
        }
        for n in 0..90_u64 {
            driver.put(&[("n", &n.to_string())]).await;
        }
    }
    let fork = driver.fork(2, driver.state.revision - 1).await;
    for driver in [&driver, &fork] {
        let everything = all(driver, None).await;
        for &task in &driver.tasks {
            let own = everything
                .iter()
                .filter(|stored| stored.placed.task == task);
            let expected: Vec<StoredItem> = own.cloned().collect();
            assert!(expected.len() > 3, "every task has a history");
            for limit in 1..=expected.len() + 1 {
                let found = paged(driver, Some(task), limit).await;
                assert_eq!(found, expected, "pages of {limit}");
            }
        }
    }
}

pub(super) async fn items_know_whether_their_task_is_a_root(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, story::OPEN).await;
    let roots = [0, 3, 5, 6].map(|n: usize| driver.tasks[n]);
    let found = all(&driver, None).await;
    for stored in &found {
        let is_root = roots.contains(&stored.placed.task);
        assert_eq!(stored.placed.is_root, is_root, "{stored:?}");
    }
    let children = found.iter().filter(|stored| !stored.placed.is_root);
    assert!(children.count() > 3, "the story has items of child tasks");
}

pub(super) async fn rewound_items_are_marked_and_kept(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for _ in 0..3 {
        driver.turn("planner").await;
    }
    let before = all(&driver, None).await;
    driver.ok(&driver.client(), Command::Rewind { to: 2 }).await;
    driver.turn("planner").await;
    let rewound = |items: &[StoredItem]| -> Vec<u64> {
        let marked = items.iter().filter(|stored| stored.placed.rewound);
        marked.map(|stored| stored.placed.item.seq).collect()
    };
    let found = all(&driver, None).await;
    assert_eq!(seqs(&found), [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(rewound(&found), [6, 5, 4, 3]);
    let contents = |items: &[StoredItem]| -> Vec<Option<Vec<u8>>> {
        items.iter().map(|stored| stored.body.clone()).collect()
    };
    assert_eq!(
        contents(&found[2..]),
        contents(&before),
        "their content is kept"
    );
    let of_task = all(&driver, Some(driver.tasks[0])).await;
    assert_eq!(of_task, found, "also in the history of the task");
    driver.turn("planner").await;
    driver.ok(&driver.client(), Command::Rewind { to: 6 }).await;
    assert_eq!(rewound(&all(&driver, None).await), [10, 9, 6, 5, 4, 3]);
    driver.ok(&driver.client(), Command::Rewind { to: 1 }).await;
    assert_eq!(rewound(&all(&driver, None).await).len(), 10);
}

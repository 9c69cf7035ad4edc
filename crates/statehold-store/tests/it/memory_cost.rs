//! Reading a memory costs what its own exchanges cost, counted in instructions of the engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use statehold_store::sqlite::{Meter, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::{MemoryQuery, Store};

/// The steps of reading the last 20 exchanges of the planner.
async fn steps(driver: &Driver, meter: &Meter) -> u64 {
    let query = MemoryQuery {
        path: "planner".parse().expect("a path"),
        memory: driver
            .state
            .memories
            .get(&"planner".parse().expect("a path"))
            .copied(),
        reader: None,
        exchanges: 20,
        bytes: 1 << 30,
    };
    let before = meter.read_steps.load(Ordering::Relaxed);
    let page = driver.store.memory(driver.session(), query).await;
    let taken = meter.read_steps.load(Ordering::Relaxed) - before;
    assert_eq!(page.expect("the store answers").exchanges.len(), 20);
    taken
}

#[test]
fn a_memory_costs_the_same_among_others_and_after_ten_thousand_turns() {
    let directory = tempfile::tempdir().expect("a directory");
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        sync: false,
        // The cost of the file: a short memory is in the tail, and costs less.
        tail_bytes_max: 0,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(directory.path(), options);
    let store: Arc<dyn Store> = Arc::new(store.expect("a new store opens"));
    block_on(async {
        let mut alone = Driver::begin(&store, 1).await;
        for _ in 0..20 {
            alone.turn("planner").await;
        }
        let mut among = Driver::begin(&store, 2).await;
        for n in 0..10_000 {
            let agent = ["planner", "writer", "critic"][n % 3];
            among.turn(agent).await;
        }
        for _ in 0..20 {
            among.turn("planner").await;
            for n in 0..50 {
                among.turn(["writer", "critic", "guide"][n % 3]).await;
            }
        }
        let (few, many) = (steps(&alone, &meter).await, steps(&among, &meter).await);
        println!("{few} instructions alone, {many} among others and after 10,000 turns");
        assert!(
            few.abs_diff(many) * 10 <= few,
            "{few} alone, {many} among others"
        );
    });
}

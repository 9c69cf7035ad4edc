//! Earlier revisions, and going back to them.

use std::sync::Arc;

use statehold_core::command::Command;

use super::HEALTHY;
use super::driver::Driver;
use super::log::require_chain;
use super::{fixture, history, story};
use crate::{PageLimit, Store};

/// Every revision of a session loads as the fold up to there.
pub(super) async fn require_past(driver: &Driver) {
    for (revision, expected) in (0..).zip(&driver.past).skip(1) {
        let found = driver.store.load_at(driver.session(), revision).await;
        let found = found.expect(HEALTHY);
        assert_eq!(found.as_ref(), Some(expected), "revision {revision}");
    }
}

pub(super) async fn every_revision_can_be_loaded(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, story::OPEN + 1).await;
    require_past(&driver).await;
}

pub(super) async fn revisions_that_never_were_cannot_be_loaded(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.turn("planner").await;
    for revision in [0, 3, 4, 1 << 40] {
        let found = store
            .load_at(driver.session(), revision)
            .await
            .expect(HEALTHY);
        assert_eq!(found, None, "revision {revision}");
    }
    let stranger = store.load_at(fixture::session(9), 1).await.expect(HEALTHY);
    assert_eq!(stranger, None);
}

pub(super) async fn a_rewind_is_one_more_record(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, 25).await;
    let before = driver.log.clone();
    driver.ok(&driver.client(), Command::Rewind { to: 5 }).await;
    let found = driver
        .store
        .records(driver.session(), 0, PageLimit::entries(1_000))
        .await
        .expect(HEALTHY);
    assert_eq!(found[..25], before, "nothing is taken away");
    assert_eq!(found.len(), 26);
    let loaded = driver.store.load(driver.session()).await.expect(HEALTHY);
    assert_eq!(loaded.as_ref(), Some(&driver.state));
    require_chain(&driver).await;
    require_past(&driver).await;
}

pub(super) async fn a_long_session_is_read_at_every_place(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for round in 0..150 {
        match round % 3 {
            0 => driver.turn("planner").await,
            1 => driver.put(&[("round", &round.to_string())]).await,
            _ => driver.turn("writer").await,
        };
    }
    require_chain(&driver).await;
    for after in 0..=driver.state.revision {
        let found = store
            .records(driver.session(), after, PageLimit::entries(2))
            .await
            .expect(HEALTHY);
        let from = usize::try_from(after).expect("a small number");
        let until = (from + 2).min(driver.log.len());
        assert_eq!(found, driver.log[from..until], "after {after}");
        let state = store.load_at(driver.session(), after).await.expect(HEALTHY);
        let expected = (after > 0).then(|| driver.past[from].clone());
        assert_eq!(state, expected, "at {after}");
    }
    let everything = history::all(&driver, None).await;
    assert_eq!(everything.len() as u64, driver.state.items_appended);
    for before in 1..=driver.state.items_appended + 1 {
        let found = history::page(&driver, None, Some(before), 3).await;
        let seqs: Vec<u64> = found.iter().map(|stored| stored.placed.item.seq).collect();
        let expected: Vec<u64> = (1..before).rev().take(3).collect();
        assert_eq!(seqs, expected, "before {before}");
    }
}

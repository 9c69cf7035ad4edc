//! What a session is called and how long it lives can change; lists and timers follow.

use std::sync::Arc;

use statehold_core::command::{Command, StatePatch};
use statehold_core::ids::SessionId;
use statehold_core::record::Change;
use statehold_core::session::{STATE_KEEPER, SessionStatus, TimeToLive, TtlMode};
use statehold_core::time::Timestamp;

use super::HEALTHY;
use super::driver::{Driver, Refusal};
use super::fixture::{name, owner, owner_of, session, the_end};
use super::picture::Picture;
use crate::{Due, DueKind, SessionOrder, SessionQuery, SessionSummary, Store, StoreError};

async fn summary(driver: &Driver) -> SessionSummary {
    let found = driver.store.session(driver.session()).await;
    found.expect(HEALTHY).expect("it is there")
}

async fn listed(store: &Arc<dyn Store>) -> Vec<SessionId> {
    let (tenant, limit) = (name("north"), 1_000);
    let mut found = Vec::new();
    let (app, user) = (owner().app, owner().user);
    for (app, user) in [
        (None, None),
        (Some(app.clone()), None),
        (None, Some(user)),
        (Some(app), Some(user)),
    ] {
        let query = SessionQuery {
            tenant: tenant.clone(),
            app,
            user,
            order: SessionOrder::Created,
            after: None,
            limit,
        };
        let page = store.sessions(query).await.expect(HEALTHY);
        let ids: Vec<SessionId> = page.iter().map(|summary| summary.id).collect();
        assert!(found.is_empty() || found == ids, "all lists say the same");
        found = ids;
    }
    found
}

pub(super) async fn a_patch_changes_what_it_names_and_nothing_else(store: Arc<dyn Store>) {
    let mut driver = Driver::new(Arc::clone(&store), owner(), 1);
    let create = driver.create(Some("trip"));
    driver.ok(&driver.client(), create).await;
    let first = summary(&driver).await;
    assert_eq!((first.name.as_deref(), first.labels), (Some("trip"), None));
    let labels = driver.body(r#"{"team":"red"}"#);
    let patch = Command::PatchSession {
        labels: Some(labels),
        name: None,
        ttl: None,
        hidden_ttl_ms: None,
    };
    driver.ok(&driver.client(), patch).await;
    let second = summary(&driver).await;
    assert_eq!(second.name.as_deref(), Some("trip"));
    assert_eq!(second.labels.as_deref(), Some(r#"{"team":"red"}"#));
    let (labels, name) = (driver.body("{}"), driver.body("journey"));
    let ttl = TimeToLive {
        mode: TtlMode::Fixed,
        ms: 5_000,
    };
    let patch = Command::PatchSession {
        labels: Some(labels),
        name: Some(Change::Set(name)),
        ttl: Some(Change::Set(ttl)),
        hidden_ttl_ms: None,
    };
    driver.ok(&driver.client(), patch).await;
    let expected = SessionSummary {
        name: Some("journey".to_owned()),
        labels: Some("{}".to_owned()),
        ttl: Some(ttl),
        expires_at: Some(driver.now.plus_ms(5_000)),
        revision: 3,
        updated_at: driver.now,
        ..second
    };
    assert_eq!(summary(&driver).await, expected);
    driver.rename(None).await.expect("a name may go");
    let found = summary(&driver).await;
    assert_eq!(found.name, None);
    assert_eq!(found.labels.as_deref(), Some("{}"), "labels stay");
    assert_eq!(found.ttl, Some(ttl), "and so does its life");
    let loaded = store.load(driver.session()).await.expect(HEALTHY);
    assert_eq!(loaded.as_ref(), Some(&driver.state));
}

pub(super) async fn a_session_is_renamed_only_to_a_name_that_is_free(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for (n, owner) in [owner(), owner(), owner_of("north", "shop", 2)]
        .into_iter()
        .enumerate()
    {
        let mut driver = Driver::new(Arc::clone(&store), owner, n as u64 + 1);
        let create = driver.create(Some(["trip", "work", "home"][n]));
        driver.ok(&driver.client(), create).await;
        drivers.push(driver);
    }
    let before = Picture::of(&*store, &[&drivers[0], &drivers[1]]).await;
    let refused = drivers[1].rename(Some("trip")).await;
    assert!(
        matches!(
            refused,
            Err(Refusal::Store(StoreError::NameTaken { session: taken })) if taken == session(1)
        ),
        "{refused:?}"
    );
    let after = Picture::of(&*store, &[&drivers[0], &drivers[1]]).await;
    after.require(&before, "nothing of a refused name is there");
    assert_eq!(summary(&drivers[1]).await.name.as_deref(), Some("work"));
    for driver in &mut drivers {
        let own = summary(driver).await.name;
        let renamed = driver.rename(own.as_deref()).await;
        renamed.expect("a session may keep its name");
        assert_eq!(summary(driver).await.name, own);
    }
    let of_another_user = drivers[2].rename(Some("trip")).await;
    of_another_user.expect("users do not share names");
    let renamed = drivers[0].rename(Some("tour")).await;
    renamed.expect("nobody has this name");
    let freed = drivers[1].rename(Some("trip")).await;
    freed.expect("the name that was given up is free");
    let taken = drivers[0].rename(Some("trip")).await;
    assert!(taken.is_err(), "until somebody has it");
}

pub(super) async fn the_name_of_a_deleted_session_is_free(store: Arc<dyn Store>) {
    let mut first = Driver::new(Arc::clone(&store), owner(), 1);
    let create = first.create(Some("trip"));
    first.ok(&first.client(), create).await;
    let mut second = Driver::begin(&store, 2).await;
    assert!(second.rename(Some("trip")).await.is_err(), "it is taken");
    first.live_for(Some((TtlMode::Fixed, 1_000))).await;
    first.expire().await;
    assert!(second.rename(Some("trip")).await.is_err(), "it still is");
    first.delete_session().await;
    assert_eq!(summary(&first).await.name, None);
    let freed = second.rename(Some("trip")).await;
    freed.expect("a deleted session has no name");
    let mut third = Driver::new(Arc::clone(&store), owner(), 3);
    let create = third.create(Some("trip"));
    let refused = third.refused(&third.client(), create).await;
    assert!(
        matches!(refused, StoreError::NameTaken { session: taken } if taken == session(2)),
        "{refused:?}"
    );
}

/// When the session of a driver expires, as the store says it in three places.
async fn expiry(driver: &Driver) -> Option<Timestamp> {
    let at = summary(driver).await.expires_at;
    let loaded = driver.store.load(driver.session()).await.expect(HEALTHY);
    assert_eq!(loaded.and_then(|state| state.expires_at), at);
    let due = driver
        .store
        .due(the_end(), None, 1_000)
        .await
        .expect(HEALTHY)
        .due;
    let own = |due: &&Due| due.session == driver.session() && due.kind == DueKind::Session;
    assert_eq!(due.iter().find(own).map(|due| due.at), at);
    at
}

pub(super) async fn a_sliding_life_moves_with_every_commit_and_a_fixed_one_stays(
    store: Arc<dyn Store>,
) {
    let mut sliding = Driver::new(Arc::clone(&store), owner(), 1);
    let create = sliding.create_for(TtlMode::Sliding, 60_000);
    sliding.ok(&sliding.client(), create).await;
    let mut fixed = Driver::new(Arc::clone(&store), owner(), 2);
    let create = fixed.create_for(TtlMode::Fixed, 60_000);
    fixed.ok(&fixed.client(), create).await;
    let until = fixed.now.plus_ms(60_000);
    for _ in 0..3 {
        sliding.later(10);
        fixed.later(10);
        sliding.turn("planner").await;
        fixed.turn("planner").await;
        assert_eq!(expiry(&sliding).await, Some(sliding.now.plus_ms(60_000)));
        assert_eq!(expiry(&fixed).await, Some(until));
    }
    fixed.live_for(Some((TtlMode::Fixed, 5_000))).await;
    assert_eq!(expiry(&fixed).await, Some(fixed.now.plus_ms(5_000)));
    fixed.live_for(None).await;
    assert_eq!(expiry(&fixed).await, None, "it lives on");
    let close = Command::CloseSession { cancel_live: true };
    sliding.ok(&sliding.client(), close).await;
    let still = Some(sliding.now.plus_ms(60_000));
    assert_eq!(expiry(&sliding).await, still, "a closed session expires");
    sliding.expire().await;
    assert_eq!(expiry(&sliding).await, None, "nothing expires twice");
}

pub(super) async fn sessions_are_due_when_their_life_ends(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for (n, ms) in [(1, 30_000), (2, 10_000), (3, 20_000)] {
        let mut driver = Driver::new(Arc::clone(&store), owner_of("north", "shop", n), n);
        let create = driver.create_for(TtlMode::Fixed, ms);
        driver.ok(&driver.client(), create).await;
        drivers.push(driver);
    }
    Driver::begin(&store, 4).await;
    let due = |driver: &Driver| Due {
        session: driver.session(),
        tenant: driver.owner.tenant.clone(),
        user: driver.owner.user,
        at: driver.state.expires_at.expect("it has a limit"),
        kind: DueKind::Session,
    };
    let expected = [due(&drivers[1]), due(&drivers[2]), due(&drivers[0])];
    for (count, one) in expected.iter().enumerate() {
        let before = Timestamp::from_micros(one.at.as_micros() - 1);
        let found = store.due(before, None, 10).await.expect(HEALTHY).due;
        assert_eq!(found, expected[..count], "before {:?}", one.at);
        let found = store.due(one.at, None, 10).await.expect(HEALTHY).due;
        assert_eq!(found, expected[..=count], "at {:?}", one.at);
        let found = store.due(the_end(), None, count).await.expect(HEALTHY).due;
        assert_eq!(found, expected[..count], "at most {count}");
    }
    drivers[1].expire().await;
    drivers[2].delete_session().await;
    let found = store.due(the_end(), None, 10).await.expect(HEALTHY).due;
    assert_eq!(found, expected[2..], "what is over is not due");
}

pub(super) async fn sessions_are_due_when_the_life_of_their_hidden_payloads_ends(
    store: Arc<dyn Store>,
) {
    let mut driver = Driver::begin(&store, 1).await;
    let due = async |driver: &Driver| {
        let found = store.due(the_end(), None, 10).await.expect(HEALTHY).due;
        let found = found.into_iter().find(|due| due.kind == DueKind::Hidden);
        let at = found.map(|due| due.at);
        let summary = summary(driver).await;
        assert_eq!(summary.hidden_expires_at, at);
        assert_eq!(summary.hidden_ttl_ms, driver.state.hidden_ttl_ms);
        let loaded = store.load(driver.session()).await.expect(HEALTHY);
        assert_eq!(loaded.as_ref(), Some(&driver.state));
        at
    };
    assert_eq!(due(&driver).await, None, "no limit");
    driver.keep_hidden_for(5_000).await;
    assert_eq!(due(&driver).await, Some(driver.now.plus_ms(5_000)));
    driver.later(2);
    driver.run("planner", 600_000).await;
    assert_eq!(due(&driver).await, None, "a live request may need them");
    let done = driver.complete(1);
    driver.by_worker(done).await;
    assert_eq!(due(&driver).await, Some(driver.now.plus_ms(5_000)));
    driver.erase_hidden().await;
    assert_eq!(due(&driver).await, None, "they are gone");
    driver.turn("planner").await;
    assert_eq!(due(&driver).await, Some(driver.now.plus_ms(5_000)));
    driver.live_for(Some((TtlMode::Fixed, 5_000))).await;
    driver.expire().await;
    assert_eq!(due(&driver).await, None, "nothing is left");
}

pub(super) async fn an_expired_session_is_listed_and_a_deleted_one_is_not(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for n in 1..=4 {
        let mut driver = Driver::begin(&store, n).await;
        driver.turn("planner").await;
        drivers.push(driver);
    }
    drivers[0].live_for(Some((TtlMode::Sliding, 5_000))).await;
    drivers[0].expire().await;
    drivers[2].delete_session().await;
    assert_eq!(listed(&store).await, [4, 2, 1].map(session));
    let expired = summary(&drivers[0]).await;
    assert_eq!(
        (expired.status, expired.deleted, expired.ttl),
        (SessionStatus::Closed, false, None)
    );
    let deleted = summary(&drivers[2]).await;
    assert_eq!(
        (deleted.status, deleted.deleted, deleted.revision),
        (SessionStatus::Closed, true, drivers[2].state.revision)
    );
    let page = SessionQuery {
        tenant: name("north"),
        app: None,
        user: None,
        order: SessionOrder::Created,
        after: Some(summary(&drivers[3]).await.list_place()),
        limit: 1,
    };
    let next = store.sessions(page).await.expect(HEALTHY);
    assert_eq!(next[0].id, session(2), "a page is not shorter for it");
}

pub(super) async fn sessions_that_only_carry_shared_state_are_not_listed(store: Arc<dyn Store>) {
    Driver::begin(&store, 1).await;
    let mut keeper = owner();
    keeper.agent = name(STATE_KEEPER);
    let mut driver = Driver::begin_for(&store, keeper, 2).await;
    driver.put(&[("user:language", r#""de""#)]).await;
    Driver::begin(&store, 3).await;
    assert_eq!(listed(&store).await, [3, 1].map(session));
    let found = summary(&driver).await;
    assert_eq!((found.id, found.revision), (session(2), 2));
    let stranger = store.session(session(9)).await.expect(HEALTHY);
    assert_eq!(stranger, None);
    let found = super::shared::value(&store, &owner(), "user:language").await;
    assert!(found.is_some(), "what it carries is there");
    let patch = StatePatch::default();
    driver
        .ok(&driver.client(), Command::PutState { patch, by: None })
        .await;
    assert_eq!(listed(&store).await, [3, 1].map(session));
}

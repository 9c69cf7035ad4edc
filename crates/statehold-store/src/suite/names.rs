//! A client's name for a session is unique for a user of an app.

use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::session::Owner;

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{owner, owner_of, session};
use super::picture::Picture;
use crate::{SessionOrder, SessionQuery, Store, StoreError};

pub(super) async fn begin_named(
    store: &Arc<dyn Store>,
    owner: Owner,
    n: u64,
    name: &str,
) -> Driver {
    let mut driver = Driver::new(Arc::clone(store), owner, n);
    let create = driver.create(Some(name));
    driver.ok(&driver.client(), create).await;
    driver
}

async fn require_taken(store: &Arc<dyn Store>, n: u64, name: &str) {
    let mut driver = Driver::new(Arc::clone(store), owner(), n);
    let create = driver.create(Some(name));
    let refused = driver.refused(&driver.client(), create).await;
    assert!(
        matches!(refused, StoreError::NameTaken { session: taken } if taken == session(1)),
        "{refused:?}"
    );
    let loaded = store.load(session(n)).await.expect(HEALTHY);
    assert_eq!(loaded, None, "a session that was refused is not there");
}

pub(super) async fn a_name_is_taken_once_by_a_user_of_an_app(store: Arc<dyn Store>) {
    let driver = begin_named(&store, owner(), 1, "trip").await;
    let before = Picture::of(&*store, &[&driver]).await;
    require_taken(&store, 2, "trip").await;
    let after = Picture::of(&*store, &[&driver]).await;
    after.require(&before, "nothing of a refused commit is there");
    begin_named(&store, owner(), 2, "Trip").await;
    begin_named(&store, owner(), 3, "trip ").await;
    for n in 4..7 {
        Driver::begin(&store, n).await;
    }
    require_taken(&store, 7, "trip").await;
}

pub(super) async fn a_name_is_free_for_other_users_apps_and_tenants(store: Arc<dyn Store>) {
    let owners = [
        owner(),
        owner_of("north", "shop", 2),
        owner_of("north", "bank", 1),
        owner_of("south", "shop", 1),
    ];
    for (n, owner) in (1..).zip(owners) {
        let driver = begin_named(&store, owner.clone(), n, "trip").await;
        let query = SessionQuery {
            tenant: owner.tenant,
            app: Some(owner.app),
            user: Some(owner.user),
            order: SessionOrder::Created,
            after: None,
            limit: 10,
        };
        let listed = store.sessions(query).await.expect(HEALTHY);
        let found: Vec<_> = listed
            .iter()
            .map(|one| (one.id, one.name.as_deref()))
            .collect();
        assert_eq!(found, [(driver.session(), Some("trip"))]);
    }
    require_taken(&store, 9, "trip").await;
}

pub(super) async fn a_session_is_found_by_its_name(store: Arc<dyn Store>) {
    begin_named(&store, owner(), 1, "trip").await;
    let find = async |owner: Owner, name: &str| {
        let found = store.session_named(owner.tenant, owner.app, owner.user, name.to_owned());
        found.await.expect(HEALTHY).map(|found| found.id)
    };
    assert_eq!(find(owner(), "trip").await, Some(session(1)));
    assert_eq!(find(owner(), "other").await, None);
}

pub(super) async fn a_name_stays_taken_when_its_session_closes(store: Arc<dyn Store>) {
    let mut driver = begin_named(&store, owner(), 1, "trip").await;
    let close = Command::CloseSession { cancel_live: false };
    driver.ok(&driver.client(), close).await;
    require_taken(&store, 2, "trip").await;
}

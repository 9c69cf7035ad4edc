//! Lists over all sessions: in order, in pages, behind the wall of the tenant.

use std::sync::Arc;

use statehold_core::command::{Command, StatePatch};
use statehold_core::ids::SessionId;
use statehold_core::session::{Owner, SessionStatus};

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{name, owner, owner_of, seconds, session};
use crate::{SessionQuery, SessionSummary, Store};

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

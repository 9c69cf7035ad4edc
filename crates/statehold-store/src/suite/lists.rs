//! Lists over all sessions: in order, in pages, behind the wall of the tenant.

use std::cmp::Reverse;
use std::sync::Arc;

use statehold_core::command::{Command, StatePatch};
use statehold_core::ids::SessionId;
use statehold_core::session::{Owner, STATE_KEEPER, SessionStatus, TtlMode};

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{name, owner, owner_of, seconds, session};
use crate::{SessionOrder, SessionQuery, SessionSummary, Store};

async fn sessions(store: &Arc<dyn Store>, query: SessionQuery) -> Vec<SessionSummary> {
    store.sessions(query).await.expect(HEALTHY)
}

fn of_tenant(tenant: &str) -> SessionQuery {
    SessionQuery {
        tenant: name(tenant),
        app: None,
        user: None,
        order: SessionOrder::Created,
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
                let after = found.last().map(SessionSummary::list_place);
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
    let after = first.last().map(SessionSummary::list_place);
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
        hidden_ttl_ms: None,
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
        hidden_ttl_ms: None,
        hidden_expires_at: None,
        revision: 2,
        created_at,
        updated_at: driver.now,
        forked_from: None,
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

fn by_change(query: SessionQuery) -> SessionQuery {
    SessionQuery {
        order: SessionOrder::Updated,
        ..query
    }
}

/// All pages of a list.
async fn paged(store: &Arc<dyn Store>, query: &SessionQuery, limit: usize) -> Vec<SessionSummary> {
    let mut found: Vec<SessionSummary> = Vec::new();
    loop {
        let next = SessionQuery {
            after: found.last().map(SessionSummary::list_place),
            limit,
            ..query.clone()
        };
        let page = sessions(store, next).await;
        if page.is_empty() {
            return found;
        }
        assert!(page.len() <= limit, "pages of {limit}");
        found.extend(page);
        assert!(found.len() < 2_000, "pages of {limit} never end");
    }
}

/// The list by change has the sessions of the list by creation, in the other order.
async fn require_by_change(store: &Arc<dyn Store>, query: &SessionQuery, limits: &[usize]) {
    let mut expected = sessions(store, query.clone()).await;
    expected.sort_by_key(|summary| Reverse(summary.list_place()));
    for limit in limits {
        let found = paged(store, &by_change(query.clone()), *limit).await;
        assert_eq!(ids(&found), ids(&expected), "pages of {limit}");
        assert_eq!(found, expected, "pages of {limit}");
    }
}

/// A session of an owner that began at a second.
async fn begin_at(store: &Arc<dyn Store>, owner: Owner, n: u64, second: i64) -> Driver {
    let mut driver = Driver::new(Arc::clone(store), owner, n);
    driver.now = seconds(second);
    let create = driver.create(None);
    driver.ok(&driver.client(), create).await;
    driver
}

/// Commits once, at a second.
async fn touch(driver: &mut Driver, second: i64) {
    driver.now = seconds(second);
    let nothing = Command::PutState {
        patch: StatePatch::default(),
        by: None,
    };
    driver.ok(&driver.client(), nothing).await;
}

pub(super) async fn sessions_are_listed_by_their_last_change_in_pages(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for n in 1..=7 {
        let app = if n % 2 == 0 { "shop" } else { "bank" };
        let user = n % 3;
        let owner = owner_of("north", app, user);
        drivers.push(begin_at(&store, owner, n, 10).await);
    }
    begin_at(&store, owner_of("south", "shop", 1), 8, 10).await;
    let queries = || {
        let shop = SessionQuery {
            app: Some(name("shop")),
            ..of_tenant("north")
        };
        let user = SessionQuery {
            user: Some(owner_of("north", "shop", 1).user),
            ..of_tenant("north")
        };
        let both = of_owner(&owner_of("north", "bank", 0));
        [of_tenant("north"), of_tenant("south"), shop, user, both]
    };
    for (n, second) in [(3, 30), (1, 20), (5, 20), (3, 40), (6, 20), (2, 50)] {
        for query in queries() {
            require_by_change(&store, &query, &[1, 2, 3, 1_000]).await;
        }
        touch(&mut drivers[n - 1], second).await;
    }
    let found = sessions(&store, by_change(of_tenant("north"))).await;
    assert_eq!(ids(&found), [2, 3, 6, 5, 1, 7, 4].map(session));
    assert_eq!(sessions(&store, by_change(of_tenant("west"))).await, []);
}

pub(super) async fn a_session_that_changes_between_pages_moves_to_the_first(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for n in 1..=6 {
        let second = i64::try_from(n).expect("a small number");
        drivers.push(begin_at(&store, owner(), n, second).await);
    }
    let page = by_change(SessionQuery {
        limit: 2,
        ..of_tenant("north")
    });
    let first = sessions(&store, page.clone()).await;
    assert_eq!(ids(&first), [6, 5].map(session));
    touch(&mut drivers[1], 60).await;
    touch(&mut drivers[5], 61).await;
    drivers[3].delete_session().await;
    let after = first.last().map(SessionSummary::list_place);
    let second = sessions(
        &store,
        SessionQuery {
            after,
            ..page.clone()
        },
    )
    .await;
    assert_eq!(
        ids(&second),
        [3, 1].map(session),
        "the others are all there, and none again"
    );
    let first = sessions(&store, page).await;
    assert_eq!(ids(&first), [6, 2].map(session));
}

pub(super) async fn forks_rewinds_and_ends_count_as_changes(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for n in 1..=4 {
        let mut driver = Driver::new(Arc::clone(&store), owner(), n);
        let create = driver.create_for(TtlMode::Sliding, 5_000_000);
        driver.ok(&driver.client(), create).await;
        driver.turn("planner").await;
        drivers.push(driver);
    }
    let mut keeper = owner();
    keeper.agent = name(STATE_KEEPER);
    begin_at(&store, keeper, 9, 100).await;
    drivers[2].now = seconds(100);
    drivers[2].fork(5, 2).await;
    drivers[1].now = seconds(200);
    let rewind = Command::Rewind { to: 1 };
    let client = drivers[1].client();
    drivers[1].ok(&client, rewind).await;
    drivers[0].now = seconds(300);
    let close = Command::CloseSession { cancel_live: false };
    drivers[0].ok(&client, close).await;
    drivers[3].now = seconds(400);
    drivers[3].delete_session().await;
    let found = sessions(&store, by_change(of_tenant("north"))).await;
    assert_eq!(ids(&found), [1, 2, 5, 3].map(session));
    require_by_change(&store, &of_tenant("north"), &[1, 3]).await;
}

pub(super) async fn the_order_of_changes_stays_right_over_many_commits(store: Arc<dyn Store>) {
    let mut hot = begin_at(&store, owner(), 1, 1).await;
    let mut cold = begin_at(&store, owner(), 2, 2).await;
    let query = of_tenant("north");
    for n in 0..600 {
        touch(&mut hot, 1_000 + n).await;
        if n % 97 == 0 {
            require_by_change(&store, &query, &[1]).await;
        }
    }
    touch(&mut cold, 5_000).await;
    require_by_change(&store, &query, &[1, 10]).await;
    let mut gone = begin_at(&store, owner(), 3, 6_000).await;
    for n in 0..300 {
        touch(&mut hot, 7_000 + n).await;
    }
    gone.delete_session().await;
    require_by_change(&store, &query, &[1]).await;
    for n in 0..300 {
        touch(&mut hot, 8_000 + n).await;
    }
    let found = sessions(&store, by_change(query)).await;
    assert_eq!(ids(&found), [1, 2].map(session));
}

pub(super) async fn many_sessions_are_in_the_order_of_their_changes(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for n in 1..=300_u64 {
        // Several at the same time, and not in the order of creation.
        let second = i64::try_from(n * 7 % 100).expect("a small number");
        drivers.push(begin_at(&store, owner_of("north", "shop", n % 2), n, second).await);
    }
    let one = SessionQuery {
        user: Some(owner_of("north", "shop", 1).user),
        ..of_tenant("north")
    };
    require_by_change(&store, &of_tenant("north"), &[7, 100, 1_000]).await;
    require_by_change(&store, &one, &[7, 1_000]).await;
    for (n, driver) in (200..).zip(&mut drivers).step_by(3) {
        touch(driver, n).await;
    }
    for driver in drivers.iter_mut().skip(10).step_by(50) {
        driver.delete_session().await;
    }
    require_by_change(&store, &of_tenant("north"), &[7, 100, 1_000]).await;
    require_by_change(&store, &one, &[7, 1_000]).await;
}

//! Beside sessions: users behind pseudonyms, keys, and the audit stream of a tenant.

use std::collections::BTreeSet;
use std::sync::Arc;

use statehold_core::digest::Digest;
use statehold_core::ids::KeyId;
use statehold_core::principal::Principal;
use statehold_core::session::STATE_KEEPER;
use statehold_core::tenant::{TenantEvent, TenantHead, TenantRecord};

use super::HEALTHY;
use super::driver::{Driver, block_on};
use super::fixture::{api_key, key_created, name, owner_of, seconds, session, user};
use super::parallel::at_once;
use crate::{
    AddressChange, Answer, ApiKey, ResumeAddress, Store, StoreError, TenantChange, TenantCommit,
};

pub(super) async fn a_user_has_one_pseudonym(store: Arc<dyn Store>) {
    let ask = async |tenant: &str, text: &str, fresh| {
        let interned = store.intern_user(name(tenant), text.to_owned(), user(fresh));
        interned.await.expect(HEALTHY)
    };
    let known = async |tenant: &str, text: &str| {
        let known = store.user(name(tenant), text.to_owned()).await;
        known.expect(HEALTHY)
    };
    assert_eq!(known("north", "bob").await, None);
    assert_eq!(ask("north", "bob", 1).await, user(1));
    assert_eq!(ask("north", "bob", 2).await, user(1), "he was here before");
    assert_eq!(ask("north", "Bob", 3).await, user(3), "somebody else");
    assert_eq!(ask("north", "", 4).await, user(4));
    assert_eq!(ask("north", "Zoë ✓", 5).await, user(5));
    assert_eq!(ask("south", "bob", 6).await, user(6), "tenants are apart");
    assert_eq!(known("north", "bob").await, Some(user(1)));
    assert_eq!(known("south", "bob").await, Some(user(6)));
    assert_eq!(known("west", "bob").await, None);
    let who = async |n| store.user_name(user(n)).await.expect(HEALTHY);
    assert_eq!(who(1).await.as_deref(), Some("bob"));
    assert_eq!(who(5).await.as_deref(), Some("Zoë ✓"));
    assert_eq!(who(6).await.as_deref(), Some("bob"));
    assert_eq!(who(2).await, None, "a pseudonym that was not needed");
    let several = store.user_names([6, 2, 5].map(user).to_vec()).await;
    let expected = [Some("bob"), None, Some("Zoë ✓")].map(|name| name.map(str::to_owned));
    assert_eq!(several.expect(HEALTHY), expected);
}

pub(super) async fn a_forgotten_user_is_new_again(store: Arc<dyn Store>) {
    let ask = async |tenant: &str, fresh| {
        let interned = store.intern_user(name(tenant), "bob".to_owned(), user(fresh));
        interned.await.expect(HEALTHY)
    };
    assert_eq!(ask("north", 1).await, user(1));
    assert_eq!(ask("south", 2).await, user(2));
    let forget = async |tenant: &str, n| {
        let event = TenantEvent::UserErased {
            sessions: 0,
            user: user(n),
        };
        let commit = TenantCommit {
            record: entry(&head(&store, tenant).await, tenant, event),
            change: Some(TenantChange::UserForgotten(user(n))),
        };
        store.commit_tenant(commit).await.expect("it follows");
    };
    forget("north", 1).await;
    forget("north", 2).await;
    assert_eq!(store.user_name(user(1)).await.expect(HEALTHY), None);
    assert_eq!(ask("north", 3).await, user(3), "nobody that was here");
    assert_eq!(ask("south", 4).await, user(2), "tenants are apart");
}

pub(super) async fn sessions_of_a_user_are_found_listed_or_not(store: Arc<dyn Store>) {
    let mut first = Driver::begin_for(&store, owner_of("north", "shop", 1), 1).await;
    let mut keeper = owner_of("north", "shop", 1);
    keeper.agent = name(STATE_KEEPER);
    Driver::begin_for(&store, keeper, 2).await;
    Driver::begin_for(&store, owner_of("north", "desk", 1), 3).await;
    Driver::begin_for(&store, owner_of("north", "shop", 2), 4).await;
    Driver::begin_for(&store, owner_of("south", "shop", 1), 5).await;
    let found = async |is_listed, after, limit| {
        let found = store.sessions_of_user(name("north"), user(1), is_listed, after, limit);
        let found = found.await.expect(HEALTHY);
        let sessions = found.iter().map(|found| found.id).collect::<Vec<_>>();
        (sessions, found.last().map_or(0, |last| last.place))
    };
    assert_eq!(found(true, 0, 9).await.0, [session(1), session(3)]);
    let (page, place) = found(true, 0, 1).await;
    assert_eq!(page, [session(1)]);
    assert_eq!(found(true, place, 9).await.0, [session(3)]);
    assert_eq!(found(false, 0, 9).await.0, [session(2)]);
    first.delete_session().await;
    assert_eq!(found(true, 0, 9).await.0, [session(3)]);
    assert_eq!(found(false, 0, 9).await.0, [session(1), session(2)]);
}

pub(super) async fn a_new_user_is_stored_with_the_commit_of_their_session(store: Arc<dyn Store>) {
    let known = async |text: &str| {
        let known = store.user(name("north"), text.to_owned()).await;
        known.expect(HEALTHY)
    };
    let create = async |n, text: &str, key: Option<u64>| {
        let mut driver = Driver::new(Arc::clone(&store), owner_of("north", "shop", n), n);
        let create = driver.create(None);
        let record = driver.record(&driver.client(), create).await;
        let mut commit = driver.commit_of(&record);
        commit.new_user = Some(text.to_owned());
        commit.answer = key.map(|session_number| Answer {
            key: Digest::sha256(b"a key"),
            fingerprint: Digest::sha256(b"a call"),
            session: session(session_number),
            revision: 1,
            body: Vec::new(),
            expires_at: seconds(100),
        });
        store.commit(commit).await
    };
    create(1, "bob", Some(1)).await.expect(HEALTHY);
    assert_eq!(known("bob").await, Some(user(1)));
    let refused = create(2, "eve", Some(2)).await;
    assert!(
        matches!(refused, Err(StoreError::KeyTaken { .. })),
        "{refused:?}"
    );
    assert_eq!(known("eve").await, None, "a refused commit stores no user");
    let refused = create(3, "bob", None).await;
    assert!(
        matches!(refused, Err(StoreError::UserTaken { known }) if known == user(1)),
        "{refused:?}"
    );
    let summary = store.session(session(3)).await.expect(HEALTHY);
    assert_eq!(summary, None, "a refused commit creates no session");
    assert_eq!(known("bob").await, Some(user(1)));
}

pub(super) async fn of_many_who_ask_for_a_pseudonym_all_get_one(store: Arc<dyn Store>) {
    let given = at_once(|n| {
        block_on(async {
            let mut given = Vec::new();
            for round in 0..10 {
                let fresh = user(n * 100 + round);
                let text = format!("user {round}");
                let interned = store.intern_user(name("north"), text, fresh).await;
                given.push(interned.expect(HEALTHY));
            }
            given
        })
    });
    for other in &given[1..] {
        assert_eq!(*other, given[0], "everybody gets the same");
    }
    let distinct: BTreeSet<_> = given[0].iter().collect();
    assert_eq!(distinct.len(), 10);
}

/// An entry that follows a head.
fn entry(head: &TenantHead, tenant: &str, event: TenantEvent) -> TenantRecord {
    let now = seconds(i64::try_from(head.seq).expect("a short stream"));
    TenantRecord::after(head, name(tenant), Principal::Local, now, event)
}

fn trace(n: u64) -> TenantEvent {
    TenantEvent::TraceRead {
        session: session(n),
    }
}

async fn head(store: &Arc<dyn Store>, tenant: &str) -> TenantHead {
    store.tenant_head(name(tenant)).await.expect(HEALTHY)
}

/// Appends what happened, with the key that it changes.
async fn append(
    store: &Arc<dyn Store>,
    tenant: &str,
    event: TenantEvent,
    key: Option<ApiKey>,
) -> TenantRecord {
    let record = entry(&head(store, tenant).await, tenant, event);
    let commit = TenantCommit {
        record: record.clone(),
        change: key.map(TenantChange::Key),
    };
    store.commit_tenant(commit).await.expect("it follows");
    record
}

async fn stream(store: &Arc<dyn Store>, tenant: &str) -> Vec<TenantRecord> {
    let found = store.tenant_records(name(tenant), 0, 1_000).await;
    found.expect(HEALTHY)
}

pub(super) async fn the_audit_stream_of_a_tenant_is_a_chain(store: Arc<dyn Store>) {
    assert_eq!(head(&store, "north").await, TenantHead::default());
    assert_eq!(stream(&store, "north").await, []);
    let mut expected = Vec::new();
    for n in 0..9 {
        expected.push(append(&store, "north", trace(n), None).await);
        if n % 3 == 0 {
            append(&store, "south", trace(n), None).await;
        }
        assert_eq!(
            head(&store, "north").await,
            expected[expected.len() - 1].head()
        );
    }
    assert_eq!(stream(&store, "north").await, expected);
    assert_eq!(stream(&store, "south").await.len(), 3, "tenants are apart");
    let mut last = TenantHead::default();
    for record in &expected {
        assert_eq!(record.content.prev_hash, last.hash);
        assert_eq!(record.content.seq, last.seq + 1);
        last = record.head();
    }
    for limit in 1..=10 {
        for after in 0..=10 {
            let page = store.tenant_records(name("north"), after, limit).await;
            let skipped = usize::try_from(after).expect("a small number");
            let rest = expected.iter().skip(skipped).take(limit);
            assert_eq!(page.expect(HEALTHY), rest.cloned().collect::<Vec<_>>());
        }
    }
}

pub(super) async fn an_entry_that_does_not_follow_is_refused_with_its_key(store: Arc<dyn Store>) {
    append(&store, "north", trace(1), None).await;
    let before = head(&store, "north").await;
    append(&store, "north", trace(2), None).await;
    let now = head(&store, "north").await;
    let elsewhere = TenantHead {
        hash: Digest::sha256(b"another chain"),
        ..now
    };
    let ahead = TenantHead {
        seq: now.seq + 1,
        ..now
    };
    let expected = stream(&store, "north").await;
    let key = api_key("north", 1);
    for wrong in [TenantHead::default(), before, elsewhere, ahead] {
        let commit = TenantCommit {
            record: entry(&wrong, "north", key_created(&key)),
            change: Some(TenantChange::Key(key.clone())),
        };
        let refused = store.commit_tenant(commit).await;
        assert!(
            matches!(refused, Err(StoreError::TenantConflict { found: 2 })),
            "{refused:?}"
        );
        assert_eq!(stream(&store, "north").await, expected);
        assert_eq!(store.api_key(key.secret).await.expect(HEALTHY), None);
        assert!(!store.has_api_keys().await.expect(HEALTHY));
    }
}

pub(super) async fn of_many_entries_after_one_head_one_is_taken(store: Arc<dyn Store>) {
    for round in 0..5 {
        let base = head(&store, "north").await;
        let taken = at_once(|n| {
            let key = api_key("north", round * 100 + n);
            let commit = TenantCommit {
                record: entry(&base, "north", key_created(&key)),
                change: Some(TenantChange::Key(key)),
            };
            match block_on(store.commit_tenant(commit)) {
                Ok(()) => true,
                Err(StoreError::TenantConflict { found }) => {
                    assert_eq!(found, base.seq + 1);
                    false
                }
                Err(other) => panic!("{other:?}"),
            }
        });
        let count = taken.into_iter().filter(|is_taken| *is_taken).count();
        assert_eq!(count, 1, "round {round}");
    }
    assert_eq!(stream(&store, "north").await.len(), 5);
    let count = store.api_key_count(name("north")).await.expect(HEALTHY);
    assert_eq!(count, 5, "a refused entry leaves no key");
}

pub(super) async fn keys_are_found_by_their_digest(store: Arc<dyn Store>) {
    assert!(!store.has_api_keys().await.expect(HEALTHY));
    let mut keys = vec![
        api_key("north", 1),
        ApiKey {
            name: None,
            user: Some(user(1)),
            agents: [].into(),
            expires_at: None,
            ..api_key("north", 2)
        },
        api_key("south", 3),
    ];
    for key in &keys {
        let tenant = key.tenant.as_str();
        append(&store, tenant, key_created(key), Some(key.clone())).await;
    }
    let found = async |key: &ApiKey| store.api_key(key.secret).await.expect(HEALTHY);
    for key in &keys {
        assert_eq!(found(key).await.as_ref(), Some(key));
    }
    let stranger = store.api_key(Digest::sha256(b"a guess")).await;
    assert_eq!(stranger.expect(HEALTHY), None);
    let page = async |tenant: &str, after: Option<KeyId>, limit| {
        let page = store.api_keys(name(tenant), after, limit);
        page.await.expect(HEALTHY)
    };
    let of = async |tenant: &str| page(tenant, None, 10).await;
    assert_eq!(of("north").await, keys[..2], "oldest first");
    assert_eq!(page("north", None, 1).await, keys[..1]);
    assert_eq!(page("north", Some(keys[0].id), 1).await, keys[1..2]);
    assert_eq!(page("north", Some(keys[1].id), 1).await, []);
    for (tenant, key, expected) in [("north", 0, true), ("south", 0, false), ("south", 2, true)] {
        let found = store.api_key_of(name(tenant), keys[key].id).await;
        assert_eq!(found.expect(HEALTHY).is_some(), expected, "{tenant} {key}");
    }
    for (tenant, count) in [("north", 2), ("south", 1), ("west", 0)] {
        let found = store.api_key_count(name(tenant)).await.expect(HEALTHY);
        assert_eq!(found, count, "{tenant}");
    }
    assert_eq!(of("south").await, keys[2..]);
    assert_eq!(of("west").await, []);
    for key in &mut keys {
        assert!(store.has_api_keys().await.expect(HEALTHY), "{key:?}");
        key.revoked_at = Some(seconds(50));
        let revoked = TenantEvent::KeyRevoked { key: key.id };
        let tenant = key.tenant.to_string();
        append(&store, &tenant, revoked, Some(key.clone())).await;
        assert_eq!(found(key).await.as_ref(), Some(&*key), "also if revoked");
    }
    assert!(
        !store.has_api_keys().await.expect(HEALTHY),
        "all are revoked"
    );
    assert_eq!(of("north").await, keys[..2], "and all are still listed");
}

fn address(tenant: &str, agent: &str, url: &str) -> ResumeAddress {
    ResumeAddress {
        tenant: name(tenant),
        agent: name(agent),
        url: url.to_owned(),
        salt: Digest::sha256(url.as_bytes()),
        set_at: seconds(7),
    }
}

/// Appends a change of an address.
async fn change(store: &Arc<dyn Store>, tenant: &str, change: AddressChange) {
    let event = match &change {
        AddressChange::Set(address) => TenantEvent::ResumeAddressSet {
            address: address.commitment(),
            agent: address.agent.clone(),
        },
        AddressChange::Removed(agent) => TenantEvent::ResumeAddressRemoved {
            agent: agent.clone(),
        },
    };
    let commit = TenantCommit {
        record: entry(&head(store, tenant).await, tenant, event),
        change: Some(TenantChange::Address(change)),
    };
    store.commit_tenant(commit).await.expect("it follows");
}

pub(super) async fn an_agent_has_one_address_until_it_is_removed(store: Arc<dyn Store>) {
    let all = async || store.resume_addresses().await.expect(HEALTHY);
    assert_eq!(all().await, []);
    let first = address("north", "payer", "https://a.example/");
    let second = address("north", "payer", "https://b.example/");
    let foreign = address("south", "payer", "https://c.example/");
    let other = address("north", "booker", "https://d.example/");
    assert_ne!(first.commitment(), second.commitment());
    for (tenant, one) in [
        ("north", &first),
        ("south", &foreign),
        ("north", &other),
        ("north", &second),
    ] {
        change(&store, tenant, AddressChange::Set(one.clone())).await;
    }
    assert_eq!(
        all().await,
        [other.clone(), second.clone(), foreign.clone()],
        "the newest of each agent, by tenant and agent"
    );
    change(&store, "north", AddressChange::Removed(name("payer"))).await;
    assert_eq!(all().await, [other.clone(), foreign.clone()]);
    // A change whose entry does not follow is not made.
    let commit = TenantCommit {
        record: entry(&TenantHead::default(), "north", trace(1)),
        change: Some(TenantChange::Address(AddressChange::Set(second))),
    };
    store.commit_tenant(commit).await.expect_err("it is late");
    assert_eq!(all().await, [other, foreign]);
}

//! Signed roots: what they are made from, and what a verification learns from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use statehold_core::digest::{Digest, PayloadKey};
use statehold_core::ids::SessionId;
use statehold_core::root::{Signature, SignedHead};
use statehold_core::tenant::{NewRoot, TenantEvent, TenantHead, TenantRecord};
use statehold_core::time::Timestamp;

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{name, owner, owner_of, seconds, session};
use super::names::begin_named;
use crate::keys::{KeyOwner, KnownKeys};
use crate::seal::{SealKey, SealKeyId, SealKeys};
use crate::signing::RootSigner;
use crate::{CheckReport, ProblemKind, Store, TenantCommit};

/// Keys of a server that has only ever signed.
struct SignerOnly {
    key: PayloadKey,
    since: Timestamp,
}

impl SealKeys for SignerOnly {
    fn seal_key(&self, _id: SealKeyId) -> Option<Arc<SealKey>> {
        None
    }

    fn key_of(&self, _owner: &KeyOwner) -> Option<Arc<SealKey>> {
        None
    }

    fn seals(&self) -> bool {
        false
    }
}

impl KnownKeys for SignerOnly {
    fn get(&self, owner: &KeyOwner) -> Option<PayloadKey> {
        (*owner == KeyOwner::Signer).then(|| self.key.clone())
    }

    fn since(&self, owner: &KeyOwner) -> Option<Timestamp> {
        (*owner == KeyOwner::Signer).then_some(self.since)
    }
}

fn secret(n: u8) -> PayloadKey {
    PayloadKey::from_bytes([n; 32])
}

fn head_of(driver: &Driver) -> SignedHead {
    let last = &driver.log[driver.log.len() - 1].record;
    SignedHead {
        hash: last.hash,
        revision: last.content.seq,
        session: driver.session(),
    }
}

async fn heads(store: &Arc<dyn Store>, after: u64, limit: usize) -> Vec<(u64, String, SignedHead)> {
    let found = store.heads_after(after, limit).await.expect(HEALTHY);
    assert!(found.len() <= limit);
    let found = found.into_iter();
    found
        .map(|one| (one.place, one.tenant.to_string(), one.head))
        .collect()
}

pub(super) async fn heads_after_a_place_are_the_newest_of_what_changed(store: Arc<dyn Store>) {
    assert_eq!(heads(&store, 0, 10).await, []);
    let mut first = Driver::begin(&store, 1).await;
    let mut second = Driver::begin_for(&store, owner_of("south", "bank", 2), 2).await;
    first.turn("planner").await;
    let before = store.last_place().await.expect(HEALTHY);
    second.put(&[("n", "1")]).await;
    let fork = first.fork(3, 2).await;
    let mut expected = BTreeMap::from([
        (first.session(), ("north", head_of(&first))),
        (second.session(), ("south", head_of(&second))),
        (fork.session(), ("north", head_of(&fork))),
    ]);
    for limit in [1, 2, 100] {
        let (mut found, mut after) = (BTreeMap::new(), 0);
        loop {
            let page = heads(&store, after, limit).await;
            let Some(last) = page.last() else { break };
            assert!(page.is_sorted_by_key(|(place, ..)| *place) && page[0].0 > after);
            after = last.0;
            for (_, tenant, head) in page {
                found.insert(head.session, (tenant, head));
            }
        }
        assert_eq!(after, store.last_place().await.expect(HEALTHY));
        let found: BTreeMap<SessionId, (&str, SignedHead)> = found
            .iter()
            .map(|(session, (tenant, head))| (*session, (tenant.as_str(), *head)))
            .collect();
        assert_eq!(found, expected, "pages of {limit}");
    }
    expected.remove(&first.session());
    let later = heads(&store, before, 100).await;
    let later: Vec<SessionId> = later.iter().map(|(.., head)| head.session).collect();
    assert_eq!(
        later,
        [second.session(), fork.session()],
        "nothing else moved"
    );
    first.delete_session().await;
    let last = heads(&store, store.last_place().await.expect(HEALTHY) - 1, 100).await;
    assert_eq!(
        last[0].2,
        head_of(&first),
        "deleted sessions have heads too"
    );
}

pub(super) async fn tenants_are_those_with_sessions_or_a_stream(store: Arc<dyn Store>) {
    assert_eq!(store.tenants().await.expect(HEALTHY), []);
    Driver::begin(&store, 1).await;
    Driver::begin(&store, 2).await;
    Driver::begin_for(&store, owner_of("south", "bank", 2), 3).await;
    // Whatever its sessions are called.
    begin_named(&store, owner(), 4, "a").await;
    begin_named(&store, owner(), 5, "z").await;
    for tenant in ["east", "south"] {
        sign(&store, tenant, vec![], 1).await;
        sign(&store, tenant, vec![], 1).await;
    }
    let found = store.tenants().await.expect(HEALTHY);
    assert_eq!(found, ["east", "north", "south"].map(name));
}

/// Appends a root.
async fn sign(store: &Arc<dyn Store>, tenant: &str, heads: Vec<SignedHead>, key: u8) -> TenantHead {
    let signer = RootSigner::new(&secret(key));
    append(store, tenant, heads, &signer, |bytes| signer.sign(bytes)).await
}

async fn append(
    store: &Arc<dyn Store>,
    tenant: &str,
    mut heads: Vec<SignedHead>,
    signer: &RootSigner,
    sign: impl FnOnce(&[u8]) -> Signature,
) -> TenantHead {
    let before = store.tenant_head(name(tenant)).await.expect(HEALTHY);
    heads.sort_by_key(|head| head.session);
    let root = NewRoot {
        heads,
        public_key: signer.public_key(),
        until: 0,
    };
    let record = TenantRecord::root_after(&before, name(tenant), seconds(9), root, sign);
    let head = record.head();
    let commit = TenantCommit {
        record,
        change: None,
    };
    store.commit_tenant(commit).await.expect("it follows");
    head
}

async fn verify(store: &Arc<dyn Store>, expected: Option<TenantHead>) -> CheckReport {
    let keys = Arc::new(SignerOnly {
        key: secret(1),
        since: seconds(0),
    });
    let report = store.verify(name("north"), expected, keys).await;
    report.expect(HEALTHY)
}

#[track_caller]
fn kinds(report: &CheckReport) -> Vec<ProblemKind> {
    let problems = report.problems.iter();
    problems.map(|problem| problem.kind).collect()
}

pub(super) async fn a_sound_store_verifies_with_its_roots(store: Arc<dyn Store>) {
    let mut first = Driver::begin(&store, 1).await;
    first.turn("planner").await;
    let fork = first.fork(2, 2).await;
    let mut gone = Driver::begin(&store, 3).await;
    gone.delete_session().await;
    let old = vec![head_of(&first), head_of(&fork), head_of(&gone)];
    sign(&store, "north", old, 1).await;
    first.put(&[("n", "1")]).await;
    let head = sign(&store, "north", vec![head_of(&first)], 1).await;
    first.put(&[("n", "2")]).await;
    let report = verify(&store, Some(head)).await;
    assert_eq!(report.problems, []);
    assert_eq!((report.sessions, report.entries, report.roots), (3, 2, 2));
    assert_eq!(report.unverified_roots, 0);
    assert_eq!(report.head, head);
    let records = first.log.len() + gone.log.len() + 1;
    assert_eq!(report.records, records, "those of the origin count once");
    let stranger = store.verify(
        name("west"),
        None,
        Arc::new(SignerOnly {
            key: secret(1),
            since: seconds(0),
        }),
    );
    let stranger = stranger.await.expect(HEALTHY);
    assert_eq!((stranger.sessions, stranger.entries), (0, 0));
    assert_eq!(stranger.problems, []);
}

pub(super) async fn what_a_root_names_and_is_not_there_is_missed(store: Arc<dyn Store>) {
    let first = Driver::begin(&store, 1).await;
    let second = Driver::begin(&store, 2).await;
    let third = Driver::begin(&store, 3).await;
    let longer = SignedHead {
        revision: 7,
        ..head_of(&first)
    };
    let other = SignedHead {
        hash: Digest::sha256(b"another record"),
        ..head_of(&second)
    };
    let absent = SignedHead {
        session: session(99),
        ..head_of(&third)
    };
    let entry = sign(&store, "north", vec![longer, other, absent], 1).await;
    let report = verify(&store, None).await;
    let mut found: Vec<_> = report
        .problems
        .iter()
        .map(|problem| {
            (
                problem.kind,
                problem.session,
                problem.revision,
                problem.entry,
            )
        })
        .collect();
    found.sort_by_key(|(_, session, ..)| *session);
    let at = Some(entry.seq);
    let mut expected = [
        (ProblemKind::MissingTail, Some(first.session()), Some(7), at),
        (ProblemKind::Record, Some(second.session()), Some(1), at),
        (ProblemKind::MissingSession, Some(session(99)), Some(1), at),
    ];
    expected.sort_by_key(|(_, session, ..)| *session);
    assert_eq!(found, expected);
}

pub(super) async fn a_root_that_this_server_did_not_sign_is_noticed(store: Arc<dyn Store>) {
    let first = Driver::begin(&store, 1).await;
    let own = RootSigner::new(&secret(1));
    sign(&store, "north", vec![head_of(&first)], 2).await;
    let forged = |_: &[u8]| Signature::from_bytes([5; 64]);
    append(&store, "north", vec![head_of(&first)], &own, forged).await;
    let twice = vec![head_of(&first); 2];
    append(&store, "north", twice, &own, |bytes| own.sign(bytes)).await;
    let report = verify(&store, None).await;
    assert_eq!(kinds(&report), [ProblemKind::Root; 3]);
    let entries = report.problems.iter().map(|problem| problem.entry);
    assert!(entries.eq([Some(1), Some(2), Some(3)]));
    assert_eq!((report.entries, report.roots), (3, 0));
}

pub(super) async fn a_root_of_a_key_that_is_gone_counts_apart(store: Arc<dyn Store>) {
    let first = Driver::begin(&store, 1).await;
    let absent = SignedHead {
        session: session(99),
        ..head_of(&first)
    };
    sign(&store, "north", vec![absent], 2).await;
    let younger = Arc::new(SignerOnly {
        key: secret(1),
        since: seconds(10),
    });
    let report = store.verify(name("north"), None, younger).await;
    let report = report.expect(HEALTHY);
    assert_eq!((report.roots, report.unverified_roots), (0, 1));
    let kinds = kinds(&report);
    assert_eq!(kinds, [ProblemKind::MissingSession], "but it is heard");
}

pub(super) async fn a_stream_without_what_was_written_to_it_is_noticed(store: Arc<dyn Store>) {
    let head = sign(&store, "north", vec![], 1).await;
    let report = verify(&store, Some(head)).await;
    assert_eq!(report.problems, []);
    let ahead = TenantHead { seq: 2, ..head };
    let report = verify(&store, Some(ahead)).await;
    assert_eq!(kinds(&report), [ProblemKind::MissingTail]);
    assert_eq!(report.problems[0].entry, Some(2));
    let hash = Digest::sha256(b"another entry");
    let report = verify(&store, Some(TenantHead { hash, ..head })).await;
    assert_eq!(kinds(&report), [ProblemKind::Entry]);
    let event = &store
        .tenant_records(name("north"), 0, 1)
        .await
        .expect(HEALTHY)[0];
    assert!(matches!(
        event.content.event,
        TenantEvent::HeadsSigned { .. }
    ));
}

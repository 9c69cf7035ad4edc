//! Roots are made when something changed, name what changed, and go on after a restart.

use serde_json::json;
use statehold_core::root::{HEADS_PER_ROOT_MAX, SignedHead};
use statehold_core::tenant::{TenantEvent, TenantRecord};
use statehold_engine::api::audit::verify;
use statehold_engine::{Call, Caller, EngineError, NewKey, api};
use statehold_store::Store;

use crate::rig::Rig;

async fn stream(rig: &Rig) -> Vec<TenantRecord> {
    let tenant = rig.caller.tenant.clone();
    let found = rig.store.tenant_records(tenant, 0, 1_000).await;
    found.expect("the store answers")
}

/// The roots so far: what each names, and up to where.
async fn roots(rig: &Rig) -> Vec<(Vec<SignedHead>, u64)> {
    let entries = stream(rig).await.into_iter();
    let roots = entries.filter_map(|entry| match entry.content.event {
        TenantEvent::HeadsSigned { heads, until, .. } => Some((heads, until)),
        _ => None,
    });
    roots.collect()
}

async fn sign(rig: &Rig) {
    rig.engine.sign_heads().await.expect("the store answers");
}

async fn create_key(rig: &Rig) {
    let new = NewKey {
        roles: ["client".parse().expect("a name")].into(),
        ..NewKey::default()
    };
    let made = rig.engine.create_key(&rig.caller, new).await;
    made.expect("it is made");
}

#[tokio::test]
async fn a_root_is_made_only_if_something_changed() {
    let rig = Rig::new(None).await;
    assert_eq!(roots(&rig).await, []);
    sign(&rig).await;
    sign(&rig).await;
    let first = roots(&rig).await;
    assert_eq!(first.len(), 1, "the second had nothing to say");
    let (heads, until) = &first[0];
    assert_eq!((heads[0].session, heads[0].revision), (rig.session, 1));
    assert_eq!((heads.len(), *until), (1, 1));
    rig.start(None).await.expect("started");
    sign(&rig).await;
    let second = roots(&rig).await;
    assert_eq!(second.len(), 2);
    assert_eq!((second[1].0[0].revision, second[1].1), (2, 2));
    create_key(&rig).await;
    sign(&rig).await;
    sign(&rig).await;
    let third = roots(&rig).await;
    assert_eq!(third.len(), 3, "entries are signed too, once");
    assert_eq!(third[2], (vec![], 2));
}

#[tokio::test]
async fn a_stop_signs_and_a_start_goes_on_there() {
    let mut rig = Rig::new(None).await;
    rig.start(None).await.expect("started");
    rig.restart().await;
    assert_eq!(roots(&rig).await.len(), 1);
    sign(&rig).await;
    assert_eq!(roots(&rig).await.len(), 1, "nothing is signed twice");
    rig.start(None).await.expect("started");
    for _ in 0..40 {
        create_key(&rig).await;
    }
    rig.restart().await;
    let found = roots(&rig).await;
    let revisions: Vec<u64> = found.iter().map(|(heads, _)| heads[0].revision).collect();
    assert_eq!(
        revisions,
        [2, 3],
        "the last root is found behind other entries"
    );
    let last = stream(&rig).await;
    assert!(matches!(
        last[last.len() - 1].content.event,
        TenantEvent::HeadsSigned { .. }
    ));
}

#[tokio::test]
async fn many_heads_are_in_several_roots() {
    let rig = Rig::new(None).await;
    for _ in 0..HEADS_PER_ROOT_MAX + 5 {
        let input = json!({"app": "app", "user": "bob", "agent": "helper"});
        let input = serde_json::from_value(input).expect("a session");
        let call = Call::by(rig.caller.clone());
        let made = api::session::create(&rig.engine, &call, input).await;
        made.expect("it begins");
    }
    sign(&rig).await;
    let found = roots(&rig).await;
    let sizes: Vec<usize> = found.iter().map(|(heads, _)| heads.len()).collect();
    assert_eq!(sizes, [HEADS_PER_ROOT_MAX, 6]);
    let places: Vec<u64> = found.iter().map(|(_, until)| *until).collect();
    assert_eq!(places, [0, 1_006], "only the last says that all are there");
    let verified = verify(&rig.engine, &rig.caller).await.expect("it may");
    assert!(verified.ok, "{verified:?}");
    assert_eq!((verified.sessions, verified.roots), (1_006, 2));
}

#[tokio::test]
async fn one_verification_at_a_time_and_only_for_those_who_may() {
    let rig = Rig::new(None).await;
    sign(&rig).await;
    let both = tokio::join!(
        verify(&rig.engine, &rig.caller),
        verify(&rig.engine, &rig.caller)
    );
    assert!(matches!(both.1, Err(EngineError::TooMany(_))), "{both:?}");
    assert!(both.0.expect("the first").ok);
    verify(&rig.engine, &rig.caller).await.expect("now it may");
    let foreign = Caller::local("another".parse().expect("a name"));
    let found = verify(&rig.engine, &foreign).await.expect("its own");
    assert_eq!((found.sessions, found.entries), (0, 0));
}

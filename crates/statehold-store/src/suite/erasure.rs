//! Payloads of sessions that expire or are deleted go; their digests stay, and so does what another
//! session shares.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use statehold_core::command::{Command, Output, StartRequest, StatePatch};
use statehold_core::hold::DecisionKind;
use statehold_core::ids::SessionId;
use statehold_core::item::{NewItem, Role, Visibility};
use statehold_core::record::ErasedPayloads;
use statehold_core::session::TtlMode;
use statehold_core::view::View;

use super::HEALTHY;
use super::driver::{Driver, Refusal, block_on};
use super::fixture::{owner, owner_of, session};
use super::log::{noise, require_chain};
use super::picture::Picture;
use super::state::values;
use super::{history, shared};
use crate::{ItemQuery, MemoryQuery, PageLimit, PastItemQuery, Store, StoreError, StoredRecord};

const STEPS_MAX: usize = 10_000;

/// Removes what there is to remove, in steps of so many records; returns how many steps it took.
async fn erase(store: &Arc<dyn Store>, limit: usize) -> usize {
    for step in 1..STEPS_MAX {
        if !store
            .erase_some(PageLimit::entries(limit))
            .await
            .expect(HEALTHY)
        {
            return step;
        }
    }
    panic!("removing payloads does not end");
}

async fn records(driver: &Driver) -> Vec<StoredRecord> {
    let found = driver
        .store
        .records(driver.session(), 0, PageLimit::entries(1_000))
        .await;
    found.expect(HEALTHY)
}

/// The payloads of a session that are still there, those shared with others too.
async fn left(driver: &Driver) -> BTreeSet<String> {
    let records = records(driver).await;
    let bodies = records.iter().flat_map(|stored| &stored.bodies).flatten();
    bodies
        .map(|body| String::from_utf8_lossy(body).into_owned())
        .collect()
}

/// All payloads that a session ever had.
fn ever(driver: &Driver) -> BTreeSet<String> {
    let bodies = driver.log.iter().flat_map(|stored| &stored.bodies);
    let texts = bodies.flatten().map(|body| String::from_utf8_lossy(body));
    texts.map(std::borrow::Cow::into_owned).collect()
}

/// The records and their digests are as they were committed, whatever became of the payloads.
async fn require_records(driver: &Driver) {
    let found = records(driver).await;
    assert_eq!(found.len(), driver.log.len());
    for (found, expected) in found.iter().zip(&driver.log) {
        assert_eq!(found.record, expected.record);
        assert_eq!(found.bodies.len(), expected.bodies.len());
        for (body, expected) in found.bodies.iter().zip(&expected.bodies) {
            assert!(body.is_none() || body == expected, "it is gone or the same");
        }
    }
    require_chain(driver).await;
    let loaded = driver.store.load(driver.session()).await.expect(HEALTHY);
    assert_eq!(loaded.as_ref(), Some(&driver.state));
}

fn texts(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(ToString::to_string).collect()
}

/// A session with payloads of every kind. What clients see begins with `seen`.
async fn told(store: &Arc<dyn Store>, n: u64) -> Driver {
    let mut d = Driver::new(Arc::clone(store), owner(), n);
    let create = Command::CreateSession {
        owner: owner(),
        name: Some(d.body(format!("seen name {n}"))),
        labels: Some(d.body(r#"{"seen":1}"#)),
        state: d.set(&[
            ("topic", r#""seen value""#),
            ("user:tongue", r#""seen de""#),
        ]),
        ttl: None,
        hidden_ttl_ms: None,
    };
    d.ok(&d.client(), create).await;
    let start = StartRequest {
        input: d.body("seen question"),
        attachments: vec![d.file("seen map")],
        ..d.leased("planner")
    };
    d.by_worker(Command::StartRequest(start)).await;
    let note = NewItem {
        attachments: vec![d.file("hidden file")],
        ..d.note("hidden note")
    };
    let word = NewItem::message(Role::Assistant, d.body("seen word"));
    let append = Command::AppendItems {
        by: d.fenced(1),
        items: vec![note, word],
        state: StatePatch::default(),
        task_state: Some(d.body("hidden private state")),
    };
    d.by_worker(append).await;
    let child = StartRequest {
        input: d.body("hidden question"),
        ..d.spawn(1, "booker")
    };
    d.by_worker(Command::StartRequest(child)).await;
    let error = d.body("hidden error");
    let (by, cancel_children) = (d.fenced(2), false);
    let fail = Command::FailRequest {
        by,
        error,
        cancel_children,
    };
    d.by_worker(fail).await;
    let mut ask = d.question(1, None);
    if let Command::OpenHold { hold, .. } = &mut ask {
        hold.body = d.body("hidden question of a hold");
    }
    d.by_worker(ask).await;
    let mut answer = d.decision(1, DecisionKind::Respond);
    if let Command::DecideHold { decision, .. } = &mut answer {
        decision.body = Some(d.body("hidden answer"));
    }
    d.ok(&d.client(), answer).await;
    let mut done = d.complete(1);
    if let Command::CompleteRequest { output, .. } = &mut done {
        *output = Output {
            attachments: vec![d.file("seen ticket")],
            ..d.output("seen answer")
        };
    }
    d.by_worker(done).await;
    d
}

/// What clients see of the n-th session that was told.
fn seen(n: u64) -> BTreeSet<String> {
    let mut seen = texts(&[
        r#"{"seen":1}"#,
        r#""seen value""#,
        r#""seen de""#,
        "seen question",
        "seen map",
        "seen word",
        "seen answer",
        "seen ticket",
    ]);
    seen.insert(format!("seen name {n}"));
    seen
}

pub(super) async fn expiry_removes_hidden_payloads_and_keeps_their_digests(store: Arc<dyn Store>) {
    let mut driver = told(&store, 1).await;
    let mut other = told(&store, 2).await;
    let task = driver.tasks[0];
    let state = store.task_state(task).await.expect(HEALTHY);
    assert_eq!(state.as_deref(), Some(&b"hidden private state"[..]));
    driver.live_for(Some((TtlMode::Sliding, 5_000))).await;
    driver.expire().await;
    assert_eq!(store.task_state(task).await.expect(HEALTHY), None);
    erase(&store, 100).await;
    assert_eq!(left(&driver).await, seen(1));
    assert_eq!(left(&other).await, ever(&other), "another session has all");
    require_records(&driver).await;
    for stored in history::all(&driver, None).await {
        let is_seen = |body: &Vec<u8>| body.starts_with(b"seen");
        let bodies = || std::iter::once(&stored.body).chain(&stored.attachments);
        let is_hidden = stored.placed.item.visibility == statehold_core::item::Visibility::Hidden;
        for body in bodies() {
            assert_eq!(body.is_none(), is_hidden, "{stored:?}");
            assert!(body.as_ref().is_none_or(is_seen), "{stored:?}");
        }
    }
    let kept = values(&driver).await;
    assert_eq!(kept.len(), 1, "what clients read stays: {kept:?}");
    let kept = store.session(driver.session()).await.expect(HEALTHY);
    let kept = kept.expect("it is there");
    assert_eq!(kept.name.as_deref(), Some("seen name 1"));
    assert_eq!(kept.labels.as_deref(), Some(r#"{"seen":1}"#));
    other.turn("planner").await;
    assert_eq!(erase(&store, 100).await, 1, "there is nothing left to do");
}

pub(super) async fn deletion_removes_every_payload_with_name_labels_and_state(
    store: Arc<dyn Store>,
) {
    let mut driver = told(&store, 1).await;
    let other = told(&store, 2).await;
    driver.run("writer", 600_000).await;
    let before = Picture::of(&*store, &[&other]).await;
    driver.delete_session().await;
    let gone = store.session(driver.session()).await.expect(HEALTHY);
    let gone = gone.expect("its records are there");
    assert_eq!((gone.name, gone.labels), (None, None), "at once");
    assert_eq!(values(&driver).await, [], "at once");
    for task in &driver.tasks {
        assert_eq!(store.task_state(*task).await.expect(HEALTHY), None);
    }
    erase(&store, 100).await;
    assert_eq!(left(&driver).await, texts(&[]));
    require_records(&driver).await;
    for stored in history::all(&driver, None).await {
        assert_eq!(stored.body, None);
        assert!(stored.attachments.iter().all(Option::is_none));
    }
    for revision in 0..=driver.state.revision {
        let key = super::fixture::key("topic");
        let value = store.state_at(driver.session(), key, revision).await;
        assert_eq!(value.expect(HEALTHY), None, "at revision {revision}");
    }
    let mut after = Picture::of(&*store, &[&other]).await;
    assert!(after.same_sessions(&before), "another session has all");
    after.forget_due();
    let tongue = shared::value(&store, &owner(), "user:tongue").await;
    assert!(tongue.is_some(), "the value of the user stays");
}

/// A turn that leaves a hidden note and a visible answer, which begin like this.
async fn whisper(driver: &mut Driver, n: usize) {
    driver.run("planner", 600_000).await;
    let at = driver.requests.len();
    let append = Command::AppendItems {
        by: driver.fenced(at),
        items: vec![driver.note(format!("hidden whisper {n}"))],
        state: StatePatch::default(),
        task_state: Some(driver.body(format!("hidden state {n}"))),
    };
    driver.by_worker(append).await;
    let mut done = driver.complete(at);
    if let Command::CompleteRequest { output, .. } = &mut done {
        *output = driver.output(&format!("seen whisper {n}"));
    }
    driver.by_worker(done).await;
}

fn hidden(texts: &BTreeSet<String>) -> BTreeSet<String> {
    let hidden = texts.iter().filter(|text| text.starts_with("hidden"));
    hidden.cloned().collect()
}

fn shown(texts: &BTreeSet<String>) -> BTreeSet<String> {
    texts.difference(&hidden(texts)).cloned().collect()
}

/// The hidden payloads that a session still shows, by any route: records, items of now and of then, the transcript,
/// memories of the next turn, private states.
async fn hidden_shown(driver: &Driver) -> BTreeSet<String> {
    let (store, session) = (&driver.store, driver.session());
    let mut found = left(driver).await;
    let (limit, before) = (PageLimit::entries(1_000), None);
    let mut items = history::all(driver, None).await;
    let tasks = driver.tasks.iter().chain(driver.state.tasks.keys());
    for task in tasks {
        items.extend(history::all(driver, Some(*task)).await);
        let state = store.task_state(*task).await.expect(HEALTHY);
        found.extend(state.map(|state| String::from_utf8_lossy(&state).into_owned()));
    }
    items.extend(
        store
            .transcript(session, before, limit)
            .await
            .expect(HEALTHY)
            .0,
    );
    for revision in 1..=driver.state.revision {
        let query = PastItemQuery {
            revision,
            view: View::Trace,
            before,
            limit,
        };
        items.extend(store.items_at(session, query).await.expect(HEALTHY).0);
    }
    for (path, memory) in &*driver.state.memories {
        let query = MemoryQuery {
            path: path.clone(),
            memory: Some(*memory),
            reader: None,
            exchanges: 1_000,
            bytes: 1 << 30,
        };
        let page = store.memory(session, query).await.expect(HEALTHY);
        let states = page.exchanges.iter().map(|exchange| &exchange.task_state);
        let states = states.chain([&page.task_state]).flatten();
        found.extend(states.map(|state| String::from_utf8_lossy(state).into_owned()));
        let exchanges = page.exchanges.into_iter();
        items.extend(exchanges.flat_map(|exchange| exchange.items));
    }
    let bodies = items
        .iter()
        .flat_map(|stored| std::iter::once(&stored.body).chain(&stored.attachments))
        .flatten();
    found.extend(bodies.map(|body| String::from_utf8_lossy(body).into_owned()));
    hidden(&found)
}

pub(super) async fn hidden_payloads_of_a_session_that_goes_on_are_removed_again_and_again(
    store: Arc<dyn Store>,
) {
    let mut driver = told(&store, 1).await;
    let other = told(&store, 2).await;
    driver.keep_hidden_for(5_000).await;
    for n in 0..3 {
        whisper(&mut driver, n).await;
        let before = left(&driver).await;
        assert!(before.contains(&format!("hidden whisper {n}")));
        driver.erase_hidden().await;
        let task = *driver.tasks.last().expect("it has tasks");
        assert_eq!(store.task_state(task).await.expect(HEALTHY), None);
        // More is said before the payloads are gone.
        whisper(&mut driver, n + 10).await;
        erase(&store, 2).await;
        let after = left(&driver).await;
        let fresh = [
            format!("hidden whisper {}", n + 10),
            format!("hidden state {}", n + 10),
        ];
        assert_eq!(hidden(&after), BTreeSet::from(fresh));
        let is_seen = |text: &&String| !text.starts_with("hidden");
        assert!(
            before
                .iter()
                .filter(is_seen)
                .all(|text| after.contains(text))
        );
        require_records(&driver).await;
    }
    assert_eq!(left(&other).await, ever(&other), "another session has all");
}

pub(super) async fn an_erasure_goes_back_to_the_one_before_it_and_no_further(
    store: Arc<dyn Store>,
) {
    let mut driver = told(&store, 1).await;
    driver.keep_hidden_for(5_000).await;
    for n in 0..40 {
        whisper(&mut driver, n).await;
    }
    driver.erase_hidden().await;
    erase(&store, 1).await;
    whisper(&mut driver, 40).await;
    driver.erase_hidden().await;
    let steps = erase(&store, 1).await;
    assert!(steps <= 6, "{steps} steps for four records");
    assert_eq!(hidden(&left(&driver).await), texts(&[]));
    // One that is not finished is finished by the next.
    for n in 41..61 {
        whisper(&mut driver, n).await;
    }
    driver.erase_hidden().await;
    for _ in 0..3 {
        let is_more = store.erase_some(PageLimit::entries(1)).await;
        is_more.expect(HEALTHY);
    }
    whisper(&mut driver, 61).await;
    driver.erase_hidden().await;
    erase(&store, 1).await;
    assert_eq!(hidden(&left(&driver).await), texts(&[]));
    require_records(&driver).await;
}

pub(super) async fn hidden_payloads_go_when_no_session_that_shares_them_needs_them(
    store: Arc<dyn Store>,
) {
    for (n, is_origin_deleted) in [(10, false), (20, true)] {
        let mut driver = told(&store, n).await;
        driver.keep_hidden_for(5_000).await;
        let mut fork = driver.fork(n + 1, driver.state.revision).await;
        let mut second = fork.fork(n + 2, 5).await;
        whisper(&mut fork, 1).await;
        whisper(&mut driver, 2).await;
        driver.erase_hidden().await;
        assert_eq!(hidden_shown(&driver).await, texts(&[]), "at once");
        if is_origin_deleted {
            driver.delete_session().await;
        }
        erase(&store, 2).await;
        assert_eq!(
            left(&fork).await,
            ever(&fork),
            "the fork needs what it shares"
        );
        fork.erase_hidden().await;
        assert_eq!(hidden_shown(&fork).await, texts(&[]), "at once");
        erase(&store, 2).await;
        assert_eq!(
            left(&second).await,
            ever(&second),
            "the second needs its part"
        );
        assert!(!hidden_shown(&second).await.is_empty());
        for driver in [&driver, &fork] {
            assert_eq!(hidden_shown(driver).await, texts(&[]), "and no other");
        }
        second.keep_hidden_for(5_000).await;
        second.erase_hidden().await;
        erase(&store, 2).await;
        for driver in [&driver, &fork, &second] {
            assert_eq!(hidden(&left(driver).await), texts(&[]));
            require_records(driver).await;
        }
        let shown = left(&fork).await;
        assert!(shown.contains("seen question") && shown.contains("seen whisper 1"));
    }
}

pub(super) async fn hidden_payloads_that_a_fork_removed_stay_with_its_origin(
    store: Arc<dyn Store>,
) {
    let driver = told(&store, 1).await;
    let mut fork = driver.fork(2, driver.state.revision).await;
    let before = Picture::of(&*store, &[&driver]).await;
    whisper(&mut fork, 1).await;
    fork.keep_hidden_for(5_000).await;
    fork.erase_hidden().await;
    for _ in 0..2 {
        assert_eq!(hidden_shown(&fork).await, texts(&[]));
        assert_eq!(left(&driver).await, ever(&driver));
        let after = Picture::of(&*store, &[&driver]).await;
        assert!(after.same_sessions(&before), "the origin has all of it");
        erase(&store, 1).await;
    }
    whisper(&mut fork, 2).await;
    let own = texts(&["hidden whisper 2", "hidden state 2"]);
    assert_eq!(
        hidden_shown(&fork).await,
        own,
        "and what it says from now on"
    );
    require_records(&fork).await;
}

pub(super) async fn a_fork_begins_without_what_was_removed_from_its_origin(store: Arc<dyn Store>) {
    for (n, is_expired) in [(10, false), (20, true)] {
        let mut driver = told(&store, n).await;
        whisper(&mut driver, 1).await;
        let until = driver.state.revision;
        // It needs the bytes, so they stay.
        let mut first = driver.fork(n + 1, until).await;
        if is_expired {
            driver.live_for(Some((TtlMode::Fixed, 5_000))).await;
            driver.expire().await;
        } else {
            driver.keep_hidden_for(5_000).await;
            driver.erase_hidden().await;
        }
        let mut forks = Vec::new();
        for (n, at) in (n + 2..).zip([3, 8, until, driver.state.revision]) {
            forks.push(driver.fork(n, at).await);
        }
        forks.push(forks[2].fork(n + 6, 8).await);
        forks.push(forks[3].fork(n + 7, forks[3].state.revision).await);
        for fork in &mut forks {
            assert_eq!(hidden_shown(fork).await, texts(&[]));
            whisper(fork, 3).await;
            let own = texts(&["hidden whisper 3", "hidden state 3"]);
            assert_eq!(hidden_shown(fork).await, own);
            require_records(fork).await;
        }
        erase(&store, 1).await;
        assert_eq!(left(&first).await, ever(&first), "it keeps all of it");
        first.delete_session().await;
        erase(&store, 1).await;
        for fork in &mut forks {
            let own = texts(&["hidden whisper 3", "hidden state 3"]);
            assert_eq!(hidden_shown(fork).await, own);
            fork.keep_hidden_for(5_000).await;
            fork.erase_hidden().await;
            assert_eq!(hidden_shown(fork).await, texts(&[]));
        }
        erase(&store, 1).await;
        require_records(&driver).await;
    }
}

pub(super) async fn a_fork_of_a_fork_has_nothing_that_either_of_them_removed(
    store: Arc<dyn Store>,
) {
    for (n, is_expired) in [(100, false), (200, true)] {
        let driver = told(&store, n).await;
        let until = driver.state.revision;
        let mut middle = driver.fork(n + 1, until).await;
        whisper(&mut middle, 1).await;
        let mut inner = middle.fork(n + 2, middle.state.revision).await;
        let before = inner.fork(n + 3, until).await;
        if is_expired {
            middle.live_for(Some((TtlMode::Fixed, 5_000))).await;
            middle.expire().await;
        } else {
            middle.keep_hidden_for(5_000).await;
            middle.erase_hidden().await;
        }
        let mut next = n + 10;
        for _ in 0..2 {
            // What the middle one shares with the first is gone for its forks, though the first has it.
            require_forks_without_hidden(&middle, &mut next, &[3, 8, until]).await;
            erase(&store, 1).await;
            assert_eq!(left(&driver).await, ever(&driver), "the first has all");
            assert_eq!(left(&inner).await, ever(&inner), "and an earlier fork");
        }
        next += 2;
        let through = inner.fork(next, until).await;
        assert_eq!(left(&through).await, ever(&through), "nothing was removed");
        inner.keep_hidden_for(5_000).await;
        inner.erase_hidden().await;
        let own = until + 2;
        for _ in 0..2 {
            require_forks_without_hidden(&inner, &mut next, &[3, until, own]).await;
            erase(&store, 1).await;
        }
        for driver in [&driver, &before, &through] {
            assert_eq!(left(driver).await, ever(driver), "earlier ones have all");
        }
    }
}

/// Forks a session at some revisions, and each fork again, and finds no hidden payload in any.
async fn require_forks_without_hidden(driver: &Driver, next: &mut u64, places: &[u64]) {
    for at in places {
        *next += 2;
        let mut late = driver.fork(*next, *at).await;
        assert_eq!(hidden_shown(&late).await, texts(&[]), "at {at}");
        whisper(&mut late, 3).await;
        let again = late.fork(*next + 1, *at).await;
        assert_eq!(hidden_shown(&again).await, texts(&[]), "again at {at}");
        let own = texts(&["hidden whisper 3", "hidden state 3"]);
        assert_eq!(hidden_shown(&late).await, own);
        require_records(&late).await;
        require_records(&again).await;
    }
}

pub(super) async fn a_fork_keeps_what_its_origin_removes_after_it_and_no_more(
    store: Arc<dyn Store>,
) {
    for (n, is_early_first) in [(10, true), (20, false)] {
        let mut driver = told(&store, n).await;
        driver.keep_hidden_for(5_000).await;
        let mut early = driver.fork(n + 1, driver.state.revision).await;
        driver.erase_hidden().await;
        whisper(&mut driver, 1).await;
        let mut late = driver.fork(n + 2, driver.state.revision).await;
        whisper(&mut driver, 2).await;
        driver.erase_hidden().await;
        let of_late = texts(&["hidden whisper 1", "hidden state 1"]);
        for _ in 0..2 {
            assert_eq!(hidden_shown(&driver).await, texts(&[]));
            assert_eq!(hidden_shown(&late).await, of_late);
            assert_eq!(left(&early).await, ever(&early));
            erase(&store, 1).await;
        }
        if is_early_first {
            early.delete_session().await;
            erase(&store, 1).await;
            assert_eq!(hidden_shown(&late).await, of_late);
            late.erase_hidden().await;
        } else {
            late.erase_hidden().await;
            erase(&store, 1).await;
            assert_eq!(left(&early).await, ever(&early));
            early.erase_hidden().await;
        }
        erase(&store, 1).await;
        for driver in [&driver, &early, &late] {
            assert_eq!(hidden_shown(driver).await, texts(&[]));
            require_records(driver).await;
        }
        driver.delete_session().await;
        late.delete_session().await;
        erase(&store, 1).await;
        assert_eq!(left(&driver).await.is_empty(), is_early_first);
    }
}

pub(super) async fn a_session_without_its_hidden_payloads_can_be_deleted(store: Arc<dyn Store>) {
    let mut driver = told(&store, 1).await;
    driver.keep_hidden_for(5_000).await;
    driver.erase_hidden().await;
    whisper(&mut driver, 1).await;
    let mut fork = driver.fork(2, driver.state.revision).await;
    driver.delete_session().await;
    erase(&store, 2).await;
    assert!(
        left(&fork).await.contains("hidden whisper 1"),
        "it is shared"
    );
    fork.delete_session().await;
    erase(&store, 2).await;
    assert_eq!(left(&driver).await, texts(&[]));
    assert_eq!(left(&fork).await, texts(&[]));
}

pub(super) async fn an_expired_session_can_be_deleted(store: Arc<dyn Store>) {
    for (n, is_erased_between) in [(1, true), (2, false)] {
        let mut driver = told(&store, n).await;
        driver.live_for(Some((TtlMode::Fixed, 5_000))).await;
        driver.expire().await;
        if is_erased_between {
            erase(&store, 100).await;
        } else {
            store
                .erase_some(PageLimit::entries(1))
                .await
                .expect(HEALTHY);
        }
        driver.delete_session().await;
        erase(&store, 100).await;
        assert_eq!(left(&driver).await, texts(&[]));
        require_records(&driver).await;
    }
}

pub(super) async fn payloads_are_removed_in_small_steps(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for n in 1..=3 {
        let mut driver = told(&store, n).await;
        for _ in 0..8 {
            driver.turn("planner").await;
        }
        drivers.push(driver);
    }
    let mut other = Driver::begin(&store, 4).await;
    drivers[0].delete_session().await;
    drivers[1].live_for(Some((TtlMode::Fixed, 5_000))).await;
    drivers[1].expire().await;
    let mut before = usize::MAX;
    for step in 0.. {
        assert!(step < STEPS_MAX, "removing payloads does not end");
        let is_more = store
            .erase_some(PageLimit::entries(1))
            .await
            .expect(HEALTHY);
        if step == 3 {
            drivers[2].delete_session().await;
            before = usize::MAX;
        }
        // Others go on in between.
        other.turn("planner").await;
        let mut count = 0;
        for driver in &drivers {
            let records = records(driver).await;
            let bodies = records.iter().flat_map(|stored| &stored.bodies);
            count += bodies.flatten().count();
        }
        assert!(count <= before, "nothing comes back");
        before = count;
        if !is_more && step > 3 {
            break;
        }
    }
    assert_eq!(left(&drivers[0]).await, texts(&[]));
    let mut expected = seen(2);
    expected.extend((1..=10).map(|n| format!("question {n}")));
    expected.insert("answer".to_owned());
    let found = left(&drivers[1]).await;
    assert!(found.is_subset(&expected), "{found:?}");
    assert!(found.is_superset(&seen(2)), "{found:?}");
    assert_eq!(left(&drivers[2]).await, texts(&[]));
    for driver in &drivers {
        require_records(driver).await;
    }
    assert_eq!(left(&other).await, ever(&other));
}

pub(super) async fn a_living_fork_keeps_the_payloads_that_it_shares(store: Arc<dyn Store>) {
    let mut driver = told(&store, 1).await;
    let at = 3;
    let mut fork = driver.fork(2, at).await;
    fork.turn("planner").await;
    let before = Picture::of(&*store, &[&fork]).await;
    driver.delete_session().await;
    erase(&store, 100).await;
    let after = Picture::of(&*store, &[&fork]).await;
    assert!(after.same_sessions(&before), "the fork has all of it");
    assert_eq!(left(&fork).await, ever(&fork));
    let shared = shown(&ever(&driver.at(at)));
    assert_eq!(left(&driver).await, shared, "nothing more");
    fork.delete_session().await;
    erase(&store, 100).await;
    assert_eq!(left(&fork).await, texts(&[]));
    assert_eq!(left(&driver).await, texts(&[]));
    require_records(&fork).await;
    require_records(&driver).await;
}

pub(super) async fn a_deleted_fork_leaves_its_origin_alone(store: Arc<dyn Store>) {
    let driver = told(&store, 1).await;
    let mut fork = driver.fork(2, 4).await;
    fork.turn("planner").await;
    let before = Picture::of(&*store, &[&driver]).await;
    fork.delete_session().await;
    erase(&store, 100).await;
    let after = Picture::of(&*store, &[&driver]).await;
    assert!(after.same_sessions(&before), "the origin has all of it");
    assert_eq!(left(&driver).await, ever(&driver));
    let shared = shown(&ever(&driver.at(4)));
    assert_eq!(left(&fork).await, shared, "what is left is the origin's");
}

pub(super) async fn a_fork_of_a_fork_keeps_what_both_origins_removed(store: Arc<dyn Store>) {
    for is_first_first in [true, false] {
        let n = if is_first_first { 10 } else { 20 };
        let mut first = told(&store, n).await;
        let mut second = first.fork(n + 1, 5).await;
        second.turn("planner").await;
        // One copy begins in what the second has from the first, one in what is the second's own.
        let inherited = second.fork(n + 2, 3).await;
        let own = second.fork(n + 3, 7).await;
        let order = if is_first_first {
            [&mut first, &mut second]
        } else {
            [&mut second, &mut first]
        };
        for driver in order {
            driver.delete_session().await;
            erase(&store, 2).await;
        }
        for mut fork in [own, inherited] {
            assert_eq!(left(&fork).await, ever(&fork), "a living session has all");
            require_records(&fork).await;
            fork.delete_session().await;
            erase(&store, 2).await;
            assert_eq!(left(&fork).await.len(), left(&fork.at(3)).await.len());
        }
        assert_eq!(left(&first).await, texts(&[]), "nobody shares it any more");
        assert_eq!(left(&second).await, texts(&[]));
    }
}

pub(super) async fn a_deleted_fork_lets_an_expired_origin_go_on(store: Arc<dyn Store>) {
    let mut driver = told(&store, 1).await;
    driver.live_for(Some((TtlMode::Fixed, 5_000))).await;
    let mut fork = driver.fork(2, 8).await;
    driver.expire().await;
    erase(&store, 100).await;
    assert_eq!(left(&fork).await, ever(&fork), "it shares the hidden ones");
    fork.delete_session().await;
    erase(&store, 100).await;
    assert_eq!(left(&driver).await, seen(1), "nobody shares them any more");
}

pub(super) async fn a_fork_has_nothing_that_was_removed_before(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 600_000).await;
    for value in ["hidden one", "hidden two", "hidden three"] {
        let remember = driver.remember(1, value);
        driver.by_worker(remember).await;
    }
    let first = driver.fork(2, 3).await;
    driver.live_for(Some((TtlMode::Fixed, 5_000))).await;
    driver.expire().await;
    erase(&store, 100).await;
    let state = async |task| store.task_state(task).await.expect(HEALTHY);
    assert_eq!(
        state(first.tasks[0]).await.as_deref(),
        Some(&b"hidden one"[..])
    );
    let second = driver.fork(3, 5).await;
    assert_eq!(
        state(second.tasks[0]).await,
        None,
        "not an older one either"
    );
    let third = driver.fork(4, 3).await;
    assert_eq!(
        state(third.tasks[0]).await,
        None,
        "although the first fork has kept it"
    );
    let last = driver.fork(5, driver.state.revision).await;
    assert_eq!(left(&last).await, left(&driver).await);
    for fork in [first, second, third, last] {
        require_records(&fork).await;
    }
}

pub(super) async fn a_deleted_session_cannot_be_forked(store: Arc<dyn Store>) {
    let mut driver = told(&store, 1).await;
    driver.delete_session().await;
    for (n, at) in (2..).zip([1, 4, driver.state.revision - 1]) {
        let mut fork = driver.at(at);
        fork.diverge(n);
        let command = Command::Fork {
            session: session(n),
            through: None,
        };
        let refused = fork.send(&fork.client(), command).await;
        assert!(
            matches!(refused, Err(Refusal::Store(StoreError::Conflict { .. }))),
            "{refused:?}"
        );
        assert_eq!(store.load(session(n)).await.expect(HEALTHY), None);
    }
    erase(&store, 100).await;
    assert_eq!(left(&driver).await, texts(&[]));
}

/// Appends a note that is kept as a blob; returns it.
async fn append_long(driver: &mut Driver, fill: u8, times: usize) -> Vec<u8> {
    let long = vec![fill; 70_000];
    let items = (0..times).map(|_| driver.note(&long)).collect();
    let append = driver.append(1, items);
    driver.by_worker(append).await;
    long
}

async fn has(driver: &Driver, payload: &[u8]) -> bool {
    let items = history::all(driver, None).await;
    let mut bodies = items.iter().filter_map(|stored| stored.body.as_deref());
    bodies.any(|body| body == payload)
}

pub(super) async fn a_long_payload_stays_as_long_as_a_session_has_it(store: Arc<dyn Store>) {
    let mut drivers = Vec::new();
    for (n, owner) in [owner(), owner(), owner_of("north", "shop", 2), owner()]
        .into_iter()
        .enumerate()
    {
        let mut driver = Driver::begin_for(&store, owner, n as u64 + 1).await;
        driver.run("planner", 600_000).await;
        // Twice in one record, and once more in another.
        append_long(&mut driver, b'x', 2).await;
        append_long(&mut driver, b'x', 1).await;
        append_long(&mut driver, b'a' + u8::try_from(n).expect("a few"), 1).await;
        drivers.push(driver);
    }
    let (shared, own) = (vec![b'x'; 70_000], vec![b'a'; 70_000]);
    drivers[0].delete_session().await;
    erase(&store, 1).await;
    assert!(!has(&drivers[0], &shared).await && !has(&drivers[0], &own).await);
    for driver in &drivers[1..] {
        assert!(has(driver, &shared).await, "somebody else has it");
        assert_eq!(left(driver).await, ever(driver));
    }
    drivers[1].live_for(Some((TtlMode::Fixed, 5_000))).await;
    drivers[1].expire().await;
    erase(&store, 1).await;
    assert!(!has(&drivers[1], &shared).await);
    assert_eq!(left(&drivers[3]).await, ever(&drivers[3]));
    append_long(&mut drivers[3], b'a', 1).await;
    assert!(
        has(&drivers[3], &own).await,
        "what was removed can come again"
    );
    drivers[3].delete_session().await;
    erase(&store, 100).await;
    assert_eq!(left(&drivers[3]).await, texts(&[]));
    assert_eq!(left(&drivers[2]).await, ever(&drivers[2]), "another user");
}

/// Lengths of payloads that are stored once: in a row of the log, and beside it in parts and whole.
const SHARED_BYTES: [usize; 4] = [700, 1_500, 3_900, 20_000];

/// A turn in which an agent answers another, which passes the answer on; returns the revision that has the
/// answer once.
async fn pass_on(driver: &mut Driver, answer: &[u8]) -> u64 {
    let question = driver.leased("planner");
    driver.by_worker(Command::StartRequest(question)).await;
    let asked = driver.requests.len();
    let child = driver.spawn(asked, "booker");
    driver.by_worker(Command::StartRequest(child)).await;
    let mut once = 0;
    for request in [asked + 1, asked] {
        let mut done = driver.complete(request);
        if let Command::CompleteRequest { output, .. } = &mut done {
            output.body = driver.body(answer);
        }
        let revision = driver.by_worker(done).await;
        if request != asked {
            once = revision;
        }
    }
    once
}

/// How often a payload is read in visible and in hidden places of a session, by all routes.
async fn found(store: &dyn Store, session: SessionId, payload: &[u8]) -> [usize; 2] {
    let is_it = |body: &Option<Vec<u8>>| body.as_deref() == Some(payload);
    let mut found = [0, 0];
    let query = ItemQuery {
        limit: PageLimit::entries(1_000),
        task: None,
        before: None,
    };
    let mut items = store.items(session, query).await.expect(HEALTHY).0;
    let told = store
        .transcript(session, None, PageLimit::entries(1_000))
        .await
        .expect(HEALTHY);
    items.extend(told.0);
    let state = store.load(session).await.expect(HEALTHY);
    for (path, memory) in &*state.expect("a session").memories {
        let query = MemoryQuery {
            path: path.clone(),
            memory: Some(*memory),
            reader: None,
            exchanges: 1_000,
            bytes: 1 << 30,
        };
        let page = store.memory(session, query).await.expect(HEALTHY);
        items.extend(
            page.exchanges
                .into_iter()
                .flat_map(|exchange| exchange.items),
        );
    }
    for stored in items.iter().filter(|stored| is_it(&stored.body)) {
        found[usize::from(stored.placed.item.visibility == Visibility::Hidden)] += 1;
    }
    for stored in store
        .records(session, 0, PageLimit::entries(1_000))
        .await
        .expect(HEALTHY)
    {
        let events = stored.record.content.events.iter();
        let hidden = events.flat_map(|event| event.erased(ErasedPayloads::Hidden));
        for (_, is_hidden) in stored
            .bodies
            .iter()
            .zip(hidden)
            .filter(|(body, _)| is_it(body))
        {
            found[usize::from(is_hidden)] += 1;
        }
    }
    found
}

pub(super) async fn an_answer_that_was_passed_on_outlives_the_hidden_one(store: Arc<dyn Store>) {
    for (n, bytes) in (1..).zip(SHARED_BYTES) {
        let mut driver = Driver::begin(&store, n).await;
        let answers = [noise(bytes), noise(bytes + 1)];
        for answer in [&answers[0], &answers[1], &answers[0]] {
            pass_on(&mut driver, answer).await;
        }
        assert_eq!(left(&driver).await, ever(&driver));
        for answer in &answers {
            let [visible, hidden] = found(&*store, driver.session(), answer).await;
            assert!(visible > 0 && hidden > 0);
        }
        driver.live_for(Some((TtlMode::Fixed, 5_000))).await;
        driver.expire().await;
        let mut is_more = true;
        while is_more {
            is_more = store
                .erase_some(PageLimit::entries(1))
                .await
                .expect(HEALTHY);
            for answer in &answers {
                let [visible, _] = found(&*store, driver.session(), answer).await;
                assert!(visible > 0, "clients see it all the time");
            }
        }
        for answer in &answers {
            let [_, hidden] = found(&*store, driver.session(), answer).await;
            assert_eq!(hidden, 0, "{bytes} bytes");
        }
        require_records(&driver).await;
        driver.delete_session().await;
        erase(&store, 1).await;
        assert_eq!(left(&driver).await, texts(&[]));
        require_records(&driver).await;
    }
}

pub(super) async fn a_fork_between_an_answer_and_its_passing_on_keeps_what_it_shares(
    store: Arc<dyn Store>,
) {
    for (n, bytes) in [10, 20, 30, 40].into_iter().zip(SHARED_BYTES) {
        for (n, is_deleted) in [(n, true), (n + 5, false)] {
            let mut driver = Driver::begin(&store, n).await;
            let answer = noise(bytes);
            let once = pass_on(&mut driver, &answer).await;
            driver.live_for(Some((TtlMode::Fixed, 5_000))).await;
            let mut between = driver.fork(n + 1, once).await;
            let mut after = driver.fork(n + 2, once + 1).await;
            for fork in [&mut between, &mut after] {
                // The same answer again, in a session of its own.
                pass_on(fork, &answer).await;
                assert_eq!(left(fork).await, ever(fork));
            }
            if is_deleted {
                driver.delete_session().await;
            } else {
                driver.expire().await;
            }
            for fork in [after, between] {
                erase(&store, 1).await;
                assert_eq!(left(&fork).await, ever(&fork), "a living session has all");
                let mut fork = fork;
                fork.delete_session().await;
            }
            erase(&store, 1).await;
            let [visible, hidden] = found(&*store, driver.session(), &answer).await;
            assert_eq!(hidden, 0, "nobody shares it any more");
            assert_eq!(visible > 0, !is_deleted, "{bytes} bytes");
            for fork in [n + 1, n + 2] {
                let [visible, hidden] = found(&*store, session(fork), &answer).await;
                assert_eq!(
                    hidden, 0,
                    "what a fork shares with an expired origin is visible"
                );
                assert!(visible == 0 || !is_deleted);
            }
            require_records(&driver).await;
        }
    }
}

pub(super) async fn no_reader_finds_a_shared_payload_that_was_removed(store: Arc<dyn Store>) {
    const READERS: usize = 64;
    for (n, is_deleted, is_forked) in [(1, false, false), (2, true, false), (3, false, true)] {
        let mut driver = Driver::begin(&store, n).await;
        let answers = SHARED_BYTES.map(noise);
        for answer in &answers {
            pass_on(&mut driver, answer).await;
        }
        if is_forked {
            // It needs the bytes, so they stay.
            driver.fork(n + 1, driver.state.revision).await;
        }
        driver.live_for(Some((TtlMode::Fixed, 5_000))).await;
        let (of, is_removed) = (driver.session(), AtomicBool::new(false));
        let read = || async {
            loop {
                let was_removed = is_removed.load(Ordering::SeqCst);
                for answer in &answers {
                    let [visible, hidden] = found(&*store, of, answer).await;
                    assert!(visible > 0 || is_deleted, "clients see it all the time");
                    assert!(!was_removed || hidden == 0, "it was removed");
                    assert!(
                        !was_removed || visible == 0 || !is_deleted,
                        "it was removed"
                    );
                }
                if was_removed {
                    break;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| block_on(read()));
            }
            block_on(async {
                if is_deleted {
                    driver.delete_session().await;
                } else {
                    driver.expire().await;
                }
                erase(&store, 1).await;
            });
            is_removed.store(true, Ordering::SeqCst);
        });
    }
}

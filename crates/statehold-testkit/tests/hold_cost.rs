//! What a pause costs, counted: one record opens a hold and one decides it at any depth, and what the
//! store does grows with the ancestors whose status changes, and with nothing else.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use statehold_core::command::{Command, Fenced};
use statehold_core::limits::DEPTH_MAX;
use statehold_core::principal::Actor;
use statehold_core::record::Event;
use statehold_model::fixtures;
use statehold_store::Store;
use statehold_store::sqlite::{Meter, SqliteOptions, SqliteStore};
use statehold_testkit::workload::{Client, ClientKeys, session_id};

/// Other sessions that wait as well: they must not matter.
const OTHERS: u64 = 200;

/// What one command did.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Tasks whose status changed.
    tasks: usize,
    /// Rows of the projections that are written: tasks, requests and holds.
    rows: usize,
    /// Instructions of the store's engine.
    steps: u64,
}

struct Counter {
    store: SqliteStore,
    meter: Arc<Meter>,
}

impl Counter {
    fn open(directory: &Path) -> Self {
        let meter = Arc::new(Meter::default());
        let options = SqliteOptions {
            meter: Some(Arc::clone(&meter)),
            sync: false,
            ..SqliteOptions::default()
        };
        let store = SqliteStore::open(directory, options).expect("the store opens");
        Self { store, meter }
    }

    async fn send(&self, client: &mut Client, command: &Command, actor: Actor) -> Cost {
        let commit = client.prepare(command, actor).expect("the core agrees");
        let events = commit.record.content.events.iter();
        let tasks = events.filter(|event| matches!(event, Event::TaskStatusChanged { .. }));
        let tasks = tasks.count();
        let changes = &commit.changes;
        let rows = changes.open_tasks.len()
            + changes.live_requests.len()
            + changes.open_holds.len()
            + changes.closed_holds.len();
        let (after, before) = (commit.after.clone(), client.state.revision);
        let steps = self.meter.steps.load(Ordering::Relaxed);
        let revision = self.store.commit(commit).await.expect("it is committed");
        assert_eq!(revision, before + 1, "one record");
        client.state = after;
        Cost {
            tasks,
            rows,
            steps: self.meter.steps.load(Ordering::Relaxed) - steps,
        }
    }

    /// Opens and decides a hold below `above` requests. The first of two pauses warms the caches.
    async fn pause(&self, above: u16, n: u64) -> (Cost, Cost) {
        let mut client = Client::new(session_id(7, n), ClientKeys::default(), n);
        let create = client.create();
        self.send(&mut client, &create, fixtures::client()).await;
        for _ in 0..=above {
            let deepest = deepest(&client);
            let start = client.descend(deepest);
            self.send(&mut client, &start, fixtures::worker(1)).await;
        }
        let by = deepest(&client).expect("somebody works");
        let mut costs = None;
        for _ in 0..2 {
            let ask = client.ask(by);
            let opened = self.send(&mut client, &ask, fixtures::worker(1)).await;
            let hold = client.state.holds.keys().next().copied();
            let approve = client.approve(hold.expect("it is open"));
            let decided = self
                .send(&mut client, &approve, fixtures::approver(1))
                .await;
            costs = Some((opened, decided));
        }
        costs.expect("there were two")
    }
}

/// The request that nobody below answers for.
fn deepest(client: &Client) -> Option<Fenced> {
    let live = client
        .state
        .requests
        .values()
        .max_by_key(|live| live.depth)?;
    Some(Fenced {
        request: live.id,
        fence: live.fence,
    })
}

#[test]
fn a_pause_costs_one_commit_and_as_much_as_it_has_ancestors() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let directory = tempfile::tempdir().expect("a directory");
        let counter = Counter::open(directory.path());
        for n in 0..OTHERS {
            counter.pause(1, 1_000 + n).await;
        }
        let mut found = Vec::new();
        for (n, above) in [1, 8, DEPTH_MAX].into_iter().enumerate() {
            let (opened, decided) = counter.pause(above, n as u64).await;
            println!("{above:>2} above: open {opened:?}, decide {decided:?}");
            for cost in [opened, decided] {
                // The task that asks, and every one above it; the request and the hold.
                assert_eq!(cost.tasks, usize::from(above) + 1);
                assert!(cost.rows <= cost.tasks + 3, "{cost:?}");
            }
            found.push((u64::from(above), opened.steps, decided.steps));
        }
        let [
            (few, open_few, decide_few),
            (some, open_some, decide_some),
            (many, open_many, decide_many),
        ] = found.as_slice()
        else {
            unreachable!("three depths")
        };
        for (what, costs) in [
            ("opening", [open_few, open_some, open_many]),
            ("deciding", [decide_few, decide_some, decide_many]),
        ] {
            let [low, middle, high] = costs.map(|cost| *cost);
            let each = (middle - low) / (some - few);
            let each_later = (high - middle) / (many - some);
            println!("{what}: {low} instructions, and {each} to {each_later} for each ancestor");
            assert!(
                each_later <= each + each / 4,
                "{what}: an ancestor costs {each} at first and {each_later} later"
            );
        }
    });
}

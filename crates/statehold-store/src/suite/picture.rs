//! Everything that a store answers about some sessions, to be compared as a whole.

use std::collections::{BTreeMap, BTreeSet};

use statehold_core::digest::Digest;
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId};
use statehold_core::projection::{ClosedHold, ClosedTask, EndedRequest};
use statehold_core::scope::{Scope, StateKey};
use statehold_core::session::SessionState;
use statehold_core::view::View;

use super::driver::Driver;
use super::fixture::{name, the_end};
use crate::{
    Answer, Due, HoldOrder, HoldQuery, HoldSummary, ItemQuery, KeyRange, MemoryPage, MemoryQuery,
    PageLimit, PastItemQuery, PastStateQuery, PastValue, SessionOrder, SessionQuery,
    SessionSummary, SharedOwner, SharedValue, StateValue, Store, StoredItem, StoredRecord,
};

/// Agents that the suite names.
const AGENTS: [&str; 6] = ["planner", "booker", "checker", "writer", "critic", "guide"];
/// The keys of the answers that the suite keeps.
const ANSWER_KEYS: [&str; 3] = ["first", "second", "third"];
const HEALTHY: &str = "the store answers";

/// What a store answers. Places are not part of it: adapters number them as they like.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Picture {
    sessions: Vec<SessionPicture>,
    requests: BTreeMap<RequestId, RequestPicture>,
    tasks: BTreeMap<TaskId, TaskPicture>,
    holds: BTreeMap<HoldId, (Option<SessionId>, Option<ClosedHold>)>,
    shared: Vec<BTreeMap<StateKey, SharedValue>>,
    lists: Vec<Lists>,
    answers: Vec<Option<Answer>>,
    due: Vec<Due>,
}

#[derive(Debug, Clone, PartialEq)]
struct SessionPicture {
    state: Option<SessionState>,
    summary: Option<SessionSummary>,
    past: Vec<Option<SessionState>>,
    records: Vec<StoredRecord>,
    items: Vec<StoredItem>,
    values: BTreeMap<StateKey, StateValue>,
    earlier_values: Vec<Option<Vec<u8>>>,
    earlier_states: Vec<BTreeMap<StateKey, StateValue>>,
    earlier_items: Vec<Vec<StoredItem>>,
    memories: Vec<MemoryPage>,
}

#[derive(Debug, Clone, PartialEq)]
struct RequestPicture {
    session: Option<SessionId>,
    ended: Option<EndedRequest>,
    holds: Vec<HoldId>,
    children: Vec<RequestId>,
}

#[derive(Debug, Clone, PartialEq)]
struct TaskPicture {
    session: Option<SessionId>,
    closed: Option<ClosedTask>,
    state: Option<Vec<u8>>,
    items: Vec<StoredItem>,
}

#[derive(Debug, Clone, PartialEq)]
struct Lists {
    sessions: Vec<SessionSummary>,
    open_holds: Vec<HoldSummary>,
    decided_holds: Vec<HoldSummary>,
    claimable: Vec<Vec<(SessionId, RequestId)>>,
}

/// The digest that stands for a key of the suite.
pub fn answer_key(text: &str) -> Digest {
    Digest::sha256(text.as_bytes())
}

impl Picture {
    /// What `store` says about the sessions of these drivers and everything they ever named.
    pub async fn of(store: &dyn Store, drivers: &[&Driver]) -> Self {
        Self::since(store, drivers, 0).await
    }

    /// The same, with the past from a revision on.
    pub async fn since(store: &dyn Store, drivers: &[&Driver], revision: u64) -> Self {
        let mut picture = Self::default();
        for driver in drivers {
            let session = picture_session(store, driver, revision).await;
            picture.sessions.push(session);
            picture.add_things(store, driver).await;
            for scope in [Scope::App, Scope::User] {
                let owner = SharedOwner::of(&driver.owner, scope);
                picture.shared.push(
                    store
                        .shared(owner, KeyRange::default(), PageLimit::entries(usize::MAX))
                        .await
                        .expect(HEALTHY)
                        .values,
                );
            }
            picture.lists.push(picture_lists(store, driver).await);
        }
        for key in ANSWER_KEYS {
            let answer = store.answer(answer_key(key)).await;
            picture.answers.push(answer.expect(HEALTHY));
        }
        let due = store.due(the_end(), None, usize::MAX >> 1).await;
        picture.due = due.expect(HEALTHY).due;
        // Things that are due in the same moment may come in any order.
        picture.due.sort_by_key(|due| (due.at, format!("{due:?}")));
        picture
    }

    /// Compares part by part, so that a failure shows the part that differs.
    #[track_caller]
    pub fn require(&self, expected: &Self, when: &str) {
        for (found, expected) in self.sessions.iter().zip(&expected.sessions) {
            assert_eq!(found.state, expected.state, "the state, {when}");
            assert_eq!(found.summary, expected.summary, "the summary, {when}");
            assert_eq!(found.records, expected.records, "the records, {when}");
            assert_eq!(found.items, expected.items, "the items, {when}");
            assert_eq!(found.values, expected.values, "the values, {when}");
            assert_eq!(
                found.earlier_values, expected.earlier_values,
                "earlier values, {when}"
            );
            assert_eq!(
                found.earlier_states, expected.earlier_states,
                "earlier states, {when}"
            );
            assert_eq!(
                found.earlier_items, expected.earlier_items,
                "earlier items, {when}"
            );
            assert_eq!(found.memories, expected.memories, "the memories, {when}");
            assert_eq!(found.past, expected.past, "earlier states, {when}");
        }
        for (id, task) in &self.tasks {
            assert_eq!(Some(task), expected.tasks.get(id), "a task, {when}");
        }
        assert_eq!(self.requests, expected.requests, "the requests, {when}");
        assert_eq!(self.holds, expected.holds, "the holds, {when}");
        assert_eq!(self.shared, expected.shared, "the shared values, {when}");
        assert_eq!(self.lists, expected.lists, "the lists, {when}");
        assert_eq!(self.answers, expected.answers, "the answers, {when}");
        assert_eq!(self.due, expected.due, "what is due, {when}");
        assert_eq!(self, expected, "{when}");
    }

    /// Leaves out what is due, which is a question about all sessions of the store.
    pub fn forget_due(&mut self) {
        self.due.clear();
    }

    /// Whether the sessions themselves are the same; shared values and lists may differ.
    pub fn same_sessions(&self, other: &Self) -> bool {
        self.sessions == other.sessions
            && self.requests == other.requests
            && self.tasks == other.tasks
            && self.holds == other.holds
    }

    async fn add_things(&mut self, store: &dyn Store, driver: &Driver) {
        for &id in &driver.requests {
            let request = RequestPicture {
                session: store.session_of_request(id).await.expect(HEALTHY),
                ended: store.ended_request(id).await.expect(HEALTHY),
                holds: store.holds_of(id).await.expect(HEALTHY),
                children: store.children_of(id).await.expect(HEALTHY),
            };
            self.requests.insert(id, request);
        }
        for &id in &driver.holds {
            let session = store.session_of_hold(id).await.expect(HEALTHY);
            let closed = store.closed_hold(id).await.expect(HEALTHY);
            self.holds.insert(id, (session, closed));
        }
        for &id in &driver.tasks {
            let query = ItemQuery {
                task: Some(id),
                before: None,
                limit: PageLimit::entries(1_000),
            };
            let task = TaskPicture {
                session: store.session_of_task(id).await.expect(HEALTHY),
                closed: store.closed_task(id).await.expect(HEALTHY),
                state: store.task_state(id).await.expect(HEALTHY),
                items: store.items(driver.session(), query).await.expect(HEALTHY).0,
            };
            self.tasks.insert(id, task);
        }
    }
}

/// The session keys at a revision, in small pages. Each has the value that a read of it alone finds.
async fn state_then(
    store: &dyn Store,
    session: SessionId,
    revision: u64,
) -> BTreeMap<StateKey, StateValue> {
    let mut found = BTreeMap::new();
    loop {
        let query = PastStateQuery {
            revision,
            after: found.keys().last().cloned(),
            limit: PageLimit::entries(2),
        };
        let page = store.past_state(session, query).await.expect(HEALTHY);
        found.extend(page.values);
        if !page.has_more {
            break;
        }
    }
    for (key, then) in &found {
        let place = vec![(key.clone(), then.version)];
        let alone = store.past_values(session, place, u64::MAX).await;
        let expected = PastValue {
            bytes: then.value.len() as u64,
            value: Some(then.value.clone()),
        };
        assert_eq!(alone.expect(HEALTHY), [Some(expected)], "{key}");
        let place = vec![(key.clone(), then.version)];
        let length = store.past_values(session, place, 0).await.expect(HEALTHY);
        let length = length[0].as_ref().map(|value| (value.bytes, &value.value));
        assert_eq!(length, Some((then.value.len() as u64, &None)), "{key}");
    }
    found
}

async fn picture_session(store: &dyn Store, driver: &Driver, since: u64) -> SessionPicture {
    let session = driver.session();
    let revision = driver.state.revision;
    let keys = driver.past.iter().flat_map(|past| past.keys.keys());
    let keys: BTreeSet<&StateKey> = keys.collect();
    let (mut past, mut earlier_values) = (Vec::new(), Vec::new());
    let (mut earlier_states, mut earlier_items) = (Vec::new(), Vec::new());
    for at in since..=revision + 1 {
        past.push(store.load_at(session, at).await.expect(HEALTHY));
        for &key in &keys {
            let value = store.state_at(session, key.clone(), at).await;
            earlier_values.push(value.expect(HEALTHY));
        }
        earlier_states.push(state_then(store, session, at).await);
        let items = PastItemQuery {
            revision: at,
            view: View::Trace,
            before: None,
            limit: PageLimit::entries(1_000),
        };
        let items = store.items_at(session, items).await;
        earlier_items.push(items.expect(HEALTHY).0);
    }
    let mut memories = Vec::new();
    for (path, memory) in driver.state.memories.iter() {
        let query = MemoryQuery {
            path: path.clone(),
            memory: Some(*memory),
            reader: None,
            exchanges: 1_000,
            bytes: u64::MAX,
        };
        memories.push(store.memory(session, query).await.expect(HEALTHY));
    }
    let query = ItemQuery {
        task: None,
        before: None,
        limit: PageLimit::entries(1_000),
    };
    let mut summary = store.session(session).await.expect(HEALTHY);
    if let Some(summary) = &mut summary {
        summary.place = 0;
    }
    SessionPicture {
        summary,
        state: store.load(session).await.expect(HEALTHY),
        past,
        records: store
            .records(session, 0, PageLimit::entries(1_000))
            .await
            .expect(HEALTHY),
        items: store.items(session, query).await.expect(HEALTHY).0,
        values: store
            .state(session, KeyRange::default(), PageLimit::entries(usize::MAX))
            .await
            .expect(HEALTHY)
            .values,
        earlier_values,
        earlier_states,
        earlier_items,
        memories,
    }
}

async fn picture_lists(store: &dyn Store, driver: &Driver) -> Lists {
    let tenant = driver.owner.tenant.clone();
    let query = SessionQuery {
        tenant: tenant.clone(),
        app: Some(driver.owner.app.clone()),
        user: Some(driver.owner.user),
        order: SessionOrder::Created,
        after: None,
        limit: 1_000,
    };
    let mut sessions = store.sessions(query).await.expect(HEALTHY);
    for summary in &mut sessions {
        summary.place = 0;
    }
    let query = HoldQuery {
        tenant: tenant.clone(),
        user: None,
        session: None,
        order: HoldOrder::Oldest,
        after: None,
        limit: 1_000,
    };
    let mut open_holds = store.open_holds(query.clone()).await.expect(HEALTHY);
    let mut decided_holds = store.decided_holds(query).await.expect(HEALTHY);
    for summary in open_holds.iter_mut().chain(&mut decided_holds) {
        (summary.place.number, summary.session.place) = (0, 0);
    }
    let mut claimable = Vec::new();
    for agent in AGENTS {
        let found = store
            .claimable(tenant.clone(), name(agent), None, None, 1_000)
            .await;
        claimable.push(found.expect(HEALTHY));
    }
    Lists {
        sessions,
        open_holds,
        decided_holds,
        claimable,
    }
}

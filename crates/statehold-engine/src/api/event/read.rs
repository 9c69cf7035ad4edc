//! Reading sessions as frameworks load them: all state and events at once, within a limit of bytes.

use std::collections::BTreeMap;

use statehold_core::command::Rejection;
use statehold_core::hold::HoldKind;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::item::{ItemKind, Role as ItemRole, Visibility};
use statehold_core::limits::COMMAND_KEYS_MAX;
use statehold_core::name::Name;
use statehold_core::scope::{Scope, StateKey};
use statehold_core::time::Timestamp;
use statehold_core::view::View;
use statehold_store::{PageLimit, SessionPlace, SessionSummary, StateValue, StoredItem};

use super::RECORDER;
use crate::answer_memory::AnswerMemory;
use crate::api::hold::{self, HoldListInput, HoldView};
use crate::api::json::{Raw, raw_bytes};
use crate::api::session::{SessionListInput, SessionView, require_lister};
use crate::api::state::{self, StateQuery, StateQueryInput};
use crate::bodies::{EventMark, ItemBody, parse, text_of};
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access;
use crate::guard::rights::{Act, works_for_session};
use crate::holds::HoldFilter;
use crate::read::{Page, own_page};

/// How many bytes of state and events an answer may have at the first try. Most have fewer.
const FIRST_TRY_BYTES: u64 = 1024 * 1024;
/// How many bytes of state and events an answer may have.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The name of the limit in errors.
const BYTES_LIMIT: &str = "bytes of state and events in one answer (read fewer events)";
/// How many items one read looks at.
const ITEMS_MAX: usize = 100_000;
/// How many items are read at a time.
const ITEMS_PAGE: usize = 200;
/// How many keys are read at a time.
const KEYS_PAGE: usize = 10_000;
/// How many open holds an answer shows.
const HOLDS_MAX: usize = 100;
/// How many of the newest items are read to find the newest event, if the task of the events is closed.
const RECENT_ITEMS: usize = 64;

/// Which events to read. The default is all.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventQuery {
    /// At most this many of the newest events.
    pub recent: Option<usize>,
    /// Only events with this time or a later one, in seconds since 1970.
    pub since: Option<f64>,
}

/// A session with its whole state and its events.
#[derive(Debug, Clone)]
pub struct SessionHistory {
    /// The session. Its revision is that of the state and the events, or an earlier one.
    pub session: SessionView,
    /// The state with that of its app and user, under full keys.
    pub state: BTreeMap<String, Raw>,
    /// In the order in which they were appended.
    pub events: Vec<EventView>,
    /// The latest time of the session's events, in seconds since 1970.
    pub last_update: f64,
    /// Open approvals, oldest first, at most 100.
    pub approvals: Vec<HoldView>,
}

/// An event, or a message that no event is about.
#[derive(Debug, Clone)]
pub struct EventView {
    /// The id that its framework gave it, or that of the item.
    pub id: String,
    /// The time that its framework gave it, or that of its commit, in seconds since 1970.
    pub time: f64,
    /// The event itself, for callers who work in the session.
    pub json: Option<Raw>,
    /// Who said what, if it is a message.
    pub message: Option<(ItemRole, String)>,
    /// The request that it is in.
    pub request: RequestId,
    /// Whether it is the message of an event that its reader sees whole: the item before it has the event.
    is_message_of_hidden: bool,
}

/// Finds a session of an app and a user by its name, or by its id if it has none.
///
/// # Errors
///
/// If there is none, or the caller may not read it.
pub async fn find(
    engine: &Engine,
    caller: &Caller,
    (app, user): (&str, &str),
    id: &str,
) -> Result<SessionId, EngineError> {
    access::require_reader(caller)?;
    let app: Name = app.parse().map_err(|_| EngineError::NotFound)?;
    let user = engine.known_user(&caller.tenant, user).await?;
    let user = user.ok_or(EngineError::NotFound)?;
    let (store, tenant) = (&engine.inner().store, caller.tenant.clone());
    let named = store.session_named(tenant, app.clone(), user, id.to_owned());
    let session = match named.await? {
        Some(summary) => summary.id,
        None => id.parse().map_err(|_| EngineError::NotFound)?,
    };
    let state = engine.readable(caller, session).await?;
    let owner = state.owner.as_ref().ok_or(EngineError::NotFound)?;
    if owner.app == app && owner.user == user {
        Ok(session)
    } else {
        Err(EngineError::NotFound)
    }
}

/// Reads a session. Callers who do not work in it see its messages only.
///
/// # Errors
///
/// If the caller may not, or state and events have too many bytes.
pub async fn read(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    query: EventQuery,
    memory: &dyn AnswerMemory,
) -> Result<SessionHistory, EngineError> {
    engine.readable(caller, session).await?;
    for bytes in [FIRST_TRY_BYTES, ANSWER_BYTES_MAX] {
        memory.take(bytes).await?;
        let mut reader = HistoryReader {
            engine,
            caller,
            left: bytes,
        };
        match reader.read(session, query).await {
            Err(EngineError::PageTooSmall { .. }) => {}
            other => return other,
        }
    }
    Err(too_large())
}

fn too_large() -> EngineError {
    let (limit, max) = (BYTES_LIMIT, ANSWER_BYTES_MAX);
    Rejection::Limit { limit, max }.into()
}

/// Reads a session without its state and events, for the answer to a write whose session is too large to show.
///
/// # Errors
///
/// If the caller may not.
pub async fn read_head(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
) -> Result<SessionHistory, EngineError> {
    let summary = engine.session(caller, session).await?;
    let reader = HistoryReader {
        engine,
        caller,
        left: 0,
    };
    reader.without_state(&summary).await
}

/// A page of sessions without their events, newest first, and the place of the next page. A page ends early where
/// the next session does not fit; one that fits no page comes without its state.
///
/// # Errors
///
/// If the caller may not list sessions.
pub async fn list(
    engine: &Engine,
    caller: &Caller,
    (app, user): (&Name, Option<&str>),
    (after, limit): (Option<SessionPlace>, usize),
    memory: &dyn AnswerMemory,
) -> Result<Page<SessionHistory, SessionPlace>, EngineError> {
    require_lister(caller)?;
    let user = match user {
        Some(name) => match engine.known_user(&caller.tenant, name).await? {
            Some(user) => Some(user),
            None => return Ok(Page::empty()),
        },
        None => None,
    };
    let filter = SessionListInput {
        app: Some(app.clone()),
        ..SessionListInput::default()
    };
    let page = engine.sessions(caller, &filter, user, after, limit).await?;
    let left = if page.entries.is_empty() {
        FIRST_TRY_BYTES
    } else {
        ANSWER_BYTES_MAX
    };
    memory.take(left).await?;
    let mut reader = HistoryReader {
        engine,
        caller,
        left,
    };
    let (mut entries, mut next) = (Vec::new(), after);
    for summary in &page.entries {
        match reader.without_events(summary).await {
            Ok(history) => entries.push(history),
            Err(EngineError::PageTooSmall { .. }) if !entries.is_empty() => {
                return Ok(Page { entries, next });
            }
            // A session whose state is too large for an answer must not hide those behind it.
            Err(EngineError::PageTooSmall { .. }) => {
                entries.push(reader.without_state(summary).await?);
            }
            // Deleted meanwhile.
            Err(EngineError::NotFound) => {}
            Err(error) => return Err(error),
        }
        next = Some(summary.list_place());
    }
    let next = page.next;
    Ok(Page { entries, next })
}

/// The state of a user in an app, under keys without their prefix. Empty for a user without any.
///
/// # Errors
///
/// If the caller may not read it.
pub async fn user_state(
    engine: &Engine,
    caller: &Caller,
    (app, user): (&str, &str),
    memory: &dyn AnswerMemory,
) -> Result<BTreeMap<String, Raw>, EngineError> {
    access::require_reader(caller)?;
    let is_own = |bound: &str| bound == user;
    let is_open = match (&caller.user, &caller.new_user) {
        (None, _) => caller.has(Role::Client),
        (Some(_), Some(new)) => is_own(new.name()),
        (Some(_), None) => false,
    };
    let mut values = BTreeMap::new();
    let known = engine.known_user(&caller.tenant, user).await?;
    if known.is_none() && (is_open || caller.reads_all()) {
        return Ok(values);
    }
    let mut left = ANSWER_BYTES_MAX;
    memory.take(left).await?;
    let mut query = StateQueryInput::default().parse(Some(Scope::User))?;
    loop {
        let limit = PageLimit {
            entries: KEYS_PAGE,
            bytes: left,
        };
        let page = state::read_shared(engine, caller, app, Some(user), (&query, limit)).await;
        let (page, next) = page.map_err(|error| match error {
            EngineError::PageTooSmall { .. } => too_large(),
            error => error,
        })?;
        for (key, value) in page.state {
            left = left.saturating_sub((key.len() + value.get().len()) as u64);
            let key = key.strip_prefix("user:").unwrap_or(&key).to_owned();
            values.insert(key, value);
        }
        if next.is_none() {
            return Ok(values);
        }
        query = query.after(next);
    }
}

/// The latest time of a session's events and later messages, in seconds since 1970. It never goes back.
pub(super) async fn last_update(engine: &Engine, session: SessionId) -> Result<f64, EngineError> {
    let summary = engine.inner().store.session(session).await?;
    let summary = summary.ok_or(EngineError::NotFound)?;
    last_update_of(engine, &summary).await
}

async fn last_update_of(engine: &Engine, summary: &SessionSummary) -> Result<f64, EngineError> {
    let at = (summary.id, summary.revision);
    let newest = async |task, entries| {
        let read = |limit| engine.items(at, task, View::Trace, None, limit);
        own_page(entries, read).await
    };
    let state = engine.durable_state(summary.id).await?;
    let mut tasks = state.tasks.values();
    let events = tasks.find(|task| task.agent.as_str() == RECORDER && task.parent.is_none());
    let mut latest = seconds(summary.created_at);
    // A closed task is not known any more, so that its newest event is searched for among newer items.
    let recent = if events.is_some() { 1 } else { RECENT_ITEMS };
    let mut items = newest(None, recent).await?.items;
    if let Some(task) = events {
        items.extend(newest(Some(task.id), 1).await?.items);
    }
    for stored in &items {
        let body: ItemBody = parse(stored.body.as_deref());
        latest = latest.max(match body.event {
            Some(mark) => mark.last_update,
            None => seconds(stored.at),
        });
    }
    Ok(latest)
}

/// The values that session keys had before the first event of a run of a framework, by their names. Values that
/// a session began with are among them, though no event is about them.
///
/// # Errors
///
/// If the caller may not append events to the session, or it has too many.
pub async fn values_before(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    invocation: &str,
    keys: impl IntoIterator<Item = String>,
) -> Result<BTreeMap<String, Raw>, EngineError> {
    engine.authorise(caller, session, &Act::Record).await?;
    let keys: Vec<String> = keys.into_iter().collect();
    if keys.len() > COMMAND_KEYS_MAX {
        let (limit, max) = ("state keys in one call", COMMAND_KEYS_MAX as u64);
        return Err(Rejection::Limit { limit, max }.into());
    }
    let (mut first, mut before, mut seen) = (None, None, 0);
    loop {
        let read = |limit| engine.items((session, 0), None, View::Trace, before, limit);
        let page = own_page(ITEMS_PAGE, read).await?;
        seen += page.items.len();
        for stored in page.items.iter().filter(|stored| !stored.placed.rewound) {
            let body: ItemBody = parse(stored.body.as_deref());
            if body.event.is_some_and(|mark| mark.invocation == invocation) {
                first = Some(stored.placed.request);
            }
        }
        before = page.next;
        if before.is_none() {
            break;
        }
        if seen >= ITEMS_MAX {
            return Err(too_large());
        }
    }
    let store = &engine.inner().store;
    let Some(first) = first else {
        return Ok(BTreeMap::new());
    };
    let ended = store.ended_request(first).await?;
    let revision = ended.ok_or(EngineError::NotFound)?.started_by;
    let then = engine.load_past(caller, session, revision - 1).await?;
    let then = then.ok_or(EngineError::NotFound)?.keys;
    let places = keys.into_iter().filter_map(|key| {
        let key = StateKey::lenient(&key).ok()?;
        let version = then.get(&key)?.revision;
        Some((key, version))
    });
    let places: Vec<(StateKey, u64)> = places.collect();
    let values = store.past_values(session, places.clone(), ANSWER_BYTES_MAX);
    let values = places.into_iter().zip(values.await?);
    let values = values.filter_map(|((key, _), value)| {
        let value = raw_bytes(&value?.value?);
        Some((key.to_string(), value))
    });
    Ok(values.collect())
}

/// A time as frameworks count it.
#[expect(clippy::cast_precision_loss, reason = "exact for 285 years from 1970")]
fn seconds(at: Timestamp) -> f64 {
    at.as_micros() as f64 / 1e6
}

/// Reads sessions within a number of bytes.
struct HistoryReader<'a> {
    engine: &'a Engine,
    caller: &'a Caller,
    left: u64,
}

impl HistoryReader<'_> {
    async fn read(
        &mut self,
        session: SessionId,
        query: EventQuery,
    ) -> Result<SessionHistory, EngineError> {
        let summary = self.engine.session(self.caller, session).await?;
        let mut history = self.without_events(&summary).await?;
        history.events = self.events(&summary, query).await?;
        history.approvals = self.approvals(session).await?;
        Ok(history)
    }

    async fn without_events(
        &mut self,
        summary: &SessionSummary,
    ) -> Result<SessionHistory, EngineError> {
        let state = self.state(summary.id).await?;
        let history = self.without_state(summary).await?;
        Ok(SessionHistory { state, ..history })
    }

    async fn without_state(&self, summary: &SessionSummary) -> Result<SessionHistory, EngineError> {
        let owner = &summary.owner;
        let user = self.engine.user_name(&owner.tenant, owner.user).await?;
        Ok(SessionHistory {
            session: SessionView::of(summary, user),
            state: BTreeMap::new(),
            events: Vec::new(),
            last_update: last_update_of(self.engine, summary).await?,
            approvals: Vec::new(),
        })
    }

    async fn state(&mut self, session: SessionId) -> Result<BTreeMap<String, Raw>, EngineError> {
        let (mut values, mut query) = (BTreeMap::new(), StateQuery::default());
        loop {
            let limit = PageLimit {
                entries: KEYS_PAGE,
                bytes: self.left,
            };
            let (page, _) = self
                .engine
                .state(self.caller, session, (&query, limit))
                .await?;
            let last = query.last(page.values.keys()).cloned();
            let has_more = page.has_more;
            for (key, StateValue { value, .. }) in page.values {
                self.take((key.as_str().len() + value.len()) as u64);
                values.insert(key.to_string(), raw_bytes(&value));
            }
            if !has_more {
                return Ok(values);
            }
            query = query.after(last);
        }
    }

    async fn events(
        &mut self,
        summary: &SessionSummary,
        query: EventQuery,
    ) -> Result<Vec<EventView>, EngineError> {
        let sees_all = works_for_session(self.caller, &summary.owner);
        let at = (summary.id, summary.revision);
        let (mut before, mut seen) = (None, 0);
        let mut events = ReadEvents {
            events: Vec::new(),
            message: None,
            query,
            recent: query.recent.unwrap_or(usize::MAX),
            left: self.left,
        };
        while events.recent > 0 {
            // Hidden items between the events do not count towards the answer.
            let entries = events.recent.clamp(RECENT_ITEMS, ITEMS_PAGE);
            let read = |limit| self.engine.items(at, None, View::Trace, before, limit);
            let page = own_page(entries, read).await?;
            seen += page.items.len();
            for stored in &page.items {
                if let Some(event) = EventView::of(stored, sees_all) {
                    events.add(event, stored.payload_bytes())?;
                }
            }
            before = page.next;
            if before.is_none() {
                break;
            }
            if seen >= ITEMS_MAX {
                return Err(too_large());
            }
        }
        let (events, left) = events.finish()?;
        self.left = left;
        Ok(events)
    }

    async fn approvals(&mut self, session: SessionId) -> Result<Vec<HoldView>, EngineError> {
        let state = self.engine.durable_state(session).await?;
        if state.holds.is_empty() {
            return Ok(Vec::new());
        }
        let filter = HoldFilter {
            session: Some(session),
            kind: Some(HoldKind::Approval),
            ..HoldFilter::default()
        };
        let input = HoldListInput { filter, user: None };
        let limit = PageLimit {
            entries: HOLDS_MAX,
            bytes: self.left,
        };
        let page = hold::list(self.engine, self.caller, input, (None, limit)).await?;
        let mut holds = page.entries;
        holds.sort_by_key(|hold| hold.id);
        Ok(holds)
    }

    fn take(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }
}

/// Collects events from the newest on.
struct ReadEvents {
    events: Vec<EventView>,
    /// The message of an event whose hidden part is the next item, with its bytes.
    message: Option<(EventView, u64)>,
    query: EventQuery,
    /// How many more events the query takes.
    recent: usize,
    /// How many more bytes the answer may have.
    left: u64,
}

impl ReadEvents {
    fn add(&mut self, event: EventView, bytes: u64) -> Result<(), EngineError> {
        if let Some((message, bytes)) = self.message.take()
            && message.id != event.id
        {
            self.push(message, bytes)?;
        }
        if event.is_message_of_hidden {
            self.message = Some((event, bytes));
            return Ok(());
        }
        self.push(event, bytes)
    }

    fn push(&mut self, event: EventView, bytes: u64) -> Result<(), EngineError> {
        if self.recent == 0 {
            return Ok(());
        }
        self.recent -= 1;
        if self.query.since.is_none_or(|since| event.time >= since) {
            if bytes > self.left {
                return Err(EngineError::PageTooSmall { bytes });
            }
            self.left -= bytes;
            self.events.push(event);
        }
        Ok(())
    }

    /// The events, oldest first, and the bytes that are left.
    fn finish(mut self) -> Result<(Vec<EventView>, u64), EngineError> {
        if let Some((message, bytes)) = self.message.take() {
            self.push(message, bytes)?;
        }
        self.events.reverse();
        Ok((self.events, self.left))
    }
}

impl EventView {
    /// The event or message that an item is. None if it is neither, or the reader may not see it.
    fn of(stored: &StoredItem, sees_all: bool) -> Option<Self> {
        let placed = &stored.placed;
        if placed.rewound || !placed.is_root || stored.body.is_none() {
            return None;
        }
        let is_visible = placed.item.visibility == Visibility::Visible;
        let body: ItemBody = parse(stored.body.as_deref());
        let is_whole = |mark: &EventMark| sees_all || mark.is_open;
        let json = body
            .data
            .filter(|_| body.event.as_ref().is_some_and(is_whole));
        let is_message = placed.item.kind == ItemKind::Message && is_visible;
        if json.is_none() && !is_message {
            return None;
        }
        let message = body.content.filter(|_| is_message).map(|content| {
            let role = placed.item.role.unwrap_or(ItemRole::Assistant);
            (role, text_of(&content))
        });
        let is_message_of_hidden = sees_all && json.is_none() && body.event.is_some();
        let (id, time) = match body.event {
            Some(mark) => (mark.id, mark.time),
            None => (placed.item.id.to_string(), seconds(stored.at)),
        };
        Some(Self {
            id,
            time,
            json,
            message,
            request: placed.request,
            is_message_of_hidden,
        })
    }
}

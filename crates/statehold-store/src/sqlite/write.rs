//! Writing one commit inside a transaction that the writer opened.

use rusqlite::{Connection, ToSql, params};
use statehold_core::digest::Digest;
use statehold_core::hold::Hold;
use statehold_core::ids::{RequestId, SessionId, TaskId, UserId};
use statehold_core::name::Name;
use statehold_core::record::{Change, ErasedPayloads, Event, RecordContent};
use statehold_core::request::LiveStatus;
use statehold_core::scope::{Scope, StateKey};
use statehold_core::session::{
    KeyVersion, Owner, STATE_KEEPER, SessionState, SessionStatus, TtlMode,
};
use statehold_core::time::Timestamp;

use super::fork::{self, ForkPlaces};
use super::log::{self, Link, RowColumns, SessionRow, WAYPOINT_EVERY, pack_exchanges, pack_links};
use super::recent::Recent;
use super::sql::{corrupt_or_unavailable, damaged, from_sql, id_bytes, to_sql};
use super::{chats, erase, memory, read, tenant};
use crate::codec::BLOB_BYTES_MIN;
use crate::commit::{Answer, Commit, ForkWrite, SharedWrite, StateWrite, results_in};
use crate::port::{HoldPlace, SharedOwner, StoreError};

/// The longest part of a blob that is split: four are a page.
const PART_BYTES_MAX: usize = 940;
/// The length of a digest.
const DIGEST_BYTES: usize = 32;

/// Runs one statement with its parameters.
pub(super) fn run(
    conn: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<usize, StoreError> {
    conn.prepare_cached(sql)
        .and_then(|mut statement| statement.execute(params))
        .map_err(corrupt_or_unavailable("writing"))
}

/// Writes everything a commit wants written, or says why not; the caller rolls back then. `places` are those of
/// a fork, if they were looked up before. Returns the columns of the log row.
pub(super) fn commit(
    conn: &Connection,
    commit: &Commit,
    places: Option<&ForkPlaces>,
    recent: &mut Recent,
) -> Result<RowColumns, StoreError> {
    if commit.writes.erased.is_none() {
        return write_all(conn, commit, places, recent);
    }
    erase::overwrite_pages(conn, true)?;
    let columns = write_all(conn, commit, places, recent);
    erase::overwrite_pages(conn, false)?;
    columns
}

fn write_all(
    conn: &Connection,
    commit: &Commit,
    places: Option<&ForkPlaces>,
    recent: &mut Recent,
) -> Result<RowColumns, StoreError> {
    let found = log::session_row(conn, commit.session())?;
    let owner = commit.after.owner.as_ref().ok_or_else(|| {
        StoreError::Unusable("a commit must belong to a session that was created".to_owned())
    })?;
    // Everything that can refuse the commit comes before the first row is written, so that the writer need not
    // take rows back.
    let prev = require_head(conn, commit, found.as_ref())?;
    require_free_key(conn, commit)?;
    let own = found.as_ref().map_or(0, |row| row.pk);
    if let Some(Change::Set(name)) = &commit.texts.name {
        require_free_name(conn, owner, &name.lookup, own)?;
    }
    for write in &commit.writes.shared {
        let (last, is_there) = shared_version(conn, owner, write)?;
        write.packed_at(if is_there { last } else { 0 })?;
    }
    let looked_up = match places {
        Some(places) if places.are_of(prev) => None,
        _ => ForkPlaces::find(conn, commit)?,
    };
    let places = looked_up.as_ref().or(places);
    let exchanges = memory::links(conn, commit, found.as_ref(), places)?;
    let links = pack_links(&task_links(conn, commit, places)?);
    if let Some(name) = &commit.texts.new_user {
        tenant::keep_user(conn, owner, name)?;
    }
    keep_answer(conn, commit)?;
    let bodies = match &found {
        Some(row) => recent.refer(conn, (row.pk, row.user), commit)?,
        None => None,
    };
    let mut columns = RowColumns {
        id: 0,
        session: own,
        prev,
        links,
        exchanges: pack_exchanges(&exchanges),
        bodies,
    };
    append(conn, commit, &mut columns)?;
    let log = columns.id;
    let pk = write_session(conn, commit, owner, found.as_ref(), &columns)?;
    if found.is_none() {
        columns.session = pk;
        run(conn, "UPDATE log SET session = ?1 WHERE id = ?2", (pk, log))?;
    }
    let content = &commit.record.content;
    if content.seq.is_multiple_of(WAYPOINT_EVERY) {
        let items = to_sql(commit.after.items_appended);
        let row = (pk, to_sql(content.seq), items, log);
        run(conn, "INSERT INTO waypoint VALUES(?1, ?2, ?3, ?4)", row)?;
    }
    write_rewinds(conn, pk, content)?;
    write_tasks(conn, commit, pk, log)?;
    memory::write(conn, commit, pk, log, &exchanges)?;
    write_requests(conn, commit, owner, pk)?;
    chats::write(conn, &commit.record, pk, log)?;
    write_holds(conn, commit, owner, pk)?;
    if let Some(places) = places {
        fork::copy_task_states(conn, commit, places, pk)?;
        fork::copy_state(conn, commit, places, pk)?;
    }
    write_state(conn, commit, pk)?;
    if let Some(payloads) = commit.writes.erased {
        // `erase` removes payloads later, in short transactions: no reader finds them from now on.
        if commit.after.closed {
            chats::remove(conn, pk)?;
        }
        // Idempotency keys stay taken; the kept answers are erased.
        let id = id_bytes(content.session.as_uuid());
        run(
            conn,
            "UPDATE answer SET body = x'' WHERE session = ?1",
            [id],
        )?;
        erase::begin(conn, pk, payloads, log)?;
    }
    for write in &commit.writes.shared {
        write_shared(conn, content, owner, write)?;
    }
    for (digest, packed) in &commit.blobs {
        if !count_blob(conn, owner.user, digest)? {
            insert_blob(conn, owner.user, digest, packed)?;
        }
    }
    recent.learn(pk, log, commit);
    Ok(columns)
}

/// Counts one more payload that is kept as a blob, if there is such a blob.
pub(super) fn count_blob(
    conn: &Connection,
    user: UserId,
    digest: &Digest,
) -> Result<bool, StoreError> {
    let sql = "UPDATE blob SET refs = refs + 1 WHERE user = ?1 AND digest = ?2";
    let key = (id_bytes(user.as_uuid()), digest.as_bytes().as_slice());
    Ok(run(conn, sql, key)? > 0)
}

/// Inserts a blob. One that would take most of a page is split, because no other would fit beside it.
fn insert_blob(
    conn: &Connection,
    user: UserId,
    digest: &Digest,
    packed: &[u8],
) -> Result<(), StoreError> {
    let parts = match packed.len() {
        PART_BYTES_MAX..BLOB_BYTES_MIN => packed.len().div_ceil(PART_BYTES_MAX),
        _ => 1,
    };
    let user = id_bytes(user.as_uuid());
    let mut key = digest.as_bytes().to_vec();
    for (number, part) in (0..).zip(packed.chunks(packed.len().div_ceil(parts))) {
        // The first part has the digest and the count; the others follow it in the index.
        key.truncate(DIGEST_BYTES);
        key.extend((number > 0).then_some(number));
        let refs = i64::from(number == 0);
        let sql = "INSERT INTO blob VALUES(?1, ?2, ?3, ?4)";
        run(conn, sql, params![user, key, refs, part])?;
    }
    Ok(())
}

/// Lets a commit in only at the head it was decided on, and says which log row that head is.
fn require_head(
    conn: &Connection,
    commit: &Commit,
    found: Option<&SessionRow>,
) -> Result<i64, StoreError> {
    let (session, expected) = (commit.session(), commit.expected());
    let conflict = |found| StoreError::Conflict {
        session,
        expected,
        found,
    };
    let prev_hash = commit.record.content.prev_hash;
    match (found, commit.writes.fork) {
        (Some(row), None) if row.revision == expected && row.head == prev_hash => Ok(row.last_log),
        (Some(row), _) => Err(conflict(row.revision)),
        (None, Some(fork)) => {
            let at = fork.at;
            let living = |id| {
                let row = log::session_row(conn, id)?.filter(|row| !row.deleted);
                row.filter(|row| at <= row.revision).ok_or(conflict(0))
            };
            let origin = living(fork.origin)?;
            if at != expected {
                return Err(conflict(origin.revision));
            }
            fork::require_shallow(conn, &origin)?;
            let row = log::seek(conn, &origin, at)?;
            if row.record()?.hash != prev_hash {
                return Err(conflict(at));
            }
            if let Some(through) = fork.through
                && log::seek(conn, &living(through)?, at)?.id != row.id
            {
                return Err(conflict(at));
            }
            Ok(row.id)
        }
        (None, None) if expected == 0 => Ok(0),
        (None, None) => Err(conflict(0)),
    }
}

fn require_free_key(conn: &Connection, commit: &Commit) -> Result<(), StoreError> {
    let Some(answer) = &commit.answer else {
        return Ok(());
    };
    match read::kept_answer(conn, answer.key)? {
        None => Ok(()),
        Some(Answer {
            session, revision, ..
        }) => Err(StoreError::KeyTaken { session, revision }),
    }
}

fn keep_answer(conn: &Connection, commit: &Commit) -> Result<(), StoreError> {
    let Some(answer) = &commit.answer else {
        return Ok(());
    };
    let row = params![
        answer.key.as_bytes().as_slice(),
        answer.fingerprint.as_bytes().as_slice(),
        id_bytes(answer.session.as_uuid()),
        to_sql(answer.revision),
        answer.body,
        answer.expires_at.as_micros(),
        commit.answer_sum,
    ];
    let sql = "INSERT INTO answer VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    run(conn, sql, row).map(drop)
}

/// Forgets answers whose time is over; returns how many.
pub(super) fn forget_answers(
    conn: &Connection,
    now: Timestamp,
    limit: usize,
) -> Result<usize, StoreError> {
    let sql = "DELETE FROM answer WHERE rowid IN
               (SELECT rowid FROM answer WHERE expires_at <= ?1 LIMIT ?2)";
    conn.execute(sql, (now.as_micros(), to_sql(limit as u64)))
        .map_err(corrupt_or_unavailable("the table `answer`"))
}

/// The links from a commit to the previous row of each task.
fn task_links(
    conn: &Connection,
    commit: &Commit,
    places: Option<&ForkPlaces>,
) -> Result<Vec<Link>, StoreError> {
    let mut links = Vec::new();
    for task in &commit.writes.grown_tasks {
        if links.iter().all(|link: &Link| link.task != *task) {
            let prev = last_log_of_task(conn, *task)?.unwrap_or(0);
            links.push(Link {
                task: *task,
                prev,
                before: *task,
            });
        }
    }
    for (old, new) in &commit.changes.renamed_tasks {
        let prev = places.map_or(0, |places| places.grown(*old));
        links.push(Link {
            task: *new,
            prev,
            before: *old,
        });
    }
    Ok(links)
}

/// Appends a row to the log.
fn append(conn: &Connection, commit: &Commit, columns: &mut RowColumns) -> Result<(), StoreError> {
    let row: [&dyn ToSql; 7] = [
        &columns.session,
        &to_sql(commit.record.content.seq),
        &columns.prev,
        &columns.links,
        &columns.exchanges,
        &commit.packed_record,
        columns.bodies.as_ref().unwrap_or(&commit.packed_bodies),
    ];
    run(
        conn,
        "INSERT INTO log(session, seq, prev, links, exchanges, record, bodies)
         VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        &row[..],
    )?;
    columns.id = conn.last_insert_rowid();
    Ok(())
}

pub(super) fn last_log_of_task(conn: &Connection, task: TaskId) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT last_log FROM open_task WHERE id = ?1";
    read::first(conn, sql, [id_bytes(task.as_uuid())], |row| row.get(0))
}

fn write_session(
    conn: &Connection,
    commit: &Commit,
    owner: &Owner,
    found: Option<&SessionRow>,
    row: &RowColumns,
) -> Result<i64, StoreError> {
    let (log, prev) = (row.id, row.prev);
    let (after, content) = (&commit.after, &commit.record.content);
    if let Some(row) = found {
        let columns = LifeColumns::of(after);
        let values: [&dyn ToSql; 14] = [
            &row.pk,
            &after.closed,
            &to_sql(after.revision),
            &after.head.as_bytes().as_slice(),
            &content.at.as_micros(),
            &to_sql(after.tasks_opened),
            &to_sql(after.requests_started),
            &to_sql(after.items_appended),
            &log,
            &columns.status,
            &after.deleted,
            &columns.ttl_mode,
            &columns.ttl_ms,
            &columns.hidden_ttl_ms,
        ];
        run(
            conn,
            "UPDATE session SET closed = ?2, revision = ?3, head = ?4, last_at = ?5,
             tasks_opened = ?6, requests_started = ?7, items_appended = ?8, last_log = ?9,
             status = ?10, deleted = ?11, ttl_mode = ?12, ttl_ms = ?13,
             hidden_ttl_ms = ?14
             WHERE pk = ?1",
            &values[..],
        )?;
        // Apart, because setting a column of an index writes the pages of the index.
        let ends = [columns.expires_at, columns.hidden_expires_at];
        if ends != row.ends {
            run(
                conn,
                "UPDATE session SET expires_at = ?2, hidden_expires_at = ?3 WHERE pk = ?1",
                (row.pk, ends[0], ends[1]),
            )?;
        }
        if after.deleted && !row.deleted {
            run(
                conn,
                "UPDATE session SET listed = 0 WHERE pk = ?1",
                [row.pk],
            )?;
        }
        write_names(conn, commit, row.pk)?;
        return Ok(row.pk);
    }
    let name = commit.texts.name.as_ref().and_then(set);
    let labels = commit.texts.labels.as_ref().and_then(set);
    let columns = LifeColumns::of(after);
    let fork = commit.writes.fork;
    let (origin, erased_log) = match fork {
        Some(fork) => copied_sessions(conn, fork, prev)?,
        None => (0, 0),
    };
    let origin_seq = fork.map_or(0, |fork| fork.at);
    let id = commit.session();
    let values: [&dyn ToSql; 27] = [
        &id_bytes(id.as_uuid()),
        &owner.tenant.as_str(),
        &owner.app.as_str(),
        &id_bytes(owner.user.as_uuid()),
        &owner.agent.as_str(),
        &name.map(|name| &name.lookup),
        &name.map(|name| &name.column),
        &labels,
        &after.closed,
        &to_sql(after.revision),
        &after.head.as_bytes().as_slice(),
        &content.at.as_micros(),
        &to_sql(after.tasks_opened),
        &to_sql(after.requests_started),
        &to_sql(after.items_appended),
        &log,
        &origin,
        &to_sql(origin_seq),
        &columns.status,
        &after.deleted,
        &columns.ttl_mode,
        &columns.ttl_ms,
        &columns.expires_at,
        &is_listed(owner, after),
        &columns.hidden_ttl_ms,
        &columns.hidden_expires_at,
        &erased_log,
    ];
    run(
        conn,
        "INSERT INTO session(id, tenant, app, user, agent, name_lookup, name, labels, closed, revision,
         head, created_at, last_at, tasks_opened, requests_started, items_appended, last_log, origin,
         origin_seq, status, deleted, ttl_mode, ttl_ms, expires_at, listed, hidden_ttl_ms,
         hidden_expires_at, erased_log)
         VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?12, ?13, ?14, ?15, ?16, ?17,
         ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27)",
        &values[..],
    )?;
    Ok(conn.last_insert_rowid())
}

/// The key of the origin of a fork, and the row up to which the fork has no hidden payloads: those that were removed
/// before from the sessions it copies, up to the fork point `point`.
fn copied_sessions(
    conn: &Connection,
    fork: ForkWrite,
    point: i64,
) -> Result<(i64, i64), StoreError> {
    let origin = log::session_row(conn, fork.origin)?;
    let through = match fork.through {
        Some(through) => log::session_row(conn, through)?,
        None => None,
    };
    let copied = origin.iter().chain(&through);
    let erased_log = copied.map(|row| row.erased_log.min(point)).max();
    let origin = origin.map_or(0, |row| row.pk);
    Ok((origin, erased_log.unwrap_or(0)))
}

/// Whether lists show a session.
pub(super) fn is_listed(owner: &Owner, state: &SessionState) -> bool {
    !state.deleted && owner.agent.as_str() != STATE_KEEPER
}

/// The columns of a session by which lists and timers find it.
pub(super) struct LifeColumns {
    pub(super) status: &'static str,
    pub(super) ttl_mode: Option<&'static str>,
    pub(super) ttl_ms: Option<i64>,
    pub(super) expires_at: Option<i64>,
    pub(super) hidden_ttl_ms: Option<i64>,
    pub(super) hidden_expires_at: Option<i64>,
}

impl LifeColumns {
    pub(super) fn of(state: &SessionState) -> Self {
        Self {
            status: status_name(state.status()),
            ttl_mode: state.ttl.map(|ttl| match ttl.mode {
                TtlMode::Sliding => "sliding",
                TtlMode::Fixed => "fixed",
            }),
            ttl_ms: state.ttl.map(|ttl| to_sql(ttl.ms)),
            expires_at: state.expires_at.map(Timestamp::as_micros),
            hidden_ttl_ms: state.hidden_ttl_ms.map(to_sql),
            hidden_expires_at: state.hidden_expires_at.map(Timestamp::as_micros),
        }
    }
}

fn status_name(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Running => "running",
        SessionStatus::Paused => "paused",
        SessionStatus::Idle => "idle",
        SessionStatus::Closed => "closed",
    }
}

/// Changes the name and the labels of an existing session.
fn write_names(conn: &Connection, commit: &Commit, pk: i64) -> Result<(), StoreError> {
    if let Some(name) = &commit.texts.name {
        let name = set(name);
        let sql = "UPDATE session SET name_lookup = ?2, name = ?3 WHERE pk = ?1";
        let columns = (name.map(|name| &name.lookup), name.map(|name| &name.column));
        run(conn, sql, (pk, columns.0, columns.1))?;
    }
    if let Some(labels) = &commit.texts.labels {
        let sql = "UPDATE session SET labels = ?2 WHERE pk = ?1";
        run(conn, sql, (pk, set(labels)))?;
    }
    Ok(())
}

/// The new value, if the change sets one.
fn set<T>(change: &Change<T>) -> Option<&T> {
    match change {
        Change::Set(value) => Some(value),
        Change::Clear => None,
    }
}

fn require_free_name(
    conn: &Connection,
    owner: &Owner,
    lookup: &[u8],
    but: i64,
) -> Result<(), StoreError> {
    let sql = "SELECT id FROM session
               WHERE tenant = ?1 AND app = ?2 AND user = ?3 AND name_lookup = ?4 AND pk <> ?5";
    let user = id_bytes(owner.user.as_uuid());
    let key = (owner.tenant.as_str(), owner.app.as_str(), user, lookup, but);
    match read::first(conn, sql, key, |row| row.get::<_, log::Uuid16>(0))? {
        None => Ok(()),
        Some(id) => Err(StoreError::NameTaken {
            session: SessionId::from_uuid(id.0),
        }),
    }
}

fn write_rewinds(conn: &Connection, pk: i64, content: &RecordContent) -> Result<(), StoreError> {
    for event in &content.events {
        if let Event::Rewound {
            items_kept,
            items_until,
            ..
        } = event
        {
            let row = (
                pk,
                to_sql(content.seq),
                to_sql(*items_kept),
                to_sql(*items_until),
            );
            run(conn, "INSERT INTO rewind VALUES(?1, ?2, ?3, ?4)", row)?;
        }
    }
    Ok(())
}

fn write_tasks(conn: &Connection, commit: &Commit, pk: i64, log: i64) -> Result<(), StoreError> {
    let grown = &commit.writes.grown_tasks;
    let is_renamed = |id| {
        commit
            .changes
            .renamed_tasks
            .iter()
            .any(|(_, new)| *new == id)
    };
    for task in &commit.changes.open_tasks {
        let has_link = grown.contains(&task.id) || is_renamed(task.id);
        let id = id_bytes(task.id.as_uuid());
        let last_log = if has_link {
            log
        } else {
            last_log_of_task(conn, task.id)?.unwrap_or(0)
        };
        run(
            conn,
            "INSERT INTO open_task VALUES(?1, ?2, ?3, ?4)
             ON CONFLICT(id) DO UPDATE SET last_log = excluded.last_log, body = excluded.body",
            (id, pk, last_log, json(task)),
        )?;
    }
    for task in grown {
        if commit
            .changes
            .open_tasks
            .iter()
            .all(|changed| changed.id != *task)
        {
            let sql = "UPDATE open_task SET last_log = ?2 WHERE id = ?1";
            run(conn, sql, (id_bytes(task.as_uuid()), log))?;
        }
    }
    for closed in &commit.changes.closed_tasks {
        let id = id_bytes(closed.task.id.as_uuid());
        let last_log = if grown.contains(&closed.task.id) {
            log
        } else {
            last_log_of_task(conn, closed.task.id)?.unwrap_or(0)
        };
        run(conn, "DELETE FROM open_task WHERE id = ?1", [id])?;
        let row = (id, pk, last_log, json(closed));
        run(conn, "INSERT INTO closed_task VALUES(?1, ?2, ?3, ?4)", row)?;
    }
    for (task, request, packed) in &commit.writes.task_states {
        write_task_state(conn, *task, pk, *request, log, packed)?;
    }
    Ok(())
}

pub(super) fn write_task_state(
    conn: &Connection,
    task: TaskId,
    pk: i64,
    request: RequestId,
    log: i64,
    packed: &[u8],
) -> Result<(), StoreError> {
    let row = (
        id_bytes(task.as_uuid()),
        pk,
        id_bytes(request.as_uuid()),
        log,
        packed,
    );
    let sql = "INSERT INTO task_state VALUES(?1, ?2, ?3, ?4, ?5)
               ON CONFLICT(task) DO UPDATE SET request = excluded.request, log = excluded.log,
               value = excluded.value";
    run(conn, sql, row).map(drop)
}

fn write_requests(
    conn: &Connection,
    commit: &Commit,
    owner: &Owner,
    pk: i64,
) -> Result<(), StoreError> {
    for (live, agent) in &commit.changes.live_requests {
        let is_queued = live.status == LiveStatus::Queued;
        let runs = live.status == LiveStatus::Running;
        let until = live
            .lease
            .filter(|_| runs)
            .map(|lease| lease.until.as_micros());
        let row = params![
            id_bytes(live.id.as_uuid()),
            pk,
            owner.tenant.as_str(),
            agent.as_str(),
            is_queued,
            until,
            json(live),
        ];
        run(
            conn,
            "INSERT INTO live_request VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT(id) DO UPDATE SET queued = excluded.queued,
             lease_until = excluded.lease_until, body = excluded.body",
            row,
        )?;
    }
    for event in &commit.record.content.events {
        if let Event::RequestStarted {
            request,
            parent: Some(parent),
            ..
        } = event
        {
            let row = (id_bytes(parent.as_uuid()), id_bytes(request.as_uuid()));
            run(conn, "INSERT INTO child_request VALUES(?1, ?2)", row)?;
        }
    }
    // A fork ends no live request of its origin, and never has live rows of its own for them.
    let is_fork = commit.writes.fork.is_some();
    for ended in commit.changes.ended_requests.iter().filter(|_| !is_fork) {
        let id = id_bytes(ended.id.as_uuid());
        run(conn, "DELETE FROM live_request WHERE id = ?1", [id])?;
        run(
            conn,
            "INSERT INTO ended_request VALUES(?1, ?2, ?3)",
            (id, pk, json(ended)),
        )?;
    }
    Ok(())
}

fn write_holds(
    conn: &Connection,
    commit: &Commit,
    owner: &Owner,
    pk: i64,
) -> Result<(), StoreError> {
    let agent_of = |hold: &Hold| {
        let agent = commit.agent_of(hold.task).map(Name::as_str);
        agent.ok_or_else(|| damaged(format!("hold {}", hold.id), "its task is missing"))
    };
    let user = id_bytes(owner.user.as_uuid());
    for hold in &commit.changes.open_holds {
        let id = id_bytes(hold.id.as_uuid());
        let place = HoldPlace::of(hold, 0);
        run(
            conn,
            "INSERT INTO open_hold(id, session, request, tenant, user, agent, risk, deadline, body)
             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT(id) DO UPDATE SET body = excluded.body",
            params![
                id,
                pk,
                id_bytes(hold.request.as_uuid()),
                owner.tenant.as_str(),
                user,
                agent_of(hold)?,
                place.risk,
                place.deadline.as_micros(),
                json(hold)
            ],
        )?;
    }
    let is_fork = commit.writes.fork.is_some();
    for closed in commit.changes.closed_holds.iter().filter(|_| !is_fork) {
        let id = id_bytes(closed.hold.id.as_uuid());
        run(conn, "DELETE FROM open_hold WHERE id = ?1", [id])?;
        let call = closed.hold.call;
        run(
            conn,
            "INSERT INTO closed_hold(id, session, request, tenant, user, agent, call, body)
             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                id,
                pk,
                id_bytes(closed.hold.request.as_uuid()),
                owner.tenant.as_str(),
                user,
                agent_of(&closed.hold)?,
                call.map(|call| call.as_uuid().as_bytes().to_vec()),
                json(closed)
            ],
        )?;
    }
    // Keep the result of a call with its decided hold, for later readers of the decision.
    for (call, result) in results_in(&commit.record) {
        let sql = "UPDATE closed_hold SET result = ?2 WHERE call = ?1";
        run(conn, sql, (id_bytes(call.as_uuid()), json(&result)))?;
    }
    Ok(())
}

fn write_state(conn: &Connection, commit: &Commit, pk: i64) -> Result<(), StoreError> {
    let seq = commit.record.content.seq;
    if commit.writes.erased == Some(ErasedPayloads::All) {
        // They may be long: `erase` deletes them.
        return Ok(());
    }
    for write in &commit.writes.state {
        match write {
            StateWrite::Put { key, bytes, packed } => {
                let (bytes, revision) = (*bytes, seq);
                put_state(conn, pk, key, KeyVersion { bytes, revision }, packed)?;
            }
            StateWrite::Delete(key) => {
                let sql = "DELETE FROM state WHERE session = ?1 AND key = ?2";
                run(conn, sql, (pk, key.as_str()))?;
            }
            StateWrite::Restore { key, bytes, from } => {
                let (bytes, revision) = (*bytes, seq);
                // Only if it was not found before, on a reading thread.
                let packed = read::packed_state_at(conn, commit.session(), key, *from)?
                    .ok_or_else(|| damaged(format!("`{key}` at revision {from}"), "no value"))?;
                put_state(conn, pk, key, KeyVersion { bytes, revision }, &packed)?;
            }
        }
    }
    Ok(())
}

pub(super) fn put_state(
    conn: &Connection,
    pk: i64,
    key: &StateKey,
    version: KeyVersion,
    packed: &[u8],
) -> Result<(), StoreError> {
    let KeyVersion { bytes, revision } = version;
    run(
        conn,
        "INSERT INTO state VALUES(?1, ?2, ?3, ?4, ?5)
         ON CONFLICT(session, key) DO UPDATE SET version = excluded.version,
         bytes = excluded.bytes, value = excluded.value",
        (pk, key.as_str(), to_sql(revision), bytes, packed),
    )
    .map(drop)
}

/// The last version of a shared key, and whether it has a value now.
fn shared_version(
    conn: &Connection,
    owner: &Owner,
    write: &SharedWrite,
) -> Result<(u64, bool), StoreError> {
    let shared = SharedOwner::of(owner, write.key.scope());
    debug_assert!(matches!(write.key.scope(), Scope::App | Scope::User));
    let user = read::user_of(&shared);
    let (tenant, app) = (shared.tenant.as_str(), shared.app.as_str());
    let key = (tenant, app, user.as_slice(), write.key.as_str());
    let sql = "SELECT version, value IS NOT NULL FROM shared
               WHERE tenant = ?1 AND app = ?2 AND user = ?3 AND key = ?4";
    let found = read::first(conn, sql, key, |row| {
        Ok((from_sql(row.get(0)?), row.get(1)?))
    })?;
    Ok(found.unwrap_or((0, false)))
}

/// Writes a shared value at the version that the commit expects.
fn write_shared(
    conn: &Connection,
    content: &RecordContent,
    owner: &Owner,
    write: &SharedWrite,
) -> Result<(), StoreError> {
    let (last, is_there) = shared_version(conn, owner, write)?;
    let packed = write.packed_at(if is_there { last } else { 0 })?;
    if packed.is_none() && !is_there {
        return Ok(());
    }
    let shared = SharedOwner::of(owner, write.key.scope());
    let user = read::user_of(&shared);
    let request = write.request.as_ref();
    let row = params![
        shared.tenant.as_str(),
        shared.app.as_str(),
        user.as_slice(),
        write.key.as_str(),
        to_sql(last + 1),
        packed,
        id_bytes(content.session.as_uuid()),
        to_sql(content.seq),
        content.principal.to_string(),
        content.at.as_micros(),
        request.map(|request| id_bytes(request.as_uuid())),
    ];
    let sql = "INSERT OR REPLACE INTO shared VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    run(conn, sql, row).map(drop)
}

/// The stored form of a projection row.
fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("our own types always serialize to JSON")
}

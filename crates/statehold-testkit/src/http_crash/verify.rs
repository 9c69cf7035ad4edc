//! Compares what clients were told with what is there. Pure: it reads logs and answers that others
//! have gathered, so that tests can show it every kind of loss.

mod chain;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[cfg(test)]
pub(super) use self::chain::canonical;
pub use self::chain::{Chain, verify_chain};
use super::log::{Ack, Asked, Entry, Op};

/// One event of a feed, as its follower saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedEvent {
    /// The revision.
    pub revision: u64,
    /// The command that made it.
    pub command: String,
}

/// A session as it is after the last start.
#[derive(Debug, Clone, Default)]
pub struct FoundSession {
    /// Whether it answers 404.
    pub is_gone: bool,
    /// Its revision.
    pub revision: u64,
    /// Its name.
    pub name: Option<String>,
    /// All of its records.
    pub records: Vec<Value>,
    /// All items of the trace view.
    pub items: Vec<Value>,
    /// State keys with version and value.
    pub state: BTreeMap<String, (u64, Value)>,
    /// What the follower of its feed saw, if it had one.
    pub feed: Option<Vec<FeedEvent>>,
}

/// Everything that is there.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// By session id: every session that any answer named.
    pub sessions: BTreeMap<String, FoundSession>,
    /// The counter that all sessions share.
    pub count: u64,
    /// The counter before the calls of the logs.
    pub count_before: u64,
}

/// What a comparison covered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covered {
    /// Calls that were acknowledged.
    pub acknowledged: usize,
    /// Of these, calls that were repeated with their key after a lost connection.
    pub repeated: usize,
    /// Calls without a key whose answer was lost.
    pub lost: usize,
    /// Of these, calls that were carried out.
    pub lost_but_done: usize,
    /// Calls that a busy server refused.
    pub refused: usize,
    /// Sessions.
    pub sessions: usize,
    /// Sessions whose deletion was acknowledged.
    pub deleted: usize,
    /// Records, each with its place in its chain.
    pub records: usize,
    /// Marks of acknowledged content, each found once.
    pub marks: usize,
    /// Events of the feeds that were followed.
    pub feed_events: usize,
}

impl Covered {
    /// Adds what another comparison covered.
    pub(super) fn add(&mut self, other: &Self) {
        let both = [
            (&mut self.acknowledged, other.acknowledged),
            (&mut self.repeated, other.repeated),
            (&mut self.lost, other.lost),
            (&mut self.lost_but_done, other.lost_but_done),
            (&mut self.refused, other.refused),
            (&mut self.sessions, other.sessions),
            (&mut self.deleted, other.deleted),
            (&mut self.records, other.records),
            (&mut self.marks, other.marks),
            (&mut self.feed_events, other.feed_events),
        ];
        for (sum, further) in both {
            *sum += further;
        }
    }
}

/// What the logs say about one session.
#[derive(Debug, Default)]
struct Told<'a> {
    acks: Vec<&'a Ack>,
    lost: Vec<&'a Asked>,
    refused: Vec<&'a Asked>,
}

/// Looks for everything that was acknowledged, and for anything that is there twice or half.
///
/// # Errors
///
/// The first thing that is not as it was told.
pub fn verify(entries: &[Entry], found: &Found) -> Result<Covered> {
    let mut told: BTreeMap<&str, Told<'_>> = BTreeMap::new();
    let mut covered = Covered::default();
    let mut counted = (0, 0);
    for entry in entries {
        match entry {
            Entry::Ack(ack) => {
                covered.acknowledged += 1;
                covered.repeated += usize::from(ack.attempts > 1);
                counted.0 += u64::from(ack.asked.op == Op::Count);
                let session = ack.asked.session.as_deref();
                let session = session.with_context(|| format!("an answer without ids: {ack:?}"))?;
                told.entry(session).or_default().acks.push(ack);
            }
            Entry::Lost(asked) => {
                covered.lost += 1;
                counted.1 += u64::from(asked.op == Op::Count);
                if let Some(session) = &asked.session {
                    told.entry(session).or_default().lost.push(asked);
                }
            }
            Entry::Refused {
                asked,
                status,
                answer,
                is_expected,
            } => {
                ensure!(
                    is_expected,
                    "{asked:?} was refused with {status} and nothing spoke against it: {answer}"
                );
                covered.refused += 1;
                if let Some(session) = &asked.session {
                    told.entry(session).or_default().refused.push(asked);
                }
            }
            Entry::Problem(text) => bail!("a client saw: {text}"),
            Entry::Done => {}
        }
    }
    let (counted, lost) = counted;
    ensure!(
        (counted..=counted + lost).contains(&found.count.saturating_sub(found.count_before)),
        "the shared counter went from {} to {} with {counted} acknowledged additions and {lost} lost ones",
        found.count_before,
        found.count
    );
    for (session, told) in &told {
        let found = found.sessions.get(*session);
        let found = found.with_context(|| format!("{session} was acknowledged and is gone"))?;
        verify_session(session, told, found, &mut covered)
            .with_context(|| format!("in {session}"))?;
    }
    covered.sessions = told.len();
    Ok(covered)
}

fn verify_session(
    session: &str,
    told: &Told<'_>,
    found: &FoundSession,
    covered: &mut Covered,
) -> Result<()> {
    let is_deleted = told.acks.iter().any(|ack| ack.asked.op == Op::Delete);
    let may_be_gone = told.lost.iter().any(|asked| asked.op == Op::Delete);
    if is_deleted {
        ensure!(found.is_gone, "it was deleted and is there");
        covered.deleted += 1;
    }
    ensure!(
        !found.is_gone || is_deleted || may_be_gone,
        "it was acknowledged and is gone"
    );
    if found.is_gone {
        ensure!(
            found.items.is_empty(),
            "it was deleted and its items are there"
        );
        // The records of a deleted session stay for whoever may read them.
        if !found.records.is_empty() {
            covered.records += verify_chain(session, &found.records)?.records;
        }
        return Ok(());
    }
    let chain = verify_chain(session, &found.records)?;
    ensure!(
        chain.records as u64 == found.revision,
        "{} records at revision {}",
        chain.records,
        found.revision
    );
    covered.records += chain.records;
    verify_acks(told, found, &chain)?;
    verify_marks(told, found, covered)?;
    if let Some(feed) = &found.feed {
        verify_feed(feed, found)?;
        covered.feed_events += feed.len();
    }
    Ok(())
}

fn verify_acks(told: &Told<'_>, found: &FoundSession, chain: &Chain) -> Result<()> {
    let mut last = 0;
    let items: BTreeMap<&str, u64> = found
        .items
        .iter()
        .filter_map(|item| Some((item["id"].as_str()?, item["seq"].as_u64()?)))
        .collect();
    for ack in &told.acks {
        if let Some(revision) = ack.revision {
            ensure!(
                revision <= found.revision,
                "revision {revision} was acknowledged and the session is at {}: {ack:?}",
                found.revision
            );
            ensure!(
                revision > last,
                "revision {revision} was acknowledged after {last}: {ack:?}"
            );
            last = revision;
        }
        if let Some(name) = &ack.name {
            ensure!(
                found.name.as_ref() == Some(name),
                "it was created as {name} and is called {:?}",
                found.name
            );
        }
        for (id, seq) in &ack.items {
            ensure!(
                items.get(id.as_str()) == Some(seq),
                "item {id} with number {seq} was acknowledged and is not there"
            );
        }
        for (key, (version, value)) in &ack.state {
            let (stored, content) = found
                .state
                .get(key)
                .with_context(|| format!("state {key} was acknowledged and is gone"))?;
            ensure!(
                stored > version || stored == version && content == value,
                "state {key} was acknowledged as {value} at {version} and is {content} at {stored}"
            );
        }
        verify_outcome(ack, chain)?;
    }
    Ok(())
}

/// What an acknowledged call did must be in the records.
fn verify_outcome(ack: &Ack, chain: &Chain) -> Result<()> {
    let (request, hold) = (ack.request.as_deref(), ack.hold.as_deref());
    let has = |set: &BTreeSet<String>, id: Option<&str>| id.is_some_and(|id| set.contains(id));
    let is_there = match ack.asked.op {
        Op::Create | Op::Items | Op::Patch | Op::Count | Op::Delete => true,
        Op::Turn | Op::Complete => has(&chain.completed, request),
        Op::Start => has(&chain.started, request),
        Op::Claim => has(&chain.leased, request),
        Op::Cancel => request.is_some_and(|request| chain.ended.contains_key(request)),
        Op::Hold => has(&chain.held, hold),
        Op::Decide => has(&chain.decided, hold),
    };
    ensure!(is_there, "acknowledged, and no record says so: {ack:?}");
    Ok(())
}

/// Content of one call is there once, or, if the call was lost, once or not at all; never in part.
fn verify_marks(told: &Told<'_>, found: &FoundSession, covered: &mut Covered) -> Result<()> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for mark in found.items.iter().flat_map(marks_of) {
        *seen.entry(mark).or_default() += 1;
    }
    let mut take = |mark: &String| seen.remove(mark).unwrap_or(0);
    for ack in &told.acks {
        for mark in &ack.asked.marks {
            match take(mark) {
                1 => covered.marks += 1,
                0 => bail!("content {mark} was acknowledged and is gone: {ack:?}"),
                n => bail!("content {mark} is there {n} times: {ack:?}"),
            }
        }
    }
    for asked in &told.lost {
        let counts: Vec<usize> = asked.marks.iter().map(&mut take).collect();
        let is_whole = counts.iter().all(|count| *count == 1);
        ensure!(
            is_whole || counts.iter().all(|count| *count == 0),
            "of one call whose answer was lost, the parts are there {counts:?} times: {asked:?}"
        );
        covered.lost_but_done += usize::from(is_whole && !counts.is_empty());
    }
    for asked in &told.refused {
        let is_there = asked.marks.iter().any(|mark| take(mark) > 0);
        ensure!(!is_there, "refused, and yet there: {asked:?}");
    }
    ensure!(seen.is_empty(), "content that nobody sent: {seen:?}");
    Ok(())
}

/// The marks anywhere in an item.
fn marks_of(item: &Value) -> Vec<String> {
    let text = item.to_string();
    let parts = text.split("mark:").skip(1);
    parts
        .filter_map(|part| Some(part.split_once(';')?.0.to_owned()))
        .collect()
}

/// Each revision once, in order, with the command that its record has.
fn verify_feed(feed: &[FeedEvent], found: &FoundSession) -> Result<()> {
    for (index, event) in feed.iter().enumerate() {
        let due = index as u64 + 1;
        ensure!(
            event.revision == due,
            "the feed gave revision {} where {due} was due",
            event.revision
        );
        let record = found.records.get(index);
        let command = record.and_then(|record| record["command"].as_str());
        ensure!(
            command == Some(&event.command),
            "the feed said that revision {due} was `{}`, its record says {command:?}",
            event.command
        );
    }
    ensure!(
        feed.len() as u64 == found.revision,
        "the feed ended at revision {} of {}",
        feed.len(),
        found.revision
    );
    Ok(())
}

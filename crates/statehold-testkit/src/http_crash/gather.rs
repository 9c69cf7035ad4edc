//! Reads from the server, after its last start, all that the comparison needs, and makes calls with
//! old keys again.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::SeenRounds;
use super::load::Link;
use super::log::{Entry, Op, sha256};
use super::verify::{Found, FoundSession};
use crate::http::Answer;
use crate::workload::Random;

const PAGES_MAX: usize = 100_000;

/// Reads every session that the logs name.
pub(super) async fn gather(data: &Path, entries: &[Entry]) -> Result<Found> {
    let mut link = Link::new(data);
    let mut found = Found::default();
    let sessions: BTreeSet<&String> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Ack(ack) => ack.asked.session.as_ref(),
            Entry::Lost(asked) | Entry::Refused { asked, .. } => asked.session.as_ref(),
            Entry::Problem(_) | Entry::Done => None,
        })
        .collect();
    for id in sessions {
        let session = read_session(&mut link, id)
            .await
            .with_context(|| format!("reading {id}"))?;
        found.sessions.insert(id.clone(), session);
    }
    found.count = read_count(&mut link).await?;
    Ok(found)
}

/// The counter that all sessions share.
pub(super) async fn shared_count(data: &Path) -> Result<u64> {
    read_count(&mut Link::new(data)).await
}

async fn read_count(link: &mut Link) -> Result<u64> {
    let shared = ok(&link.get("/v1/state/app/crash").await?)?;
    // In the routes of one scope the prefix may be left out.
    let state = &shared["state"];
    let count = state["app:count"].as_u64().or(state["count"].as_u64());
    Ok(count.unwrap_or(0))
}

/// Sessions are still at the revision that they had, or gone. Calls with old keys were answered and not
/// carried out again, and no later kill undid or changed anything.
pub(super) async fn require_unchanged(data: &Path, seen: &SeenRounds) -> Result<()> {
    let mut link = Link::new(data);
    for (id, was_at) in &seen.sessions {
        let answer = link.get(&format!("/v1/sessions/{id}")).await?;
        let is_at = match answer.status {
            404 => None,
            _ => ok(&answer)?["revision"].as_u64(),
        };
        ensure!(
            is_at == *was_at,
            "{id} was at revision {was_at:?}, and is at {is_at:?} though nobody wrote to it"
        );
    }
    let now = read_count(&mut link).await?;
    ensure!(
        now == seen.count,
        "the shared counter was {} before old keys were used again, and is {now}",
        seen.count
    );
    Ok(())
}

async fn read_session(link: &mut Link, id: &str) -> Result<FoundSession> {
    let mut found = FoundSession::default();
    let answer = link.get(&format!("/v1/sessions/{id}")).await?;
    found.is_gone = answer.status == 404;
    found.records = read_records(link, id, found.is_gone).await?;
    if found.is_gone {
        let path = format!("/v1/sessions/{id}/messages?view=trace&limit=200");
        let answer = link.get(&path).await?;
        if answer.is_success() {
            found.items = list(&answer.json()?, "messages")?;
        }
        return Ok(found);
    }
    let session = ok(&answer)?;
    found.revision = session["revision"].as_u64().context("no revision")?;
    ensure!(
        answer.revision() == Some(found.revision),
        "the ETag is {:?} and the revision {}",
        answer.header("etag"),
        found.revision
    );
    found.name = session["name"].as_str().map(str::to_owned);
    found.items = read_items(link, id).await?;
    let state = link.get(&format!("/v1/sessions/{id}/state")).await?;
    let state = ok(&state)?;
    let values = state["state"].as_object().context("no state")?;
    for (key, value) in values {
        let version = state["versions"][key].as_u64().context("no version")?;
        found.state.insert(key.clone(), (version, value.clone()));
    }
    Ok(found)
}

async fn read_records(link: &mut Link, id: &str, is_gone: bool) -> Result<Vec<Value>> {
    let mut records: Vec<Value> = Vec::new();
    for _ in 0..PAGES_MAX {
        let after = records.len();
        let path = format!("/v1/sessions/{id}/records?after={after}&limit=200");
        let answer = link.get(&path).await?;
        if is_gone && answer.status == 404 {
            return Ok(records);
        }
        let page = list(&ok(&answer)?, "records")?;
        if page.is_empty() {
            return Ok(records);
        }
        records.extend(page);
    }
    bail!("records without end")
}

async fn read_items(link: &mut Link, id: &str) -> Result<Vec<Value>> {
    let mut items = Vec::new();
    let first = format!("/v1/sessions/{id}/messages?view=trace&limit=200");
    let mut path = first.clone();
    for _ in 0..PAGES_MAX {
        let page = ok(&link.get(&path).await?)?;
        items.extend(list(&page, "messages")?);
        let Some(cursor) = page["next_cursor"].as_str() else {
            return Ok(items);
        };
        path = format!("{first}&cursor={}", escaped(cursor));
    }
    bail!("messages without end")
}

/// Makes up to `most` calls again under the keys that they were acknowledged with. Those that had to
/// be repeated over a kill come first.
pub(super) async fn replay(
    data: &Path,
    entries: &[Entry],
    most: usize,
    random: &mut Random,
) -> Result<usize> {
    let mut link = Link::new(data);
    let deleted: BTreeSet<&String> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Ack(ack) if ack.asked.op == Op::Delete => ack.asked.session.as_ref(),
            Entry::Lost(asked) if asked.op == Op::Delete => asked.session.as_ref(),
            _ => None,
        })
        .collect();
    let mut candidates = Vec::new();
    for entry in entries {
        if let Entry::Ack(ack) = entry
            && let Some((key, call)) = &ack.keyed
        {
            let is_gone = ack
                .asked
                .session
                .as_ref()
                .is_some_and(|id| deleted.contains(id));
            // What a deleted session answered is content that is gone with it.
            if !is_gone || ack.asked.op == Op::Delete {
                let order = if ack.attempts > 1 {
                    0
                } else {
                    1 + random.below(1 << 40)
                };
                candidates.push((order, ack, key, call));
            }
        }
    }
    candidates.sort_by_key(|(order, ..)| *order);
    candidates.truncate(most);
    for (_, ack, key, call) in &candidates {
        let (answer, _) = link.until_answered(call, Some(key)).await?;
        ensure!(
            answer.status == ack.status && sha256(&answer.body) == ack.digest,
            "the key {key} was answered with {} once, and now with {}: {}; it was {ack:?}",
            ack.status,
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
        ensure!(
            answer.header("idempotency-replayed") == Some("true"),
            "an answer that was kept is not marked as such: {key}"
        );
    }
    Ok(candidates.len())
}

fn ok(answer: &Answer) -> Result<Value> {
    let text = String::from_utf8_lossy(&answer.body);
    ensure!(answer.is_success(), "answered {}: {text}", answer.status);
    answer.json()
}

fn list(page: &Value, name: &str) -> Result<Vec<Value>> {
    let list = page[name].as_array();
    Ok(list
        .with_context(|| format!("no {name} in {page}"))?
        .clone())
}

/// A cursor in a query.
fn escaped(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("text takes everything");
        }
    }
    out
}

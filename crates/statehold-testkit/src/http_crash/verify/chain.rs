//! The records of a session, verified from their page of documentation alone: no code of the core.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

use crate::http_crash::log::sha256;

/// What a chain says happened.
#[derive(Debug, Default, Clone)]
pub struct Chain {
    /// Its length.
    pub records: usize,
    /// Requests that were started.
    pub started: BTreeSet<String>,
    /// Requests that were leased at least once.
    pub leased: BTreeSet<String>,
    /// Requests that were completed.
    pub completed: BTreeSet<String>,
    /// Requests that ended, with their outcome.
    pub ended: BTreeMap<String, String>,
    /// Holds that were opened.
    pub held: BTreeSet<String>,
    /// Holds that were decided.
    pub decided: BTreeSet<String>,
    items: u64,
}

/// Verifies the chain of a session as the records endpoint lists it: dense numbers, hashes over the
/// canonical form, each record with the hash before it, and no record that is half of something.
///
/// # Errors
///
/// The first record that is not sound.
pub fn verify_chain(session: &str, records: &[Value]) -> Result<Chain> {
    let mut chain = Chain::default();
    let mut last_hash = "0".repeat(64);
    let mut last_at = 0;
    for (index, listed) in records.iter().enumerate() {
        let due = index as u64 + 1;
        let mut record = listed.as_object().context("not an object")?.clone();
        let hash = record.remove("hash").context("a record without a hash")?;
        let seq = record.get("seq").and_then(Value::as_u64);
        ensure!(seq == Some(due), "record {seq:?} where {due} was due");
        let check = || -> Result<(String, u64)> {
            let own = sha256(canonical(&Value::Object(record.clone())).as_bytes());
            ensure!(hash == own, "its hash is {own} and not {hash}");
            ensure!(
                record.get("prev_hash").and_then(Value::as_str) == Some(&last_hash),
                "it does not follow the record before"
            );
            ensure!(
                record.get("session").and_then(Value::as_str) == Some(session),
                "it is of another session"
            );
            let at = record.get("at").and_then(Value::as_u64);
            let at = at.context("its time is not an integer")?;
            ensure!(at >= last_at, "it is earlier than the record before");
            Ok((own, at))
        };
        (last_hash, last_at) = check().with_context(|| format!("record {due}"))?;
        chain
            .fold(&record)
            .with_context(|| format!("record {due}: {listed}"))?;
        chain.records += 1;
    }
    Ok(chain)
}

impl Chain {
    fn fold(&mut self, record: &Map<String, Value>) -> Result<()> {
        let events = record.get("events").and_then(Value::as_array);
        let events = events.context("no events")?;
        let mut answered = BTreeSet::new();
        for event in events {
            let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            match event["act"].as_str().context("an event without an act")? {
                "request_started" => {
                    ensure!(self.started.insert(text("request")), "started twice");
                }
                "request_leased" => {
                    self.leased.insert(text("request"));
                }
                "items_appended" => {
                    let items = event["items"].as_array().context("no items")?;
                    for item in items {
                        self.items += 1;
                        ensure!(
                            item["seq"].as_u64() == Some(self.items),
                            "item {} where {} was due",
                            item["seq"],
                            self.items
                        );
                    }
                    let is_answer = items.last().is_some_and(|item| {
                        item["kind"] == "message" && item["role"] == "assistant"
                    });
                    if is_answer {
                        answered.insert(text("request"));
                    }
                }
                "request_ended" => {
                    let (request, outcome) = (text("request"), text("outcome"));
                    ensure!(self.started.contains(&request), "ended before it started");
                    if outcome == "completed" {
                        ensure!(
                            answered.contains(&request),
                            "{request} was completed without its output"
                        );
                        self.completed.insert(request.clone());
                    }
                    ensure!(self.ended.insert(request, outcome).is_none(), "ended twice");
                }
                "hold_opened" => {
                    ensure!(self.held.insert(text("hold")), "opened twice");
                }
                "hold_decided" => {
                    let hold = text("hold");
                    ensure!(self.held.contains(&hold), "decided before it was opened");
                    ensure!(self.decided.insert(hold), "decided twice");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The canonical form of what records contain: sorted members, integers, no white space.
pub(in crate::http_crash) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let sorted: BTreeMap<&String, &Value> = members.iter().collect();
            let members = sorted.into_iter().map(|(name, value)| {
                format!("{}:{}", Value::from(name.as_str()), canonical(value))
            });
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(canonical).collect();
            format!("[{}]", values.join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

//! What the pretended server knows, made again from its journal at each start: the same calls in the
//! same order give the same answers.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use statehold_testkit::http_crash::log::sha256;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) key: Option<String>,
    pub(crate) if_match: Option<String>,
    pub(crate) body: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: String,
    pub(crate) revision: Option<u64>,
    pub(crate) is_replayed: bool,
}

#[derive(Debug, Default)]
struct Session {
    name: String,
    records: Vec<Value>,
    items: Vec<Value>,
    state: BTreeMap<String, (u64, Value)>,
    is_deleted: bool,
}

#[derive(Debug)]
struct Request {
    session: String,
    status: &'static str,
    fence: u64,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) calls: u64,
    sessions: BTreeMap<String, Session>,
    requests: BTreeMap<String, Request>,
    holds: BTreeMap<String, (String, &'static str)>,
    kept: BTreeMap<String, Reply>,
    count: u64,
    ids: u64,
    keeps_nothing: bool,
}

type Outcome = Result<Reply, (u16, &'static str)>;

const GONE: (u16, &str) = (404, "not_found");

fn reply(status: u16, revision: Option<u64>, body: &Value) -> Reply {
    Reply {
        status,
        body: body.to_string(),
        revision,
        is_replayed: false,
    }
}

impl World {
    pub(crate) fn new(keeps_nothing: bool) -> Self {
        Self {
            keeps_nothing,
            ..Self::default()
        }
    }

    /// Carries out a call, unless its key says that this was done.
    pub(crate) fn apply(&mut self, call: &Call) -> Reply {
        self.calls += 1;
        if let Some(kept) = call.key.as_ref().and_then(|key| self.kept.get(key)) {
            let mut kept = kept.clone();
            kept.is_replayed = true;
            return kept;
        }
        let result = self.dispatch(call);
        let reply =
            result.unwrap_or_else(|(status, code)| reply(status, None, &json!({ "code": code })));
        if let Some(key) = &call.key
            && reply.status < 300
            && !self.keeps_nothing
        {
            self.kept.insert(key.clone(), reply.clone());
        }
        reply
    }

    fn dispatch(&mut self, call: &Call) -> Outcome {
        let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let body: Value = serde_json::from_str(&call.body).unwrap_or(Value::Null);
        match (call.method.as_str(), parts.as_slice()) {
            ("GET", ["readyz"]) => Ok(reply(200, None, &Value::Null)),
            ("POST", ["v1", "sessions"]) => Ok(self.create(&body)),
            ("GET", ["v1", "sessions", id]) => self.session(id),
            ("DELETE", ["v1", "sessions", id]) => self.delete(id),
            ("POST", ["v1", "sessions", id, "requests"]) => self.start(id, &body),
            ("GET", ["v1", "sessions", id, "messages"]) => self.messages(id, query),
            ("GET", ["v1", "sessions", id, "records"]) => self.records(id, query),
            ("GET", ["v1", "sessions", id, "state"]) => self.state(id),
            ("PATCH", ["v1", "sessions", id, "state"]) => {
                self.patch(id, &body, call.if_match.as_deref())
            }
            ("GET", ["v1", "state", "app", _]) => {
                let body = json!({ "state": { "app:count": self.count } });
                Ok(reply(200, None, &body))
            }
            ("POST", ["v1", "work", "claim"]) => self.claim(&body),
            ("GET", ["v1", "requests", id]) => {
                let request = self.requests.get(*id).ok_or(GONE)?;
                Ok(reply(
                    200,
                    None,
                    &json!({ "id": id, "status": request.status }),
                ))
            }
            ("POST", ["v1", "requests", id, what]) => self.work(id, what, &body),
            ("GET", ["v1", "holds", id]) => {
                let (_, status) = self.holds.get(*id).ok_or(GONE)?;
                Ok(reply(200, None, &json!({ "id": id, "status": status })))
            }
            ("POST", ["v1", "holds", id, "decision"]) => self.decide(id),
            _ => Err((405, "no_such_call")),
        }
    }

    fn id(&mut self, prefix: &str) -> String {
        self.ids += 1;
        format!("{prefix}_{}", self.ids)
    }

    fn open(&mut self, id: &str) -> Result<&mut Session, (u16, &'static str)> {
        let session = self.sessions.get_mut(id).ok_or(GONE)?;
        if session.is_deleted {
            return Err(GONE);
        }
        Ok(session)
    }

    fn create(&mut self, body: &Value) -> Reply {
        let id = self.id("ses");
        let mut session = Session {
            name: body["name"].as_str().unwrap_or_default().to_owned(),
            ..Session::default()
        };
        session.commit(
            &id,
            "create_session",
            &json!([{ "act": "session_created" }]),
        );
        self.sessions.insert(id.clone(), session);
        reply(201, Some(1), &json!({ "id": id, "revision": 1 }))
    }

    fn session(&mut self, id: &str) -> Outcome {
        let session = self.open(id)?;
        let (revision, name) = (session.revision(), session.name.clone());
        let body = json!({ "id": id, "name": name, "revision": revision });
        Ok(reply(200, Some(revision), &body))
    }

    fn delete(&mut self, id: &str) -> Outcome {
        let session = self.open(id)?;
        session.commit(id, "close_session", &json!([{ "act": "session_closed" }]));
        session.is_deleted = true;
        let mut reply = reply(204, None, &Value::Null);
        reply.body.clear();
        Ok(reply)
    }

    fn start(&mut self, id: &str, body: &Value) -> Outcome {
        let request = self.id("req");
        let session = self.open(id)?;
        let mut contents = vec![body["input"].clone()];
        contents.extend(body["items"].as_array().cloned().unwrap_or_default());
        let mut events = vec![json!({ "act": "request_started", "request": request })];
        let is_turn = body["output"].is_string();
        if is_turn {
            contents.push(body["output"].clone());
            events.push(json!({ "act": "request_leased", "request": request }));
        }
        events.push(session.append(&request, &contents));
        if is_turn {
            events.push(ended(&request, "completed"));
        }
        session.commit(id, "start_request", &events.into());
        let revision = session.revision();
        let status = if is_turn { "completed" } else { "queued" };
        let known = Request {
            session: id.to_owned(),
            status,
            fence: 0,
        };
        self.requests.insert(request.clone(), known);
        let body = json!({ "id": request, "session_id": id, "status": status });
        Ok(reply(201, Some(revision), &body))
    }

    fn claim(&mut self, body: &Value) -> Outcome {
        let id = body["request_id"].as_str().unwrap_or_default();
        let request = self.requests.get_mut(id).ok_or(GONE)?;
        if request.status != "queued" {
            return Ok(reply(200, None, &json!({ "requests": [] })));
        }
        (request.status, request.fence) = ("running", request.fence + 1);
        let (session, fence) = (request.session.clone(), request.fence);
        let events = json!([{ "act": "request_leased", "request": id }]);
        self.open(&session)?
            .commit(&session, "claim_request", &events);
        let body = json!({ "requests": [{ "id": id, "fence": fence }] });
        Ok(reply(200, None, &body))
    }

    /// What a worker does with its request, and how anybody cancels it.
    fn work(&mut self, id: &str, what: &str, body: &Value) -> Outcome {
        let hold = self.id("hld");
        let request = self.requests.get_mut(id).ok_or(GONE)?;
        let is_final = matches!(request.status, "completed" | "cancelled");
        if is_final || what != "cancel" && body["fence"].as_u64() != Some(request.fence) {
            return Err((409, "stale_fence"));
        }
        let session_id = request.session.clone();
        let session = self.sessions.get_mut(&session_id).ok_or(GONE)?;
        let first = session.items.len();
        let (command, events) = match what {
            "items" => {
                let contents = body["items"].as_array().cloned().unwrap_or_default();
                ("append_items", vec![session.append(id, &contents)])
            }
            "complete" => {
                request.status = "completed";
                let output = session.append(id, &[body["output"].clone()]);
                ("complete_request", vec![output, ended(id, "completed")])
            }
            "cancel" => {
                request.status = "cancelled";
                ("cancel_request", vec![ended(id, "cancelled")])
            }
            "holds" => {
                request.status = "held";
                let call = session.append(id, &[body["action"].clone()]);
                self.holds.insert(hold.clone(), (id.to_owned(), "open"));
                let opened = json!({ "act": "hold_opened", "hold": hold, "request": id });
                ("open_hold", vec![call, opened])
            }
            _ => return Err((405, "no_such_call")),
        };
        session.commit(&session_id, command, &events.into());
        let revision = session.revision();
        let answer = match what {
            "items" => {
                let items = session.items[first..].iter();
                let items = items.map(|item| json!({ "id": item["id"], "seq": item["seq"] }));
                json!({ "items": items.collect::<Vec<_>>(), "revision": revision })
            }
            "holds" => json!({ "id": hold, "status": "open" }),
            _ => json!({ "id": id, "status": request.status }),
        };
        let status = if what == "holds" { 201 } else { 200 };
        Ok(reply(status, Some(revision), &answer))
    }

    fn decide(&mut self, id: &str) -> Outcome {
        let (request, status) = self.holds.get_mut(id).ok_or(GONE)?;
        if *status != "open" {
            return Err((409, "hold_decided"));
        }
        *status = "approved";
        let request_id = request.clone();
        let request = self.requests.get_mut(&request_id).ok_or(GONE)?;
        request.status = "running";
        let session_id = request.session.clone();
        let events = json!([{ "act": "hold_decided", "hold": id, "request": request_id }]);
        let session = self.open(&session_id)?;
        session.commit(&session_id, "decide_hold", &events);
        let revision = session.revision();
        Ok(reply(
            200,
            Some(revision),
            &json!({ "id": id, "status": "approved" }),
        ))
    }

    fn state(&mut self, id: &str) -> Outcome {
        let session = self.open(id)?;
        let values = session.state.iter();
        let (mut state, mut versions) = (json!({}), json!({}));
        for (key, (version, value)) in values {
            state[key] = value.clone();
            versions[key] = json!(version);
        }
        let revision = session.revision();
        let body = json!({ "state": state, "versions": versions, "revision": revision });
        Ok(reply(200, Some(revision), &body))
    }

    fn patch(&mut self, id: &str, body: &Value, if_match: Option<&str>) -> Outcome {
        let session = self.open(id)?;
        let revision = session.revision() + 1;
        if if_match.is_some_and(|tag| tag != format!("\"{}\"", revision - 1)) {
            return Err((412, "revision_mismatch"));
        }
        let mut versions = json!({});
        let mut added = 0;
        for (key, value) in body["set"].as_object().into_iter().flatten() {
            if key == "app:count" {
                added = value.as_u64().unwrap_or(0);
                continue;
            }
            let version = session.state.get(key).map_or(0, |(version, _)| *version);
            if body["if_versions"][key].as_u64() != Some(version) {
                return Err((409, "version_conflict"));
            }
            session.state.insert(key.clone(), (revision, value.clone()));
            versions[key] = json!(revision);
        }
        session.commit(id, "put_state", &json!([]));
        self.count += added;
        let body = json!({ "revision": revision, "versions": versions });
        Ok(reply(200, Some(revision), &body))
    }

    fn messages(&mut self, id: &str, query: &str) -> Outcome {
        let session = self.open(id)?;
        let end = parameter(query, "cursor").unwrap_or(session.items.len());
        let first = end.saturating_sub(parameter(query, "limit").unwrap_or(50));
        let mut body = json!({ "messages": session.items[first..end] });
        if first > 0 {
            body["next_cursor"] = json!(first.to_string());
        }
        Ok(reply(200, Some(session.revision()), &body))
    }

    /// Records stay when their session is deleted.
    fn records(&mut self, id: &str, query: &str) -> Outcome {
        let session = self.sessions.get(id).ok_or(GONE)?;
        let after = parameter(query, "after").unwrap_or(0);
        let limit = parameter(query, "limit").unwrap_or(50);
        let page: Vec<&Value> = session.records.iter().skip(after).take(limit).collect();
        let revision = session.revision();
        let body = json!({ "records": page, "revision": revision });
        Ok(reply(200, Some(revision), &body))
    }

    /// The events of a feed after a revision.
    pub(crate) fn events(&self, id: &str, after: usize) -> Vec<Bytes> {
        let records = self.sessions.get(id).map(|session| &session.records);
        let records = records.into_iter().flatten().skip(after);
        let events = records.map(|record| {
            let (seq, command) = (&record["seq"], &record["command"]);
            let data = json!({ "session_id": id, "revision": seq, "command": command });
            Bytes::from(format!("id: {seq}\nevent: record\ndata: {data}\n\n"))
        });
        events.collect()
    }
}

fn ended(request: &str, outcome: &str) -> Value {
    json!({ "act": "request_ended", "outcome": outcome, "request": request })
}

fn parameter(query: &str, name: &str) -> Option<usize> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name)?.1.parse().ok()
}

impl Session {
    fn revision(&self) -> u64 {
        self.records.len() as u64
    }

    fn append(&mut self, request: &str, contents: &[Value]) -> Value {
        let mut appended = Vec::new();
        for (index, content) in contents.iter().enumerate() {
            let seq = self.items.len() + 1;
            let role = if index + 1 == contents.len() {
                "assistant"
            } else {
                "user"
            };
            let id = format!("itm_{request}_{seq}");
            appended.push(json!({ "id": id, "kind": "message", "role": role, "seq": seq }));
            self.items
                .push(json!({ "id": id, "seq": seq, "content": content }));
        }
        json!({ "act": "items_appended", "items": appended, "request": request })
    }

    fn commit(&mut self, id: &str, command: &str, events: &Value) {
        let last = self
            .records
            .last()
            .and_then(|record| record["hash"].as_str());
        let prev = last.map_or_else(|| "0".repeat(64), str::to_owned);
        let seq = self.records.len() + 1;
        // Members are in their order, in the events as well.
        let mut record = json!({
            "at": seq, "command": command, "events": events, "prev_hash": prev,
            "principal": "local", "seq": seq, "session": id, "v": 1,
        });
        record["hash"] = json!(sha256(record.to_string().as_bytes()));
        self.records.push(record);
    }
}

//! MCP: rights and revisions of resources, read tokens, and bounds. `scripts/test-mcp` plays clients that others made.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::rig::{Answer, Feed, Rig, Who, text};

const VERSION: &str = "2026-07-28";
const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");

/// One request of the newer era, of a client that can show forms.
pub(crate) async fn ask(who: &Who, method: &str, params: Value) -> Answer {
    let name = params["uri"].as_str().or(params["name"].as_str());
    let name = name.map(str::to_owned);
    ask_as(who, method, params, name.as_deref()).await
}

/// The same, with a name in its headers.
async fn ask_as(who: &Who, method: &str, params: Value, name: Option<&str>) -> Answer {
    let mut params = params;
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let mut headers = vec![
        ("mcp-protocol-version", VERSION),
        ("mcp-method", method),
        ("accept", "application/json, text/event-stream"),
    ];
    headers.extend(name.map(|name| ("mcp-name", name)));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    who.send("POST", "/mcp", &headers, body.to_string()).await
}

async fn read(who: &Who, uri: &str) -> Result<Value, Value> {
    let answer = ask(who, "resources/read", json!({"uri": uri})).await;
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    if let Some(text) = body["result"]["contents"][0]["text"].as_str() {
        return Ok(serde_json::from_str(text).expect("JSON"));
    }
    assert!(body["error"].is_object(), "{body}");
    Err(body["error"].clone())
}

async fn session_of(who: &Who, user: &str) -> String {
    let body = json!({"app": "demo", "user": user});
    text(&who.post("/v1/sessions", &body).await.ok(201), "id")
}

async fn say(who: &Who, session: &str, content: &str) -> Value {
    let body = json!({"role": "user", "content": content});
    let path = format!("/v1/sessions/{session}/messages");
    who.post(&path, &body).await.ok(201)
}

async fn token_of(who: &Who, session: &str) -> Who {
    let path = format!("/v1/sessions/{session}/tokens");
    let made = who.post(&path, &json!({})).await.ok(201);
    Who {
        key: Some(text(&made, "token")),
        ..who.clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_readers_see_whole_revisions_while_one_writes() {
    let rig = Rig::on_disk().await;
    let client = rig.key(&["client"]).await;
    let session = session_of(&client, "ann").await;
    let uri = format!("conversation://{session}/history");
    let readers = (0..32).map(|_| {
        let (client, uri) = (client.clone(), uri.clone());
        tokio::spawn(async move {
            let mut seen = BTreeSet::new();
            for _ in 0..8 {
                let history = read(&client, &uri).await.expect("it may be read");
                let revision = history["rev"].as_u64().expect("a revision");
                let messages = history["messages"].as_array().expect("messages");
                // The first record is the session; each later one has one message.
                assert_eq!(messages.len() as u64, revision - 1);
                let fixed = read(&client, &format!("{uri}?rev={revision}")).await;
                let again = read(&client, &format!("{uri}?rev={revision}")).await;
                assert_eq!(fixed, again);
                assert_eq!(
                    fixed.expect("it may be read")["messages"],
                    history["messages"]
                );
                seen.insert(revision);
            }
            seen
        })
    });
    let readers: Vec<_> = readers.collect();
    for number in 0..60 {
        say(&client, &session, &format!("message {number}")).await;
    }
    let mut seen = BTreeSet::new();
    for reader in readers {
        seen.extend(reader.await.expect("no panic"));
    }
    assert!(seen.len() > 1, "the readers saw only {seen:?}");
    rig.stop().await;
}

#[tokio::test]
async fn a_read_token_reads_its_session_and_nothing_else() {
    let rig = Rig::in_memory().await;
    let client = rig.key(&["client"]).await;
    let (own, other) = (
        session_of(&client, "ann").await,
        session_of(&client, "ann").await,
    );
    say(&client, &own, "hello").await;
    let token = token_of(&client, &own).await;
    let messages = token
        .get(&format!("/v1/sessions/{own}/messages"))
        .await
        .ok(200);
    assert_eq!(messages["messages"][0]["content"], "hello");
    let plain = read(&token, "conversation://current-history").await;
    assert_eq!(plain, Ok(json!([{"role": "user", "content": "hello"}])));
    // Like a missing one.
    let foreign = token.get(&format!("/v1/sessions/{other}/messages")).await;
    foreign.refused(404, "not_found");
    let missing = "ses_01977777777770008000000000000001";
    let missing = token.get(&format!("/v1/sessions/{missing}/messages")).await;
    missing.refused(404, "not_found");
    assert_eq!(token.get("/v1/agents").await.ok(200)["agents"], json!([]));
    for path in ["/v1/sessions", "/v1/holds", "/v1/events", "/v1/keys"] {
        token.get(path).await.refused(403, "forbidden");
    }
    let of_own = |part: &str| format!("/v1/sessions/{own}{part}");
    for (path, body) in [
        (of_own("/messages"), json!({"role": "user", "content": "x"})),
        (of_own("/requests"), json!({"input": "x"})),
        (of_own("/tokens"), json!({})),
        (of_own("/close"), json!({})),
        (of_own("/fork"), json!({})),
        (
            "/v1/sessions".to_owned(),
            json!({"app": "demo", "user": "ann"}),
        ),
    ] {
        token.post(&path, &body).await.refused(403, "forbidden");
    }
    token.delete(&of_own("")).await.refused(403, "forbidden");
    let state = json!({"set": {"a": 1}});
    token
        .patch(&of_own("/state"), &state)
        .await
        .refused(403, "forbidden");
    // A session that is gone takes its tokens along.
    client.delete(&of_own("")).await;
    token
        .get(&of_own("/messages"))
        .await
        .refused(401, "unauthenticated");
    rig.stop().await;
}

#[tokio::test]
async fn a_worker_bound_to_agents_appends_answers_and_no_words_of_the_user() {
    let rig = Rig::in_memory().await;
    let client = rig.key(&["client"]).await;
    let worker = rig.worker(&["shop"]).await;
    let body = json!({"app": "demo", "user": "ann", "agent": "shop"});
    let session = text(&client.post("/v1/sessions", &body).await.ok(201), "id");
    let path = format!("/v1/sessions/{session}/messages");
    let said = |role: &str| json!({"role": role, "content": "x"});
    let refused = worker.post(&path, &said("user")).await;
    refused.refused(422, "item_malformed");
    worker.post(&path, &said("assistant")).await.ok(201);
    let elsewhere = session_of(&client, "ann").await;
    let path = format!("/v1/sessions/{elsewhere}/messages");
    worker
        .post(&path, &said("assistant"))
        .await
        .refused(404, "not_found");
    rig.stop().await;
}

#[tokio::test]
async fn a_legacy_session_is_worth_nothing_to_another_caller() {
    let rig = Rig::in_memory().await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let (accept, id) = (ACCEPT, legacy_session(&ann).await);
    let session = ("mcp-session-id", id.as_str());
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).to_string();
    for method in ["POST", "GET", "DELETE"] {
        let body = if method == "POST" {
            list.clone()
        } else {
            String::new()
        };
        let foreign = bob.send(method, "/mcp", &[accept, session], body).await;
        assert_eq!(foreign.status, 404, "{method}");
        let own = ann
            .send("POST", "/mcp", &[accept, session], list.clone())
            .await;
        assert_eq!(own.status, 200, "after {method}");
    }
    assert_eq!(
        ann.send("DELETE", "/mcp", &[accept, session], "")
            .await
            .status,
        200
    );
    let gone = ann.send("POST", "/mcp", &[accept, session], list).await;
    assert_eq!(gone.status, 404);
    rig.stop().await;
}

#[tokio::test]
async fn a_read_token_ends_at_its_time_and_with_the_key_that_made_it() {
    let rig = Rig::with_clock().await;
    let admin = rig.key(&["admin"]).await;
    let client = rig.key(&["client"]).await;
    let session = session_of(&client, "ann").await;
    let path = format!("/v1/sessions/{session}/messages");
    let brief = token_of(&client, &session).await;
    brief.get(&path).await.ok(200);
    admin
        .post("/v1/dev/clock", &json!({"step_seconds": 3_601}))
        .await;
    brief.get(&path).await.refused(401, "unauthenticated");
    let fresh = token_of(&client, &session).await;
    fresh.get(&path).await.ok(200);
    let keys = admin.get("/v1/keys").await.ok(200);
    let keys = keys["keys"].as_array().expect("keys");
    let is_client = |key: &&Value| key["roles"] == json!(["client"]);
    let key = keys.iter().find(is_client).expect("the key of the client");
    admin.delete(&format!("/v1/keys/{}", text(key, "id"))).await;
    fresh.get(&path).await.refused(401, "unauthenticated");
    rig.stop().await;
}

#[tokio::test]
async fn a_tail_after_a_rewind_says_that_it_begins_anew() {
    let rig = Rig::in_memory().await;
    let (client, operator) = (rig.key(&["client"]).await, rig.key(&["operator"]).await);
    let session = session_of(&client, "ann").await;
    for content in ["one", "two", "three"] {
        say(&client, &session, content).await;
    }
    let uri = format!("conversation://{session}/history?after=4");
    let tail = read(&client, &uri).await.expect("it may be read");
    assert_eq!(
        (tail["messages"].clone(), tail["reset"].clone()),
        (json!([]), Value::Null)
    );
    let rewind = format!("/v1/sessions/{session}/rewind");
    operator.post(&rewind, &json!({"to": 3})).await.ok(200);
    say(&client, &session, "another").await;
    let tail = read(&client, &uri).await.expect("it may be read");
    let contents: Vec<_> = tail["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .collect();
    let contents: Vec<_> = contents.iter().map(|one| one["content"].clone()).collect();
    assert_eq!(
        (contents, tail["reset"].clone()),
        (
            vec![json!("one"), json!("two"), json!("another")],
            json!(true)
        )
    );
    rig.stop().await;
}

#[tokio::test]
async fn an_address_that_names_nothing_is_told_like_a_foreign_one() {
    let rig = Rig::in_memory().await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let session = session_of(&ann, "ann").await;
    let mut told = BTreeSet::new();
    for uri in [
        format!("conversation://{session}/history"),
        "conversation://ses_01977777777770008000000000000001/history".to_owned(),
        "conversation://nothing/history".to_owned(),
        "file:///etc/passwd".to_owned(),
    ] {
        let mut error = read(&bob, &uri).await.expect_err("it may not be read");
        assert_eq!(error["data"]["uri"].take(), uri);
        told.insert(error.to_string());
    }
    assert_eq!(told.len(), 1, "{told:?}");
    rig.stop().await;
}

async fn call(who: &Who, tool: &str, arguments: Value, more: Value) -> Value {
    let mut params = json!({"name": tool, "arguments": arguments});
    for (name, value) in more.as_object().expect("members") {
        params[name] = value.clone();
    }
    let answer = ask(who, "tools/call", params).await;
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert!(body["result"].is_object(), "{body}");
    body["result"].clone()
}

#[tokio::test]
async fn attack_30_headers_that_contradict_the_body_are_refused_and_nothing_happens() {
    let rig = Rig::in_memory().await;
    let client = rig.client("ann").await;
    let params = json!({"name": "open_session", "arguments": {"app": "demo"}});
    for name in [None, Some("get_state"), Some("open_session, get_state")] {
        let answer = ask_as(&client, "tools/call", params.clone(), name).await;
        let body = answer.ok(400);
        assert_eq!(body["error"]["code"], -32020, "{body}");
    }
    let sessions = client.get("/v1/sessions").await.ok(200);
    assert_eq!(sessions["sessions"], json!([]));
    rig.stop().await;
}

#[tokio::test]
async fn attack_32_a_forged_request_state_decides_nothing() {
    let rig = Rig::in_memory().await;
    let (ann, eve) = (rig.client("ann").await, rig.client("eve").await);
    let worker = rig.worker(&["math"]).await;
    let body = json!({"app": "demo", "agent": "math"});
    let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
    let started = format!("/v1/sessions/{session}/requests");
    let started = ann.post(&started, &json!({"input": "Go"})).await.ok(201);
    let request = text(&started, "id");
    let claim = json!({"agent": "math"});
    let claimed = worker.post("/v1/work/claim", &claim).await.ok(200);
    let hold =
        json!({"fence": claimed["requests"][0]["fence"], "kind": "question", "title": "Sure?"});
    let path = format!("/v1/requests/{request}/holds");
    let hold = text(&worker.post(&path, &hold).await.ok(201), "id");
    let read = json!({"request_id": request});
    let asked = call(&ann, "get_request", read.clone(), json!({})).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    assert!(asked["inputRequests"][&hold].is_object(), "{asked}");
    let state = text(&asked, "requestState");
    let answer = |word: &str| json!({&hold: {"action": "accept", "content": {"answer": word}}});
    let with =
        |state: &str, word: &str| json!({"requestState": state, "inputResponses": answer(word)});
    let mut forged = state.clone();
    forged.replace_range(60..61, if &state[60..61] == "A" { "B" } else { "A" });
    let refused = [
        call(&ann, "get_request", read.clone(), with(&forged, "yes")).await,
        call(&ann, "get_request", read.clone(), with(&state[..40], "yes")).await,
        call(&eve, "get_request", read.clone(), with(&state, "yes")).await,
        call(
            &ann,
            "start_task",
            json!({"session_id": session, "input": "x"}),
            with(&state, "yes"),
        )
        .await,
    ];
    for refused in refused {
        assert_eq!(refused["isError"], true, "{refused}");
    }
    let path = format!("/v1/holds/{hold}");
    assert_eq!(ann.get(&path).await.ok(200)["status"], "open");
    // The true one decides once, and again to the same effect.
    for _ in 0..2 {
        let done = call(&ann, "get_request", read.clone(), with(&state, "yes")).await;
        assert_eq!(done["structuredContent"]["status"], "running", "{done}");
    }
    let other = call(&ann, "get_request", read, with(&state, "no")).await;
    assert_eq!(
        other["structuredContent"]["code"], "hold_decided",
        "{other}"
    );
    rig.stop().await;
}

/// Begins a session of the older era, and gives its id.
async fn legacy_session(who: &Who) -> String {
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}}});
    let opened = who
        .send("POST", "/mcp", &[ACCEPT], initialize.to_string())
        .await;
    let id = opened.header("mcp-session-id").expect("a session");
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let headers = [ACCEPT, ("mcp-session-id", id)];
    let done = who
        .send("POST", "/mcp", &headers, initialized.to_string())
        .await;
    assert_eq!(done.status, 202);
    id.to_owned()
}

/// The id of the last event of a stream that has a sealed part, as a client keeps it.
async fn last_event(feed: &mut Feed) -> String {
    let ids = |raw: &[u8]| {
        let text = String::from_utf8_lossy(raw).into_owned();
        let ids = text.lines().filter_map(|line| line.strip_prefix("id:"));
        ids.map(|id| id.trim().to_owned())
            .rfind(|id| id.contains('/'))
    };
    for _ in 0..50 {
        if let Some(id) = ids(&feed.raw) {
            return id;
        }
        drop(
            feed.next_within(std::time::Duration::from_millis(100))
                .await,
        );
    }
    panic!("no event has an id: {}", String::from_utf8_lossy(&feed.raw));
}

/// The next message of a stream.
async fn message(feed: &mut Feed) -> Value {
    loop {
        let event = feed.next().await.expect("the stream goes on");
        if !event.data.is_null() {
            return event.data;
        }
    }
}

#[tokio::test]
async fn a_legacy_subscription_goes_on_after_a_restart() {
    let rig = Rig::on_disk().await;
    let key = rig.key(&["client"]).await.key;
    let who = |rig: &Rig| Who {
        key: key.clone(),
        ..rig.nobody()
    };
    let ann = who(&rig);
    let session = session_of(&ann, "ann").await;
    let (accept, id) = (ACCEPT, legacy_session(&ann).await);
    let legacy = ("mcp-session-id", id.as_str());
    let only_events = ("accept", "text/event-stream");
    let mut stream = ann.follow_with("/mcp", &[only_events, legacy]).await;
    let uri = format!("conversation://{session}/history");
    let subscribe =
        json!({"jsonrpc": "2.0", "id": 2, "method": "resources/subscribe", "params": {"uri": uri}});
    let done = ann
        .send("POST", "/mcp", &[accept, legacy], subscribe.to_string())
        .await;
    assert_eq!(done.status, 200);
    let last = last_event(&mut stream).await;
    drop(stream);
    let rig = rig.restart().await;
    let ann = who(&rig);
    say(&ann, &session, "while nobody listened").await;
    // The client comes back with what it has, and hears of what it missed, and of what comes.
    let resumed = [only_events, legacy, ("last-event-id", last.as_str())];
    let mut stream = ann.follow_with("/mcp", &resumed).await;
    let missed = message(&mut stream).await;
    assert_eq!(missed["params"]["uri"], uri.as_str(), "{missed}");
    say(&ann, &session, "now").await;
    let told = message(&mut stream).await;
    assert_eq!(told["method"], "notifications/resources/updated");
    // Another caller cannot use these ids.
    let bob = rig.client("bob").await;
    let foreign = bob.send("GET", "/mcp", &resumed, "").await;
    assert_eq!(foreign.status, 404);
    rig.stop().await;
}

#[tokio::test]
async fn attack_09_two_requests_with_one_id_are_told_apart_by_refusing_one() {
    let rig = Rig::in_memory().await;
    let ann = rig.client("ann").await;
    let session = session_of(&ann, "ann").await;
    let (accept, id) = (ACCEPT, legacy_session(&ann).await);
    let legacy = ("mcp-session-id", id.as_str());
    // The first waits for an answer that no worker gives; the others come while it does.
    let ask = |input: &str| {
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "start_task",
            "arguments": {"session_id": session, "agent": "slow", "input": input, "wait_seconds": 2}}})
        .to_string()
    };
    let headers = [accept, legacy];
    let (first, second) = tokio::join!(
        ann.send("POST", "/mcp", &headers, ask("one")),
        ann.send("POST", "/mcp", &headers, ask("two")),
    );
    let mut statuses = [first.status, second.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 422]);
    // Afterwards the id is free again.
    let list = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list"}).to_string();
    assert_eq!(ann.send("POST", "/mcp", &headers, list).await.status, 200);
    rig.stop().await;
}

#[tokio::test]
async fn a_stream_of_a_read_token_ends_with_its_session() {
    let rig = Rig::in_memory().await;
    let client = rig.key(&["client"]).await;
    let own = session_of(&client, "ann").await;
    let token = token_of(&client, &own).await;
    let uri = format!("conversation://{own}/history");
    let listen = json!({"notifications": {"resourceSubscriptions": [uri]}});
    let listening = tokio::spawn(async move { ask(&token, "subscriptions/listen", listen).await });
    // By the end of these calls the stream is open.
    for _ in 0..20 {
        say(&client, &own, "hello").await;
    }
    let deleted = client.delete(&format!("/v1/sessions/{own}")).await;
    assert_eq!(deleted.status, 204);
    let stream = listening.await.expect("no panic");
    assert_eq!(stream.status, 200);
    let text = String::from_utf8_lossy(&stream.body).into_owned();
    assert!(text.contains("subscriptions/acknowledged"), "{text}");
    rig.stop().await;
}

#[tokio::test]
async fn annotations_and_metadata_belong_to_a_revision_and_survive_a_rewind() {
    let rig = Rig::in_memory().await;
    let (client, operator) = (rig.client("ann").await, rig.key(&["operator"]).await);
    let session = session_of(&client, "ann").await;
    let said = |role: &str, text: &str| json!({"role": role, "content": text, "annotations": {"by": "test"}});
    let messages = format!("/v1/sessions/{session}/messages");
    let mut seqs = Vec::new();
    for text in ["one", "two", "three"] {
        let written = client.post(&messages, &said("user", text)).await.ok(201);
        seqs.push(written["seq"].as_u64().expect("a number"));
    }
    let annotations = |seq: u64| format!("/v1/sessions/{session}/messages/{seq}/annotations");
    let metadata = format!("/v1/sessions/{session}/metadata");
    let unmarked = client.get(&messages).await.ok(200);
    let first = client
        .patch(
            &annotations(seqs[1]),
            &json!({"annotations": {"mood": "calm", "by": "me"}}),
        )
        .await
        .ok(200);
    let marked = first["revision"].as_u64().expect("a number");
    client
        .patch(&metadata, &json!({"metadata": {"intents": ["travel"]}}))
        .await
        .ok(200);
    let history = client.get(&messages).await.ok(200);
    let of = |history: &Value, at: usize| history["messages"][at]["annotations"].clone();
    assert_eq!(of(&history, 0), json!({"by": "test"}));
    assert_eq!(of(&history, 1), json!({"by": "me", "mood": "calm"}));
    // Members are changed one by one; null removes one.
    client
        .patch(
            &annotations(seqs[1]),
            &json!({"annotations": {"mood": null, "new": 1}, "if_version": marked}),
        )
        .await
        .ok(200);
    let stale = json!({"annotations": {"mood": 1}, "if_version": marked});
    client
        .patch(&annotations(seqs[1]), &stale)
        .await
        .refused(409, "version_conflict");
    let now = client.get(&messages).await.ok(200);
    assert_eq!(of(&now, 1), json!({"by": "me", "new": 1}));
    let before = client.get(&format!("{messages}?at={marked}")).await.ok(200);
    assert_eq!(of(&before, 1), json!({"by": "me", "mood": "calm"}));
    let earlier = unmarked["revision"].as_u64().expect("a number");
    let earlier = client
        .get(&format!("{messages}?at={earlier}"))
        .await
        .ok(200);
    assert_eq!(earlier["messages"], unmarked["messages"]);
    // A rewind takes them back, and the revision before it still has them.
    let last = now["revision"].as_u64().expect("a number");
    let rewind = json!({"to": marked - 1});
    operator
        .post(&format!("/v1/sessions/{session}/rewind"), &rewind)
        .await
        .ok(200);
    let rewound = client.get(&messages).await.ok(200);
    assert_eq!(of(&rewound, 1), json!({"by": "test"}));
    let known = client.get(&metadata).await.ok(200);
    assert_eq!(known["metadata"], json!({}));
    let past = client.get(&format!("{messages}?at={last}")).await.ok(200);
    assert_eq!(of(&past, 1), json!({"by": "me", "new": 1}));
    let uri = format!("conversation://{session}/history?rev={last}");
    let read = read(&client, &uri).await.expect("it may be read");
    assert_eq!(read["metadata"], json!({"intents": ["travel"]}));
    assert_eq!(
        read["messages"][1]["annotations"],
        json!({"by": "me", "new": 1})
    );
    // Missing and foreign messages cannot be annotated, and annotations are bounded.
    let some = json!({"annotations": {"a": 1}});
    client
        .patch(&annotations(999), &some)
        .await
        .refused(404, "not_found");
    let bob = rig.client("bob").await;
    bob.patch(&annotations(seqs[0]), &some)
        .await
        .refused(404, "not_found");
    bob.get(&metadata).await.refused(404, "not_found");
    let long = json!({"annotations": {"a": "x".repeat(5_000)}});
    client
        .patch(&annotations(seqs[0]), &long)
        .await
        .refused(422, "invalid_body");
    rig.stop().await;
}

//! Hostile input: every answer is bounded, nothing panics, and nothing changes.

mod files;
mod wire;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::rest::{act, claim, new_session_of, start, turn};
use crate::rig::{Answer, Rig, Who, panics, text};

/// Objects of each kind, and callers of each kind, to throw things at.
struct Range {
    rig: Rig,
    ann: Who,
    helper: Who,
    boss: Who,
    admin: Who,
    operator: Who,
    session: String,
    task: String,
    request: String,
    hold: String,
}

impl Range {
    async fn on(rig: Rig) -> Self {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
        let (admin, operator) = (rig.key(&["admin"]).await, rig.key(&["operator"]).await);
        let session = new_session_of(&ann, "helper").await;
        turn(&helper, &session, "helper", "a", "b").await;
        start(&ann, &session, "helper", "c").await;
        let claimed = claim(&helper, "helper").await;
        let hold = json!({"kind": "approval", "title": "t", "action": {"tool": "pay", "args": {}}});
        let hold = act(&helper, &claimed, "holds", hold).await.ok(201);
        let put = json!({"set": {"a": 1, "user:b": 2}});
        ann.patch(&format!("/v1/sessions/{session}/state"), &put)
            .await
            .ok(200);
        admin
            .patch("/v1/state/app/demo", &json!({"set": {"c": 3}}))
            .await
            .ok(200);
        Self {
            rig,
            ann,
            helper,
            boss,
            admin,
            operator,
            session,
            task: text(&claimed, "task_id"),
            request: text(&claimed, "id"),
            hold: text(&hold, "id"),
        }
    }

    /// Every route that takes a body, with who may call it.
    fn doors(&self) -> Vec<(&'static str, String, &Who)> {
        let session = format!("/v1/sessions/{}", self.session);
        let request = format!("/v1/requests/{}", self.request);
        vec![
            ("POST", "/v1/sessions".to_owned(), &self.ann),
            ("PATCH", session.clone(), &self.ann),
            ("POST", format!("{session}/close"), &self.ann),
            ("POST", format!("{session}/requests"), &self.ann),
            ("PATCH", format!("{session}/state"), &self.ann),
            ("PATCH", "/v1/state/user/demo/ann".to_owned(), &self.ann),
            ("PATCH", "/v1/state/app/demo".to_owned(), &self.admin),
            ("POST", format!("{request}/items"), &self.helper),
            ("POST", format!("{request}/holds"), &self.helper),
            ("POST", format!("{request}/complete"), &self.helper),
            ("POST", format!("{request}/fail"), &self.helper),
            ("POST", format!("{request}/cancel"), &self.ann),
            ("POST", format!("{request}/heartbeat"), &self.helper),
            ("POST", format!("{request}/release"), &self.helper),
            ("POST", format!("{request}/resume"), &self.boss),
            (
                "POST",
                format!("/v1/holds/{}/decision", self.hold),
                &self.boss,
            ),
            ("POST", format!("/v1/tasks/{}/close", self.task), &self.ann),
            ("POST", format!("/v1/tasks/{}/cancel", self.task), &self.ann),
            ("POST", "/v1/work/claim".to_owned(), &self.helper),
            ("POST", "/v1/keys".to_owned(), &self.admin),
            (
                "PUT",
                "/v1/agents/helper/resume_address".to_owned(),
                &self.helper,
            ),
        ]
    }

    /// A digest over everything that an operator can read: sessions, records, state, holds, keys.
    async fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let mut sessions = Vec::new();
        let mut path = "/v1/sessions?limit=200".to_owned();
        loop {
            let page = self.operator.get(&path).await.ok(200);
            sessions.extend(page["sessions"].as_array().cloned().unwrap_or_default());
            match page.get("next_cursor").and_then(Value::as_str) {
                Some(cursor) => path = format!("/v1/sessions?limit=200&cursor={cursor}"),
                None => break,
            }
        }
        for session in &sessions {
            hash.update(session.to_string());
            let path = format!("/v1/sessions/{}", text(session, "id"));
            for route in ["records?limit=1000", "state", "tree", "messages"] {
                let answer = self.operator.get(&format!("{path}/{route}")).await;
                answer.ok(200);
                hash.update(&answer.body);
            }
        }
        for path in [
            "/v1/holds",
            "/v1/holds?status=decided",
            "/v1/state/app/demo",
            "/v1/state/user/demo/ann",
            "/v1/audit/records?limit=1000",
        ] {
            let answer = self.operator.get(path).await;
            answer.ok(200);
            hash.update(&answer.body);
        }
        data_encoding::HEXLOWER.encode(&hash.finalize())
    }
}

/// A word as it stands in a query.
fn percent(word: &str) -> String {
    let hex = data_encoding::HEXUPPER.encode(word.as_bytes());
    let pairs: Vec<&str> = (0..hex.len())
        .step_by(2)
        .map(|at| &hex[at..at + 2])
        .collect();
    format!("%{}", pairs.join("%"))
}

/// Whatever was sent was refused in few words.
#[track_caller]
fn check_refused(what: &str, answer: &Answer) {
    let is_refused = (400..=431).contains(&answer.status);
    assert!(is_refused, "{what}: {} {}", answer.status, answer.text());
    let length = answer.body.len();
    assert!(length < 4_096, "{what}: {length} bytes of answer");
}

/// Throws bodies at every door.
async fn throw(range: &Range, bodies: &[(&str, Vec<u8>)]) {
    let (before, panicked) = (range.digest().await, panics());
    for (name, body) in bodies {
        for (method, path, who) in range.doors() {
            let answer = who.send(method, &path, &[], body.clone()).await;
            check_refused(&format!("{name} to {method} {path}"), &answer);
        }
    }
    assert_eq!(panics(), panicked, "nothing panics");
    assert_eq!(range.digest().await, before, "nothing changes");
}

#[tokio::test]
async fn bodies_that_are_not_plain_json_are_refused_at_every_door() {
    let range = Range::on(Rig::on_disk().await).await;
    let deep = |open: &str, close: &str| {
        format!("{}{}", open.repeat(10_000), close.repeat(10_000)).into_bytes()
    };
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("arrays 10k deep", deep("[", "]")),
        ("objects 10k deep", deep("{\"a\":", "}")),
        ("arrays that never close", "[".repeat(100_000).into_bytes()),
        (
            "a deep value",
            format!("{{\"app\":{}1{}}}", "[".repeat(100), "]".repeat(100)).into_bytes(),
        ),
        (
            "a key twice",
            br#"{"app":"a","app":"b","fence":1,"fence":2,"set":{},"set":{}}"#.to_vec(),
        ),
        (
            "a key twice in other letters",
            br#"{"app":"a","\u0061pp":"b"}"#.to_vec(),
        ),
        (
            "a key twice deep inside",
            br#"{"set":{"x":{"a":1,"a":2}}}"#.to_vec(),
        ),
        (
            "a lone surrogate",
            br#"{"app":"\ud800","user":"\udc00"}"#.to_vec(),
        ),
        (
            "surrogates the wrong way round",
            br#"{"name":"\udc00\ud800"}"#.to_vec(),
        ),
        (
            "bytes that are not UTF-8",
            b"{\"app\":\"\xff\xfe\"}".to_vec(),
        ),
        ("an overlong encoding", b"{\"app\":\"\xc0\xaf\"}".to_vec()),
        (
            "an encoded surrogate",
            b"{\"app\":\"\xed\xa0\x80\"}".to_vec(),
        ),
        ("a NUL", b"{\"app\":\"a\0b\"}".to_vec()),
        ("an escaped NUL", br#"{"app":"a\u0000b"}"#.to_vec()),
        ("a byte order mark", b"\xef\xbb\xbf{}".to_vec()),
        (
            "a number no double holds",
            br#"{"fence":123456789012345678901234567890}"#.to_vec(),
        ),
        ("a huge exponent", br#"{"fence":1e999999999}"#.to_vec()),
        ("NaN", br#"{"fence":NaN}"#.to_vec()),
        ("a list", b"[]".to_vec()),
        ("null", b"null".to_vec()),
        ("text", b"\"x\"".to_vec()),
        ("a number", b"5".to_vec()),
        ("two values", b"{}{}".to_vec()),
        ("a comment", b"{/* */}".to_vec()),
        ("a trailing comma", br#"{"a":1,}"#.to_vec()),
        ("half an object", br#"{"app":"a"#.to_vec()),
        ("an unknown field", br#"{"surprise":1}"#.to_vec()),
        (
            "a prototype",
            br#"{"__proto__":{"roles":["admin"]},"constructor":1}"#.to_vec(),
        ),
        (
            "XML",
            b"<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY x SYSTEM \"file:///etc/passwd\">]>"
                .to_vec(),
        ),
        ("gzip", vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0]),
    ];
    throw(&range, &bodies).await;
}

#[tokio::test]
async fn values_of_the_wrong_type_are_refused_at_every_door() {
    let range = Range::on(Rig::in_memory().await).await;
    // The names of all fields; each door knows some of them and no value is right for any.
    let names = [
        "app",
        "user",
        "name",
        "agent",
        "labels",
        "state",
        "ttl_seconds",
        "ttl_mode",
        "cancel_live",
        "input",
        "task_id",
        "parent_request_id",
        "parent_fence",
        "lease",
        "items",
        "output",
        "close_on",
        "fence",
        "task_state",
        "error",
        "worker",
        "max",
        "wait_seconds",
        "lease_seconds",
        "request_id",
        "kind",
        "title",
        "message",
        "action",
        "url",
        "allowed",
        "quorum",
        "expires_in_seconds",
        "on_expiry",
        "decide_by",
        "decision",
        "digest",
        "args",
        "comment",
        "reason",
        "hold_id",
        "set",
        "delete",
        "if_versions",
        "merge",
        "roles",
        "agents",
    ];
    let (before, panicked) = (range.digest().await, panics());
    for name in names {
        for value in [
            "-1",
            "1.5",
            "true",
            "[[]]",
            "{\"x\":{\"y\":[]}}",
            "\"\\u0007\"",
            "18446744073709551615",
        ] {
            let body = format!("{{\"{name}\":{value}}}");
            for (method, path, who) in range.doors() {
                // These take anything, or mean what they say.
                let is_meant = matches!((name, value), ("cancel_live", "true"))
                    || matches!(name, "task_state" | "error")
                    || matches!(
                        (name, value),
                        ("input", "\"\\u0007\"") | ("set", "{\"x\":{\"y\":[]}}")
                    )
                    || (path.ends_with("/claim") && name == "worker");
                if is_meant {
                    continue;
                }
                let answer = who.send(method, &path, &[], body.clone()).await;
                check_refused(&format!("{body} to {method} {path}"), &answer);
            }
        }
    }
    assert_eq!(panics(), panicked);
    assert_eq!(range.digest().await, before);
}

#[tokio::test]
async fn state_keys_have_four_scopes_in_one_spelling() {
    let range = Range::on(Rig::on_disk().await).await;
    let (before, panicked) = (range.digest().await, panics());
    let long = "x".repeat(513);
    let keys = [
        "App:x",
        "APP:x",
        "aPP:x",
        "User:x",
        "USER:x",
        "Temp:x",
        "TEMP:x",
        "temp :x",
        " temp:x",
        "app :x",
        " app:x",
        "app\u{200b}:x",
        "ａpp:x",
        "аpp:x",
        "session:x",
        "x:y",
        ":x",
        ":",
        "app:",
        "user:",
        "temp:",
        "",
        "a\nb",
        "a\u{7f}b",
        "app:a\rb",
        "user:\u{1b}[31m",
        "private:x",
        "task:x",
        "app::",
        &long,
    ];
    let session = format!("/v1/sessions/{}", range.session);
    for key in keys {
        let is_plain = key == "app::";
        for body in [
            json!({"set": {key: 1}}),
            json!({"delete": [key]}),
            json!({"set": {"ok": 1}, "if_versions": {key: 1}}),
            json!({"set": {"ok": 1}, "merge": {key: "add"}}),
        ] {
            let answer = range.ann.patch(&format!("{session}/state"), &body).await;
            check_refused(&format!("{key:?} in {body}"), &answer);
            if !is_plain && key != "app:" && !key.starts_with("app:") {
                answer.refused(422, "bad_state_key");
            }
            let answer = range.admin.patch("/v1/state/app/demo", &body).await;
            let is_app = key.starts_with("app:") && key.len() > 4 && !key.contains('\r');
            if !is_app && key.contains([':', '\n', '\u{7f}', '\u{1b}']) {
                // In a route of one scope a colon after the prefix belongs to the name.
                let named = format!("app:{key}");
                let is_name = !key.chars().any(char::is_control) && named.len() <= 512;
                assert!(is_name || answer.status == 422, "{key:?} {}", answer.text());
            }
        }
        let created = json!({"app": "demo", "state": {key: 1}});
        let answer = range.ann.post("/v1/sessions", &created).await;
        check_refused(&format!("{key:?} in a new session"), &answer);
    }
    assert_eq!(panics(), panicked);
    // The admin wrote some odd names into its own scope; the session itself is as it was.
    assert_ne!(before, String::new());
    let state = range.ann.get(&format!("{session}/state")).await.ok(200);
    let own: Vec<&String> = state["state"]
        .as_object()
        .expect("an object")
        .keys()
        .filter(|key| !key.starts_with("app:"))
        .collect();
    assert_eq!(own, ["a", "user:b"]);
}

#[tokio::test]
async fn ids_that_are_none_find_nothing() {
    let range = Range::on(Rig::on_disk().await).await;
    let (before, panicked) = (range.digest().await, panics());
    let (session, request) = (range.session.clone(), range.request.clone());
    let long = "a".repeat(10_000);
    let upper = session.to_uppercase();
    let mixed = format!("ses_{}", session[4..].to_uppercase());
    let padded = format!("{session}%20");
    let other_kind = session.replace("ses_", "req_");
    let ids = [
        "x",
        "ses_",
        "ses_x",
        "-1",
        "0",
        "null",
        "undefined",
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "%00",
        "a%00b",
        "%0d%0aset-cookie:%20a=b",
        "%ff%fe",
        "'%20or%20'1'='1",
        "*",
        "%25",
        "ses_00000000000000000000000000000000",
        "ses_ffffffffffffffffffffffffffffffff",
        "{session_id}",
        "%E2%80%AE",
        &long,
        &upper,
        &mixed,
        &padded,
        &other_kind,
        &request,
    ];
    for id in ids {
        for (method, path) in [
            ("GET", format!("/v1/sessions/{id}")),
            ("DELETE", format!("/v1/sessions/{id}")),
            ("GET", format!("/v1/sessions/{id}/messages")),
            ("GET", format!("/v1/sessions/{id}/tree")),
            ("GET", format!("/v1/sessions/{id}/state")),
            ("GET", format!("/v1/sessions/{id}/events")),
            ("GET", format!("/v1/requests/{id}x")),
            ("GET", format!("/v1/tasks/{id}")),
            ("GET", format!("/v1/holds/{id}")),
            ("GET", format!("/v1/state/user/demo/{id}")),
        ] {
            let answer = range.ann.send(method, &path, &[], "").await;
            check_refused(&format!("{method} {path}"), &answer);
            assert!(answer.header("set-cookie").is_none());
        }
        range
            .admin
            .delete(&format!("/v1/keys/{id}"))
            .await
            .refused(404, "not_found");
    }
    assert_eq!(panics(), panicked);
    assert_eq!(range.digest().await, before);
}

#[tokio::test]
async fn filters_are_values_and_never_queries() {
    let range = Range::on(Rig::on_disk().await).await;
    let panicked = panics();
    let before = range.digest().await;
    let hostile = [
        "'",
        "%22",
        "%27%20OR%201=1--",
        "%27;DROP%20TABLE%20sessions;--",
        "%25",
        "_",
        "%5C",
        "$.a",
        "a%22:%22b",
        "{%22$ne%22:null}",
        "[1]",
        "*",
        "MATCH%20x",
        "NEAR(",
        "a%0d%0ab",
        "%E2%80%AE",
        "%F0%9F%92%A9",
        "__proto__",
        "../../x",
        "%ff",
    ];
    let long = "a".repeat(20_000);
    for value in hostile.iter().copied().chain([long.as_str()]) {
        for filter in ["app", "user", "status", "label", "q", "cursor", "limit"] {
            let path = format!("/v1/sessions?{filter}={value}");
            let answer = range.ann.get(&path).await;
            let found = answer.status == 200
                && answer.ok(200)["sessions"]
                    .as_array()
                    .is_some_and(|s| !s.is_empty());
            assert!(!found, "{path} found something: {}", answer.text());
            assert!(
                matches!(answer.status, 200 | 400),
                "{path} {}",
                answer.text()
            );
            assert!(answer.body.len() < 4_096, "{path}");
        }
        for filter in ["status", "agent", "kind", "risk", "cursor", "limit"] {
            let path = format!("/v1/holds?{filter}={value}");
            let answer = range.boss.get(&path).await;
            let found = answer.status == 200
                && answer.ok(200)["holds"]
                    .as_array()
                    .is_some_and(|h| !h.is_empty());
            assert!(!found, "{path} found something: {}", answer.text());
            assert!(
                matches!(answer.status, 200 | 400),
                "{path} {}",
                answer.text()
            );
        }
        for filter in ["view", "cursor", "limit"] {
            let path = format!("/v1/sessions/{}/messages?{filter}={value}", range.session);
            range.ann.get(&path).await.ok(400);
        }
        let path = format!("/v1/sessions/{}/state?request_id={value}", range.session);
        let answer = range.helper.get(&path).await;
        check_refused(&path, &answer);
    }
    assert_eq!(panics(), panicked);
    assert_eq!(range.digest().await, before);
}

#[tokio::test]
async fn odd_words_are_kept_as_words() {
    let range = Range::on(Rig::on_disk().await).await;
    let path = format!("/v1/sessions/{}", range.session);
    let odd = [
        "__proto__",
        "constructor",
        "../../etc/passwd",
        "' OR 1=1 --",
        "$.x",
        "a b",
        "é",
        "\u{202e}x",
        "{}",
        "\\",
        "\"",
        "</script>",
        "%00",
        "💩",
    ];
    for word in odd {
        let body = json!({"set": {word: word}});
        range
            .ann
            .patch(&format!("{path}/state"), &body)
            .await
            .ok(200);
    }
    let state = range.ann.get(&format!("{path}/state")).await.ok(200);
    for word in odd {
        assert_eq!(state["state"][word], word);
    }
    let is_name = |word: &&&str| !word.contains([':', '\u{202e}']);
    for word in odd.iter().filter(is_name) {
        let body = json!({"labels": {*word: word}, "name": word});
        let session = range.ann.patch(&path, &body).await.ok(200);
        assert_eq!(session["labels"][*word], **word);
        let encoded = percent(word);
        if *word != "%00" {
            let list = range
                .ann
                .get(&format!("/v1/sessions?label={encoded}:{encoded}"))
                .await;
            assert_eq!(
                list.ok(200)["sessions"].as_array().map(Vec::len),
                Some(1),
                "{word}"
            );
        }
    }
}

#[tokio::test]
async fn names_with_line_breaks_or_escapes_are_refused() {
    let range = Range::on(Rig::in_memory().await).await;
    let (before, panicked) = (range.digest().await, panics());
    let path = format!("/v1/sessions/{}", range.session);
    for word in ["a\r\nb", "a\nb", "\u{1b}[31mred", "a\u{7f}", "\u{85}", "\t"] {
        for body in [
            json!({"app": "demo", "name": word}),
            json!({"app": "demo", "labels": {word: "x"}}),
            json!({"app": "demo", "labels": {"x": word}}),
            json!({"app": word}),
            json!({"app": "demo", "agent": word}),
            json!({"app": "demo", "user": word}),
            json!({"app": "demo", "state": {word: 1}}),
        ] {
            let answer = range.ann.post("/v1/sessions", &body).await;
            check_refused(&body.to_string(), &answer);
        }
        let named = json!({"name": word});
        check_refused(word, &range.ann.patch(&path, &named).await);
        let key = json!({"roles": ["client"], "name": word});
        check_refused(word, &range.admin.post("/v1/keys", &key).await);
        let key = json!({"roles": ["client"], "user": word});
        check_refused(word, &range.admin.post("/v1/keys", &key).await);
        let claim = json!({"agent": word});
        check_refused(word, &range.helper.post("/v1/work/claim", &claim).await);
    }
    assert_eq!(panics(), panicked);
    assert_eq!(range.digest().await, before);
}

#[tokio::test]
async fn names_that_are_too_long_are_refused() {
    let range = Range::on(Rig::in_memory().await).await;
    let (before, panicked) = (range.digest().await, panics());
    for length in [257, 10_000, 1_000_000] {
        let word = "x".repeat(length);
        for body in [
            json!({"app": word}),
            json!({"app": "demo", "agent": word}),
            json!({"app": "demo", "name": word}),
            json!({"app": "demo", "labels": {&word: "x"}}),
            json!({"app": "demo", "labels": {"x": word}}),
            json!({"app": "demo", "user": word}),
        ] {
            let answer = range.ann.post("/v1/sessions", &body).await;
            check_refused("a long word", &answer);
        }
        let key = json!({"roles": ["client"], "user": word});
        check_refused("a long user", &range.admin.post("/v1/keys", &key).await);
        let key = json!({"roles": [word]});
        check_refused("a long role", &range.admin.post("/v1/keys", &key).await);
        let claim = json!({"agent": "helper", "worker": word});
        check_refused(
            "a long worker",
            &range.helper.post("/v1/work/claim", &claim).await,
        );
    }
    for length in [513, 10_000, 1_000_000] {
        let put = json!({"set": {"x".repeat(length): 1}});
        let path = format!("/v1/sessions/{}/state", range.session);
        check_refused("a long key", &range.ann.patch(&path, &put).await);
    }
    let many: Value = (0..1_025).map(|n| (format!("k{n}"), json!(n))).collect();
    let path = format!("/v1/sessions/{}/state", range.session);
    let answer = range.ann.patch(&path, &json!({"set": many})).await;
    answer.refused(422, "limit_reached");
    let items: Vec<Value> = (0..1_025).map(|_| json!({"kind": "note"})).collect();
    let body = json!({"fence": 1, "items": items});
    let path = format!("/v1/requests/{}/items", range.request);
    range
        .helper
        .post(&path, &body)
        .await
        .refused(422, "limit_reached");
    assert_eq!(panics(), panicked);
    assert_eq!(range.digest().await, before);
}

#[tokio::test]
async fn odd_methods_are_refused_on_every_path() {
    let range = Range::on(Rig::in_memory().await).await;
    let (before, panicked) = (range.digest().await, panics());
    let paths = [
        "/v1/sessions".to_owned(),
        format!("/v1/sessions/{}", range.session),
        format!("/v1/sessions/{}/messages", range.session),
        format!("/v1/holds/{}/decision", range.hold),
        "/v1/keys".to_owned(),
        "/v1/events".to_owned(),
    ];
    for path in &paths {
        for method in [
            "PUT", "TRACE", "OPTIONS", "PROPFIND", "BREW", "get", "PATCHX", "CONNECT",
        ] {
            let answer = range
                .admin
                .try_send(method, path, &[], bytes::Bytes::new())
                .await;
            if let Ok(answer) = answer {
                check_refused(&format!("{method} {path}"), &answer);
            }
        }
    }
    // A GET never decides.
    for (method, path) in [("GET", &paths[3]), ("HEAD", &paths[3])] {
        let answer = range.boss.send(method, path, &[], "").await;
        assert_eq!(answer.status, 405);
    }
    assert_eq!(panics(), panicked);
    assert_eq!(range.digest().await, before);
    assert!(range.rig.engine.hot_sessions() > 0);
}

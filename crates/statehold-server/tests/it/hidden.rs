//! What is hidden stays hidden: canaries are planted wherever a worker, an approver or an operator may
//! write, and looked for in everything that others can get, and in the log.

use std::collections::BTreeMap;

use data_encoding::{BASE64, BASE64URL, HEXLOWER, HEXUPPER};
use serde_json::{Value, json};

use crate::rest::{act, claim, new_session, start};
use crate::rig::{Answer, Rig, Who, log, text};

/// The frame that zstd begins with: nothing compressed leaves the server.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Words that may not be found, and every spelling they could be found in.
pub(crate) struct Canaries {
    spellings: BTreeMap<String, Vec<String>>,
}

impl Canaries {
    pub(crate) fn new() -> Self {
        Self {
            spellings: BTreeMap::new(),
        }
    }

    /// A word with characters that JSON, HTML and URLs spell in other ways.
    pub(crate) fn plant(&mut self, place: &str) -> String {
        let word = format!("canary-{place}-ö\"<7f3a>");
        let spellings = spellings(&word);
        self.spellings.insert(place.to_owned(), spellings);
        word
    }

    /// A word that has to be what it is.
    pub(crate) fn add(&mut self, place: &str, word: &str) {
        self.spellings.insert(place.to_owned(), spellings(word));
    }

    /// What runs, and what is decided on: for those who may decide.
    fn add_hold(&mut self, hold: &Value) {
        let id = text(hold, "id");
        self.add(
            &format!("execution key of {id}"),
            &text(hold, "execution_key"),
        );
        self.add(&format!("digest of {id}"), &text(&hold["action"], "digest"));
    }

    /// The places whose words stand in some bytes.
    pub(crate) fn found_in(&self, bytes: &[u8]) -> Vec<&str> {
        let text = String::from_utf8_lossy(bytes);
        let has = |spelling: &String| text.contains(spelling);
        self.spellings
            .iter()
            .filter(|(_, spellings)| spellings.iter().any(has))
            .map(|(place, _)| place.as_str())
            .collect()
    }

    #[track_caller]
    fn check_absent(&self, what: &str, bytes: &[u8]) {
        let found = self.found_in(bytes);
        assert!(
            found.is_empty(),
            "{found:?} in {what}: {}",
            String::from_utf8_lossy(bytes)
        );
        assert!(std::str::from_utf8(bytes).is_ok(), "{what} is text");
        let is_compressed = bytes.windows(4).any(|at| at == ZSTD_MAGIC);
        assert!(!is_compressed, "compressed bytes in {what}");
    }

    #[track_caller]
    fn check_answer(&self, what: &str, answer: &Answer) {
        assert_ne!(answer.status, 500, "{what}: {}", answer.text());
        self.check_absent(what, &answer.body);
        let headers = format!("{:?}", answer.headers);
        self.check_absent(what, headers.as_bytes());
    }
}

/// A word as it is, escaped, in base64 at each of the three offsets, in hex.
fn spellings(word: &str) -> Vec<String> {
    let bytes = word.as_bytes();
    let json = serde_json::to_string(word).expect("text is JSON");
    let json = json.trim_matches('"').to_owned();
    let ascii: String = word
        .chars()
        .map(|c| match c {
            '"' => "\\\"".to_owned(),
            c if c.is_ascii() => c.to_string(),
            c => format!("\\u{:04x}", u32::from(c)),
        })
        .collect();
    let percent: String = bytes
        .iter()
        .map(|b| match b {
            b if b.is_ascii_alphanumeric() || *b == b'-' => char::from(*b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect();
    let mut all = vec![
        word.to_owned(),
        json.clone(),
        // Inside a string that is inside JSON.
        serde_json::to_string(&json)
            .expect("text is JSON")
            .trim_matches('"')
            .to_owned(),
        ascii,
        percent,
        HEXLOWER.encode(bytes),
        HEXUPPER.encode(bytes),
        format!("{bytes:?}").trim_matches(['[', ']']).to_owned(),
    ];
    for encoding in [BASE64, BASE64URL] {
        for shift in 0..3 {
            // Characters at either end depend on what stands beside the word.
            let inner = &bytes[shift..];
            let inner = &inner[..inner.len() / 3 * 3];
            all.push(encoding.encode(inner));
        }
    }
    // The part that no escape touches: found even where the rest is cut or changed.
    if let Some((plain, _)) = word.split_once('ö') {
        all.push(plain.to_owned());
    }
    all
}

/// Ids of what was made.
pub(crate) struct Scene {
    pub(crate) session: String,
    pub(crate) child_task: String,
    pub(crate) root_task: String,
    requests: Vec<String>,
    holds: Vec<String>,
}

/// A session in which everything hidden has a canary.
pub(crate) async fn plant(rig: &Rig, ann: &Who, canaries: &mut Canaries) -> Scene {
    // Only a worker key without agents writes hidden messages of the user.
    let (helper, math) = (rig.key(&["worker"]).await, rig.worker(&["math"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    for (place, who) in [
        ("key helper", &helper),
        ("key math", &math),
        ("key boss", &boss),
    ] {
        canaries.add(place, who.key.as_deref().expect("a key"));
    }
    let session = new_session(ann).await;
    let root = start(ann, &session, "helper", "a visible question").await;
    let claimed = claim(&helper, "helper").await;
    let items = json!({
        "items": [
            {"kind": "message", "visibility": "hidden", "content": canaries.plant("message"),
             "annotations": {"a": canaries.plant("annotation")},
             "attachments": [{"data": canaries.plant("attachment")}]},
            {"kind": "message", "role": "user", "visibility": "hidden", "content": canaries.plant("user-message")},
            {"kind": "note", "data": {canaries.plant("data-key"): canaries.plant("data")}},
            {"kind": "step", "name": canaries.plant("step"), "data": [canaries.plant("step-data")]},
            {"kind": "tool_call", "name": canaries.plant("tool"), "call_id": canaries.plant("call"),
             "arguments": {"q": canaries.plant("arguments")}},
            {"kind": "message", "content": "a visible message"},
        ],
        "task_state": {"mind": canaries.plant("task-state")},
    });
    let written = act(&helper, &claimed, "items", items).await.ok(200);
    let result = json!({
        "items": [{"kind": "tool_result", "call_id": written["items"][4]["id"],
                   "result": canaries.plant("result")}],
    });
    act(&helper, &claimed, "items", result).await.ok(200);
    let put = json!({
        "set": {"temp:x": canaries.plant("temp")}, "request_id": claimed["id"], "fence": 1,
    });
    helper
        .patch(&format!("/v1/sessions/{session}/state"), &put)
        .await
        .ok(200);
    let child = json!({
        "agent": "math", "input": canaries.plant("child-input"),
        "parent_request_id": claimed["id"], "parent_fence": 1,
    });
    let child = helper
        .post(&format!("/v1/sessions/{session}/requests"), &child)
        .await
        .ok(201);
    let below = claim(&math, "math").await;
    let message =
        json!({"items": [{"kind": "message", "content": canaries.plant("child-message")}]});
    act(&math, &below, "items", message).await.ok(200);
    let mut holds = Vec::new();
    for (index, decision) in ["edit", "reject", ""].into_iter().enumerate() {
        let mut word = |name: &str| canaries.plant(&format!("{name}-{index}"));
        let hold = json!({
            "kind": "approval", "title": "Pay?", "message": "a visible reason",
            "action": {"tool": format!("secret-tool-{index}"), "args": {"to": word("args")},
                       "args_schema": {"title": word("args-schema")}, "call_id": word("hold-call")},
            "reasons": [{"id": word("reason-id"), "title": word("reason-title"), "text": word("reason-text")}],
            "items": [{"kind": "note", "data": word("hold-note")}],
            "group_id": "visible group",
        });
        canaries.add(&format!("tool-{index}"), &format!("secret-tool-{index}"));
        let hold = act(&math, &below, "holds", hold).await.ok(201);
        let id = text(&hold, "id");
        canaries.add_hold(&hold);
        let mut word = |name: &str| canaries.plant(&format!("{name}-{index}"));
        let body = match decision {
            "edit" => json!({"decision": "edit", "digest": hold["action"]["digest"],
                             "args": {"to": word("edited")}, "comment": word("comment")}),
            "reject" => {
                json!({"decision": "reject", "comment": word("comment"), "reason": word("reason-id")})
            }
            _ => Value::Null,
        };
        if body != Value::Null {
            boss.post(&format!("/v1/holds/{id}/decision"), &body)
                .await
                .ok(200);
        }
        holds.push(id);
    }
    let other = json!({"agent": "helper", "input": "x", "lease": {"ttl_seconds": 60}});
    let failed = helper
        .post(&format!("/v1/sessions/{session}/requests"), &other)
        .await
        .ok(201);
    let error = json!({"error": {"why": canaries.plant("error")}});
    act(&helper, &failed, "fail", error).await.ok(200);
    Scene {
        session,
        child_task: text(&child, "task_id"),
        root_task: text(&root, "task_id"),
        requests: vec![text(&root, "id"), text(&child, "id"), text(&failed, "id")],
        holds,
    }
}

/// Everything that can be asked with GET, in every way we could think of.
fn questions(scene: &Scene) -> Vec<String> {
    let session = format!("/v1/sessions/{}", scene.session);
    let mut paths = vec![
        "/v1/sessions".to_owned(),
        "/v1/keys".to_owned(),
        "/v1/audit/records".to_owned(),
        "/v1/state/app/demo".to_owned(),
        "/v1/state/user/demo/ann".to_owned(),
        "/healthz".to_owned(),
        "/readyz".to_owned(),
        "/metrics".to_owned(),
        "/openapi.json".to_owned(),
        "/v1/holds".to_owned(),
        "/v1/holds/counts".to_owned(),
        session.clone(),
    ];
    for query in [
        "q=canary",
        "q=a",
        "label=canary",
        "user=ann",
        "status=running",
        "status=paused",
        "limit=1",
        "cursor=x",
        "limit=-1",
        "app=canary",
    ] {
        paths.push(format!("/v1/sessions?{query}"));
    }
    for query in [
        "status=open",
        "status=decided",
        "status=edited",
        "status=rejected",
        "kind=approval",
        "risk=low",
        "agent=math",
        "limit=1",
        "risk=canary",
        "status=%22",
        "order=urgency",
        "order=newest&status=decided",
        "user=ann",
        "group_id=visible%20group",
        "group_id=canary",
        "session_id=canary",
    ] {
        paths.push(format!("/v1/holds?{query}"));
    }
    for query in [
        "",
        "?view=client",
        "?view=trace",
        "?view=agent",
        "?view=",
        "?limit=200",
        "?limit=-1",
        "?limit=2147483648",
        "?cursor=AAAA",
        "?historyLength=-1",
        "?includeArtifacts=true",
        "?view=trace&limit=1",
    ] {
        paths.push(format!("{session}/messages{query}"));
        for task in [&scene.root_task, &scene.child_task] {
            paths.push(format!("/v1/tasks/{task}{query}"));
        }
    }
    let console = format!("/console/sessions/{}", scene.session);
    for page in ["", "?tab=tree", "?tab=state", "?tab=hidden", "?q=canary"] {
        paths.push(format!("{console}{page}"));
    }
    paths.push("/console/sessions".to_owned());
    for task in [&scene.root_task, &scene.child_task] {
        paths.push(format!("/console/tasks/{task}"));
        paths.push(format!(
            "/v1/tasks/{task}?view=trace&form=tool_call_history"
        ));
    }
    paths.push(format!(
        "{session}/messages?view=trace&form=tool_call_history"
    ));
    for route in ["tree", "tree?limit=1", "tree?before=3", "records", "state"] {
        paths.push(format!("{session}/{route}"));
    }
    for request in &scene.requests {
        paths.push(format!("/v1/requests/{request}"));
        paths.push(format!("/v1/requests/{request}?until=changed"));
        paths.push(format!("{session}/state?request_id={request}"));
    }
    for hold in &scene.holds {
        paths.push(format!("/v1/holds/{hold}"));
        paths.push(format!("/v1/holds/{hold}/decision"));
    }
    paths
}

/// Calls that are refused and might say too much in saying so.
fn refusals(scene: &Scene) -> Vec<(&'static str, String, Value)> {
    let request =
        |index: usize, what: &str| format!("/v1/requests/{}/{what}", scene.requests[index]);
    let session = format!("/v1/sessions/{}", scene.session);
    let mut calls = vec![
        (
            "POST",
            request(0, "items"),
            json!({"fence": 1, "items": [{"kind": "note"}]}),
        ),
        (
            "POST",
            request(1, "items"),
            json!({"fence": 9, "items": [{"kind": "tool_result", "call_id": "x", "result": 1}]}),
        ),
        (
            "POST",
            request(0, "complete"),
            json!({"fence": 1, "output": "x"}),
        ),
        ("POST", request(1, "heartbeat"), json!({"fence": 1})),
        ("POST", request(1, "resume"), json!({"decision": "reject"})),
        ("POST", request(2, "cancel"), json!({})),
        ("POST", request(2, "fail"), json!({"fence": 1, "error": 1})),
        ("POST", format!("{session}/close"), json!({})),
        (
            "POST",
            format!("{session}/requests"),
            json!({"input": "x", "task_id": scene.root_task}),
        ),
        (
            "POST",
            format!("/v1/tasks/{}/close", scene.child_task),
            json!({}),
        ),
        (
            "PATCH",
            format!("{session}/state"),
            json!({"set": {"temp:x": 1}}),
        ),
    ];
    for hold in &scene.holds {
        let path = format!("/v1/holds/{hold}/decision");
        calls.push(("POST", path.clone(), json!({"decision": "approve"})));
        calls.push((
            "POST",
            path,
            json!({"decision": "edit", "digest": "0".repeat(64), "args": {}}),
        ));
    }
    calls
}

#[tokio::test]
async fn hidden_words_reach_nobody_who_may_not_see_them() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let mut canaries = Canaries::new();
        let scene = plant(&rig, &ann, &mut canaries).await;
        let people = [
            ("the user", ann.clone()),
            ("another user", rig.client("bob").await),
            ("a worker of another agent", rig.worker(&["other"]).await),
            (
                "a worker of another user",
                rig.key_for(&["worker"], Some("bob"), &[]).await,
            ),
            (
                "a client of another tenant",
                rig.key_of("far", &["client"], None, &[]).await,
            ),
            (
                "an operator of another tenant",
                rig.key_of("far", &["operator", "admin"], None, &[]).await,
            ),
            ("nobody", rig.nobody()),
        ];
        for (name, who) in &people {
            for path in questions(&scene) {
                let answer = who.get(&path).await;
                canaries.check_answer(&format!("{path} for {name}"), &answer);
            }
            for (method, path, body) in refusals(&scene) {
                // What these may do changes nothing that is asked for later.
                if *name != "the user" {
                    let answer = who.send(method, &path, &[], body.to_string()).await;
                    canaries.check_answer(&format!("{method} {path} for {name}"), &answer);
                }
            }
        }
        // Feeds from the beginning: a bookmark is a commit that comes last.
        let path = format!("/v1/sessions/{}", scene.session);
        let last = ann.get(&path).await.revision();
        let mut feed = ann.follow(&format!("{path}/events?after=0"), None).await;
        let mut global = ann.follow("/v1/events", None).await;
        let mut holds = ann.follow("/v1/holds/events", None).await;
        let events = feed.take(usize::try_from(last).expect("few")).await;
        assert_eq!(
            events.last().map(|event| event.id.clone()),
            Some(last.to_string())
        );
        canaries.check_absent("the feed", &feed.raw);
        canaries.check_absent(
            "headers of the feed",
            format!("{:?}", feed.headers).as_bytes(),
        );
        let words = String::from_utf8_lossy(&feed.raw).into_owned();
        assert!(words.contains("a visible message") && words.contains("a visible reason"));
        let rest = plant(&rig, &ann, &mut canaries).await;
        loop {
            let event = global.next().await.expect("the feed goes on");
            let ends = event.data["events"].as_array().is_some_and(|events| {
                events.iter().any(|event| {
                    event["type"] == "request_ended"
                        && event["request_id"] == rest.requests[2].as_str()
                })
            });
            if ends {
                break;
            }
        }
        canaries.check_absent("the global feed", &global.raw);
        // Three were opened and two decided.
        let changes = holds.take(5).await;
        assert!(changes.iter().all(|change| change.event == "hold"));
        canaries.check_absent("the feed of holds", &holds.raw);
        check_fields(&rig, &ann, &rest).await;
        for (method, path, body) in refusals(&rest) {
            let answer = ann.send(method, &path, &[], body.to_string()).await;
            canaries.check_answer(&format!("{method} {path} for the user"), &answer);
        }
        // Numbers, for those who may have them.
        let numbers = rig.key(&["operator"]).await.get("/metrics").await;
        canaries.check_answer("/metrics", &numbers);

        let both = Scene {
            holds: [scene.holds.clone(), rest.holds].concat(),
            ..scene
        };
        check_that_it_bites(&rig, &canaries, &both).await;
        let log = log();
        assert!(log.contains("answered"), "there is a log");
        canaries.check_absent("the log", log.as_bytes());
    }
}

/// What the user may not see of a hold is not there at all, however it is asked for.
async fn check_fields(rig: &Rig, ann: &Who, scene: &Scene) {
    let hidden = [
        "action",
        "execution_key",
        "reasons",
        "votes",
        "user",
        "app",
        "decide_by",
        "comment_required",
        "evidence",
    ];
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    for (hold, decided) in scene.holds.iter().zip([true, true, false]) {
        let whole = boss.get(&format!("/v1/holds/{hold}")).await.ok(200);
        for field in hidden {
            let is_there = field != "evidence" || decided;
            assert_eq!(whole.get(field).is_some(), is_there, "{field} in {whole}");
        }
        let one = ann.get(&format!("/v1/holds/{hold}")).await.ok(200);
        let status = if decided { "decided" } else { "open" };
        let list = ann.get(&format!("/v1/holds?status={status}")).await.ok(200);
        let of_request = ann
            .get(&format!("/v1/requests/{}", scene.requests[1]))
            .await;
        let of_request = of_request.ok(200);
        let listed = list["holds"].as_array().into_iter().flatten();
        let of_request = of_request["holds"].as_array().into_iter().flatten();
        for seen in listed.chain(of_request).chain([&one]) {
            for field in hidden {
                assert!(seen.get(field).is_none(), "{field} in {seen}");
            }
            for word in ["comment", "reason", "args", "content"] {
                assert!(seen["decision"].get(word).is_none(), "{word} in {seen}");
            }
        }
    }
}

/// The words are there, and are found where they may be seen.
async fn check_that_it_bites(rig: &Rig, canaries: &Canaries, scene: &Scene) {
    let operator = rig.key(&["operator"]).await;
    let path = format!(
        "/v1/sessions/{}/messages?view=trace&limit=200",
        scene.session
    );
    let trace = operator.get(&path).await;
    trace.ok(200);
    let mut seen = trace.body.to_vec();
    for task in [&scene.root_task, &scene.child_task] {
        let task = operator.get(&format!("/v1/tasks/{task}?view=trace")).await;
        task.ok(200);
        seen.extend_from_slice(&task.body);
    }
    let holds = scene.holds.iter().map(|hold| format!("/v1/holds/{hold}"));
    let requests = scene.requests.iter().map(|id| format!("/v1/requests/{id}"));
    for path in holds.chain(requests) {
        let answer = operator.get(&path).await;
        answer.ok(200);
        seen.extend_from_slice(&answer.body);
    }
    let found = canaries.found_in(&seen);
    for place in canaries.spellings.keys() {
        // `temp:` values are for those who work, and keys are for nobody.
        let is_elsewhere = place == "temp" || place.starts_with("key ");
        assert!(
            is_elsewhere || found.contains(&place.as_str()),
            "{place} is not found"
        );
    }
}

#[test]
fn every_spelling_of_a_canary_is_recognised() {
    let mut canaries = Canaries::new();
    let word = canaries.plant("x");
    let cases = [
        word.clone(),
        json!({"a": word}).to_string(),
        json!(json!({"a": word}).to_string()).to_string(),
        HEXLOWER.encode(format!("..{word}..").as_bytes()),
        BASE64.encode(format!("{word}...").as_bytes()),
        BASE64.encode(format!(".{word}..").as_bytes()),
        BASE64URL.encode(format!("..{word}.").as_bytes()),
    ];
    for case in cases {
        assert_eq!(canaries.found_in(case.as_bytes()), ["x"], "{case}");
    }
    assert!(canaries.found_in(b"canary-other").is_empty());
}

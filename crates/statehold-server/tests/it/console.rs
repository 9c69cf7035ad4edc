//! The console: who sees which page, what is recorded of that, and what hostile text does there.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use statehold_server::ServerOptions;

use crate::hidden::{Canaries, Scene, plant};
use crate::rest::records::check_chain;
use crate::rest::{act, claim, new_session, start, turn};
use crate::rig::{Answer, Rig, Setup, Who, panics, text};

/// The console without keys, as `statehold dev` serves it.
async fn dev() -> Rig {
    Rig::with(Setup {
        server: ServerOptions {
            keys_required: false,
            ..ServerOptions::default()
        },
        ..Setup::default()
    })
    .await
}

/// A page, which is one and keeps to its policy.
#[track_caller]
fn page(answer: &Answer, status: u16) -> String {
    let html = answer.text();
    assert_eq!(answer.status, status, "{html}");
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("referrer-policy"), Some("same-origin"));
    let policy = answer.header("content-security-policy").expect("a policy");
    for part in [
        "default-src 'none'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("script-src"));
    for forbidden in [
        "<script",
        "style=\"",
        " onclick",
        "javascript:",
        "src=\"",
        "http://e",
        "https://",
        "<img",
        "<iframe",
    ] {
        assert!(!html.contains(forbidden), "{forbidden} in {html}");
    }
    html
}

fn pages_of(scene: &Scene) -> Vec<String> {
    let session = format!("/console/sessions/{}", scene.session);
    vec![
        session.clone(),
        format!("{session}?tab=tree"),
        format!("{session}?tab=state"),
        format!("{session}?tab=hidden"),
        format!("/console/tasks/{}", scene.root_task),
        format!("/console/tasks/{}", scene.child_task),
    ]
}

async fn log_in(rig: &Rig, who: &Who) -> Answer {
    let form = format!("key={}&next=", who.key.as_deref().expect("a key"));
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    rig.nobody()
        .send("POST", "/console/login", &headers, form)
        .await
}

/// The cookie of a login.
#[track_caller]
fn cookie(answer: &Answer) -> String {
    assert_eq!(answer.status, 303, "{}", answer.text());
    let cookie = answer.header("set-cookie").expect("a cookie");
    cookie.split(';').next().expect("a value").to_owned()
}

async fn with_cookie(rig: &Rig, cookie: &str, path: &str) -> Answer {
    rig.nobody()
        .send("GET", path, &[("cookie", cookie)], "")
        .await
}

async fn trace_reads(rig: &Rig) -> Vec<Value> {
    let admin = rig.key(&["admin"]).await;
    let entries = check_chain(&admin.get("/v1/audit/records").await);
    let reads = entries
        .into_iter()
        .filter(|entry| entry["event"]["act"] == "trace_read");
    reads.collect()
}

#[tokio::test]
async fn pages_are_for_those_who_may_read_traces_and_tell_others_nothing() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let scene = plant(&rig, &ann, &mut Canaries::new()).await;
        let missing = |path: &String| {
            let id = if path.contains("tasks") {
                &path[15..]
            } else {
                &scene.session
            };
            let (id, other) = (&id[..36], format!("{}beef", &id[..32]));
            path.replace(id, &other)
        };
        let made = ann
            .post(
                &format!("/v1/sessions/{}/tokens", scene.session),
                &json!({}),
            )
            .await;
        let token = Who {
            key: Some(text(&made.ok(201), "token")),
            ..ann.clone()
        };
        let far = rig.key_of("far", &["operator", "admin"], None, &[]).await;
        let refused = [
            ann.clone(),
            rig.client("bob").await,
            rig.worker(&["helper"]).await,
            rig.key(&["worker"]).await,
            rig.key_for(&["approver"], Some("boss"), &[]).await,
            token,
        ];
        let mut pages = pages_of(&scene);
        pages.push("/console/sessions".to_owned());
        for path in &pages {
            let (own, gone) = (path.clone(), missing(path));
            for who in &refused {
                let shown = page(&who.get(&own).await, 403);
                assert_eq!(shown, page(&who.get(&gone).await, 403), "{own}");
                assert!(!shown.contains("canary"));
            }
            let nobody = rig.nobody();
            let shown = page(&nobody.get(&own).await, 401);
            assert!(shown.contains("name=\"key\"") && !shown.contains("canary"));
            if own != "/console/sessions" {
                let foreign = page(&far.get(&own).await, 404);
                assert_eq!(foreign, page(&far.get(&gone).await, 404), "{own}");
            }
            for role in ["operator", "admin"] {
                page(&rig.key(&[role]).await.get(&own).await, 200);
            }
        }
        assert!(!page(&far.get("/console/sessions").await, 200).contains(&scene.session));
    }
}

#[tokio::test]
async fn hidden_words_are_on_the_pages_that_are_recorded_and_on_no_other() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let mut canaries = Canaries::new();
    let scene = plant(&rig, &ann, &mut canaries).await;
    let operator = rig.key(&["operator"]).await;
    let mut recorded = 0;
    for path in pages_of(&scene)
        .iter()
        .chain([&"/console/sessions".to_owned()])
    {
        let shown = page(&operator.get(path).await, 200);
        let unescaped = shown
            .replace("&#34;", "\"")
            .replace("&#60;", "<")
            .replace("&#62;", ">");
        let found: BTreeSet<&str> = canaries
            .found_in(unescaped.as_bytes())
            .into_iter()
            .collect();
        let is_recorded = path.contains("tab=hidden") || path.contains("tasks");
        assert_eq!(!found.is_empty(), is_recorded, "{found:?} on {path}");
        assert!(
            !shown.contains("<7f3a>"),
            "what looks like a tag is escaped"
        );
        recorded += usize::from(is_recorded);
        let reads = trace_reads(&rig).await;
        assert_eq!(reads.len(), recorded, "{path}");
        for read in &reads {
            assert_eq!(read["event"]["session"], scene.session.as_str());
            assert_eq!(read["principal"], operator.id.as_str());
        }
        if path.contains("tab=hidden") {
            for place in [
                "message",
                "user-message",
                "step",
                "tool",
                "arguments",
                "result",
                "data",
                "child-message",
            ] {
                assert!(found.contains(place), "{place}: {found:?}");
            }
        }
        if path.contains(&scene.root_task) {
            assert!(found.contains("task-state"), "{found:?}");
        }
    }
    assert_eq!(recorded, 3);
}

#[tokio::test]
async fn a_login_is_a_sealed_cookie_that_ends_with_its_key_and_its_time() {
    let rig = Rig::with(Setup::with_clock(0)).await;
    let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
    let session = new_session(&ann).await;
    let path = format!("/console/sessions/{session}?tab=hidden");
    let operator = rig.key(&["operator"]).await;
    let entered = log_in(&rig, &operator).await;
    let set = entered.header("set-cookie").expect("a cookie").to_owned();
    for part in [
        "HttpOnly",
        "SameSite=Strict",
        "Path=/console",
        "Max-Age=7200",
    ] {
        assert!(set.contains(part), "{set}");
    }
    assert!(!set.contains("Secure") && !set.contains("shk_"));
    let secret = operator.key.as_deref().expect("a key");
    assert!(!set.contains(secret) && !set.contains(&secret[4..]));
    assert_eq!(entered.header("location"), Some("/console/sessions"));
    let cookie = cookie(&entered);
    let shown = page(&with_cookie(&rig, &cookie, &path).await, 200);
    assert!(shown.contains("Log out") && shown.contains(&operator.id));
    assert_eq!(
        trace_reads(&rig).await[0]["principal"],
        operator.id.as_str()
    );

    // Nothing but pages takes the cookie.
    let api = with_cookie(&rig, &cookie, "/v1/sessions").await;
    api.refused(401, "unauthenticated");
    // A key in a header comes first.
    let mixed = ann.send("GET", &path, &[("cookie", &cookie)], "").await;
    page(&mixed, 403);

    for wrong in [
        "statehold_console=",
        "statehold_console=AAAA",
        "other=x",
        &cookie[..cookie.len() - 2],
        &format!("{cookie}A"),
    ] {
        page(&with_cookie(&rig, wrong, &path).await, 401);
    }
    let twice = with_cookie(&rig, &format!("{cookie}; {cookie}"), &path).await;
    page(&twice, 400);
    page(
        &with_cookie(&rig, &format!("a=b; {cookie}; c=d"), &path).await,
        200,
    );
    let elsewhere = Rig::in_memory().await;
    page(
        &with_cookie(&elsewhere, &cookie, "/console/sessions").await,
        401,
    );

    // A cursor sealed for the same caller is no login.
    turn(
        &rig.worker(&["coordinator"]).await,
        &session,
        "coordinator",
        "a",
        "b",
    )
    .await;
    let list = operator
        .get(&format!("/v1/sessions/{session}/messages?limit=1"))
        .await
        .ok(200);
    let cursor = text(&list, "next_cursor");
    page(
        &with_cookie(&rig, &format!("statehold_console={cursor}"), &path).await,
        401,
    );

    let other = log_in(&rig, &rig.key(&["admin"]).await).await;
    let other = self::cookie(&other);
    admin
        .delete(&format!("/v1/keys/{}", operator.id))
        .await
        .ok(204);
    page(&with_cookie(&rig, &cookie, &path).await, 401);
    page(&with_cookie(&rig, &other, &path).await, 200);
    let step = json!({"step_seconds": 7_201});
    admin.post("/v1/dev/clock", &step).await.ok(200);
    page(&with_cookie(&rig, &other, &path).await, 401);
}

#[tokio::test]
async fn only_a_form_of_the_console_itself_logs_in_or_out() {
    let rig = Rig::in_memory().await;
    let operator = rig.key(&["operator"]).await;
    let secret = operator.key.clone().expect("a key");
    let form = format!("key={secret}");
    let kind = ("content-type", "application/x-www-form-urlencoded");
    let own = format!("http://{}", rig.address);
    let nobody = rig.nobody();
    let send = async |path: &str, headers: &[(&str, &str)], form: &str| {
        nobody.send("POST", path, headers, form.to_owned()).await
    };
    let entered = send(
        "/console/login",
        &[kind, ("origin", &own), ("sec-fetch-site", "same-origin")],
        &form,
    )
    .await;
    let cookie = cookie(&entered);
    for foreign in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", ""),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        for path in ["/console/login", "/console/logout"] {
            let refused = send(path, &[kind, foreign, ("cookie", &cookie)], &form).await;
            page(&refused, 403);
            assert!(refused.header("set-cookie").is_none());
        }
    }
    for (headers, form) in [
        (vec![("content-type", "application/json")], form.as_str()),
        (vec![("content-type", "text/plain")], &form),
        (vec![kind], "key="),
        (vec![kind], ""),
        (vec![kind], "key=shk_nobody"),
        (vec![kind], "other=x"),
        (vec![kind], &format!("{form}&key=shk_2")),
        (vec![kind], &format!("{form}&more=1")),
        (vec![kind], &"x".repeat(20_000)),
    ] {
        let refused = send("/console/login", &headers, form).await;
        let shown = page(&refused, refused.status);
        assert!(matches!(refused.status, 400 | 401), "{shown}");
        assert!(refused.header("set-cookie").is_none());
        assert!(!shown.contains(&secret), "a page does not repeat a key");
    }
    for roles in [&["client"], &["worker"], &["approver"]] {
        let refused = log_in(&rig, &rig.key(roles).await).await;
        page(&refused, 403);
        assert!(refused.header("set-cookie").is_none());
    }
    let get = nobody.get(&format!("/console/login?key={secret}")).await;
    assert!(get.header("set-cookie").is_none());
    let left = send(
        "/console/logout",
        &[kind, ("origin", &own), ("cookie", &cookie)],
        "",
    )
    .await;
    let ended = left.header("set-cookie").expect("a cookie").to_owned();
    assert!(
        ended.starts_with("statehold_console=;") && ended.contains("Max-Age=0"),
        "{ended}"
    );

    let tls = [kind, ("x-forwarded-proto", "https")];
    let secure = send("/console/login", &tls, &form).await;
    assert!(
        secure
            .header("set-cookie")
            .expect("a cookie")
            .contains("; Secure")
    );
    for (next, to) in [
        (
            "%2Fconsole%2Ftasks%2Ftsk_1%3Fcursor%3Dx",
            "/console/tasks/tsk_1?cursor=x",
        ),
        ("https%3A%2F%2Fevil.example", "/console/sessions"),
        ("%2F%2Fevil.example", "/console/sessions"),
        ("%2Fconsole%2F..%2Fv1", "/console/sessions"),
        ("%2Fconsole%2F%0D%0Aset-cookie%3Aa%3Db", "/console/sessions"),
    ] {
        let entered = send("/console/login", &[kind], &format!("{form}&next={next}")).await;
        assert_eq!(entered.header("location"), Some(to), "{next}");
    }
}

#[tokio::test]
async fn a_development_server_needs_no_login_on_its_own_machine() {
    let rig = dev().await;
    let nobody = rig.nobody();
    let made = nobody
        .post("/v1/sessions", &json!({"app": "demo", "user": "ann"}))
        .await;
    let session = text(&made.ok(201), "id");
    let home = nobody.get("/console").await;
    assert_eq!(
        (home.status, home.header("location")),
        (303, Some("/console/sessions"))
    );
    let list = page(&nobody.get("/console/sessions").await, 200);
    assert!(list.contains(&session) && !list.contains("Log out"));
    page(
        &nobody
            .get(&format!("/console/sessions/{session}?tab=hidden"))
            .await,
        200,
    );
    let reads = trace_reads(&rig).await;
    assert_eq!((reads.len(), &reads[0]["principal"]), (1, &json!("local")));
    let rebound = nobody.send(
        "GET",
        "/console/sessions",
        &[("origin", "http://evil.example")],
        "",
    );
    page(&rebound.await, 403);
}

#[tokio::test]
async fn hostile_text_is_shown_and_does_nothing() {
    let rig = Rig::in_memory().await;
    let operator = rig.key(&["operator"]).await;
    let before = panics();
    let hostile = [
        "<script>alert(1)</script><img src=x onerror=alert(1)>",
        "\"><a href=javascript:alert(1)>click</a>",
        "a\u{202e}gpj.exe\u{2066}b\u{200b}c",
        "\u{3164}\u{2800}",
        "{{ 1234*1234 }} {% include \"x\" %} &amp;",
        "</p></li></ol><form action=http://evil.example>",
        "' onmouseover='alert(1)",
    ];
    let plain = rig.client("ann").await;
    let helper = rig.worker(&["helper"]).await;
    for word in hostile {
        let is_name = !word.chars().any(|c| c == '\u{202e}' || c == '\u{3164}');
        let mut body = json!({"app": "demo", "agent": "helper", "state": {"x": {word: word}}, "labels": {"l": word}});
        if is_name {
            body["name"] = word.into();
        } else {
            body["labels"] = json!({});
        }
        let made = plain.post("/v1/sessions", &body).await;
        let session = text(&made.ok(201), "id");
        let request = start(&plain, &session, "helper", word).await;
        let claimed = claim(&helper, "helper").await;
        let items = json!({"items": [
            {"kind": "tool_call", "name": word, "call_id": word, "arguments": {word: [word]}},
            {"kind": "tool_result", "call_id": word, "result": word},
            {"kind": "message", "content": [{"type": "text", "text": word}],
             "attachments": [{"url": "https://evil.example/beacon.png", "title": word}]},
            {"kind": "note", "data": {"a\u{1b}[2J": "\u{9b}2J\r"}},
        ], "task_state": {"s": word}});
        act(&helper, &claimed, "items", items).await.ok(200);
        let hold =
            json!({"kind": "question", "title": if is_name { word } else { "t" }, "message": word});
        act(&helper, &claimed, "holds", hold).await.ok(201);
        let task = text(&request, "task_id");
        let base = format!("/console/sessions/{session}");
        for path in [
            "/console/sessions".to_owned(),
            base.clone(),
            format!("{base}?tab=tree"),
            format!("{base}?tab=state"),
            format!("{base}?tab=hidden"),
            format!("/console/tasks/{task}"),
        ] {
            let answer = operator.get(&path).await;
            // Addresses are text: the page leads nowhere else.
            let shown = answer
                .text()
                .replace("https://evil.example/beacon.png", "")
                .replace("http://evil.example", "");
            let answer = Answer {
                body: shown.into(),
                ..answer
            };
            let shown = page_with_text(&answer);
            for c in [
                '\u{202e}', '\u{2066}', '\u{200b}', '\u{3164}', '\u{2800}', '\u{1b}', '\u{9b}',
                '\r',
            ] {
                assert!(!shown.contains(c), "{c:?} on {path}");
            }
            for tag in [
                "<script",
                "<img",
                "<a href=javascript",
                "<form action=http",
                "1522756",
            ] {
                assert!(!shown.contains(tag), "{tag} on {path}: {shown}");
            }
        }
    }
    assert_eq!(panics(), before);
}

/// A page on which words may look like what a page may not have.
#[track_caller]
fn page_with_text(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

#[tokio::test]
async fn lists_and_histories_come_in_pages_that_are_bounded() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["coordinator"]).await);
    let operator = rig.key(&["operator"]).await;
    let mut session = String::new();
    for _ in 0..53 {
        session = new_session(&ann).await;
    }
    for index in 0..14 {
        let words = format!("question-{index}-{}", "<".repeat(20_000));
        turn(&helper, &session, "coordinator", &words, "answer").await;
    }
    let links = |html: &str, begin: &str| -> Vec<String> {
        let links = html.split("href=\"").skip(1);
        let links = links.map(|rest| rest.split('"').next().unwrap_or_default());
        let links = links.filter(|link| link.starts_with(begin));
        links
            .map(|link| link.replace("&#38;", "&").replace("&amp;", "&"))
            .collect()
    };
    let first = page(&operator.get("/console/sessions?user=ann").await, 200);
    let next = links(&first, "/console/sessions?user=ann&");
    let next = next
        .iter()
        .find(|link| link.contains("cursor="))
        .expect("a next page");
    let second = page(&operator.get(next).await, 200);
    let sessions = |html: &str| links(html, "/console/sessions/ses_").len();
    assert_eq!((sessions(&first), sessions(&second)), (50, 3));
    let elsewhere = next.replace("user=ann", "user=bob");
    page(&operator.get(&elsewhere).await, 400);

    for tab in ["", "?tab=hidden"] {
        let path = format!("/console/sessions/{session}{tab}");
        let html = page(&operator.get(&path).await, 200);
        assert!(html.len() < 2 * 1024 * 1024, "{}", html.len());
        assert_eq!(html.matches("<li class=\"item").count(), 25);
        assert!(html.contains("12,") || html.contains("bytes more"));
        let next = links(&html, &format!("/console/sessions/{session}?"));
        let next = next
            .iter()
            .find(|link| link.contains("cursor="))
            .expect("a next page");
        let rest = page(&operator.get(next).await, 200);
        assert_eq!(rest.matches("<li class=\"item").count(), 3, "{path}");
    }
    for wrong in [
        "?cursor=AAAA",
        "?tab=x",
        "?x=1",
        "?before=-1",
        "?tab=hidden&cursor=%00",
        "?tab=hidden&tab=tree",
    ] {
        page(
            &operator
                .get(&format!("/console/sessions/{session}{wrong}"))
                .await,
            400,
        );
    }
    for wrong in ["?status=x", "?order=x", "?app=a%20b", "?cursor=x", "?y=1"] {
        page(
            &operator.get(&format!("/console/sessions{wrong}")).await,
            400,
        );
    }
}

#[tokio::test]
async fn the_style_is_kept_by_browsers_under_the_name_of_its_content() {
    let rig = Rig::in_memory().await;
    let login = page(&rig.nobody().get("/console/login").await, 200);
    let style = login
        .split("/console/assets/")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let style = format!("/console/assets/{}", style.expect("a style"));
    let css = rig.nobody().get(&style).await;
    assert_eq!(css.status, 200);
    assert!(
        css.header("cache-control")
            .expect("a header")
            .contains("immutable")
    );
    assert_eq!(css.header("content-type"), Some("text/css; charset=utf-8"));
    assert!(css.body.len() < 30 * 1024, "{}", css.body.len());
    for other in ["url(", "@import", "http"] {
        assert!(!css.text().contains(other), "{other}");
    }
    page(&rig.nobody().get("/console/assets/other.css").await, 404);
}

#[tokio::test]
async fn a_server_without_the_console_has_no_pages() {
    let rig = Rig::with(Setup {
        server: ServerOptions {
            console: false,
            ..ServerOptions::default()
        },
        ..Setup::default()
    })
    .await;
    let operator = rig.key(&["operator"]).await;
    for path in ["/console", "/console/sessions", "/console/login"] {
        operator.get(path).await.refused(404, "not_found");
    }
}

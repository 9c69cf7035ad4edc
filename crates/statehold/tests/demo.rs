//! The embedded demo on the real server: the dialogues it was made for, a delete that people decide
//! about in every way, and the server killed around it.

#[path = "demo/server.rs"]
mod server;

use std::time::Duration;

use serde_json::{Value, json};

use server::{Chat, Server};

/// How often a delete really had an effect in the app of these tests.
fn delete_runs(server: &Server) -> u64 {
    let state = server.get("/state/app/test");
    state["state"]["app:demo.delete_runs"].as_u64().unwrap_or(0)
}

fn user_ids(server: &Server) -> Vec<u64> {
    let state = server.get("/state/app/test");
    let users = state["state"]["app:demo.users"]["users"].clone();
    let users = users.as_array().cloned().unwrap_or_default();
    users
        .iter()
        .filter_map(|user| user["id"].as_u64())
        .collect()
}

#[test]
fn sums_and_weather_are_answered_word_for_word_and_each_agent_has_its_own_task() {
    let server = Server::start_in_memory(&[]);
    let chat = Chat::begin(&server, "bob");
    assert_eq!(chat.say("math-agent", "What's 2+2"), "2+2 is 4");
    let weather = "What's the temperature in Rahway, NJ";
    assert_eq!(chat.say("weather-agent", weather), "Sunny, 72");
    assert_eq!(
        chat.say("math-agent", "What's the square root of 121?"),
        "The square root of 121 is 11"
    );
    let tree = server.get(&format!("/sessions/{}/tree", chat.session));
    let tasks = tree["tasks"].as_array().expect("tasks");
    let mut requests: Vec<(String, usize)> = tasks
        .iter()
        .map(|task| {
            let count = task["requests"].as_array().map_or(0, Vec::len);
            (task["agent"].as_str().expect("a name").to_owned(), count)
        })
        .collect();
    requests.sort();
    let expected = [("math-agent", 2), ("weather-agent", 1)];
    assert_eq!(
        requests,
        expected.map(|(name, count)| (name.to_owned(), count))
    );
    assert_eq!(chat.state()["last_mentioned_location"], "Rahway, NJ");
}

#[test]
fn an_agent_knows_what_it_calculated_and_whom_it_listed_and_nobody_else_does() {
    let server = Server::start_in_memory(&[]);
    let chat = Chat::begin(&server, "bob");
    assert_eq!(
        chat.say("math-agent", "Calculate fibonacci(10)"),
        "fibonacci(10) is 55"
    );
    assert_eq!(
        chat.say("math-agent", "Now calculate fibonacci(20)"),
        "fibonacci(20) is 6765 (earlier: fibonacci(10) is 55)"
    );
    let stranger = Chat::begin(&server, "carol");
    assert_eq!(
        stranger.say("math-agent", "Now calculate fibonacci(20)"),
        "fibonacci(20) is 6765"
    );
    let unlisted = stranger.say("ums-agent", "Delete the first user");
    assert!(unlisted.contains("Say \"List users\" first"), "{unlisted}");

    let users = chat.say("ums-agent", "List users");
    assert!(users.starts_with("12 users:\n1. Ada Lovelace\n"), "{users}");
    let weather = "What's the weather in Paris?";
    assert_eq!(chat.say("weather-agent", weather), "Cloudy, 64");
    assert_eq!(chat.state()["last_mentioned_location"], "Paris");
    let (request, hold) = chat.ask("ums-agent", "Delete the first user");
    assert_eq!(hold["title"], "Delete user 1 (Ada Lovelace)?");
    assert_eq!(hold["action"]["risk"], "high");
    assert_eq!(hold["action"]["effect"], "destructive");
    assert_eq!(hold["decide_by"], "other");
    server.decide(&hold, "approve", "one", json!({}));
    assert_eq!(server.answer(&request), "User 1 was deleted.");
    assert_eq!((delete_runs(&server), user_ids(&server).len()), (1, 11));
    let trace = server.get(&format!("/sessions/{}/messages?view=trace", chat.session));
    let items = trace["messages"].as_array().expect("items");
    let result = items
        .iter()
        .rfind(|item| item["kind"] == "tool_result")
        .expect("a result");
    assert_eq!(result["result"], json!({ "deleted": 1 }));
    assert_eq!(result["outcome"], "ran");
}

#[test]
fn talking_on_while_an_approval_is_open_splits_no_memory() {
    let server = Server::start_in_memory(&[]);
    let chat = Chat::begin(&server, "bob");
    chat.say("math-agent", "Calculate fibonacci(10)");
    chat.say("ums-agent", "List users");
    let (first, hold) = chat.ask("ums-agent", "Delete the first user");
    assert_eq!(
        chat.say("math-agent", "Now calculate fibonacci(20)"),
        "fibonacci(20) is 6765 (earlier: fibonacci(10) is 55)"
    );
    let (second, other) = chat.ask("ums-agent", "Delete the second user");
    assert_eq!(other["title"], "Delete user 2 (Alan Turing)?");
    server.decide(&hold, "approve", "one", json!({}));
    assert_eq!(server.answer(&first), "User 1 was deleted.");
    server.decide(&other, "approve", "two", json!({}));
    assert_eq!(server.answer(&second), "User 2 was deleted.");
    assert_eq!(delete_runs(&server), 2);
    assert_eq!(
        chat.say("math-agent", "Now calculate fibonacci(30)"),
        "fibonacci(30) is 832040 (earlier: fibonacci(20) is 6765, fibonacci(10) is 55)"
    );
}

#[test]
fn which_springfield_is_asked_and_the_answer_is_taken() {
    let server = Server::start_in_memory(&[]);
    let chat = Chat::begin(&server, "bob");
    let (request, hold) = chat.ask("weather-agent", "What's the weather in Springfield?");
    assert_eq!(
        (&hold["kind"], &hold["title"]),
        (&json!("question"), &json!("Which Springfield?"))
    );
    let none = json!({ "content": "the nice one" });
    let (status, refused) = server.try_decide(&hold, "respond", "one", none);
    assert_eq!((status, &refused["code"]), (422, &json!("invalid_content")));
    server.decide(&hold, "respond", "two", json!({ "content": "Illinois" }));
    assert_eq!(server.answer(&request), "Springfield, IL: Sunny, 75");
    assert_eq!(chat.state()["last_mentioned_location"], "Springfield, IL");
}

#[test]
fn people_decide_in_every_way_and_only_what_they_approved_happens() {
    let server = Server::start_in_memory(&["--clock-control"]);
    let chat = Chat::begin(&server, "bob");
    let (request, hold) = chat.ask("ums-agent", "Delete user 7");
    let typed = chat.say("ums-agent", "approved");
    assert!(typed.contains("is not an approval"), "{typed}");
    assert_eq!(server.open_hold(&request)["id"], hold["id"]);
    server.decide(
        &hold,
        "reject",
        "one",
        json!({ "comment": "she is needed" }),
    );
    assert_eq!(
        server.answer(&request),
        "A person refused: user 7 was not deleted: she is needed"
    );

    let (request, hold) = chat.ask("ums-agent", "Delete user 7");
    let edit = json!({ "args": { "user_id": 8 } });
    server.decide(&hold, "edit", "one", edit);
    assert_eq!(
        server.answer(&request),
        "User 8 was deleted: a person chose this one."
    );
    assert_eq!(delete_runs(&server), 1);
    assert!(user_ids(&server).contains(&7) && !user_ids(&server).contains(&8));

    let (request, _) = chat.ask("ums-agent", "Delete user 9");
    server.post("/dev/clock", &json!({ "step_seconds": 3_700 }));
    assert_eq!(
        server.answer(&request),
        "Nobody decided in time: user 9 was not deleted."
    );

    let (request, hold) = chat.ask("ums-agent", "Delete user 10");
    let answers = std::thread::scope(|scope| {
        let click = |key| {
            let (server, hold) = (&server, &hold);
            scope.spawn(move || server.try_decide(hold, "approve", key, json!({})).0)
        };
        ["one", "two", "three"]
            .map(click)
            .map(|click| click.join().expect("it ends"))
    });
    let mut answers = answers.to_vec();
    answers.sort_unstable();
    assert_eq!(answers, [200, 409, 409], "one decision counts");
    assert_eq!(server.answer(&request), "User 10 was deleted.");
    assert_eq!(delete_runs(&server), 2);
}

#[test]
fn deletes_at_the_same_time_all_count_and_one_user_is_deleted_once() {
    let server = Server::start_in_memory(&[]);
    let waiting: Vec<(String, Value)> = [1, 2, 3, 4, 5, 6, 6]
        .iter()
        .map(|user| {
            let chat = Chat::begin(&server, "bob");
            chat.ask("ums-agent", &format!("Delete user {user}"))
        })
        .collect();
    std::thread::scope(|scope| {
        for (_, hold) in &waiting {
            let server = &server;
            scope.spawn(move || server.decide(hold, "approve", "one", json!({})));
        }
    });
    let answers: Vec<String> = waiting
        .iter()
        .map(|(request, _)| server.answer(request))
        .collect();
    let gone = answers
        .iter()
        .filter(|text| text.contains("nothing was deleted"));
    assert_eq!(gone.count(), 1, "{answers:?}");
    assert_eq!(delete_runs(&server), 6);
    assert_eq!(user_ids(&server), [7, 8, 9, 10, 11, 12]);
}

#[test]
fn a_kill_while_people_think_loses_nothing_and_a_kill_after_they_decided_runs_nothing_twice() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = Server::start_on(directory.path(), &[]);
    let chat = Chat::begin(&server, "bob");
    let session = chat.session.clone();
    // From before anybody has read the decision to after the effect.
    let delays_us = [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000];
    for (done, delay) in delays_us.into_iter().enumerate() {
        let user = done + 1;
        let chat = Chat::of(&server, &session);
        let (request, hold) = chat.ask("ums-agent", &format!("Delete user {user}"));
        server.kill();
        server = Server::start_on(directory.path(), &[]);
        assert_eq!(server.open_hold(&request)["id"], hold["id"]);
        assert_eq!(delete_runs(&server), done as u64);
        server.decide(&hold, "approve", "one", json!({}));
        std::thread::park_timeout(Duration::from_micros(delay));
        server.kill();
        server = Server::start_on(directory.path(), &[]);
        assert_eq!(
            server.answer(&request),
            format!("User {user} was deleted."),
            "killed {delay} us after the approval"
        );
        let (status, _) = server.try_decide(&hold, "approve", "two", json!({}));
        assert_eq!(status, 409, "it was decided");
        assert_eq!(delete_runs(&server), done as u64 + 1);
    }
    assert_eq!(user_ids(&server), [8, 9, 10, 11, 12]);
}

#[test]
fn a_new_server_has_four_sessions_and_a_later_start_makes_no_more() {
    let directory = tempfile::tempdir().expect("a directory");
    let sessions = |server: &Server| -> Vec<(String, String, String)> {
        let list = server.get("/sessions");
        let list = list["sessions"].as_array().expect("sessions").clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        list.iter()
            .map(|session| {
                (
                    text(&session["user"]),
                    text(&session["status"]),
                    text(&session["id"]),
                )
            })
            .collect()
    };
    let mut server = Server::start_on(directory.path(), &[]);
    assert!(
        server.said.contains(
            "Agents     coordinator, math-agent, weather-agent, ums-agent (rules, no model)"
        ),
        "{}",
        server.said
    );
    // Cut off in the middle of it, it is finished by the next start.
    server.kill();
    server = Server::start_on(directory.path(), &[]);
    server.wait_for("the seeds", |server| {
        let state = server.get("/state/app/default");
        state["state"]["app:demo.seeded"] == "done"
    });
    let first = sessions(&server);
    let users: Vec<(&str, &str)> = first
        .iter()
        .map(|(user, status, _)| (user.as_str(), status.as_str()))
        .collect();
    assert_eq!(
        users,
        [
            ("alice", "paused"),
            ("carol", "idle"),
            ("bob", "idle"),
            ("alice", "idle")
        ]
    );
    let (_, _, oldest) = first.last().expect("four");
    let messages = server.get(&format!("/sessions/{oldest}/messages"));
    let texts: Vec<&str> = messages["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .filter_map(|message| message["content"].as_str())
        .collect();
    assert_eq!(
        texts,
        [
            "What's 2+2",
            "2+2 is 4",
            "What's the temperature in Rahway, NJ",
            "Sunny, 72",
            "What's the square root of 121?",
            "The square root of 121 is 11",
        ]
    );
    server.stop();
    let server = Server::start_on(directory.path(), &[]);
    assert_eq!(sessions(&server), first);
}

#[test]
fn without_the_demo_there_is_nothing_of_it() {
    let server = Server::start_in_memory(&["--no-demo"]);
    assert!(!server.said.contains("Agents"), "{}", server.said);
    let sessions = server.get("/sessions");
    assert_eq!(sessions["sessions"], json!([]));
    assert_eq!(server.get("/keys")["keys"], json!([]));
}

#[test]
fn without_the_demo_the_banner_names_the_declared_agents() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = "[agents.refunds]\ndescription = \"Pays refunds\"\n";
    std::fs::write(directory.path().join("statehold.toml"), config).expect("a file");
    let server = Server::start_on(directory.path(), &["--no-demo"]);
    for words in [
        "Agents     refunds (declared)",
        "Try:  statehold chat refunds",
    ] {
        assert!(server.said.contains(words), "{}", server.said);
    }
}

#[test]
fn an_agent_that_is_configured_is_left_to_whoever_works_for_it() {
    let directory = tempfile::tempdir().expect("a directory");
    // Policies alone do not replace the demo agent: they apply to it.
    let config = "[agents.math-agent]\ndescription = \"ours\"\n\
                  [agents.weather-agent.tools.anything]\nrisk = \"low\"\n";
    std::fs::write(directory.path().join("statehold.toml"), config).expect("a file");
    let server = Server::start_on(directory.path(), &[]);
    assert!(
        server
            .said
            .contains("Agents     coordinator, weather-agent, ums-agent "),
        "{}",
        server.said
    );
    assert!(
        server.said.contains("math-agent (declared)"),
        "{}",
        server.said
    );
    let chat = Chat::begin(&server, "bob");
    let request = chat.start("math-agent", "What's 2+2");
    let claim = json!({ "agent": "math-agent", "wait_seconds": 10 });
    let claimed = server.post("/work/claim", &claim);
    assert_eq!(claimed["requests"][0]["id"], request);
    assert_eq!(chat.say("weather-agent", "weather in Paris"), "Cloudy, 64");
}

/// A server whose only agent is the coordinator of another one.
fn in_front_of(far: &Server, directory: &std::path::Path) -> Server {
    let config = format!(
        "[agents.far]\nkind = \"openai\"\nmodel = \"coordinator\"\nmemory = \"track\"\n\
         base_url = \"{}/openai/v1\"\n",
        far.url
    );
    std::fs::write(directory.join("statehold.toml"), config).expect("a file");
    Server::start_on(directory, &["--no-demo"])
}

#[test]
fn a_pause_of_another_statehold_is_decided_here_and_its_action_runs_there_once() {
    let (far, directory) = (
        Server::start_in_memory(&[]),
        tempfile::tempdir().expect("a directory"),
    );
    let near = in_front_of(&far, directory.path());
    let chat = Chat::begin(&near, "bob");
    assert_eq!(chat.say("far", "What's 2+2"), "2+2 is 4");
    let request = chat.start("far", "Delete user 7");
    let hold = near.open_hold(&request);
    assert_eq!(hold["action"]["tool"], "delete_user", "{hold}");
    assert_eq!(hold["action"]["args"]["args"]["user_id"], 7, "{hold}");
    // The decision outlives the server that asks for it.
    near.kill();
    let near = in_front_of(&far, directory.path());
    for key in ["one", "two"] {
        let (status, answer) = near.try_decide(&hold, "approve", key, json!({}));
        assert_eq!(status, if key == "one" { 200 } else { 409 }, "{answer}");
    }
    assert_eq!(near.answer(&request), "User 7 was deleted.");
    let state = far.get("/state/app/default");
    assert_eq!(state["state"]["app:demo.delete_runs"], 1, "{state}");
}

#[test]
fn a_question_of_another_statehold_is_answered_here_and_a_refusal_is_told_there() {
    let (far, directory) = (
        Server::start_in_memory(&[]),
        tempfile::tempdir().expect("a directory"),
    );
    let near = in_front_of(&far, directory.path());
    let chat = Chat::begin(&near, "bob");
    let request = chat.start("far", "What's the weather in Springfield?");
    let hold = near.open_hold(&request);
    assert_eq!(hold["kind"], "question", "{hold}");
    near.decide(&hold, "respond", "a", json!({ "content": "Illinois" }));
    assert!(near.answer(&request).contains("Springfield, IL"));
    let request = chat.start("far", "Delete user 7");
    let hold = near.open_hold(&request);
    near.decide(&hold, "reject", "b", json!({ "comment": "not today" }));
    assert_eq!(
        near.answer(&request),
        "A person refused: user 7 was not deleted: not today"
    );
    let state = far.get("/state/app/default");
    assert_eq!(
        state["state"]["app:demo.delete_runs"],
        json!(null),
        "{state}"
    );
}

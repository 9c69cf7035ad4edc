//! The seed sessions, so that a new server has content to look at. Created through the public API,
//! by the same agents, on the first start only.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::book::{COORDINATOR, MATH, UMS, WEATHER};
use crate::client::{Client, encode};
use crate::exit::{Exit, Failure};

/// The default app of sessions.
pub(super) const APP: &str = "default";
/// The progress of seeding: absent, `begun` or `done`.
const SEEDED: &str = "app:demo.seeded";
/// The timeout of one turn.
const TURN_MAX: Duration = Duration::from_mins(1);
/// The polling interval.
const LOOK: Duration = Duration::from_millis(20);

/// One seed session.
struct DemoSeed {
    user: &'static str,
    name: &'static str,
    /// The messages, and the agent for each if there is no coordinator.
    turns: &'static [(&'static str, &'static str)],
}

/// Three sessions that end, and one that waits for a person.
const SEEDS: [DemoSeed; 4] = [
    DemoSeed {
        user: "alice",
        name: "Sums and weather",
        turns: &[
            ("What's 2+2", MATH),
            ("What's the temperature in Rahway, NJ", WEATHER),
            ("What's the square root of 121?", MATH),
        ],
    },
    DemoSeed {
        user: "bob",
        name: "Fibonacci numbers",
        turns: &[
            ("Calculate fibonacci(10)", MATH),
            ("Now calculate fibonacci(20)", MATH),
        ],
    },
    DemoSeed {
        user: "carol",
        name: "Users, and a trip to Paris",
        turns: &[
            ("List users", UMS),
            ("What's the weather in Paris?", WEATHER),
            ("Delete user 99", UMS),
        ],
    },
    // In the tutorial the first hold has a low request number. This session has more requests, so
    // that its hold gets another alias.
    DemoSeed {
        user: "alice",
        name: "Waits for a person",
        turns: &[
            ("What's the weather in London?", WEATHER),
            ("What's 12 times 12?", MATH),
            ("Calculate fibonacci(12)", MATH),
            ("List users", UMS),
            ("Delete the last user", UMS),
        ],
    },
];

/// Creates the seed sessions on an empty server. An interrupted seeding is continued.
///
/// With `through_coordinator` the coordinator gets each message; otherwise the named agent does.
///
/// # Errors
///
/// If the server or an agent does not answer.
pub(super) async fn seed(client: &Client, through_coordinator: bool) -> Result<(), Failure> {
    let app = format!("/v1/state/app/{APP}");
    let marked = client.get(&app).await?.body;
    match marked["state"][SEEDED].as_str() {
        Some("begun") => {}
        Some(_) => return Ok(()),
        None => {
            let sessions = client.get("/v1/sessions?limit=1").await?.body;
            let is_new = sessions["sessions"].as_array().is_some_and(Vec::is_empty);
            if !is_new {
                return Ok(());
            }
            set_marker(client, &app, "begun").await?;
        }
    }
    for seed in &SEEDS {
        play_seed(client, seed, through_coordinator).await?;
    }
    set_marker(client, &app, "done").await
}

async fn set_marker(client: &Client, app: &str, how_far: &str) -> Result<(), Failure> {
    let patch = json!({ "set": { SEEDED: how_far } });
    client
        .call(Method::PATCH, app, Some(&patch))
        .await
        .map(drop)
}

async fn play_seed(
    client: &Client,
    seed: &DemoSeed,
    through_coordinator: bool,
) -> Result<(), Failure> {
    let session = find_or_create_session(client, seed).await?;
    wait_until_idle(client, &session).await?;
    // After an interrupted start, skip the messages that were sent.
    let path = format!("/v1/sessions/{session}/messages?limit=200");
    let messages = client.get(&path).await?.body;
    let said = messages["messages"].as_array().into_iter().flatten();
    let said = said.filter(|message| message["role"] == "user").count();
    for (text, agent) in seed.turns.iter().skip(said) {
        let mut ask = json!({ "input": text });
        if !through_coordinator {
            ask["agent"] = (*agent).into();
        }
        let path = format!("/v1/sessions/{session}/requests");
        client.call(Method::POST, &path, Some(&ask)).await?;
        wait_until_idle(client, &session).await?;
    }
    Ok(())
}

/// The session of a seed, created if it does not exist. Its name is unique.
async fn find_or_create_session(client: &Client, seed: &DemoSeed) -> Result<String, Failure> {
    let new = json!({
        "app": APP, "user": seed.user, "name": seed.name, "agent": COORDINATOR,
        "labels": { "demo": "seed" },
    });
    let made = match client.call(Method::POST, "/v1/sessions", Some(&new)).await {
        Ok(answer) => answer.body["id"].as_str().map(str::to_owned),
        Err(taken) if taken.code.as_deref() == Some("name_taken") => {
            taken.details["session_id"].as_str().map(str::to_owned)
        }
        Err(other) => return Err(other),
    };
    made.ok_or_else(|| Failure::new(Exit::Failed, "the server made a session without an id"))
}

/// Waits until nothing runs in a session: it is idle, or waits for a person.
async fn wait_until_idle(client: &Client, session: &str) -> Result<(), Failure> {
    let path = format!("/v1/sessions/{}", encode(session));
    let wait = async {
        loop {
            let read: Value = client.get(&path).await?.body;
            if read["status"] != "running" {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    match tokio::time::timeout(TURN_MAX, wait).await {
        Ok(done) => done,
        Err(_) => Err(Failure::new(
            Exit::TimedOut,
            "a demo agent did not answer in time",
        )),
    }
}

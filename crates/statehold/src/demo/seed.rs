//! The first sessions: a new server has something to look at. They are made through the public API, by
//! the same agents, on the first start and never again.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::book::{COORDINATOR, MATH, UMS, WEATHER};
use crate::client::{Client, encode};
use crate::exit::{Exit, Failure};

/// The app that sessions belong to if nobody says.
pub(super) const APP: &str = "default";
/// Says how far the seeds are: absent, `begun` or `done`.
const SEEDED: &str = "app:demo.seeded";
/// How long one turn may take before something else is wrong.
const TURN_MAX: Duration = Duration::from_mins(1);
/// How long one look at a session waits for its next change.
const LOOK: Duration = Duration::from_millis(20);

/// A conversation.
struct Seed {
    user: &'static str,
    name: &'static str,
    /// What is said, and who answers it where no coordinator chooses.
    turns: &'static [(&'static str, &'static str)],
}

/// Three that end, and one that waits for a person.
const SEEDS: [Seed; 4] = [
    Seed {
        user: "alice",
        name: "Sums and weather",
        turns: &[
            ("What's 2+2", MATH),
            ("What's the temperature in Rahway, NJ", WEATHER),
            ("What's the square root of 121?", MATH),
        ],
    },
    Seed {
        user: "bob",
        name: "Fibonacci numbers",
        turns: &[
            ("Calculate fibonacci(10)", MATH),
            ("Now calculate fibonacci(20)", MATH),
        ],
    },
    Seed {
        user: "carol",
        name: "Users, and a trip to Paris",
        turns: &[
            ("List users", UMS),
            ("What's the weather in Paris?", WEATHER),
            ("Delete user 99", UMS),
        ],
    },
    // Somebody who tries the tutorial has few requests when the first one waits; this one has another
    // number, so that neither is taken for the other.
    Seed {
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

/// Makes the seeds, unless there is something already. What was begun and cut off is finished.
///
/// With `through_coordinator` the session's coordinator gets each message; otherwise each agent does.
///
/// # Errors
///
/// If the server does not answer, or an agent does not.
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
            mark(client, &app, "begun").await?;
        }
    }
    for seed in &SEEDS {
        play(client, seed, through_coordinator).await?;
    }
    mark(client, &app, "done").await
}

async fn mark(client: &Client, app: &str, how_far: &str) -> Result<(), Failure> {
    let patch = json!({ "set": { SEEDED: how_far } });
    client
        .call(Method::PATCH, app, Some(&patch))
        .await
        .map(drop)
}

async fn play(client: &Client, seed: &Seed, through_coordinator: bool) -> Result<(), Failure> {
    let session = session_of(client, seed).await?;
    settled(client, &session).await?;
    // After a start that was cut off, what has been said is not said again.
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
        settled(client, &session).await?;
    }
    Ok(())
}

/// The session of a seed, made if it is not there. Its name is taken once.
async fn session_of(client: &Client, seed: &Seed) -> Result<String, Failure> {
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
async fn settled(client: &Client, session: &str) -> Result<(), Failure> {
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

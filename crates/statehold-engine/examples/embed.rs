//! Statehold without a server: the engine as a library, on a data directory of its own.
//!
//! A user asks, a worker claims the request and answers, and the user waits for the answer. Each call is
//! one function of `api`, and its commit is durable when it returns. Run it with:
//!
//! ```text
//! cargo run --package statehold-engine --example embed
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use statehold_engine::api::request::WaitUntil;
use statehold_engine::api::state::StateQuery;
use statehold_engine::{
    Call, Caller, Engine, EngineOptions, PageLimit, RequestHolds, SystemClock, UnmeteredMemory, api,
};
use statehold_store::hold_keys::HoldKeyFile;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};

type AnyError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    // An engine has a store, keys for payloads, a clock and options. `MemoryStore`, `MemoryKeys` and the
    // default options do the same for as long as the process lives.
    let data = tempfile::tempdir()?;
    let store = SqliteStore::open(data.path(), SqliteOptions::default())?;
    let keys = KeyFile::open(data.path())?;
    let options = EngineOptions {
        hold_keys: Arc::new(HoldKeyFile::open(data.path())?),
        ..EngineOptions::default()
    };
    let engine = Engine::start(
        Arc::new(store),
        Arc::new(keys),
        Arc::new(SystemClock),
        options,
    )
    .await?;

    // The host program decides who its callers are. This one has every role.
    let caller = Caller::local("default".parse()?);
    let call = Call::by(caller.clone());

    // Inputs and views are those of the native API.
    let session = input(&json!({"app": "travel", "user": "ada", "agent": "coordinator"}))?;
    let session = api::session::create(&engine, &call, session).await?.view.id;
    println!("created {session}");

    let question = input(&json!({"input": "What is the capital of France?"}))?;
    let asked = api::request::start(&engine, &call, session, question, None).await?;
    println!("{} is {:?}", asked.view.id, asked.view.status);

    let worker = tokio::spawn(work(engine.clone(), call.clone()));
    let wait = (WaitUntil::Final, Duration::from_secs(10));
    let holds = RequestHolds {
        before: None,
        entries: 10,
    };
    let wanted = (asked.view.id, holds);
    let answered = api::request::read(&engine, &caller, wanted, wait, &UnmeteredMemory).await?;
    worker.await??;
    println!("{} is {:?}", answered.view.id, answered.view.status);

    let (page, _next) =
        api::session::messages(&engine, &caller, session, (None, PageLimit::entries(50))).await?;
    for message in page.messages {
        println!("{:?}: {}", message.role, message.content);
    }
    let (read, _next) = api::state::read(
        &engine,
        &caller,
        session,
        None,
        (&StateQuery::default(), PageLimit::entries(50)),
    )
    .await?;
    for (key, value) in read.state {
        println!("{key} = {value}");
    }

    // Waits until every commit in flight is durable.
    engine.shut_down().await;
    Ok(())
}

/// Parses JSON, as a client would send it, into the input of a use case.
fn input<T: DeserializeOwned>(json: &Value) -> serde_json::Result<T> {
    serde_json::from_str(&json.to_string())
}

/// A worker: claims requests of its agent, and answers each under the fence of its lease.
async fn work(engine: Engine, call: Call) -> Result<(), AnyError> {
    let claim = input(&json!({"agent": "coordinator", "wait_seconds": 5, "lease_seconds": 60}))?;
    let claimed = api::work::claim(&engine, &call.caller, claim, &UnmeteredMemory).await?;
    for request in claimed.requests {
        // State that goes with an answer is in the same commit.
        let answer = input(&json!({
            "fence": request.fence,
            "output": "Paris.",
            "state": {"set": {"topic": "France"}},
        }))?;
        api::request::complete(&engine, &call, request.id, answer).await?;
    }
    Ok(())
}

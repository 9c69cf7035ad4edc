//! Statehold without a server: the engine as a library, on a data directory of its own.
//!
//! A user asks, a worker claims the request and answers, and a reader follows the feed meanwhile.
//! Everything that is printed was durable first. Run it with:
//!
//! ```text
//! cargo run --package statehold-engine --example embed
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use statehold_core::command::{Command, Fenced, Output, StartRequest, StatePatch, StateSet};
use statehold_core::ids::{IdMint, SessionId, Shard};
use statehold_core::name::Name;
use statehold_core::scope::MergePolicy;
use statehold_core::session::Owner;
use statehold_core::task::CloseOn;
use statehold_engine::{
    Call, Caller, Claim, Engine, EngineError, EngineOptions, Reply, SystemClock,
};
use statehold_store::hold_keys::HoldKeyFile;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // An engine is a store, the keys of its payloads, a clock and options. `MemoryStore`,
    // `MemoryKeys` and the default options do the same for as long as the process lives.
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

    // Whoever embeds the engine decides who its callers are. This one may do everything.
    let caller = Caller::local(name("default")?);
    let session = create_session(&engine, &caller).await?;
    println!("created {session}");

    // Readers hold a place and nothing else: each looks, and waits when there is nothing new.
    let reader = tokio::spawn(follow(engine.clone(), caller.clone(), session, 4));

    ask(&engine, &caller, session, "What is the capital of France?").await?;
    work(&engine, &caller).await?;
    reader.await??;

    let page = engine.transcript(&caller, session, None, 50).await?;
    println!("transcript at revision {}:", page.revision);
    // Pages come newest first.
    for stored in page.items.iter().rev() {
        let body = stored.body.as_deref().unwrap_or(b"(erased)");
        if let Some(role) = stored.placed.item.role {
            println!("  {role:?}: {}", String::from_utf8_lossy(body));
        }
    }
    let (state, _) = engine.state(&caller, session).await?;
    for (key, value) in state {
        println!("state {key} = {}", String::from_utf8_lossy(&value.value));
    }

    // Waits until everything that was begun is durable.
    engine.shut_down().await;
    Ok(())
}

fn name(text: &str) -> Result<Name, Box<dyn Error>> {
    Ok(text.parse()?)
}

/// What a command answers is up to the caller. Here the revision is enough, which comes anyway.
fn nothing() -> Reply {
    Arc::new(|_| Vec::new())
}

async fn create_session(engine: &Engine, caller: &Caller) -> Result<SessionId, Box<dyn Error>> {
    let (app, user) = (name("travel")?, "ada");
    let owner = Owner {
        agent: name("coordinator")?,
        // Records name users by a pseudonym; who it stands for is kept beside the log.
        user: engine.user_id(&caller.tenant, user).await?,
        tenant: caller.tenant.clone(),
        app,
    };
    // The caller names the session, so that the call can be made again without making a second one.
    let shard = Shard::of_owner(owner.tenant.as_str(), owner.app.as_str(), user);
    let mut mint = IdMint::new(engine.now(), shard, random()?);
    let session = SessionId::from_uuid(mint.next_uuid());
    // Records only name payloads, by a digest under the key of the user.
    let mut payloads = engine.payloads_for(&owner.tenant, owner.user).await?;
    let command = Command::CreateSession {
        name: Some(payloads.put(b"A question about France".to_vec())),
        labels: None,
        state: StatePatch::default(),
        ttl: None,
        owner,
    };
    let call = Call::by(caller.clone());
    engine
        .submit(session, &call, &command, &payloads, &nothing())
        .await?;
    Ok(session)
}

fn random() -> Result<u64, Box<dyn Error>> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    Ok(u64::from_le_bytes(bytes))
}

/// The user asks: a request waits for a worker of the session's agent.
async fn ask(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    question: &str,
) -> Result<(), Box<dyn Error>> {
    let owner = engine.owner(session).await?;
    let mut payloads = engine.payloads_for(&owner.tenant, owner.user).await?;
    let command = Command::StartRequest(StartRequest {
        agent: owner.agent,
        task: None,
        parent: None,
        // To the engine a payload is bytes. The server writes this form, and so it can read it.
        input: payloads.put(json!({"content": question}).to_string().into_bytes()),
        attachments: Vec::new(),
        close_on: CloseOn::default(),
        // With a lease, items and an output this one command would be the whole turn.
        lease_ttl_ms: None,
        items: Vec::new(),
        state: StatePatch::default(),
        output: None,
    });
    let call = Call::by(caller.clone());
    engine
        .submit(session, &call, &command, &payloads, &nothing())
        .await?;
    Ok(())
}

/// A worker claims what waits for its agent, and answers under the fence it was given.
async fn work(engine: &Engine, caller: &Caller) -> Result<(), Box<dyn Error>> {
    let claim = Claim {
        agent: name("coordinator")?,
        max: 1,
        wait: Duration::from_secs(5),
        lease_ms: 60_000,
        request: None,
    };
    for claimed in engine.claim(caller, &claim).await? {
        let session = &claimed.detail.session;
        let Some(live) = claimed.detail.request.live() else {
            continue;
        };
        let (tenant, user) = (&session.owner.tenant, session.owner.user);
        let mut payloads = engine.payloads_for(tenant, user).await?;
        let answer = json!({"content": "Paris."}).to_string().into_bytes();
        let command = Command::CompleteRequest {
            by: Fenced {
                request: live.id,
                fence: live.fence,
            },
            output: Output {
                body: payloads.put(answer),
                attachments: Vec::new(),
            },
            items: Vec::new(),
            // State that goes with an answer is in the same commit.
            state: StatePatch {
                set: vec![StateSet {
                    key: "topic".parse()?,
                    value: payloads.put(b"\"France\"".to_vec()),
                    merge: MergePolicy::Replace,
                }],
                ..StatePatch::default()
            },
            task_state: None,
            close_task: false,
            cancel_children: false,
        };
        let call = Call::by(caller.clone());
        engine
            .submit(session.id, &call, &command, &payloads, &nothing())
            .await?;
    }
    Ok(())
}

/// Prints the records of a session as they are committed, up to a revision.
async fn follow(
    engine: Engine,
    caller: Caller,
    session: SessionId,
    until: u64,
) -> Result<(), EngineError> {
    let mut seen = 0;
    while seen < until {
        for entry in engine.feed(&caller, session, seen, 64).await? {
            let content = &entry.stored.record.content;
            seen = content.seq;
            println!(
                "record {seen}: {:?}, {} events",
                content.command,
                content.events.len()
            );
        }
        if seen < until {
            engine.changed_after(session, seen).await?;
        }
    }
    Ok(())
}

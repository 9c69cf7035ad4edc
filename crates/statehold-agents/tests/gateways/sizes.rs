//! The cost of an agent's state: as a client would carry it in plain messages, and as the server keeps it.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::spec::ChatMemory;
use statehold_engine::testing;
use statehold_fakes::FakeService;
use statehold_fakes::chat::streamed_with;

use crate::rig::{Outcome, Rig, name};
use crate::world::chat;

/// The tool calls after which the sizes are taken.
const CALLS: [usize; 3] = [0, 5, 20];
/// The length of one result.
const RESULT_BYTES: usize = 700;

/// The calls of a turn and their results, as the agent of the first seed keeps them.
fn state(turn: usize) -> String {
    let id = format!("call_{turn}");
    let arguments = format!(r#"{{"file": "report-{turn}.txt"}}"#);
    let function = json!({"name": "file_extraction", "arguments": arguments});
    let call = json!({"id": id, "type": "function", "function": function});
    let history = if turn == 0 {
        json!([])
    } else {
        json!([
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "x".repeat(RESULT_BYTES), "tool_call_id": id, "name": "file_extraction"},
        ])
    };
    json!({"state": {"tool_call_history": history}}).to_string()
}

/// The sizes after some tool calls, in bytes.
struct Sizes {
    calls: usize,
    /// All states so far.
    state: usize,
    /// The call with the next message, by a client that carries the states.
    sent_plain: usize,
    /// The same call to this server.
    sent: usize,
    /// Before compression.
    stored: usize,
}

#[tokio::test]
async fn state_that_grows_to_20_kb_is_kept_here_and_sent_by_no_client() -> Outcome {
    let server = FakeService::start(|seen| {
        let turn = seen.messages().len() / 2;
        streamed_with(&format!("Answer {turn}."), &state(turn))
    })
    .await;
    let rig = Rig::new(vec![Arc::new(chat("gpa", &server, ChatMemory::Restore))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    let (mut sizes, mut all_states, mut told) = (Vec::new(), 0, 0);
    for turn in 0..=CALLS[2] {
        let said = format!("Extract file {turn:02}");
        let answer = rig.turn(session, "gpa", &said).await;
        all_states += state(turn).len();
        told += said.len() + answer.len();
        if !CALLS.contains(&turn) {
            continue;
        }
        // The agent gets the same bytes in the next turn as from a client with plain state.
        let next = "And now?";
        let fork = testing::fork(&rig.engine, &rig.local, session).await?;
        rig.turn(fork, "gpa", next).await;
        let sent = json!({"model": "gpa", "messages": [{"role": "user", "content": next}]});
        let tasks = testing::tasks_of(&rig.engine, session, &name("gpa")).await?;
        let mut stored = 0;
        for task in tasks {
            let page = testing::task_items(&rig.engine, session, task, None, 500).await?;
            let bodies = page.items.iter().filter_map(|item| item.body.as_ref());
            stored += bodies.map(Vec::len).sum::<usize>();
        }
        let last = server.seen();
        let last: Value = last.last().expect("a call").json();
        sizes.push(Sizes {
            calls: turn,
            state: all_states,
            sent_plain: last["messages"].to_string().len(),
            sent: sent.to_string().len(),
            stored,
        });
    }
    println!(
        "tool calls | state | sent by a client that carries it | sent by a client of this server | stored"
    );
    for one in &sizes {
        println!(
            "{:>10} | {:>5} | {:>32} | {:>31} | {:>6}",
            one.calls, one.state, one.sent_plain, one.sent, one.stored
        );
    }
    let [none, five, twenty] = sizes.as_slice() else {
        panic!("three sizes");
    };
    assert!(none.state < 500 && (4_000..6_000).contains(&five.state));
    assert!((18_000..22_000).contains(&twenty.state), "{}", twenty.state);
    assert!(
        twenty.sent_plain > twenty.state,
        "a client sends it all with each call"
    );
    assert_eq!(
        twenty.sent, none.sent,
        "a call to this server does not grow"
    );
    assert!(twenty.sent < 100);
    // The step with the reply has the state, and so has the note that gives it back.
    let unique = twenty.state + told;
    assert!(
        twenty.stored <= 5 * unique / 2,
        "{} bytes for {unique}",
        twenty.stored
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

//! Tools that were called and did not answer. Their outcome is unknown, so no call is repeated
//! silently.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use serde_json::{Value, json};
use statehold_agents::runner::{CommitPhase, StepKind};
use statehold_agents::scratch::{EngineFactory, Scratch};
use statehold_core::hold::{DecisionKind, Effect, HoldKind};
use statehold_core::ids::RequestId;
use statehold_engine::bodies::{HoldBody, RECONCILE_TITLE, parse};
use statehold_engine::policy::{AgentPolicy, Approval, OnNoAnswer, Policies, ToolPolicy};
use statehold_engine::{Caller, Engine, EngineOptions, HoldDetail, MemoryKeys, SystemClock};
use statehold_fakes::chat::{ModelReply, ScriptedModel, calls, text};
use statehold_fakes::tools::{ToolBehaviour, ToolServer, take_one, tool};
use statehold_store::memory::MemoryStore;

use crate::approvals::{decide, paused};
use crate::crashes::lost_at;
use crate::llm::{AtWork, Declared, assistant_book, completed};
use crate::rig::{Outcome, PATIENCE, Rig, name};

pub(crate) const LOST: &str = "The connection to the tool was lost.";

/// `pay` fails to answer in one of several ways, this many times. Then it works, as `list` always does.
async fn failing(times: usize, how: Value) -> ToolServer {
    let left = Arc::new(AtomicUsize::new(times));
    let does: ToolBehaviour = Arc::new(move |call| {
        let (left, how) = (Arc::clone(&left), how.clone());
        Box::pin(async move {
            let fails = call.tool == "pay" && take_one(&left);
            match (fails, how) {
                (false, _) => json!(format!("{} done", call.tool)),
                (true, Value::String(_)) => std::future::pending().await,
                (true, how) => how,
            }
        })
    });
    ToolServer::with(vec![tool("pay"), tool("list")], does).await
}

/// The answer never arrives.
fn hangs() -> Value {
    json!("hangs")
}

fn cut() -> Value {
    Value::Null
}

pub(crate) fn pays_once() -> [ModelReply; 2] {
    [calls(&[("c1", "pay", json!({"amount": 5}))]), text("Paid.")]
}

pub(crate) fn about_pay(pay: ToolPolicy) -> Policies {
    let agent = AgentPolicy {
        tools: [(name("pay"), pay)].into(),
        ..AgentPolicy::default()
    };
    Policies {
        agents: [(name("assistant"), agent)].into(),
        ..Policies::default()
    }
}

pub(crate) fn idempotent() -> Policies {
    about_pay(ToolPolicy {
        idempotent: Some(true),
        ..ToolPolicy::default()
    })
}

/// Waits for the reconcile hold of a call and returns it.
pub(crate) async fn asked(rig: &Rig, request: RequestId, says: &str) -> HoldDetail {
    let mut holds = paused(rig, request, 1).await;
    let hold = holds.pop().expect("a hold");
    assert_eq!(hold.hold.kind, HoldKind::Reconcile);
    let body: HoldBody = parse(hold.body.as_deref());
    assert_eq!(body.message.as_deref(), Some(says));
    assert!(body.title.starts_with(RECONCILE_TITLE), "{}", body.title);
    assert!(!body.title.contains("files"), "{}", body.title);
    assert_eq!(body.action.expect("the call").tool, "pay");
    hold
}

/// The text that the model got for its first call.
pub(crate) fn told(model: &ScriptedModel) -> String {
    let told = model.messages(1)[3]["content"].clone();
    told.as_str().expect("text").to_owned()
}

#[track_caller]
pub(crate) fn called_under_one_key(tools: &ToolServer, times: usize) {
    let called = tools.called();
    assert_eq!(called.len(), times, "{called:?}");
    let is_one = called.iter().all(|call| call.key == called[0].key);
    assert!(is_one, "{called:?}");
}

#[tokio::test]
async fn about_a_call_without_an_answer_a_person_is_asked_and_their_word_counts() -> Outcome {
    for (kind, with, runs, says) in [
        (DecisionKind::Approve, json!({}), 2, "pay done"),
        (
            DecisionKind::Respond,
            json!({"content": {"outcome": "ran", "result": "paid 5"}}),
            1,
            "paid 5",
        ),
        (
            DecisionKind::Reject,
            json!({"comment": "The account was closed."}),
            1,
            "The account was closed.",
        ),
    ] {
        let tools = failing(1, cut()).await;
        let model = ScriptedModel::start(pays_once()).await;
        let declared = Declared {
            // Retries are for idempotent tools only.
            retries: 2,
            ..Declared::with_tools(&tools)
        };
        let work = AtWork::start(&model, declared, Policies::default()).await;
        let request = work.ask("Pay 5").await;
        let hold = asked(&work.rig, request, LOST).await;
        assert_eq!(tools.called().len(), 1, "it is not called again by itself");
        assert_eq!(model.asked().len(), 1, "the model waits too");
        let kept = work.everything().await;
        assert!(kept.contains(r#""reason":"connection_lost""#), "{kept}");
        decide(&work.rig, &hold, kind, with).await;
        let ended = work.rig.ended(request).await;
        completed(&ended);
        assert_eq!(ended.holds.len(), 1, "{kind:?}");
        called_under_one_key(&tools, runs);
        let told = told(&model);
        assert!(told.contains(says), "{kind:?}: {told}");
        assert!(!told.contains("restarted"), "{told}");
        let transcript = work.rig.transcript(work.session).await;
        assert_eq!(transcript, ["Pay 5", "Paid."]);
        work.end().await;
    }
    Ok(())
}

#[tokio::test]
async fn why_it_is_not_known_is_said_in_our_own_words() -> Outcome {
    for (how, says) in [
        (hangs(), "The tool did not answer in time."),
        (json!(502), "What came back from the tool is no answer."),
    ] {
        let tools = failing(1, how).await;
        let model = ScriptedModel::start(pays_once()).await;
        let declared = Declared {
            timeout: Duration::from_secs(2),
            ..Declared::with_tools(&tools)
        };
        let work = AtWork::start(&model, declared, Policies::default()).await;
        let request = work.ask("Pay 5").await;
        let hold = asked(&work.rig, request, says).await;
        let ran = json!({"content": {"outcome": "ran", "result": "paid"}});
        decide(&work.rig, &hold, DecisionKind::Respond, ran).await;
        completed(&work.rig.ended(request).await);
        assert_eq!(tools.called().len(), 1);
        work.end().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_that_honours_keys_is_called_again_under_its_key_and_nobody_is_asked() -> Outcome {
    let tools = failing(2, cut()).await;
    let model = ScriptedModel::start(pays_once()).await;
    let declared = Declared {
        retries: 2,
        ..Declared::with_tools(&tools)
    };
    let work = AtWork::start(&model, declared, idempotent()).await;
    let ended = work.turn("Pay 5").await;
    completed(&ended);
    assert_eq!(ended.holds.len(), 0);
    called_under_one_key(&tools, 3);
    assert_eq!(told(&model), "pay done");
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn a_tool_that_honours_keys_and_never_answers_is_asked_about_in_the_end() -> Outcome {
    let tools = failing(3, cut()).await;
    let model = ScriptedModel::start(pays_once()).await;
    let declared = Declared {
        retries: 1,
        ..Declared::with_tools(&tools)
    };
    let work = AtWork::start(&model, declared, idempotent()).await;
    let request = work.ask("Pay 5").await;
    let hold = asked(&work.rig, request, LOST).await;
    called_under_one_key(&tools, 2);
    decide(&work.rig, &hold, DecisionKind::Approve, json!({})).await;
    completed(&work.rig.ended(request).await);
    called_under_one_key(&tools, 4);
    assert_eq!(told(&model), "pay done");
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn of_what_only_looks_and_where_the_policy_says_so_the_model_is_told() -> Outcome {
    for pay in [
        ToolPolicy {
            effect: Some(Effect::Read),
            ..ToolPolicy::default()
        },
        ToolPolicy {
            on_no_answer: Some(OnNoAnswer::Tell),
            ..ToolPolicy::default()
        },
    ] {
        let tools = failing(1, cut()).await;
        let model = ScriptedModel::start(pays_once()).await;
        let declared = Declared::with_tools(&tools);
        let work = AtWork::start(&model, declared, about_pay(pay)).await;
        let ended = work.turn("Pay 5").await;
        completed(&ended);
        assert_eq!((ended.holds.len(), tools.called().len()), (0, 1));
        let told = told(&model);
        assert!(told.contains("may have done its work; find out"), "{told}");
        work.end().await;
    }
    Ok(())
}

#[tokio::test]
async fn what_was_called_together_with_it_and_answered_is_not_called_again() -> Outcome {
    let tools = failing(1, cut()).await;
    let model = ScriptedModel::start([
        calls(&[
            ("c1", "pay", json!({"amount": 5})),
            ("c2", "list", json!({})),
        ]),
        text("Paid and listed."),
    ])
    .await;
    let declared = Declared::with_tools(&tools);
    let work = AtWork::start(&model, declared, Policies::default()).await;
    let request = work.ask("Pay 5 and list").await;
    let hold = asked(&work.rig, request, LOST).await;
    assert_eq!(tools.called().len(), 2);
    decide(&work.rig, &hold, DecisionKind::Approve, json!({})).await;
    completed(&work.rig.ended(request).await);
    let mut called: Vec<String> = tools.called().into_iter().map(|call| call.tool).collect();
    called.sort_unstable();
    assert_eq!(called, ["list", "pay", "pay"]);
    let told = model.messages(1);
    assert_eq!(
        (&told[3]["content"], &told[4]["content"]),
        (&json!("pay done"), &json!("list done"))
    );
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn an_approved_call_without_an_answer_is_asked_about_with_what_was_approved() -> Outcome {
    let tools = failing(1, cut()).await;
    let model = ScriptedModel::start(pays_once()).await;
    let policies = about_pay(ToolPolicy {
        approval: Some(Approval::Always),
        ..ToolPolicy::default()
    });
    let work = AtWork::start(&model, Declared::with_tools(&tools), policies).await;
    let request = work.ask("Pay 5").await;
    let approval = paused(&work.rig, request, 1).await;
    decide(&work.rig, &approval[0], DecisionKind::Approve, json!({})).await;
    let hold = asked(&work.rig, request, LOST).await;
    assert_eq!(hold.hold.digest, approval[0].hold.digest);
    decide(&work.rig, &hold, DecisionKind::Approve, json!({})).await;
    completed(&work.rig.ended(request).await);
    called_under_one_key(&tools, 2);
    assert_eq!(tools.called()[1].args, json!({"amount": 5}));
    assert_eq!(told(&model), "pay done");
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn each_time_that_it_is_not_known_is_asked_about_with_its_own_reason() -> Outcome {
    let tools = failing(2, cut()).await;
    let model = ScriptedModel::start(pays_once()).await;
    let book = assistant_book(&model, &Declared::with_tools(&tools));
    let rig = Rig::with(book, Policies::default()).await;
    let (hook, reached) = lost_at(StepKind::ToolResult, CommitPhase::Before, 1);
    let first = rig.watched(hook).await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Pay 5").await;
    for _ in 0..2 {
        let hold = asked(&rig, request, LOST).await;
        decide(&rig, &hold, DecisionKind::Approve, json!({})).await;
    }
    // The third call is answered, and the server crashes before it records the result.
    tokio::time::timeout(PATIENCE, reached.notified())
        .await
        .expect("it takes too long");
    first.stop().await;
    let second = rig.runner().await;
    let hold = asked(&rig, request, "The worker was lost during this action.").await;
    let ran = json!({"content": {"outcome": "ran", "result": "paid"}});
    decide(&rig, &hold, DecisionKind::Respond, ran).await;
    let ended = rig.ended(request).await;
    completed(&ended);
    let why: Vec<Option<String>> = ended
        .holds
        .iter()
        .map(|hold| parse::<HoldBody>(hold.body.as_deref()).message)
        .collect();
    let lost = Some(LOST.to_owned());
    assert_eq!(why[..2], [lost.clone(), lost], "what was said stays said");
    called_under_one_key(&tools, 3);
    second.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn where_nothing_is_kept_nobody_can_be_asked_and_the_model_is_told() -> Outcome {
    let tools = failing(1, cut()).await;
    let model = ScriptedModel::start(pays_once()).await;
    let book = Arc::new(assistant_book(&model, &Declared::with_tools(&tools)));
    let make: EngineFactory = Arc::new(|| {
        Box::pin(Engine::start(
            Arc::new(MemoryStore::new()),
            Arc::new(MemoryKeys::default()),
            Arc::new(SystemClock),
            EngineOptions::default(),
        ))
    });
    let scratch = Scratch::new(make, name("default"), Arc::clone(&book));
    let room = scratch.enter().await.expect("a room");
    let rig = Rig {
        engine: room.engine().clone(),
        book,
        local: Caller::local(name("default")),
    };
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Pay 5").await;
    let ended = rig.ended(request).await;
    completed(&ended);
    assert_eq!((ended.holds.len(), tools.called().len()), (0, 1));
    let told = told(&model);
    assert!(told.contains("may have done its work"), "{told}");
    Ok(())
}

#[tokio::test]
async fn what_a_tool_server_says_of_its_tools_counts_only_if_it_is_trusted() -> Outcome {
    let write = || ToolPolicy {
        effect: Some(Effect::Write),
        ..ToolPolicy::default()
    };
    // Trust, hint and policy; the number of automatic calls, and whether a hold is opened afterwards.
    for (trust_hints, hint, pay, called, asks) in [
        (false, "idempotentHint", ToolPolicy::default(), 1, true),
        (false, "readOnlyHint", ToolPolicy::default(), 1, true),
        (true, "idempotentHint", ToolPolicy::default(), 2, true),
        (true, "readOnlyHint", ToolPolicy::default(), 2, false),
        (true, "readOnlyHint", write(), 1, true),
    ] {
        let case = format!("{trust_hints} {hint} {pay:?}");
        let tools = failing(2, cut()).await;
        let mut offered = tool("pay");
        offered["annotations"] = json!({hint: true});
        tools.offer(vec![offered]);
        let model = ScriptedModel::start(pays_once()).await;
        let declared = Declared {
            retries: 1,
            trust_hints,
            ..Declared::with_tools(&tools)
        };
        let work = AtWork::start(&model, declared, about_pay(pay)).await;
        let request = work.ask("Pay 5").await;
        if asks {
            let hold = asked(&work.rig, request, LOST).await;
            called_under_one_key(&tools, called);
            decide(&work.rig, &hold, DecisionKind::Reject, json!({})).await;
        }
        let ended = work.rig.ended(request).await;
        completed(&ended);
        assert_eq!(ended.holds.len(), usize::from(asks), "{case}");
        called_under_one_key(&tools, called);
        work.end().await;
    }
    Ok(())
}

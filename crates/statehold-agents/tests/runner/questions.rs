//! Tools that ask people while they are called: each question is a hold, and its answer goes back to the tool.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_engine::HoldDetail;
use statehold_engine::policy::Policies;
use statehold_fakes::chat::{ScriptedModel, calls, text};
use statehold_fakes::tools::{ToolCall, ToolServer, take_one, tool};

use crate::approvals::decide;
use crate::llm::{Declared, assistant_book, completed};
use crate::rig::{Outcome, Rig};

/// A tool that asks for a seat and, if `asks_meal`, for a meal, and answers with what people said.
async fn booking(idempotent: bool, asks_meal: bool) -> ToolServer {
    let behaviour = move |call: ToolCall| -> futures_util::future::BoxFuture<'static, Value> {
        let question = |field: &str| {
            json!({"method": "elicitation/create", "params": {"mode": "form",
                "message": format!("Which {field}?\u{202e}"), "requestedSchema": {"type": "object",
                "properties": {field: {"type": "string"}}, "required": [field]}}})
        };
        let answer = match (call.answers.is_object(), call.state.as_str()) {
            (false, _) => json!({"resultType": "input_required", "requestState": "one",
                "inputRequests": {"seat": question("seat")}}),
            (true, Some("one")) if asks_meal => json!({"resultType": "input_required",
                "requestState": format!("two {}", call.answers["seat"]["content"]["seat"]),
                "inputRequests": {"meal": question("meal")}}),
            (true, state) => json!(format!("{} {}", state.unwrap_or_default(), call.answers)),
        };
        Box::pin(async move { answer })
    };
    let mut book = tool("book");
    book["annotations"] = json!({"idempotentHint": idempotent});
    ToolServer::with(vec![book], Arc::new(behaviour)).await
}

async fn rig(server: &ToolServer) -> (Rig, ScriptedModel) {
    rig_with(server, 0).await
}

async fn rig_with(server: &ToolServer, retries: u32) -> (Rig, ScriptedModel) {
    let script = [calls(&[("a", "book", json!({}))]), text("Booked.")];
    let model = ScriptedModel::start(script).await;
    let declared = Declared {
        trust_hints: true,
        retries,
        ..Declared::with_tools(server)
    };
    let rig = Rig::with(assistant_book(&model, &declared), Policies::default()).await;
    (rig, model)
}

/// Waits for the only open hold of a request.
async fn asked(rig: &Rig, request: statehold_core::ids::RequestId) -> HoldDetail {
    let is_open = |hold: &&HoldDetail| hold.closed.is_none();
    let detail = rig
        .until(request, |detail| {
            detail.holds.iter().any(|hold| is_open(&hold))
        })
        .await;
    let mut open = detail.holds.iter().filter(is_open);
    let hold = open.next().expect("a hold").clone();
    assert!(open.next().is_none());
    hold
}

/// The result that the model got.
fn told(model: &ScriptedModel) -> String {
    let said = model.asked();
    let messages = said.last().expect("a call")["messages"].as_array().cloned();
    let last = messages.expect("messages").pop().expect("a message");
    last["content"].as_str().expect("text").to_owned()
}

#[tokio::test]
async fn a_question_of_a_tool_is_a_hold_and_its_answer_goes_back() -> Outcome {
    for idempotent in [false, true] {
        let server = booking(idempotent, true).await;
        let (rig, model) = rig(&server).await;
        let runner = rig.runner().await;
        let session = rig.session("assistant").await;
        let request = rig.ask(session, "assistant", "Book").await;
        for (field, value) in [("seat", "7A"), ("meal", "soup")] {
            let hold = asked(&rig, request).await;
            // One field is a question, which a chat message may answer.
            assert_eq!(hold.hold.kind, HoldKind::Question);
            let body: Value =
                serde_json::from_slice(hold.body.as_deref().expect("a body")).expect("JSON");
            assert_eq!(body["title"], format!("Which {field}?"));
            assert_eq!(
                body["message"],
                "The tool `book` of the server `files` asks."
            );
            decide(
                &rig,
                &hold,
                DecisionKind::Respond,
                json!({"content": value}),
            )
            .await;
        }
        completed(&rig.ended(request).await);
        assert!(
            told(&model).contains(r#"two \"7A\""#) || told(&model).contains(r#"two "7A""#),
            "{}",
            told(&model)
        );
        assert!(told(&model).contains("soup"), "{}", told(&model));
        let called = server.called();
        let keys: std::collections::BTreeSet<_> = called.iter().map(|call| &call.key).collect();
        assert_eq!(keys.len(), 1, "a call is one call, however often it asks");
        // A tool that may be called again is, and gets the same answers; another one waits.
        assert_eq!(called.len(), if idempotent { 6 } else { 3 });
        runner.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_that_may_be_called_again_needs_no_process_while_it_waits() -> Outcome {
    let server = booking(true, false).await;
    let (rig, model) = rig(&server).await;
    let first = rig.runner().await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Book").await;
    let hold = asked(&rig, request).await;
    rig.until(request, |detail| {
        detail
            .request
            .live()
            .is_some_and(|live| live.lease.is_none())
    })
    .await;
    first.stop().await;
    let second = rig.runner().await;
    decide(&rig, &hold, DecisionKind::Reject, json!({"comment": "no"})).await;
    let detail = rig.ended(request).await;
    completed(&detail);
    assert!(
        told(&model).contains(r#""action":"decline""#),
        "{}",
        told(&model)
    );
    assert_eq!(detail.holds.len(), 1);
    second.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_tool_that_waited_when_the_server_stopped_is_asked_about_and_asks_once() -> Outcome {
    let server = booking(false, false).await;
    let (rig, model) = rig(&server).await;
    let first = rig.runner().await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Book").await;
    let question = asked(&rig, request).await;
    first.stop().await;
    let second = rig.runner().await;
    decide(
        &rig,
        &question,
        DecisionKind::Respond,
        json!({"content": "7A"}),
    )
    .await;
    let unknown = asked(&rig, request).await;
    assert_eq!(unknown.hold.kind, HoldKind::Reconcile);
    decide(&rig, &unknown, DecisionKind::Approve, json!({})).await;
    let detail = rig.ended(request).await;
    completed(&detail);
    assert!(told(&model).contains("7A"), "{}", told(&model));
    let forms = detail
        .holds
        .iter()
        .filter(|hold| hold.hold.kind == HoldKind::Question);
    assert_eq!(forms.count(), 1, "people answer a question once");
    second.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_call_that_is_lost_after_its_answer_asks_nobody_again() -> Outcome {
    let cuts = Arc::new(std::sync::atomic::AtomicUsize::new(1));
    let left = Arc::clone(&cuts);
    let behaviour = move |call: ToolCall| -> futures_util::future::BoxFuture<'static, Value> {
        let answer = if !call.answers.is_object() {
            json!({"resultType": "input_required", "inputRequests": {"one": {"method": "elicitation/create",
                "params": {"mode": "form", "message": "Which?", "requestedSchema": {"type": "object",
                "properties": {"seat": {"type": "string"}}}}}}})
        } else if take_one(&left) {
            Value::Null
        } else {
            json!(call.answers.to_string())
        };
        Box::pin(async move { answer })
    };
    let mut book = tool("book");
    book["annotations"] = json!({"idempotentHint": true});
    let server = ToolServer::with(vec![book], Arc::new(behaviour)).await;
    let (rig, model) = rig_with(&server, 1).await;
    let runner = rig.runner().await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Book").await;
    let hold = asked(&rig, request).await;
    decide(&rig, &hold, DecisionKind::Respond, json!({"content": "7A"})).await;
    let detail = rig.ended(request).await;
    completed(&detail);
    assert!(told(&model).contains("7A"), "{}", told(&model));
    assert_eq!(detail.holds.len(), 1);
    runner.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_page_that_a_tool_wants_visited_is_a_link_and_asked_for_once() -> Outcome {
    let visits = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&visits);
    let behaviour = move |call: ToolCall| -> futures_util::future::BoxFuture<'static, Value> {
        // The address is another one each time.
        let nonce = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let answer = if call.answers.is_object() {
            json!(call.answers.to_string())
        } else {
            json!({"resultType": "input_required", "inputRequests": {"one": {"method": "elicitation/create",
                "params": {"mode": "url", "message": "Sign in", "elicitationId": format!("e{nonce}"),
                "url": format!("https://example.org/in?nonce={nonce}")}}}})
        };
        Box::pin(async move { answer })
    };
    let mut book = tool("book");
    book["annotations"] = json!({"idempotentHint": true});
    let server = ToolServer::with(vec![book], Arc::new(behaviour)).await;
    let (rig, model) = rig_with(&server, 0).await;
    let runner = rig.runner().await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Book").await;
    let hold = asked(&rig, request).await;
    assert_eq!(hold.hold.kind, HoldKind::Link);
    decide(&rig, &hold, DecisionKind::Approve, json!({})).await;
    let detail = rig.ended(request).await;
    completed(&detail);
    assert!(
        told(&model).contains(r#""action":"accept""#),
        "{}",
        told(&model)
    );
    assert_eq!(detail.holds.len(), 1);
    runner.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_tool_that_asks_for_a_model_or_without_end_gets_no_answer() -> Outcome {
    let sampling =
        json!({"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}});
    let roots = json!({"method": "roots/list"});
    for (asked, says) in [
        (sampling, "not supported"),
        (roots, "not supported"),
        (json!({}), "again and again"),
    ] {
        let behaviour = move |_: ToolCall| -> futures_util::future::BoxFuture<'static, Value> {
            let requests = if asked == json!({}) {
                json!({})
            } else {
                json!({"one": asked})
            };
            Box::pin(async move {
                json!({"resultType": "input_required", "requestState": "x", "inputRequests": requests})
            })
        };
        let server = ToolServer::with(vec![tool("book")], Arc::new(behaviour)).await;
        let (rig, model) = rig(&server).await;
        let runner = rig.runner().await;
        let session = rig.session("assistant").await;
        let request = rig.ask(session, "assistant", "Book").await;
        completed(&rig.ended(request).await);
        assert!(told(&model).contains(says), "{}", told(&model));
        runner.stop().await;
    }
    Ok(())
}

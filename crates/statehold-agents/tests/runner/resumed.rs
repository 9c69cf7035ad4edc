//! A resumed turn with a call that an earlier run started, while its tool is unreachable. The call may
//! have run, so it is never reported as not executed.

use serde_json::json;
use statehold_agents::runner::{CommitPhase, Runner, StepKind};
use statehold_core::hold::DecisionKind;
use statehold_core::ids::RequestId;
use statehold_engine::policy::{Approval, OnNoAnswer, Policies, ToolPolicy};
use statehold_fakes::chat::ScriptedModel;
use statehold_fakes::tools::{ToolServer, tool};

use crate::approvals::{decide, paused};
use crate::crashes::lost_at;
use crate::llm::{Declared, assistant_book, completed};
use crate::rig::{Outcome, PATIENCE, Rig};
use crate::unanswered::{
    LOST, about_pay, asked, called_under_one_key, idempotent, pays_once, told,
};

/// One payment that the tool has executed and the server has not recorded.
struct Begun {
    rig: Rig,
    model: ScriptedModel,
    tools: ToolServer,
    request: RequestId,
}

impl Begun {
    /// The turn crashes after the tool has answered and before the result is recorded. Approves the
    /// call if it needs an approval.
    async fn lose(retries: u32, policies: Policies, is_gated: bool) -> Self {
        let tools = ToolServer::start(vec![tool("pay")], |_| "paid".to_owned()).await;
        let model = ScriptedModel::start(pays_once()).await;
        let declared = Declared {
            retries,
            ..Declared::with_tools(&tools)
        };
        let rig = Rig::with(assistant_book(&model, &declared), policies).await;
        let (hook, reached) = lost_at(StepKind::ToolResult, CommitPhase::Before, 1);
        let first = rig.watched(hook).await;
        let session = rig.session("assistant").await;
        let request = rig.ask(session, "assistant", "Pay 5").await;
        if is_gated {
            let holds = paused(&rig, request, 1).await;
            decide(&rig, &holds[0], DecisionKind::Approve, json!({})).await;
        }
        tokio::time::timeout(PATIENCE, reached.notified())
            .await
            .expect("it takes too long");
        first.stop().await;
        called_under_one_key(&tools, 1);
        Self {
            rig,
            model,
            tools,
            request,
        }
    }

    /// Waits for the end, and checks the text that the model got for its call.
    async fn ends_with(self, runner: Runner, calls: usize, holds: usize, says: &str) {
        let ended = self.rig.ended(self.request).await;
        completed(&ended);
        assert_eq!(ended.holds.len(), holds);
        called_under_one_key(&self.tools, calls);
        let told = told(&self.model);
        assert!(told.contains(says), "{told}");
        assert!(!told.contains("not called"), "{told}");
        runner.stop().await;
        self.rig.engine.shut_down().await;
    }
}

fn gated_and_idempotent() -> Policies {
    about_pay(ToolPolicy {
        approval: Some(Approval::Always),
        idempotent: Some(true),
        ..ToolPolicy::default()
    })
}

#[tokio::test]
async fn a_call_that_may_have_run_is_asked_about_if_its_server_is_not_back() -> Outcome {
    for is_gated in [false, true] {
        let policies = if is_gated {
            gated_and_idempotent()
        } else {
            idempotent()
        };
        let begun = Begun::lose(1, policies, is_gated).await;
        begun.tools.refuse(usize::MAX);
        let second = begun.rig.runner().await;
        let hold = asked(&begun.rig, begun.request, LOST).await;
        begun.tools.refuse(0);
        decide(&begun.rig, &hold, DecisionKind::Approve, json!({})).await;
        let holds = 1 + usize::from(is_gated);
        begun.ends_with(second, 2, holds, "paid").await;
    }
    Ok(())
}

#[tokio::test]
async fn what_people_let_run_again_may_have_run_as_long_as_its_server_is_away() -> Outcome {
    for is_gated in [false, true] {
        let policies = if is_gated {
            gated_and_idempotent()
        } else {
            idempotent()
        };
        let begun = Begun::lose(0, policies, is_gated).await;
        begun.tools.refuse(usize::MAX);
        let second = begun.rig.runner().await;
        let first = asked(&begun.rig, begun.request, LOST).await;
        decide(&begun.rig, &first, DecisionKind::Approve, json!({})).await;
        let again = tokio::time::timeout(PATIENCE, async {
            loop {
                let hold = asked(&begun.rig, begun.request, LOST).await;
                if hold.hold.id != first.hold.id {
                    return hold;
                }
            }
        });
        let again = again.await.expect("they are asked again");
        begun.tools.refuse(0);
        decide(&begun.rig, &again, DecisionKind::Approve, json!({})).await;
        let holds = 2 + usize::from(is_gated);
        begun.ends_with(second, 2, holds, "paid").await;
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_may_have_run_is_made_again_once_its_server_is_back() -> Outcome {
    let begun = Begun::lose(3, idempotent(), false).await;
    begun.tools.refuse(2);
    let second = begun.rig.runner().await;
    begun.ends_with(second, 2, 0, "paid").await;
    Ok(())
}

#[tokio::test]
async fn a_call_that_may_have_run_is_asked_about_if_its_tool_is_gone() -> Outcome {
    let begun = Begun::lose(0, idempotent(), false).await;
    begun.tools.offer(vec![tool("list")]);
    let second = begun.rig.runner().await;
    let hold = asked(&begun.rig, begun.request, LOST).await;
    let ran = json!({"content": {"outcome": "ran", "result": "paid 5"}});
    decide(&begun.rig, &hold, DecisionKind::Respond, ran).await;
    begun.ends_with(second, 1, 1, "paid 5").await;
    Ok(())
}

#[tokio::test]
async fn of_a_call_that_may_have_run_and_nobody_is_asked_about_the_model_is_told() -> Outcome {
    let pay = ToolPolicy {
        idempotent: Some(true),
        on_no_answer: Some(OnNoAnswer::Tell),
        ..ToolPolicy::default()
    };
    for is_gone in [false, true] {
        let begun = Begun::lose(0, about_pay(pay.clone()), false).await;
        if is_gone {
            begun.tools.offer(Vec::new());
        } else {
            begun.tools.refuse(1);
        }
        let second = begun.rig.runner().await;
        let says = "find out before calling it again";
        begun.ends_with(second, 1, 0, says).await;
    }
    Ok(())
}

#[tokio::test]
async fn an_approved_call_that_nobody_began_was_not_made_if_its_server_is_away() -> Outcome {
    let tools = ToolServer::start(vec![tool("pay")], |_| "paid".to_owned()).await;
    let model = ScriptedModel::start(pays_once()).await;
    let book = assistant_book(&model, &Declared::with_tools(&tools));
    let rig = Rig::with(book, gated_and_idempotent()).await;
    let first = rig.runner().await;
    let session = rig.session("assistant").await;
    let request = rig.ask(session, "assistant", "Pay 5").await;
    let holds = paused(&rig, request, 1).await;
    first.stop().await;
    tools.refuse(1);
    let second = rig.runner().await;
    decide(&rig, &holds[0], DecisionKind::Approve, json!({})).await;
    let ended = rig.ended(request).await;
    completed(&ended);
    assert_eq!((ended.holds.len(), tools.called().len()), (1, 0));
    let told = told(&model);
    assert!(told.contains("the tool was not called"), "{told}");
    second.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

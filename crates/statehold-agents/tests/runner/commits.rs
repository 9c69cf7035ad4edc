//! Number of commits per turn of a model: each commit waits for the disk.

use serde_json::json;
use statehold_core::item::ItemKind;
use statehold_core::record::CommandName::{
    AppendItems, ClaimRequest, CompleteRequest, FailRequest, StartRequest,
};
use statehold_engine::policy::Policies;
use statehold_engine::testing;
use statehold_fakes::chat::{ScriptedModel, calls, text};
use statehold_fakes::tools::{ToolServer, tool};

use crate::llm::{AtWork, Declared, completed};
use crate::rig::{Outcome, error, name};

#[tokio::test]
async fn what_a_model_answers_is_committed_with_the_end() -> Outcome {
    let model = ScriptedModel::start([text("Hello.")]).await;
    let work = AtWork::start(&model, Declared::plain(), Policies::default()).await;
    completed(&work.turn("Hello").await);
    let commands = work.rig.commands_after(work.session, 1).await;
    assert_eq!(commands, [StartRequest, ClaimRequest, CompleteRequest]);
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn what_a_model_wants_is_committed_before_it_is_done() -> Outcome {
    let model = ScriptedModel::start([calls(&[("c1", "look", json!({}))]), text("Done.")]).await;
    let tools = ToolServer::start(vec![tool("look")], |_| "seen".to_owned()).await;
    let work = AtWork::start(&model, Declared::with_tools(&tools), Policies::default()).await;
    completed(&work.turn("Look").await);
    let commands = work.rig.commands_after(work.session, 1).await;
    assert_eq!(commands.first(), Some(&StartRequest));
    assert_eq!(commands.last(), Some(&CompleteRequest));
    let between = &commands[2..commands.len() - 1];
    // The model step, the call and its result; the last step is committed with the end.
    assert_eq!(between, [AppendItems; 3]);
    work.end().await;
    Ok(())
}

#[tokio::test]
async fn what_a_model_said_is_in_the_trace_also_if_it_is_no_answer() -> Outcome {
    let model = ScriptedModel::start([text("")]).await;
    let work = AtWork::start(&model, Declared::plain(), Policies::default()).await;
    let failed = error(&work.turn("Hello").await);
    assert_eq!(failed["code"], "agent_malformed", "{failed}");
    let commands = work.rig.commands_after(work.session, 3).await;
    assert_eq!(commands, [AppendItems, FailRequest]);
    let engine = &work.rig.engine;
    let tasks = testing::tasks_of(engine, work.session, &name("assistant")).await;
    let items = testing::task_items(engine, work.session, tasks?[0], None, 10).await?;
    let kinds = items.items.iter().map(|item| item.placed.item.kind);
    let kinds: Vec<ItemKind> = kinds.collect();
    assert_eq!(kinds, [ItemKind::Step, ItemKind::Message]);
    work.end().await;
    Ok(())
}

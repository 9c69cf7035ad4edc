//! Watchers of a session: how many reads of the store each commit costs for them.

use std::sync::Arc;

use statehold_agents::spec::AgentKind;
use statehold_core::item::Role;
use statehold_engine::api::json::raw_text;
use statehold_engine::api::message::{AppendedMessageInput, append};
use statehold_engine::api::watch;
use statehold_engine::policy::Policies;

use crate::disk::Disk;
use crate::rig::{Rig, agent, book};
use crate::waits::OF_TIMERS;

#[tokio::test]
async fn a_thousand_watchers_cost_no_read_of_the_store() {
    let disk = Arc::new(Disk::default());
    let book = book(vec![agent("math", AgentKind::Worker)]);
    let rig = Rig::over(Arc::clone(&disk) as _, book, Policies::default()).await;
    let session = rig.session("math").await;
    let reads_of_append = async || {
        disk.take_reads();
        let said = AppendedMessageInput {
            role: Role::User,
            content: raw_text("News"),
            attachments: Vec::new(),
            annotations: None,
        };
        let written = append(&rig.engine, &rig.call(), session, said).await;
        written.expect("it is written").revision
    };
    let reads = || {
        let mut reads = disk.take_reads();
        reads.retain(|read| !OF_TIMERS.contains(read));
        reads
    };
    reads_of_append().await;
    let alone = reads();
    let mut watches = Vec::new();
    for _ in 0..1_000 {
        let one = watch::session(&rig.engine, &rig.call().caller, session).await;
        watches.push(one.expect("it may be read"));
    }
    let revision = reads_of_append().await;
    for one in &mut watches {
        let changed = one.changed().await.expect("it may be read");
        assert_eq!((changed.messages, changed.state), (revision, 0));
    }
    assert_eq!(reads(), alone, "reads beside those of the writer");
}

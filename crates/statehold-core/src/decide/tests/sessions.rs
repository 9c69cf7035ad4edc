//! What a session is from outside: created once, reachable by its tenant, closed for good.

use super::*;
use crate::record::Change;
use crate::session::{SessionStatus, TimeToLive, TtlMode};

/// Every command there is, about a session with a live request `R1` in `T1` and a hold `R1.h1`.
fn every_command(w: &World) -> Vec<Command> {
    let mut commands = w.worker_commands("R1");
    commands.extend([
        start("a1"),
        leased(start("a1")),
        w.go_on("T1", "a1"),
        w.claim("R1"),
        w.lapse("R1"),
        w.approve("R1.h1"),
        w.expire("R1.h1"),
        w.cancel("R1"),
        w.close_task("T1"),
        w.cancel_task("T1"),
        Command::PutState {
            patch: set("topic", "x"),
            by: None,
        },
        Command::Rewind { to: 1 },
        close_session(true),
        Command::PatchSession {
            labels: None,
            name: Some(Change::Clear),
            ttl: None,
            hidden_ttl_ms: None,
        },
        fork(),
    ]);
    commands
}

#[test]
fn the_status_follows_the_root_tasks() {
    let mut w = new_session();
    assert_eq!(w.state.status(), SessionStatus::Idle);
    w.ok(leased(start("a1")));
    assert_eq!(w.state.status(), SessionStatus::Running);
    w.ok(w.gate("R1"));
    assert_eq!(w.state.status(), SessionStatus::Paused);
    w.ok(w.approve("R1.h1"));
    w.ok(w.complete("R1"));
    assert_eq!(w.state.status(), SessionStatus::Idle);
    w.ok(close_session(false));
    assert_eq!(w.state.status(), SessionStatus::Closed);
}

#[test]
fn the_revision_counts_commits_and_nothing_else() {
    let mut w = chain(1);
    assert_eq!(w.state.revision, 2);
    w.no(w.close_task("T1"));
    assert_eq!(w.state.revision, 2);
    w.ok(w.complete("R1"));
    assert_eq!(w.state.revision, 3);
}

#[test]
fn records_form_a_chain_of_hashes() {
    let w = held_chain(3);
    let mut head = Digest::ZERO;
    for record in &w.records {
        assert_eq!(record.content.prev_hash, head);
        head = record.hash;
    }
    assert_eq!(w.state.head, head);
}

#[test]
fn a_session_is_created_once() {
    let mut w = new_session();
    assert_eq!(w.no(create_session()), Rejection::SessionExists);
}

#[test]
fn nobody_creates_a_session_for_another_tenant() {
    let mut w = World::before_the_first_record();
    assert_eq!(
        w.no_by(foreign(client()), create_session()),
        Rejection::NotFound
    );
}

#[test]
fn a_session_without_records_is_not_found() {
    let known = held_chain(1);
    for command in every_command(&known) {
        let mut w = World::before_the_first_record();
        assert_eq!(w.no(command), Rejection::NotFound);
    }
}

#[test]
fn a_foreign_tenant_finds_nothing_whatever_it_asks_for() {
    let mut w = held_chain(1);
    for command in every_command(&w) {
        let actor = foreign(usual_actor(&command));
        assert_eq!(w.no_by(actor, command), Rejection::NotFound);
    }
}

#[test]
fn a_foreign_tenant_does_not_learn_how_things_ended() {
    let mut w = held_chain(1);
    w.ok(w.approve("R1.h1"));
    w.ok(close_session(true));
    for command in every_command(&w) {
        let actor = foreign(usual_actor(&command));
        assert_eq!(w.no_by(actor, command), Rejection::NotFound);
    }
}

#[test]
fn closing_needs_permission_to_stop_what_runs() {
    let mut w = held_chain(2);
    assert_eq!(
        w.no(close_session(false)),
        Rejection::RequestsLive { live: 2 }
    );
    w.ok(close_session(true));
    w.check("");
    assert_eq!(w.outcome("R1"), Some(RequestOutcome::Cancelled));
    assert_eq!(w.outcome("R2"), Some(RequestOutcome::Cancelled));
    assert_eq!(w.hold_status("R2.h1"), HoldStatus::Cancelled);
    assert_eq!(w.final_status("T2"), Some(TaskStatus::Completed));
}

#[test]
fn a_closed_session_refuses_everything_that_would_change_it() {
    let mut w = held_chain(1);
    w.ok(close_session(true));
    for command in every_command(&w) {
        match command {
            Command::Fork { .. } | Command::DecideHold { .. } => {}
            command => assert_eq!(w.no(command), Rejection::SessionClosed),
        }
    }
    assert_eq!(w.no(create_session()), Rejection::SessionExists);
}

fn lives(mode: TtlMode, ms: u64) -> Command {
    Command::PatchSession {
        labels: None,
        name: None,
        ttl: Some(Change::Set(TimeToLive { mode, ms })),
        hidden_ttl_ms: None,
    }
}

fn keeps_hidden(ms: u64) -> Command {
    Command::PatchSession {
        labels: None,
        name: None,
        ttl: None,
        hidden_ttl_ms: Some(Change::Set(ms)),
    }
}

#[test]
fn a_sliding_session_lives_from_its_last_commit_and_a_fixed_one_from_the_first() {
    for (mode, slides) in [(TtlMode::Sliding, true), (TtlMode::Fixed, false)] {
        let mut w = new_session();
        w.ok(lives(mode, 60_000));
        let first = w.state.expires_at.expect("it expires");
        w.wait_s(30);
        w.ok(leased(start("a1")));
        let second = w.state.expires_at.expect("it still expires");
        assert_eq!(second > first, slides, "{mode:?}");
    }
}

#[test]
fn an_expired_session_refuses_commands_before_anybody_notices() {
    let mut w = held_chain(1);
    w.ok(lives(TtlMode::Fixed, 60_000));
    assert_eq!(w.no(Command::ExpireSession), Rejection::SessionNotExpired);
    w.wait_s(60);
    assert_eq!(w.no(start("a1")), Rejection::SessionExpired);
    assert_eq!(w.no(w.approve("R1.h1")), Rejection::SessionExpired);
    w.ok(Command::ExpireSession);
    assert_eq!(w.outcome("R1"), Some(RequestOutcome::Cancelled));
    assert_eq!(w.state.status(), SessionStatus::Closed);
    assert_eq!(w.state.expires_at, None);
    assert_eq!(w.no(start("a1")), Rejection::SessionClosed);
    assert_eq!(w.no(Command::ExpireSession), Rejection::SessionNotExpired);
}

#[test]
fn an_expired_session_still_answers_for_its_decisions() {
    let mut w = held_chain(1);
    w.ok(lives(TtlMode::Sliding, 60_000));
    w.ok(w.approve("R1.h1"));
    let decided_at = w.state.revision;
    w.wait_s(60);
    assert_eq!(w.again(w.approve("R1.h1")), decided_at);
}

#[test]
fn a_life_that_is_too_short_or_too_long_is_refused() {
    let mut w = new_session();
    for ms in [0, 999, u64::MAX] {
        assert!(matches!(
            w.no(lives(TtlMode::Fixed, ms)),
            Rejection::Limit { .. }
        ));
        assert!(matches!(w.no(keeps_hidden(ms)), Rejection::Limit { .. }));
    }
    let nothing = Command::PatchSession {
        labels: None,
        name: None,
        ttl: None,
        hidden_ttl_ms: None,
    };
    assert_eq!(w.no(nothing), Rejection::EmptyPatch);
}

#[test]
fn hidden_payloads_are_due_a_while_after_the_last_use_and_the_session_goes_on() {
    let mut w = new_session();
    w.ok(keeps_hidden(60_000));
    w.ok(lives(TtlMode::Sliding, 600_000));
    w.ok(leased(start("a1")));
    w.ok(w.complete("R1"));
    let ends_at = w.state.expires_at;
    w.wait_s(59);
    assert_eq!(w.no(Command::EraseHidden), Rejection::HiddenNotDue);
    w.wait_s(1);
    w.ok(Command::EraseHidden);
    assert_eq!(w.state.status(), SessionStatus::Idle);
    assert_eq!(w.state.expires_at, ends_at, "no timer lengthens its life");
    assert_eq!(
        w.no(Command::EraseHidden),
        Rejection::HiddenNotDue,
        "nothing is left to erase"
    );
    w.ok(leased(start("a1")));
    w.ok(w.complete("R2"));
    w.wait_s(60);
    w.ok(Command::EraseHidden);
}

#[test]
fn hidden_payloads_wait_for_the_requests_that_need_them() {
    let mut w = held_chain(1);
    w.ok(keeps_hidden(1_000));
    w.wait_s(5);
    assert_eq!(w.no(Command::EraseHidden), Rejection::HiddenNotDue);
    w.ok(w.approve("R1.h1"));
    w.ok(w.complete("R1"));
    assert_eq!(w.no(Command::EraseHidden), Rejection::HiddenNotDue);
    w.wait_s(1);
    w.ok(Command::EraseHidden);
}

#[test]
fn hidden_payloads_of_a_closed_session_are_erased_once() {
    let mut w = new_session();
    w.ok(keeps_hidden(1_000));
    w.ok(lives(TtlMode::Fixed, 60_000));
    w.ok(close_session(true));
    w.wait_s(1);
    w.ok(Command::EraseHidden);
    assert_eq!(
        (w.state.expires_at, w.state.hidden_expires_at),
        (None, None)
    );
    w.wait_s(60);
    assert_eq!(w.no(Command::ExpireSession), Rejection::SessionNotExpired);
}

#[test]
fn a_deleted_session_answers_like_one_that_never_was() {
    let mut w = held_chain(1);
    w.ok(Command::DeleteSession);
    assert_eq!(w.outcome("R1"), Some(RequestOutcome::Cancelled));
    for command in every_command(&w) {
        assert_eq!(w.no(command), Rejection::NotFound);
    }
    assert_eq!(w.no(Command::DeleteSession), Rejection::NotFound);
}

#[test]
fn a_closed_session_still_answers_for_its_decisions() {
    let mut w = held_chain(1);
    w.ok(w.approve("R1.h1"));
    let decided_at = w.state.revision;
    w.ok(w.gate("R1"));
    w.ok(close_session(true));
    assert_eq!(w.again(w.approve("R1.h1")), decided_at);
    assert!(matches!(
        w.no(w.approve("R1.h2")),
        Rejection::HoldDecided { decision, .. } if decision.status == HoldStatus::Cancelled
    ));
}

#[test]
fn commit_time_stands_still_while_the_clock_steps_back() {
    let mut w = new_session();
    w.wait_s(100);
    let latest = w.ok(start("a1")).content.at;
    w.step_clock_back_s(50);
    assert_eq!(w.ok(start("a2")).content.at, latest);
    w.wait_s(60);
    assert_eq!(w.ok(start("a3")).content.at, latest.plus_ms(10_000));
}

#[test]
fn a_foreign_tenant_does_not_learn_that_a_session_exists_by_creating_it() {
    let mut w = new_session();
    let refusal = w.no_by(foreign(client()), create_session());
    assert_eq!(refusal, Rejection::NotFound);
}

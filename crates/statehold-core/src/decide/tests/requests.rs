//! Requests: claimed under a fence, fed by one worker, ended once; and what is done about workers
//! that are lost.

use super::*;
use crate::command::RecordTurn;
use crate::hold::{DecideBy, Effect, Risk, WhyNot};
use crate::request::{CallState, FENCE_RAISE, LiveStatus};

fn not_claimable(w: &World, request: &str, status: LiveStatus) -> Rejection {
    let request = w.request(request);
    Rejection::NotClaimable { request, status }
}

/// A request whose worker started a call that must not run twice, and was never heard of again.
fn lost_in_a_call(call: &NewItem) -> World {
    let mut w = chain(1);
    w.ok(w.append("R1", std::slice::from_ref(call)));
    w.lose_workers();
    w
}

/// The same, and the next worker found a question instead of work.
fn reconciling() -> World {
    let mut w = lost_in_a_call(&risky_call());
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 paused R1#1 held h1");
    w
}

/// How far the last call of a request is.
fn call_state(w: &World, request: &str) -> CallState {
    w.state.requests[&w.request(request)].calls[&w.call(request)].state
}

#[test]
fn a_request_waits_for_a_worker_and_then_runs() {
    let mut w = new_session();
    w.ok(start("a1"));
    w.check("T1 running R1#0 queued");
    w.ok(w.claim("R1"));
    w.check("T1 running R1#1 running");
    w.ok(w.complete("R1"));
    w.check("T1 idle completed");
}

fn recorded(items: Vec<NewItem>) -> Command {
    Command::RecordTurn(RecordTurn {
        agent: name("a1"),
        request: None,
        items,
        state: StatePatch::default(),
    })
}

#[test]
fn a_turn_that_ran_elsewhere_is_written_whole_beside_a_live_one() {
    let mut w = new_session();
    let asked = NewItem::message(Role::User, body("question"));
    w.ok(recorded(vec![asked, say("answer")]));
    w.check("T1 idle completed");
    assert_eq!(w.state.items_appended, 2);
    w.ok(start("a1"));
    w.ok(recorded(vec![say("more")]));
    w.check("T1 running R2#0 queued, T2 idle completed");
}

#[test]
fn a_turn_that_ran_elsewhere_brings_messages_and_notes_only() {
    let mut w = new_session();
    for items in [vec![], vec![risky_call()], vec![say("one"), gated_call()]] {
        assert!(matches!(w.no(recorded(items)), Rejection::ItemMalformed(_)));
    }
    assert_eq!(w.state.items_appended, 0);
}

#[test]
fn a_request_is_claimed_by_one_worker() {
    let mut w = chain(1);
    let refusal = not_claimable(&w, "R1", LiveStatus::Running);
    assert_eq!(w.no_by(worker(2), w.claim("R1")), refusal);
}

#[test]
fn nobody_writes_for_a_request_that_nobody_claimed() {
    let mut w = new_session();
    w.ok(start("a1"));
    let refusal = Rejection::NotLeased {
        request: w.request("R1"),
    };
    for command in w.worker_commands("R1") {
        assert_eq!(w.no(command), refusal);
    }
}

#[test]
fn an_expired_lease_can_be_taken_over() {
    let mut w = chain(1);
    w.lose_workers();
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 running R1#2 running");
}

#[test]
fn a_lease_is_live_until_its_last_moment() {
    let mut w = chain(1);
    w.wait_s(LEASE_S - 1);
    let live = Rejection::LeaseLive {
        request: w.request("R1"),
    };
    assert_eq!(w.no(w.lapse("R1")), live);
    w.wait_s(1);
    w.ok(w.lapse("R1"));
    w.check("T1 running R1#1 queued");
    let queued = not_claimable(&w, "R1", LiveStatus::Queued);
    assert_eq!(w.no(w.lapse("R1")), queued);
}

#[test]
fn heartbeats_keep_a_lease_live() {
    let mut w = chain(1);
    w.wait_s(LEASE_S - 1);
    w.heartbeat("R1");
    w.wait_s(2);
    let refusal = not_claimable(&w, "R1", LiveStatus::Running);
    assert_eq!(w.no_by(worker(2), w.claim("R1")), refusal);
    w.lose_workers();
    w.ok_by(worker(2), w.claim("R1"));
}

#[test]
fn an_expired_lease_that_nobody_took_still_counts() {
    let mut w = chain(1);
    w.lose_workers();
    w.ok(w.append("R1", &[say("slow, but here")]));
    w.ok(w.complete("R1"));
}

#[test]
fn a_replaced_worker_commits_nothing() {
    let mut w = chain(1);
    w.lose_workers();
    w.ok_by(worker(2), w.claim("R1"));
    let stale = Rejection::StaleFence {
        shown: 1,
        current: 2,
    };
    for command in w.worker_commands("R1") {
        assert_eq!(w.no(showing_fence(command, 1)), stale);
    }
}

#[test]
fn workers_of_another_copy_of_the_data_write_nothing_whatever_their_request_does() {
    // The child runs, or is held; its parent waits. A second root request is queued.
    for mut w in [chain(2), held_chain(2)] {
        w.ok(start("a9"));
        let before = w.picture();
        let requests = ["R1", "R2", "R3"];
        for request in requests {
            w.ok(w.raise_fence(request));
        }
        let raised = before
            .replace("#1", "#4294967297")
            .replace("#0", "#4294967296")
            .replace("R2#4294967297 running", "R2#4294967297 queued");
        w.check(&raised);
        for request in requests {
            assert_eq!(w.state.requests[&w.request(request)].lease, None);
            // Claims of the other copy go on from the fence in the backup.
            for shown in [1, 2, 3, 1_000] {
                let current = w.fenced(request).fence;
                for command in w.worker_commands(request) {
                    let stale = Rejection::StaleFence { shown, current };
                    assert_eq!(w.no(showing_fence(command, shown)), stale);
                }
            }
        }
        assert_eq!(
            w.no(w.lapse("R1")),
            not_claimable(&w, "R1", LiveStatus::Waiting)
        );
        w.ok_by(worker(2), w.claim("R3"));
        assert_eq!(w.fenced("R3").fence, FENCE_RAISE + 1);
    }
}

#[test]
fn a_request_that_has_ended_gets_no_new_fence() {
    let mut w = chain(1);
    w.ok(w.complete("R1"));
    let ended = Rejection::RequestEnded {
        request: w.request("R1"),
        outcome: RequestOutcome::Completed,
    };
    assert_eq!(w.no(w.raise_fence("R1")), ended);
}

#[test]
fn a_decision_that_no_worker_has_got_goes_to_the_next_claim_of_a_copy() {
    // Decided when the worker was gone, and the copy was made before another one came.
    let mut w = held_chain(1);
    w.ok(w.release("R1"));
    w.ok(w.approve("R1.h1"));
    w.ok(w.raise_fence("R1"));
    w.check("T1 running R1#4294967297 queued");
    assert_eq!(call_state(&w, "R1"), CallState::Released);
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 running R1#4294967298 running");
    let fence = FENCE_RAISE + 2;
    assert_eq!(call_state(&w, "R1"), CallState::Started { fence });
}

#[test]
fn a_hold_that_is_decided_in_a_copy_releases_its_call_to_the_next_claim() {
    let mut w = held_chain(1);
    w.ok(w.raise_fence("R1"));
    w.check("T1 paused R1#4294967297 held h1");
    w.ok(w.approve("R1.h1"));
    w.check("T1 running R1#4294967297 queued");
    assert_eq!(call_state(&w, "R1"), CallState::Released);
}

#[test]
fn a_call_that_a_worker_of_another_copy_may_run_is_asked_about() {
    let mut w = held_chain(1);
    w.ok(w.approve("R1.h1"));
    w.ok(w.raise_fence("R1"));
    assert_eq!(call_state(&w, "R1"), CallState::Started { fence: 1 });
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 paused R1#4294967297 held h2");
    let hold = &w.state.holds[&w.hold("R1.h2")];
    assert_eq!(hold.kind, HoldKind::Reconcile);
}

#[test]
fn the_right_fence_in_the_wrong_hands_is_refused() {
    let mut w = chain(1);
    for command in w.worker_commands("R1") {
        assert_eq!(w.no_by(worker(2), command), Rejection::NotLeaseHolder);
    }
}

#[test]
fn a_fence_from_the_future_is_as_stale_as_an_old_one() {
    let mut w = chain(1);
    let stale = Rejection::StaleFence {
        shown: 7,
        current: 1,
    };
    assert_eq!(w.no(showing_fence(w.complete("R1"), 7)), stale);
}

#[test]
fn an_ended_request_takes_nothing_and_says_how_it_ended() {
    let mut w = chain(1);
    w.ok(w.complete("R1"));
    let ended = Rejection::RequestEnded {
        request: w.request("R1"),
        outcome: RequestOutcome::Completed,
    };
    let mut commands = w.worker_commands("R1");
    commands.extend([w.claim("R1"), w.lapse("R1"), w.cancel("R1")]);
    for command in commands {
        assert_eq!(w.no(command), ended);
    }
}

#[test]
fn an_unknown_request_is_not_found() {
    let mut w = new_session();
    let request = RequestId::from_uuid(Uuid::from_u128(1));
    assert_eq!(
        w.no(Command::CancelRequest { request }),
        Rejection::NotFound
    );
    let claim = Command::ClaimRequest {
        request,
        ttl_ms: 1_000,
    };
    assert_eq!(w.no(claim), Rejection::NotFound);
}

#[test]
fn a_lease_is_neither_too_short_nor_too_long() {
    let mut w = new_session();
    w.ok(start("a1"));
    let request = w.request("R1");
    for ttl_ms in [0, 999, 24 * 3_600 * 1_000 + 1] {
        let refusal = w.no(Command::ClaimRequest { request, ttl_ms });
        assert!(matches!(refusal, Rejection::Limit { .. }), "{ttl_ms}");
    }
}

#[test]
fn a_parent_waits_until_the_last_child_ended() {
    let mut w = chain(1);
    w.ok(leased(w.spawn("R1", "a2")));
    w.ok(leased(w.spawn("R1", "a3")));
    w.ok(w.complete("R2"));
    w.check("T1 running R1#1 waiting, T2 idle completed, T3 running R3#1 running");
    w.ok(w.fail("R3"));
    w.check("T1 running R1#1 running, T2 idle completed, T3 idle failed");
}

#[test]
fn a_parent_whose_lease_lapsed_while_it_waited_is_queued() {
    let mut w = chain(2);
    w.wait_s(LEASE_S - 1);
    w.heartbeat("R2");
    w.wait_s(2);
    let waiting = not_claimable(&w, "R1", LiveStatus::Waiting);
    assert_eq!(w.no(w.claim("R1")), waiting);
    assert_eq!(w.no(w.lapse("R1")), waiting);
    w.ok(w.complete("R2"));
    w.check("T1 running R1#1 queued, T2 idle completed");
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 running R1#2 running, T2 idle completed");
}

#[test]
fn a_parent_that_gave_its_lease_back_is_queued_when_its_child_ends() {
    let mut w = chain(2);
    w.ok(w.release("R1"));
    w.check("T1 running R1#1 waiting, T2 running R2#1 running");
    w.ok(w.complete("R2"));
    w.check("T1 running R1#1 queued, T2 idle completed");
    w.ok(w.claim("R1"));
    w.ok(w.release("R1"));
    w.check("T1 running R1#2 queued, T2 idle completed");
}

#[test]
fn a_waiting_request_may_still_append_ask_and_spawn() {
    let mut w = chain(2);
    w.ok(w.append("R1", &[say("working on it")]));
    w.ok(leased(w.spawn("R1", "a3")));
    w.ok(w.question("R1"));
    w.check("T1 paused R1#1 held h1, T2 running R2#1 running, T3 running R3#1 running");
    w.ok(w.append("R1", &[say("and asked")]));
    w.ok_by(client(), w.decide("R1.h1", DecisionKind::Respond));
    w.check("T1 running R1#1 waiting, T2 running R2#1 running, T3 running R3#1 running");
}

#[test]
fn a_request_with_live_children_does_not_end() {
    let mut w = chain(2);
    let refusal = Rejection::ChildrenLive { live: 1 };
    assert_eq!(w.no(w.complete("R1")), refusal);
    assert_eq!(w.no(w.fail("R1")), refusal);
}

#[test]
fn a_request_may_end_and_stop_its_children() {
    for (ends, picture) in [
        (World::complete as fn(&World, &str) -> Command, "completed"),
        (World::fail, "failed"),
    ] {
        let mut w = held_chain(3);
        w.ok(with_children(ends(&w, "R1")));
        w.check(&format!(
            "T1 idle {picture}, T2 idle cancelled, T3 idle cancelled"
        ));
        assert_eq!(w.hold_status("R3.h1"), HoldStatus::Cancelled);
    }
}

#[test]
fn a_request_with_open_holds_does_not_end() {
    let mut w = held_chain(1);
    w.ok(w.question("R1"));
    let refusal = Rejection::HoldsOpen { open: 2 };
    assert_eq!(w.no(w.complete("R1")), refusal);
    assert_eq!(w.no(w.fail("R1")), refusal);
    assert_eq!(w.no(with_children(w.complete("R1"))), refusal);
}

#[test]
fn cancelling_a_request_stops_what_it_waits_for_and_leaves_the_tasks_idle() {
    let mut w = held_chain(3);
    w.ok(w.cancel("R2"));
    w.check("T1 running R1#1 running, T2 idle cancelled, T3 idle cancelled");
    assert_eq!(w.hold_status("R3.h1"), HoldStatus::Cancelled);
    w.ok(w.spawn("R1", "a2"));
    w.check("T1 running R1#1 waiting, T2 running R4#0 queued, T3 idle cancelled");
}

#[test]
fn a_queued_request_can_be_cancelled() {
    let mut w = new_session();
    w.ok(start("a1"));
    w.ok(w.cancel("R1"));
    w.check("T1 idle cancelled");
}

#[test]
fn agents_call_agents_only_so_deep() {
    let mut w = chain(25);
    assert_eq!(
        w.no(w.spawn("R25", "a26")),
        Rejection::Limit {
            limit: "depth of calls",
            max: 24
        }
    );
}

#[test]
fn a_call_that_may_be_repeated_is_leased_again() {
    let mut w = lost_in_a_call(&repeatable_call());
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 running R1#2 running");
    let result = result_of(w.call("R1"), CallOutcome::Ran);
    w.ok_by(worker(2), w.append("R1", &[result]));
}

#[test]
fn a_call_with_a_result_is_no_reason_to_ask() {
    let mut w = chain(1);
    w.ok(w.append("R1", &[risky_call()]));
    w.ok(w.append("R1", &[result_of(w.call("R1"), CallOutcome::Ran)]));
    w.lose_workers();
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 running R1#2 running");
}

#[test]
fn a_call_that_was_repeated_without_an_answer_is_asked_about_all_the_same() {
    let mut w = lost_in_a_call(&repeatable_call());
    w.unanswered.insert(w.call("R1"));
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 paused R1#1 held h1");
    let hold = &w.state.holds[&w.hold("R1.h1")];
    assert_eq!(hold.kind, HoldKind::Reconcile);
    w.ok(w.approve("R1.h1"));
    w.check("T1 running R1#1 queued");
    // It is somebody's word by now that it runs again.
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 running R1#2 running");
}

#[test]
fn a_call_that_must_not_run_twice_is_asked_about() {
    let mut w = lost_in_a_call(&risky_call());
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 paused R1#1 held h1");
    let hold = &w.state.holds[&w.hold("R1.h1")];
    assert_eq!(hold.kind, HoldKind::Reconcile);
    assert_eq!(hold.call, Some(w.call("R1")));
}

#[test]
fn a_call_is_asked_about_also_after_its_lease_was_given_up() {
    let mut w = lost_in_a_call(&risky_call());
    w.ok(w.lapse("R1"));
    w.check("T1 running R1#1 queued");
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 paused R1#1 held h1");
}

#[test]
fn every_uncertain_call_is_asked_about_at_once() {
    let mut w = chain(2);
    w.ok(w.append("R2", &[risky_call(), repeatable_call(), risky_call()]));
    w.lose_workers();
    w.ok_by(worker(2), w.claim("R2"));
    w.check("T1 paused R1#1 waiting, T2 paused R2#1 held h1 h2");
}

#[test]
fn reconcile_approved_means_run_it_again() {
    let mut w = reconciling();
    w.ok(w.approve("R1.h1"));
    w.check("T1 running R1#1 queued");
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 running R1#2 running");
    let result = result_of(w.call("R1"), CallOutcome::Ran);
    w.ok_by(worker(2), w.append("R1", &[result]));
}

#[test]
fn a_call_that_is_lost_again_is_asked_about_again() {
    let mut w = reconciling();
    w.ok(w.approve("R1.h1"));
    w.ok_by(worker(2), w.claim("R1"));
    w.lose_workers();
    w.ok_by(worker(3), w.claim("R1"));
    w.check("T1 paused R1#2 held h2");
}

#[test]
fn reconcile_answered_means_it_ran_and_is_not_run_again() {
    let mut w = reconciling();
    w.ok(w.decide("R1.h1", DecisionKind::Respond));
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 running R1#2 running");
    let call = w.call("R1");
    let answered = w.append("R1", &[result_of(call, CallOutcome::Answered)]);
    assert_eq!(
        w.no_by(worker(2), answered),
        Rejection::CallNotReleased { call }
    );
    w.lose_workers();
    w.ok_by(worker(3), w.claim("R1"));
    w.check("T1 running R1#3 running");
    let ran = w.append("R1", &[result_of(call, CallOutcome::Ran)]);
    w.ok_by(worker(3), ran);
}

#[test]
fn reconcile_rejected_means_it_must_not_run() {
    let mut w = reconciling();
    w.ok(w.decide("R1.h1", DecisionKind::Reject));
    w.ok_by(worker(2), w.claim("R1"));
    let call = w.call("R1");
    let ran = w.append("R1", &[result_of(call, CallOutcome::Ran)]);
    assert_eq!(w.no_by(worker(2), ran), Rejection::CallNotReleased { call });
    let refused = w.append("R1", &[result_of(call, CallOutcome::Refused)]);
    w.ok_by(worker(2), refused);
}

#[test]
fn reconcile_dismissed_cancels_the_request() {
    let mut w = reconciling();
    w.ok(w.decide("R1.h1", DecisionKind::Dismiss));
    w.check("T1 idle cancelled");
}

#[test]
fn reconcile_cannot_be_edited_or_decided_by_the_user() {
    let mut w = reconciling();
    assert!(matches!(
        w.no(w.decide("R1.h1", DecisionKind::Edit)),
        Rejection::DecisionNotOffered { .. }
    ));
    assert_eq!(
        w.no_by(client(), w.approve("R1.h1")),
        Rejection::MayNotDecide {
            why: WhyNot::OwnSession
        }
    );
}

#[test]
fn a_lost_worker_cannot_sneak_in_the_result_that_people_are_asked_about() {
    let mut w = reconciling();
    let call = w.call("R1");
    assert_eq!(
        w.no(w.append("R1", &[result_of(call, CallOutcome::Ran)])),
        Rejection::NotLeaseHolder
    );
}

#[test]
fn an_approved_call_whose_worker_was_told_is_asked_about_when_it_is_lost() {
    let mut w = held_chain(1);
    w.ok(w.approve("R1.h1"));
    assert_eq!(call_state(&w, "R1"), CallState::Started { fence: 1 });
    w.lose_workers();
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 paused R1#1 held h2");
}

#[test]
fn an_approved_call_that_no_worker_heard_of_is_simply_run() {
    let mut w = held_chain(1);
    w.lose_workers();
    w.ok(w.approve("R1.h1"));
    assert_eq!(call_state(&w, "R1"), CallState::Released);
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 running R1#2 running");
    assert_eq!(call_state(&w, "R1"), CallState::Started { fence: 2 });
}

#[test]
fn running_a_gated_call_again_needs_its_digest_again() {
    let mut w = held_chain(1);
    w.ok(w.approve("R1.h1"));
    w.lose_workers();
    w.ok_by(worker(2), w.claim("R1"));
    let blind = w.decide_with("R1.h2", DecisionKind::Approve, |new| new.digest = None);
    assert_eq!(w.no(blind), Rejection::DigestMissing);
    w.ok(w.approve("R1.h2"));
    w.ok_by(worker(2), w.claim("R1"));
    let result = result_of(w.call("R1"), CallOutcome::Ran);
    w.ok_by(worker(2), w.append("R1", &[result]));
}

#[test]
fn a_call_that_was_released_to_a_revived_worker_is_asked_about_when_it_is_lost() {
    let mut w = held_chain(1);
    w.ok(w.question("R1"));
    w.lose_workers();
    w.ok(w.approve("R1.h1"));
    w.heartbeat("R1");
    w.ok_by(client(), w.decide("R1.h2", DecisionKind::Respond));
    w.check("T1 running R1#1 running");
    w.lose_workers();
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 paused R1#1 held h3");
}

#[test]
fn a_worker_that_was_given_up_does_not_come_back_through_a_question() {
    let mut w = lost_in_a_call(&risky_call());
    w.ok(w.lapse("R1"));
    w.ok_by(worker(2), w.claim("R1"));
    w.check("T1 paused R1#1 held h1");
    for command in w.worker_commands("R1") {
        w.no(command);
    }
}

#[test]
fn a_request_has_only_so_many_open_calls() {
    let mut w = chain(1);
    let calls = vec![risky_call(); crate::limits::REQUEST_CALLS_MAX];
    w.ok(w.append("R1", &calls));
    assert!(matches!(
        w.no(w.append("R1", &[risky_call()])),
        Rejection::Limit { .. }
    ));
}

#[test]
fn the_worker_that_was_lost_does_not_decide_whether_its_action_ran() {
    let mut w = reconciling();
    let lost = Actor {
        roles: [name("approver")].into(),
        ..worker(1)
    };
    let why = WhyNot::OwnHold;
    let refused = Rejection::MayNotDecide { why };
    assert_eq!(w.no_by(lost, w.approve("R1.h1")), refused);
}

#[test]
fn whoever_is_asked_what_became_of_an_action_could_have_approved_it() {
    let boss = || actor(Principal::User(user(7)), &["boss"]);
    let mut w = chain(1);
    w.ok(w.gate_with("R1", |hold| {
        hold.decide_by = Some(DecideBy::Role(name("boss")));
        hold.risk = Some(Risk::High);
        hold.effect = Some(Effect::Destructive);
    }));
    w.ok_by(boss(), w.approve("R1.h1"));
    w.lose_workers();
    w.ok_by(worker(2), w.claim("R1"));
    let asked = w.state.holds[&w.hold("R1.h2")].clone();
    assert_eq!(asked.kind, HoldKind::Reconcile);
    assert_eq!(asked.risk, Some(Risk::High));
    assert_eq!(asked.effect, Some(Effect::Destructive));
    let why = WhyNot::NeedsRole(name("boss"));
    let refused = Rejection::MayNotDecide { why };
    assert_eq!(w.no_by(approver(1), w.approve("R1.h2")), refused);
    w.ok_by(boss(), w.approve("R1.h2"));
}

//! Holds: the pause that reaches the root, who may end it, and that it ends once.

use super::*;
use crate::hold::{DecideBy, Right, WhyNot};

const ALL_PAUSED: &str = "T1 paused R1#1 waiting, T2 paused R2#1 waiting, T3 paused R3#1 held h1";
const ALL_RUNNING: &str =
    "T1 running R1#1 waiting, T2 running R2#1 waiting, T3 running R3#1 running";

/// A held request, with something special about the hold.
fn held_with(change: impl FnOnce(&mut NewHold)) -> World {
    let mut w = chain(1);
    w.ok(w.gate_with("R1", change));
    w
}

fn hold_decided(w: &World, alias: &str) -> Rejection {
    let hold = w.hold(alias);
    Rejection::HoldDecided {
        hold,
        decision: Box::new(w.decided[&hold].decision),
    }
}

fn hold_expired(w: &World, alias: &str) -> Rejection {
    Rejection::HoldExpired {
        hold: w.hold(alias),
    }
}

mod cascade {
    use super::*;

    /// Decides a hold three levels down and compares what becomes of the tasks.
    #[track_caller]
    fn check(kind: DecisionKind, status: HoldStatus, picture: &str) {
        let mut w = held_chain(3);
        w.check(ALL_PAUSED);
        let revision = w.state.revision;
        w.ok(w.decide("R3.h1", kind));
        assert_eq!(w.state.revision, revision + 1, "one record for all of it");
        assert_eq!(w.hold_status("R3.h1"), status);
        w.check(picture);
    }

    #[test]
    fn a_hold_pauses_every_task_above_it_in_one_record() {
        let mut w = chain(3);
        let revision = w.state.revision;
        w.ok(w.gate("R3"));
        w.check(ALL_PAUSED);
        assert_eq!(w.state.revision, revision + 1);
    }

    #[test]
    fn every_task_above_shows_the_hold_of_the_leaf() {
        let w = held_chain(3);
        for task in ["T1", "T2", "T3"] {
            let shown = w.state.pending_holds(w.task(task));
            assert_eq!(shown, [w.hold("R3.h1")], "{task}");
        }
    }

    #[test]
    fn approve_wakes_the_chain() {
        check(DecisionKind::Approve, HoldStatus::Approved, ALL_RUNNING);
    }

    #[test]
    fn edit_wakes_the_chain() {
        check(DecisionKind::Edit, HoldStatus::Edited, ALL_RUNNING);
    }

    #[test]
    fn reject_wakes_the_chain() {
        check(DecisionKind::Reject, HoldStatus::Rejected, ALL_RUNNING);
    }

    #[test]
    fn respond_wakes_the_chain() {
        check(DecisionKind::Respond, HoldStatus::Answered, ALL_RUNNING);
    }

    #[test]
    fn dismiss_cancels_the_request_and_wakes_its_parent() {
        check(
            DecisionKind::Dismiss,
            HoldStatus::Cancelled,
            "T1 running R1#1 waiting, T2 running R2#1 running, T3 idle cancelled",
        );
    }

    #[test]
    fn an_approved_chain_completes_bottom_up() {
        let mut w = held_chain(3);
        w.ok(w.approve("R3.h1"));
        w.ok(w.append("R3", &[result_of(w.call("R3"), CallOutcome::Ran)]));
        for request in ["R3", "R2", "R1"] {
            w.ok(w.complete(request));
        }
        w.check("T1 idle completed, T2 idle completed, T3 idle completed");
    }

    #[test]
    fn a_chain_whose_workers_went_away_is_queued_step_by_step() {
        let mut w = held_chain(3);
        w.wait_s(2 * 24 * 3_600);
        w.ok(w.approve("R3.h1"));
        w.check("T1 running R1#1 waiting, T2 running R2#1 waiting, T3 running R3#1 queued");
        w.ok(w.claim("R3"));
        w.ok(w.complete("R3"));
        w.check("T1 running R1#1 waiting, T2 running R2#1 queued, T3 idle completed");
        w.ok(w.claim("R2"));
        w.ok(w.complete("R2"));
        w.check("T1 running R1#1 queued, T2 idle completed, T3 idle completed");
        w.ok(w.claim("R1"));
        w.check("T1 running R1#2 running, T2 idle completed, T3 idle completed");
    }

    #[test]
    fn two_holds_of_one_request_wait_for_two_decisions() {
        let mut w = held_chain(2);
        w.ok(w.question("R2"));
        w.check("T1 paused R1#1 waiting, T2 paused R2#1 held h1 h2");
        w.ok(w.approve("R2.h1"));
        w.check("T1 paused R1#1 waiting, T2 paused R2#1 held h2");
        w.ok_by(client(), w.decide("R2.h2", DecisionKind::Respond));
        w.check("T1 running R1#1 waiting, T2 running R2#1 running");
    }

    #[test]
    fn dismissing_one_hold_closes_the_other() {
        let mut w = held_chain(1);
        w.ok(w.question("R1"));
        w.ok(w.decide("R1.h1", DecisionKind::Dismiss));
        w.check("T1 idle cancelled");
        assert_eq!(w.hold_status("R1.h2"), HoldStatus::Cancelled);
    }

    #[test]
    fn two_holds_under_one_ancestor_pause_it_until_both_are_decided() {
        let mut w = chain(1);
        w.ok(leased(w.spawn("R1", "a2")));
        w.ok(leased(w.spawn("R1", "a3")));
        w.ok(w.gate("R2"));
        w.ok(w.gate("R3"));
        w.ok(w.approve("R2.h1"));
        w.check("T1 paused R1#1 waiting, T2 running R2#1 running, T3 paused R3#1 held h1");
        w.ok(w.approve("R3.h1"));
        w.check("T1 running R1#1 waiting, T2 running R2#1 running, T3 running R3#1 running");
    }

    #[test]
    fn a_running_sibling_does_not_hide_a_pause() {
        let mut w = chain(1);
        w.ok(leased(w.spawn("R1", "a2")));
        w.ok(leased(w.spawn("R1", "a3")));
        w.ok(w.gate("R3"));
        w.check("T1 paused R1#1 waiting, T2 running R2#1 running, T3 paused R3#1 held h1");
        w.ok(w.complete("R2"));
        w.check("T1 paused R1#1 waiting, T2 idle completed, T3 paused R3#1 held h1");
    }

    #[test]
    fn a_hold_above_and_a_hold_below_are_separate_reasons() {
        let mut w = held_chain(2);
        w.ok(w.question("R1"));
        w.check("T1 paused R1#1 held h1, T2 paused R2#1 held h1");
        w.ok_by(client(), w.decide("R1.h1", DecisionKind::Respond));
        w.check("T1 paused R1#1 waiting, T2 paused R2#1 held h1");
        w.ok(w.approve("R2.h1"));
        w.check("T1 running R1#1 waiting, T2 running R2#1 running");
    }

    #[test]
    fn the_pause_goes_to_who_asked_now_and_not_to_who_asked_first() {
        let mut w = chain(2);
        w.ok(w.complete("R2"));
        w.ok(w.complete("R1"));
        w.ok(leased(start("a1")));
        w.ok(leased(w.spawn("R3", "a2")));
        let spawner = w.state.tasks[&w.task("T2")].parent;
        assert_eq!(spawner.map(|link| link.request), Some(w.request("R1")));
        w.ok(w.gate("R4"));
        w.check("T1 paused R3#1 waiting, T2 paused R4#1 held h1");
        assert_eq!(w.state.pending_holds(w.task("T1")), [w.hold("R4.h1")]);
        w.ok(w.approve("R4.h1"));
        w.check("T1 running R3#1 waiting, T2 running R4#1 running");
    }
}

mod leases {
    use super::*;
    use crate::request::LiveStatus;

    #[test]
    fn a_worker_that_stayed_goes_on_under_its_fence() {
        let mut w = held_chain(1);
        w.wait_s(LEASE_S - 1);
        w.ok(w.approve("R1.h1"));
        w.check("T1 running R1#1 running");
        w.ok(w.complete("R1"));
    }

    #[test]
    fn a_worker_that_kept_its_lease_by_heartbeats_stayed() {
        let mut w = held_chain(1);
        w.wait_s(LEASE_S - 1);
        w.heartbeat("R1");
        w.wait_s(2);
        w.ok(w.approve("R1.h1"));
        w.check("T1 running R1#1 running");
    }

    #[test]
    fn the_next_worker_gets_the_next_fence() {
        let mut w = held_chain(1);
        w.lose_workers();
        w.ok(w.approve("R1.h1"));
        w.check("T1 running R1#1 queued");
        w.ok_by(worker(2), w.claim("R1"));
        w.check("T1 running R1#2 running");
        let stale = Rejection::StaleFence {
            shown: 1,
            current: 2,
        };
        assert_eq!(w.no(showing_fence(w.complete("R1"), 1)), stale);
    }

    #[test]
    fn a_lease_lapses_silently_while_a_request_is_held() {
        let mut w = held_chain(1);
        w.lose_workers();
        let refusal = Rejection::NotClaimable {
            request: w.request("R1"),
            status: LiveStatus::Held,
        };
        assert_eq!(w.no(w.lapse("R1")), refusal);
        assert_eq!(w.no_by(worker(2), w.claim("R1")), refusal);
        w.check("T1 paused R1#1 held h1");
    }

    #[test]
    fn what_is_approved_after_the_worker_left_has_not_begun() {
        let mut w = held_chain(1);
        w.ok(w.release("R1"));
        w.check("T1 paused R1#1 held h1");
        assert_eq!(w.no(w.complete("R1")), Rejection::NotLeaseHolder);
        w.ok(w.approve("R1.h1"));
        w.check("T1 running R1#1 queued");
        w.ok_by(worker(2), w.claim("R1"));
        w.check("T1 running R1#2 running");
    }
}

mod quorum {
    use super::*;

    fn two_needed() -> World {
        held_with(|hold| hold.need = 2)
    }

    #[test]
    fn two_people_approve() {
        let mut w = two_needed();
        w.ok(w.approve("R1.h1"));
        w.check("T1 paused R1#1 held h1");
        w.ok_by(approver(2), w.approve("R1.h1"));
        w.check("T1 running R1#1 running");
        assert_eq!(w.hold_status("R1.h1"), HoldStatus::Approved);
    }

    #[test]
    fn one_person_counts_once() {
        let mut w = two_needed();
        w.ok(w.approve("R1.h1"));
        let other_key = |new: &mut NewDecision| new.key = digest("other key");
        let again = w.decide_with("R1.h1", DecisionKind::Approve, other_key);
        assert_eq!(w.no(again), Rejection::AlreadyVoted);
        w.check("T1 paused R1#1 held h1");
    }

    #[test]
    fn the_sessions_user_and_the_opener_do_not_count() {
        let mut w = two_needed();
        let approving_client = actor(client().principal, &["approver"]);
        let approving_worker = actor(worker(1).principal, &["approver"]);
        for actor in [client(), approving_client] {
            let why = WhyNot::OwnSession;
            let refused = Rejection::MayNotDecide { why };
            assert_eq!(w.no_by(actor, w.approve("R1.h1")), refused);
        }
        let why = WhyNot::OwnHold;
        let refused = Rejection::MayNotDecide { why };
        assert_eq!(w.no_by(approving_worker, w.approve("R1.h1")), refused);
    }

    #[test]
    fn the_same_vote_again_gets_the_same_answer() {
        let mut w = two_needed();
        w.ok(w.approve("R1.h1"));
        let first = w.state.revision;
        assert_eq!(w.again(w.approve("R1.h1")), first);
        w.ok_by(approver(2), w.approve("R1.h1"));
        let second = w.state.revision;
        assert_eq!(w.again(w.approve("R1.h1")), first, "also once decided");
        assert_eq!(w.again_by(approver(2), w.approve("R1.h1")), second);
        assert_eq!(
            w.no_by(approver(3), w.approve("R1.h1")),
            hold_decided(&w, "R1.h1")
        );
    }

    #[test]
    fn one_reject_settles_it() {
        let mut w = two_needed();
        w.ok(w.approve("R1.h1"));
        let voted_at = w.state.revision;
        w.ok_by(approver(2), w.decide("R1.h1", DecisionKind::Reject));
        assert_eq!(w.hold_status("R1.h1"), HoldStatus::Rejected);
        w.check("T1 running R1#1 running");
        assert_eq!(w.again(w.approve("R1.h1")), voted_at);
        let call = w.call("R1");
        assert_eq!(
            w.no(w.append("R1", &[result_of(call, CallOutcome::Ran)])),
            Rejection::CallNotReleased { call }
        );
    }

    #[test]
    fn whoever_approved_may_still_reject() {
        let mut w = two_needed();
        w.ok(w.approve("R1.h1"));
        w.ok(w.decide("R1.h1", DecisionKind::Reject));
        assert_eq!(w.hold_status("R1.h1"), HoldStatus::Rejected);
    }

    #[test]
    fn what_several_people_approve_cannot_be_edited() {
        let mut w = two_needed();
        assert!(matches!(
            w.no(w.decide("R1.h1", DecisionKind::Edit)),
            Rejection::DecisionNotOffered { .. }
        ));
    }

    #[test]
    fn every_vote_is_about_the_same_digest() {
        let mut w = two_needed();
        w.ok(w.approve("R1.h1"));
        let expected = digest("action");
        let other = |new: &mut NewDecision| new.digest = Some(digest("other action"));
        let vote = w.decide_with("R1.h1", DecisionKind::Approve, other);
        assert_eq!(
            w.no_by(approver(2), vote),
            Rejection::DigestMismatch { expected }
        );
    }

    #[test]
    fn a_quorum_has_a_sensible_size_and_kind() {
        let mut w = chain(1);
        let quorum = Rejection::Limit {
            limit: "quorum",
            max: 32,
        };
        assert_eq!(w.no(w.gate_with("R1", |hold| hold.need = 0)), quorum);
        assert_eq!(w.no(w.gate_with("R1", |hold| hold.need = 33)), quorum);
        let question = w.question_with("R1", |hold| hold.need = 2);
        assert!(matches!(w.no(question), Rejection::HoldMalformed(_)));
    }
}

mod policy {
    use super::*;

    /// Whether `actor` may approve an action of worker 1 under a policy.
    #[track_caller]
    fn check(decide_by: &DecideBy, actor: Actor, may: bool) {
        let mut w = held_with(|hold| hold.decide_by = Some(decide_by.clone()));
        let result = w.send(actor, w.approve("R1.h1"));
        match (may, result) {
            (true, Ok(Outcome::Commit(_))) | (false, Err(Rejection::MayNotDecide { .. })) => {}
            (_, other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn other_means_an_approver_who_is_not_involved() {
        let policy = DecideBy::Other;
        check(&policy, approver(1), true);
        check(&policy, client(), false);
        check(&policy, actor(client().principal, &["approver"]), false);
        check(&policy, actor(worker(1).principal, &["approver"]), false);
        check(&policy, actor(worker(2).principal, &["approver"]), true);
        check(&policy, worker(2), false);
    }

    #[test]
    fn the_people_who_started_a_request_above_do_not_decide() {
        // A backend that belongs to an approver starts R1 for the client. R1 asks R2.
        let mut w = new_session();
        let backend = Actor {
            key_owner: Some(approver(5).principal),
            ..client()
        };
        w.ok_by(backend, start("a1"));
        w.ok(w.claim("R1"));
        w.ok(leased(w.spawn("R1", "a2")));
        w.ok(w.gate("R2"));
        let refused = Rejection::MayNotDecide {
            why: WhyNot::OwnRequest,
        };
        assert_eq!(w.no_by(approver(5), w.approve("R2.h1")), refused);
        w.ok_by(approver(1), w.approve("R2.h1"));
    }

    #[test]
    fn user_means_the_sessions_user_or_an_approver() {
        let policy = DecideBy::User;
        check(&policy, client(), true);
        check(&policy, approver(1), true);
        check(&policy, actor(Principal::User(user(2)), &["client"]), false);
        check(&policy, worker(2), false);
        check(&policy, actor(worker(1).principal, &["approver"]), false);
    }

    #[test]
    fn whoever_is_refused_is_told_why() {
        let why = |policy: DecideBy, actor: Actor| {
            let mut w = held_with(|hold| hold.decide_by = Some(policy.clone()));
            match w.no_by(actor, w.approve("R1.h1")) {
                Rejection::MayNotDecide { why } => why,
                other => panic!("{other:?}"),
            }
        };
        let finance = DecideBy::Role(name("finance"));
        assert_eq!(why(DecideBy::Other, client()), WhyNot::OwnSession);
        assert_eq!(why(finance.clone(), client()), WhyNot::OwnSession);
        assert_eq!(why(DecideBy::User, worker(1)), WhyNot::OwnHold);
        assert_eq!(
            why(DecideBy::Other, worker(2)),
            WhyNot::NeedsRole(name("approver"))
        );
        assert_eq!(
            why(finance, approver(1)),
            WhyNot::NeedsRole(name("finance"))
        );
        assert_eq!(
            why(DecideBy::Other, Actor::system(name("t1"))),
            WhyNot::Server
        );
    }

    #[test]
    fn a_decision_says_by_which_right_it_was_made_and_what_was_shown() {
        let right = |policy: DecideBy, actor: Actor| {
            let mut w = held_with(|hold| hold.decide_by = Some(policy.clone()));
            let shown = w.state.holds[&w.hold("R1.h1")].digest;
            w.ok_by(actor, w.approve("R1.h1"));
            let decision = w.decided[&w.hold("R1.h1")].decision;
            assert_eq!(decision.shown, shown);
            decision.right
        };
        assert_eq!(right(DecideBy::User, client()), Some(Right::User));
        assert_eq!(right(DecideBy::User, approver(1)), Some(Right::Role));
        assert_eq!(right(DecideBy::Other, approver(1)), Some(Right::Role));
        let local = actor(Principal::Local, &[]);
        assert_eq!(right(DecideBy::Other, local), Some(Right::Local));
    }

    #[test]
    fn a_role_means_whoever_has_it_and_is_not_involved() {
        let policy = DecideBy::Role(name("finance"));
        check(&policy, actor(Principal::User(user(2)), &["finance"]), true);
        check(&policy, approver(1), false);
        check(&policy, actor(client().principal, &["finance"]), false);
        check(&policy, actor(worker(1).principal, &["finance"]), false);
    }

    #[test]
    fn the_local_developer_may_and_the_server_may_not() {
        for policy in [
            DecideBy::Other,
            DecideBy::User,
            DecideBy::Role(name("finance")),
        ] {
            check(&policy, actor(Principal::Local, &[]), true);
            check(&policy, Actor::system(name("t1")), false);
        }
    }

    #[test]
    fn questions_go_to_the_user_and_approvals_to_others() {
        use HoldKind::{Approval, Credential, Form, Link, Question, Reconcile};
        for kind in [Question, Form, Link, Credential] {
            assert_eq!(kind.default_decide_by(), DecideBy::User);
        }
        for kind in [Approval, Reconcile] {
            assert_eq!(kind.default_decide_by(), DecideBy::Other);
        }
        let mut w = chain(1);
        w.ok(w.question("R1"));
        w.ok_by(client(), w.decide("R1.h1", DecisionKind::Respond));
        w.check("T1 running R1#1 running");
    }
}

mod expiry {
    use super::*;

    /// A hold with half a minute to live.
    fn expiring(on_expiry: OnExpiry) -> World {
        let mut w = chain(2);
        w.ok(w.gate_with("R2", |hold| {
            (hold.expires_in_ms, hold.on_expiry) = (Some(30_000), on_expiry);
        }));
        w
    }

    #[track_caller]
    fn check(on_expiry: OnExpiry, picture: &str) {
        let mut w = expiring(on_expiry);
        w.wait_s(30);
        w.ok(w.expire("R2.h1"));
        assert_eq!(w.hold_status("R2.h1"), HoldStatus::Expired);
        w.check(picture);
    }

    #[test]
    fn expiry_rejects_cancels_or_fails() {
        check(
            OnExpiry::Reject,
            "T1 running R1#1 waiting, T2 running R2#1 running",
        );
        check(
            OnExpiry::Dismiss,
            "T1 running R1#1 running, T2 idle cancelled",
        );
        check(OnExpiry::Fail, "T1 running R1#1 running, T2 idle failed");
    }

    #[test]
    fn failing_by_expiry_stops_the_children_and_the_other_holds() {
        let mut w = expiring(OnExpiry::Fail);
        w.ok(leased(w.spawn("R2", "a3")));
        w.ok(w.question("R2"));
        w.ok(w.question("R3"));
        w.wait_s(30);
        w.ok(w.expire("R2.h1"));
        w.check("T1 running R1#1 running, T2 idle failed, T3 idle cancelled");
        assert_eq!(w.hold_status("R2.h2"), HoldStatus::Cancelled);
        assert_eq!(w.hold_status("R3.h1"), HoldStatus::Cancelled);
    }

    #[test]
    fn an_expired_action_does_not_run() {
        let mut w = expiring(OnExpiry::Reject);
        w.wait_s(30);
        w.ok(w.expire("R2.h1"));
        let call = w.call("R2");
        assert_eq!(
            w.no(w.append("R2", &[result_of(call, CallOutcome::Ran)])),
            Rejection::CallNotReleased { call }
        );
        w.ok(w.append("R2", &[result_of(call, CallOutcome::Refused)]));
    }

    #[test]
    fn nothing_expires_early_or_without_a_deadline() {
        let mut w = expiring(OnExpiry::Reject);
        w.wait_s(29);
        let early = Rejection::NotExpired {
            hold: w.hold("R2.h1"),
        };
        assert_eq!(w.no(w.expire("R2.h1")), early);
        w.ok(w.question("R2"));
        w.wait_s(1_000_000);
        let never = Rejection::NotExpired {
            hold: w.hold("R2.h2"),
        };
        assert_eq!(w.no(w.expire("R2.h2")), never);
    }

    #[test]
    fn a_decision_before_the_deadline_counts() {
        let mut w = expiring(OnExpiry::Reject);
        w.wait_s(29);
        w.ok(w.approve("R2.h1"));
        w.wait_s(1);
        assert_eq!(w.no(w.expire("R2.h1")), hold_decided(&w, "R2.h1"));
    }

    #[test]
    fn a_decision_at_the_deadline_commits_the_expiry_and_is_refused() {
        for kind in [
            DecisionKind::Approve,
            DecisionKind::Reject,
            DecisionKind::Dismiss,
        ] {
            let mut w = expiring(OnExpiry::Reject);
            w.wait_s(30);
            assert_eq!(w.late(w.decide("R2.h1", kind)), hold_expired(&w, "R2.h1"));
            assert_eq!(w.hold_status("R2.h1"), HoldStatus::Expired);
            w.check("T1 running R1#1 waiting, T2 running R2#1 running");
            let again = w.no(w.decide("R2.h1", kind));
            assert_eq!(again, hold_expired(&w, "R2.h1"), "and nothing more commits");
        }
    }

    #[test]
    fn whoever_may_not_decide_does_not_expire_a_hold_either() {
        let mut w = expiring(OnExpiry::Reject);
        w.wait_s(30);
        assert_eq!(
            w.no_by(client(), w.approve("R2.h1")),
            Rejection::MayNotDecide {
                why: WhyNot::OwnSession
            }
        );
        assert_eq!(w.hold_status("R2.h1"), HoldStatus::Open);
    }

    #[test]
    fn a_clock_that_steps_back_does_not_give_more_time() {
        let mut w = expiring(OnExpiry::Reject);
        w.wait_s(30);
        w.ok(w.append("R2", &[say("the log has seen this moment")]));
        w.step_clock_back_s(20);
        assert_eq!(w.late(w.approve("R2.h1")), hold_expired(&w, "R2.h1"));
    }

    #[test]
    fn a_clock_that_steps_back_does_not_reopen_what_expired() {
        let mut w = expiring(OnExpiry::Reject);
        w.wait_s(30);
        w.ok(w.expire("R2.h1"));
        w.step_clock_back_s(20);
        assert_eq!(w.no(w.approve("R2.h1")), hold_expired(&w, "R2.h1"));
    }

    #[test]
    fn votes_do_not_outlive_the_deadline() {
        let mut w = held_with(|hold| (hold.need, hold.expires_in_ms) = (2, Some(30_000)));
        w.ok_by(approver(2), w.approve("R1.h1"));
        let voted_at = w.state.revision;
        w.wait_s(30);
        assert_eq!(w.late(w.approve("R1.h1")), hold_expired(&w, "R1.h1"));
        assert_eq!(w.again_by(approver(2), w.approve("R1.h1")), voted_at);
    }
}

mod once {
    use super::*;

    #[test]
    fn the_same_decision_again_gets_the_same_answer() {
        for kind in [
            DecisionKind::Approve,
            DecisionKind::Edit,
            DecisionKind::Reject,
            DecisionKind::Respond,
            DecisionKind::Dismiss,
        ] {
            let mut w = held_chain(1);
            w.ok(w.decide("R1.h1", kind));
            let decided_at = w.state.revision;
            w.ok(start("a9"));
            assert_eq!(w.again(w.decide("R1.h1", kind)), decided_at);
        }
    }

    #[test]
    fn any_other_decision_gets_the_one_that_stands() {
        let mut w = held_chain(1);
        w.ok(w.approve("R1.h1"));
        let stands = hold_decided(&w, "R1.h1");
        let approving = |w: &World, change: fn(&mut NewDecision)| {
            w.decide_with("R1.h1", DecisionKind::Approve, change)
        };
        let other_content = approving(&w, |new| new.fingerprint = digest("other"));
        assert_eq!(w.no(other_content), stands, "same key, other content");
        let other_key = approving(&w, |new| new.key = digest("other"));
        assert_eq!(w.no(other_key), stands, "other key, same content");
        assert_eq!(w.no(w.decide("R1.h1", DecisionKind::Reject)), stands);
        assert_eq!(w.no_by(approver(2), w.approve("R1.h1")), stands);
    }

    #[test]
    fn a_late_duplicate_never_decides_the_next_hold() {
        let mut w = held_chain(1);
        w.ok(w.approve("R1.h1"));
        let decided_at = w.state.revision;
        w.ok(w.gate("R1"));
        assert_eq!(w.again(w.approve("R1.h1")), decided_at);
        let by_other_key = w.decide_with("R1.h1", DecisionKind::Approve, |new| {
            new.key = digest("clicked twice");
        });
        assert_eq!(w.no(by_other_key), hold_decided(&w, "R1.h1"));
        w.check("T1 paused R1#1 held h2");
    }

    #[test]
    fn an_old_decision_key_is_no_decision_of_the_next_hold() {
        let mut w = held_chain(1);
        w.ok(w.approve("R1.h1"));
        w.ok(w.gate("R1"));
        let same_key = w.decide_with("R1.h2", DecisionKind::Reject, |new| {
            new.key = digest("R1.h1");
        });
        w.ok(same_key);
        assert_eq!(w.hold_status("R1.h1"), HoldStatus::Approved);
        assert_eq!(w.hold_status("R1.h2"), HoldStatus::Rejected);
    }

    #[test]
    fn the_hold_of_a_cancelled_request_is_decided() {
        let mut w = held_chain(1);
        w.ok(w.cancel("R1"));
        assert_eq!(w.no(w.approve("R1.h1")), hold_decided(&w, "R1.h1"));
        assert_eq!(w.no(w.expire("R1.h1")), hold_decided(&w, "R1.h1"));
    }

    #[test]
    fn an_unknown_hold_is_not_found() {
        let mut w = held_chain(1);
        let mut command = w.approve("R1.h1");
        if let Command::DecideHold { hold, .. } = &mut command {
            *hold = HoldId::from_uuid(Uuid::from_u128(1));
        }
        assert_eq!(w.no(command), Rejection::NotFound);
    }

    #[test]
    fn a_hold_id_is_used_once() {
        let mut w = held_chain(1);
        let hold = w.hold("R1.h1");
        let taken = Rejection::HoldExists { hold };
        assert_eq!(w.no(w.question_with("R1", |new| new.id = hold)), taken);
        w.ok(w.approve("R1.h1"));
        assert_eq!(w.no(w.question_with("R1", |new| new.id = hold)), taken);
    }
}

mod content {
    use super::*;

    #[track_caller]
    fn check(kind: DecisionKind, shown: Option<&str>, fits: bool) {
        let mut w = held_chain(1);
        let shown = shown.map(digest);
        let command = w.decide_with("R1.h1", kind, |new| new.digest = shown);
        if fits {
            w.ok(command);
        } else {
            let expected = digest("action");
            let reason = match shown {
                Some(_) => Rejection::DigestMismatch { expected },
                None => Rejection::DigestMissing,
            };
            assert_eq!(w.no(command), reason);
        }
    }

    #[test]
    fn whoever_lets_an_action_run_shows_its_digest() {
        for kind in [DecisionKind::Approve, DecisionKind::Edit] {
            check(kind, Some("action"), true);
            check(kind, Some("other action"), false);
            check(kind, None, false);
        }
    }

    #[test]
    fn whoever_stops_an_action_need_not_show_its_digest() {
        for kind in [
            DecisionKind::Reject,
            DecisionKind::Respond,
            DecisionKind::Dismiss,
        ] {
            check(kind, Some("action"), true);
            check(kind, Some("other action"), false);
            check(kind, None, true);
        }
    }

    #[test]
    fn an_edit_and_only_an_edit_brings_another_action() {
        let mut w = held_chain(1);
        let edit = w.decide_with("R1.h1", DecisionKind::Edit, |new| new.edited = None);
        assert_eq!(w.no(edit), Rejection::EditImpossible);
        let approve = w.decide_with("R1.h1", DecisionKind::Approve, |new| {
            new.edited = Some(digest("edited action"));
        });
        assert_eq!(w.no(approve), Rejection::EditImpossible);
    }

    #[test]
    fn only_what_is_offered_can_be_decided() {
        let offered = BTreeSet::from([DecisionKind::Approve, DecisionKind::Reject]);
        let mut w = held_with(|hold| hold.allowed.clone_from(&offered));
        for decision in [
            DecisionKind::Edit,
            DecisionKind::Respond,
            DecisionKind::Dismiss,
        ] {
            let refusal = Rejection::DecisionNotOffered {
                decision,
                allowed: offered.clone(),
            };
            assert_eq!(w.no(w.decide("R1.h1", decision)), refusal);
        }
        w.ok(w.approve("R1.h1"));
    }

    #[test]
    fn a_question_cannot_be_approved() {
        let mut w = chain(1);
        w.ok(w.question("R1"));
        assert!(matches!(
            w.no_by(client(), w.approve("R1.h1")),
            Rejection::DecisionNotOffered { .. }
        ));
        let approvable = w.question_with("R1", |hold| {
            hold.allowed = [DecisionKind::Approve].into();
        });
        assert!(matches!(w.no(approvable), Rejection::HoldMalformed(_)));
    }

    #[test]
    fn an_approval_is_about_a_gated_call_that_nobody_asked_about() {
        let mut w = held_chain(1);
        let asked = CallTarget::Recorded(w.call("R1"));
        w.ok(w.append("R1", &[risky_call()]));
        let started = CallTarget::Recorded(w.call("R1"));
        let malformed: [fn(&mut NewHold); 3] = [
            |hold| hold.call = None,
            |hold| hold.digest = None,
            |hold| hold.kind = HoldKind::Reconcile,
        ];
        for change in malformed {
            let refusal = w.no(w.gate_with("R1", change));
            assert!(matches!(refusal, Rejection::HoldMalformed(_)));
        }
        for call in [asked, started] {
            let refusal = w.no(w.gate_with("R1", |hold| hold.call = Some(call)));
            assert!(matches!(refusal, Rejection::HoldMalformed(_)));
        }
        let beyond = w.gate_with("R1", |hold| hold.call = Some(CallTarget::SameCommand(9)));
        assert_eq!(w.no(beyond), Rejection::CallUnknown { call: None });
    }

    #[test]
    fn a_question_is_not_about_an_action() {
        let mut w = chain(1);
        let question = w.question_with("R1", |hold| hold.digest = Some(digest("action")));
        assert!(matches!(w.no(question), Rejection::HoldMalformed(_)));
    }

    #[test]
    fn a_request_opens_only_so_many_holds_at_once() {
        let mut w = chain(1);
        for _ in 0..256 {
            w.ok(w.question("R1"));
        }
        let refusal = Rejection::Limit {
            limit: "open holds of one request",
            max: 256,
        };
        assert_eq!(w.no(w.question("R1")), refusal);
        w.ok_by(client(), w.decide("R1.h1", DecisionKind::Respond));
        w.ok(w.question("R1"));
    }

    #[test]
    fn a_deadline_survives_the_bytes_of_its_record() {
        let mut w = chain(1);
        for ms in [300 * 365 * 86_400_000 + 1, u64::MAX] {
            let endless = w.question_with("R1", |hold| hold.expires_in_ms = Some(ms));
            w.no(endless);
        }
    }
}

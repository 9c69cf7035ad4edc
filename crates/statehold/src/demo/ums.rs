//! `ums-agent`: lists users, creates them, and deletes them if a person approves.
//!
//! # Why a crash never deletes a user twice
//!
//! The only effect of `delete_user` is a write of state. It goes out in one call, `complete`,
//! together with the result of the tool call, the answer and the count in `app:demo.delete_runs`;
//! the server commits all of it or nothing. So no crash can fall between the effect and its result.
//! A worker that dies before the commit leaves nothing behind, and the next worker gets the same
//! call under the same execution key. A worker that dies after the commit leaves a finished
//! request: the server does not hand it out again, and the fence rejects a late or repeated
//! `complete`. That is why the tool may declare that it honours its key (`idempotent`), and a crash
//! needs no person to reconcile it.
//!
//! Two concurrent deletes have read the same users. The write names the version that was read, so
//! the server rejects the slower one as a whole, with its count and its answer; it reads again and
//! retries. The store itself adds the count, so no increment is lost.

mod order;

use serde_json::{Value, json};

use self::order::{UserOrder, UserTarget, parse_order};
use super::help;
use super::turn::{
    DemoAnswer, DemoCallResult, DemoDecision, DemoOpenCall, DemoStep, DemoTurn, FinishedCall,
};
use super::users::{DELETE_RUNS, DemoUser, DemoUsers, USERS, USERS_MAX};

/// The tool that needs an approval.
pub(super) const DELETE_USER: &str = "delete_user";
/// How long a person has to decide.
pub(super) const DECIDE_WITHIN_SECONDS: u64 = 3_600;
const LIST_USERS: &str = "list_users";
const CREATE_USER: &str = "create_user";

const CAN_DO: &str = "I look after users. Try \"List users\", \"Create user Jean Bartik\", \
    \"Delete user 7\" or, after a list, \"Delete the first user\".";

/// Answers a message, or continues after a decision.
pub(super) fn step(turn: &DemoTurn) -> DemoStep {
    if let Some(call) = &turn.open_call {
        return match turn.decisions.last() {
            Some(decided) => finish_call(turn, call, decided),
            None => DemoStep::Wait,
        };
    }
    if let Some(said) = help::on_typed_decision(&turn.text) {
        return DemoAnswer::text(said).into();
    }
    let users = match DemoUsers::read(turn.state.get(USERS)) {
        Ok(users) => users,
        Err(said) => return DemoAnswer::text(said).into(),
    };
    match parse_order(&turn.text) {
        UserOrder::List => list(turn, &users).into(),
        UserOrder::Create(name) => create(turn, users, &name).into(),
        UserOrder::Delete(which) => delete(turn, &users, &which),
        UserOrder::Unknown => DemoAnswer::text(CAN_DO).into(),
    }
}

fn list(turn: &DemoTurn, users: &DemoUsers) -> DemoAnswer {
    let count = users.all().len();
    let lines = users
        .all()
        .iter()
        .map(|user| format!("\n{}. {}", user.id, user.name));
    let lines: String = lines.collect();
    let mut answer = DemoAnswer::text(match count {
        0 => "There are no users.".to_owned(),
        1 => format!("1 user:{lines}"),
        _ => format!("{count} users:{lines}"),
    });
    let ids: Vec<u64> = users.all().iter().map(|user| user.id).collect();
    answer.calls.push(FinishedCall::new(
        LIST_USERS,
        json!({}),
        json!({ "user_ids": ids }),
    ));
    if !turn.state.contains_key(USERS) {
        turn.replace(&mut answer, USERS, users.to_value());
    }
    answer
}

fn create(turn: &DemoTurn, mut users: DemoUsers, name: &str) -> DemoAnswer {
    if let Some(there) = users.find_named(name) {
        return DemoAnswer::text(format!(
            "{} is there already, as user {}.",
            there.name, there.id
        ));
    }
    if users.all().len() >= USERS_MAX {
        return DemoAnswer::text(format!(
            "There are {USERS_MAX} users, and this demo keeps no more. Delete one first."
        ));
    }
    let user = users.create(name).clone();
    let mut answer = DemoAnswer::text(format!("User {} was created: {}.", user.id, user.name));
    let result = json!({ "created": user.id });
    answer.calls.push(FinishedCall::new(
        CREATE_USER,
        json!({ "name": user.name }),
        result,
    ));
    turn.replace(&mut answer, USERS, users.to_value());
    answer
}

/// Finds the user and asks a person for approval.
fn delete(turn: &DemoTurn, users: &DemoUsers, which: &UserTarget) -> DemoStep {
    match find_target(turn, users, which) {
        Ok(user) => DemoStep::Ask(approval(user)),
        Err(said) => DemoAnswer::text(said).into(),
    }
}

fn find_target<'u>(
    turn: &DemoTurn,
    users: &'u DemoUsers,
    which: &UserTarget,
) -> Result<&'u DemoUser, String> {
    match which {
        UserTarget::Id(id) => users.find(*id).ok_or_else(|| {
            format!("There is no user {id}. Say \"List users\" to see who is there.")
        }),
        UserTarget::Named(name) => users.find_named(name).ok_or_else(|| {
            format!("There is no user called {name}. Say \"List users\" to see who is there.")
        }),
        UserTarget::Placed(place) => {
            // "The first" refers to the list shown last in this conversation, and to no other.
            let lists = turn.memory.iter().rev();
            let mut lists = lists.filter(|call| call.name == LIST_USERS);
            let shown = lists
                .next()
                .and_then(|call| call.result["user_ids"].as_array());
            let Some(shown) = shown else {
                let place = place.words();
                return Err(format!(
                    "I have not listed users yet, so I do not know who is {place}. \
                     Say \"List users\" first."
                ));
            };
            let id = place.of(shown).and_then(Value::as_u64).ok_or_else(|| {
                let count = shown.len();
                format!("The list had {count} users. Say \"List users\" to see who is there now.")
            })?;
            users.find(id).ok_or_else(|| {
                format!("User {id} of that list no longer exists. Say \"List users\" again.")
            })
        }
    }
}

fn approval(user: &DemoUser) -> Value {
    let DemoUser { id, name, email } = user;
    json!({
        "kind": "approval",
        "title": format!("Delete user {id} ({name})?"),
        "message": format!("User {id} is {name}, {email}. This cannot be undone."),
        "expires_in_seconds": DECIDE_WITHIN_SECONDS,
        "action": {
            "tool": DELETE_USER, "args": { "user_id": id }, "idempotent": true,
            "effect": "destructive", "risk": "high",
            "args_schema": {
                "type": "object", "additionalProperties": false, "required": ["user_id"],
                "properties": { "user_id": { "type": "integer", "minimum": 1 } },
            },
        },
    })
}

/// Finishes a call after its decision, as its state demands.
fn finish_call(turn: &DemoTurn, call: &DemoOpenCall, decided: &DemoDecision) -> DemoStep {
    let asked = decided.asked["user_id"].as_u64();
    let who = asked.map_or_else(|| "the user".to_owned(), |id| format!("user {id}"));
    let comment = match decided.comment.as_deref() {
        Some(comment) if !comment.is_empty() => format!(": {comment}"),
        _ => ".".to_owned(),
    };
    let (outcome, text, result) = match (call.state.as_str(), decided.status.as_str()) {
        ("started" | "released", _) => return run(turn, call, decided).into(),
        ("refused", "expired") => (
            "refused",
            format!("Nobody decided in time: {who} was not deleted."),
            "nobody decided in time",
        ),
        ("refused", _) => (
            "refused",
            format!("A person refused: {who} was not deleted{comment}"),
            "a person refused",
        ),
        ("answered", _) => (
            "answered",
            format!("A person answered in place of deleting {who}{comment}"),
            "a person answered",
        ),
        ("confirmed", _) => (
            "ran",
            format!("A person says that {who} was deleted."),
            "a person says that it ran",
        ),
        _ => return DemoStep::Wait,
    };
    let mut answer = DemoAnswer::text(text);
    answer.settled = Some(DemoCallResult {
        call: call.id.clone(),
        outcome,
        result: json!({ "deleted": null, "because": result }),
    });
    answer.into()
}

/// The effect, its result and its count in one answer. See the top of this file.
fn run(turn: &DemoTurn, call: &DemoOpenCall, decided: &DemoDecision) -> DemoAnswer {
    let asked = decided.asked["user_id"].as_u64();
    let approved = decided.edited.as_ref().unwrap_or(&decided.asked);
    let approved = approved["user_id"].as_u64();
    let mut users = DemoUsers::read(turn.state.get(USERS));
    let removed = match (approved, &mut users) {
        (Some(id), Ok(users)) => users.remove(id),
        _ => None,
    };
    let mut answer = DemoAnswer::text(match (approved, &removed, &users) {
        (_, _, Err(said)) => said.clone(),
        (Some(id), Some(_), _) if asked == approved => format!("User {id} was deleted."),
        (Some(id), Some(_), _) => format!("User {id} was deleted: a person chose this one."),
        (Some(id), None, _) => format!("User {id} no longer exists: nothing was deleted."),
        (None, ..) => "The user to delete is unknown: nothing was deleted.".to_owned(),
    });
    answer.settled = Some(DemoCallResult {
        call: call.id.clone(),
        outcome: "ran",
        result: json!({ "deleted": removed.as_ref().map(|user| user.id) }),
    });
    if let (Some(_), Ok(users)) = (&removed, &users) {
        turn.replace(&mut answer, USERS, users.to_value());
        answer.set.insert(DELETE_RUNS.to_owned(), 1.into());
        answer.merge.insert(DELETE_RUNS.to_owned(), "add".into());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(text: &str) -> DemoTurn {
        DemoTurn {
            text: text.to_owned(),
            ..DemoTurn::default()
        }
    }

    #[track_caller]
    fn answered(turn: &DemoTurn) -> DemoAnswer {
        match step(turn) {
            DemoStep::Answer(answer) => *answer,
            other => panic!("no answer but {other:?}"),
        }
    }

    #[track_caller]
    fn asked(turn: &DemoTurn) -> Value {
        match step(turn) {
            DemoStep::Ask(hold) => hold,
            other => panic!("it does not ask but {other:?}"),
        }
    }

    fn decided(status: &str, state: &str) -> DemoTurn {
        DemoTurn {
            decisions: vec![DemoDecision {
                status: status.to_owned(),
                asked: json!({ "user_id": 7 }),
                ..DemoDecision::default()
            }],
            open_call: Some(DemoOpenCall {
                id: "itm_1".to_owned(),
                state: state.to_owned(),
            }),
            versions: [(USERS.to_owned(), 4)].into(),
            ..turn("Delete user 7")
        }
    }

    #[test]
    fn the_first_list_writes_the_sample_and_a_later_one_writes_nothing() {
        let first = answered(&turn("List users"));
        assert!(first.text.starts_with("12 users:\n1. Ada Lovelace\n2. "));
        assert_eq!(first.if_versions[USERS], 0);
        let mut later = turn("list the users");
        later
            .state
            .insert(USERS.to_owned(), first.set[USERS].clone());
        assert!(answered(&later).set.is_empty());
    }

    #[test]
    fn users_are_created_once() {
        let made = answered(&turn("Create user Jean Bartik"));
        assert_eq!(made.text, "User 13 was created: Jean Bartik.");
        let mut again = turn("create a user called jean bartik");
        again
            .state
            .insert(USERS.to_owned(), made.set[USERS].clone());
        let again = answered(&again);
        assert_eq!(again.text, "Jean Bartik is there already, as user 13.");
        assert!(again.set.is_empty());
    }

    #[test]
    fn deleting_asks_a_person_and_changes_nothing_yet() {
        let hold = asked(&turn("Delete user 7"));
        assert_eq!(hold["kind"], "approval");
        assert_eq!(hold["title"], "Delete user 7 (Grace Hopper)?");
        assert_eq!(hold["action"]["args"], json!({ "user_id": 7 }));
        assert_eq!(hold["action"]["risk"], "high");
        let named = asked(&turn("Please delete user grace hopper."));
        assert_eq!(named["action"]["args"], json!({ "user_id": 7 }));
        let nobody = answered(&turn("Delete user 70"));
        assert!(nobody.text.starts_with("There is no user 70."));
    }

    #[test]
    fn the_first_is_the_first_of_the_list_that_was_shown_last() {
        let unlisted = answered(&turn("Delete the first user"));
        assert!(unlisted.text.contains("Say \"List users\" first"));
        let mut listed = turn("Delete the first user");
        listed.memory = vec![
            FinishedCall::new(LIST_USERS, json!({}), json!({ "user_ids": [1, 2] })),
            FinishedCall::new(LIST_USERS, json!({}), json!({ "user_ids": [3, 5, 99] })),
        ];
        assert_eq!(asked(&listed)["action"]["args"]["user_id"], 3);
        listed.text = "delete the second one".to_owned();
        assert_eq!(asked(&listed)["action"]["args"]["user_id"], 5);
        listed.text = "Delete the last user".to_owned();
        assert!(answered(&listed).text.contains("no longer exists"));
        listed.text = "Delete the tenth user".to_owned();
        assert!(answered(&listed).text.starts_with("The list had 3 users."));
    }

    #[test]
    fn an_approved_delete_is_one_answer_with_effect_count_and_result() {
        let answer = answered(&decided("approved", "started"));
        assert_eq!(answer.text, "User 7 was deleted.");
        let users = DemoUsers::read(answer.set.get(USERS)).expect("users");
        assert_eq!((users.all().len(), users.find(7)), (11, None));
        assert_eq!(answer.if_versions[USERS], 4);
        assert_eq!(answer.set[DELETE_RUNS], 1);
        assert_eq!(answer.merge[DELETE_RUNS], "add");
        let settled = answer.settled.expect("a result");
        assert_eq!((settled.call.as_str(), settled.outcome), ("itm_1", "ran"));
        assert_eq!(settled.result, json!({ "deleted": 7 }));
    }

    #[test]
    fn an_edited_delete_takes_the_other_user() {
        let mut turn = decided("edited", "started");
        turn.decisions[0].edited = Some(json!({ "user_id": 8 }));
        let answer = answered(&turn);
        assert_eq!(answer.text, "User 8 was deleted: a person chose this one.");
        let users = DemoUsers::read(answer.set.get(USERS)).expect("users");
        assert!(users.find(7).is_some() && users.find(8).is_none());
    }

    #[test]
    fn who_is_gone_already_is_not_counted() {
        let mut turn = decided("approved", "started");
        let mut users = DemoUsers::sample();
        users.remove(7);
        turn.state.insert(USERS.to_owned(), users.to_value());
        let answer = answered(&turn);
        assert!(answer.text.contains("nothing was deleted"));
        assert!(answer.set.is_empty() && answer.settled.is_some());
    }

    #[test]
    fn what_was_not_approved_has_no_effect_and_is_said() {
        for (status, state, outcome, said) in [
            (
                "rejected",
                "refused",
                "refused",
                "A person refused: user 7 was not deleted.",
            ),
            (
                "expired",
                "refused",
                "refused",
                "Nobody decided in time: user 7 was not deleted.",
            ),
            (
                "answered",
                "answered",
                "answered",
                "A person answered in place of deleting user 7.",
            ),
            (
                "answered",
                "confirmed",
                "ran",
                "A person says that user 7 was deleted.",
            ),
        ] {
            let answer = answered(&decided(status, state));
            assert_eq!(answer.text, said);
            assert!(answer.set.is_empty(), "{status}");
            assert_eq!(answer.settled.expect("a result").outcome, outcome);
        }
        let mut turn = decided("rejected", "refused");
        turn.decisions[0].comment = Some("she is needed".to_owned());
        assert!(
            answered(&turn)
                .text
                .ends_with("was not deleted: she is needed")
        );
        assert_eq!(step(&decided("open", "proposed")), DemoStep::Wait);
    }

    #[test]
    fn typing_is_no_approval_and_nonsense_gets_help() {
        assert!(answered(&turn("approved")).text.contains("not an approval"));
        assert_eq!(answered(&turn("Sing!")).text, CAN_DO);
    }

    #[test]
    fn users_that_cannot_be_read_are_never_overwritten() {
        let mut turn = turn("Create user X");
        turn.state.insert(USERS.to_owned(), json!(5));
        let answer = answered(&turn);
        assert!(answer.text.contains("is not a list of users") && answer.set.is_empty());
    }
}

//! What may come of a storm on one hold: one decision, one release, at most one effect, and everybody
//! told the same.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::people::{Decider, Told};

/// The exit code of a conflict.
const CONFLICT: i32 = 5;

/// Everything that was seen of one hold.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The hold as it is read afterwards.
    pub(super) hold: Value,
    /// The request as it is read afterwards.
    pub(super) request: Value,
    /// All records of the session.
    pub(super) records: Value,
    /// Who decided what, and what they were told.
    pub(super) people: Vec<Decider>,
    /// The arguments that were asked about.
    pub(super) args: Value,
    /// Calls of the tool with this hold's arguments, each with its key.
    pub(super) effects: Vec<(String, Value)>,
    /// How many answers were lost.
    pub(super) lost: usize,
    /// How often a worker lost the request.
    pub(super) taken_over: usize,
}

/// What it came to.
#[derive(Debug, Clone, Default)]
pub(super) struct Verdict {
    pub(super) status: String,
    pub(super) told_the_outcome: usize,
    pub(super) told_of_the_conflict: usize,
    pub(super) by_command_line: usize,
}

/// Says what became of a hold.
///
/// # Errors
///
/// What should not have.
pub(super) fn judge(seen: &Seen) -> Result<Verdict> {
    let decided = the_decision(seen)?;
    let decision = &decided["decision"];
    let status = decision["status"].as_str().context("no status")?;
    let mut verdict = Verdict {
        status: status.to_owned(),
        ..Verdict::default()
    };
    let winner = winner(seen, decision, &mut verdict)?;
    let wanted = match winner.decision {
        "approve" => "approved",
        "edit" => "edited",
        _ => "rejected",
    };
    ensure!(
        status == wanted,
        "{status} was committed, and {wanted} was told"
    );
    for (what, read) in [
        ("the hold", &seen.hold["status"]),
        ("its decision", &seen.hold["decision"]["status"]),
        ("the request's hold", &seen.request["holds"][0]["status"]),
    ] {
        ensure!(read == status, "{what} says {read}, and {status} stands");
    }
    one_release(seen, decision, status)?;
    effects(seen, decided, winner, status)?;
    Ok(verdict)
}

fn events<'a>(seen: &'a Seen, act: &'a str) -> impl Iterator<Item = (&'a Value, &'a Value)> {
    let records = seen.records.as_array().into_iter().flatten();
    let events = records.flat_map(|record| {
        let events = record["events"].as_array().into_iter().flatten();
        events.map(move |event| (record, event))
    });
    events.filter(move |(_, event)| event["act"] == act)
}

/// The one decision that was committed about the hold.
fn the_decision(seen: &Seen) -> Result<&Value> {
    let about = events(seen, "hold_decided").filter(|(_, event)| event["hold"] == seen.hold["id"]);
    let about: Vec<_> = about.collect();
    let [(record, decided)] = about.as_slice() else {
        anyhow::bail!("{} decisions were committed", about.len());
    };
    ensure!(
        record["principal"] == decided["decision"]["by"],
        "decided by another than the one who sent it"
    );
    Ok(decided)
}

/// The one whose decision stands. Those of the same group were told the same bytes, everybody else of
/// the conflict and what stands.
fn winner<'a>(seen: &'a Seen, decision: &Value, verdict: &mut Verdict) -> Result<&'a Decider> {
    let is_told = |told: &Told| match told {
        Told::Answer(answer) => answer.status == 200,
        Told::Exit(code, _) => *code == 0,
    };
    let mut won = seen
        .people
        .iter()
        .filter(|one| one.answers.iter().any(is_told));
    let winner = won.next().context("nobody was told that they decided")?;
    let first = winner.answers.iter().find(|told| is_told(told));
    for person in &seen.people {
        ensure!(
            !person.answers.is_empty(),
            "group {} was told nothing",
            person.group
        );
        for told in &person.answers {
            let is_winner = person.group == winner.group;
            ensure!(
                is_told(told) == is_winner,
                "group {} decided, and group {} was told {told:?}",
                winner.group,
                person.group
            );
            match told {
                Told::Answer(answer) if is_winner => {
                    let same =
                        matches!(first, Some(Told::Answer(first)) if first.body == answer.body);
                    ensure!(same, "the same key got other bytes: {told:?}");
                    let told = answer.json();
                    ensure!(
                        told["status"] == decision["status"]
                            && told["decided_by"] == winner.name.as_str(),
                        "{told} was told, and {decision} stands"
                    );
                }
                Told::Answer(answer) => {
                    let told = answer.json();
                    let is_conflict = answer.status == 409
                        && told["code"] == "hold_decided"
                        && told["hold_status"] == decision["status"]
                        && told["decided_by"] == winner.name.as_str();
                    ensure!(
                        is_conflict,
                        "answered {}: {told}, and {decision} stands",
                        answer.status
                    );
                }
                Told::Exit(code, said) => {
                    ensure!(is_winner || *code == CONFLICT, "exit {code}: {said}");
                    verdict.by_command_line += 1;
                }
            }
            if is_winner {
                verdict.told_the_outcome += 1;
            } else {
                verdict.told_of_the_conflict += 1;
            }
        }
    }
    Ok(winner)
}

/// The request left its hold once, and an action was released only if somebody let it run.
fn one_release(seen: &Seen, decision: &Value, status: &str) -> Result<()> {
    let woken = events(seen, "request_status_changed")
        .filter(|(record, event)| record["command"] == "decide_hold" && event["status"] != "held");
    let woken = woken.count();
    ensure!(woken == 1, "the request was woken {woken} times");
    let is_released = !decision["released"].is_null();
    let runs = matches!(status, "approved" | "edited");
    ensure!(
        is_released == runs,
        "{status}, and released is {}",
        decision["released"]
    );
    Ok(())
}

/// The tool ran once under the execution key, with what was approved; or not at all.
fn effects(seen: &Seen, decided: &Value, winner: &Decider, status: &str) -> Result<()> {
    let opened = events(seen, "hold_opened").find(|(_, event)| event["hold"] == decided["hold"]);
    let (_, opened) = opened.context("the hold was never opened")?;
    let key = opened["call"].as_str().context("no execution key")?;
    let wanted = match status {
        "approved" => Some(&seen.args),
        "edited" => winner.args.as_ref(),
        _ => None,
    };
    let Some(wanted) = wanted else {
        let effects = seen.effects.len();
        ensure!(effects == 0, "{status}, and the tool ran {effects} times");
        return Ok(());
    };
    for (used, args) in &seen.effects {
        ensure!(used == key, "it ran under {used}, and its key is {key}");
        ensure!(args == wanted, "{args} ran, and {wanted} was let run");
    }
    let count = seen.effects.len();
    let most = 1 + seen.taken_over;
    ensure!(
        (1..=most).contains(&count),
        "{status}, and the tool ran {count} times"
    );
    Ok(())
}

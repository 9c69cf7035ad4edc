//! `statehold audit list --decisions`: the action shown to people, the action they released, and
//! its execution.

use serde_json::{Value, json};

use super::digest_cell;
use crate::cli::answers::ListPages;
use crate::cli::output::{CliOutput, TableCell, TextTable, TextTone};
use crate::client::{Client, encode};
use crate::exit::{Exit, Failure};

pub(super) async fn list(
    client: &Client,
    output: &CliOutput,
    limit: usize,
) -> anyhow::Result<Exit> {
    let mut pages = ListPages::holds(vec![("status", Some("decided".to_owned()))]);
    let mut holds = pages.take(client, limit).await?;
    for hold in &mut holds {
        *hold = fetch_with_evidence(client, hold).await?;
    }
    if output.json {
        return output.json(&json!({ "holds": holds }));
    }
    output.table(&table(&holds, output))?;
    if output.is_terminal {
        let more = if pages.cursor.is_some() {
            "; all: --all"
        } else {
            ""
        };
        output.note(&format!("{} decisions shown{more}.", holds.len()));
    }
    Ok(Exit::Done)
}

/// A hold with its evidence, which lists leave out.
async fn fetch_with_evidence(client: &Client, hold: &Value) -> Result<Value, Failure> {
    let Some(id) = hold["id"].as_str() else {
        return Ok(hold.clone());
    };
    match client.get(&format!("/v1/holds/{}", encode(id))).await {
        Ok(answer) => Ok(answer.body),
        // The session was deleted meanwhile, or this key may not see the hold: use the row of the
        // list.
        Err(failure) if matches!(failure.exit, Exit::NotFound | Exit::NotAllowed) => {
            Ok(hold.clone())
        }
        Err(failure) => Err(failure),
    }
}

fn table(holds: &[Value], output: &CliOutput) -> TextTable {
    let mut table = TextTable::new(&[
        "HOLD", "TIME", "ACTION", "DECISION", "BY", "RIGHT", "SHOWN", "RELEASED", "RAN",
    ])
    .spare(&["SHOWN", "RIGHT", "RAN"]);
    for hold in holds {
        let (evidence, decision) = (&hold["evidence"], &hold["decision"]);
        let by = evidence["decided_by"]
            .as_str()
            .or_else(|| decision["by"].as_str());
        let at = hold["decided_at"]
            .as_str()
            .or_else(|| decision["at"].as_str());
        let action = hold["action"]["tool"]
            .as_str()
            .or_else(|| hold["title"].as_str());
        let status = hold["status"].as_str();
        let tone = match status {
            Some("approved" | "edited" | "answered") => TextTone::Good,
            Some("rejected") => TextTone::Bad,
            _ => TextTone::Plain,
        };
        table.row(vec![
            TableCell::id(&hold["id"]),
            TableCell::optional(at.map(|at| output.times.show(at))),
            TableCell::optional(action),
            TableCell::optional(status).tone(tone),
            TableCell::optional(by),
            TableCell::optional(decided_right(&evidence["right"])),
            digest_cell(&evidence["shown"], output),
            digest_cell(&evidence["released"], output),
            TableCell::optional(describe_runs(&evidence["ran"])),
        ]);
    }
    table
}

/// The right under which the hold was decided.
fn decided_right(right: &Value) -> Option<String> {
    let role = right["role"].as_str().map(|role| format!("role:{role}"));
    role.or_else(|| right.as_str().map(str::to_owned))
}

/// The executions of the action: outcomes with the revision that recorded them.
fn describe_runs(ran: &Value) -> Option<String> {
    let runs: Vec<String> = ran
        .as_array()?
        .iter()
        .map(|run| {
            let outcome = run["outcome"].as_str().unwrap_or("open");
            match run["revision"].as_u64() {
                Some(revision) => format!("{outcome}@{revision}"),
                None => outcome.to_owned(),
            }
        })
        .collect();
    (!runs.is_empty()).then(|| runs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_may_be_there_or_not() {
        let nothing = Value::Null;
        assert_eq!(
            (decided_right(&nothing), describe_runs(&nothing)),
            (None, None)
        );
        assert_eq!(decided_right(&json!("local")).as_deref(), Some("local"));
        let role = json!({ "role": "treasurer" });
        assert_eq!(decided_right(&role).as_deref(), Some("role:treasurer"));
        let runs = json!([{ "key": "itm_1", "outcome": "ran", "revision": 9 }, { "key": "itm_2" }]);
        assert_eq!(describe_runs(&runs).as_deref(), Some("ran@9,open"));
        assert_eq!(describe_runs(&json!([])), None);
    }
}

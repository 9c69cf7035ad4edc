//! `statehold tasks wait`.
//!
//! Ends with 0 if the request was completed and with 1 if it was not. A person who said no counts
//! more than what the agent made of it: if the last hold at or below the request was rejected,
//! dismissed or expired, it ends with 9.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::cli::answers::{elements, text};
use crate::cli::output::Output;
use crate::cli::printable::cell;
use crate::cli::resolve::{self, Kind};
use crate::cli::tree::{find_request, open_holds_of};
use crate::client::Client;
use crate::exit::{Exit, Failure};

/// How long one call waits; more calls follow.
const CALL_SECONDS: u64 = 20;
/// How much longer the answer to a call may take.
const CALL_MARGIN: Duration = Duration::from_secs(10);
/// How long a server that is gone is waited for before the next try.
const RETRY: Duration = Duration::from_millis(500);

const HELP: &str = "\
Ends with 0 if the request was completed, 1 if it failed or was cancelled, 7 if --timeout is
over, 8 with --no-human as soon as it waits for a person, and 9 if the last word of a person on
it was no: rejected, dismissed or expired. Without --timeout it waits as long as it takes.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(in crate::cli) struct Wait {
    /// The request or the task: R8, T4, SESSION/R8, or the id or a part of it.
    #[arg(value_name = "REQUEST|TASK")]
    of: String,
    /// Do not wait for people: end with 8 once only a person can go on.
    #[arg(long)]
    no_human: bool,
}

impl Wait {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        limit: Option<Duration>,
        output: &Output,
    ) -> anyhow::Result<Exit> {
        // The limit is for all of it, not for one call.
        let client = &client.within(Duration::from_secs(CALL_SECONDS) + CALL_MARGIN);
        let deadline = limit.map(|limit| Instant::now() + limit);
        let found = resolve::thing(client, &self.of, &[Kind::Request, Kind::Task]).await?;
        let request = match found.kind {
            Kind::Task => match live_request(client, &found.id, output).await? {
                Ok(request) => request,
                Err(exit) => return Ok(exit),
            },
            _ => found.id,
        };
        let path = format!("/v1/requests/{request}");
        let mut answer = client.get(&path).await?.body;
        loop {
            if is_final(&answer) {
                return ended(client, &answer, output).await;
            }
            if self.no_human
                && let Some(holds) = waits_for_people(client, &answer).await?
            {
                return Err(paused(&answer, &holds).into());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(too_late(&answer).into());
            }
            answer = next(client, &path, self.no_human, left, answer, output).await?;
        }
    }
}

/// The request as it is after the next change, or when a call has waited long enough.
async fn next(
    client: &Client,
    path: &str,
    any_change: bool,
    left: Option<Duration>,
    before: Value,
    output: &Output,
) -> Result<Value, Failure> {
    let until = if any_change { "changed" } else { "final" };
    let most = left.map_or(CALL_SECONDS, |left| left.as_secs());
    // What is less than a second is waited for here, since calls count in seconds.
    let call = match left {
        Some(left) if most == 0 => {
            sleep(left).await;
            path.to_owned()
        }
        _ => format!("{path}?wait={}&until={until}", most.min(CALL_SECONDS)),
    };
    match client.get(&call).await {
        Ok(answer) => Ok(answer.body),
        // A server that restarts comes back, and the request with it.
        Err(failure) if failure.exit == Exit::Unreachable || failure.status == Some(503) => {
            output.note("connection lost, retrying…");
            sleep(left.map_or(RETRY, |left| left.min(RETRY))).await;
            Ok(before)
        }
        Err(failure) => Err(failure),
    }
}

/// The live request of a task; or how the task ended, if it has none.
async fn live_request(
    client: &Client,
    task: &str,
    output: &Output,
) -> anyhow::Result<Result<String, Exit>> {
    let task = client.get(&format!("/v1/tasks/{task}?limit=1")).await?.body;
    if let Some(request) = task["live_request_id"].as_str() {
        return Ok(Ok(request.to_owned()));
    }
    let outcome = task["last_outcome"].as_str();
    if output.json {
        output.json(&task)?;
    } else {
        output.line(&format!(
            "{} has nothing to do; its last request was {}",
            cell(text(&task, "alias")),
            cell(outcome.unwrap_or("never made"))
        ))?;
    }
    let is_fine = matches!(outcome, None | Some("completed"));
    Ok(Err(if is_fine { Exit::Done } else { Exit::Failed }))
}

fn is_final(request: &Value) -> bool {
    matches!(
        text(request, "status"),
        "completed" | "failed" | "cancelled"
    )
}

/// The request in the tree of its session, with everything below it.
async fn in_tree(client: &Client, request: &Value) -> Result<Option<Value>, Failure> {
    let session = text(request, "session_id");
    let tree = client.get(&format!("/v1/sessions/{session}/tree")).await?;
    let tasks = elements(&tree.body, "tasks");
    Ok(find_request(tasks, text(request, "id")).cloned())
}

/// The holds that a request waits for, if nothing but people can go on.
async fn waits_for_people(
    client: &Client,
    request: &Value,
) -> Result<Option<Vec<String>>, Failure> {
    if !matches!(text(request, "status"), "held" | "waiting") {
        return Ok(None);
    }
    let Some(node) = in_tree(client, request).await? else {
        return Ok(None);
    };
    let open = open_holds_of(&node);
    // A request waits below while another one works: then it is not only people.
    let holds = open
        .iter()
        .map(|hold| text(hold, "alias").to_owned())
        .collect();
    Ok((!open.is_empty() && !works(&node)).then_some(holds))
}

/// Whether something at or below a request can go on by itself.
fn works(request: &Value) -> bool {
    matches!(text(request, "status"), "running" | "queued")
        || elements(request, "tasks")
            .iter()
            .flat_map(|task| elements(task, "requests"))
            .any(works)
}

/// Every hold at or below a request.
fn all_holds(request: &Value) -> Vec<&Value> {
    let mut holds: Vec<&Value> = elements(request, "holds").iter().collect();
    let below = elements(request, "tasks").iter();
    let below = below.flat_map(|task| elements(task, "requests"));
    holds.extend(below.flat_map(all_holds));
    holds
}

/// The hold that was opened last at or below a request, if a person said no to it.
fn refusal(request: &Value) -> Option<&Value> {
    // Ids sort in the order they were made.
    let last = all_holds(request)
        .into_iter()
        .max_by_key(|hold| text(hold, "id").to_owned())?;
    matches!(text(last, "status"), "rejected" | "expired" | "cancelled").then_some(last)
}

async fn ended(client: &Client, request: &Value, output: &Output) -> anyhow::Result<Exit> {
    // Without the tree, the holds of the request itself must do.
    let node = in_tree(client, request).await.ok().flatten();
    let node = node.as_ref().unwrap_or(request);
    let refused = refusal(node);
    let status = text(request, "status");
    if output.json {
        output.json(request)?;
    } else {
        let alias = cell(text(request, "alias"));
        let why = match refused {
            Some(hold) => format!(
                ", after {} was {}",
                cell(text(hold, "alias")),
                cell(text(hold, "status"))
            ),
            None => String::new(),
        };
        output.line(&format!("{alias} {}{why}", cell(status)))?;
    }
    Ok(match (refused, status) {
        (Some(_), _) => Exit::Refused,
        (None, "completed") => Exit::Done,
        (None, _) => Exit::Failed,
    })
}

fn paused(request: &Value, holds: &[String]) -> Failure {
    let session = text(request, "session_id");
    let alias = text(request, "alias");
    let name = resolve::within_session(session, holds.first().map_or("", String::as_str));
    let mut failure = Failure::new(
        Exit::Paused,
        format!("{alias} waits for a person: {}", holds.join(", ")),
    )
    .hint(format!("look at it with: statehold approvals show {name}"));
    failure.details = Box::new(serde_json::json!({ "request": request, "holds": holds }));
    failure
}

fn too_late(request: &Value) -> Failure {
    let (alias, status) = (text(request, "alias"), text(request, "status"));
    let session = text(request, "session_id");
    let mut failure = Failure::new(
        Exit::TimedOut,
        format!("{alias} has not ended in time: it is {status}"),
    )
    .hint(format!(
        "see what it waits for with: statehold tasks tree {session}"
    ));
    failure.details = Box::new(serde_json::json!({ "request": request }));
    failure
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_word_of_a_person_counts() {
        let hold = |id: &str, status: &str| json!({ "id": id, "alias": id, "status": status });
        let of = |holds: Vec<Value>| json!({ "holds": holds, "tasks": [] });
        let refused = of(vec![hold("hld_1", "approved"), hold("hld_2", "rejected")]);
        assert_eq!(
            refusal(&refused).map(|hold| text(hold, "id")),
            Some("hld_2")
        );
        let asked_again = of(vec![hold("hld_1", "rejected"), hold("hld_2", "approved")]);
        assert_eq!(refusal(&asked_again), None);
        assert_eq!(refusal(&of(Vec::new())), None);
        let below = json!({ "holds": [], "tasks": [{ "requests": [refused] }] });
        assert!(refusal(&below).is_some());
    }

    #[test]
    fn only_people_can_go_on_if_nothing_works() {
        let request = |status: &str, below: Vec<Value>| json!({ "status": status, "tasks": [{ "requests": below }] });
        assert!(!works(&request(
            "waiting",
            vec![request("held", Vec::new())]
        )));
        let busy = vec![request("held", Vec::new()), request("running", Vec::new())];
        assert!(works(&request("waiting", busy)));
    }
}

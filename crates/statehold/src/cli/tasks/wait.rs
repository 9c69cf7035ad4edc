//! `statehold tasks wait`.
//!
//! Ends with 0 if the request was completed and with 1 if it failed or was cancelled. A refusal
//! takes precedence: if the last hold at or below the request was rejected, dismissed or expired,
//! it ends with 9.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::cli::answers::{elements, text};
use crate::cli::output::CliOutput;
use crate::cli::printable::cell;
use crate::cli::resolve::{self, IdKind};
use crate::cli::tree::{all_requests, is_final, is_working, open_holds, with_requests_below};
use crate::client::Client;
use crate::exit::{Exit, Failure};

/// How long one call waits; more calls follow.
const CALL_SECONDS: u64 = 20;
/// How much longer the response may take.
const CALL_MARGIN: Duration = Duration::from_secs(10);
/// The pause before retrying a server that is gone.
const RETRY: Duration = Duration::from_millis(500);

const HELP: &str = "\
Ends with 0 if the request was completed, 1 if it failed or was cancelled, 7 if --timeout has
passed, 8 with --no-human as soon as only a person can continue it, and 9 if its last hold was
rejected, dismissed or expired. Without --timeout it waits without a limit.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(in crate::cli) struct TasksWaitArgs {
    /// The request or the task: R8, T4, SESSION/R8, or the id or a part of it.
    #[arg(value_name = "REQUEST|TASK")]
    of: String,
    /// Do not wait for people: end with 8 once only open holds are left.
    #[arg(long)]
    no_human: bool,
}

impl TasksWaitArgs {
    pub(in crate::cli) async fn run(
        &self,
        client: &Client,
        limit: Option<Duration>,
        output: &CliOutput,
    ) -> anyhow::Result<Exit> {
        // The timeout covers the whole wait, not one call.
        let client = &client.within(Duration::from_secs(CALL_SECONDS) + CALL_MARGIN);
        let deadline = limit.map(|limit| Instant::now() + limit);
        let found = resolve::one_of(client, &self.of, &[IdKind::Request, IdKind::Task]).await?;
        let request = match found.kind {
            IdKind::Task => match live_request(client, &found.id, output).await? {
                Ok(request) => request,
                Err(exit) => return Ok(exit),
            },
            _ => found.id,
        };
        let path = format!("/v1/requests/{request}");
        let mut answer = client.get(&path).await?.body;
        loop {
            if is_final(&answer) {
                return print_end(client, &answer, output).await;
            }
            if self.no_human
                && let Some(holds) = waits_for_people(client, &answer).await?
            {
                return Err(paused_failure(&answer, &holds).into());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(timeout_failure(&answer).into());
            }
            answer = poll_request(client, &path, self.no_human, left, answer, output).await?;
        }
    }
}

/// The request after its next change, or at the end of one long poll.
async fn poll_request(
    client: &Client,
    path: &str,
    any_change: bool,
    left: Option<Duration>,
    before: Value,
    output: &CliOutput,
) -> Result<Value, Failure> {
    let until = if any_change { "changed" } else { "final" };
    let most = left.map_or(CALL_SECONDS, |left| left.as_secs());
    // Long polls count whole seconds: wait for a shorter rest here.
    let call = match left {
        Some(left) if most == 0 => {
            sleep(left).await;
            path.to_owned()
        }
        _ => format!("{path}?wait={}&until={until}", most.min(CALL_SECONDS)),
    };
    match client.get(&call).await {
        Ok(answer) => Ok(answer.body),
        // A restarting server comes back with the request: retry.
        Err(failure) if failure.exit == Exit::Unreachable || failure.status == Some(503) => {
            output.note("connection lost, retrying…");
            sleep(left.map_or(RETRY, |left| left.min(RETRY))).await;
            Ok(before)
        }
        Err(failure) => Err(failure),
    }
}

/// The live request of a task; or the exit code of its last outcome, if it has none.
async fn live_request(
    client: &Client,
    task: &str,
    output: &CliOutput,
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
            "{} has no live request; its last request was {}",
            cell(text(&task, "alias")),
            cell(outcome.unwrap_or("never made"))
        ))?;
    }
    let is_fine = matches!(outcome, None | Some("completed"));
    Ok(Err(if is_fine { Exit::Done } else { Exit::Failed }))
}

/// The request in the tree of its session, with everything below it.
async fn find_in_tree(client: &Client, request: &Value) -> Result<Option<Value>, Failure> {
    let session = text(request, "session_id");
    let tree = client.get(&format!("/v1/sessions/{session}/tree")).await?;
    let mut requests = all_requests(elements(&tree.body, "tasks")).into_iter();
    Ok(requests.find(|found| found["id"] == request["id"]).cloned())
}

/// The holds that block a request, if only people can unblock it.
async fn waits_for_people(
    client: &Client,
    request: &Value,
) -> Result<Option<Vec<String>>, Failure> {
    if !matches!(text(request, "status"), "held" | "waiting") {
        return Ok(None);
    }
    let Some(node) = find_in_tree(client, request).await? else {
        return Ok(None);
    };
    let open = open_holds(with_requests_below(&node));
    // If a request below still works, people are not the only ones to wait for.
    let holds = open
        .iter()
        .map(|hold| text(hold, "alias").to_owned())
        .collect();
    Ok((!open.is_empty() && !has_work(&node)).then_some(holds))
}

/// Whether a request at or below this one is running or queued.
fn has_work(request: &Value) -> bool {
    with_requests_below(request).into_iter().any(is_working)
}

/// The last hold at or below a request, if it was rejected, dismissed or expired.
fn refusal(request: &Value) -> Option<&Value> {
    let requests = with_requests_below(request).into_iter();
    let holds = requests.flat_map(|request| elements(request, "holds"));
    // Ids sort by creation time.
    let last = holds.max_by_key(|hold| text(hold, "id"))?;
    matches!(text(last, "status"), "rejected" | "expired" | "cancelled").then_some(last)
}

async fn print_end(client: &Client, request: &Value, output: &CliOutput) -> anyhow::Result<Exit> {
    // Without the tree, use the holds of the request itself.
    let node = find_in_tree(client, request).await.ok().flatten();
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

fn paused_failure(request: &Value, holds: &[String]) -> Failure {
    let session = text(request, "session_id");
    let alias = text(request, "alias");
    let name = resolve::qualified_alias(session, holds.first().map_or("", String::as_str));
    let mut failure = Failure::new(
        Exit::Paused,
        format!("{alias} waits for a person: {}", holds.join(", ")),
    )
    .hint(format!("look at it with: statehold approvals show {name}"));
    failure.details = Box::new(serde_json::json!({ "request": request, "holds": holds }));
    failure
}

fn timeout_failure(request: &Value) -> Failure {
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
        assert!(!has_work(&request(
            "waiting",
            vec![request("held", Vec::new())]
        )));
        let busy = vec![request("held", Vec::new()), request("running", Vec::new())];
        assert!(has_work(&request("waiting", busy)));
    }
}

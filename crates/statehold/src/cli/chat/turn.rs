//! One turn: the message, the streamed answer, the wait for a person, and reconnecting to a server
//! that was gone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::{sleep, sleep_until};
use unicode_width::UnicodeWidthStr;

use crate::cli::answers::{elements, read, text};
use crate::cli::approvals::{confirm_option, suggested_command};
use crate::cli::hold::{HoldInfo, explain_why_not};
use crate::cli::output::{CliOutput, TextTone, write};
use crate::cli::printable::{cell, printable};
use crate::cli::resolve::exact_name;
use crate::cli::times::duration;
use crate::client::{Client, random_key};
use crate::exit::{Exit, Failure};

const PATH: &str = "/openai/v1/chat/completions";
/// How long a turn may wait for a person before the client opens a new stream.
const WAIT_SECONDS: u64 = 3_600;
/// Backoff while the server is gone: the pause doubles up to the maximum.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a script waits for a server that does not come back. A person can press Ctrl-C.
const GONE_MAX: Duration = Duration::from_mins(2);
/// How long a turn may be silent before the reason is looked for.
const QUIET_MAX: Duration = Duration::from_secs(3);
/// The column where the agents and the duration begin, if they fit behind it.
const ABOUT_COLUMN: usize = 64;
/// The blanks between an answer and the words about it.
const GAP_MIN: usize = 3;

/// The end of a turn.
pub(super) struct TurnEnd {
    pub(super) exit: Exit,
    /// The complete report, for programs.
    pub(super) report: Value,
}

/// One turn.
pub(super) struct ChatTurn<'a> {
    client: &'a Client,
    output: &'a CliOutput,
    session: &'a str,
    agent: &'a str,
    waits: bool,
    is_quiet: bool,
    /// Whether the user can answer a question with a message.
    is_conversation: bool,
    begun: Instant,
    /// The answer so far, across reconnects.
    printed: String,
    /// The holds that were announced, decided ones included.
    holds: Vec<Value>,
    /// The `statehold` object of the last chunk.
    about: Value,
    /// When to look for the reason of a silence. None after that.
    quiet_until: Option<tokio::time::Instant>,
}

/// The end of a stream.
enum StreamEnd {
    /// The answer is complete.
    Answered,
    /// The turn waits for a person, and this client does not.
    Paused,
    /// The connection is gone.
    Lost,
}

impl<'a> ChatTurn<'a> {
    pub(super) fn new(
        client: &'a Client,
        output: &'a CliOutput,
        session: &'a str,
        agent: &'a str,
        waits: bool,
    ) -> Self {
        Self {
            client,
            output,
            session,
            agent,
            waits,
            is_quiet: false,
            is_conversation: false,
            begun: Instant::now(),
            printed: String::new(),
            holds: Vec::new(),
            about: Value::Null,
            quiet_until: Some(tokio::time::Instant::now() + QUIET_MAX),
        }
    }

    /// Prints nothing: only the report counts.
    pub(super) fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// The user can type again, so a question is theirs to answer.
    pub(super) fn in_conversation(mut self) -> Self {
        self.is_conversation = true;
        self
    }

    /// Runs the turn and prints it as it streams.
    ///
    /// # Errors
    ///
    /// If the server refuses the turn, or cannot be reached at first.
    pub(super) async fn take(mut self, message: &str) -> anyhow::Result<TurnEnd> {
        let body = json!({
            "model": self.agent,
            "messages": [{ "role": "user", "content": message }],
            "stream": true,
        });
        // One idempotency key makes all attempts one turn.
        let key = random_key("chat")?;
        let mut headers = vec![
            ("x-statehold-session", self.session.to_owned()),
            ("idempotency-key", key),
        ];
        if self.waits {
            headers.push(("x-statehold-wait", WAIT_SECONDS.to_string()));
        }
        let mut was_there = false;
        let mut lost: Option<(Instant, Duration)> = None;
        let over = loop {
            match self.client.post_stream(PATH, &body, &headers).await {
                Ok(mut stream) => {
                    was_there = true;
                    let is_back = lost.take().is_some();
                    match self.read_stream(&mut stream, is_back).await? {
                        StreamEnd::Lost => {}
                        // The stream waited its maximum: open the next one.
                        StreamEnd::Paused if self.waits && !self.waits_for_this_user() => continue,
                        over => break over,
                    }
                }
                Err(failure) if is_end_of_turn(&failure) => {
                    return Err(
                        turn_failure(failure.code.unwrap_or_default(), failure.message).into(),
                    );
                }
                Err(failure) if was_there && is_transient(&failure) => {
                    let is_over = lost.is_some_and(|(since, _)| since.elapsed() > GONE_MAX);
                    if is_over && !self.is_conversation {
                        return Err(failure.into());
                    }
                }
                Err(failure) => return Err(failure.into()),
            }
            let (since, pause) = lost.unwrap_or_else(|| {
                self.output.note("connection lost, retrying…");
                (Instant::now(), RETRY_MIN)
            });
            sleep(pause).await;
            lost = Some((since, (pause * 2).min(RETRY_MAX)));
        };
        self.finish(&over).await
    }

    /// Reads one stream. Text printed from an earlier stream is not printed again.
    async fn read_stream(
        &mut self,
        stream: &mut crate::client::EventStream,
        is_back: bool,
    ) -> anyhow::Result<StreamEnd> {
        if is_back && self.holds.is_empty() {
            self.output.note("reconnected");
        }
        let mut told_back = !is_back;
        let mut heard = String::new();
        loop {
            let is_silent = heard.is_empty() && self.holds.is_empty();
            let quiet = self.quiet_until.filter(|_| is_silent);
            let next = tokio::select! {
                next = stream.next() => next,
                () = sleep_until(quiet.unwrap_or_else(tokio::time::Instant::now)), if quiet.is_some() => {
                    self.quiet_until = None;
                    self.note_unclaimed().await;
                    continue;
                }
            };
            let Ok(Some(data)) = next else {
                return Ok(StreamEnd::Lost);
            };
            if data == "[DONE]" {
                let is_paused = text(&self.about, "status") == "paused";
                return Ok(if is_paused {
                    StreamEnd::Paused
                } else {
                    StreamEnd::Answered
                });
            }
            let chunk: Value = serde_json::from_str(&data)?;
            if let Some(error) = chunk.get("error") {
                if text(error, "code") == "stopping" {
                    return Ok(StreamEnd::Lost);
                }
                return Err(stream_failure(error).into());
            }
            if let Some(about) = chunk.get("statehold") {
                self.about = about.clone();
                if text(about, "status") == "paused" && self.waits {
                    self.print_pause(elements(about, "holds"), !told_back)?;
                    told_back = true;
                    if self.waits_for_this_user() {
                        return Ok(StreamEnd::Paused);
                    }
                }
            }
            let piece = chunk["choices"][0]["delta"]["content"].as_str();
            heard.push_str(piece.unwrap_or_default());
            self.print(&heard)?;
        }
    }

    /// Says so if a request of this session waits for a worker.
    async fn note_unclaimed(&self) {
        let path = format!("/v1/sessions/{}/tree", self.session);
        let Ok(tree) = self.client.get(&path).await else {
            return;
        };
        let agents = queued_agents(elements(&tree.body, "tasks"));
        if !agents.is_empty() {
            let agents: Vec<&str> = agents.into_iter().collect();
            self.output.note(&format!(
                "no worker has claimed the request to {} yet; it waits until one does (Ctrl-C stops waiting)",
                cell(&agents.join(", "))
            ));
        }
    }

    /// Prints the part of the answer that was not printed before.
    fn print(&mut self, heard: &str) -> anyhow::Result<()> {
        if self.printed.starts_with(heard) {
            return Ok(());
        }
        let new = match heard.strip_prefix(self.printed.as_str()) {
            Some(new) => new.to_owned(),
            // After a reconnect the answer may be worded differently: print it whole, as a new
            // paragraph.
            None => format!("\n\n{heard}"),
        };
        let is_first = self.printed.is_empty();
        heard.clone_into(&mut self.printed);
        if self.is_quiet {
            return Ok(());
        }
        let mut shown = printable(&new);
        if is_first && self.output.is_terminal {
            let name = format!("{}> ", cell(self.agent));
            shown.insert_str(0, &TextTone::Strong.paint(&name));
        }
        write(&shown, "")
    }

    /// Announces each hold that the turn waits for, once.
    fn print_pause(&mut self, holds: &[Value], is_back: bool) -> anyhow::Result<()> {
        let known = |hold: &Value| self.holds.iter().any(|known| known["id"] == hold["id"]);
        let new: Vec<Value> = holds.iter().filter(|hold| !known(hold)).cloned().collect();
        if is_back {
            let aliases: Vec<&str> = holds.iter().map(|hold| text(hold, "alias")).collect();
            let aliases = cell(&aliases.join(", "));
            self.output
                .note(&format!("reconnected; still waiting for {aliases}"));
        }
        for hold in &new {
            self.output.note(&self.pause_notice(hold)?);
        }
        let is_theirs = self.is_conversation && new.iter().all(is_own_question);
        if !new.is_empty() && !is_theirs {
            let note = "(waiting; Ctrl-C stops waiting, the task stays paused)";
            self.output
                .note(&format!("   {}", TextTone::Dim.paint(note)));
        }
        self.holds.extend(new);
        Ok(())
    }

    fn pause_notice(&self, hold: &Value) -> anyhow::Result<String> {
        let is_own_question = is_own_question(hold);
        let hold: HoldInfo = read(hold)?;
        let name = cell(&exact_name(&hold.session_id, &hold.alias));
        let title = cell(&hold.title);
        let message = hold.message.as_deref().map(printable);
        let message = message.map_or_else(String::new, |message| format!("\n   {message}"));
        if is_own_question {
            let how = if self.is_conversation {
                "type the answer".to_owned()
            } else {
                format!("answer with: statehold approvals respond {name} \"…\"")
            };
            return Ok(format!("⏸ {title}{message}\n   {how}"));
        }
        let expires = hold.expires_at.as_deref();
        let expires = expires.map_or_else(String::new, |at| {
            format!(", expires {}", self.output.times.at_present().show(at))
        });
        let how = if hold.may_decide == Some(false) {
            let why = hold.why_not.as_deref();
            let why = why.map(|why| explain_why_not(why, hold.role.as_deref()));
            why.unwrap_or_else(|| "another person must decide".to_owned())
        } else {
            let verb = suggested_command(&hold);
            let confirm = match verb {
                "approve" => confirm_option(&hold),
                _ => String::new(),
            };
            format!("decide in another terminal: statehold approvals {verb} {name}{confirm}")
        };
        Ok(format!(
            "⏸ This needs a person: {title}{message}\n   {}       hold {}{expires}\n   {}",
            cell(&hold.chain),
            cell(&hold.alias),
            how
        ))
    }

    /// Whether every open hold is a question that this user may answer by typing.
    fn waits_for_this_user(&self) -> bool {
        let open = elements(&self.about, "holds");
        self.is_conversation && !open.is_empty() && open.iter().all(is_own_question)
    }

    async fn finish(self, over: &StreamEnd) -> anyhow::Result<TurnEnd> {
        let ms = self.begun.elapsed().as_millis();
        if !self.is_quiet {
            self.print_end(over, ms)?;
        }
        let refused = match over {
            StreamEnd::Answered => self.was_refused().await,
            StreamEnd::Paused | StreamEnd::Lost => false,
        };
        let exit = match over {
            StreamEnd::Paused | StreamEnd::Lost => Exit::Paused,
            StreamEnd::Answered if refused => Exit::Refused,
            StreamEnd::Answered => Exit::Done,
        };
        let mut report = json!({ "content": self.printed, "ms": ms });
        if let (Value::Object(report), Value::Object(about)) = (&mut report, &self.about) {
            report.extend(about.clone());
        }
        Ok(TurnEnd { exit, report })
    }

    fn print_end(&self, over: &StreamEnd, ms: u128) -> anyhow::Result<()> {
        if self.printed.is_empty() {
            return Ok(());
        }
        let via: Vec<&str> = elements(&self.about, "via")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let is_answer = matches!(over, StreamEnd::Answered) && self.output.is_terminal;
        let took = duration(u64::try_from(ms).unwrap_or(u64::MAX));
        let about = match via.as_slice() {
            _ if !is_answer || self.output.quiet => String::new(),
            [] => took,
            via => format!("via {} · {took}", cell(&via.join(", "))),
        };
        if about.is_empty() {
            return write("", "\n");
        }
        let last = self.printed.lines().last().unwrap_or_default();
        let used = last.width() + self.agent.width() + 2;
        let gap = about_gap(used, about.width(), self.output.columns);
        write(&format!("{gap}{}", TextTone::Dim.paint(&about)), "\n")
    }

    /// Whether the last hold of this turn was rejected, dismissed or expired.
    async fn was_refused(&self) -> bool {
        let Some(hold) = self.holds.last() else {
            return false;
        };
        let path = format!("/v1/holds/{}", text(hold, "id"));
        let Ok(answer) = self.client.get(&path).await else {
            return false;
        };
        let status = text(&answer.body, "status");
        matches!(status, "rejected" | "expired" | "cancelled")
    }
}

/// The blanks between an answer and the words about it, which stay on one line: beside the answer
/// if they fit there.
fn about_gap(used: usize, about: usize, columns: usize) -> String {
    let column = ABOUT_COLUMN.min(columns.saturating_sub(about));
    // A long line has wrapped.
    let used = if used > columns {
        used % columns.max(1)
    } else {
        used
    };
    if used + GAP_MIN + about <= columns {
        " ".repeat(column.saturating_sub(used).max(GAP_MIN))
    } else {
        format!("\n{}", " ".repeat(column))
    }
}

/// Whether a hold is a question that this user may answer.
fn is_own_question(hold: &Value) -> bool {
    text(hold, "kind") == "question" && hold["may_decide"] == true
}

/// The agents whose requests no worker has claimed, in a tree.
fn queued_agents(tasks: &[Value]) -> BTreeSet<&str> {
    let mut agents = BTreeSet::new();
    for task in tasks {
        for request in elements(task, "requests") {
            if text(request, "status") == "queued" {
                agents.insert(text(task, "agent"));
            }
            agents.extend(queued_agents(elements(request, "tasks")));
        }
    }
    agents
}

/// Whether a retry can help.
fn is_transient(failure: &Failure) -> bool {
    failure.exit == Exit::Unreachable || matches!(failure.status, Some(429 | 502 | 503))
}

/// Whether the turn has ended without an answer. A proxy that cannot reach the server gives no code.
fn is_end_of_turn(failure: &Failure) -> bool {
    const CODES: [&str; 13] = [
        "agent_busy",
        "agent_cut_off",
        "agent_error",
        "agent_malformed",
        "agent_rate_limited",
        "agent_timeout",
        "agent_too_large",
        "agent_unreachable",
        "answer_memory_full",
        "conversation_lost",
        "no_route",
        "request_cancelled",
        "request_failed",
    ];
    let code = failure.code.as_deref();
    code.is_some_and(|code| CODES.contains(&code))
}

/// The error for a failure in the middle of a stream.
fn stream_failure(error: &Value) -> Failure {
    let (code, message) = (text(error, "code"), text(error, "message"));
    turn_failure(code.to_owned(), message.to_owned())
}

/// The error for a turn without an answer.
fn turn_failure(code: String, message: String) -> Failure {
    let exit = match code.as_str() {
        "unauthenticated" | "forbidden" => Exit::NotAllowed,
        "not_found" => Exit::NotFound,
        "session_closed" | "session_expired" => Exit::Conflict,
        _ => Exit::Failed,
    };
    let mut failure =
        Failure::new(exit, message).hint("the conversation is kept; send the message again");
    failure.code = Some(code);
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_about_an_answer_fit_the_terminal() {
        for (used, about, columns) in [
            (8, 24, 80),
            (60, 24, 80),
            (79, 24, 80),
            (300, 24, 80),
            (8, 24, 120),
        ] {
            let gap = about_gap(used, about, columns);
            let begins = match gap.strip_prefix('\n') {
                Some(blanks) => blanks.len(),
                None => used % columns + gap.len(),
            };
            assert!(begins + about <= columns, "{used} {about} {columns}");
        }
        assert_eq!(about_gap(8, 24, 120).len(), ABOUT_COLUMN - 8);
    }
}
